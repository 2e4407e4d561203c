"""Logits panel: what the model would have said instead, and how sure it was."""

from textual.content import Content

from dsv4chat.core.text import quoted
from dsv4chat.panels.base import Panel
from dsv4chat.panels.view import View, entropy_bits, probability
from dsv4chat.widgets.safe import bar, say, spark


class LogitsPanel(Panel):
    TITLE = "logits"
    NOTE = "raw: before temperature, top-p, min-p"

    def build(self, view: View, width: int, height: int) -> list[Content]:
        record = view.record
        assert record is not None
        ids = [int(token_id) for token_id in record["top_ids"] if token_id >= 0]
        logits = [float(logit) for logit in record["top_logits"]][: len(ids)]
        kept = int(record.scalar("sampler_kept"))
        foot = _foot(view, logits, kept, width)
        rows = max(1, height - len(foot))
        lines: list[Content] = []
        chosen = view.token.id if view.token else int(record.scalar("chosen_id"))
        for rank, (token_id, logit) in enumerate(zip(ids, logits, strict=True)):
            if rank == kept and len(lines) < rows:
                lines.append(
                    say((f"── sampler keeps {kept} ".ljust(width, "─"), "$foreground 60%"))
                )
            if len(lines) >= rows:
                break
            lines.append(_row(view, rank, token_id, logit, token_id == chosen, width))
        return lines + foot


def _row(view: View, rank: int, token_id: int, logit: float, chosen: bool, width: int) -> Content:
    record = view.record
    assert record is not None
    share = probability(record, logit)
    cells = max(4, min(40, width - 34))
    style = "$success" if chosen else "$primary"
    return say(
        (f"{rank + 1:>2} ", "$foreground 60%"),
        (f"{_piece(view, rank, token_id, 13):<13} ", "bold" if chosen else ""),
        (bar(share, cells), style),
        (f" {share:6.1%}", "bold" if chosen else ""),
        (f" {logit:7.2f}", "$foreground 60%"),
        (" ◀" if chosen else "", "$success"),
    )


def _piece(view: View, rank: int, token_id: int, limit: int) -> str:
    """The text of an alternative; its id where the engine sent no text."""
    token = view.token
    if token is not None:
        for (other, _), piece in zip(token.top, token.pieces, strict=False):
            if other == token_id:
                return quoted(piece, limit - 2)
    return f"id {token_id}"


def _foot(view: View, logits: list[float], kept: int, width: int) -> list[Content]:
    record = view.record
    assert record is not None
    margin = logits[0] - logits[1] if len(logits) > 1 else 0.0
    chosen = float(record.scalar("chosen_logit"))
    rank = sum(logit > chosen for logit in logits) + 1
    lines = [
        say(
            ("entropy ", "$foreground 60%"),
            (f"{entropy_bits(record):.2f} bits", "bold"),
            (" · lead ", "$foreground 60%"),
            (f"{margin:.2f}", "bold"),
            (" · rank ", "$foreground 60%"),
            (f"{rank}", "bold"),
            (" · max ", "$foreground 60%"),
            (f"{float(record.scalar('logits_max')):.1f}", "bold"),
        )  # fmt: skip
    ]
    if view.token and view.token.forced:
        lines.append(say(("forced by you", "bold $accent"), (", not sampled", "$foreground 60%")))
    bad = int(record.scalar("first_bad_layer"))
    if bad >= 0:
        lines.append(say((f"⚠ not finite from layer {bad} on", "bold $error")))
    history = view.history(max(4, width - 18))
    if len(history) > 1:
        entropies = [entropy_bits(item) for item in history]
        sure = [probability(item, float(item.scalar("chosen_logit"))) for item in history]
        top = max(max(entropies), 1.0)
        lines.append(
            say(
                ("entropy  ", "$foreground 60%"),
                (spark(entropies, 0, top), "$accent"),
                (f" ≤{top:.1f}", "$foreground 60%"),
            )
        )
        lines.append(
            say(
                ("p(chosen)", "$foreground 60%"),
                (spark(sure, 0, 1), "$success"),
                (" ≤1", "$foreground 60%"),
            )
        )
    return lines
