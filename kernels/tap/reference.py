"""What a step leaves in its tap record, in plain torch: fixed places in device memory, no host
read."""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.attention.reference import AttentionTap
from kernels.formats import Nvfp4Rows


class LayerFields(NamedTuple):
    """Where one layer's part of the record lies: views of it, fp32 or int32.

    gsa_used, gsa_live, saturated, flushed: [sites]. expert_ids, expert_weights: [K].
    router_margin, sink_mass, window_mass, compressed_mass, visible_blocks: 0-d. block_ids: [B].
    stream_norms: [S]. first_bad_layer: 0-d, the whole record's.
    """

    gsa_used: Tensor
    gsa_live: Tensor
    saturated: Tensor
    flushed: Tensor
    expert_ids: Tensor
    expert_weights: Tensor
    router_margin: Tensor
    sink_mass: Tensor
    window_mass: Tensor
    compressed_mass: Tensor
    visible_blocks: Tensor
    block_ids: Tensor
    stream_norms: Tensor
    first_bad_layer: Tensor


@dataclass(slots=True)
class LayerTap:
    """What one layer made of one token.

    sites: quantised activations by their place in the record. routing: expert_ids [K] int64,
    weights [K] fp32, margin 0-d fp32. attention: the mass by row. block_ids: [C] int64 which block
    each compressed row is, None: 0..C-1. ratio: tokens a block, 0 where the layer has none.
    positions: [1] int64 of the token. streams: [S, H] after the layer.
    """

    sites: dict[int, Nvfp4Rows] = field(default_factory=dict)
    routing: tuple[Tensor, Tensor, Tensor] | None = None
    attention: AttentionTap | None = None
    block_ids: Tensor | None = None
    ratio: int = 0
    positions: Tensor | None = None
    streams: Tensor | None = None


class LogitsFields(NamedTuple):
    """Where the last part lies. position, chosen_id, sampler_kept: 0-d int32. logits_max,
    logsumexp, entropy, chosen_logit: 0-d fp32. top_ids [N] int32, top_logits [N] fp32."""

    position: Tensor
    chosen_id: Tensor
    sampler_kept: Tensor
    logits_max: Tensor
    logsumexp: Tensor
    entropy: Tensor
    chosen_logit: Tensor
    top_ids: Tensor
    top_logits: Tensor


def record_layer(into: LayerFields, made: LayerTap, layer: int) -> None:
    """Write one layer's part. Several rows of a site count together, the largest gsa stands."""
    for site, rows in made.sites.items():
        live, which = rows.live.flatten().max(0)
        into.gsa_live[site].copy_(live)
        into.gsa_used[site].copy_(rows.gsa.flatten().take(which))
        into.saturated[site].copy_(rows.saturated.sum())
        into.flushed[site].copy_(rows.flushed.sum())
    if made.routing is not None:
        for target, value in zip(into[4:7], made.routing, strict=True):
            target.copy_(value)
    if made.attention is not None and made.positions is not None:
        _record_attention(into, made.attention, made.block_ids)
        ended = (made.positions[0] + 1) // made.ratio if made.ratio else torch.zeros(())
        into.visible_blocks.copy_(ended)
    if made.streams is not None:
        norms = made.streams.float().square().mean(-1).sqrt()
        into.stream_norms.copy_(norms)
        bad = into.first_bad_layer
        before = bad if layer else torch.full_like(bad, -1)
        bad.copy_(torch.where((before < 0) & ~norms.isfinite().all(), layer, before))


def _record_attention(into: LayerFields, attention: AttentionTap, block_ids: Tensor | None) -> None:
    """Shares as means over the heads, and the blocks with the largest, -1 for those without any."""
    mean = attention.shares.mean(0)
    compressed = mean[attention.window : -1]
    into.sink_mass.copy_(mean[-1])
    into.window_mass.copy_(mean[: attention.window].sum())
    into.compressed_mass.copy_(compressed.sum())
    count = min(into.block_ids.shape[0], compressed.shape[0])
    best, rows = (part[:count] for part in compressed.sort(descending=True, stable=True))
    ids = rows if block_ids is None else block_ids[rows]
    into.block_ids.fill_(-1)
    into.block_ids[:count].copy_(torch.where(best > 0, ids, -1))


def record_logits(
    into: LogitsFields, logits: Tensor, result: Tensor, stats: Tensor, position: Tensor
) -> None:
    """Write the part of the raw logits [V]; result, stats: as in `sample.reference.Sampled`."""
    top, ids = (part[: into.top_ids.shape[0]] for part in logits.sort(descending=True, stable=True))
    into.top_logits.copy_(top)
    into.top_ids.copy_(ids)
    for target, value in zip(into[1:7], (*result[:2], *stats), strict=True):
        target.copy_(value)
    into.position.copy_(position)
