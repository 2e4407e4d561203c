"""Launches `cute_layer` and `cute_logits`."""

import torch
from torch import Tensor

from kernels.attention.reference import AttentionTap
from kernels.compiled import KernelLibrary
from kernels.formats import Nvfp4Rows
from kernels.tap import reference
from kernels.tap.reference import LayerFields, LayerTap, LogitsFields

MOST_ROWS = 32  # of a site
_THREADS = 256
_SLICE = 4096


def record_layer(library: KernelLibrary, into: LayerFields, made: LayerTap, layer: int) -> None:
    """As `reference.record_layer`, for a layer of which all is there. Capture-safe."""
    routing, attention, streams = made.routing, made.attention, made.streams
    if routing is None or attention is None or streams is None or not _fits(made, streams):
        return reference.record_layer(into, made, layer)
    heads, columns = attention.shares.shape
    kernel = library.get(
        "kernels.tap.cute_layer",
        sites=into.gsa_used.shape[0],
        choices=into.expert_ids.shape[0],
        heads=heads,
        window=attention.window,
        extra=columns - attention.window - 1,
        ratio=made.ratio,
        has_ids=made.block_ids is not None,
        top=into.block_ids.shape[0],
        count=streams.shape[0],
        hidden=streams.shape[1],
    )
    sites = [_site(made.sites.get(site), into) for site in range(into.gsa_used.shape[0])]
    arguments = [part for site in sites for part in site]
    arguments += [into.gsa_used, into.gsa_live, into.saturated, into.flushed]
    arguments += [*routing, into.expert_ids, into.expert_weights, into.router_margin]
    arguments += _attention(attention, made, into)
    arguments += [streams, into.stream_norms, into.first_bad_layer, layer]
    kernel.launch((3, 1, 1), _THREADS, 256, arguments)
    return None


def _fits(made: LayerTap, streams: Tensor) -> bool:
    few = all(rows.live.numel() <= MOST_ROWS for rows in made.sites.values())
    return few and streams.dtype == torch.bfloat16 and streams.is_contiguous()


def _site(rows: Nvfp4Rows | None, into: LayerFields) -> list[Tensor | int]:
    """A site's arguments: how many rows, their numbers, and the step between saturation counts, 0
    where one zero stands for all."""
    if rows is None:
        return [0, into.gsa_live, into.gsa_used, into.saturated, 1, into.flushed]
    live, gsa, flushed = (part.contiguous() for part in (rows.live, rows.gsa, rows.flushed))
    shared = not any(rows.saturated.stride())
    saturated = rows.saturated if shared else rows.saturated.contiguous()
    return [live.numel(), live, gsa, saturated, int(not shared), flushed]


def _attention(attention: AttentionTap, made: LayerTap, into: LayerFields) -> list[Tensor | int]:
    positions = made.positions
    assert positions is not None
    ids = positions if made.block_ids is None else made.block_ids.contiguous()
    masses = [into.sink_mass, into.window_mass, into.compressed_mass]
    return [attention.shares, ids, positions, *masses, into.visible_blocks, into.block_ids]


def record_logits(
    library: KernelLibrary,
    into: LogitsFields,
    logits: Tensor,
    result: Tensor,
    stats: Tensor,
    position: Tensor,
) -> None:
    """As `reference.record_logits`. Capture-safe."""
    vocab, top = logits.shape[0], into.top_ids.shape[0]
    parts = -(-vocab // _SLICE)
    keys = torch.empty(2, parts, top, dtype=torch.int32, device=logits.device)
    kernel = library.get("kernels.tap.cute_logits", vocab=vocab, top=top)
    counters = library.counters(logits.device)
    arguments = [logits, result, stats, position, keys[0], keys[1], counters, into.position]
    arguments += [into.chosen_id, into.sampler_kept, into.logits_max, into.logsumexp]
    arguments += [into.entropy, into.chosen_logit, into.top_ids, into.top_logits]
    kernel.launch((parts, 1, 1), _THREADS, 256, arguments)
