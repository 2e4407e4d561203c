"""The demo model over whole sequences, differentiable: mHC, attention, MoE, head.

architecture.md 3 with the sizes of tools/demo/config.py. Parameters are fp32 masters; activations
run in `dtype`. `quantised` turns on every fake quantiser of the engine's default precision.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels.residual.reference import rope_frequencies, rope_phases, yarn_frequencies
from tools.demo import quant
from tools.demo.attention import Attention, Phases, rms_norm
from tools.demo.config import Sizes
from tools.demo.quant import Activation, enter, linear
from tools.demo.sinkhorn import sinkhorn


class HyperSite(nn.Module):
    """Parameters of one hyper-connection site (architecture.md 3.2)."""

    def __init__(self, sizes: Sizes, rows: int, scales: int) -> None:
        super().__init__()
        self.sizes = sizes
        self.fn = nn.Parameter(torch.empty(rows, sizes.streams * sizes.hidden_size))
        self.base = nn.Parameter(torch.zeros(rows))
        self.scale = nn.Parameter(torch.ones(scales))

    def dot(self, streams: Tensor) -> Tensor:
        """[N, S, H] -> [N, rows] fp32, divided by the rms over all streams."""
        flat = streams.flatten(1).float()
        rho = torch.rsqrt(flat.square().mean(-1, keepdim=True) + self.sizes.norm_eps)
        return F.linear(flat, self.fn) * rho

    def mix(self, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """pre [N, S], post [N, S], comb [N, S, S], fp32."""
        sizes, count = self.sizes, self.sizes.streams
        z, scale, base = self.dot(streams), self.scale, self.base
        pre = torch.sigmoid(z[:, :count] * scale[0] + base[:count]) + sizes.hyper_eps
        post = 2 * torch.sigmoid(z[:, count : 2 * count] * scale[1] + base[count : 2 * count])
        logits = (z[:, 2 * count :] * scale[2] + base[2 * count :]).view(-1, count, count)
        return pre, post, sinkhorn(logits, sizes.sinkhorn_iterations, sizes.hyper_eps)


def collapse(streams: Tensor, pre: Tensor) -> Tensor:
    return (streams.float() * pre.unsqueeze(-1)).sum(1).to(streams.dtype)


def expand(streams: Tensor, y: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """X'[k] = post_k y + sum_j comb[j, k] X[j]."""
    kept = (comb.unsqueeze(-1) * streams.float().unsqueeze(2)).sum(1)
    return (kept + post.unsqueeze(-1) * y.float().unsqueeze(1)).to(streams.dtype)


def clamped_swiglu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    return F.silu(gate.float().clamp(max=limit)) * up.float().clamp(-limit, limit)


