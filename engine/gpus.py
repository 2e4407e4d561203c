"""What the driver's own tool says of this machine's GPUs. Needs no torch."""

import shutil
import subprocess


def query_gpus(fields: str) -> list[str]:
    """One line of comma-separated values a GPU, without units; empty without nvidia-smi or a GPU.

    fields: names as `nvidia-smi --help-query-gpu` lists them.
    """
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
