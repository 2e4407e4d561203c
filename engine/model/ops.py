"""The ops of a step, resolved once for a device when the model is built."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from engine.errors import EngineError
from engine.protocol import PlanRow
from kernels import attention, compressor, indexer, linear, quantise, residual, sample, tap
from kernels.compiled import KernelLibrary
from kernels.dispatch import EXPANDED, Op, Refusal, select

Run = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Picked:
    """An implementation ready to call. prepare: its weight layout, where the op has weights."""

    run: Run
    prepare: Run


class Plan:
    """Picks implementations and remembers what was picked, and why.

    library: the compiled kernels of the device; None where there are none. compact: weights stay
    packed where an implementation would expand them.
    """

    def __init__(
        self, device: torch.device, library: KernelLibrary | None, compact: bool = False
    ) -> None:
        self.device = device
        self._compact = compact
        self.library = library
        self.rows: dict[str, PlanRow] = {}

    def pick(self, op: Op) -> Picked:
        """Raises EngineError where nothing runs here."""
        if self._compact:
            op = Op(op.name, tuple(impl for impl in op.impls if impl.name != EXPANDED))
        chosen = select(op, self.device)
        if isinstance(chosen, Refusal):
            raise EngineError(chosen.reason)
        reason = f"first that runs on {self.device.type}"
        self.rows.setdefault(op.name, PlanRow(op.name, chosen.name, reason))
        return Picked(chosen.bind(self.library), chosen.prepare or _no_weights)


def _no_weights(*stored: Any) -> Any:
    raise TypeError("this op has no weights to prepare")


@dataclass(frozen=True, slots=True)
class Ops:
    """The ops without weights of their own; their signatures are the references'."""

    quantise: Run
    round_rows: Run
    dense: Run
    boundary: Run
    head_boundary: Run
    attention_inputs: Run
    attend: Run
    compress: Run
    choose_blocks: Run
    sample: Run
    record_layer: Run
    record_logits: Run

    @staticmethod
    def resolve(plan: Plan) -> "Ops":
        return Ops(
            quantise=plan.pick(quantise.OP).run,
            round_rows=plan.pick(quantise.ROUND_OP).run,
            dense=plan.pick(linear.DENSE_OP).run,
            boundary=plan.pick(residual.BOUNDARY_OP).run,
            head_boundary=plan.pick(residual.HEAD_OP).run,
            attention_inputs=plan.pick(attention.INPUTS_OP).run,
            attend=plan.pick(attention.ATTEND_OP).run,
            compress=plan.pick(compressor.OP).run,
            choose_blocks=plan.pick(indexer.OP).run,
            sample=plan.pick(sample.OP).run,
            record_layer=plan.pick(tap.LAYER_OP).run,
            record_logits=plan.pick(tap.LOGITS_OP).run,
        )
