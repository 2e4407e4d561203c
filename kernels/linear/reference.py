"""Linears in plain torch, straight from the stored bytes: the meaning of each format.

y = gsa * scale_2 * sum_k values_x * values_w with fp32 accumulation (architecture.md 9). The global
scales multiply the sum, so doubling one doubles the result exactly.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.formats import (
    NVFP4_BLOCK,
    Nvfp4Rows,
    Nvfp4Weight,
    dequantise_fp8_block,
    fp8_round_trip,
    nvfp4_values,
)

FP8_ROW_BLOCK = 128


def prepare(weight: Nvfp4Weight) -> Nvfp4Weight:
    """The reference reads the stored layout."""
    return weight


def scale_by_row(scale_2: Tensor) -> Tensor:
    """0-d as it is; [N/16] -> [N]."""
    return scale_2 if scale_2.dim() == 0 else scale_2.repeat_interleave(NVFP4_BLOCK)


def join(weights: Sequence[Nvfp4Weight]) -> Nvfp4Weight:
    """Projections [N_i, K] of one input as one [sum N_i, K]; every N_i a multiple of 16."""
    tiles = [weight.packed.shape[0] // NVFP4_BLOCK for weight in weights]
    return Nvfp4Weight(
        torch.cat([weight.packed for weight in weights]),
        torch.cat([weight.scale.view(torch.uint8) for weight in weights]).view(
            weights[0].scale.dtype
        ),
        torch.cat([w.scale_2.expand(count) for w, count in zip(weights, tiles, strict=True)]),
    )


def nvfp4_linear(rows: Nvfp4Rows, weight: Nvfp4Weight) -> Tensor:
    """[T, K] rows and [N, K] weight -> [T, N] fp32.

    weight.scale_2 is one for all rows, or one per 16 rows, [N/16], of projections joined in one.
    """
    product = rows.values.float() @ nvfp4_values(weight.packed, weight.scale).T
    return product * (rows.gsa * scale_by_row(weight.scale_2))


def nvfp4_grouped_linear(rows: Nvfp4Rows, weight: Nvfp4Weight) -> Tensor:
    """[T, G, K] rows and [G, N, K] weight -> [T, G, N] fp32; group g of the rows meets weight g.

    weight.scale_2 is one per group, [G], or one for all.
    """
    values = nvfp4_values(weight.packed, weight.scale)
    product = torch.einsum("tgk,gnk->tgn", rows.values.float(), values)
    return product * rows.gsa * weight.scale_2.reshape(-1, 1)


def fp8_linear(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """[T, K] x and FP8 block weight [N, K] -> [T, N] fp32, x through E4M3 per 1x128 block.

    K below or off 128 uses one block of K (tiny test models).
    """
    block = FP8_ROW_BLOCK if x.shape[-1] % FP8_ROW_BLOCK == 0 else x.shape[-1]
    return fp8_round_trip(x, block) @ dequantise_fp8_block(weight, scale).T


def dense_linear(x: Tensor, weight: Tensor) -> Tensor:
    """[..., K] x and [N, K] weight in float dtypes -> [..., N] fp32: exact products, fp32 sums."""
    return x.float() @ weight.float().T
