"""Number formats: E2M1, E4M3, E8M0 codecs and the block formats built from them.

NVFP4 is E2M1 codes with an E4M3 scale per 16 elements and one fp32 global scale; MXFP4 is E2M1 with
an E8M0 scale per 32; FP8 block is E4M3 with one scale per 128 x 128 tile. Everything is plain
torch, capture safe, and rounds to nearest, ties to even (architecture.md 5 and 9). Blocks run along
the last axis.
"""

from typing import NamedTuple

import torch
from torch import Tensor

E2M1_MAX = 6.0
E4M3_MAX = 448.0
E4M3_MIN_SUBNORMAL = 2.0**-9
GSA_DIVISOR = E2M1_MAX * E4M3_MAX  # gsa = amax / 2688
NVFP4_BLOCK = 16
MXFP4_BLOCK = 32
FP8_TILE = 128


class Nvfp4Weight(NamedTuple):
    """W = code * block scale * global scale.

    packed: [..., N, K/2] uint8, element 2i in the low nibble. scale: [..., N, K/16] float8_e4m3fn.
    scale_2: [...] fp32, the multiplier amax/2688 (never its reciprocal).
    """

    packed: Tensor
    scale: Tensor
    scale_2: Tensor


class Nvfp4Rows(NamedTuple):
    """Activation rows x = values * gsa.

    values: [..., K] fp32, E2M1 code times E4M3 block scale (6 significant bits, exact in bf16).
    gsa: [..., 1] fp32 that was divided by. live: [..., 1] fp32, amax/2688 of the row.
    saturated, flushed: [...] int32, blocks whose scale was clamped at 448, or rounded to zero
    though the block is not zero.
    """

    values: Tensor
    gsa: Tensor
    live: Tensor
    saturated: Tensor
    flushed: Tensor


# ---- element codecs ------------------------------------------------------------------------------


def decode_e2m1(codes: Tensor) -> Tensor:
    """[...] uint8 codes 0..15 (bit 3 is the sign) -> fp32."""
    magnitude = (codes & 7).float()
    # 0, 1/2, 1, 3/2 in halves, then 2 and 3 in ones, then 4 and 6 in twos
    coarse = torch.where(magnitude < 6, magnitude - 2, 2 * magnitude - 8)
    value = torch.where(magnitude < 4, magnitude * 0.5, coarse)
    return torch.where(codes > 7, -value, value)


def round_e2m1(x: Tensor) -> Tensor:
    """Nearest E2M1 value as fp32, ties to the even mantissa, saturating at 6. NaN stays NaN."""
    magnitude = x.abs().clamp_(max=E2M1_MAX)
    # The grid step is 1/2 below 2, 1 below 4, then 2: torch.round breaks ties to even in each.
    step = 0.5 + 0.5 * (magnitude >= 2.0) + (magnitude >= 4.0)
    return (magnitude / step).round_().mul_(step).copysign_(x)


def encode_e2m1(x: Tensor) -> Tensor:
    """[...] fp32 -> uint8 codes, rounding as `round_e2m1`. A NaN becomes code 7 (6.0)."""
    value = round_e2m1(x)
    magnitude = value.abs()
    # code = 2*v up to 2 (0..4), v + 2 up to 4, then 7
    code = torch.where(magnitude <= 2.0, magnitude * 2.0, magnitude + 2.0).clamp_(max=7.0)
    code = torch.where(magnitude.isnan(), torch.full_like(code, 7.0), code)
    return code.to(torch.uint8) | (torch.signbit(value).to(torch.uint8) << 3)


