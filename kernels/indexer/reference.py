"""Indexer score and selection in plain torch (architecture.md 3.5, 3.6)."""

import torch
from torch import Tensor


def hadamard(x: Tensor) -> Tensor:
    """Normalised Walsh-Hadamard over the last axis (a power of two), natural order, in x.dtype."""
    size = x.shape[-1]
    wide = x.float()
    span = 1
    while span < size:
        pairs = wide.unflatten(-1, (-1, 2, span))
        low, high = pairs[..., 0, :], pairs[..., 1, :]
        wide = torch.stack((low + high, low - high), -2).flatten(-3)
        span *= 2
    return (wide * size**-0.5).to(x.dtype)


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
