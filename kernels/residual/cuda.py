"""Launches `cute_boundary` for up to 8 tokens in bf16; other shapes run in torch."""

import torch
from torch import Tensor

from kernels.compiled import KernelLibrary
from kernels.formats import Nvfp4Rows
from kernels.residual import reference
from kernels.residual.reference import HyperMix, HyperSite

MAX_TOKENS = 8
CHANNELS = 64


def boundary(
    library: KernelLibrary,
    streams: Tensor,
    y: Tensor | None,
    mix: HyperMix | None,
    site: HyperSite,
    norm: Tensor,
    *,
    iterations: int,
    eps: float,
    norm_eps: float,
) -> tuple[Tensor, HyperMix, Tensor, Nvfp4Rows | None]:
    """As `reference.boundary`. Capture-safe."""
    if not _fits(streams):
        return reference.boundary(
            streams, y, mix, site, norm, iterations=iterations, eps=eps, norm_eps=norm_eps
        )
    tokens, count, _ = streams.shape
    post = torch.empty(tokens, count, device=streams.device)
    comb = torch.empty(tokens, count, count, device=streams.device)
    made, h, rows = _launch(
        library, streams, y, mix, site, norm, post, comb, eps, norm_eps, iterations, False
    )
    # The mix of the kernel keeps `pre` to itself: nothing after it needs it.
    return made, HyperMix(post, post, comb), h, rows


def head_boundary(
    library: KernelLibrary,
    streams: Tensor,
    y: Tensor,
    mix: HyperMix,
    site: HyperSite,
    norm: Tensor,
    *,
    eps: float,
    norm_eps: float,
) -> tuple[Tensor, Tensor, Nvfp4Rows | None]:
    """As `reference.head_boundary`. Capture-safe."""
    if not _fits(streams):
        return reference.head_boundary(streams, y, mix, site, norm, eps=eps, norm_eps=norm_eps)
    unused = mix.post
    return _launch(library, streams, y, mix, site, norm, unused, unused, eps, norm_eps, 1, True)


def _fits(streams: Tensor) -> bool:
    tokens, count, hidden = streams.shape
    shape = count in (2, 4) and hidden % (CHANNELS * count) == 0
    return streams.dtype == torch.bfloat16 and tokens <= MAX_TOKENS and shape


def _launch(
    library: KernelLibrary,
    streams: Tensor,
    y: Tensor | None,
    mix: HyperMix | None,
    site: HyperSite,
    norm: Tensor,
    post: Tensor,
    comb: Tensor,
    eps: float,
    norm_eps: float,
    iterations: int,
    is_head: bool,
) -> tuple[Tensor, Tensor, Nvfp4Rows]:
    tokens, count, hidden = streams.shape
    streams, device = streams.contiguous(), streams.device
    made = torch.empty_like(streams)
    h = torch.empty(tokens, hidden, dtype=streams.dtype, device=device)
    values = torch.empty_like(h)
    gsa = torch.empty(tokens, 1, device=device)
    flushed = torch.empty(tokens, dtype=torch.int32, device=device)
    mixes, slices = site.fn.shape[0], hidden // CHANNELS
    parts = torch.empty(tokens, slices, mixes + 1, device=device)
    kernel = library.get(
        "kernels.residual.cute_boundary",
        hidden=hidden,
        count=count,
        iterations=iterations,
        expand=y is not None,
        is_head=is_head,
    )
    arguments = (
        streams,
        streams if y is None else y,
        post if mix is None else mix.post,
        comb if mix is None else mix.comb,
        site.fn,
        site.base,
        site.scale,
        norm,
        made,
        post,
        comb,
        h,
        values,
        gsa,
        flushed,
        parts,
        library.counters(device),
        float(eps),
        float(norm_eps),
    )
    threads = CHANNELS * count
    floats = (mixes + 1) * (threads // 32 + 2) + count + 3 * threads // 32
    kernel.launch((slices, tokens, 1), threads + 32, floats * 4 + 96, arguments)
    # A measured gsa covers the row: nothing saturates.
    none = library.zero(device).expand(tokens)
    return made, h, Nvfp4Rows(values, gsa, gsa, none, flushed)
