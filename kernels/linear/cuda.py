"""Launches `cute_gemv` and `cute_bf16` for up to 8 rows; more rows go through dequantised tiles in
torch."""

import torch
from torch import Tensor

from kernels.compiled import KernelLibrary
from kernels.formats import Nvfp4Rows, Nvfp4Weight
from kernels.linear import reference

MAX_ROWS = 8
CHUNK = 128
BF16_STEP = 256
BF16_WARPS = 8
_FEWEST_CTAS = 256


def warps_for(columns: int, most: int = 8) -> int:
    """Warps that split K evenly into 128-wide chunks; 16 where 8 would hold too many each."""
    chunks = columns // CHUNK
    most = 16 if chunks > 8 * most else most
    return max(w for w in range(1, most + 1) if chunks % w == 0)


def tiling(rows_out: int, columns: int, groups: int) -> tuple[int, int]:
    """(warps a tile, tiles a CTA): up to 8 chunks a warp and 8 warps a CTA, as long as the CTAs
    outnumber the SMs."""
    chunks = columns // CHUNK
    warps = next(w for w in range(1, 65) if chunks % w == 0 and chunks // w <= 8)
    tiles = max(1, 8 // warps)
    while tiles > 1 and -(-rows_out // (16 * tiles)) * groups < _FEWEST_CTAS:
        tiles //= 2
    return warps, tiles


def nvfp4_linear(library: KernelLibrary, rows: Nvfp4Rows, weight: Nvfp4Weight) -> Tensor:
    """[T, K] rows and [N, K] weight -> [T, N] fp32. Capture-safe."""
    tokens, columns = rows.values.shape
    if tokens > MAX_ROWS or columns % CHUNK:
        return reference.nvfp4_linear(rows, weight)
    out = torch.empty(tokens, weight.packed.shape[0], device=rows.values.device)
    _launch(library, rows, weight, out, groups=1)
    return out


def nvfp4_grouped_linear(library: KernelLibrary, rows: Nvfp4Rows, weight: Nvfp4Weight) -> Tensor:
    """[T, G, K] rows and [G, N, K] weight -> [T, G, N] fp32. Capture-safe."""
    tokens, groups, columns = rows.values.shape
    if tokens > MAX_ROWS or columns % CHUNK:
        return reference.nvfp4_grouped_linear(rows, weight)
    out = torch.empty(tokens, groups, weight.packed.shape[1], device=rows.values.device)
    _launch(library, rows, weight, out, groups=groups)
    return out


def dense_linear(library: KernelLibrary, x: Tensor, weight: Tensor) -> Tensor:
    """[T, K] x and [N, K] bf16 weight -> [T, N] fp32. Capture-safe for up to 8 rows."""
    tokens, columns = x.shape
    both = x.dtype == weight.dtype == torch.bfloat16
    if tokens > MAX_ROWS or columns % BF16_STEP or not both:
        return reference.dense_linear(x, weight)
    rows_out = weight.shape[0]
    out = torch.empty(tokens, rows_out, device=x.device)
    kernel = library.get(
        "kernels.linear.cute_bf16", rows_out=rows_out, columns=columns, tokens=tokens
    )
    grid = ((rows_out + BF16_WARPS - 1) // BF16_WARPS, 1, 1)
    kernel.launch(grid, 32 * BF16_WARPS, 0, (x.contiguous(), weight, out))
    return out


def _launch(
    library: KernelLibrary, rows: Nvfp4Rows, weight: Nvfp4Weight, out: Tensor, groups: int
) -> None:
    tokens, columns, rows_out = rows.values.shape[0], rows.values.shape[-1], out.shape[-1]
    warps, tiles = tiling(rows_out, columns, groups)
    kernel = library.get(
        "kernels.linear.cute_gemv",
        rows_out=rows_out,
        columns=columns,
        groups=groups,
        tokens=tokens,
        warps=warps,
        tiles=tiles,
        tile_scales=weight.scale_2.dim() == 1 and groups == 1,
    )
    shared = tokens * (columns // 2 + 4) * 4 + warps * tiles * tokens * 64 + 16
    arguments = (
        weight.packed,
        weight.scale,
        weight.scale_2,
        rows.values.contiguous(),
        rows.gsa.contiguous(),
        out,
    )
    grid = (-(-rows_out // (16 * tiles)), groups, 1)
    kernel.launch(grid, warps * tiles * 32, shared, arguments)
