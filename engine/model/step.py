"""What every layer of one step shares: positions, phases, options, taps, and the KV round trips."""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.config import ModelConfig
from engine.model.linear import Activation
from engine.model.ops import Ops
from engine.model.team import Team
from engine.protocol import StepOptions
from engine.taps import TapWriter
from kernels.compressor.reference import Rounding
from kernels.formats import Nvfp4Rows
from kernels.residual.reference import rope_frequencies, rope_phases, yarn_frequencies


@dataclass(frozen=True, slots=True)
class Numerics:
    """Which of the reference's simulated cache formats the model applies (architecture.md 5).

    Both on is the model as it was trained; off is plain precision, for comparison with engines that
    skip them.
    """

    kv_fp8: bool = True
    index_fp4: bool = True

    @property
    def kv_rounding(self) -> Rounding:
        return "kv" if self.kv_fp8 else "none"

    @property
    def index_rounding(self) -> Rounding:
        return "index" if self.index_fp4 else "none"


class Frequencies:
    """Rotary frequencies of a model, both kinds: window-only layers, and layers with a
    compressor."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        dims = config.rope_dims
        self.window = rope_frequencies(dims, config.rope_theta).to(device)
        yarn = config.yarn._asdict()
        self.compress = yarn_frequencies(dims, config.compress_rope_theta, **yarn).to(device)


class StepContext:
    """One forward pass over T tokens at positions position .. position + T - 1."""

    def __init__(
        self,
        config: ModelConfig,
        token_ids: Tensor,
        position: Tensor,
        frequencies: Frequencies,
        options: StepOptions,
        numerics: Numerics,
        ops: Ops,
        tap: TapWriter | None,
        team: Team,
    ) -> None:
        self.team = team
        self.config = config
        self.ops = ops
        self.token_ids = token_ids
        self.position = position
        self.positions = position + torch.arange(token_ids.shape[0], device=token_ids.device)
        self.options = options
        self.numerics = numerics
        self.tap = tap
        self.compress_frequencies = frequencies.compress
        self.window_phases = rope_phases(self.positions, frequencies.window)
        self.compress_phases = rope_phases(self.positions, frequencies.compress)

    def activation(self, x: Tensor, site: str, rows: Nvfp4Rows | None = None) -> Activation:
        return Activation(x, self.options.gsa, self.ops.quantise, self.tap, site, rows)

    def record(self, site: str, rows: Nvfp4Rows) -> None:
        """Note a quantised activation that did not come from `activation`."""
        if self.tap is not None:
            self.tap.site(site, rows)
