"""Launches `cute_compress` for up to 8 tokens into bf16 caches; other shapes run in torch."""

import torch
from torch import Tensor

from kernels.compiled import KernelLibrary
from kernels.compressor import reference
from kernels.compressor.reference import Rounding

MAX_TOKENS = 8


def compress(
    library: KernelLibrary,
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
    """As `reference.compress`. Capture-safe."""
    dim, rope = blocks.shape[1], 2 * frequencies.shape[0]
    aligned = dim % 64 == 0 and dim <= 1024 and (rounding != "kv" or (dim - rope) % 64 == 0)
    if kv.shape[0] > MAX_TOKENS or blocks.dtype != torch.bfloat16 or not aligned:
        reference.compress(
            kv,
            gate,
            ape,
            norm,
            ring_kv,
            ring_score,
            blocks,
            position,
            frequencies,
            ratio=ratio,
            overlap=overlap,
            rounding=rounding,
            eps=eps,
        )
        return
    kernel = library.get(
        "kernels.compressor.cute_compress",
        tokens=kv.shape[0],
        dim=dim,
        rope=rope,
        ratio=ratio,
        overlap=overlap,
        rounding=rounding,
        ring_rows=ring_kv.shape[0],
    )
    arguments = (
        kv.contiguous(),
        gate.contiguous(),
        ape,
        norm,
        ring_kv,
        ring_score,
        blocks,
        position,
        frequencies,
        float(eps),
    )
    kernel.launch((1, 1, 1), dim, (dim + dim // 32) * 4 + 32, arguments)
