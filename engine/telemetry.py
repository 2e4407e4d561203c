"""The fixed-size binary record the decode step writes for every token when taps are on.

One description serves the engine, which fills the record on the device, and the app, which reads it
without torch: `TapLayout` gives every field an offset in 4-byte words; `TapRecord` is a read-only
view of one record.
"""

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

import msgspec

# Activation tensors that are quantised to NVFP4, in the order of the forward pass. Projections that
# read the same tensor share one gsa: `attn_in` feeds wq_a and wkv, `ffn_in` feeds the gate, w1, w3
# and the shared w1, w3.
SITES = ("attn_in", "q_latent", "o_a_in", "o_b_in", "ffn_in", "w2_in", "shared_w2_in", "head_in")
TOP_N = 20
TOP_BLOCKS = 16


class Field(NamedTuple):
    """One field: first word, shape, and how its 4-byte words are read (`f` fp32, `i` int32)."""

    name: str
    offset: int
    shape: tuple[int, ...]
    kind: Literal["f", "i"]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class TapLayout(msgspec.Struct, frozen=True):
    """The sizes of a model that fix its record. `blocks[s]` is the number of 16-blocks of a row at
    site s."""

    layers: int
    top_k: int
    streams: int
    blocks: tuple[int, ...]
    sites: tuple[str, ...] = SITES
    top_n: int = TOP_N
    top_blocks: int = TOP_BLOCKS

    def fields(self) -> Iterator[Field]:
        """All fields in memory order.

        gsa is amax/2688. `gsa_used` is what the quantiser divided by, `gsa_live` what the tensor
        asked for; they differ only in gsa mode `checkpoint`. -1 in an id field means "none"; a site
        that a layer does not quantise has gsa_used 0.
        """
        per_site = (self.layers, len(self.sites))
        table: list[tuple[str, tuple[int, ...], Literal["f", "i"]]] = [
            ("position", (), "i"),  # of the token that was fed in
            ("chosen_id", (), "i"),
            ("sampler_kept", (), "i"),  # ids that survived top-p and min-p
            ("first_bad_layer", (), "i"),  # first layer with a non-finite stream, -1 if none
            ("logits_max", (), "f"),
            ("logsumexp", (), "f"),  # natural log, raw logits
            ("entropy", (), "f"),  # nats, raw logits
            ("chosen_logit", (), "f"),
            ("top_ids", (self.top_n,), "i"),
            ("top_logits", (self.top_n,), "f"),
            ("gsa_used", per_site, "f"),
            ("gsa_live", per_site, "f"),
            ("saturated", per_site, "i"),  # blocks whose E4M3 scale was clamped at 448
            ("flushed", per_site, "i"),  # non-zero blocks whose E4M3 scale rounded to zero
            ("expert_ids", (self.layers, self.top_k), "i"),
            ("expert_weights", (self.layers, self.top_k), "f"),
            (
                "router_margin",
                (self.layers,),
                "f",
            ),  # k-th minus (k+1)-th ranked score; inf for hash layers
            ("sink_mass", (self.layers,), "f"),  # shares of attention, mean over heads
            ("window_mass", (self.layers,), "f"),
            ("compressed_mass", (self.layers,), "f"),
            ("visible_blocks", (self.layers,), "i"),
            ("block_ids", (self.layers, self.top_blocks), "i"),  # heaviest compressed blocks
            ("stream_norms", (self.layers, self.streams), "f"),  # RMS of each residual stream
        ]
        offset = 0
        for name, shape, kind in table:
            yield Field(name, offset, shape, kind)
            offset += math.prod(shape)

    @property
    def words(self) -> int:
        """Length of one record in 4-byte words."""
        *_, last = self.fields()
        return last.offset + last.size


class TapRecord:
    """A read-only view of one token's record: `record["gsa_used"]` is a flat memoryview, row-major.

    Raises:
        ValueError: the payload's length is not the layout's.
    """

    def __init__(self, layout: TapLayout, payload: bytes) -> None:
        if len(payload) != 4 * layout.words:
            raise ValueError(f"tap record: {len(payload)} bytes, expected {4 * layout.words}")
        self.layout = layout
        self.payload = payload
        self._fields = {field.name: field for field in layout.fields()}

    def __getitem__(self, name: str) -> "memoryview[float] | memoryview[int]":
        field = self._fields[name]
        start = 4 * field.offset
        return memoryview(self.payload)[start : start + 4 * field.size].cast(field.kind)

    def scalar(self, name: str) -> float | int:
        return self[name][0]

    def row(self, name: str, layer: int) -> "memoryview[float] | memoryview[int]":
        """The values of one layer in a field whose first axis is the layer."""
        width = math.prod(self._fields[name].shape[1:])
        return self[name][layer * width : (layer + 1) * width]
