"""Reading parameters by name: shapes and dtypes checked, formats told apart by what is stored,
every tensor accounted for.

All formats become one convention: W = code * block scale * global scale, the global scale a
multiplier (architecture.md 8). A format is decided per tensor from names, dtypes and shapes, never
from config text.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from engine.checkpoint.files import DTYPE_NAMES, TORCH_DTYPES, TensorSource
from engine.errors import CheckpointError
from kernels.formats import (
    FP8_TILE,
    MXFP4_BLOCK,
    NVFP4_BLOCK,
    Nvfp4Weight,
    dequantise_fp8_block,
    dequantise_mxfp4,
    dequantise_nvfp4,
    quantise_nvfp4_weight,
)

Format = Literal["nvfp4", "mxfp4", "fp8", "float"]
FLOATS = (torch.bfloat16, torch.float16, torch.float32)
_E8M0 = (torch.float8_e8m0fnu, torch.uint8)

# Parts of a checkpoint the chat does not run, dropped by name: the draft stages.
IGNORED_PREFIXES = ("mtp.",)


@dataclass(frozen=True, slots=True)
class StoredLinear:
    """A weight [N, K] as stored. scale: block or tile scales; global_scale, input_scale: NVFP4
    only."""

    format: Format
    weight: Tensor
    scale: Tensor | None = None
    global_scale: Tensor | None = None
    input_scale: Tensor | None = None

    def dequantise(self) -> Tensor:
        """[N, K] fp32."""
        if self.format == "nvfp4":
            return dequantise_nvfp4(self.nvfp4())
        if self.format == "mxfp4":
            assert self.scale is not None
            return dequantise_mxfp4(self.weight, self.scale)
        if self.format == "fp8":
            assert self.scale is not None
            return dequantise_fp8_block(self.weight, self.scale)
        return self.weight.float()

    def nvfp4(self) -> Nvfp4Weight:
        """The stored NVFP4 bytes."""
        assert self.scale is not None and self.global_scale is not None
        return Nvfp4Weight(self.weight, self.scale, self.global_scale)


def as_nvfp4(stored: StoredLinear) -> Nvfp4Weight:
    """The stored NVFP4 bytes, or the weight quantised now."""
    return (
        stored.nvfp4() if stored.format == "nvfp4" else quantise_nvfp4_weight(stored.dequantise())
    )


class WeightReader:
    """Takes parameters out of a source, once each.

    Raises (all methods):
        CheckpointError: missing, of another shape or dtype, or with a scale that is zero, negative
        or
            not finite. One line, naming the tensor, what was found and what was expected.
    """

    def __init__(self, source: TensorSource, device: torch.device) -> None:
        self.source = source
        self.device = device
        self.infos = source.infos()
        self.formats: dict[str, set[str]] = {}
        self.stored_bytes = 0
        self.parameters = (
            0  # trained numbers, whatever each is stored in; no scales, no hash tables
        )
        self._used: set[str] = set()

    def has(self, name: str) -> bool:
        return name in self.infos

    def tensor(
        self, name: str, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...] = FLOATS
    ) -> Tensor:
        """One tensor, on the device, in its stored dtype. Shape [] also accepts [1]."""
        info = self.infos.get(name)
        if info is None:
            raise CheckpointError(f"{self.source.where}: tensor {name!r} is missing")
        if info.shape != shape and not (shape == () and info.shape == (1,)):
            raise CheckpointError(
                f"{info.file}: {name!r} has shape {list(info.shape)}, expected {list(shape)}"
            )
        if TORCH_DTYPES[info.dtype] not in dtypes:
            raise CheckpointError(
                f"{info.file}: {name!r} is {info.dtype}, expected "
                + " or ".join(DTYPE_NAMES[dtype] for dtype in dtypes)
            )
        if name in self._used:
            raise CheckpointError(f"{info.file}: {name!r} is used twice")
        self._used.add(name)
        self.stored_bytes += info.end - info.start
        return self.source.read(name, self.device).view(shape)

    def linear(self, prefix: str, shape: tuple[int, int], kind: str) -> StoredLinear:
        """The projection `prefix`.weight [N, K] in whatever format it is stored; `kind` names its
        class in the report of formats."""
        stored = self._linear(prefix, shape)
        self.parameters += shape[0] * shape[1]
        self.formats.setdefault(kind, set()).add(stored.format)
        return stored

    def _linear(self, prefix: str, shape: tuple[int, int]) -> StoredLinear:
        name, (rows, columns) = f"{prefix}.weight", shape
        info = self.infos.get(name)
        if info is None:
            raise CheckpointError(f"{self.source.where}: tensor {name!r} is missing")
        if self.has(f"{prefix}.weight_scale_2"):
            return self._nvfp4(prefix, rows, columns)
        if info.dtype in ("I8", "U8"):
            weight = self.tensor(name, (rows, columns // 2), (torch.int8, torch.uint8))
            scale = self.tensor(f"{prefix}.scale", (rows, columns // MXFP4_BLOCK), _E8M0)
            return StoredLinear("mxfp4", weight, self._checked_e8m0(prefix, scale))
        if info.dtype == "F8_E4M3":
            weight = self.tensor(name, shape, (torch.float8_e4m3fn,))
            tiles = (-(-rows // FP8_TILE), -(-columns // FP8_TILE))
            scale = self.tensor(f"{prefix}.scale", tiles, (*_E8M0, torch.float32))
            if scale.dtype == torch.float32:
                self._check_scale(f"{prefix}.scale", scale)
                return StoredLinear("fp8", weight, scale)
            return StoredLinear("fp8", weight, self._checked_e8m0(prefix, scale))
        return StoredLinear("float", self.tensor(name, shape))

    def _nvfp4(self, prefix: str, rows: int, columns: int) -> StoredLinear:
        weight = self.tensor(f"{prefix}.weight", (rows, columns // 2), (torch.uint8, torch.int8))
        scale_name = f"{prefix}.weight_scale"
        scale = self.tensor(scale_name, (rows, columns // NVFP4_BLOCK), (torch.float8_e4m3fn,))
        self._check_scale(scale_name, scale.float(), may_be_zero=True)
        global_scale = self._global(f"{prefix}.weight_scale_2")
        input_name = f"{prefix}.input_scale"
        input_scale = self._global(input_name) if self.has(input_name) else None
        return StoredLinear("nvfp4", weight.view(torch.uint8), scale, global_scale, input_scale)

    def _global(self, name: str) -> Tensor:
        scale = self.tensor(name, (), (torch.float32,))
        self._check_scale(name, scale)
        return scale

    def _checked_e8m0(self, prefix: str, scale: Tensor) -> Tensor:
        raw = scale.view(torch.uint8)
        if not raw.is_meta and (raw == 255).any():
            raise CheckpointError(f"{self._file(prefix)}: {prefix}.scale holds NaN")
        return raw

    def _check_scale(self, name: str, scale: Tensor, *, may_be_zero: bool = False) -> None:
        if scale.is_meta:
            return
        low = (scale < 0) if may_be_zero else (scale <= 0)
        if bool(low.any()) or not bool(scale.isfinite().all()):
            wanted = "finite and not negative" if may_be_zero else "finite and above zero"
            raise CheckpointError(f"{self._file(name)}: {name!r}: a scale must be {wanted}")

    def _file(self, name: str) -> str:
        info = self.infos.get(name) or self.infos.get(f"{name}.scale")
        return str(info.file) if info else self.source.where

    def finish(self) -> None:
        """Check that nothing was left over but the parts dropped by name."""
        left = [
            name
            for name in self.infos
            if name not in self._used and not name.startswith(IGNORED_PREFIXES)
        ]
        if left:
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            raise CheckpointError(
                f"{self.infos[left[0]].file}: {left[0]!r}{more}: not part of this architecture; "
                "the checkpoint is of another model or in a layout dsv4chat does not know"
            )
