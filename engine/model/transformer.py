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
from engine.model.step import Frequencies, Numerics, StepContext
from engine.protocol import StepOptions
from engine.state import SequenceState
from engine.taps import TapWriter
from kernels.residual.reference import (
    HyperMix,
    hyper_collapse,
    hyper_expand,
    hyper_head,
    hyper_mix,
    rms_norm,
)


@dataclass(slots=True)
class HyperSite:
    """Parameters of one hyper-connection site, fp32 (architecture.md 3.2)."""

    fn: Tensor
    base: Tensor
    scale: Tensor

    def mix(self, streams: Tensor, config: ModelConfig) -> HyperMix:
        return hyper_mix(
            streams,
            self.fn,
            self.base,
            self.scale,
            iterations=config.sinkhorn_iterations,
            eps=config.hyper_eps,
            norm_eps=config.norm_eps,
        )


@dataclass(slots=True)
class Layer:
    """Attention and MoE, each behind a hyper-connection site and a norm."""

    attn_site: HyperSite
    attn_norm: Tensor
    attention: Attention
    ffn_site: HyperSite
    ffn_norm: Tensor
    moe: Nvfp4MoE


@dataclass(slots=True)
class Transformer:
    """A loaded model. embed: [V, H]; head parameters as in architecture.md 3.8."""

    config: ModelConfig
    embed: Tensor
    layers: list[Layer]
    head_site: HyperSite
    norm: Tensor
    head: Linear
    frequencies: Frequencies
    numerics: Numerics
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
            config, token_ids, state.position, self.frequencies, options, self.numerics, tap
        )
        embedded = self.embed[token_ids].to(self.dtype)
        streams = embedded.unsqueeze(1).expand(-1, config.streams, -1)
        for index, (layer, layer_state) in enumerate(zip(self.layers, state.layers, strict=True)):
            mix = layer.attn_site.mix(streams, config)
            h = rms_norm(hyper_collapse(streams, mix.pre), layer.attn_norm, config.norm_eps)
            y = layer.attention(h, layer_state, step)
            streams = hyper_expand(streams, y.to(self.dtype), mix)

            mix = layer.ffn_site.mix(streams, config)
            g = rms_norm(hyper_collapse(streams, mix.pre), layer.ffn_norm, config.norm_eps)
            y = layer.moe(g, step)
            streams = hyper_expand(streams, y.to(self.dtype), mix)
            if tap is not None:
                tap.streams(index, streams[-1])
        state.position += token_ids.shape[0]
        return self._logits(streams, step) if with_logits else None

    def _logits(self, streams: Tensor, step: StepContext) -> Tensor:
        config, site = self.config, self.head_site
        collapsed = hyper_head(
            streams,
            site.fn,
            site.base,
            site.scale,
            eps=config.hyper_eps,
            norm_eps=config.norm_eps,
        )
        normed = rms_norm(collapsed, self.norm, config.norm_eps)
        # The head has one site of its own; it is recorded with the last layer.
        return self.head(step.activation(normed, config.num_layers - 1, "head_in"))
