"""The MoE block: router, chosen experts, shared expert (architecture.md 3.7)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from engine.model.linear import Activation, Linear, Nvfp4Linear
from engine.model.ops import Picked
from engine.model.step import StepContext
from engine.protocol import RouterPath
from kernels.formats import Nvfp4Rows
from kernels.moe.reference import ExpertWeights, clamped_swiglu, experts
from kernels.router import reference as routing


@dataclass(slots=True)
class Routing:
    """expert_ids [T, K] int64, expert_weights [T, K] fp32, margin [T] fp32."""

    expert_ids: Tensor
    expert_weights: Tensor
    margin: Tensor


@dataclass(slots=True)
class Router:
    """The gate in both precisions, and three ways from it to experts.

    fused: one op from quantised rows to experts. two-kernel: the NVFP4 gate linear, then the top-k
    op. bf16: the gate as stored, then the same top-k op. Hash layers (tid2eid [V, K] int64, no
    bias) look their experts up by token id and take the weights from the gate scores.
    """

    layer: int
    gate: Linear
    gate_nvfp4: Nvfp4Linear
    fused: Picked
    fused_gate: Any
    topk: Picked
    bias: Tensor | None
    tid2eid: Tensor | None

    def __call__(self, act: Activation, step: StepContext) -> Routing:
        config, path = step.config, step.options.router
        sizes = {"top_k": config.top_k, "route_scale": config.route_scale}
        if self.tid2eid is not None:
            score = routing.scores(self._logits(act, path))
            ids = self.tid2eid[step.token_ids].long()
            weights = routing.mixing_weights(score, ids, config.route_scale)
            return Routing(ids, weights, torch.full_like(weights[:, 0], float("inf")))
        assert self.bias is not None
        if path == "fused":
            rows = act.nvfp4(self.gate_nvfp4.input_scale)
            return Routing(*self.fused.run(rows, self.fused_gate, self.bias, **sizes))
        return Routing(*self.topk.run(self._logits(act, path), self.bias, **sizes))

    def _logits(self, act: Activation, path: RouterPath) -> Tensor:
        return self.gate(act) if path == "bf16" else self.gate_nvfp4(act)


@dataclass(slots=True)
class SharedExpert:
    """The expert every token takes, with weight 1; the same clamp as the routed ones."""

    layer: int
    w1: Linear
    w3: Linear
    w2: Linear

    def __call__(self, act: Activation, step: StepContext) -> Tensor:
        hidden = clamped_swiglu(self.w1(act), self.w3(act), step.config.swiglu_limit)
        hidden = hidden.to(act.x.dtype)
        return self.w2(step.activation(hidden, self.layer, "shared_w2_in"))


class Experts(Protocol):
    """All routed experts of a layer: (input, routing, step) -> [T, H] fp32."""

    size_bytes: int

    def __call__(self, act: Activation, chosen: Routing, step: StepContext) -> Tensor: ...


@dataclass(slots=True)
class Nvfp4Experts:
    """W4A4 experts. w13_input_scale, w2_input_scale: [E] fp32 stored activation scales, or None."""

    layer: int
    impl: Picked
    weights: ExpertWeights
    w13_input_scale: Tensor | None
    w2_input_scale: Tensor | None
    size_bytes: int

    def __call__(self, act: Activation, chosen: Routing, step: StepContext) -> Tensor:
        ids = chosen.expert_ids
        stored = act.mode == "checkpoint"
        if stored and self.w13_input_scale is not None:
            per_choice = act.x.unsqueeze(1).expand(-1, ids.shape[1], -1)
            rows = step.ops.quantise(per_choice, self.w13_input_scale[ids].unsqueeze(-1))
            step.record(self.layer, "ffn_in", rows)
        else:
            rows = act.nvfp4()
        mid_gsa = None
        if stored and self.w2_input_scale is not None:
            mid_gsa = self.w2_input_scale[ids].unsqueeze(-1)
        out: Tensor
        out, mid = self.impl.run(
            rows,
            self.weights,
            ids,
            chosen.expert_weights,
            limit=step.config.swiglu_limit,
            quantise_mid=lambda hidden: step.ops.quantise(hidden, mid_gsa),
        )
        if mid is not None:
            step.record(self.layer, "w2_in", mid)
        return out


@dataclass(slots=True)
class PlainExperts:
    """Experts in another format than NVFP4; `enter` is what their linears do to an input first:
    nothing for float weights, the FP8 round trip for FP8 and MXFP4 ones."""

    weights: ExpertWeights
    enter: Callable[[Tensor], Tensor]
    size_bytes: int

    def __call__(self, act: Activation, chosen: Routing, step: StepContext) -> Tensor:
        out, _ = experts(
            _as_rows(self.enter(act.x.float())),
            self.weights,
            chosen.expert_ids,
            chosen.expert_weights,
            limit=step.config.swiglu_limit,
            quantise_mid=lambda hidden: _as_rows(self.enter(hidden)),
        )
        return out


@dataclass(slots=True)
class Nvfp4MoE:
    """Router, routed experts and shared expert of one layer; the sum is taken in fp32."""

    layer: int
    router: Router
    experts: Experts
    shared: SharedExpert

    def __call__(self, g: Tensor, step: StepContext) -> Tensor:
        """g [T, H], already normed -> [T, H] fp32."""
        act = step.activation(g, self.layer, "ffn_in")
        chosen = self.router(act, step)
        if step.tap is not None:
            step.tap.write("expert_ids", chosen.expert_ids[-1], self.layer)
            step.tap.write("expert_weights", chosen.expert_weights[-1], self.layer)
            step.tap.write("router_margin", chosen.margin[-1], self.layer)
        return self.experts(act, chosen, step) + self.shared(act, step)


def _as_rows(x: Tensor) -> Nvfp4Rows:
    """Unquantised rows in the quantised rows' clothes: values x, gsa 1."""
    one = torch.ones_like(x[..., :1])
    none = torch.zeros_like(x[..., 0], dtype=torch.int32)
    return Nvfp4Rows(x, one, one, none, none)
