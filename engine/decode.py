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
from kernels.sample.reference import SampleSettings


class DecodeStep:
    """Buffers of one sequence's decode loop.

    Attributes:
        token: [1] int64, the id the next step feeds; each step leaves the sampled id here.
        result: [4] int64: sampled id, ids that survived the cuts, 1 if the logits were finite, and
        the
            bits of the id's raw log probability as fp64.
        tap: the record of the last step that had taps on.
    """

    def __init__(
        self, model: Transformer, state: SequenceState, layout: TapLayout, device: torch.device
    ) -> None:
        self.model = model
        self.state = state
        self.tap = TapWriter(layout, device)
        self.token = torch.zeros(1, dtype=torch.int64, device=device)
        self.result = torch.zeros(4, dtype=torch.int64, device=device)
        self._settings = SampleSettings(
            *(torch.zeros((), dtype=torch.float64, device=device) for _ in range(3)),
            *(torch.zeros((), dtype=torch.int64, device=device) for _ in range(2)),
        )

    def begin(self, token_id: int, sampling: Sampling, seed: int) -> None:
        """Set the next input token and the sampler."""
        self.token.fill_(token_id)
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
        out = self.model(self.token, self.state, options, tap)
        assert out is not None
        logits = out[0]
        chosen, kept = self.model.ops.sample(logits, self._settings, position)
        logprob = (logits.take(chosen) - torch.logsumexp(logits, 0)).double()
        self.token.copy_(chosen)
        finite = logits.isfinite().all()
        self.result.copy_(torch.stack((chosen, kept, finite.long(), logprob.view(torch.int64))))
        if tap is not None:
            tap.logits(logits, chosen, kept, position)
