"""Reading tensors of a checkpoint folder by name."""

import mmap
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from engine.checkpoint.headers import TensorInfo
from engine.checkpoint.index import read_infos

TORCH_DTYPES: dict[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}
DTYPE_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


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
        self._infos = read_infos(folder)
        self._maps: dict[Path, mmap.mmap] = {}

    def infos(self) -> dict[str, TensorInfo]:
        return self._infos

    def read(self, name: str, device: torch.device) -> Tensor:
        info = self._infos[name]
        dtype = TORCH_DTYPES[info.dtype]
        if info.start == info.end:
            return torch.empty(info.shape, dtype=dtype, device=device)
        data = self._map(info.file)
        raw = torch.frombuffer(
            data, dtype=torch.uint8, count=info.end - info.start, offset=info.start
        )
        # The clone also aligns the bytes, which the file does not promise.
        return raw.clone().view(dtype).view(info.shape).to(device)

    def _map(self, path: Path) -> mmap.mmap:
        if path not in self._maps:
            with open(path, "rb") as file:
                self._maps[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return self._maps[path]
