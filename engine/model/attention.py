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
from kernels.residual.reference import rms_norm


@dataclass(slots=True)
class Compressor:
    """Pools token rows into one row per block.

    wkv, wgate: [F, H]; ape: [ratio, F] fp32; norm: [D] fp32. is_index: makes index keys, not KV.
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
        step.ops.compress(
            step.ops.dense(h, self.wkv),
            step.ops.dense(h, self.wgate),
            self.ape,
            self.norm,
            state.kv,
            state.score,
            state.blocks,
            step.position,
            step.compress_frequencies,
            ratio=self.ratio,
            overlap=self.overlap,
            rounding=step.numerics.index_rounding if self.is_index else step.numerics.kv_rounding,
            eps=step.config.norm_eps,
        )


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
        self.compressor(h, state, step)
        ids: Tensor
        ids, chosen = step.ops.choose_blocks(
            self.wq_b(latent),
            step.ops.dense(h, self.weights_proj),
            state.blocks[:-1],
            step.positions,
            *step.compress_phases,
            ratio=self.compressor.ratio,
            top_k=step.config.index_top_k,
            fp4=step.numerics.index_fp4,
            dtype=h.dtype,
        )
        return ids, chosen


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
        phases = step.window_phases if self.compressor is None else step.compress_phases
        act = step.activation(h, layer, "attn_in")
        latent_x = rms_norm(self.wq_a(act).to(h.dtype), self.q_norm, config.norm_eps)
        latent = step.activation(latent_x, layer, "q_latent")
        q, kv = step.ops.attention_inputs(
            self.wq_b(latent),
            self.wkv(act),
            self.kv_norm,
            *phases,
            heads=config.num_heads,
            eps=config.norm_eps,
            kv_fp8=step.numerics.kv_fp8,
            dtype=h.dtype,
        )
        rows, visible, ids = self._compressed(h, latent, state, step)
        out, tap = step.ops.attend(
            q,
            kv,
            state.window,
            step.position,
            rows,
            visible,
            self.sink,
            *phases,
            window=config.window,
            tap=step.tap is not None,
        )
        if step.tap is not None:
            step.tap.attention(layer, tap)
            if self.compressor is not None:
                step.tap.write("visible_blocks", self._visible_blocks(step)[-1], layer)
                step.tap.heaviest_blocks(layer, tap.rows, None if ids is None else ids[-1])

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
