"""Routing in plain torch (architecture.md 3.7): activation and top-k in six steps.

softplus, square root, bias, top-k, normalise, scale. The bias moves the selection only.
"""

import torch
from torch import Tensor

from kernels.formats import Nvfp4Rows, Nvfp4Weight, nvfp4_values
from kernels.linear.dense import DenseWeight

_LARGEST_SCORE = 1e18  # keeps the sum over the chosen experts finite for an infinite logit
_UNRANKED = 1e30  # the rank of a NaN logit is minus this: below every other, above a taken lane


def scores(logits: Tensor) -> Tensor:
    """sqrt(softplus(logit)) in fp32, finite for every input; NaN scores 0.

    Far below zero softplus(x) is exp(x), whose root exp(x/2) underflows much later than exp(x).
    """
    logits = logits.float()
    rooted = torch.where(
        logits < -16.0, torch.exp(logits * 0.5), torch.nn.functional.softplus(logits).sqrt()
    )
    return rooted.nan_to_num(nan=0.0, posinf=_LARGEST_SCORE).clamp_(max=_LARGEST_SCORE)


def route(
    logits: Tensor, bias: Tensor, *, top_k: int, route_scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Choose experts by score + bias, weigh them by score alone.

    Args:
        logits: [T, E] fp32. bias: [E] fp32. top_k: K < E.

    Returns:
        expert_ids [T, K] int64, distinct, in rank order, equal ranks to the lower id;
        expert_weights [T, K] fp32, summing to route_scale;
        margin [T] fp32, rank K minus rank K+1.

    A NaN logit ranks last. Rows whose chosen scores are all 0 get equal weights.
    """
    score = scores(logits)
    ranked = torch.where(logits.isnan(), -_UNRANKED, (score + bias).clamp(-_UNRANKED, _UNRANKED))
    ordered, ids = torch.sort(ranked, dim=-1, descending=True, stable=True)
    ids = ids[:, :top_k].contiguous()
    margin = ordered[:, top_k - 1] - ordered[:, top_k]
    return ids, mixing_weights(score, ids, route_scale), margin


def mixing_weights(score: Tensor, ids: Tensor, route_scale: float) -> Tensor:
    """Weights [T, K] of experts chosen elsewhere: score / sum of chosen *
    route_scale."""
    chosen = score.gather(1, ids)
    total = chosen.sum(-1, keepdim=True)
    even = torch.full_like(chosen, 1.0 / ids.shape[1])
    return torch.where(total > 0, chosen / total, even) * route_scale


def hash_route(
    logits: Tensor, table: Tensor, token_ids: Tensor, *, route_scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Experts by token id from table [V, K] int32, weighed by their scores; as `route`, the margin
    is inf."""
    ids = table[token_ids].long()
    weights = mixing_weights(scores(logits), ids, route_scale)
    return ids, weights, torch.full_like(weights[:, 0], float("inf"))


def fused_route(
    rows: Nvfp4Rows,
    gate: DenseWeight | Nvfp4Weight,
    bias: Tensor,
    *,
    top_k: int,
    route_scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gate GEMV and routing in one, by K rounds of arg-max as the kernel does it: the same choice
    as `route(nvfp4_linear(rows, gate), bias)`, found another way.

    A round picks the first of the largest ranks still open, so the ids stay distinct in any row.
    """
    values = gate.values if isinstance(gate, DenseWeight) else nvfp4_values(gate.packed, gate.scale)
    logits = (rows.values.float() @ values.T) * (rows.gsa * gate.scale_2)
    score = scores(logits)
    ranked = torch.where(logits.isnan(), -_UNRANKED, (score + bias).clamp(-_UNRANKED, _UNRANKED))
    lanes = torch.arange(ranked.shape[1], device=ranked.device)
    ids, ranks = [], []
    for _ in range(top_k + 1):
        peak = ranked.amax(-1, keepdim=True)
        winner = torch.where(ranked == peak, lanes, ranked.shape[1]).amin(-1, keepdim=True)
        ids.append(winner)
        ranks.append(peak)
        ranked = torch.where(lanes == winner, float("-inf"), ranked)
    chosen = torch.cat(ids[:top_k], -1)
    margin = (ranks[top_k - 1] - ranks[top_k]).squeeze(-1)
    return chosen, mixing_weights(score, chosen, route_scale), margin
