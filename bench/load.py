"""Loading from disk: the rate as a share of a raw sequential read, and the peak of host memory.

    python -m bench.load [--model DIR | --gigabytes N] [--device cpu|cuda] [--json]

Three passes over the same files, each with the files dropped from the page cache first (--warm
leaves them there): `raw`, one thread reading from end to end into one buffer; `read`, every tensor
to the device in loading order; `load`, the whole model in the kernels' layout. Without --model a
checkpoint in NVIDIA's layout with Flash's shapes, a part of its experts and layers and a small
vocabulary is written first, to a temporary folder.
"""

import argparse
import dataclasses
import json
import math
import os
import re
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from engine.checkpoint import geometry
from engine.checkpoint.census import take_census
from engine.checkpoint.files import CheckpointFiles
from engine.checkpoint.headers import ITEM_BYTES
from engine.checkpoint.index import INDEX
from engine.loading import kernel_library, pick_device
from engine.model.build import build_model
from engine.model.config import ModelConfig

_LAYERS, _VOCABULARY = 4, 16384
_BUFFER = 16 << 20


def write_sample(folder: Path, gigabytes: float) -> ModelConfig:
    """Random weights of about that size, a shard a layer and one for the rest."""
    one, two = (_size(_config(experts)) for experts in (8, 16))
    experts = max(8, round(8 + (gigabytes * 1e9 - one) / ((two - one) / 8)))
    config = _config(experts)
    source = geometry.RandomTensors(config)
    shards: dict[str, dict[str, torch.Tensor]] = {}
    weight_map = {}
    for name in source.infos():
        layer = re.match(r"layers\.(\d+)\.", name)
        shard = f"model-{layer[1] if layer else 'rest'}.safetensors"
        shards.setdefault(shard, {})[name] = torch.empty(0)
        weight_map[name] = shard
    for shard, tensors in shards.items():
        held = {name: source.read(name, torch.device("cpu")) for name in tensors}
        save_file(held, folder / shard)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    os.sync()
    return config


def _config(experts: int) -> ModelConfig:
    return dataclasses.replace(geometry.flash(_LAYERS, experts), vocab_size=_VOCABULARY)


def _size(config: ModelConfig) -> int:
    infos = geometry.RandomTensors(config).infos().values()
    return sum(math.prod(info.shape) * ITEM_BYTES[info.dtype] for info in infos)


def forget(files: list[Path]) -> None:
    """Drop files from the page cache."""
    for path in files:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def raw_read(files: list[Path]) -> None:
    buffer = memoryview(bytearray(_BUFFER))
    for path in files:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def read_all(config: ModelConfig, folder: Path, device: torch.device) -> int:
    """Every tensor in loading order, dropped at once; returns the bytes."""
    source = CheckpointFiles(folder)
    infos = source.infos()
    placed = take_census(config, infos, str(folder)).placed
    order = [name for part in placed for name in part.names()]
    source.start(order, device)
    for name in order:
        source.read(name, device)
    source.close()
    return sum(infos[name].size_bytes for name in order)


class Peak:
    """Host memory used at most since it was made, in bytes beyond what was in use then."""

    def __init__(self) -> None:
        self._linux = sys.platform == "linux"
        if self._linux:
            Path("/proc/self/clear_refs").write_text("5")
        self._before = self._read("VmRSS")

    def _read(self, field: str) -> int:
        if not self._linux:
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
        assert found
        return int(found[1]) << 10

    def bytes(self) -> int:
        return self._read("VmHWM") - self._before


def measure(args: argparse.Namespace, folder: Path, config: ModelConfig) -> dict[str, Any]:
    device = pick_device(args.device)
    files = sorted(folder.glob("*.safetensors"))
    total = sum(path.stat().st_size for path in files)
    library = kernel_library(device, config, 1024, lambda event: None)
    seconds: dict[str, list[float]] = {"raw": [], "read": [], "load": []}
    held, peak = 0, 0

    def load() -> None:
        nonlocal held, peak
        used = Peak()
        built = build_model(config, CheckpointFiles(folder), precision=args.precision,
                            device=device, library=library)  # fmt: skip
        if device.type == "cuda":
            torch.cuda.synchronize()
        held, peak = built.resident_bytes, used.bytes()

    passes: dict[str, Callable[[], object]] = {
        "raw": lambda: raw_read(files),
        "read": lambda: read_all(config, folder, device),
        "load": load,
    }
    for _ in range(args.rounds):
        for name, run in passes.items():
            if not args.warm:
                forget(files)
            started = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - started)
    best = {name: total / min(times) / 1e9 for name, times in seconds.items()}
    return {
        "device": str(device),
        "precision": args.precision,
        "cache": "warm" if args.warm else "cold",
        "gigabytes": total / 1e9,
        "gb_s": best,
        "share_of_raw": {name: best[name] / best["raw"] for name in ("read", "load")},
        "held_bytes": held,
        "peak_host_bytes": peak,
        "peak_of_model": peak / held,
    }


def show(found: dict[str, Any]) -> None:
    print(f"{found['gigabytes']:.2f} GB on disk, {found['cache']} cache, --device "
          f"{found['device']} --precision {found['precision']}")  # fmt: skip
    for name, rate in found["gb_s"].items():
        share = found["share_of_raw"].get(name)
        print(f"  {name:<6}{rate:6.2f} GB/s" + (f"  {share:4.0%} of raw" if share else ""))
    print(f"  model as held {found['held_bytes'] / 1e9:.2f} GB, peak of host memory "
          f"{found['peak_host_bytes'] / 1e9:.2f} GB, {found['peak_of_model']:.2f}x")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, help="a checkpoint folder")
    parser.add_argument("--gigabytes", type=float, default=2.0, help="size of the sample")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--precision", choices=("nvfp4", "checkpoint"), default="nvfp4")
    parser.add_argument("--rounds", type=int, default=2, help="the best of them counts")
    parser.add_argument("--warm", action="store_true", help="leave the files in the page cache")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dsv4chat-load-") as made:
        folder = args.model or Path(made)
        config = ModelConfig.load(folder) if args.model else write_sample(folder, args.gigabytes)
        found = measure(args, folder, config)
    print(json.dumps(found)) if args.json else show(found)


if __name__ == "__main__":
    main()
