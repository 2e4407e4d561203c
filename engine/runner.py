"""Runs the step function over one sequence: prefill in chunks, then one token at a time.

The step reads its token, position, sampler settings and random counter from device buffers and
leaves its result in one; the host looks at the result only after the step.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.errors import NumericsError
from engine.model.config import ModelConfig
from engine.model.transformer import Transformer
from engine.protocol import Sampling, StepOptions
from engine.state import LOOKAHEAD, RingSnapshot, SequenceState
from engine.taps import TapWriter
from engine.telemetry import TapLayout
from kernels.formats import NVFP4_BLOCK
from kernels.sample.reference import SampleSettings

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


class Runner:
    """One model, one sequence state.

    Attributes:
        ids: tokens whose effect is in the state, from position 0.
    """

    def __init__(self, model: Transformer, context: int, device: torch.device) -> None:
        self.model = model
        self.context = context
        self.device = device
        self.layout = tap_layout(model.config)
        self.state = SequenceState(model.config, context, device, model.dtype)
        self.ids: list[int] = []
        self._tap = TapWriter(self.layout, device)
        self._token = torch.zeros(1, dtype=torch.int64, device=device)
        self._result = torch.zeros(4, dtype=torch.int64, device=device)
        self._settings = SampleSettings(
            *(torch.zeros((), dtype=torch.float64, device=device) for _ in range(3)),
            *(torch.zeros((), dtype=torch.int64, device=device) for _ in range(2)),
        )

    # ---- going back ------------------------------------------------------------------------------

    def rewind(self, length: int, snapshots: Sequence[RingSnapshot]) -> int:
        """Go back so that the state holds at most the first `length` ids; returns how many it
        holds.

        A few tokens back is exact in place; further back needs a snapshot at or below `length`,
        else the sequence starts over.
        """
        if len(self.ids) - length > LOOKAHEAD:
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
        for start in range(0, len(ids), PREFILL_CHUNK):
            chunk = list(ids[start : start + PREFILL_CHUNK])
            tokens = torch.tensor(chunk, dtype=torch.int64, device=self.device)
            self.model(tokens, self.state, options, with_logits=False)
            self.ids += chunk
            if not go_on(start + len(chunk)):
                return start + len(chunk) == len(ids)
        return True

    @torch.inference_mode()
    def begin(self, token_id: int, sampling: Sampling, seed: int) -> None:
        """Set what the next step reads: its input token and the sampler settings."""
        self._token.fill_(token_id)
        self._settings.temperature.fill_(sampling.temperature)
        self._settings.top_p.fill_(sampling.top_p)
        self._settings.min_p.fill_(sampling.min_p)
        self._settings.seed.fill_(seed)

    @torch.inference_mode()
    def step(self, options: StepOptions, forced: int = -1) -> StepResult:
        """Feed the current token, sample the next one, and make that the current token.

        Args:
            forced: take this id instead of sampling.

        Raises:
            NumericsError: the logits are not finite. The state is as before the step.
        """
        fed = int(self._token)
        self._settings.forced.fill_(forced)
        tap = self._tap if options.taps else None
        self._device_step(options, tap)
        token_id, _, finite, logprob_bits = self._result.tolist()
        if not finite:
            self.state.position.fill_(len(self.ids))
            self._token.fill_(fed)
            raise NumericsError(self._describe_fault(tap))
        self.ids.append(fed)
        (logprob,) = struct.unpack("<d", struct.pack("<q", logprob_bits))
        record = None if tap is None else tap.buffer.cpu().numpy().tobytes()
        return StepResult(token_id, logprob, options, record)

    def _device_step(self, options: StepOptions, tap: TapWriter | None) -> None:
        """The whole step without a host read; what a CUDA graph captures."""
        position = self.state.position.clone()
        out = self.model(self._token, self.state, options, tap)
        assert out is not None
        logits = out[0]
        chosen, kept = self.model.ops.sample(logits, self._settings, position)
        logprob = (logits.take(chosen) - torch.logsumexp(logits, 0)).double()
        self._token.copy_(chosen)
        finite = logits.isfinite().all()
        self._result.copy_(torch.stack((chosen, kept, finite.long(), logprob.view(torch.int64))))
        if tap is not None:
            tap.logits(logits, chosen, kept, position)

    def _describe_fault(self, tap: TapWriter | None) -> str:
        where = "switch diagnostics on and try again to see in which layer it starts"
        if tap is not None:
            layer = tap.first_bad_layer()
            where = f"the first bad layer is {layer}" if layer >= 0 else "every layer was finite"
        return f"the logits at position {len(self.ids)} are not finite; {where}"


def logits_of(model: Transformer, ids: Tensor, options: StepOptions, context: int) -> Tensor:
    """[T, V] fp32 logits of a whole sequence in a fresh state, for evaluation."""
    state = SequenceState(model.config, context, ids.device, model.dtype)
    with torch.inference_mode():
        parts = [model(chunk, state, options) for chunk in ids.split(PREFILL_CHUNK)]
    return torch.cat([part for part in parts if part is not None])
