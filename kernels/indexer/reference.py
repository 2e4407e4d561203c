"""Indexer score and selection in plain torch (architecture.md 3.5, 3.6)."""

import torch
from torch import Tensor

from kernels.cache import index_round_trip
from kernels.residual.reference import rotate


def choose_blocks(
    q: Tensor,
    head_weights: Tensor,
    keys: Tensor,
    position: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    ratio: int,
    top_k: int,
    fp4: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """The compressed blocks each query attends to.

    Args:
        q: [T, a*d] fp32 projections. head_weights: [T, a] fp32, projections without their scale.
        keys: [C, d] index keys. position: 0-d int64 of the first query. fp4: round as the cache
        does.

    Returns:
        ids [T, top_k] int64 and chosen [T, top_k] bool, as `select_blocks`.
    """
    scores = choice_scores(q, head_weights, keys, cos, sin, fp4=fp4, dtype=dtype)
    positions = position + torch.arange(q.shape[0], device=q.device)
    return select_blocks(scores, (positions + 1) // ratio, top_k)


def choice_scores(
    q: Tensor,
    head_weights: Tensor,
    keys: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    fp4: bool,
    dtype: torch.dtype,
) -> Tensor:
    """[T, C] fp32 scores that `choose_blocks` ranks; arguments as there."""
    heads, width = head_weights.shape[1], keys.shape[1]
    queries = rotate(q.to(dtype).unflatten(-1, (heads, width)), cos, sin)
    if fp4:
        queries = index_round_trip(queries)
    return index_scores(queries, keys, head_weights * (width * heads) ** -0.5)


def index_scores(q: Tensor, keys: Tensor, head_weights: Tensor) -> Tensor:
    """sum over heads of weight * relu(q . key); relu comes before the weight, which may be
    negative.

    Args:
        q: [T, a, d]. keys: [C, d]. head_weights: [T, a] fp32 with d^-1/2 a^-1/2 already applied.

    Returns:
        [T, C] fp32.
    """
    dots = torch.relu(q.float() @ keys.float().T)
    return torch.bmm(head_weights.float().unsqueeze(1), dots).squeeze(1)


def select_blocks(scores: Tensor, visible: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """The top_k highest scored visible blocks of each query.

    Args:
        scores: [T, C] fp32. visible: [T] int64; blocks below it are visible. top_k <= C.

    Returns:
        ids [T, top_k] int64 in no particular order, and chosen [T, top_k] bool; where it is False
        fewer than top_k are visible and the id is a placeholder in range.
    """
    hidden = torch.arange(scores.shape[1], device=scores.device) >= visible[:, None]
    best, ids = torch.topk(scores.masked_fill(hidden, float("-inf")), top_k, sorted=False)
    return ids, best > float("-inf")
