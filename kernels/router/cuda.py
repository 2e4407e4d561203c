"""Launches `cute_hash`, and `cute_route`: fused router for up to 8 rows, top-k for any number."""

import torch
from torch import Tensor

from kernels.compiled import KernelLibrary
from kernels.formats import Nvfp4Rows, Nvfp4Weight
from kernels.linear.cuda import CHUNK, MAX_ROWS, warps_for
from kernels.router import reference

Routed = tuple[Tensor, Tensor, Tensor]


def route(
    library: KernelLibrary, logits: Tensor, bias: Tensor, *, top_k: int, route_scale: float
) -> Routed:
    """As `reference.route`. Capture-safe."""
    tokens, experts = logits.shape
    outputs = _outputs(tokens, top_k, logits.device)
    kernel = library.get("kernels.router.cute_route", kind="topk", experts=experts, choices=top_k)
    arguments = (logits.contiguous(), bias, *outputs, float(route_scale))
    kernel.launch((tokens, 1, 1), 32, _scratch(experts, top_k), arguments)
    return outputs


def hash_route(
    library: KernelLibrary,
    logits: Tensor,
    table: Tensor,
    token_ids: Tensor,
    *,
    route_scale: float,
) -> Routed:
    """As `reference.hash_route`. Capture-safe."""
    (tokens, experts), top_k = logits.shape, table.shape[1]
    outputs = _outputs(tokens, top_k, logits.device)
    kernel = library.get("kernels.router.cute_hash", experts=experts, choices=top_k)
    arguments = (logits.contiguous(), table, token_ids, *outputs, float(route_scale))
    kernel.launch((tokens, 1, 1), 32, 0, arguments)
    return outputs


def fused_route(
    library: KernelLibrary,
    rows: Nvfp4Rows,
    gate: Nvfp4Weight,
    bias: Tensor,
    *,
    top_k: int,
    route_scale: float,
) -> Routed:
    """As `reference.fused_route`. Capture-safe for up to 8 rows."""
    tokens, columns = rows.values.shape
    if tokens > MAX_ROWS or columns % CHUNK:
        return reference.fused_route(rows, gate, bias, top_k=top_k, route_scale=route_scale)
    experts, device = gate.packed.shape[0], bias.device
    outputs = _outputs(tokens, top_k, device)
    logits = torch.empty(tokens, experts, device=device)
    warps = warps_for(columns)
    kernel = library.get(
        "kernels.router.cute_route",
        kind="fused",
        experts=experts,
        columns=columns,
        choices=top_k,
        tokens=tokens,
        warps=warps,
    )
    shared = tokens * (columns // 2 + 4) * 4 + warps * tokens * 64 + _scratch(experts, top_k)
    arguments = (
        gate.packed,
        gate.scale,
        gate.scale_2,
        rows.values.contiguous(),
        rows.gsa.contiguous(),
        bias,
        logits,
        library.counters(device),
        *outputs,
        float(route_scale),
    )
    kernel.launch(((experts + 15) // 16, 1, 1), warps * 32, shared, arguments)
    return outputs


def _outputs(tokens: int, top_k: int, device: torch.device) -> Routed:
    ids = torch.empty(tokens, top_k, dtype=torch.int64, device=device)
    return ids, torch.empty(tokens, top_k, device=device), torch.empty(tokens, device=device)


def _scratch(experts: int, top_k: int) -> int:
    """Shared bytes of one row's scores and picks, with room for alignment."""
    return experts * 4 + 2 * (top_k + 1) * 4 + 64
