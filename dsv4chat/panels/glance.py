"""The panels in a few words, for the status bar."""

from textual.content import Content

from dsv4chat.panels.gsa import read_cells
from dsv4chat.panels.view import View, entropy_bits, probability
from dsv4chat.widgets.safe import say


def glance(view: View) -> Content | None:
    """Sureness and alarms of the token in view; None without a record."""
    record = view.record
    if record is None:
        return None
    sure = probability(record, float(record.scalar("chosen_logit")))
    parts: list[tuple[str, str]] = [
        ("" if view.live else f"token {view.index}  ", "bold"),
        (f"p {sure:.2f} entropy {entropy_bits(record):.1f} bits", "$foreground 60%"),
    ]
    clipped = [cell for cell in read_cells(view, record) if cell.saturated]
    if clipped:
        worst = max(clipped, key=lambda cell: cell.saturated)
        parts.append((f"  ⚠ gsa L{worst.layer} saturates", "bold $error"))
    if int(record.scalar("first_bad_layer")) >= 0:
        parts.append(("  ⚠ not finite", "bold $error"))
    return say(*parts)
