"""gsa panel.

The activation global scales of NVFP4, where they run out of room, and which blocks suffer.
"""

from dataclasses import dataclass

from textual.content import Content

from dsv4chat.panels.base import Panel
from dsv4chat.panels.view import View, headroom_bits
from dsv4chat.widgets.safe import say, spark
from engine.telemetry import TapRecord

LABEL = 13


@dataclass(frozen=True, slots=True)
class Cell:
    """One quantised tensor of one layer, for one token."""

    layer: int
    site: str
    used: float
    live: float
    stored: float
    saturated: int
    flushed: int
    blocks: int

    @property
    def headroom(self) -> float | None:
        return headroom_bits(self.stored, self.live)

    @property
    def worry(self) -> tuple[float, ...]:
        """Larger is worse."""
        room = self.headroom
        return (
            self.saturated / max(self.blocks, 1),
            self.flushed / max(self.blocks, 1),
            -(room if room is not None else 99),
        )


class GsaPanel(Panel):
    TITLE = "gsa"
    NOTE = "gsa = amax/2688 · headroom = log2(stored/live)"

    def build(self, view: View, width: int, height: int) -> list[Content]:
        record = view.record
        assert record is not None
        cells = read_cells(view, record)
        stored = any(cell.stored for cell in cells)
        lines = [_alarm(view, cells)]
        if height >= 9:
            lines += _map(view, cells, width)
        lines += [_scale_line(stored, width)] if height >= 13 else []
        room = height - len(lines) - 1
        if room < 1:
            return lines
        lines.append(_head(stored))
        worst = sorted(cells, key=lambda cell: cell.worry, reverse=True)
        lines += [_row(cell, stored) for cell in worst[:room]]
        return lines


def read_cells(view: View, record: TapRecord) -> list[Cell]:
    """Every quantised tensor of the record; sites a layer does not quantise are left out."""
    layout = record.layout
    used, live = record["gsa_used"], record["gsa_live"]
    saturated, flushed = record["saturated"], record["flushed"]
    stored = view.info.gsa_stored if view.info else {}
    cells: list[Cell] = []
    for layer in range(layout.layers):
        for number, site in enumerate(layout.sites):
            at = layer * len(layout.sites) + number
            if used[at] == 0 and live[at] == 0:
                continue
            values = stored.get(site, [])
            cells.append(
                Cell(
                    layer,
                    site,
                    used[at],
                    live[at],
                    values[layer] if layer < len(values) else 0.0,
                    int(saturated[at]),
                    int(flushed[at]),
                    layout.blocks[number],
                )  # fmt: skip
            )
    return cells


def _alarm(view: View, cells: list[Cell]) -> Content:
    """The state of the whole token in one line, in words."""
    mode = view.turn.gsa_modes[view.index] if view.turn else ""
    clipped = [cell for cell in cells if cell.saturated]
    flushed = sum(cell.flushed for cell in cells)
    if clipped:
        worst = max(clipped, key=lambda cell: cell.saturated)
        blocks = sum(cell.saturated for cell in clipped)
        where = f"L{worst.layer} {worst.site} {worst.saturated} of {worst.blocks}"
        text = f"⚠ {blocks} blocks saturate: {where}"
        return say((text, "bold $error"))
    state = f"0 blocks saturate · {flushed} flushed to 0"
    style = "$warning" if flushed else "$success"
    return say(("mode ", "$foreground 60%"), (mode, "bold"), (f" · {state}", style))


def _map(view: View, cells: list[Cell], width: int) -> list[Content]:
    """Sites as rows, layers as columns.

    Level is live/stored, or live against the site's largest.
    """
    record = view.record
    assert record is not None
    layout = record.layout
    room = max(4, width - LABEL)
    first = max(0, min(view.layer - room // 2, layout.layers - room))
    by_place = {(cell.site, cell.layer): cell for cell in cells}
    lines = [_ruler(layout.layers, first, room, view.layer)]
    for site in layout.sites:
        row = [
            by_place.get((site, layer)) for layer in range(first, min(layout.layers, first + room))
        ]
        top = max((cell.live for cell in row if cell), default=0.0)
        parts: list[tuple[str, str]] = [(f"{site:<{LABEL}}", "$foreground 60%")]
        parts += [_cell_sign(cell, top) for cell in row]
        lines.append(say(*parts))
    return lines


def _ruler(layers: int, first: int, room: int, chosen: int) -> Content:
    marks = [" "] * min(room, layers - first)
    for layer in range(first, first + len(marks)):
        label = str(layer)
        at = layer - first
        if layer % 10 == 0 and at + len(label) <= len(marks):
            marks[at : at + len(label)] = list(label)
    if 0 <= chosen - first < len(marks):
        marks[chosen - first] = "▾"
    return say((f"{'layer':<{LABEL}}", "$foreground 60%"), ("".join(marks), "$foreground 60%"))


def _cell_sign(cell: Cell | None, top: float) -> tuple[str, str]:
    """A sign and a colour; alarms have signs of their own."""
    if cell is None:
        return ("·", "$foreground 60%")
    if cell.saturated:
        return ("▲", "bold $error")
    room = cell.headroom
    if room is not None:
        level = spark([2.0**-room], 0, 1)
        style = "$error" if room < 0 else "$warning" if room < 0.5 else "$success"
    else:
        level = spark([cell.live], 0, top or 1)
        style = "$primary"
    return ("▿", "$warning") if cell.flushed else (level, style)


def _scale_line(stored: bool, width: int) -> Content:
    what = "▁…█ live/stored" if stored else "▁…█ live, against the site's largest"
    return say((f"{what}   ▲ saturated   ▿ flushed   · not quantised", "$foreground 60%"))


def _head(stored: bool) -> Content:
    tail = f"{'stored':>9}  headroom" if stored else "  no input_scale in the checkpoint"
    return say((f"{'worst first':<15}{'live gsa':>9} sat ftz{tail}", "$foreground 60%"))


def _row(cell: Cell, stored: bool) -> Content:
    room = cell.headroom
    style = "bold $error" if cell.saturated else "$warning" if cell.flushed else ""
    sign = "⚠" if cell.saturated else " "
    parts = [
        (f"{sign}{f'L{cell.layer}':<4}{cell.site:<10.10}", style),
        (f"{cell.live:>9.2e} {cell.saturated:>3} {cell.flushed:>3}", style),
    ]
    if stored:
        text = f"{cell.stored:>9.1e}  {room:+.1f} b" if room is not None else "     none"
        parts.append((text, "$error" if room is not None and room < 0 else style))
    return say(*parts)
