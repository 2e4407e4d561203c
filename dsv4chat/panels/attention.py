"""Attention panel: where each layer looked: the sink, the window, or compressed blocks."""

from textual.content import Content

from dsv4chat.panels.base import Panel
from dsv4chat.panels.view import View, layer_kind
from dsv4chat.widgets.safe import say

SINK, WINDOW, COMPRESSED = "░", "█", "▒"


class AttentionPanel(Panel):
    TITLE = "attention"
    NOTE = "share of attention, mean over heads"

    def build(self, view: View, width: int, height: int) -> list[Content]:
        record, layer = view.record, view.layer
        assert record is not None
        lines = [
            say(
                (f"{SINK} sink ", "$foreground 60%"),
                (f"{WINDOW} window ", "$primary"),
                (f"{COMPRESSED} compressed", "$accent"),
                (f"  position {int(record.scalar('position'))}", "$foreground 60%"),
            ),  # fmt: skip
        ]
        foot = _foot(view, layer)
        rows = max(1, height - len(lines) - len(foot))
        layers = record.layout.layers
        first = max(0, min(layer - rows // 2, layers - rows))
        for number in range(first, min(layers, first + rows)):
            lines.append(_row(view, number, width))
        return lines + foot


def _row(view: View, layer: int, width: int) -> Content:
    record = view.record
    assert record is not None
    shares = [
        float(record[name][layer]) for name in ("sink_mass", "window_mass", "compressed_mass")
    ]
    cells = max(6, min(60, width - 34))
    edges = [round(cells * min(1.0, sum(shares[: n + 1]))) for n in range(3)]
    blocks = int(record["visible_blocks"][layer])
    here = layer == view.layer
    return say(
        (f"{'▶' if here else ' '}L{layer:<3}", "bold" if here else "$foreground 60%"),
        (SINK * edges[0], "$foreground 60%"),
        (WINDOW * (edges[1] - edges[0]), "$primary"),
        (COMPRESSED * (edges[2] - edges[1]), "$accent"),
        (" " * (cells - edges[2]), ""),
        (f" {shares[0]:4.0%}{shares[1]:5.0%}{shares[2]:5.0%}", ""),
        (f" {blocks:>5} blk" if blocks else "", "$foreground 60%"),
    )


def _foot(view: View, layer: int) -> list[Content]:
    """The chosen layer in words, and its heaviest compressed blocks."""
    record = view.record
    assert record is not None
    ids = [int(block) for block in record.row("block_ids", layer) if block >= 0]
    lines = [say((f"layer {layer} ", "bold"), (layer_kind(view.info, layer), "$foreground 60%"))]
    if ids:
        lines.append(
            say(("heaviest blocks ", "$foreground 60%"), " ".join(str(block) for block in ids))
        )
    norms = [float(norm) for norm in record.row("stream_norms", layer)]
    lines.append(say(("stream RMS ", "$foreground 60%"), " ".join(f"{norm:.3g}" for norm in norms)))
    return lines