def pack_nibbles(codes: Tensor) -> Tensor:
    """[..., K] codes 0..15 -> [..., K/2] uint8, element 2i in the low nibble."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_nibbles(packed: Tensor) -> Tensor:
    """[..., K/2] uint8 or int8 -> [..., K] uint8 codes. Bits are reinterpreted, never
    sign-extended."""
    raw = packed.view(torch.uint8)
    return torch.stack((raw & 0xF, raw >> 4), dim=-1).flatten(-2)


def round_e4m3(x: Tensor) -> Tensor:
    """Nearest E4M3 value as fp32, saturating at 448. NaN stays NaN."""
    return x.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).to(torch.float32)


def decode_e8m0(codes: Tensor) -> Tensor:
    """[...] uint8 or float8_e8m0fnu -> fp32 2^(code-127); 255 is NaN. Code 0 is the subnormal
    2^-127."""
    raw = codes.view(torch.uint8).to(torch.int32)
    bits = torch.where(raw == 0, torch.full_like(raw, 1 << 22), raw << 23)
    return torch.where(raw == 255, torch.full_like(bits, 0x7FC00000), bits).view(torch.float32)


def encode_e8m0(scale: Tensor) -> Tensor:
    """Positive powers of two in fp32 (normal range) -> uint8 codes."""
    return (scale.contiguous().view(torch.int32) >> 23).to(torch.uint8)


def ceil_pow2(x: Tensor) -> Tensor:
    """Smallest power of two >= x, exact on the fp32 bit pattern, for normal x > 0."""
    bits = x.contiguous().view(torch.int32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(torch.int32)
    return (exponent << 23).view(torch.float32)


# ---- NVFP4 ---------------------------------------------------------------------------------------


def gsa_of(amax: Tensor) -> Tensor:
    """amax / 2688, rounded to nearest. A tensor divides: torch divides by a number as a product
    with its reciprocal on CUDA, one bit off."""
    return amax / torch.full_like(amax, GSA_DIVISOR)


def quantise_nvfp4_rows(x: Tensor, gsa: Tensor | None = None) -> Nvfp4Rows:
    """Quantise activation rows, each with its own gsa = max|x| / 2688 unless one is given.

    Args:
        x: [..., K], K a multiple of 16. Computed in fp32.
        gsa: fp32, broadcastable to [..., 1]: the checkpoint's `input_scale` (gsa mode
        `checkpoint`).

    A row of zeros has gsa 0 and values 0. A row with NaN or Inf yields NaN values; the caller's
    non-finite flag reports it.
    """
    x = x.float()
    blocks = x.unflatten(-1, (-1, NVFP4_BLOCK))
    block_amax = blocks.abs().amax(-1)
    live = gsa_of(block_amax.amax(-1, keepdim=True))
    used = live if gsa is None else gsa.expand_as(live)
    raw = block_amax / (E2M1_MAX * used)
    # A zero row divides 0 by 0; a live row's largest block can land a hair above 448.
    raw = torch.where(block_amax == 0, torch.zeros_like(raw), raw)
    scale = round_e4m3(raw)
    step = (scale * used).unsqueeze(-1)
    codes = round_e2m1(blocks / step)
    values = torch.where(step == 0, torch.zeros_like(codes), codes) * scale.unsqueeze(-1)
    # 464 is the midpoint above 448: beyond it the clamp, not rounding, decided.
    saturated = (raw > 464.0).sum(-1, dtype=torch.int32)
    flushed = ((scale == 0) & (block_amax > 0)).sum(-1, dtype=torch.int32)
    return Nvfp4Rows(values.flatten(-2), used, live, saturated, flushed)


def quantise_nvfp4_weight(weight: Tensor, amax: Tensor | None = None) -> Nvfp4Weight:
    """Quantise [..., N, K] with one global scale per matrix.

    Args:
        weight: K a multiple of 16. Computed in fp32.
        amax: fp32, one per matrix: the maximum to scale by, where several matrices share one.

    Zero blocks store scale 1.0 and zero codes, scales that underflow become 2^-9, and a zero matrix
    has global scale 1 (architecture.md 9).
    """
    weight = weight.float()
    blocks = weight.unflatten(-1, (-1, NVFP4_BLOCK))
    block_amax = blocks.abs().amax(-1)
    if amax is None:
        amax = block_amax.amax((-2, -1))
    scale_2 = torch.where(amax == 0, torch.ones_like(amax), gsa_of(amax))
    raw = block_amax / (E2M1_MAX * scale_2[..., None, None])
    raw = torch.where(block_amax == 0, torch.ones_like(raw), raw.clamp(min=E4M3_MIN_SUBNORMAL))
    scale = raw.clamp(max=E4M3_MAX).to(torch.float8_e4m3fn)
    step = scale.float() * scale_2[..., None, None]
    codes = encode_e2m1(blocks / step.unsqueeze(-1)).flatten(-2)
    return Nvfp4Weight(pack_nibbles(codes), scale, scale_2)


def nvfp4_values(packed: Tensor, scale: Tensor) -> Tensor:
    """[..., N, K] fp32 code * block scale, without the global scale. Exact in bf16."""
    codes = decode_e2m1(unpack_nibbles(packed)).unflatten(-1, (-1, NVFP4_BLOCK))
    return (codes * scale.float().unsqueeze(-1)).flatten(-2)


def dequantise_nvfp4(weight: Nvfp4Weight) -> Tensor:
    """[..., N, K] fp32."""
    return nvfp4_values(weight.packed, weight.scale) * weight.scale_2[..., None, None]


# ---- MXFP4 and FP8 blocks ------------------------------------------------------------------------


def dequantise_mxfp4(packed: Tensor, scale: Tensor) -> Tensor:
    """[..., N, K/2] bytes and [..., N, K/32] E8M0 -> [..., N, K] fp32."""
    codes = decode_e2m1(unpack_nibbles(packed)).unflatten(-1, (-1, MXFP4_BLOCK))
    return (codes * decode_e8m0(scale).unsqueeze(-1)).flatten(-2)


def quantise_mxfp4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[..., N, K] -> packed [..., N, K/2] uint8 and scale [..., N, K/32] uint8 (E8M0)."""
    blocks = weight.float().unflatten(-1, (-1, MXFP4_BLOCK))
    scale = _fp4_scale(blocks)
    codes = encode_e2m1(blocks / scale.unsqueeze(-1)).flatten(-2)
    return pack_nibbles(codes), encode_e8m0(scale)


