"""The ops of a step, resolved once for a device when the model is built."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from engine.errors import EngineError
from engine.protocol import PlanRow
from kernels import attention, compressor, indexer, quantise, residual, sample
from kernels.dispatch import Impl, Op, Refusal, select

Run = Callable[..., Any]


class Plan:
    """Picks implementations and remembers what was picked, and why."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.rows: dict[str, PlanRow] = {}

    def pick(self, op: Op) -> Impl:
        """Raises EngineError where nothing runs here."""
        chosen = select(op, self.device)
        if isinstance(chosen, Refusal):
            raise EngineError(chosen.reason)
        reason = f"first that runs on {self.device.type}"
        self.rows.setdefault(op.name, PlanRow(op.name, chosen.name, reason))
        return chosen


@dataclass(frozen=True, slots=True)
class Ops:
    """The ops without weights of their own; their signatures are the references'."""

    quantise: Run
    boundary: Run
    head_boundary: Run
    attention_inputs: Run
    attend: Run
    compress: Run
    choose_blocks: Run
    sample: Run

    @staticmethod
    def resolve(plan: Plan) -> "Ops":
        return Ops(
            quantise=plan.pick(quantise.OP).run,
            boundary=plan.pick(residual.BOUNDARY_OP).run,
            head_boundary=plan.pick(residual.HEAD_OP).run,
            attention_inputs=plan.pick(attention.INPUTS_OP).run,
            attend=plan.pick(attention.ATTEND_OP).run,
            compress=plan.pick(compressor.OP).run,
            choose_blocks=plan.pick(indexer.OP).run,
            sample=plan.pick(sample.OP).run,
        )
