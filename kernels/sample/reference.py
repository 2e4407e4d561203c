"""Sampling in plain torch, without a host read: greedy, temperature, top-p, min-p, forced token.

Random numbers are a hash of (seed, position), not generator state: a step that is taken back and
run again draws the same number, on every device. Probabilities are integers, so that sums of them
are the same in any order: cuts and draws do not depend on how the work is split.
"""

from typing import NamedTuple

import torch
from torch import Tensor

MASS_BITS = 40  # the best id's probability mass is 2^40


class SampleSettings(NamedTuple):
    """0-d device tensors, so that changing a setting needs no new graph.

    temperature, top_p, min_p: fp64. seed: int64. forced: int64, an id to take instead, or -1.
    """

    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor
    forced: Tensor


class Sampled(NamedTuple):
    """Where a step's outcome is written.

    token: [1] int64, the id. result: [4] int64: the id; how many ids survived the cuts, 1 when
    greedy or forced; 1 if the logits were finite; the bits of the id's raw log probability as fp64.
    stats: [4] fp32 of the raw logits: max, natural logsumexp, entropy in nats, the id's logit.
    """

    token: Tensor
    result: Tensor
    stats: Tensor

    @staticmethod
    def empty(device: torch.device) -> "Sampled":
        token = torch.zeros(1, dtype=torch.int64, device=device)
        return Sampled(token, token.new_zeros(4), torch.zeros(4, device=device))


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


def sample(logits: Tensor, settings: SampleSettings, position: Tensor, out: Sampled) -> None:
    """One id from one row of logits [V] fp32; position: 0-d int64, the random number's counter.

    Temperature 0 is argmax, ties to the lowest id. Otherwise the best ids survive whose
    probability together reaches top_p (what crosses it included, equal logits together), and of
    those the ones with p >= min_p * max p; the draw walks over the survivors by id. The id of
    logits that are not finite is any id.
    """
    peak = logits.max()
    vocab = logits.shape[0]
    ids = torch.arange(vocab, device=logits.device)
    greedy = torch.where(logits == peak, ids, vocab - 1).min()

    warm = settings.temperature > 0
    one = torch.ones_like(settings.temperature)
    temperature = torch.where(warm, settings.temperature, one)
    share = torch.exp((logits.double() - peak.double()) / temperature)
    mass = (share * 2.0**MASS_BITS).round().nan_to_num().long()
    keep = logits >= _cut(logits, mass, settings.top_p)
    keep &= mass >= settings.min_p * 2.0**MASS_BITS
    reached = torch.where(keep, mass, torch.zeros_like(mass)).cumsum(0)
    target = (uniform(settings.seed, position) * reached[-1].double()).long()
    drawn = (reached <= torch.minimum(target, reached[-1] - 1)).sum().clamp(max=vocab - 1)

    forced = settings.forced >= 0
    chosen = torch.where(forced, settings.forced, torch.where(warm, drawn, greedy))
    kept = torch.where(warm & ~forced, keep.sum(), torch.ones_like(chosen))
    log_z = torch.logsumexp(logits, 0)
    entropy = log_z - (torch.exp(logits - log_z) * logits).sum()
    logit = logits.take(chosen)
    logprob = (logit - log_z).double().view(torch.int64)
    out.token.copy_(chosen)
    out.result.copy_(torch.stack((chosen, kept, logits.isfinite().all().long(), logprob)))
    out.stats.copy_(torch.stack((peak, log_z, entropy, logit)))


def _cut(logits: Tensor, mass: Tensor, top_p: Tensor) -> Tensor:
    """0-d: the lowest logit that survives top_p: the first, from the best down, with which the mass
    reaches top_p of all."""
    ordered, order = torch.sort(logits, descending=True)
    reached = mass[order].cumsum(0)
    below = (reached.double() < top_p * reached[-1].double()).sum()
    at = torch.minimum(below, torch.full_like(below, logits.shape[0] - 1))
    return torch.where(top_p >= 1, ordered[-1], ordered.take(at))
