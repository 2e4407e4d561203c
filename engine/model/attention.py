"""One attention block: low-rank queries, one shared KV row, window and compressed rows, grouped
output.

architecture.md 3.3 to 3.6. The two compressors of an overlapped layer (KV and index keys) are the
same class with different widths.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.linear import Activation, Linear
from engine.model.step import StepContext
from engine.state import CompressorState, LayerState
from kernels.attention.reference import attend, window_visible
from kernels.compressor.reference import pool_blocks, store_rows
from kernels.indexer.reference import index_scores, select_blocks
from kernels.residual.reference import rms_norm, rope_phases, rotate


@dataclass(slots=True)
class Compressor:
    """Pools token rows into one row per block.

    wkv, wgate: [F, H]; ape: [ratio, F] fp32; norm: [D] fp32. `is_index` picks the index keys' tail.
    """

    wkv: Tensor
    wgate: Tensor
    ape: Tensor
    norm: Tensor
    ratio: int
    overlap: bool
    is_index: bool

    def __call__(self, h: Tensor, state: CompressorState, step: StepContext) -> None:
        """Take the chunk's rows h [T, H] and write every block they complete into state.blocks."""
        config = step.config
        wide = h.float()
        kv = wide @ self.wkv.float().T
        score = wide @ self.wgate.float().T + self.ape[step.positions % self.ratio]
        pooled, block, complete = pool_blocks(
            kv, score, state.kv, state.score, step.position, ratio=self.ratio, overlap=self.overlap
        )
        rows = rms_norm(pooled.to(h.dtype), self.norm, config.norm_eps)
        phases = rope_phases(block * self.ratio, step.compress_frequencies)
        rows = rotate(rows, *phases)
        rows = step.index_round_trip(rows) if self.is_index else step.kv_round_trip(rows)
        unused = state.blocks.shape[0] - 1
        state.blocks.index_copy_(0, torch.where(complete, block, unused), rows)


@dataclass(slots=True)
class Indexer:
    """Scores compressed blocks for each query and keeps the best (architecture.md 3.5)."""

    wq_b: Linear
    weights_proj: Tensor
    compressor: Compressor

    def __call__(
        self, latent: Activation, h: Tensor, state: CompressorState, step: StepContext
    ) -> tuple[Tensor, Tensor]:
        """-> block ids [T, K] and which of them count [T, K]. Compresses first: a block that this
        very token completes takes part."""
        config = step.config
        self.compressor(h, state, step)
        q = self.wq_b(latent).to(h.dtype).unflatten(-1, (config.index_heads, -1))
        q = step.index_round_trip(rotate(q, *step.compress_phases))
        scale = (config.index_head_dim * config.index_heads) ** -0.5
        weights = (h.float() @ self.weights_proj.float().T) * scale
        keys = state.blocks[:-1]
        visible = (step.positions + 1) // self.compressor.ratio
        return select_blocks(index_scores(q, keys, weights), visible, config.index_top_k)


@dataclass(slots=True)
class Attention:
    """Weights of one block. q_norm, kv_norm: fp32; sink: [A] fp32."""

    layer: int
    wq_a: Linear
    q_norm: Tensor
    wq_b: Linear
    wkv: Linear
    kv_norm: Tensor
    wo_a: Linear
    wo_b: Linear
    sink: Tensor
    compressor: Compressor | None
    indexer: Indexer | None

    def __call__(self, h: Tensor, state: LayerState, step: StepContext) -> Tensor:
        """h [T, H], already normed, at step.positions -> [T, H] fp32. Updates `state`."""
        config, layer = step.config, self.layer
        plain = self.compressor is None
        phases = step.window_phases if plain else step.compress_phases
        act = step.activation(h, layer, "attn_in")

        latent_x = rms_norm(self.wq_a(act).to(h.dtype), self.q_norm, config.norm_eps)
        latent = step.activation(latent_x, layer, "q_latent")
        q = self.wq_b(latent).to(h.dtype).unflatten(-1, (config.num_heads, -1))
        q = rotate(rms_norm(q, None, config.norm_eps), *phases)

        kv = rms_norm(self.wkv(act).to(h.dtype), self.kv_norm, config.norm_eps)
        kv = step.kv_round_trip(rotate(kv, *phases))
        window = _window_rows(state.window, kv, step)
        store_rows(state.window, kv, step.position)
        seen = window_visible(h.shape[0], config.window, step.position)

        rows, visible, ids = self._compressed(h, latent, state, step)
        out, tap = attend(q, window, seen, rows, visible, self.sink, step.tap is not None)
        if step.tap is not None and tap is not None:
            blocks = None if plain else self._visible_blocks(step)[-1]
            step.tap.attention(layer, tap, blocks)
            if not plain:
                step.tap.heaviest_blocks(layer, tap.rows, None if ids is None else ids[-1])

        out = rotate(out, *phases, inverse=True)
        grouped = out.flatten(1).unflatten(-1, (config.o_groups, -1))
        z = self.wo_a(step.activation(grouped, layer, "o_a_in")).flatten(1).to(h.dtype)
        return self.wo_b(step.activation(z, layer, "o_b_in"))

    def _compressed(
        self, h: Tensor, latent: Activation, state: LayerState, step: StepContext
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Rows [C, D] or [T, K, D], which are visible [T, C or K], and block ids [T, K] if
        chosen."""
        if self.compressor is None or state.main is None:
            return None, None, None
        blocks = state.main.blocks[:-1]
        if self.indexer is not None and state.index is not None:
            if blocks.shape[0] > step.config.index_top_k:
                ids, chosen = self.indexer(latent, h, state.index, step)
                self.compressor(h, state.main, step)
                return blocks[ids], chosen, ids
            # Every block of this context fits the selection: scoring could change nothing.
            self.indexer.compressor(h, state.index, step)
        self.compressor(h, state.main, step)
        index = torch.arange(blocks.shape[0], device=h.device)
        return blocks, index < self._visible_blocks(step)[:, None], None

    def _visible_blocks(self, step: StepContext) -> Tensor:
        """[T] how many blocks have ended at or before each query."""
        assert self.compressor is not None
        return (step.positions + 1) // self.compressor.ratio


def _window_rows(ring: Tensor, kv: Tensor, step: StepContext) -> Tensor:
    """The window-1 rows before this chunk and the chunk's own: [window-1+T, D]."""
    past = step.position - (step.config.window - 1)
    slots = (past + torch.arange(step.config.window - 1, device=kv.device)) % ring.shape[0]
    return torch.cat((ring[slots], kv))
