"""Logits panel: what the model would have said instead, and how sure it was."""

import math

from textual.content import Content

from dsv4chat.core.settings import Settings
from dsv4chat.core.text import quoted
from dsv4chat.panels.base import Panel
from dsv4chat.panels.served import served_lines
from dsv4chat.panels.view import View, entropy_bits, probability
from dsv4chat.widgets.safe import bar, say, spark


class LogitsPanel(Panel):
    TITLE = "logits"
    NOTE = "raw: before temperature · drawn: after all cuts"

    def without_record(self, view: View, width: int, height: int) -> list[Content]:
        return served_lines(view, width, height) if view.session.remote else []

    def build(self, view: View, width: int, height: int) -> list[Content]:
        record = view.record
        assert record is not None
        ids = [int(token_id) for token_id in record["top_ids"] if token_id >= 0]
        logits = [float(logit) for logit in record["top_logits"]][: len(ids)]
        kept = int(record.scalar("sampler_kept"))
        foot = _foot(view, logits, kept, width)
        rows = max(1, height - len(foot))
        settings = view.turn.settings if view.turn else None
        drawn = drawn_shares(logits, kept, settings.temperature) if settings else []
        head = f"{'':<17}{'':<{_cells(width)}}    raw   drawn   logit"
        lines: list[Content] = [say((head, "$foreground 60%"))] if rows > 6 else []
        chosen = view.token.id if view.token else int(record.scalar("chosen_id"))
        for rank, (token_id, logit) in enumerate(zip(ids, logits, strict=True)):
            if rank == kept and len(lines) < rows:
                lines.append(_cut(kept, settings, width))
            if len(lines) >= rows:
                break
            share = drawn[rank] if rank < len(drawn) else None
            lines.append(_row(view, rank, token_id, logit, token_id == chosen, share, width))
        return lines + foot


def drawn_shares(logits: list[float], kept: int, temperature: float) -> list[float]:
    """What the sampler drew from: the kept ids at its temperature, together 1.

    Empty where it kept more than were recorded. `logits`: best first, raw.
    """
    if not 0 < kept <= len(logits):
        return []
    if temperature == 0 or kept == 1:
        return [1.0] + [0.0] * (kept - 1)
    masses = [math.exp((logit - logits[0]) / temperature) for logit in logits[:kept]]
    return [mass / sum(masses) for mass in masses]


def _cells(width: int) -> int:
    return max(4, min(40, width - 43))


def _cut(kept: int, settings: Settings | None, width: int) -> Content:
    """The line below the last token that the sampler kept, and what cut there."""
    why = ""
    if settings is not None:
        greedy = settings.temperature == 0
        parts = ["greedy" if greedy else f"T {settings.temperature:g}"]
        parts += [f"top-p {settings.top_p:g}"] if settings.top_p < 1 and not greedy else []
        parts += [f"min-p {settings.min_p:g}"] if settings.min_p > 0 and not greedy else []
        why = f": {' '.join(parts)}"
    return say((f"── sampler keeps {kept}{why} ".ljust(width, "─"), "$foreground 60%"))


def _row(
    view: View,
    rank: int,
    token_id: int,
    logit: float,
    chosen: bool,
    drawn: float | None,
    width: int,
) -> Content:
    record = view.record
    assert record is not None
    share = probability(record, logit)
    cells = _cells(width)
    style = "$success" if chosen else "$primary"
    return say(
        (f"{rank + 1:>2} ", "$foreground 60%"),
        (f"{_piece(view, rank, token_id, 13):<13} ", "bold" if chosen else ""),
        (bar(share, cells), style),
        (f" {share:6.1%}", "bold" if chosen else ""),
        (f" {drawn:7.1%}" if drawn is not None else "       –", ""),
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
