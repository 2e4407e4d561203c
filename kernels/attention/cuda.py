"""Launches `cute_inputs` and `cute_attend` for up to 8 tokens in bf16; other shapes run in
torch."""

import torch
from torch import Tensor

from kernels.attention import reference
from kernels.attention.reference import AttentionTap
from kernels.compiled import KernelLibrary

MAX_TOKENS = 8
_HEADS = 4  # of one CTA
_THREADS = 256
_SHARED_LIMIT = 200 * 1024


def attention_inputs(
    library: KernelLibrary,
    q: Tensor,
    kv: Tensor,
    kv_norm: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    heads: int,
    eps: float,
    kv_fp8: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """As `reference.attention_inputs`. Capture-safe."""
    tokens, dim = kv.shape
    rope = 2 * cos.shape[-1]
    blocks = (dim - rope) % 64 == 0 or not kv_fp8
    if tokens > MAX_TOKENS or dtype != torch.bfloat16 or dim % 128 or not blocks:
        return reference.attention_inputs(
            q, kv, kv_norm, cos, sin, heads=heads, eps=eps, kv_fp8=kv_fp8, dtype=dtype
        )
    queries = torch.empty(tokens, heads, dim, dtype=dtype, device=q.device)
    row = torch.empty(tokens, dim, dtype=dtype, device=q.device)
    kernel = library.get(
        "kernels.attention.cute_inputs", heads=heads, dim=dim, rope=rope, kv_fp8=kv_fp8
    )
    arguments = (q, kv, kv_norm, cos, sin, queries, row, float(eps))
    kernel.launch((heads + 1, tokens, 1), 32, 0, arguments)
    return queries, row


def attend_cached(
    library: KernelLibrary,
    q: Tensor,
    kv: Tensor,
    ring: Tensor,
    position: Tensor,
    compressed: Tensor | None,
    visible: Tensor | None,
    sink: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    window: int,
    tap: bool,
) -> tuple[Tensor, AttentionTap | None]:
    """As `reference.attend_cached`. Capture-safe."""
    tokens, heads, dim = q.shape
    extra = 0 if visible is None else visible.shape[1]
    shared = _HEADS * (window + extra) * 4 + 16
    shape = heads % _HEADS == 0 and dim % 64 == 0 and shared <= _SHARED_LIMIT
    if tokens > MAX_TOKENS or q.dtype != torch.bfloat16 or not shape:
        return reference.attend_cached(
            q, kv, ring, position, compressed, visible, sink, cos, sin, window=window, tap=tap
        )
    out = torch.empty_like(q)
    shares = torch.empty(heads if tap else 1, window + extra + 1, device=q.device)
    kernel = library.get(
        "kernels.attention.cute_attend",
        heads=heads,
        dim=dim,
        rope=2 * cos.shape[-1],
        window=window,
        ring_rows=ring.shape[0],
        extra=extra,
        per_query=compressed is not None and compressed.dim() == 3,
        tap=tap and tokens == 1,
    )
    arguments = (
        q,
        kv,
        ring,
        position,
        ring if compressed is None else compressed,
        ring if visible is None else visible.contiguous(),
        sink,
        cos,
        sin,
        out,
        shares,
    )
    kernel.launch((heads // _HEADS, tokens, 1), _THREADS, shared, arguments)
    if not tap:
        return out, None
    mean = shares.mean(0)
    rows = mean[window:-1]
    return out, AttentionTap(mean[-1], mean[:window].sum(), rows.sum(), rows)
