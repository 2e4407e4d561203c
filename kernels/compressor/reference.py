"""Compressor pooling in plain torch (architecture.md 3.4, 4), addressed by position.

Token rows live in a ring at slot `position mod ring`, pooled rows at index `position // ratio`.
Nothing is a running sum, so writing a position twice is harmless and going back is setting the
position.
"""

from typing import Literal

import torch
from torch import Tensor

from kernels.cache import index_round_trip, kv_round_trip, store_rows
from kernels.residual.reference import rms_norm, rope_phases, rotate

Rounding = Literal["kv", "index", "none"]


def compress(
    kv: Tensor,
    gate: Tensor,
    ape: Tensor,
    norm: Tensor,
    ring_kv: Tensor,
    ring_score: Tensor,
    blocks: Tensor,
    position: Tensor,
    frequencies: Tensor,
    *,
    ratio: int,
    overlap: bool,
    rounding: Rounding,
    eps: float,
) -> None:
    """Take the chunk's projections and write every block they complete, in place.

    Args:
        kv, gate: [T, F] fp32 projections. ape: [ratio, F] fp32, added to the gate by slot.
        norm: [D] fp32. ring_kv, ring_score: [R, F] fp32. blocks: [C + 1, D]; the last row takes the
            writes of blocks that are not complete. position: 0-d int64 of the first token.
        frequencies: [r/2]; a block rotates at the position of its first token.
    """
    positions = position + torch.arange(kv.shape[0], device=kv.device)
    score = gate + ape[positions % ratio]
    pooled, block, complete = pool_blocks(
        kv, score, ring_kv, ring_score, position, ratio=ratio, overlap=overlap
    )
    rows = rms_norm(pooled.to(blocks.dtype), norm, eps)
    rows = rotate(rows, *rope_phases(block * ratio, frequencies))
    if rounding == "kv":
        rows = kv_round_trip(rows, 2 * frequencies.shape[0])
    elif rounding == "index":
        rows = index_round_trip(rows)
    blocks.index_copy_(0, torch.where(complete, block, blocks.shape[0] - 1), rows)


def history_length(ratio: int, overlap: bool) -> int:
    """Earlier tokens a block that ends now may need: ratio-1, and one block more where blocks
    overlap."""
    return (2 * ratio if overlap else ratio) - 1


def pool_blocks(
    kv: Tensor,
    score: Tensor,
    ring_kv: Tensor,
    ring_score: Tensor,
    position: Tensor,
    *,
    ratio: int,
    overlap: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Pool every block that ends inside this chunk, then store the chunk's rows in the rings.

    Args:
        kv, score: [T, F] fp32, score with `ape` added. F is 2D where blocks overlap, else D.
        ring_kv, ring_score: [R, F] fp32, R >= history + 1; updated in place.
        position: 0-d int64, position of the chunk's first token.

    Returns:
        pooled [B, D], block [B] int64, complete [B] bool, with B = ceil(T / ratio) candidates. A
        block that is not complete holds defined but meaningless values.

    With overlap, block w pools the first-half channels of block w-1 and the second-half channels of
    block w; before the first block there is nothing (weight 0).
    """
    num_tokens, device = kv.shape[0], kv.device
    history = history_length(ratio, overlap)
    ring = ring_kv.shape[0]
    past = position - history + torch.arange(history, device=device)
    slots = past % ring
    all_kv = torch.cat((ring_kv[slots], kv))
    past_score = ring_score[slots].masked_fill((past < 0)[:, None], float("-inf"))
    all_score = torch.cat((past_score, score))

    candidates = (num_tokens + ratio - 1) // ratio
    block = position // ratio + torch.arange(candidates, device=device)
    complete = (block + 1) * ratio <= position + num_tokens
    first = block * ratio - position + history
    rows = first[:, None] + torch.arange(ratio, device=device)
    rows = rows.clamp_(max=history + num_tokens - 1)
    if overlap:
        half = kv.shape[1] // 2
        before = rows - ratio
        # an incomplete block may be clamped onto itself; `before` still stays in range
        block_kv = torch.cat((all_kv[before, :half], all_kv[rows, half:]), 1)
        block_score = torch.cat((all_score[before, :half], all_score[rows, half:]), 1)
    else:
        block_kv, block_score = all_kv[rows], all_score[rows]
    pooled = (torch.softmax(block_score, 1) * block_kv).sum(1)
    store_rows(ring_kv, kv, position)
    store_rows(ring_score, score, position)
    return pooled, block, complete
