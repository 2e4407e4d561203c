"""Launches `cute_inputs`, and `cute_attend` with `cute_merge`, for up to 8 tokens in bf16; other
shapes run in torch."""

import torch
from torch import Tensor

from kernels.attention import reference
from kernels.attention.reference import AttentionTap
from kernels.compiled import KernelLibrary
from kernels.formats import Nvfp4Rows

MAX_TOKENS = 8
_CHUNK_ROWS = 32
_CHUNK_HEADS = 16
_THREADS = 128


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
    blocks: Tensor | None,
    chosen: tuple[Tensor, Tensor] | None,
    sink: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    window: int,
    ratio: int,
    groups: int,
    tap: bool,
) -> tuple[Tensor, Nvfp4Rows | None, AttentionTap | None]:
    """As `reference.attend_cached`, with the output quantised by group. Capture-safe."""
    tokens, heads, dim = q.shape
    if tokens > MAX_TOKENS or q.dtype != torch.bfloat16 or dim % 128 or tap and tokens > 1:
        return reference.attend_cached(
            q, kv, ring, position, blocks, chosen, sink, cos, sin,
            window=window, ratio=ratio, groups=groups, tap=tap,
        )  # fmt: skip
    extra = chosen[0].shape[1] if chosen else 0 if blocks is None else blocks.shape[0]
    parts = _attend(library, q, kv, ring, position, blocks, chosen, window, extra, ratio, tap)
    out, rows = _merge(library, q, *parts, sink, cos, sin, window, extra, groups, tap)
    return out, rows, AttentionTap(parts[2], window) if tap else None


def _attend(
    library: KernelLibrary,
    q: Tensor,
    kv: Tensor,
    ring: Tensor,
    position: Tensor,
    blocks: Tensor | None,
    chosen: tuple[Tensor, Tensor] | None,
    window: int,
    extra: int,
    ratio: int,
    tap: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Partial outputs [T, chunks, A, D], their peak and mass [T, chunks, A, 2], and with tap the
    weights by row [A, rows + 1], not yet normalised."""
    tokens, heads, dim = q.shape
    chunks = -(-(window + extra) // _CHUNK_ROWS)
    partial = torch.empty(tokens, chunks, heads, dim, device=q.device)
    stats = torch.empty(tokens, chunks, heads, 2, device=q.device)
    shares = torch.empty(heads if tap else 1, window + extra + 1, device=q.device)
    kernel = library.get(
        "kernels.attention.cute_attend",
        heads=heads,
        dim=dim,
        window=window,
        ring_rows=ring.shape[0],
        extra=extra,
        ratio=ratio,
        per_query=chosen is not None,
        tap=tap,
    )
    ids, mask = chosen if chosen else (position, position)
    rows = ring if blocks is None else blocks
    shared = (48 * (dim // 2 + 20) + 2 * 16 * 20 + 16 * 33 + 32 + 4) * 4 + 64
    arguments = (q, kv, ring, position, rows, ids, mask, partial, stats, shares)
    kernel.launch((-(-heads // _CHUNK_HEADS), chunks, tokens), _THREADS, shared, arguments)
    return partial, stats, shares


def _merge(
    library: KernelLibrary,
    q: Tensor,
    partial: Tensor,
    stats: Tensor,
    shares: Tensor,
    sink: Tensor,
    cos: Tensor,
    sin: Tensor,
    window: int,
    extra: int,
    groups: int,
    tap: bool,
) -> tuple[Tensor, Nvfp4Rows]:
    """The output [T, A, D], and its NVFP4 rows [T, groups, A*D/groups]; normalises `shares`."""
    tokens, heads, dim = q.shape
    out, values = torch.empty_like(q), torch.empty_like(q)
    gsa = torch.empty(tokens, groups, 1, device=q.device)
    flushed = torch.empty(tokens, groups, dtype=torch.int32, device=q.device)
    kernel = library.get(
        "kernels.attention.cute_merge",
        heads=heads,
        dim=dim,
        rope=2 * cos.shape[-1],
        groups=groups,
        window=window,
        extra=extra,
        tap=tap,
    )
    counters = library.counters(q.device)
    arguments = (partial, stats, sink, cos, sin, out, values, gsa, flushed, counters, shares)
    shared = (partial.shape[1] + 4 * dim + 16) * 4 + 64
    kernel.launch((heads, tokens, 1), _THREADS, shared, arguments)
    none = library.zero(q.device).expand(tokens, groups)
    return out, Nvfp4Rows(values.view(tokens, groups, -1), gsa, gsa, none, flushed)
