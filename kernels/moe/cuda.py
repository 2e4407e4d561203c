"""Launches `cute_experts` for one token; more tokens go through dequantised tiles in torch."""

import torch
from torch import Tensor

from kernels.compiled import KernelLibrary
from kernels.formats import Nvfp4Rows
from kernels.linear.cuda import CHUNK, warps_for
from kernels.moe import reference
from kernels.moe.reference import ExpertWeights, Quantise


def experts(
    library: KernelLibrary,
    rows: Nvfp4Rows,
    weights: ExpertWeights,
    expert_ids: Tensor,
    expert_weights: Tensor,
    *,
    limit: float,
    quantise_mid: Quantise,
    shared: bool = False,
) -> tuple[Tensor, Nvfp4Rows | None]:
    """As `reference.experts`. Capture-safe for one token."""
    tokens, choices = expert_ids.shape
    choices += shared
    columns, inner = rows.values.shape[-1], weights.w13.shape[1] // 2
    if tokens > 1 or columns % CHUNK or inner % CHUNK:
        return reference.experts(
            rows, weights, expert_ids, expert_weights,
            limit=limit, quantise_mid=quantise_mid, shared=shared,
        )  # fmt: skip
    hidden = _up(library, rows, weights, expert_ids, expert_weights, choices, limit)
    mid = quantise_mid(hidden)
    return _down(library, mid, weights, expert_ids), mid


def _up(
    library: KernelLibrary,
    rows: Nvfp4Rows,
    weights: ExpertWeights,
    expert_ids: Tensor,
    expert_weights: Tensor,
    choices: int,
    limit: float,
) -> Tensor:
    """[1, choices, I] fp32: gate and up of the experts, clamped, times the routing weight."""
    columns = rows.values.shape[-1]
    inner = weights.w13.shape[1] // 2
    hidden = torch.empty(1, choices, inner, device=rows.values.device)
    warps = warps_for(columns)
    kernel = library.get(
        "kernels.moe.cute_experts",
        half="up",
        inner=inner,
        columns=columns,
        choices=choices,
        per_choice=rows.values.dim() == 3,
        warps=warps,
        experts=weights.w13.shape[0],
        routed=expert_ids.shape[1],
    )
    shared = columns * 2 + warps * 64 + 16
    arguments = (
        weights.w13,
        weights.w13_scale,
        weights.w13_scale_2,
        rows.values.contiguous(),
        rows.gsa.contiguous(),
        expert_ids,
        expert_weights,
        hidden,
        float(limit),
    )
    kernel.launch(((inner + 7) // 8, choices, 1), warps * 32, shared, arguments)
    return hidden


def _down(
    library: KernelLibrary, mid: Nvfp4Rows, weights: ExpertWeights, expert_ids: Tensor
) -> Tensor:
    """[1, H] fp32: the experts' outputs, added."""
    choices, inner = mid.values.shape[-2:]
    rows_out = weights.w2.shape[1]
    out = torch.empty(1, rows_out, device=mid.values.device)
    warps = warps_for(inner)
    kernel = library.get(
        "kernels.moe.cute_experts",
        half="down",
        rows_out=rows_out,
        columns=inner,
        choices=choices,
        warps=warps,
        experts=weights.w2.shape[0],
        routed=expert_ids.shape[1],
    )
    shared = choices * inner * 2 + warps * 64 + 16
    arguments = (
        weights.w2,
        weights.w2_scale,
        weights.w2_scale_2,
        mid.values,
        mid.gsa.contiguous(),
        expert_ids,
        out,
    )
    kernel.launch(((rows_out + 15) // 16, 1, 1), warps * 32, shared, arguments)
    return out
