"""The panels in a few words, for the status bar."""

from textual.content import Content

from dsv4chat.panels.gsa import read_cells
from dsv4chat.panels.view import View, entropy_bits, probability
from dsv4chat.widgets.safe import say


def glance(view: View) -> tuple[Content, Content] | None:
    """Facts and alarms of the token in view; None without a record."""
    record = view.record
    if record is None:
        return None
    sure = probability(record, float(record.scalar("chosen_logit")))
    facts = say(
        ("" if view.live else f"token {view.index}  ", "bold"),
        (f"p {sure:.2f} · entropy {entropy_bits(record):.1f} bits", "$foreground 60%"),
    )
    alarms: list[tuple[str, str]] = []
    clipped = [cell for cell in read_cells(view, record) if cell.saturated]
    if clipped:
        worst = max(clipped, key=lambda cell: cell.saturated)
        alarms.append((f"⚠ gsa L{worst.layer} saturates  ", "bold $error"))
    bad = int(record.scalar("first_bad_layer"))
    if bad >= 0:
        alarms.append((f"⚠ not finite from L{bad}  ", "bold $error"))
    return facts, say(*alarms)
