"""Runs the step function over one sequence: prefill in chunks, then one token at a time.

The step reads its token, position, sampler settings and random counter from device buffers and
leaves its result in one; the host looks at the result only after the step.
"""

import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.decode import DecodeStep
from engine.errors import NumericsError
from engine.graphs import StepGraphs
from engine.model.config import ModelConfig
from engine.model.transformer import Transformer
from engine.protocol import Sampling, StepOptions
from engine.state import LOOKAHEAD, RingSnapshot, SequenceState
from engine.telemetry import TapLayout, TapRecord
from kernels.formats import NVFP4_BLOCK
from kernels.linear.cuda import MAX_ROWS

PREFILL_CHUNK = 128


@dataclass(frozen=True, slots=True)
class StepResult:
    """One sampled token. logprob: natural log, raw distribution. record: tap record or None."""

    token_id: int
    logprob: float
    options: StepOptions
    record: bytes | None


def tap_layout(config: ModelConfig) -> TapLayout:
    """The record of a model: 16-blocks of one quantised row at each site, all rows of a token
    added."""
    heads = config.num_heads * config.head_dim
    widths = {
        "attn_in": config.hidden_size,
        "q_latent": config.q_lora_rank,
        "o_a_in": heads,
        "o_b_in": config.o_groups * config.o_lora_rank,
        "ffn_in": config.hidden_size,
        "w2_in": config.top_k * config.expert_size,
        "shared_w2_in": config.expert_size,
        "head_in": config.hidden_size,
    }
    return TapLayout(
        layers=config.num_layers,
        top_k=config.top_k,
        streams=config.streams,
        blocks=tuple(width // NVFP4_BLOCK for width in widths.values()),
        sites=tuple(widths),
        top_n=min(20, config.vocab_size),
    )


class _Slot:
    """Where one step's result lands on the host."""

    def __init__(self, words: int, pinned: bool) -> None:
        self.result = torch.zeros(4, dtype=torch.int64, pin_memory=pinned)
        self.record = torch.zeros(words, dtype=torch.int32, pin_memory=pinned)
        self.done = torch.cuda.Event() if pinned else None


class Runner:
    """One model, one sequence state.

    Attributes:
        ids: tokens whose effect is in the state, from position 0.
        lookahead: how many steps to keep started beyond the one whose result is read.
        graphs: the captured steps, on CUDA; None elsewhere.
    """

    def __init__(self, model: Transformer, context: int, device: torch.device) -> None:
        self.model = model
        self.context = context
        self.device = device
        self.layout = tap_layout(model.config)
        self.state = SequenceState(model.config, context, device, model.dtype)
        self.ids: list[int] = []
        on_gpu = device.type == "cuda"
        self.lookahead = 1 if on_gpu else 0
        self.decode = DecodeStep(model, self.state, self.layout, device)
        self.graphs = StepGraphs(self.decode) if on_gpu else None
        self._slots = [_Slot(self.layout.words, on_gpu) for _ in range(self.lookahead + 1)]
        self._started: deque[tuple[StepOptions, _Slot]] = deque()
        self._fed = 0

    # ---- going back ------------------------------------------------------------------------------

    def rewind(self, length: int, snapshots: Sequence[RingSnapshot]) -> int:
        """Go back so that the state holds at most the first `length` ids; returns how many it
        holds.

        A few tokens back is exact in place; further back needs a snapshot at or below `length`,
        else the sequence starts over.
        """
        self.discard()
        if len(self.ids) - length > LOOKAHEAD - self.lookahead:
            usable = [shot for shot in snapshots if shot.position <= length]
            best = max(usable, key=lambda shot: shot.position, default=None)
            if best is None:
                length = 0
            else:
                self.state.restore(best)
                length = best.position
        length = min(length, len(self.ids))
        del self.ids[length:]
        self.state.position.fill_(length)
        return length

    def snapshot(self) -> RingSnapshot:
        return self.state.snapshot(len(self.ids))

    # ---- going forward ---------------------------------------------------------------------------

    @torch.inference_mode()
    def prefill(
        self, ids: Sequence[int], options: StepOptions, go_on: Callable[[int], bool]
    ) -> bool:
        """Take ids into the state, chunk by chunk.

        Args:
            go_on: called after each chunk with the number of ids taken; False stops there.

        Returns:
            whether all of them were taken.
        """
        done = 0
        while done < len(ids):
            left = len(ids) - done
            # The compiled kernels are made for one row: a short tail goes token by token.
            size = 1 if self.graphs is not None and left <= MAX_ROWS else min(left, PREFILL_CHUNK)
            chunk = list(ids[done : done + size])
            tokens = torch.tensor(chunk, dtype=torch.int64, device=self.device)
            self.model(tokens, self.state, options, with_logits=False)
            self.ids += chunk
            done += size
            if not go_on(done):
                return done == len(ids)
        return True

    @torch.inference_mode()
    def begin(self, token_id: int, sampling: Sampling, seed: int) -> None:
        """Set what the next step reads: its input token and the sampler settings."""
        self.discard()
        self._fed = token_id
        self.decode.begin(token_id, sampling, seed)

    @torch.inference_mode()
    def start(self, options: StepOptions, forced: int = -1) -> None:
        """Start a step after the last started one. At most lookahead + 1 may be unread.

        Args:
            forced: take this id instead of sampling.
        """
        slot = self._slots[0]
        self._slots.append(self._slots.pop(0))
        self.decode.force(forced)
        if self.graphs is None:
            self.decode.run(options)
        else:
            self.graphs.run(options)
        slot.result.copy_(self.decode.sampled.result, non_blocking=True)
        if options.taps:
            slot.record.copy_(self.decode.tap.buffer, non_blocking=True)
        if slot.done is not None:
            slot.done.record()
        self._started.append((options, slot))

    def collect(self) -> StepResult:
        """The result of the oldest unread step.

        Raises:
            NumericsError: its logits are not finite. The state is as before that step.
        """
        options, slot = self._started.popleft()
        if slot.done is not None:
            slot.done.synchronize()
        token_id, _, finite, logprob_bits = slot.result.tolist()
        record = slot.record.numpy().tobytes() if options.taps else None
        if not finite:
            self.discard(always=True)
            raise NumericsError(self._describe_fault(record), record)
        self.ids.append(self._fed)
        self._fed = token_id
        (logprob,) = struct.unpack("<d", struct.pack("<q", logprob_bits))
        return StepResult(token_id, logprob, options, record)

    def step(self, options: StepOptions, forced: int = -1) -> StepResult:
        """Start a step and read it."""
        self.start(options, forced)
        return self.collect()

    @property
    def unread(self) -> int:
        """Steps started and not read."""
        return len(self._started)

    def discard(self, *, always: bool = False) -> None:
        """Forget steps that were started and not read; the state goes back to the last read one."""
        if self._started or always:
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            self._started.clear()
            self.state.position.fill_(len(self.ids))
            self.decode.sampled.token.fill_(self._fed)

    def _describe_fault(self, record: bytes | None) -> str:
        where = "switch diagnostics on and try again to see in which layer it starts"
        if record is not None:
            layer = TapRecord(self.layout, record).scalar("first_bad_layer")
            where = f"the first bad layer is {layer}" if layer >= 0 else "every layer was finite"
        return f"the logits at position {len(self.ids)} are not finite; {where}"


def logits_of(model: Transformer, ids: Tensor, options: StepOptions, context: int) -> Tensor:
    """[T, V] fp32 logits of a whole sequence in a fresh state, for evaluation."""
    state = SequenceState(model.config, context, ids.device, model.dtype)
    with torch.inference_mode():
        parts = [model(chunk, state, options) for chunk in ids.split(PREFILL_CHUNK)]
    return torch.cat([part for part in parts if part is not None])
