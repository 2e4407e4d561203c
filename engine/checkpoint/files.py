"""A checkpoint folder as a set of named tensors: the index, its shards, and reading one tensor.

The index and the shards' headers must agree in both directions; `metadata.total_size` is often
stale and is not looked at.
"""

import json
import mmap
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from engine.checkpoint.headers import TensorInfo, read_header
from engine.errors import CheckpointError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


class TensorSource(Protocol):
    """Named tensors, by header first and by value when asked."""

    where: str

    def infos(self) -> dict[str, TensorInfo]:
        """Every tensor's dtype and shape."""
        ...

    def read(self, name: str, device: torch.device) -> Tensor:
        """A tensor of its own on `device`."""
        ...


class CheckpointFiles:
    """A folder of safetensors shards.

    Raises:
        CheckpointError: no such folder, no index, a missing, truncated or foreign shard, an index
        that
            disagrees with the headers.
    """

    def __init__(self, folder: Path) -> None:
        self.where = str(folder)
        self._infos = _resolve(folder)
        self._maps: dict[Path, mmap.mmap] = {}

    def infos(self) -> dict[str, TensorInfo]:
        return self._infos

    def read(self, name: str, device: torch.device) -> Tensor:
        info = self._infos[name]
        if info.start == info.end:
            return torch.empty(info.shape, dtype=info.dtype, device=device)
        data = self._map(info.file)
        raw = torch.frombuffer(data, dtype=torch.uint8, count=info.end - info.start,
                               offset=info.start)  # fmt: skip
        # The clone also aligns the bytes, which the file does not promise.
        return raw.clone().view(info.dtype).view(info.shape).to(device)

    def _map(self, path: Path) -> mmap.mmap:
        if path not in self._maps:
            with open(path, "rb") as file:
                self._maps[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return self._maps[path]


def _resolve(folder: Path) -> dict[str, TensorInfo]:
    if not folder.is_dir():
        kind = "is a file" if folder.exists() else "does not exist"
        raise CheckpointError(f"{folder}: {kind}; give the folder of a DeepSeek-V4 checkpoint")
    index_path, single = folder / INDEX, folder / SINGLE
    if not index_path.exists():
        if single.exists():
            return read_header(single)
        raise CheckpointError(f"{folder}: neither {INDEX} nor {SINGLE}: no weights here")
    weight_map = _weight_map(index_path)
    shards = sorted(set(weight_map.values()))
    missing = [shard for shard in shards if not (folder / shard).exists()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointError(f"{folder}: shard {missing[0]}{more} is missing; fetch it again")
    infos: dict[str, TensorInfo] = {}
    for shard in shards:
        for name, info in read_header(folder / shard).items():
            if weight_map.get(name) != shard:
                raise CheckpointError(
                    f"{folder / shard}: {name!r} is not listed for this shard in {INDEX}"
                )
            infos[name] = info
    for name, shard in weight_map.items():
        if name not in infos:
            raise CheckpointError(f"{folder / shard}: {name!r} is in {INDEX}, not in the shard")
    return infos


def _weight_map(path: Path) -> dict[str, str]:
    try:
        index: Any = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON: {error}") from None
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path}: no weight_map")
    for name, shard in weight_map.items():
        plain = isinstance(shard, str) and shard == Path(shard).name and "\\" not in shard
        if not plain or not shard.endswith(".safetensors"):
            raise CheckpointError(f"{path}: {name!r} points at {shard!r}, not a shard beside it")
    return weight_map
