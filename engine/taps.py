"""Writes the tap record of a step: fixed places in one preallocated buffer, no host read.

With taps off a step gets no writer, and nothing here runs or is captured.
"""

import torch
from torch import Tensor

from engine.telemetry import SITES, TapLayout
from kernels.attention.reference import AttentionTap
from kernels.formats import Nvfp4Rows

_SITE_INDEX = {site: i for i, site in enumerate(SITES)}


class TapWriter:
    """One record, as device memory. `buffer`: [words] int32; float fields are stored as their
    bits."""

    def __init__(self, layout: TapLayout, device: torch.device) -> None:
        self.layout = layout
        self.buffer = torch.zeros(layout.words, dtype=torch.int32, device=device)
        self._views = {}
        for field in layout.fields():
            words = self.buffer[field.offset : field.offset + field.size]
            typed = words.view(torch.float32) if field.kind == "f" else words
            self._views[field.name] = typed.view(field.shape)

    def write(self, name: str, value: Tensor, layer: int | None = None) -> None:
        """Copy a value into a field, or into one layer's row of it."""
        view = self._views[name]
        (view if layer is None else view[layer]).copy_(value)

    def site(self, layer: int, site: str, rows: Nvfp4Rows) -> None:
        """Record one quantised activation; several rows count together, the largest gsa stands."""
        index = _SITE_INDEX[site]
        live, which = rows.live.flatten().max(0)
        self._views["gsa_live"][layer, index].copy_(live)
        self._views["gsa_used"][layer, index].copy_(rows.gsa.flatten().take(which))
        self._views["saturated"][layer, index].copy_(rows.saturated.sum())
        self._views["flushed"][layer, index].copy_(rows.flushed.sum())

    def attention(self, layer: int, tap: AttentionTap) -> None:
        self.write("sink_mass", tap.sink, layer)
        self.write("window_mass", tap.window, layer)
        self.write("compressed_mass", tap.compressed, layer)

    def heaviest_blocks(self, layer: int, mass: Tensor, block_ids: Tensor | None) -> None:
        """Ids of the compressed rows with the largest mass [K]; block_ids [K] names them (None:
        0..K-1).

        Rows without mass are written as -1.
        """
        count = min(self.layout.top_blocks, mass.shape[0])
        best, rows = torch.topk(mass, count)
        ids = rows if block_ids is None else block_ids[rows]
        target = self._views["block_ids"][layer]
        target.fill_(-1)
        target[:count].copy_(torch.where(best > 0, ids, -1))

    def streams(self, layer: int, streams: Tensor) -> None:
        """RMS of each residual stream [S, H] after a layer; the first bad layer stays in place."""
        norms = streams.float().square().mean(-1).sqrt()
        self.write("stream_norms", norms, layer)
        bad = self._views["first_bad_layer"]
        if layer == 0:
            bad.fill_(-1)
        here = (bad < 0) & ~norms.isfinite().all()
        bad.copy_(torch.where(here, layer, bad))

    def logits(self, logits: Tensor, chosen: Tensor, kept: Tensor, position: Tensor) -> None:
        """Statistics of the raw logits [V] and the token taken from them."""
        top, ids = torch.topk(logits, self.layout.top_n)
        log_z = torch.logsumexp(logits, 0)
        probabilities = torch.exp(logits - log_z)
        self.write("top_logits", top)
        self.write("top_ids", ids)
        self.write("logits_max", top[0])
        self.write("logsumexp", log_z)
        self.write("entropy", log_z - (probabilities * logits).sum())
        self.write("chosen_id", chosen)
        self.write("chosen_logit", logits.take(chosen))
        self.write("sampler_kept", kept)
        self.write("position", position)
