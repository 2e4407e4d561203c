"""What every layer of one step shares: positions, phases, options, taps, and the KV round trips."""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.config import ModelConfig
from engine.model.linear import Activation
from engine.protocol import StepOptions
from engine.taps import TapWriter
from kernels.formats import MXFP4_BLOCK, Nvfp4Rows, fp4_round_trip, fp8_round_trip
from kernels.indexer.reference import hadamard
from kernels.residual.reference import rope_frequencies, rope_phases, yarn_frequencies

_KV_BLOCK = 64


@dataclass(frozen=True, slots=True)
class Numerics:
    """Which of the reference's simulated cache formats the model applies (architecture.md 5).

    Both on is the model as it was trained; off is plain precision, for comparison with engines that
    skip them.
    """

    kv_fp8: bool = True
    index_fp4: bool = True


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
        tap: TapWriter | None,
    ) -> None:
        self.config = config
        self.token_ids = token_ids
        self.position = position
        self.positions = position + torch.arange(token_ids.shape[0], device=token_ids.device)
        self.options = options
        self.numerics = numerics
        self.tap = tap
        self.compress_frequencies = frequencies.compress
        self.window_phases = rope_phases(self.positions, frequencies.window)
        self.compress_phases = rope_phases(self.positions, frequencies.compress)

    def activation(self, x: Tensor, layer: int, site: str) -> Activation:
        return Activation(x, self.options.gsa, self.tap, layer, site)

    def record(self, layer: int, site: str, rows: Nvfp4Rows) -> None:
        """Note a quantised activation that did not come from `activation`."""
        if self.tap is not None:
            self.tap.site(layer, site, rows)

    def kv_round_trip(self, rows: Tensor) -> Tensor:
        """KV rows [..., D] with all but the rotary dims through FP8 blocks of 64."""
        if not self.numerics.kv_fp8:
            return rows
        plain = rows.shape[-1] - self.config.rope_dims
        block = _KV_BLOCK if plain % _KV_BLOCK == 0 else plain
        head = fp8_round_trip(rows[..., :plain], block).to(rows.dtype)
        return torch.cat((head, rows[..., plain:]), -1)

    def index_round_trip(self, rows: Tensor) -> Tensor:
        """Index queries or keys [..., d]: Hadamard, then FP4 blocks of 32."""
        if not self.numerics.index_fp4:
            return rows
        block = min(MXFP4_BLOCK, rows.shape[-1])
        return fp4_round_trip(hadamard(rows), block).to(rows.dtype)
