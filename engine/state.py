"""The state of one sequence: everything a later token depends on, addressed by position.

Window rows and compressor rows live in rings, compressed rows at their block index. Nothing is
cleared for a new sequence: rows of positions before 0 are masked, and every other row is written
before it is read. Going back by up to LOOKAHEAD tokens is setting the position (architecture.md 4).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.config import ModelConfig
from kernels.compressor.reference import history_length

# How many positions beyond the confirmed one may be written and thrown away.
LOOKAHEAD = 8


@dataclass(slots=True)
class CompressorState:
    """kv, score: [R, F] fp32 rings of token rows. blocks: [C + 1, D] pooled rows; the last row
    takes the writes of blocks that are not complete and is never read."""

    kv: Tensor
    score: Tensor
    blocks: Tensor


@dataclass(slots=True)
class LayerState:
    """window: [window + LOOKAHEAD, D]; the compressors where the layer has them."""

    window: Tensor
    main: CompressorState | None = None
    index: CompressorState | None = None


@dataclass(slots=True)
class RingSnapshot:
    """The rings at one position. Compressed rows below it stay valid in place until overwritten."""

    position: int
    rings: list[Tensor]


class SequenceState:
    """All layers' state, for sequences of up to `context` tokens.

    position: 0-d int64 on the device, the position the next token is written at.
    """

    def __init__(
        self, config: ModelConfig, context: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.context = context
        self.position = torch.zeros((), dtype=torch.int64, device=device)
        self.layers = [
            self._layer(config, layer, device, dtype) for layer in range(config.num_layers)
        ]

    def _layer(
        self, config: ModelConfig, layer: int, device: torch.device, dtype: torch.dtype
    ) -> LayerState:
        window = torch.zeros(config.window + LOOKAHEAD, config.head_dim, device=device, dtype=dtype)
        ratio = config.compress_ratios[layer]
        if ratio == 0:
            return LayerState(window)

        def compressor(width: int) -> CompressorState:
            overlap = config.overlaps(layer)
            ring = history_length(ratio, overlap) + 1 + LOOKAHEAD
            rows = torch.zeros(2, ring, width * (1 + overlap), device=device)
            blocks = torch.zeros(self.context // ratio + 1, width, device=device, dtype=dtype)
            return CompressorState(rows[0], rows[1], blocks)

        index = compressor(config.index_head_dim) if config.has_indexer(layer) else None
        return LayerState(window, compressor(config.head_dim), index)

    def rings(self) -> list[Tensor]:
        """Every ring buffer, in a fixed order."""
        found = []
        for layer in self.layers:
            found.append(layer.window)
            for compressor in (layer.main, layer.index):
                if compressor is not None:
                    found += [compressor.kv, compressor.score]
        return found

    def tensors(self) -> list[Tensor]:
        """Every tensor of the state; what a capture must leave unchanged."""
        blocks = [
            compressor.blocks
            for layer in self.layers
            for compressor in (layer.main, layer.index)
            if compressor is not None
        ]
        return [self.position, *self.rings(), *blocks]

    def snapshot(self, position: int) -> RingSnapshot:
        """Copy the rings, so that the sequence can come back to `position`, its present end."""
        return RingSnapshot(position, [ring.clone() for ring in self.rings()])

    def restore(self, snapshot: RingSnapshot) -> None:
        """Go back to a snapshot of this sequence, whose tokens before its position are
        unchanged."""
        for ring, saved in zip(self.rings(), snapshot.rings, strict=True):
            ring.copy_(saved)
        self.position.fill_(snapshot.position)

    @property
    def size_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors())
