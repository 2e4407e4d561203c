"""One attention block: low-rank queries, one shared KV row, window and compressed rows, grouped
output.

architecture.md 3.3 to 3.6. The two compressors of an overlapped layer (KV and index keys) are the
same class with different widths.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from engine.model.linear import Activation, Linear, Projections
from engine.model.split import Share
from engine.model.step import StepContext
from engine.state import CompressorState, LayerState


@dataclass(slots=True)
class Compressor:
    """Pools token rows into one row per block.

    ape: [ratio, F] fp32; norm: [D] fp32. is_index: makes index keys, not KV.
    """

    ape: Tensor
    norm: Tensor
    ratio: int
    overlap: bool
    is_index: bool

    def __call__(self, kv: Tensor, gate: Tensor, state: CompressorState, step: StepContext) -> None:
        """Take the chunk's projections [T, F] and write every block they complete into
        state.blocks."""
        step.ops.compress(
            kv,
            gate,
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
class Attention:
    """Weights of one block. q_norm, kv_norm: fp32; sink: [A] fp32.

    q_a_and_kv: the two projections of the input. from_latent: queries, and index queries where the
    layer has an indexer. groups, rows: the output groups, with their heads, and the output rows of
    wo_b that this rank computes. from_hidden: float projections of the input, in this order: the
    compressor's values and gates, the index compressor's, the index head weights.
    """

    q_a_and_kv: Projections
    q_norm: Tensor
    from_latent: Projections
    from_hidden: Projections | None
    kv_norm: Tensor
    wo_a: Linear
    wo_b: Linear
    sink: Tensor
    groups: Share
    rows: Share
    compressor: Compressor | None
    index_compressor: Compressor | None

    def __call__(self, act: Activation, state: LayerState, step: StepContext) -> Tensor:
        """[T, H], already normed, at step.positions -> [T, H] fp32. Updates `state`."""
        config, dtype = step.config, act.x.dtype
        phases = step.window_phases if self.compressor is None else step.compress_phases
        q_a, kv_raw = self.q_a_and_kv(act)
        eps = config.norm_eps
        latent_x, rows = step.ops.round_rows(q_a, self.q_norm, eps=eps, dtype=dtype)
        latent = step.activation(latent_x, "q_latent", rows)
        q_raw, *index_q = self.from_latent(latent)
        q, kv = step.ops.attention_inputs(
            q_raw,
            kv_raw,
            self.kv_norm,
            *phases,
            heads=self.sink.shape[0],
            eps=eps,
            kv_fp8=step.numerics.kv_fp8,
            dtype=dtype,
        )
        blocks, chosen = self._compressed(act, index_q, state, step)
        out, rows, tap = step.ops.attend(
            q,
            kv,
            state.window,
            step.position,
            blocks,
            chosen,
            self.sink,
            *phases,
            window=config.window,
            ratio=1 if self.compressor is None else self.compressor.ratio,
            groups=len(self.groups.held),
            tap=step.tap is not None,
        )
        if step.tap is not None:
            ids = None if chosen is None else chosen[0][-1]
            ratio = 0 if self.compressor is None else self.compressor.ratio
            step.tap.attention(tap, step.positions, ids, ratio)

        grouped = out.flatten(1).unflatten(-1, (len(self.groups.held), -1))
        z = self.wo_a(step.activation(grouped, "o_a_in", rows)).flatten(1)
        z = step.team.gather(z, self.groups.times(config.o_lora_rank))
        z, rows = step.ops.round_rows(z, None, eps=eps, dtype=dtype)
        return step.team.gather(self.wo_b(step.activation(z, "o_b_in", rows)), self.rows)

    def _compressed(
        self, act: Activation, index_q: Sequence[Tensor], state: LayerState, step: StepContext
    ) -> tuple[Tensor | None, tuple[Tensor, Tensor] | None]:
        """Blocks [C, D], and of an indexed layer which [T, K] each query takes and whether they
        count [T, K]. Compresses first: a block that this very token completes takes part."""
        if self.compressor is None or state.main is None or self.from_hidden is None:
            return None, None
        made = self.from_hidden(act)
        self.compressor(made[0], made[1], state.main, step)
        blocks = state.main.blocks[:-1]
        if self.index_compressor is None or state.index is None:
            return blocks, None
        self.index_compressor(made[2], made[3], state.index, step)
        if blocks.shape[0] <= step.config.index_top_k:
            # Every block of this context fits the selection: scoring could change nothing.
            return blocks, None
        return blocks, step.ops.choose_blocks(
            index_q[0],
            made[4],
            state.index.blocks[:-1],
            step.position,
            *step.compress_phases,
            ratio=self.index_compressor.ratio,
            top_k=step.config.index_top_k,
            fp4=step.numerics.index_fp4,
            dtype=act.x.dtype,
        )
