"""The MoE block: router, chosen experts, shared expert (architecture.md 3.7)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from engine.model.linear import Activation, Linear, Nvfp4Linear
from engine.model.ops import Picked
from engine.model.split import Share
from engine.model.step import StepContext
from engine.protocol import RouterPath
from kernels.formats import Nvfp4Rows
from kernels.moe.reference import ExpertWeights, clamped_swiglu, experts


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
    op. bf16: the gate as stored, then the same top-k op. Hash layers (tid2eid [V, K] int32, no
    bias) look their experts up by token id and take the weights from the gate scores.
    """

    gate: Linear
    gate_nvfp4: Nvfp4Linear
    fused: Picked
    fused_gate: Any
    topk: Picked
    hashed: Picked
    bias: Tensor | None
    tid2eid: Tensor | None

    def __call__(self, act: Activation, step: StepContext) -> Routing:
        config, path = step.config, step.options.router
        sizes = {"top_k": config.top_k, "route_scale": config.route_scale}
        if self.tid2eid is not None:
            arguments = (self._logits(act, path), self.tid2eid, step.token_ids)
            return Routing(*self.hashed.run(*arguments, route_scale=config.route_scale))
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

    w1: Linear
    w3: Linear
    w2: Linear

    def __call__(self, act: Activation, step: StepContext) -> Tensor:
        hidden = clamped_swiglu(self.w1(act), self.w3(act), step.config.swiglu_limit)
        hidden = hidden.to(act.x.dtype)
        return self.w2(step.activation(hidden, "shared_w2_in"))


class Experts(Protocol):
    """All routed experts of a layer: (input, routing, step) -> [T, H] fp32."""

    size_bytes: int

    def __call__(self, act: Activation, chosen: Routing, step: StepContext) -> Tensor: ...


class InputScales(NamedTuple):
    """Stored activation scales of a layer's experts; None where the checkpoint has none.

    w13, w2: [E] fp32, of the routed ones. shared_w13, shared_w2: 0-d fp32.
    """

    w13: Tensor | None
    w2: Tensor | None
    shared_w13: Tensor | None
    shared_w2: Tensor | None


@dataclass(slots=True)
class Nvfp4Experts:
    """W4A4 experts. shared: the stack's last one is the shared expert."""

    impl: Picked
    weights: ExpertWeights
    scales: InputScales
    shared: bool
    size_bytes: int

    def __call__(self, act: Activation, chosen: Routing, step: StepContext) -> Tensor:
        ids = chosen.expert_ids
        stored = act.mode == "checkpoint"
        out: Tensor
        out, mid = self.impl.run(
            self._stored_rows(act, ids, step) if stored else act.nvfp4(),
            self.weights,
            ids,
            chosen.expert_weights,
            limit=step.config.swiglu_limit,
            quantise_mid=lambda hidden: self._quantise_mid(hidden, ids, stored, step),
            shared=self.shared,
        )
        if mid is not None:
            count = ids.shape[1]
            step.record("w2_in", _choices(mid, slice(None, count)))
            if self.shared:
                step.record("shared_w2_in", _choices(mid, slice(count, None)))
        return out

    def _stored_rows(self, act: Activation, ids: Tensor, step: StepContext) -> Nvfp4Rows:
        """The input once for each choice, by the choice's stored scale; measured where it has
        none."""
        scales, measured = self.scales, act.nvfp4()
        if scales.w13 is None and scales.shared_w13 is None:
            return measured
        live = measured.gsa.unsqueeze(1)
        count = ids.shape[1]
        gsa = live.expand(-1, count, -1) if scales.w13 is None else scales.w13[ids].unsqueeze(-1)
        if self.shared:
            own = live if scales.shared_w13 is None else scales.shared_w13.expand_as(live)
            gsa = torch.cat((gsa, own), 1)
        rows: Nvfp4Rows = step.ops.quantise(act.x.unsqueeze(1).expand(-1, gsa.shape[1], -1), gsa)
        step.record("ffn_in", _choices(rows, slice(None, count)))
        return rows

    def _quantise_mid(
        self, hidden: Tensor, ids: Tensor, stored: bool, step: StepContext
    ) -> Nvfp4Rows:
        scales, count = self.scales, ids.shape[1]
        if not stored or (scales.w2 is None and scales.shared_w2 is None):
            made: Nvfp4Rows = step.ops.quantise(hidden)
            return made
        gsa = None if scales.w2 is None else scales.w2[ids].unsqueeze(-1)
        routed: Nvfp4Rows = step.ops.quantise(hidden[:, :count], gsa)
        if not self.shared:
            return routed
        own = hidden[:, count:]
        gsa = None if scales.shared_w2 is None else scales.shared_w2.expand_as(own[..., :1])
        both = zip(routed, step.ops.quantise(own, gsa), strict=True)
        return Nvfp4Rows(*(torch.cat(pair, 1) for pair in both))


def _choices(rows: Nvfp4Rows, which: slice) -> Nvfp4Rows:
    """Some choices of rows [T, K, ...]."""
    return Nvfp4Rows(*(part[:, which] for part in rows))


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
    """Router and experts of one layer; the sum is taken in fp32.

    shared: the shared expert, where it is not one of `experts`. held: which experts `experts` has.
    """

    router: Router
    experts: Experts
    shared: SharedExpert | None
    held: Share

    def __call__(self, act: Activation, step: StepContext) -> Tensor:
        """[T, H], already normed -> [T, H] fp32."""
        chosen = self.router(act, step)
        if step.tap is not None:
            ids, weights, margin = chosen.expert_ids, chosen.expert_weights, chosen.margin
            step.tap.routing(ids[-1], weights[-1], margin[-1])
        out = self.experts(act, self._mine(chosen), step)
        if self.shared is not None:
            out = out + self.shared(act, step)
        return step.team.sum(out)

    def _mine(self, chosen: Routing) -> Routing:
        """Choices among the experts held here; those of other ranks get weight 0.

        One token reads each of its choices, so that a choice elsewhere must name some expert; many
        tokens walk over the experts and must not find it under any of them.
        """
        own, held = self.held.own, self.held.held
        if len(own) == self.held.count:
            return chosen
        ids = chosen.expert_ids
        elsewhere = (ids < own.start) | (ids >= own.stop)
        stand_in = 0 if ids.shape[0] == 1 else -1
        return Routing(
            (ids - held.start).masked_fill(elsewhere, stand_in),
            chosen.expert_weights.masked_fill(elsewhere, 0.0),
            chosen.margin,
        )


def _as_rows(x: Tensor) -> Nvfp4Rows:
    """Unquantised rows in the quantised rows' clothes: values x, gsa 1."""
    one = torch.ones_like(x[..., :1])
    none = torch.zeros_like(x[..., 0], dtype=torch.int32)
    return Nvfp4Rows(x, one, one, none, none)
