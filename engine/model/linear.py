"""Linears in the formats a checkpoint stores, over one shared input.

An `Activation` is the input of one or more projections. It is quantised at most once per gsa, and
that is where the taps see it.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from engine.model.ops import Picked, Run
from engine.protocol import GsaMode
from engine.taps import TapWriter
from kernels.formats import Nvfp4Rows, Nvfp4Weight
from kernels.linear.reference import fp8_linear


class Activation:
    """One activation tensor [T, ..., K] and its quantised form.

    Args:
        x: the tensor. mode: where gsa comes from. quantise: the op. tap, site: where to record
            it, or None. rows: x with its measured gsa, where whoever made x quantised it.
    """

    def __init__(
        self,
        x: Tensor,
        mode: GsaMode,
        quantise: Run,
        tap: TapWriter | None = None,
        site: str = "",
        rows: Nvfp4Rows | None = None,
    ) -> None:
        self.x = x
        self.mode = mode
        self._quantise = quantise
        self._tap = tap
        self._site = site
        self._rows = rows

    def nvfp4(self, input_scale: Tensor | None = None) -> Nvfp4Rows:
        """The rows in NVFP4; `input_scale` (broadcastable to [T, ..., 1]) counts in mode
        `checkpoint`.

        Where projections of one input store different scales, the first one's rows are recorded.
        """
        if self.mode == "checkpoint" and input_scale is not None:
            rows: Nvfp4Rows = self._quantise(self.x, input_scale)
            self._record(rows)
            return rows
        if self._rows is None:
            self._rows = self._quantise(self.x)
        self._record(self._rows)
        return self._rows

    def _record(self, rows: Nvfp4Rows) -> None:
        if self._tap is not None:
            self._tap.site(self._site, rows)
            self._tap = None


class Linear(Protocol):
    """y = x W^T in fp32: [T, K] -> [T, N], or [T, G, K] -> [T, G, N] for the grouped ones.

    size_bytes: the weight as it is held here, which is what one call reads.
    """

    size_bytes: int

    def __call__(self, act: Activation) -> Tensor: ...


class Nvfp4Linear:
    """W4A4. Serves o_a too, as `Nvfp4GroupedLinear`, with the grouped op's implementation.

    input_scale: 0-d fp32 stored activation scale, or None.
    """

    def __init__(
        self, impl: Picked, weight: Nvfp4Weight, input_scale: Tensor | None = None
    ) -> None:
        self.impl = impl
        self.prepared: Any = impl.prepare(weight)
        self.input_scale = input_scale
        self.size_bytes = _bytes(*self.prepared)

    def __call__(self, act: Activation) -> Tensor:
        out: Tensor = self.impl.run(act.nvfp4(self.input_scale), self.prepared)
        return out


class Projections:
    """Linears over one input, in order. Where all are NVFP4 with no activation scale of their own
    they are one weight and one launch."""

    def __init__(self, linears: Sequence[Linear], sizes: Sequence[int]) -> None:
        """One linear that makes all the sizes' rows, or one for each size."""
        self.linears = linears
        self.sizes = list(sizes)
        self.size_bytes = sum(linear.size_bytes for linear in linears)

    def __call__(self, act: Activation) -> Sequence[Tensor]:
        """-> [T, N_i] each."""
        if len(self.linears) < len(self.sizes):
            return self.linears[0](act).split(self.sizes, -1)
        return [linear(act) for linear in self.linears]


class Nvfp4GroupedLinear(Nvfp4Linear):
    """W4A4 over G groups: rows [T, G, K], weight [G, N, K], one gsa per row and group."""


class Fp8Linear:
    """FP8 block weights, input through E4M3 per 1x128 block (architecture.md 5)."""

    def __init__(self, weight: Tensor, scale: Tensor) -> None:
        self.weight = weight
        self.scale = scale
        self.size_bytes = _bytes(weight, scale)

    def __call__(self, act: Activation) -> Tensor:
        return fp8_linear(act.x, self.weight, self.scale)


class SomeRows:
    """Some output rows of a linear whose weight cannot be cut there; it computes them all."""

    def __init__(self, whole: Linear, rows: range) -> None:
        self.whole = whole
        self.rows = rows
        self.size_bytes = whole.size_bytes

    def __call__(self, act: Activation) -> Tensor:
        return self.whole(act)[..., self.rows.start : self.rows.stop]


class Bf16Linear:
    """Weights in a float dtype. `dense` is the op that multiplies them."""

    def __init__(self, dense: Run, weight: Tensor) -> None:
        self.dense = dense
        self.weight = weight
        self.size_bytes = _bytes(weight)

    def __call__(self, act: Activation) -> Tensor:
        out: Tensor = self.dense(act.x, self.weight)
        return out


class Bf16GroupedLinear:
    """[T, G, K] rows and [G, N, K] weights in a float dtype."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self.size_bytes = _bytes(weight)

    def __call__(self, act: Activation) -> Tensor:
        return torch.einsum("tgk,gnk->tgn", act.x.to(self.weight.dtype), self.weight).float()


def _bytes(*tensors: Tensor) -> int:
    return sum(tensor.nbytes for tensor in tensors)