class MoE(nn.Module):
    """Router, routed experts as one dense product, shared expert (architecture.md 3.7)."""

    def __init__(self, sizes: Sizes, hashed: bool) -> None:
        super().__init__()
        self.sizes, self.hashed = sizes, hashed
        count, inner, hidden = sizes.num_experts, sizes.expert_size, sizes.hidden_size
        self.gate = nn.Parameter(torch.empty(count, hidden))
        if hashed:
            table = torch.zeros(sizes.vocab_size, sizes.top_k, dtype=torch.int64)
            self.register_buffer("tid2eid", table)
        else:
            self.register_buffer("bias", torch.zeros(count))
        self.w1 = nn.Parameter(torch.empty(count, inner, hidden))
        self.w3 = nn.Parameter(torch.empty(count, inner, hidden))
        self.w2 = nn.Parameter(torch.empty(count, hidden, inner))
        self.shared_w1 = nn.Parameter(torch.empty(inner, hidden))
        self.shared_w3 = nn.Parameter(torch.empty(inner, hidden))
        self.shared_w2 = nn.Parameter(torch.empty(hidden, inner))

    def forward(self, g: Tensor, token_ids: Tensor, quantised: bool) -> tuple[Tensor, Tensor]:
        """g [N, H], already normed; token_ids [N] -> output [N, H] fp32, load [E] fp32."""
        act = enter(g, quantised)
        mix, load = self.route(act, token_ids)
        gate, up = linear(act, self.shared_w1), linear(act, self.shared_w3)
        shared = clamped_swiglu(gate, up, self.sizes.swiglu_limit).to(g.dtype)
        out = linear(enter(shared, quantised), self.shared_w2).float()
        return out + self._experts(act, mix).float(), load

    def route(self, act: Activation, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """-> mixing weights [N, E] fp32, zero where not chosen, and how often each was."""
        sizes = self.sizes
        logits = linear(act._replace(x=act.x.float()), self.gate, stored_as_fp8=False)
        scores = F.softplus(logits).sqrt()
        if self.hashed:
            ids = self.tid2eid[token_ids]
        else:
            ids = (scores.detach() + self.bias).topk(sizes.top_k, -1).indices
        chosen = torch.zeros_like(scores).scatter(-1, ids, 1.0)
        mix = scores * chosen
        return mix / mix.sum(-1, keepdim=True) * sizes.route_scale, chosen.sum(0)

    def _experts(self, act: Activation, mix: Tensor) -> Tensor:
        """Every expert sees every row; an expert that was not chosen has weight 0."""
        w1, w3, w2 = self.w1, self.w3, self.w2
        g, quantised = quant.fake_rows(act), act.values is not None
        if quantised:
            amax = torch.maximum(w1.detach().abs().amax((1, 2)), w3.detach().abs().amax((1, 2)))
            w1 = quant.fake_weight(w1, amax, stored_as_fp8=False)
            w3 = quant.fake_weight(w3, amax, stored_as_fp8=False)
            w2 = quant.fake_weight(w2, stored_as_fp8=False)
        count = self.sizes.num_experts
        gate = F.linear(g, w1.to(g.dtype).flatten(0, 1)).unflatten(-1, (count, -1))
        up = F.linear(g, w3.to(g.dtype).flatten(0, 1)).unflatten(-1, (count, -1))
        hidden = clamped_swiglu(gate, up, self.sizes.swiglu_limit) * mix.unsqueeze(-1)
        hidden = quant.fake_rows(enter(hidden.to(g.dtype), quantised))
        return hidden.flatten(1) @ w2.to(g.dtype).transpose(1, 2).flatten(0, 1)


class Layer(nn.Module):
    def __init__(self, sizes: Sizes, index: int) -> None:
        super().__init__()
        rows = sizes.streams * (sizes.streams + 2)
        self.eps = sizes.norm_eps
        self.hc_attn = HyperSite(sizes, rows, 3)
        self.attn_norm = nn.Parameter(torch.ones(sizes.hidden_size))
        self.attn = Attention(sizes, sizes.compress_ratios[index])
        self.hc_ffn = HyperSite(sizes, rows, 3)
        self.ffn_norm = nn.Parameter(torch.ones(sizes.hidden_size))
        self.ffn = MoE(sizes, index < sizes.num_hash_layers)


class LayerOut(NamedTuple):
    """streams [B*T, S, H]; the indexer's loss; load [E]."""

    streams: Tensor
    index_loss: Tensor
    load: Tensor


def run_layer(
    layer: Layer,
    streams: Tensor,
    token_ids: Tensor,
    phases: Phases,
    all_blocks: Tensor,
    quantised: bool,
) -> LayerOut:
    """One layer over streams [B*T, S, H] of token_ids [B, T]. A function so that equal layers
    share one compiled graph."""
    pre, post, comb = layer.hc_attn.mix(streams)
    h = rms_norm(collapse(streams, pre), layer.attn_norm, layer.eps)
    y, index_loss = layer.attn(h.view(*token_ids.shape, -1), phases, all_blocks, quantised)
    streams = expand(streams, y.flatten(0, 1), post, comb)
    pre, post, comb = layer.hc_ffn.mix(streams)
    g = rms_norm(collapse(streams, pre), layer.ffn_norm, layer.eps)
    y, load = layer.ffn(g, token_ids.flatten(), quantised)
    return LayerOut(expand(streams, y.to(streams.dtype), post, comb), index_loss, load)


class DemoModel(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.embed = nn.Parameter(torch.empty(sizes.vocab_size, sizes.hidden_size))
        self.layers = nn.ModuleList(Layer(sizes, index) for index in range(sizes.num_layers))
        self.hc_head = HyperSite(sizes, sizes.streams, 1)
        self.norm = nn.Parameter(torch.ones(sizes.hidden_size))
        self.head = nn.Parameter(torch.empty(sizes.vocab_size, sizes.hidden_size))
        self.reset()

    @torch.no_grad()
    def reset(self) -> None:
        """Fan-in init; branches that end in the residual start small; streams start unequal."""
        depth = math.sqrt(2 * self.sizes.num_layers)
        for name, parameter in self.named_parameters():
            if name.endswith(("norm", "scale", "sink", "ape", "base")):
                continue
            std = parameter.shape[-1] ** -0.5
            if name.endswith(("wo_b", "w2")):
                std /= depth
            elif name.endswith(("fn", "gate", "head")):
                std *= 0.1
            elif name == "embed":
                std = 0.5
            parameter.normal_(0.0, std)
        count = self.sizes.streams
        for layer in self.layers:
            for site in (layer.hc_attn, layer.hc_ffn):
                site.base[: 2 * count].normal_(0.0, 0.5)
                site.base[2 * count :] = 3.0 * torch.eye(count).flatten()

    def phases(self, length: int, device: torch.device) -> Phases:
        dims, positions = self.sizes.rope_dims, torch.arange(length, device=device)
        yarn = yarn_frequencies(
            dims, 160000.0, factor=16.0, beta_fast=32.0, beta_slow=1.0, original_context=65536
        )
        window = rope_frequencies(dims, 10000.0).to(device)
        return Phases(rope_phases(positions, window), rope_phases(positions, yarn.to(device)))

    def head_input(self, streams: Tensor) -> Tensor:
        """[N, S, H] -> normed [N, H] (architecture.md 3.8)."""
        site = self.hc_head
        pre = torch.sigmoid(site.dot(streams) * site.scale + site.base) + self.sizes.hyper_eps
        return rms_norm(collapse(streams, pre), self.norm, self.sizes.norm_eps)

    def logits(self, streams: Tensor, quantised: bool) -> Tensor:
        """[N, V] in the compute dtype."""
        return linear(enter(self.head_input(streams), quantised), self.head, stored_as_fp8=False)

    def trunk(
        self, token_ids: Tensor, dtype: torch.dtype, all_blocks: Tensor, quantised: bool,
        run=run_layer,
    ) -> tuple[Tensor, Tensor, list[Tensor]]:  # fmt: skip
        """[B, T] -> streams [B*T, S, H], summed indexer loss, load per layer."""
        phases = self.phases(token_ids.shape[1], token_ids.device)
        embedded = F.embedding(token_ids.flatten(), self.embed).to(dtype)
        streams = embedded.unsqueeze(1).expand(-1, self.sizes.streams, -1).contiguous()
        index_loss = torch.zeros((), device=token_ids.device)
        loads = []
        for layer in self.layers:
            out = run(layer, streams, token_ids, phases, all_blocks, quantised)
            streams, index_loss = out.streams, index_loss + out.index_loss
            loads.append(out.load)
        return streams, index_loss, loads


def token_losses(
    model: DemoModel, streams: Tensor, targets: Tensor, weights: Tensor, quantised: bool
) -> tuple[Tensor, Tensor]:
    """Weighted mean loss (0-d) and loss per token [N] (fp32)."""
    logits = model.logits(streams, quantised)
    losses = F.cross_entropy(logits.float(), targets, reduction="none")
    return (losses * weights).sum() / weights.sum().clamp(min=1.0), losses
