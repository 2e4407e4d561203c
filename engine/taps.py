"""Collects what a step's layers made and has it written into the record, layer by layer.

With taps off a step gets no writer, and nothing here runs or is captured.
"""

import torch
from torch import Tensor

from engine.telemetry import SITES, TapLayout
from kernels.attention.reference import AttentionTap
from kernels.formats import Nvfp4Rows
from kernels.sample.reference import Sampled
from kernels.tap.reference import LayerFields, LayerTap, LogitsFields

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
        self._made = LayerTap()

    def site(self, site: str, rows: Nvfp4Rows) -> None:
        """One quantised activation of the layer."""
        self._made.sites[_SITE_INDEX[site]] = rows

    def routing(self, expert_ids: Tensor, weights: Tensor, margin: Tensor) -> None:
        self._made.routing = (expert_ids, weights, margin)

    def attention(
        self, tap: AttentionTap, positions: Tensor, block_ids: Tensor | None, ratio: int
    ) -> None:
        self._made.attention, self._made.positions = tap, positions
        self._made.block_ids, self._made.ratio = block_ids, ratio

    def streams(self, streams: Tensor) -> None:
        self._made.streams = streams

    def end_layer(self, layer: int) -> tuple[LayerFields, LayerTap, int]:
        """Where the layer's part goes, what it is, and which: the arguments of `record_layer`."""
        made, self._made = self._made, LayerTap()
        *fields, bad = LayerFields._fields
        views = (self._views[name][layer] for name in fields)
        return LayerFields(*views, self._views[bad]), made, layer

    def end(self, logits: Tensor, sampled: Sampled, position: Tensor) -> tuple[object, ...]:
        """The arguments of `record_logits`."""
        into = LogitsFields(*(self._views[name] for name in LogitsFields._fields))
        return into, logits, sampled.result, sampled.stats, position
