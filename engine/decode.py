"""The decode step: token id in, state updated in place, next token id out, all on the device.

Every value that changes from token to token lives in a buffer of this object; what changes the
kernels is in `StepOptions`. Nothing in `run` reads the host, so a CUDA graph can hold it.
"""

import torch

from engine.model.transformer import Transformer
from engine.protocol import Sampling, StepOptions
from engine.state import SequenceState
from engine.taps import TapWriter
from engine.telemetry import TapLayout
from kernels.sample.reference import Sampled, SampleSettings


class DecodeStep:
    """Buffers of one sequence's decode loop.

    Attributes:
        sampled: what the last step took; `sampled.token` is the id the next step feeds.
        tap: the record of the last step that had taps on.
    """

    def __init__(
        self, model: Transformer, state: SequenceState, layout: TapLayout, device: torch.device
    ) -> None:
        self.model = model
        self.state = state
        self.tap = TapWriter(layout, device)
        self.sampled = Sampled.empty(device)
        self._settings = SampleSettings(
            *(torch.zeros((), dtype=torch.float64, device=device) for _ in range(3)),
            *(torch.zeros((), dtype=torch.int64, device=device) for _ in range(2)),
        )

    def begin(self, token_id: int, sampling: Sampling, seed: int) -> None:
        """Set the next input token and the sampler."""
        self.sampled.token.fill_(token_id)
        self._settings.temperature.fill_(sampling.temperature)
        self._settings.top_p.fill_(sampling.top_p)
        self._settings.min_p.fill_(sampling.min_p)
        self._settings.seed.fill_(seed)

    def force(self, token_id: int) -> None:
        """The id the next step takes instead of sampling; -1 for none."""
        self._settings.forced.fill_(token_id)

    def run(self, options: StepOptions) -> None:
        """One step."""
        tap = self.tap if options.taps else None
        position = self.state.position.clone()
        out = self.model(self.sampled.token, self.state, options, tap)
        assert out is not None
        self.model.ops.sample(out[0], self._settings, position, self.sampled)
        self.model.team.agree(self.sampled.token)
        self.model.team.agree(self.sampled.result)
        if tap is not None:
            self.model.ops.record_logits(*tap.end(out[0], self.sampled, position))
