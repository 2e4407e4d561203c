"""Stacks a layer's routed experts as they are stored, or quantised to NVFP4."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.checkpoint.weights import StoredLinear, as_nvfp4
from engine.errors import CheckpointError
from engine.model.moe import Experts, Nvfp4Experts, PlainExperts
from kernels import moe as moe_ops
from kernels.formats import (
    Nvfp4Weight,
    dequantise_fp8_block,
    dequantise_mxfp4,
    fp8_round_trip,
)
from kernels.linear.reference import FP8_ROW_BLOCK
from kernels.moe.reference import ExpertWeights

if TYPE_CHECKING:
    from engine.model.build import Builder

_DECODE = {"mxfp4": dequantise_mxfp4, "fp8": dequantise_fp8_block}


def build_experts(build: Builder, layer: int, prefix: str) -> tuple[Experts, tuple[float, float]]:
    """All experts of one layer.

    Returns:
        the experts, and the smallest stored input_scale of w1/w3 and of w2 (0 where there is none).

    Raises:
        CheckpointError: experts of one layer are stored in different formats.
    """
    config = build.config
    hidden, inner = config.hidden_size, config.expert_size
    parts: dict[str, list[StoredLinear]] = {"w1": [], "w3": [], "w2": []}
    for expert in range(config.num_experts):
        for name, stored in parts.items():
            shape = (hidden, inner) if name == "w2" else (inner, hidden)
            stored.append(build.reader.linear(f"{prefix}.{expert}.{name}", shape, "experts"))
    formats = {part.format for stored in parts.values() for part in stored}
    if len(formats) > 1:
        raise CheckpointError(f"{prefix}: experts of one layer are stored as {sorted(formats)}")
    (kind,) = formats
    if build.precision == "nvfp4" or kind == "nvfp4":
        built, scales = _nvfp4(build, layer, parts)
    else:
        built, scales = _as_stored(build, kind, parts), (0.0, 0.0)
    build.resident_bytes += built.size_bytes
    build.active_bytes += built.size_bytes * config.top_k // config.num_experts
    return built, scales


def _nvfp4(
    build: Builder, layer: int, parts: dict[str, list[StoredLinear]]
) -> tuple[Experts, tuple[float, float]]:
    w1, w3, w2 = (_stack([as_nvfp4(p) for p in parts[name]]) for name in ("w1", "w3", "w2"))
    w13_scale, w2_scale = _input_scales(parts["w1"]), _input_scales(parts["w2"])
    impl = build.plan.pick(moe_ops.OP)
    weights = impl.prepare(w1, w3, w2)
    built = Nvfp4Experts(layer, impl, weights, w13_scale, w2_scale, _size(weights))
    return built, (_smallest(w13_scale), _smallest(w2_scale))


def _stack(weights: list[Nvfp4Weight]) -> Nvfp4Weight:
    return Nvfp4Weight(
        torch.stack([w.packed for w in weights]),
        torch.stack([w.scale.view(torch.uint8) for w in weights]).view(torch.float8_e4m3fn),
        torch.stack([w.scale_2 for w in weights]),
    )


def _input_scales(parts: list[StoredLinear]) -> Tensor | None:
    scales = [part.input_scale for part in parts]
    found = [scale for scale in scales if scale is not None]
    return torch.stack(found) if len(found) == len(scales) else None


def _smallest(scales: Tensor | None) -> float:
    return 0.0 if scales is None or scales.is_meta else float(scales.min())


def _as_stored(build: Builder, kind: str, parts: dict[str, list[StoredLinear]]) -> Experts:
    """Float, FP8 or MXFP4 experts; the latter two take their inputs in FP8 (architecture.md 5)."""
    w13 = torch.stack(
        [
            _cat(one.weight, three.weight)
            for one, three in zip(parts["w1"], parts["w3"], strict=True)
        ]
    )
    w2 = torch.stack([part.weight for part in parts["w2"]])
    ones = torch.ones(build.config.num_experts, device=build.device)
    no_scale = (torch.stack((ones, ones), 1), ones)
    if kind == "float":
        weights = ExpertWeights(w13.to(build.dtype), w2.to(build.dtype), *no_scale)
        return PlainExperts(weights, _unchanged, _size(weights))
    w13_scale = torch.stack(
        [
            _cat(_scale(one), _scale(three))
            for one, three in zip(parts["w1"], parts["w3"], strict=True)
        ]
    )
    w2_scale = torch.stack([_scale(part) for part in parts["w2"]])
    weights = ExpertWeights(w13, w2, *no_scale, _DECODE[kind], w13_scale, w2_scale)
    return PlainExperts(weights, _through_fp8, _size(weights))


def _cat(first: Tensor, second: Tensor) -> Tensor:
    return torch.cat((first, second))


def _scale(stored: StoredLinear) -> Tensor:
    assert stored.scale is not None
    return stored.scale


def _size(weights: ExpertWeights) -> int:
    tensors = (weights.w13, weights.w2, weights.w13_scale, weights.w2_scale)
    return sum(t.nbytes for t in tensors if t is not None)


def _unchanged(x: Tensor) -> Tensor:
    return x


def _through_fp8(x: Tensor) -> Tensor:
    block = FP8_ROW_BLOCK if x.shape[-1] % FP8_ROW_BLOCK == 0 else x.shape[-1]
    return fp8_round_trip(x, block)
