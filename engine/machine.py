"""What this machine is, for reports: system, packages, GPU."""

import importlib.metadata
import os
import platform

import torch

from engine.gpus import query_gpus
from engine.protocol import Machine

PACKAGES = ("torch", "textual", "msgspec", "tokenizers", "safetensors", "nvidia-cutlass-dsl")


def packages() -> dict[str, str]:
    """Versions by name; `missing` where one is not installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "missing"
    return found


def driver() -> str:
    """The GPU driver's version, one line a GPU; empty without one."""
    return "\n".join(query_gpus("driver_version"))


def describe_machine(device: torch.device) -> Machine:
    on_gpu = device.type == "cuda"
    return Machine(
        system=platform.platform(),
        python=platform.python_version(),
        cores=os.cpu_count() or 0,
        packages=packages(),
        gpu=torch.cuda.get_device_name(device) if on_gpu else "",
        cuda=str(torch.version.cuda or "") if on_gpu else "",
        driver=driver() if on_gpu else "",
    )
