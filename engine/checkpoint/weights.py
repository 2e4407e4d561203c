"""Reading parameters by name: shapes and dtypes checked, formats told apart by what is stored,
every tensor accounted for.

All formats become one convention: W = code * block scale * global scale, the global scale a
multiplier (architecture.md 8). Which format a linear is stored in is `formats.find_layout`'s to
say; this file reads the tensors and checks their values.
"""

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.checkpoint.census import ignored_as
from engine.checkpoint.convert import mxfp4_as_nvfp4, parts_to_nvfp4
from engine.checkpoint.files import TensorSource
from engine.checkpoint.formats import FLOATS, Format, Layout, expect, find_layout
from engine.checkpoint.headers import TensorInfo
from engine.errors import CheckpointError
from kernels.formats import (
    FP8_TILE,
    Nvfp4Weight,
    dequantise_fp8_block,
    dequantise_mxfp4,
    dequantise_nvfp4,
)

_BLOCK_NUMBERS = 1 << 18
_ABOVE_ZERO = "a scale must be finite and above zero"
_NOT_ZERO = "a block scale must be finite and, where its block holds numbers, above zero"
_FINITE = "holds NaN or Inf"


@dataclass(frozen=True, slots=True)
class StoredLinear:
    """A weight [N, K] as stored. scale: block or tile scales, E8M0 ones as uint8; global_scale,
    input_scale: NVFP4 only, multipliers whatever the checkpoint spells."""

    format: Format
    weight: Tensor
    scale: Tensor | None = None
    global_scale: Tensor | None = None
    input_scale: Tensor | None = None

    def dequantise(self) -> Tensor:
        """[N, K] fp32."""
        if self.format == "nvfp4":
            return dequantise_nvfp4(self.nvfp4())
        if self.format == "float":
            return self.weight.float()
        assert self.scale is not None
        decode = dequantise_mxfp4 if self.format == "mxfp4" else dequantise_fp8_block
        return decode(self.weight, self.scale)

    def row_blocks(self) -> Iterator[Tensor]:
        """The same of a float or FP8 weight, some rows at a time: [n, K] fp32 each."""
        rows, columns = self.weight.shape
        # Small enough for a CPU's caches, large enough for a GPU's launches.
        most = _BLOCK_NUMBERS * (1 if self.weight.device.type == "cpu" else 64)
        step = max(most // columns // FP8_TILE, 1) * FP8_TILE
        for start in range(0, rows, step):
            scale = self.scale
            if scale is not None:
                scale = scale[start // FP8_TILE : -(-(start + step) // FP8_TILE)]
            yield StoredLinear(self.format, self.weight[start : start + step], scale).dequantise()

    def nvfp4(self) -> Nvfp4Weight:
        """The stored NVFP4 bytes."""
        assert self.scale is not None and self.global_scale is not None
        return Nvfp4Weight(self.weight, self.scale, self.global_scale)


def as_nvfp4(stored: StoredLinear) -> Nvfp4Weight:
    """The stored NVFP4 bytes, or the weight turned into them now."""
    if stored.format == "nvfp4":
        return stored.nvfp4()
    if stored.format == "mxfp4":
        assert stored.scale is not None
        return mxfp4_as_nvfp4(stored.weight, stored.scale)
    return parts_to_nvfp4(stored.row_blocks)


class WeightReader:
    """Takes parameters out of a source, once each.

    Values are checked on the device and the verdicts collected: `settle` reads them, so that a load
    waits for the device once a layer and not once a tensor.

    Args:
        elsewhere: tensors that another rank reads.
        progress: called with the bytes read so far, after each tensor; may raise to end the load.

    Raises (all methods):
        CheckpointError: missing, of another shape or dtype, or with a scale that is zero, negative
            or not finite. One line, naming the tensor, what was found and what was expected.
    """

    def __init__(
        self,
        source: TensorSource,
        device: torch.device,
        elsewhere: Set[str] = frozenset(),
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.source = source
        self.device = device
        self.infos = source.infos()
        self.formats: dict[str, set[str]] = {}
        self.stored_bytes = 0
        self._progress = progress
        self._used: set[str] = set(elsewhere)
        self._verdicts: list[tuple[str, Tensor]] = []

    def tensor(self, name: str, shape: tuple[int, ...], dtypes: tuple[str, ...] = FLOATS) -> Tensor:
        """One tensor, on the device, in its stored dtype. Shape [] also accepts [1]."""
        info = expect(self.infos, self.source.where, name, shape, dtypes)
        return self._read(info).view(shape)

    def _read(self, info: TensorInfo) -> Tensor:
        if info.name in self._used:
            raise CheckpointError(f"{info.file}: {info.name!r} is used twice")
        self._used.add(info.name)
        value = self.source.read(info.name, self.device)
        self.stored_bytes += info.size_bytes
        if self._progress is not None:
            self._progress(self.stored_bytes)
        return value

    def format_of(self, prefix: str, shape: tuple[int, int]) -> Format:
        """How the projection `prefix` [N, K] is stored."""
        return find_layout(self.infos, self.source.where, prefix, shape).format

    def linear(self, prefix: str, shape: tuple[int, int], kind: str) -> StoredLinear:
        """The projection `prefix` [N, K] in whatever format it is stored; `kind` names its class in
        the report of formats."""
        layout = find_layout(self.infos, self.source.where, prefix, shape)
        self.formats.setdefault(kind, set()).add(layout.format)
        weight = self._read(layout.weight)
        if layout.format == "float":
            return StoredLinear("float", weight)
        assert layout.scale is not None
        scale = self._read(layout.scale)
        if layout.format == "fp8":
            return StoredLinear("fp8", weight, self._fp8_scale(layout.scale, weight, scale))
        weight = weight.view(torch.uint8)
        scale = self._block_scale(layout.scale, weight, scale)
        if layout.format == "mxfp4":
            return StoredLinear("mxfp4", weight, scale)
        global_scale = self._global_scale(layout.global_scale, layout)
        assert global_scale is not None
        input_scale = self._global_scale(layout.input_scale, layout)
        return StoredLinear("nvfp4", weight, scale, global_scale, input_scale)

    # ---- values ----------------------------------------------------------------------------------

    def _fp8_scale(self, info: TensorInfo, weight: Tensor, scale: Tensor) -> Tensor:
        """Tile scales: E8M0 codes as uint8, or floats."""
        if info.dtype not in FLOATS:
            scale = scale.view(torch.uint8)
            self._require(info, scale != 255, _ABOVE_ZERO)
            self._require_used(info, scale == 0, lambda: _tiles_with_numbers(weight))
            return scale
        self._require(info, (scale > 0) & scale.isfinite(), _ABOVE_ZERO)
        return scale

    def _block_scale(self, info: TensorInfo, packed: Tensor, scale: Tensor) -> Tensor:
        """Scales per block of 4-bit codes: E4M3, or E8M0 codes as uint8."""
        raw = scale.view(torch.uint8)
        if info.dtype == "F8_E4M3":
            self._require(info, raw < 0x7F, _NOT_ZERO)  # above are NaN and the negative ones
        else:
            scale = raw
            self._require(info, raw != 255, _NOT_ZERO)
        # Code 0 is zero in E4M3 and 2^-127 in E8M0, which no quantiser writes for a live block.
        self._require_used(
            info,
            raw == 0,
            lambda: ((packed & 0x77) != 0).unflatten(-1, (raw.shape[-1], -1)).any(-1),
        )
        return scale

    def _global_scale(self, info: TensorInfo | None, layout: Layout) -> Tensor | None:
        if info is None:
            return None
        stored = self._read(info).view(())
        scale = 1.0 / stored if layout.reciprocal else stored
        sound = (stored > 0) & stored.isfinite() & (scale > 0) & scale.isfinite()
        self._require(info, sound, _ABOVE_ZERO)
        return scale

    def finite(self, name: str, value: Tensor) -> None:
        """Note that `value`, which came from the tensor `name`, must be finite."""
        self._require(self.infos[name], value.isfinite(), _FINITE)

    def table(self, name: str, shape: tuple[int, int], entries: int) -> Tensor:
        """A table of ids below `entries`, in int32."""
        info = expect(self.infos, self.source.where, name, shape, ("I64", "I32"))
        value = self._read(info)
        self._require(info, (value >= 0) & (value < entries), "names an expert that does not exist")
        return value.int()

    def _require(self, info: TensorInfo, holds: Tensor, wanted: str) -> None:
        if not holds.is_meta:
            self._verdicts.append((f"{info.file}: {info.name!r}: {wanted}", holds.all()))

    def _require_used(self, info: TensorInfo, zero: Tensor, live: Callable[[], Tensor]) -> None:
        """No zero scale where `live` says that the block holds numbers."""
        if not zero.is_meta and bool(zero.any()):
            self._require(info, ~(zero & live()), _NOT_ZERO)

    def settle(self) -> None:
        """Read the verdicts on everything read so far."""
        verdicts, self._verdicts = self._verdicts, []
        if verdicts and not bool(torch.stack([holds for _, holds in verdicts]).all()):
            raise CheckpointError(next(what for what, holds in verdicts if not bool(holds)))

    def finish(self) -> None:
        """Check that nothing was left over but the parts dropped by name."""
        self.settle()
        left = [name for name in self.infos if name not in self._used and not ignored_as(name)]
        if left:
            raise CheckpointError(f"{self.infos[left[0]].file}: {left[0]!r} was not read")


def _tiles_with_numbers(weight: Tensor) -> Tensor:
    rows, columns = weight.shape
    pad = (0, -columns % FP8_TILE, 0, -rows % FP8_TILE)
    held = torch.nn.functional.pad((weight.view(torch.uint8) & 0x7F) != 0, pad)
    return held.unflatten(0, (-1, FP8_TILE)).unflatten(2, (-1, FP8_TILE)).any(3).any(1)
