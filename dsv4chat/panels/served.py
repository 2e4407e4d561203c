"""Logits as a server sends them: log probabilities of the best tokens, without ids and logits."""

import math

from textual.content import Content

from dsv4chat.core.text import quoted
from dsv4chat.panels.view import View
from dsv4chat.widgets.safe import bar, say


def served_lines(view: View, width: int, height: int) -> list[Content]:
    """The best tokens of the token in view; says so if the server sent none."""
    token = view.token
    if token is None:
        return []
    if not token.top:
        return [say(("This server sends no log probabilities.", "$foreground 60%"))]
    cells = max(4, min(40, width - 28))
    lines = []
    for rank, ((_, logprob), piece) in enumerate(zip(token.top, token.pieces, strict=True)):
        chosen = piece == token.piece and math.isclose(logprob, token.logprob, abs_tol=1e-6)
        share = math.exp(min(0.0, logprob))
        lines.append(
            say(
                (f"{rank + 1:>2} ", "$foreground 60%"),
                (f"{quoted(piece, 11):<13} ", "bold" if chosen else ""),
                (bar(share, cells), "$success" if chosen else "$primary"),
                (f" {share:6.1%}", "bold" if chosen else ""),
                (" ◀" if chosen else "", "$success"),
            )
        )
    lines = lines[: max(1, height - 1)]
    taken = f"taken: {math.exp(min(0.0, token.logprob)):.1%} · as the server sends them"
    return [*lines, say((taken, "$foreground 60%"))]
