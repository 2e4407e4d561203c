"""The context of one load: takes parameters from the reader and makes them what the model holds.

What is stored wider than NVFP4 is quantised here, tensor by tensor, and its source is let go.
"""

from collections.abc import Sequence
from dataclasses import dataclass

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
)
from engine.model.ops import Plan
from engine.protocol import Precision
from kernels import linear as linear_ops
from kernels.formats import NVFP4_BLOCK, Nvfp4Weight
from kernels.linear import reference as linear_reference


@dataclass(slots=True)
class Builder:
    """Context of one load."""

    config: ModelConfig
    reader: WeightReader
    precision: Precision
    device: torch.device
    dtype: torch.dtype
    plan: Plan
    resident_bytes: int = 0
    active_bytes: int = 0

    def vector(self, name: str, *shape: int) -> Tensor:
        """A small parameter, in fp32."""
        value = self.reader.tensor(name, shape).float()
        self.reader.finite(name, value)
        self.reader.parameters += value.numel()
        self.count(value)
        return value

    def matrix(self, name: str, *shape: int) -> Tensor:
        """A matrix that is never quantised, in the model's dtype or wider."""
        value = self.reader.tensor(name, shape)
        value = value.float() if self.dtype == torch.float32 else value
        self.reader.parameters += value.numel()
        self.count(value)
        return value

    def count(self, *tensors: Tensor) -> None:
        size = sum(tensor.nbytes for tensor in tensors)
        self.resident_bytes += size
        self.active_bytes += size

    def linear(self, prefix: str, rows: int, columns: int, kind: str) -> Linear:
        built = self.to_linear(prefix, self.reader.linear(prefix, (rows, columns), kind))
        self.resident_bytes += built.size_bytes
        self.active_bytes += built.size_bytes
        return built

    def projections(self, parts: Sequence[tuple[str, int, str]], columns: int) -> Projections:
        """parts: (prefix, rows, tensor class) of linears over one input."""
        read = [self.reader.linear(prefix, (rows, columns), kind) for prefix, rows, kind in parts]
        sizes = [rows for _, rows, _ in parts]
        one = all(
            (self.precision == "nvfp4" or stored.format == "nvfp4") and stored.input_scale is None
            for stored in read
        ) and not any(rows % NVFP4_BLOCK for rows in sizes)  # fmt: skip
        if one:
            weights = [self.nvfp4(p, s) for (p, _, _), s in zip(parts, read, strict=True)]
            joined = Nvfp4Linear(self.plan.pick(linear_ops.OP), linear_reference.join(weights))
            built = Projections([joined], sizes)
        else:
            linears = [self.to_linear(p, s) for (p, _, _), s in zip(parts, read, strict=True)]
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

    def to_linear(self, prefix: str, stored: StoredLinear) -> Linear:
        if self.precision == "nvfp4" or stored.format == "nvfp4":
            weight = self.nvfp4(prefix, stored)
            return Nvfp4Linear(self.plan.pick(linear_ops.OP), weight, stored.input_scale)
        if stored.format == "fp8":
            assert stored.scale is not None
            return Fp8Linear(stored.weight, stored.scale)
        return self.dense(stored)

    def dense(self, stored: StoredLinear) -> Bf16Linear:
        """Kept in the model's float dtype."""
        return Bf16Linear(
            self.plan.pick(linear_ops.DENSE_OP).run, stored.dequantise().to(self.dtype)
        )

    def grouped_linear(self, prefix: str, groups: int, rows: int, columns: int) -> Linear:
        """o_a: stored flat [G * N, K], used as G blocks of [N, K]."""
        stored = self.reader.linear(prefix, (groups * rows, columns), "attention")
        built: Linear
        if self.precision == "nvfp4" or stored.format == "nvfp4":
            flat = self.nvfp4(prefix, stored)
            weight = Nvfp4Weight(
                flat.packed.unflatten(0, (groups, rows)),
                flat.scale.unflatten(0, (groups, rows)),
                flat.scale_2,
            )
            impl = self.plan.pick(linear_ops.GROUPED_OP)
            built = Nvfp4GroupedLinear(impl, weight, stored.input_scale)
        else:
            # The reference keeps o_a in bf16 and does not quantise its input (architecture.md 5).
            weight_values = stored.dequantise().to(self.dtype)
            built = Bf16GroupedLinear(weight_values.unflatten(0, (groups, rows)))
        self.resident_bytes += built.size_bytes
        self.active_bytes += built.size_bytes
        return built
