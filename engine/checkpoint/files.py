"""Reading tensors of a checkpoint folder by name."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from engine.checkpoint.headers import TensorInfo
from engine.checkpoint.index import read_infos
from engine.checkpoint.reading import FileReader, ReadAhead

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

    def start(self, order: Sequence[str], device: torch.device) -> None:
        """A hint: these tensors will be read, in about this order."""
        ...

    def read(self, name: str, device: torch.device) -> Tensor:
        """A tensor of its own on `device`."""
        ...

    def close(self) -> None:
        """No more reads; ends what `start` began."""
        ...


class CheckpointFiles:
    """A folder of safetensors shards.

    Raises:
        CheckpointError: no such folder, no index, a missing, truncated or foreign shard, an index
            that disagrees with the headers.
    """

    def __init__(self, folder: Path) -> None:
        self.where = str(folder)
        self._infos = read_infos(folder)
        self._ahead: ReadAhead | None = None

    def infos(self) -> dict[str, TensorInfo]:
        return self._infos

    def start(self, order: Sequence[str], device: torch.device) -> None:
        self.close()
        self._ahead = ReadAhead([self._infos[name] for name in order], device)

    def read(self, name: str, device: torch.device) -> Tensor:
        info = self._infos[name]
        if self._ahead is not None:
            raw = self._ahead.take(info)
        else:
            reader = FileReader(device)
            raw = reader.read(info)
            reader.close()
        return raw.view(TORCH_DTYPES[info.dtype]).view(info.shape)

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None
