"""Sparse attention with a sink in plain torch (architecture.md 3.3, points 4 and 5).

One softmax runs over window rows and compressed rows together. A row is key and value of all heads.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from kernels.cache import kv_round_trip, store_rows
from kernels.residual.reference import rms_norm, rotate


class AttentionTap(NamedTuple):
    """Where the attention of the last query went: shares [A, window + C + 1] fp32 of each head,
    which sum to 1, over the window's rows, the compressed rows and the sink."""

    shares: Tensor
    window: int


def attention_inputs(
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
    """Projections to queries and the new KV row: norms, rotation, cache rounding.

    Args:
        q: [T, A*D] fp32; each head gets a weightless norm. kv: [T, D] fp32; kv_norm: [D] fp32.
        cos, sin: [T, r/2] phases of the tokens. kv_fp8: round KV as the cache does.

    Returns:
        [T, A, D] and [T, D] in dtype.
    """
    queries = q.to(dtype).unflatten(-1, (heads, -1))
    queries = rotate(rms_norm(queries, None, eps), cos, sin)
    rows = rotate(rms_norm(kv.to(dtype), kv_norm, eps), cos, sin)
    return queries, kv_round_trip(rows, 2 * cos.shape[-1]) if kv_fp8 else rows


def attend_cached(
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
) -> tuple[Tensor, None, AttentionTap | None]:
    """Attention of a chunk over the ring, itself and the compressed rows, rotated back.

    Args:
        q: [T, A, D], kv: [T, D], from `attention_inputs`.
        ring: [R, D], R >= window - 1 + T for the kernels; the chunk's rows are stored in it.
        position: 0-d int64 of the first token.
        blocks: [C, D] compressed rows, block w of positions w*ratio .. w*ratio + ratio-1; None
        where a layer has none.
        chosen: ids [T, K] int64 and which of them count [T, K] bool; None: every block that has
        ended at or before the query.
        groups: output groups, for implementations that quantise the output by group.

    Returns:
        [T, A, D] in q.dtype, its rotary dims turned back by the query's own phases; that output as
        NVFP4 rows [T, groups, A*D/groups] where an implementation makes them, else None; the tap.
    """
    past = position - (window - 1) + torch.arange(window - 1, device=kv.device)
    rows = torch.cat((ring[past % ring.shape[0]], kv))
    store_rows(ring, kv, position)
    seen = window_visible(q.shape[0], window, position)
    compressed = visible = None
    if blocks is not None and chosen is not None:
        compressed, visible = blocks[chosen[0]], chosen[1]
    elif blocks is not None:
        ended = (position + torch.arange(q.shape[0], device=kv.device) + 1) // ratio
        compressed = blocks
        visible = torch.arange(blocks.shape[0], device=kv.device) < ended[:, None]
    out, record = attend(q, rows, seen, compressed, visible, sink, tap)
    return rotate(out, cos, sin, inverse=True), None, record


def attend(
    q: Tensor,
    window_rows: Tensor,
    window_visible: Tensor,
    compressed_rows: Tensor | None,
    compressed_visible: Tensor | None,
    sink: Tensor,
    tap: bool = False,
) -> tuple[Tensor, AttentionTap | None]:
    """softmax over visible rows and the sink; the sink takes mass and gives no value.

    Args:
        q: [T, A, D]. Scores are q . row / sqrt(D), in fp32.
        window_rows: [R, D]; window_visible: [T, R] bool.
        compressed_rows: [C, D] shared by all queries, or [T, C, D]; None where a layer has none.
        compressed_visible: [T, C] bool.
        sink: [A] fp32 raw logit, not scaled.
        tap: also return an AttentionTap of the last query.

    Returns:
        [T, A, D] in q.dtype, and the tap or None. Every query must see at least one row.
    """
    wide = q.float()
    parts = [_scores(wide, window_rows, window_visible)]
    if compressed_rows is not None:
        parts.append(_scores(wide, compressed_rows, compressed_visible))
    scores = torch.cat(parts, -1) * q.shape[-1] ** -0.5
    peak = scores.amax(-1, keepdim=True)
    weights = torch.exp(scores - peak)
    sink_weight = torch.exp(sink[None, :, None] - peak)
    total = weights.sum(-1, keepdim=True) + sink_weight
    weights = weights / total
    width = window_rows.shape[0]
    out = weights[..., :width] @ window_rows.float()
    if compressed_rows is not None:
        out = out + weights[..., width:] @ compressed_rows.float()
    if not tap:
        return out.to(q.dtype), None
    shares = torch.cat((weights[-1], sink_weight[-1] / total[-1]), -1)
    return out.to(q.dtype), AttentionTap(shares, width)


def _scores(q: Tensor, rows: Tensor, visible: Tensor) -> Tensor:
    return (q @ rows.float().mT).masked_fill_(~visible[:, None, :], float("-inf"))


def window_visible(num_tokens: int, window: int, position: Tensor) -> Tensor:
    """[T, window-1+T] bool: which rows of `cat(previous window-1 rows, new rows)` each query sees.

    Query t at position p = position + t sees positions max(0, p-window+1) .. p.
    """
    row = torch.arange(window - 1 + num_tokens, device=position.device)
    query = torch.arange(num_tokens, device=position.device)[:, None]
    exists = position + row - (window - 1) >= 0
    return exists & (row >= query) & (row < query + window)
