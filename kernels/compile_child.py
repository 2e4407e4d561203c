"""Compiles one kernel and writes its cubin: the child process of `kernels.compiled`."""

import importlib
import json
import sys
from pathlib import Path


def main(job: str) -> None:
    """job: JSON with module, arch, static and out."""
    wanted = json.loads(job)
    module = importlib.import_module(wanted["module"])
    compiled = module.build(f"--gpu-arch {wanted['arch']}", **wanted["static"])
    Path(wanted["out"]).write_bytes(compiled.__cubin__)


if __name__ == "__main__":
    main(sys.argv[1])
