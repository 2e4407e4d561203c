"""The NVFP4 quantisers as single Triton kernels, for training on CUDA.

One program takes a few rows: block maxima, gsa, E4M3 block scale, E2M1 codes, and writes code *
block scale. Rounding is done on the bit pattern and by adding 1.5 * 2^23, which is nearest-even;
divisions are correctly rounded. Opaque to torch.compile, so that its graphs stay small.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 4096  # elements a program holds


@triton.jit
def _nearest_even(x):
    return (x + 12582912.0) - 12582912.0


@triton.jit
def _round_e4m3(x):
    """x in [0, 448]."""
    exponent = tl.maximum(x.to(tl.int32, bitcast=True) >> 23, 121) - 3
    quantum = (exponent << 23).to(tl.float32, bitcast=True)
    return _nearest_even(x / quantum) * quantum


@triton.jit
def _quantise_kernel(
    source, values, gsa_out, gsa_in, rows, rows_per_gsa,
    WEIGHT: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    block = tl.arange(0, BLOCKS)
    lane = tl.arange(0, 16)
    at = (row[:, None, None] * BLOCKS + block[None, :, None]) * 16 + lane[None, None, :]
    live = row[:, None, None] < rows
    x = tl.load(source + at, mask=live, other=0.0).to(tl.float32)
    magnitude = tl.abs(x)
    block_amax = tl.max(magnitude, 2)
    if WEIGHT:
        gsa = tl.load(gsa_in + row // rows_per_gsa, mask=row < rows, other=1.0)
    else:
        gsa = tl.div_rn(tl.max(block_amax, 1), tl.full((ROWS,), 2688.0, tl.float32))
        tl.store(gsa_out + row, gsa, mask=row < rows)
    wide_gsa = tl.broadcast_to(gsa[:, None], (ROWS, BLOCKS))
    divisor = 6.0 * wide_gsa
    empty = block_amax == 0.0
    raw = tl.where(empty, 1.0, tl.div_rn(block_amax, tl.where(divisor == 0.0, 1.0, divisor)))
    if WEIGHT:
        raw = tl.maximum(raw, 0.001953125)
    scale = tl.where(empty, 0.0, _round_e4m3(tl.minimum(raw, 448.0)))
    step = scale * wide_gsa
    dead = step == 0.0
    wide_step = tl.broadcast_to(tl.where(dead, 1.0, step)[:, :, None], (ROWS, BLOCKS, 16))
    code = tl.minimum(tl.div_rn(magnitude, wide_step), 6.0)
    grid = tl.where(code >= 4.0, 2.0, tl.where(code >= 2.0, 1.0, 0.5))
    code = _nearest_even(code / grid) * grid
    code = tl.where(x < 0.0, -code, code)
    made = tl.where(dead[:, :, None], 0.0, code * scale[:, :, None])
    tl.store(values + at, made.to(values.dtype.element_ty), mask=live)


def _launch(x: Tensor, values: Tensor, gsa_out: Tensor, gsa_in: Tensor, per: int, weight: bool):
    rows, blocks = x.numel() // x.shape[-1], x.shape[-1] // 16
    tile = max(1, _TILE // x.shape[-1])
    grid = (triton.cdiv(rows, tile),)
    _quantise_kernel[grid](
        x, values, gsa_out, gsa_in, rows, per, WEIGHT=weight, ROWS=tile, BLOCKS=blocks
    )


@torch.library.custom_op("dsv4demo::nvfp4_rows", mutates_args=())
def rows_op(x: Tensor) -> tuple[Tensor, Tensor]:
    """[..., K] -> values [..., K] bf16 and gsa [..., 1] fp32."""
    x = x.contiguous()
    values = torch.empty(x.shape, dtype=torch.bfloat16, device=x.device)
    gsa = torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
    _launch(x, values, gsa, gsa, 1, False)
    return values, gsa


@rows_op.register_fake
def _(x):
    values = torch.empty(x.shape, dtype=torch.bfloat16, device=x.device)
    return values, torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)


@torch.library.custom_op("dsv4demo::nvfp4_weight", mutates_args=())
def weight_op(weight: Tensor, scale_2: Tensor) -> Tensor:
    """[..., N, K] and one scale per matrix -> values bf16."""
    weight = weight.contiguous()
    values = torch.empty(weight.shape, dtype=torch.bfloat16, device=weight.device)
    _launch(weight, values, scale_2, scale_2.contiguous(), weight.shape[-2], True)
    return values


@weight_op.register_fake
def _(weight, scale_2):
    return torch.empty(weight.shape, dtype=torch.bfloat16, device=weight.device)
