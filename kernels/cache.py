"""What the caches do to a row: its place by position, and the formats it is rounded to.

architecture.md 4 (rings) and 5 (simulated cache formats).
"""

import torch
from torch import Tensor

from kernels.formats import MXFP4_BLOCK, fp4_round_trip, fp8_round_trip

_KV_BLOCK = 64  # FP8 blocks of the KV round trip


def store_rows(ring: Tensor, rows: Tensor, position: Tensor) -> None:
    """Write rows [T, F] of positions position.. into ring [R, F] at slot position mod R, in place.

    Of a chunk longer than the ring only the last R rows are written.
    """
    kept = rows[-ring.shape[0] :]
    first = position + rows.shape[0] - kept.shape[0]
    slots = (first + torch.arange(kept.shape[0], device=rows.device)) % ring.shape[0]
    ring.index_copy_(0, slots, kept.to(ring.dtype))


def kv_round_trip(rows: Tensor, rope_dims: int) -> Tensor:
    """KV rows [..., D] with all but the rotary dims through FP8 blocks of 64 (architecture.md
    5)."""
    plain = rows.shape[-1] - rope_dims
    block = _KV_BLOCK if plain % _KV_BLOCK == 0 else plain
    head = fp8_round_trip(rows[..., :plain], block).to(rows.dtype)
    return torch.cat((head, rows[..., plain:]), -1)


def index_round_trip(rows: Tensor) -> Tensor:
    """Index queries or keys [..., d]: Hadamard, then FP4 blocks of 32 (architecture.md 5)."""
    return fp4_round_trip(hadamard(rows), min(MXFP4_BLOCK, rows.shape[-1])).to(rows.dtype)


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
