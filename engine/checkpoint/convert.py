"""Any stored format to NVFP4, without loss where the numbers allow it (architecture.md 8.2, 9).

MXFP4, and wider tensors that were once MXFP4, hold E2M1 codes times powers of two: those keep every
number. Anything else is rounded to the nearest NVFP4.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from kernels.formats import (
    MXFP4_BLOCK,
    NVFP4_BLOCK,
    Nvfp4Weight,
    decode_e2m1,
    encode_e2m1,
    pack_nibbles,
    quantise_nvfp4_weight,
    round_e2m1,
    unpack_nibbles,
)

Parts = Callable[[], Iterator[Tensor]]
_TOP = 8  # exponent given to the largest block scale: 2^8 is the highest power of two in E4M3
_LOWEST = -9  # 2^-9 is E4M3's smallest positive value
_PROBE_ROWS = 8


def mxfp4_as_nvfp4(packed: Tensor, scale: Tensor) -> Nvfp4Weight:
    """MXFP4 [N, K/2] bytes and [N, K/32] E8M0 codes as NVFP4, codes kept bit for bit.

    Blocks more than 17 octaves below the largest are rounded to the lowest block scale; NVIDIA's
    cast does the same. A block without a non-zero code counts for nothing.
    """
    codes = packed.view(torch.uint8)
    live = ((codes & 0x77) != 0).unflatten(-1, (-1, MXFP4_BLOCK // 2)).any(-1)
    exponent = scale.view(torch.uint8).to(torch.int32) - 127
    return _with_exponents(codes, exponent, live)


def _with_exponents(packed: Tensor, exponent: Tensor, live: Tensor) -> Nvfp4Weight:
    """W = code * 2^exponent, one exponent per block of any size, as NVFP4 bytes."""
    lowest = torch.full_like(exponent, -(1 << 20))
    top = torch.where(live, exponent, lowest).amax()
    top = torch.where(live.any(), top, torch.full_like(top, _TOP))
    relative = torch.where(live, exponent - top + _TOP, torch.zeros_like(exponent))
    flat = relative.clamp(min=_LOWEST)
    block = packed.shape[-1] * 2 // exponent.shape[-1]
    if not packed.is_meta and bool((relative < _LOWEST).any()):
        # Shift the codes of the blocks that fall below the lowest scale.
        values = decode_e2m1(unpack_nibbles(packed)).unflatten(-1, (-1, block))
        shifted = torch.ldexp(values, (relative - flat).unsqueeze(-1))
        packed = pack_nibbles(encode_e2m1(shifted).flatten(-2))
    scale = torch.ldexp(torch.ones_like(flat, dtype=torch.float32), flat)
    scale = scale.repeat_interleave(block // NVFP4_BLOCK, -1).to(torch.float8_e4m3fn)
    scale_2 = torch.ldexp(torch.ones_like(top, dtype=torch.float32), top - _TOP)
    return Nvfp4Weight(packed, scale, scale_2)


def exact_nvfp4(weight: Tensor) -> Nvfp4Weight | None:
    """fp32 [N, K] as NVFP4 if that loses nothing: every 16-block is E2M1 times a power of two."""
    return _exact([weight].__iter__)


def _exact(parts: Parts) -> Nvfp4Weight | None:
    made: list[tuple[Tensor, Tensor, Tensor]] = []
    for weight in parts():
        if weight.is_meta or not _is_exact(weight[:_PROBE_ROWS]) or not _is_exact(weight):
            return None
        blocks = weight.unflatten(-1, (-1, NVFP4_BLOCK))
        exponent, live = _exponents(blocks)
        codes = encode_e2m1(torch.ldexp(blocks, -exponent.unsqueeze(-1)))
        made.append((pack_nibbles(codes.flatten(-2)), exponent, live))
    packed, exponent, live = (torch.cat(part) for part in zip(*made, strict=True))
    held = exponent[live]
    if held.numel() and int(held.max() - held.min()) > _TOP - _LOWEST:
        return None
    return _with_exponents(packed, exponent, live)


def _exponents(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Exponents that bring each block's largest magnitude into [4, 8), and which are not zero."""
    amax = blocks.abs().amax(-1)
    live = amax > 0
    exponent = torch.frexp(amax).exponent - 3
    return torch.where(live, exponent, torch.zeros_like(exponent)), live


def _is_exact(weight: Tensor) -> bool:
    blocks = weight.unflatten(-1, (-1, NVFP4_BLOCK))
    exponent, _ = _exponents(blocks)
    codes = torch.ldexp(blocks, -exponent.unsqueeze(-1))
    return bool((round_e2m1(codes) == codes).all())


def to_nvfp4(weight: Tensor) -> Nvfp4Weight:
    """[N, K] of any float dtype as NVFP4: exactly where possible, else the nearest."""
    return parts_to_nvfp4(lambda: iter([weight.float()]))


def parts_to_nvfp4(parts: Parts) -> Nvfp4Weight:
    """The same of a matrix that comes in row blocks of fp32, asked for up to three times: a load
    never holds all of it in fp32."""
    exact = _exact(parts)
    if exact is not None:
        return exact
    amax = torch.stack([part.abs().amax() for part in parts()]).amax()
    made = [quantise_nvfp4_weight(part, amax) for part in parts()]
    packed = torch.cat([part.packed for part in made])
    scale = torch.cat([part.scale.view(torch.uint8) for part in made])
    return Nvfp4Weight(packed, scale.view(torch.float8_e4m3fn), made[0].scale_2)
