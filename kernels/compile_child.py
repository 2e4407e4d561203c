"""Compiles kernels and writes their cubins: the child process of `kernels.compiled`."""

import importlib
import json
import sys
from pathlib import Path


def main(jobs: str) -> None:
    """jobs: a JSON list of {module, arch, static, out}. Prints the number of each job it begins."""
    for number, job in enumerate(json.loads(jobs)):
        print(number, flush=True)
        module = importlib.import_module(job["module"])
        compiled = module.build(f"--gpu-arch {job['arch']}", **job["static"])
        Path(job["out"]).write_bytes(compiled.__cubin__)


if __name__ == "__main__":
    main(sys.argv[1])
