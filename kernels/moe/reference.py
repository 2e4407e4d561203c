"""The experts of a layer in plain torch, routed and shared (architecture.md 3.7).

Expert(x): a = min(w1 x, limit), b = clamp(w3 x, -limit, limit), v = silu(a) * b * routing weight,
out = w2 v. The routing weight multiplies before w2, whose input is quantised.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.formats import Nvfp4Rows, Nvfp4Weight, nvfp4_values

Decode = Callable[[Tensor, Tensor], Tensor]
Quantise = Callable[[Tensor], Nvfp4Rows]


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """The experts of one layer in one layout.

    w13: [E, 2I, .], w1 rows first; w2: [E, H, .]: fp32 values, or bytes that `decode` expands with
    the block scales beside them. w13_scale_2: [E, 2], one for w1 and one for w3; w2_scale_2: [E].
    """

    w13: Tensor
    w2: Tensor
    w13_scale_2: Tensor
    w2_scale_2: Tensor
    decode: Decode | None = None
    w13_scale: Tensor | None = None
    w2_scale: Tensor | None = None

    def expand(self, expert: Tensor | int | slice) -> tuple[Tensor, Tensor]:
        """fp32 values of the chosen experts, without global scales: [..., 2I, H] and [..., H,
        I]."""
        if self.decode is None or self.w13_scale is None or self.w2_scale is None:
            if isinstance(expert, Tensor):  # whole rows at once, three times as fast as w13[ids]
                w13, w2 = self.w13.index_select(0, expert), self.w2.index_select(0, expert)
            else:
                w13, w2 = self.w13[expert], self.w2[expert]
            return w13.float(), w2.float()
        return (
            self.decode(self.w13[expert], self.w13_scale[expert]),
            self.decode(self.w2[expert], self.w2_scale[expert]),
        )


def prepare_packed(w13: Nvfp4Weight, w2: Nvfp4Weight) -> ExpertWeights:
    """NVFP4 stacks [E, 2I, .] (w1 rows first, scale_2 [E, 2]) and [E, H, .], as they are."""
    return ExpertWeights(
        w13.packed, w2.packed, w13.scale_2, w2.scale_2, nvfp4_values, w13.scale, w2.scale
    )


def stack(w1: Nvfp4Weight, w3: Nvfp4Weight) -> Nvfp4Weight:
    """Stacks [E, I, .] of the two projections as the one that `prepare_packed` takes."""
    return Nvfp4Weight(
        torch.cat((w1.packed, w3.packed), 1),
        torch.cat((w1.scale, w3.scale), 1),
        torch.stack((w1.scale_2, w3.scale_2), 1),
    )


def prepare_dense(w13: Nvfp4Weight, w2: Nvfp4Weight) -> ExpertWeights:
    """The same, expanded to fp32 once."""
    packed = prepare_packed(w13, w2)
    w13_values, w2_values = packed.expand(slice(None))
    return ExpertWeights(w13_values, w2_values, packed.w13_scale_2, packed.w2_scale_2)


def clamped_swiglu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    """silu(min(gate, limit)) * clamp(up, -limit, limit), fp32: only the gate's upper side is
    cut."""
    return torch.nn.functional.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)


def experts(
    rows: Nvfp4Rows,
    weights: ExpertWeights,
    expert_ids: Tensor,
    expert_weights: Tensor,
    *,
    limit: float,
    quantise_mid: Quantise,
    shared: bool = False,
) -> tuple[Tensor, Nvfp4Rows | None]:
    """Weighted sum of each token's experts.

    Args:
        rows: the layer's input, values [T, H] with one gsa for all experts, or [T, K, H] where the
            experts have scales of their own.
        expert_ids: [T, K] int64 in range. expert_weights: [T, K] fp32.
        quantise_mid: w2's input [..., I] fp32, whose last-but-one axis is the choice, -> rows.
        shared: the last expert of the stack is taken by every token too, with weight 1, as one more
            choice behind the others.

    Returns:
        [T, H] fp32, and w2's input rows for one token (None for more, where nothing records them).

    One token reads its own experts only; more tokens walk over all experts, each of which sees
    every row, with weight 0 where it was not chosen.
    """
    if shared:
        last = torch.full_like(expert_ids[:, :1], weights.w13.shape[0] - 1)
        expert_ids = torch.cat((expert_ids, last), 1)
        one = torch.ones_like(expert_weights[:, :1])
        expert_weights = torch.cat((expert_weights, one), 1)
    if expert_ids.shape[0] == 1:
        return _one_token(rows, weights, expert_ids[0], expert_weights[0], limit, quantise_mid)
    return _all_experts(rows, weights, expert_ids, expert_weights, limit, quantise_mid), None


def _one_token(
    rows: Nvfp4Rows,
    weights: ExpertWeights,
    ids: Tensor,
    mix: Tensor,
    limit: float,
    quantise_mid: Quantise,
) -> tuple[Tensor, Nvfp4Rows]:
    w13, w2 = weights.expand(ids)
    x = rows.values[0].float().unsqueeze(-1)  # [H, 1], or [K, H, 1]
    halves = (w13 @ x).squeeze(-1).unflatten(-1, (2, -1))
    halves = halves * rows.gsa[0].unsqueeze(-1) * weights.w13_scale_2[ids].unsqueeze(-1)
    hidden = clamped_swiglu(halves[:, 0], halves[:, 1], limit) * mix.unsqueeze(-1)
    mid = quantise_mid(hidden.unsqueeze(0))
    out = torch.bmm(w2, mid.values[0].float().unsqueeze(-1)).squeeze(-1)
    out = out * mid.gsa[0] * weights.w2_scale_2[ids].unsqueeze(-1)
    return out.sum(0, keepdim=True), mid


def _all_experts(
    rows: Nvfp4Rows,
    weights: ExpertWeights,
    ids: Tensor,
    mix: Tensor,
    limit: float,
    quantise_mid: Quantise,
) -> Tensor:
    out = torch.zeros(ids.shape[0], weights.w2.shape[1], device=ids.device)
    hidden = torch.zeros(*ids.shape, weights.w13.shape[1] // 2, device=ids.device)
    per_choice = rows.values.dim() == 3
    entered = rows.values.float()
    for expert in range(weights.w13.shape[0]):
        chosen = ids == expert
        values, gsa = entered, rows.gsa
        if per_choice:
            values = (values * chosen.unsqueeze(-1)).sum(1)
            gsa = (gsa * chosen.unsqueeze(-1)).sum(1)
        w13, _ = weights.expand(expert)
        halves = (values @ w13.T).unflatten(-1, (2, -1))
        halves = halves * gsa.unsqueeze(-1) * weights.w13_scale_2[expert].unsqueeze(-1)
        share = (mix * chosen).sum(-1, keepdim=True)
        made = clamped_swiglu(halves[:, 0], halves[:, 1], limit) * share
        hidden = torch.where(chosen.unsqueeze(-1), made.unsqueeze(1), hidden)
    mid = quantise_mid(hidden)
    middle = mid.values.float()
    for expert in range(weights.w13.shape[0]):
        chosen = (ids == expert).unsqueeze(-1)
        values, gsa = (middle * chosen).sum(1), (mid.gsa * chosen).sum(1)
        _, w2 = weights.expand(expert)
        out += (values @ w2.T) * gsa * weights.w2_scale_2[expert]
    return out
