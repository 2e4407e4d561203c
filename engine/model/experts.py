"""Stacks a layer's routed experts as they are stored, or in NVFP4.

Each expert is copied into the layer's stack as it is read and its source let go, so that a load
holds little more than the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.checkpoint.weights import StoredLinear
from engine.errors import CheckpointError
from engine.model.moe import Experts, InputScales, Nvfp4Experts, PlainExperts
from kernels import moe as moe_ops
from kernels.formats import (
    FP8_TILE,
    Nvfp4Weight,
    decode_e8m0,
    dequantise_fp8_block,
    dequantise_mxfp4,
    fp8_round_trip,
)
from kernels.linear.reference import FP8_ROW_BLOCK
from kernels.moe.reference import ExpertWeights

if TYPE_CHECKING:
    from engine.model.builder import Builder

_PARTS = ("w1", "w3", "w2")


class _Stack:
    """[E, R, ...] tensors of one projection, or of two one above the other, filled expert by
    expert."""

    def __init__(self, count: int, halves: int = 1) -> None:
        self._count = count
        self._halves = halves
        self._tensors: list[Tensor] = []

    def put(self, expert: int, *values: Tensor, half: int = 0) -> None:
        if not self._tensors:
            for value in values:
                shape = (self._halves * value.shape[0], *value.shape[1:]) if value.dim() else ()
                if not value.dim() and self._halves > 1:
                    shape = (self._halves,)
                self._tensors.append(value.new_empty((self._count, *shape)))
        for tensor, value in zip(self._tensors, values, strict=True):
            # Bytes are moved, never numbers: a copy of E8M0 or E4M3 by value need not keep them.
            if value.element_size() == 1:
                tensor, value = tensor.view(torch.uint8), value.view(torch.uint8)
            target = tensor[expert]
            if value.dim():
                target = target[half * value.shape[0] : (half + 1) * value.shape[0]]
            elif self._halves > 1:
                target = target[half]
            target.copy_(value)

    def tensors(self) -> list[Tensor]:
        return self._tensors


def build_experts(build: Builder, prefix: str) -> tuple[Experts, bool, tuple[float, float]]:
    """The experts of one layer that this rank holds.

    Returns:
        the experts; whether the shared expert is among them, as the last of the stack; and the
        smallest stored input_scale of the routed w1/w3 and of w2 (0 where there is none).

    Raises:
        CheckpointError: precision is `checkpoint` and the experts of this layer are stored in
            different formats.
    """
    config = build.config
    hidden, inner = config.hidden_size, config.expert_size
    kind = build.reader.format_of(f"{prefix}.experts.0.w1", (inner, hidden))
    to_nvfp4 = build.precision == "nvfp4" or kind == "nvfp4"
    shared_kind = build.reader.format_of(f"{prefix}.shared_experts.w1", (inner, hidden))
    shared = to_nvfp4 and (build.precision == "nvfp4" or shared_kind == "nvfp4")
    shared = shared and build.split.holds_shared
    held = build.split.experts(config).held
    where = [f"{prefix}.experts.{expert}" for expert in held]
    where += [f"{prefix}.shared_experts"] * shared
    w13, w2 = _Stack(len(where), halves=2), _Stack(len(where))
    targets = ((w13, 0), (w13, 1), (w2, 0))
    gsa: list[list[Tensor | None]] = []
    for expert, name in enumerate(where):
        found: list[Tensor | None] = []
        for (stack, half), part in zip(targets, _PARTS, strict=True):
            shape = (hidden, inner) if part == "w2" else (inner, hidden)
            of = "experts" if expert < len(held) else "shared expert"
            stored = build.reader.linear(f"{name}.{part}", shape, of)
            if to_nvfp4 and (build.precision == "nvfp4" or stored.format == "nvfp4"):
                stack.put(expert, *build.nvfp4(f"{name}.{part}", stored), half=half)
            elif stored.format == kind:
                stack.put(expert, *_as_held(build, stored, is_half=part != "w2"), half=half)
            else:
                raise CheckpointError(
                    f"{name}.{part}: stored as {stored.format}, the layer's first expert as "
                    f"{kind}; load it with --precision nvfp4"
                )
            found.append(stored.input_scale)
        gsa.append(found)
    routed = gsa[: len(held)]
    scales = InputScales(
        _input_scales([f[0] for f in routed], [f[1] for f in routed]),
        _input_scales([f[2] for f in routed], [f[2] for f in routed]),
        gsa[-1][0] if shared else None,
        gsa[-1][2] if shared else None,
    )
    if to_nvfp4:
        impl = build.plan.pick(moe_ops.OP)
        weights = impl.prepare(*(Nvfp4Weight(*stack.tensors()) for stack in (w13, w2)))
        built: Experts = Nvfp4Experts(impl, weights, scales, shared, _size(weights))
    else:
        built = _plain(build, kind, w13.tensors(), w2.tensors())
    build.resident_bytes += built.size_bytes
    each = built.size_bytes // len(where)
    build.active_bytes += each * config.top_k * len(held) // config.num_experts + each * shared
    return built, shared, (_smallest(scales.w13), _smallest(scales.w2))


def _input_scales(first: list[Tensor | None], second: list[Tensor | None]) -> Tensor | None:
    """[E] scales of an input that two projections share; None where there are none, or where the
    two disagree: such a checkpoint has no one scale for that input."""
    known = [scale for scale in (*first, *second) if scale is not None]
    if len(known) < 2 * len(first):
        return None
    one, other = torch.stack(known[: len(first)]), torch.stack(known[len(first) :])
    return one if one.is_meta or torch.equal(one, other) else None


def _smallest(scales: Tensor | None) -> float:
    return 0.0 if scales is None or scales.is_meta else float(scales.min())


def _as_held(build: Builder, stored: StoredLinear, *, is_half: bool) -> tuple[Tensor, ...]:
    """What a plain expert keeps of a projection: its weight, and block scales where it has them.

    The tiles of an FP8 half whose rows do not fill whole tiles would not line up with those of the
    stack: such a half gets one row of scales per row of weights.
    """
    if stored.scale is None:
        return (stored.weight.to(build.dtype),)
    scale, rows = stored.scale, stored.weight.shape[0]
    if stored.format == "fp8" and is_half and rows % FP8_TILE:
        scale = scale.repeat_interleave(FP8_TILE, 0)[:rows]
    return stored.weight, scale


def _plain(build: Builder, kind: str, w13: list[Tensor], w2: list[Tensor]) -> PlainExperts:
    """Float, FP8 or MXFP4 experts; the latter two take their inputs in FP8 (architecture.md 5)."""
    ones = torch.ones(w2[0].shape[0], device=build.device)
    no_scale = (torch.stack((ones, ones), 1), ones)
    if kind == "float":
        weights = ExpertWeights(w13[0], w2[0], *no_scale)
        return PlainExperts(weights, _unchanged, _size(weights))
    decode = dequantise_mxfp4 if kind == "mxfp4" else _decode_fp8
    weights = ExpertWeights(w13[0], w2[0], *no_scale, decode, w13[1], w2[1])
    return PlainExperts(weights, _through_fp8, _size(weights))


def _decode_fp8(weight: Tensor, scale: Tensor) -> Tensor:
    """[..., N, K] with tile scales, or with scales [..., N, ceil(K/128)] for each row alone."""
    rows, columns = weight.shape[-2:]
    if scale.shape[-2] != rows:
        return dequantise_fp8_block(weight, scale)
    factors = decode_e8m0(scale) if scale.dtype == torch.uint8 else scale.float()
    return weight.float() * factors.repeat_interleave(FP8_TILE, -1)[..., :columns]


def _size(weights: ExpertWeights) -> int:
    tensors = (weights.w13, weights.w2, weights.w13_scale, weights.w2_scale)
    return sum(t.nbytes for t in tensors if t is not None)


def _unchanged(x: Tensor) -> Tensor:
    return x


def _through_fp8(x: Tensor) -> Tensor:
    block = FP8_ROW_BLOCK if x.shape[-1] % FP8_ROW_BLOCK == 0 else x.shape[-1]
    return fp8_round_trip(x, block)
