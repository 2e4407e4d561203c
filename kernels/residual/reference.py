"""RMSNorm, rotary embedding and hyper-connections in plain torch (architecture.md 2, 3.2, 3.8).

All of it runs in fp32; results that replace an activation return to the activation's dtype.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor


class HyperMix(NamedTuple):
    """What a hyper-connection site mixes with: pre [T, S], post [T, S], comb [T, S, S], fp32."""

    pre: Tensor
    post: Tensor
    comb: Tensor


class HyperSite(NamedTuple):
    """Parameters of a site, fp32: fn [M, S*H], base [M], scale [3], with M = 2S + S*S; at the head
    M = S and scale is [1]."""

    fn: Tensor
    base: Tensor
    scale: Tensor


def boundary(
    streams: Tensor,
    y: Tensor | None,
    mix: HyperMix | None,
    site: HyperSite,
    norm: Tensor,
    *,
    iterations: int,
    eps: float,
    norm_eps: float,
) -> tuple[Tensor, HyperMix, Tensor, None]:
    """What stands between two sublayers: put the last one's output into the streams, then make the
    next one's input from them.

    Args:
        streams: [T, S, H]. y: [T, H] output of the sublayer before and its mix; None before the
        first. site, norm: of the sublayer after.

    Returns:
        the new streams, the next sublayer's mix, its normed input [T, H] in the streams' dtype, and
        that input quantised to NVFP4 where an implementation makes it on the way, else None.
    """
    if y is not None and mix is not None:
        streams = hyper_expand(streams, y.to(streams.dtype), mix)
    mix = hyper_mix(streams, site, iterations=iterations, eps=eps, norm_eps=norm_eps)
    return streams, mix, rms_norm(hyper_collapse(streams, mix.pre), norm, norm_eps), None


def head_boundary(
    streams: Tensor,
    y: Tensor,
    mix: HyperMix,
    site: HyperSite,
    norm: Tensor,
    *,
    eps: float,
    norm_eps: float,
) -> tuple[Tensor, Tensor, None]:
    """After the last sublayer: the final streams and the head's normed input [T, H]; and None, as
    `boundary`."""
    streams = hyper_expand(streams, y.to(streams.dtype), mix)
    mixes = _stream_dot(streams, site.fn, norm_eps)
    collapsed = hyper_collapse(streams, torch.sigmoid(mixes * site.scale + site.base) + eps)
    return streams, rms_norm(collapsed, norm, norm_eps), None


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """weight * x / rms(x) over the last axis; the multiply happens before the cast back to
    x.dtype."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        wide = wide * weight
    return wide.to(x.dtype)


def rope_frequencies(dims: int, base: float) -> Tensor:
    """[dims/2] fp32 angles per position: base^(-2i/dims)."""
    return _powers(dims, base).float()


def yarn_frequencies(
    dims: int,
    base: float,
    *,
    factor: float,
    beta_fast: float,
    beta_slow: float,
    original_context: int,
) -> Tensor:
    """[dims/2] fp32 with YaRN: slow pairs divided by factor, a ramp between, no attention factor
    (architecture.md 2)."""

    def pair_of(rotations: float) -> float:
        turns = math.log(original_context / (rotations * 2 * math.pi))
        return dims * turns / (2 * math.log(base))

    low = max(math.floor(pair_of(beta_fast)), 0)
    high = min(math.ceil(pair_of(beta_slow)), dims - 1)
    ramp = (torch.arange(dims // 2, dtype=torch.float64) - low) / max(high - low, 1e-3)
    ramp = ramp.clamp(0, 1)
    plain = _powers(dims, base)
    return (plain * (1 - ramp) + plain / factor * ramp).float()


def _powers(dims: int, base: float) -> Tensor:
    return base ** -(torch.arange(0, dims, 2, dtype=torch.float64) / dims)


def rope_phases(positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin, each [T, dims/2] fp32, of position * frequency. Phases stay in fp32: bf16 is
    coarse."""
    angles = positions.float()[:, None] * frequencies
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, inverse: bool = False) -> Tensor:
    """Rotate the LAST dims of x by interleaved pairs (2i, 2i+1); the rest passes through.

    Args:
        x: [T, ..., D]. cos, sin: [T, r/2]; the last r of D rotate, pair i by phase i.
        inverse: multiply by the conjugate instead.
    """
    dims = 2 * cos.shape[-1]
    shape = (cos.shape[0],) + (1,) * (x.dim() - 2) + (cos.shape[-1],)
    cos, sin = cos.view(shape), sin.view(shape)
    if inverse:
        sin = -sin
    tail = x[..., -dims:].float().unflatten(-1, (-1, 2))
    even, odd = tail[..., 0], tail[..., 1]
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)
    return torch.cat((x[..., :-dims], turned.to(x.dtype)), -1)


def hyper_mix(
    streams: Tensor, site: HyperSite, *, iterations: int, eps: float, norm_eps: float
) -> HyperMix:
    """The mixes of one site from the streams [T, S, H] before its sublayer (architecture.md 3.2).

    iterations: Sinkhorn rounds, the first (softmax + columns) included.
    """
    count, (base, scale) = streams.shape[1], (site.base, site.scale)
    mixes = _stream_dot(streams, site.fn, norm_eps)
    pre = torch.sigmoid(mixes[:, :count] * scale[0] + base[:count]) + eps
    post = 2 * torch.sigmoid(mixes[:, count : 2 * count] * scale[1] + base[count : 2 * count])
    logits = mixes[:, 2 * count :] * scale[2] + base[2 * count :]
    return HyperMix(pre, post, sinkhorn(logits.view(-1, count, count), iterations, eps))


def sinkhorn(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """[T, S, S] -> nearly doubly stochastic: row softmax + eps, columns, then rows and columns."""
    floor = logits.new_full((), eps)  # a tensor once: a Python number costs a conversion each time
    comb = torch.softmax(logits, -1) + floor
    comb = comb / (comb.sum(-2, keepdim=True) + floor)
    for _ in range(iterations - 1):
        comb = comb / (comb.sum(-1, keepdim=True) + floor)
        comb = comb / (comb.sum(-2, keepdim=True) + floor)
    return comb


def hyper_collapse(streams: Tensor, pre: Tensor) -> Tensor:
    """[T, S, H] -> [T, H]: sum of streams weighted by pre, in the streams' dtype."""
    return torch.bmm(pre.unsqueeze(1), streams.float()).squeeze(1).to(streams.dtype)


def hyper_expand(streams: Tensor, y: Tensor, mix: HyperMix) -> Tensor:
    """X'[k] = post_k * y + sum_j comb[j, k] X[j]: the sum runs over the FIRST index of comb."""
    kept = torch.bmm(mix.comb.transpose(1, 2), streams.float())
    return torch.addcmul(kept, mix.post.unsqueeze(-1), y.float().unsqueeze(1)).to(streams.dtype)


def _stream_dot(streams: Tensor, fn: Tensor, norm_eps: float) -> Tensor:
    flat = streams.flatten(1).float()
    return (flat @ fn.T) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + norm_eps)
