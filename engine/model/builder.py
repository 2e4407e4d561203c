"""The context of one load: takes parameters from the reader and makes them what the model holds.

What is stored wider than NVFP4 is quantised here, tensor by tensor, and its source is let go.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from engine.checkpoint.weights import StoredLinear, WeightReader, as_nvfp4
from engine.model.config import ModelConfig
from engine.model.linear import (
    Bf16GroupedLinear,
    Bf16Linear,
    Fp8Linear,
    Linear,
    Nvfp4GroupedLinear,
    Nvfp4Linear,
    Projections,
    SomeRows,
)
from engine.model.ops import Plan
from engine.model.split import Split
from engine.protocol import Precision
from kernels import linear as linear_ops
from kernels.formats import FP8_TILE, NVFP4_BLOCK, Nvfp4Weight
from kernels.linear import reference as linear_reference


class Part(NamedTuple):
    """One of several linears over one input. kind: its tensor class. keep: rows to hold, or all."""

    prefix: str
    rows: int
    kind: str
    keep: range | None = None


@dataclass(slots=True)
class Builder:
    """Context of one load."""

    config: ModelConfig
    reader: WeightReader
    precision: Precision
    device: torch.device
    dtype: torch.dtype
    plan: Plan
    split: Split
    resident_bytes: int = 0
    active_bytes: int = 0

    def vector(self, name: str, *shape: int) -> Tensor:
        """A small parameter, in fp32."""
        value = self.reader.tensor(name, shape).float()
        self.reader.finite(name, value)
        self.count(value)
        return value

    def matrix(self, name: str, *shape: int) -> Tensor:
        """A matrix that is never quantised, in the model's dtype or wider."""
        value = self.reader.tensor(name, shape)
        value = value.float() if self.dtype == torch.float32 else value
        self.count(value)
        return value

    def count(self, *tensors: Tensor) -> None:
        size = sum(tensor.nbytes for tensor in tensors)
        self.resident_bytes += size
        self.active_bytes += size

    def linear(
        self, prefix: str, rows: int, columns: int, kind: str, keep: range | None = None
    ) -> Linear:
        """keep: the output rows to hold; all by default."""
        built = self.to_linear(prefix, self.reader.linear(prefix, (rows, columns), kind), keep)
        self.resident_bytes += built.size_bytes
        self.active_bytes += built.size_bytes
        return built

    def projections(self, parts: Sequence[Part], columns: int) -> Projections:
        """Linears over one input."""
        read = [self.reader.linear(part.prefix, (part.rows, columns), part.kind) for part in parts]
        sizes = [part.rows if part.keep is None else len(part.keep) for part in parts]
        one = all(
            (self.precision == "nvfp4" or stored.format == "nvfp4") and stored.input_scale is None
            for stored in read
        ) and not any(rows % NVFP4_BLOCK for rows in sizes)  # fmt: skip
        if one:
            weights = [
                _rows(self.nvfp4(part.prefix, stored), part.keep)
                for part, stored in zip(parts, read, strict=True)
            ]
            joined = Nvfp4Linear(self.plan.pick(linear_ops.OP), linear_reference.join(weights))
            built = Projections([joined], sizes)
        else:
            linears = [
                self.to_linear(part.prefix, stored, part.keep)
                for part, stored in zip(parts, read, strict=True)
            ]
            built = Projections(linears, sizes)
        self.resident_bytes += built.size_bytes
        self.active_bytes += built.size_bytes
        return built

    def joined(self, matrices: Sequence[Tensor]) -> Projections:
        """Float projections [N_i, H] of one input as one; `matrix` has counted them."""
        dense = self.plan.pick(linear_ops.DENSE_OP).run
        sizes = [matrix.shape[0] for matrix in matrices]
        return Projections([Bf16Linear(dense, torch.cat(list(matrices)))], sizes)

    def nvfp4(self, prefix: str, stored: StoredLinear) -> Nvfp4Weight:
        """The weight in NVFP4, quantised now where it is stored wider."""
        weight = as_nvfp4(stored)
        if stored.format in ("fp8", "float"):
            self.reader.finite(f"{prefix}.weight", weight.scale_2)
        return weight

    def to_linear(self, prefix: str, stored: StoredLinear, keep: range | None = None) -> Linear:
        if self.precision == "nvfp4" or stored.format == "nvfp4":
            weight = _rows(self.nvfp4(prefix, stored), keep)
            return Nvfp4Linear(self.plan.pick(linear_ops.OP), weight, stored.input_scale)
        if stored.format == "fp8":
            assert stored.scale is not None
            return _fp8(stored.weight, stored.scale, keep)
        return self.dense(stored, keep)

    def dense(self, stored: StoredLinear, keep: range | None = None) -> Bf16Linear:
        """Kept in the model's float dtype."""
        weight = stored.dequantise().to(self.dtype)
        if keep is not None and len(keep) < weight.shape[0]:
            weight = weight[keep.start : keep.stop].clone()
        return Bf16Linear(self.plan.pick(linear_ops.DENSE_OP).run, weight)

    def grouped_linear(
        self, prefix: str, groups: int, rows: int, columns: int, keep: range
    ) -> Linear:
        """o_a: stored flat [G * N, K], used as G blocks of [N, K], of which `keep` are held."""
        flat_rows = range(keep.start * rows, keep.stop * rows)
        stored = self.reader.linear(prefix, (groups * rows, columns), "attention")
        built: Linear
        if self.precision == "nvfp4" or stored.format == "nvfp4":
            flat = _rows(self.nvfp4(prefix, stored), flat_rows)
            weight = Nvfp4Weight(
                flat.packed.unflatten(0, (len(keep), rows)),
                flat.scale.unflatten(0, (len(keep), rows)),
                flat.scale_2,
            )
            impl = self.plan.pick(linear_ops.GROUPED_OP)
            built = Nvfp4GroupedLinear(impl, weight, stored.input_scale)
        else:
            # The reference keeps o_a in bf16 and does not quantise its input (architecture.md 5).
            values = self.dense(stored, flat_rows).weight
            built = Bf16GroupedLinear(values.unflatten(0, (len(keep), rows)))
        self.resident_bytes += built.size_bytes
        self.active_bytes += built.size_bytes
        return built


def _rows(weight: Nvfp4Weight, keep: range | None) -> Nvfp4Weight:
    """Some rows of a weight, in memory of their own: the others' is let go."""
    if keep is None or len(keep) == weight.packed.shape[0]:
        return weight
    rows = slice(keep.start, keep.stop)
    return Nvfp4Weight(weight.packed[rows].clone(), weight.scale[rows].clone(), weight.scale_2)


def _fp8(weight: Tensor, scale: Tensor, keep: range | None) -> Linear:
    count = weight.shape[0]
    if keep is None or len(keep) == count:
        return Fp8Linear(weight, scale)
    if keep.start % FP8_TILE or (keep.stop % FP8_TILE and keep.stop != count):
        return SomeRows(Fp8Linear(weight, scale), keep)
    tiles = slice(keep.start // FP8_TILE, -(-keep.stop // FP8_TILE))
    return Fp8Linear(weight[keep.start : keep.stop].clone(), scale[tiles].clone())