def dequantise_fp8_block(weight: Tensor, scale: Tensor) -> Tensor:
    """[..., N, K] float8_e4m3fn and [..., ceil(N/128), ceil(K/128)] scales -> fp32.

    The scale is E8M0 (uint8 or float8_e8m0fnu) or any float type.
    """
    is_e8m0 = scale.dtype in (torch.uint8, torch.float8_e8m0fnu)
    factors = decode_e8m0(scale) if is_e8m0 else scale.float()
    rows, columns = weight.shape[-2:]
    factors = factors.repeat_interleave(FP8_TILE, -2).repeat_interleave(FP8_TILE, -1)
    return weight.float() * factors[..., :rows, :columns]


def quantise_fp8_block(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[N, K] -> float8_e4m3fn [N, K] and E8M0 scales uint8 [ceil(N/128), ceil(K/128)]."""
    rows, columns = weight.shape
    pad = (0, -columns % FP8_TILE, 0, -rows % FP8_TILE)
    tiles = torch.nn.functional.pad(weight.float(), pad)
    tiles = tiles.unflatten(0, (-1, FP8_TILE)).unflatten(2, (-1, FP8_TILE))
    scale = _fp8_scale(tiles.abs().amax((1, 3)))
    codes = (tiles / scale[:, None, :, None]).clamp(-E4M3_MAX, E4M3_MAX)
    codes = codes.flatten(2, 3).flatten(0, 1)[:rows, :columns]
    return codes.to(torch.float8_e4m3fn).contiguous(), encode_e8m0(scale)


def fp8_round_trip(x: Tensor, block: int) -> Tensor:
    """x through E4M3 in blocks of `block` with power-of-two scales, as fp32 (architecture.md 5)."""
    blocks = x.float().unflatten(-1, (-1, block))
    scale = _fp8_scale(blocks.abs().amax(-1, keepdim=True))
    return (round_e4m3(blocks / scale) * scale).flatten(-2)


def fp4_round_trip(x: Tensor, block: int = MXFP4_BLOCK) -> Tensor:
    """x through E2M1 in blocks with power-of-two scales, as fp32 (architecture.md 5)."""
    blocks = x.float().unflatten(-1, (-1, block))
    scale = _fp4_scale(blocks).unsqueeze(-1)
    return (round_e2m1(blocks / scale) * scale).flatten(-2)


def _fp8_scale(amax: Tensor) -> Tensor:
    return ceil_pow2(amax.clamp(min=1e-4) * (1.0 / E4M3_MAX))


def _fp4_scale(blocks: Tensor) -> Tensor:
    amax = blocks.abs().amax(-1)
    return ceil_pow2(amax.clamp(min=E2M1_MAX * 2.0**-126) * (1.0 / E2M1_MAX))
