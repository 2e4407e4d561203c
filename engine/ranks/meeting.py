"""Where the ranks of one box meet: a torch process group over a file, without a port to choose."""

import os
import sys
from datetime import timedelta

import torch
from torch import distributed as dist

from engine.model.split import Split
from engine.model.team import Team

_LONGEST_WAIT = timedelta(minutes=5)


def meet(store: str, split: Split, device: torch.device) -> Team:
    """Join the others; returns when all are there. NCCL on GPUs, gloo on the CPU.

    A rank that ends instead is noticed by who started it (`lead`), not here.
    """
    backend = "nccl" if device.type == "cuda" else "gloo"
    if backend == "gloo":
        # All ranks are on this machine: its name need not resolve to an address.
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    dist.init_process_group(
        backend,
        store=dist.FileStore(store, split.size),
        rank=split.rank,
        world_size=split.size,
        timeout=_LONGEST_WAIT,
        device_id=device if device.type == "cuda" else None,
    )
    return Team(split, dist.group.WORLD)
