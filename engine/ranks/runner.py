"""The first rank's runner: a Runner that tells the followers what it is about to do."""

from collections.abc import Callable, Sequence

import torch

from engine.model.transformer import Transformer
from engine.protocol import Sampling, StepOptions
from engine.ranks.messages import (
    Begin,
    Collect,
    Discard,
    Order,
    Prefill,
    Rewind,
    Snapshot,
    Start,
)
from engine.runner import PREFILL_CHUNK, Runner, StepResult
from engine.state import RingSnapshot


class LeadRunner(Runner):
    """Every call is told before it is made: made first, it would wait for ranks that know nothing
    of it."""

    def __init__(
        self,
        model: Transformer,
        context: int,
        device: torch.device,
        tell: Callable[[Order], None],
    ) -> None:
        super().__init__(model, context, device)
        self._tell = tell

    def rewind(self, length: int, snapshots: Sequence[RingSnapshot]) -> int:
        self._tell(Rewind(length, [shot.position for shot in snapshots]))
        return super().rewind(length, snapshots)

    def snapshot(self) -> RingSnapshot:
        self._tell(Snapshot())
        return super().snapshot()

    def prefill(
        self, ids: Sequence[int], options: StepOptions, go_on: Callable[[int], bool]
    ) -> bool:
        for start in range(0, len(ids), PREFILL_CHUNK):
            chunk = list(ids[start : start + PREFILL_CHUNK])
            self._tell(Prefill(chunk, options))
            super().prefill(chunk, options, _go_on)
            if not go_on(start + len(chunk)):
                return start + len(chunk) == len(ids)
        return True

    def begin(self, token_id: int, sampling: Sampling, seed: int) -> None:
        self._tell(Begin(token_id, sampling, seed))
        super().begin(token_id, sampling, seed)

    def start(self, options: StepOptions, forced: int = -1) -> None:
        self._tell(Start(options, forced))
        super().start(options, forced)

    def collect(self) -> StepResult:
        self._tell(Collect())
        return super().collect()

    def discard(self, *, always: bool = False) -> None:
        if self.unread or always:
            self._tell(Discard(always))
        super().discard(always=always)


def _go_on(done: int) -> bool:
    return True
