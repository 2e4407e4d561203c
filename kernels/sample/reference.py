"""Sampling in plain torch, without a host read: greedy, temperature, top-p, min-p, forced token.

Random numbers are a hash of (seed, position), not generator state: a step that is taken back and
run again draws the same number, on every device.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class SampleSettings(NamedTuple):
    """0-d device tensors, so that changing a setting needs no new graph.

    temperature, top_p, min_p: fp64. seed: int64. forced: int64, an id to take instead, or -1.
    """

    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor
    forced: Tensor


def uniform(seed: Tensor, counter: Tensor) -> Tensor:
    """0-d fp64 in [0, 1) from two int64: the splitmix64 finaliser over a counter sequence."""
    z = seed * -7046029254386353131 + counter * -4658895280553007687 + 1442695040888963407
    z = (z ^ _shift(z, 30)) * -4658895280553007687
    z = (z ^ _shift(z, 27)) * -7723592293110705685
    z = z ^ _shift(z, 31)
    return _shift(z, 11).double() * 2.0**-53


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def sample(logits: Tensor, settings: SampleSettings, position: Tensor) -> tuple[Tensor, Tensor]:
    """One id from one row of logits.

    Temperature 0 is argmax, ties to the lowest id. Otherwise the ids that survive are the smallest
    set of best ids whose probability reaches top_p (the id that crosses it included) and, of those,
    the ones with p >= min_p * max p; the best id always survives.

    Args:
        logits: [V] fp32, finite. position: 0-d int64, the counter of the random number.

    Returns:
        id: 0-d int64; kept: 0-d int64, how many ids survived (1 when greedy or forced).
    """
    peak = logits.max()
    vocab = logits.shape[0]
    ids = torch.arange(vocab, device=logits.device)
    greedy = torch.where(logits == peak, ids, vocab - 1).min()

    warm = settings.temperature > 0
    temperature = torch.where(warm, settings.temperature, torch.ones_like(settings.temperature))
    ordered, order = torch.sort(logits, descending=True, stable=True)
    mass = torch.exp((ordered.double() - peak.double()) / temperature)
    mass = mass / mass.sum()
    reached = mass.cumsum(0)
    keep = (reached - mass < settings.top_p) | (settings.top_p >= 1)
    keep &= mass >= settings.min_p * mass[0]
    keep[:1].fill_(True)
    reached = torch.where(keep, mass, torch.zeros_like(mass)).cumsum(0)
    target = uniform(settings.seed, position) * reached[-1]
    kept = keep.sum()
    drawn = order.take(torch.minimum((reached <= target).sum(), kept - 1))

    chosen = torch.where(warm, drawn, greedy)
    forced = settings.forced >= 0
    one = torch.ones_like(kept)
    kept = torch.where(warm & ~forced, kept, one)
    return torch.where(forced, settings.forced, chosen), kept
