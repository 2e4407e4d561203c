"""The whole model: embedding, layers of two hyper-connection sites each, head.

One function serves decode (one token) and prefill (a chunk of any size). It is a pure function of
weights, state and token ids; what differs per device is which implementation each op was built
with.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.attention import Attention
from engine.model.config import ModelConfig
from engine.model.linear import Linear
from engine.model.moe import Nvfp4MoE
from engine.model.ops import Ops
from engine.model.split import Share
from engine.model.step import Frequencies, Numerics, StepContext
from engine.model.team import Team
from engine.protocol import StepOptions
from engine.state import SequenceState
from engine.taps import TapWriter
from kernels.residual.reference import HyperMix, HyperSite


@dataclass(slots=True)
class Layer:
    """Attention and MoE, each behind a hyper-connection site and a norm."""

    index: int
    attn_site: HyperSite
    attn_norm: Tensor
    attention: Attention
    ffn_site: HyperSite
    ffn_norm: Tensor
    moe: Nvfp4MoE


@dataclass(slots=True)
class Transformer:
    """A loaded model, or one rank's part of it. embed: [V, H]; head parameters as in
    architecture.md 3.8. head_rows: the part of the vocabulary that `head` computes."""

    config: ModelConfig
    embed: Tensor
    layers: list[Layer]
    head_site: HyperSite
    norm: Tensor
    head: Linear
    frequencies: Frequencies
    numerics: Numerics
    ops: Ops
    team: Team
    head_rows: Share
    dtype: torch.dtype

    def __call__(
        self,
        token_ids: Tensor,
        state: SequenceState,
        options: StepOptions,
        tap: TapWriter | None = None,
        *,
        with_logits: bool = True,
    ) -> Tensor | None:
        """Run T tokens at state.position, which is then T further; `state` is updated in place.

        Args:
            token_ids: [T] int64, each below vocab_size. Taps record the last token; T must be 1
            then. with_logits: False skips the head, for prompt tokens whose prediction nobody
            needs.

        Returns:
            [T, V] fp32 logits, or None.
        """
        config = self.config
        step = StepContext(
            config,
            token_ids,
            state.position,
            self.frequencies,
            options,
            self.numerics,
            self.ops,
            tap,
            self.team,
        )
        rates = {"eps": config.hyper_eps, "norm_eps": config.norm_eps}
        rounds = {**rates, "iterations": config.sinkhorn_iterations}
        embedded = self.embed[token_ids].to(self.dtype)
        streams = embedded.unsqueeze(1).expand(-1, config.streams, -1)
        y: Tensor | None = None
        mix: HyperMix | None = None
        for layer, layer_state in zip(self.layers, state.layers, strict=True):
            site, norm = layer.attn_site, layer.attn_norm
            streams, mix, h, rows = self.ops.boundary(streams, y, mix, site, norm, **rounds)
            if tap is not None and layer.index:
                tap.streams(streams[-1])
                self.ops.record_layer(*tap.end_layer(layer.index - 1))
            act = step.activation(h, "attn_in", rows)
            y = layer.attention(act, layer_state, step)
            site, norm = layer.ffn_site, layer.ffn_norm
            streams, mix, g, rows = self.ops.boundary(streams, y, mix, site, norm, **rounds)
            y = layer.moe(step.activation(g, "ffn_in", rows), step)
        state.position += token_ids.shape[0]
        if not with_logits:
            return None
        streams, normed, rows = self.ops.head_boundary(
            streams, y, mix, self.head_site, self.norm, **rates
        )
        out = self.head(step.activation(normed, "head_in", rows))
        if tap is not None:
            tap.streams(streams[-1])
            # The head has one site of its own; it is recorded with the last layer.
            self.ops.record_layer(*tap.end_layer(config.num_layers - 1))
        return self.team.gather(out, self.head_rows)
