"""Fake quantisers with straight-through gradients, bit-equal to kernels.formats.

Training sees the numbers of the engine's default precision: NVFP4 weights and activations with one
gsa per row (architecture.md 5 and 9). A W4A4 product multiplies code * block scale on both sides,
exact in bf16, and applies the global scales to the sum, as the engine does.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from kernels.formats import (
    E2M1_MAX,
    E4M3_MAX,
    E4M3_MIN_SUBNORMAL,
    FP8_TILE,
    GSA_DIVISOR,
    MXFP4_BLOCK,
    NVFP4_BLOCK,
)

try:
    from tools.demo import quant_triton
except ImportError:  # CPU builds of torch come without Triton
    quant_triton = None

KV_BLOCK = 64


def round_e2m1(x: Tensor) -> Tensor:
    """Nearest E2M1 value, ties to even, saturating at 6."""
    magnitude = x.abs().clamp(max=E2M1_MAX)
    step = 0.5 + 0.5 * (magnitude >= 2.0) + (magnitude >= 4.0)
    return (magnitude / step).round() * step * torch.sign(x)


def round_e4m3(x: Tensor) -> Tensor:
    """Nearest E4M3 value as fp32, saturating at 448."""
    return x.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).float()


def ceil_pow2(x: Tensor) -> Tensor:
    """Smallest power of two >= x for normal x > 0, on the bit pattern."""
    bits = x.contiguous().view(torch.int32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(torch.int32)
    return (exponent << 23).view(torch.float32)


def nvfp4_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """[..., K] -> values [..., K] fp32 (code * block scale) and gsa [..., 1]; x ~ values * gsa."""
    blocks = x.float().unflatten(-1, (-1, NVFP4_BLOCK))
    block_amax = blocks.abs().amax(-1)
    gsa = block_amax.amax(-1, keepdim=True) / GSA_DIVISOR
    raw = torch.where(block_amax == 0, 0.0, block_amax / (E2M1_MAX * gsa))
    scale = round_e4m3(raw)
    step = (scale * gsa).unsqueeze(-1)
    codes = torch.where(step == 0, 0.0, round_e2m1(blocks / step))
    return (codes * scale.unsqueeze(-1)).flatten(-2), gsa


def nvfp4_weight(weight: Tensor, amax: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """[..., N, K] -> values fp32 and the global scale per matrix [...]."""
    blocks = weight.float().unflatten(-1, (-1, NVFP4_BLOCK))
    block_amax = blocks.abs().amax(-1)
    if amax is None:
        amax = block_amax.amax((-2, -1))
    scale_2 = torch.where(amax == 0, 1.0, amax / GSA_DIVISOR)
    raw = block_amax / (E2M1_MAX * scale_2[..., None, None])
    raw = torch.where(block_amax == 0, 1.0, raw.clamp(min=E4M3_MIN_SUBNORMAL))
    scale = round_e4m3(raw)
    step = (scale * scale_2[..., None, None]).unsqueeze(-1)
    return (round_e2m1(blocks / step) * scale.unsqueeze(-1)).flatten(-2), scale_2


def fp8_block(weight: Tensor) -> Tensor:
    """[N, K], multiples of 128 or one short tile -> the values an FP8 block checkpoint holds."""
    rows, columns = weight.shape
    pad = (0, -columns % FP8_TILE, 0, -rows % FP8_TILE)
    tiles = torch.nn.functional.pad(weight.float(), pad) if any(pad) else weight.float()
    tiles = tiles.unflatten(0, (-1, FP8_TILE)).unflatten(2, (-1, FP8_TILE))
    scale = ceil_pow2(tiles.abs().amax((1, 3)).clamp(min=1e-4) * (1.0 / E4M3_MAX))
    scale = scale[:, None, :, None]
    return (round_e4m3(tiles / scale) * scale).flatten(2, 3).flatten(0, 1)[:rows, :columns]


def fp8_round_trip(x: Tensor, block: int) -> Tensor:
    blocks = x.float().unflatten(-1, (-1, block))
    amax = blocks.abs().amax(-1, keepdim=True)
    scale = ceil_pow2(amax.clamp(min=1e-4) * (1.0 / E4M3_MAX))
    return (round_e4m3(blocks / scale) * scale).flatten(-2)


def fp4_round_trip(x: Tensor, block: int = MXFP4_BLOCK) -> Tensor:
    blocks = x.float().unflatten(-1, (-1, block))
    amax = blocks.abs().amax(-1, keepdim=True)
    scale = ceil_pow2(amax.clamp(min=E2M1_MAX * 2.0**-126) * (1.0 / E2M1_MAX))
    return (round_e2m1(blocks / scale) * scale).flatten(-2)


def straight_through(quantised: Tensor, x: Tensor) -> Tensor:
    """The value of `quantised` with the gradient of x."""
    return _StraightThrough.apply(x, quantised.detach())


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, quantised):
        return quantised.to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def kv_round_trip(rows: Tensor, rope_dims: int) -> Tensor:
    """KV rows with all but the rotary dims through FP8 blocks of 64; straight-through."""
    plain = rows.shape[-1] - rope_dims
    block = KV_BLOCK if plain % KV_BLOCK == 0 else plain
    head = rows[..., :plain]
    head = straight_through(fp8_round_trip(head, block), head)
    return torch.cat((head, rows[..., plain:]), -1)


class Activation(NamedTuple):
    """The input of one or more linears. values, gsa: its NVFP4 rows, or None in plain precision."""

    x: Tensor
    values: Tensor | None
    gsa: Tensor | None


def enter(x: Tensor, quantised: bool) -> Activation:
    if not quantised:
        return Activation(x, None, None)
    return Activation(x, *rows(x.detach()))


def rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """`nvfp4_rows` by the fastest means there is; values in bf16 on CUDA, where they are exact."""
    if x.is_cuda and quant_triton is not None:
        return quant_triton.rows_op(x)
    return nvfp4_rows(x)


def weight_values(weight: Tensor, amax: Tensor | None, stored_as_fp8: bool) -> tuple:
    """`nvfp4_weight` of what the checkpoint will hold, likewise."""
    weight = weight.detach()
    if not (weight.is_cuda and quant_triton is not None):
        return nvfp4_weight(fp8_block(weight) if stored_as_fp8 else weight, amax)
    source = fp8_block_op(weight) if stored_as_fp8 else weight
    if amax is None:
        amax = source.abs().amax((-2, -1))
    scale_2 = torch.where(amax == 0, 1.0, amax / GSA_DIVISOR)
    return quant_triton.weight_op(source, scale_2), scale_2


@torch.library.custom_op("dsv4demo::fp8_block", mutates_args=())
def fp8_block_op(weight: Tensor) -> Tensor:
    """`fp8_block`, opaque to torch.compile."""
    return fp8_block(weight).clone()


@fp8_block_op.register_fake
def _(weight):
    return torch.empty_like(weight)


class _W4A4(torch.autograd.Function):
    """y = gsa * scale_2 * (values_x @ values_w^T); gradients as of the dequantised product."""

    @staticmethod
    def forward(ctx, x, weight, row_values, gsa, values, scale_2):
        row_values, values = row_values.to(x.dtype), values.to(x.dtype)
        ctx.save_for_backward(row_values, gsa, values, scale_2)
        return ((row_values @ values.mT).float() * (gsa * scale_2)).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        row_values, gsa, values, scale_2 = ctx.saved_tensors
        grad_x = (grad.float() * scale_2).to(grad.dtype) @ values
        scaled = (grad.float() * gsa).to(grad.dtype)
        grad_weight = scaled.flatten(0, -2).mT @ row_values.flatten(0, -2)
        return grad_x, grad_weight.float(), None, None, None, None


def linear(act: Activation, weight: Tensor, *, stored_as_fp8: bool = True) -> Tensor:
    """act [..., K], fp32 master weight [N, K] -> [..., N] in x.dtype; W4A4 for quantised rows."""
    if act.values is None:
        return torch.nn.functional.linear(act.x, weight.to(act.x.dtype))
    values, scale_2 = weight_values(weight, None, stored_as_fp8)
    return _W4A4.apply(act.x, weight, act.values, act.gsa, values, scale_2)


def fake_rows(act: Activation) -> Tensor:
    """The dequantised rows of an activation; straight-through."""
    if act.values is None or act.gsa is None:
        return act.x
    return straight_through(act.values.float() * act.gsa, act.x)


def fake_weight(weight: Tensor, amax: Tensor | None = None, *, stored_as_fp8: bool) -> Tensor:
    """The dequantised NVFP4 weight; straight-through."""
    values, scale_2 = weight_values(weight, amax, stored_as_fp8)
    return straight_through(values.float() * scale_2[..., None, None], weight)
