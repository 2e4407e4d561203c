"""A comparison as lines: what differs, the distances over the tokens, the texts, one token."""

import math

from textual.content import Content

from dsv4chat.core.comparing import NOTICEABLE, Comparison, Distance, differences
from dsv4chat.core.conversation import Turn
from dsv4chat.core.probing import agreement
from dsv4chat.core.text import clean, quoted
from dsv4chat.panels.view import probability
from dsv4chat.widgets.safe import bar, say

DIM = "$foreground 60%"
LOW, HIGH = -5.0, 0.0  # the strip's bars run from 1e-5 to 1 nat
PIECES = 120  # tokens of text shown on each side of the cursor


def settings_lines(comparison: Comparison) -> list[Content]:
    """A and B by what differs, and what both share."""
    ours, theirs = comparison.settings
    apart = differences(ours, theirs)
    lines = []
    for name, turn, column in (("A", comparison.source, 1), ("B", comparison.branch, 2)):
        shown = "  ".join(f"{row[0].replace('_', '-')} {row[column]}" for row in apart)
        tokens = f"  {len(turn.token_ids)} tokens{'' if turn.done else ' so far'}"
        lines.append(say((f"{name} ", "bold $accent"), (shown, "bold"), (tokens, DIM)))
    seed = f" · seed {ours.seed}" if ours.seed == theirs.seed else ""
    lines[0] += say((f" · temperature {ours.temperature:g}{seed}", DIM))
    if comparison.source.marks:
        lines[0] += say(("  ⟂ its switches changed on the way", "$warning"))
    return lines


def summary_lines(comparison: Comparison) -> list[Content]:
    """Where texts and logits part, and how far."""
    return [_split_line(comparison), _distance_line(comparison)]


def _split_line(comparison: Comparison) -> Content:
    split, a, b = comparison.split, comparison.source, comparison.branch
    if split is None:
        same = len(b.token_ids)
        if b.done:
            return say(("texts are the same", "bold $success"), (f", all {same} tokens", DIM))
        return say(("no split so far", "bold"), (f", {same} tokens the same", DIM))
    return say(
        (f"texts split at token {split}: ", "bold"),
        (f"A {_piece(a, split)}", "$accent"), ("  ", ""), (f"B {_piece(b, split)}", "$accent"),
    )  # fmt: skip


def _piece(turn: Turn, index: int) -> str:
    return quoted(turn.pieces[index], 16) if index < len(turn.pieces) else "ends"


def _distance_line(comparison: Comparison) -> Content:
    known = [(n, d) for n, d in enumerate(comparison.distances()) if d is not None]
    if not known:
        return say(("no token has records of both yet", DIM))
    first = next((n for n, d in known if d.largest > NOTICEABLE), None)
    worst, most = max(known, key=lambda pair: pair[1].kl)
    mean = sum(d.kl for _, d in known) / len(known)
    agree = sum(d.same_best for _, d in known)
    apart = f"first logit apart > {NOTICEABLE} nat: " + (
        f"token {first}" if first is not None else "none"
    )
    return say(
        (apart, "bold" if first is not None else ""),
        (f" · KL max {most.kl:.2g} at token {worst}, mean {mean:.2g} nat", ""),
        (f" · best token agrees on {agree} of {len(known)}", DIM),
    )


def strip_lines(comparison: Comparison, at: int, width: int) -> list[Content]:
    """KL over the tokens of A, a bar each or a bin's largest; below: cursor and split."""
    distances = comparison.distances()
    label = "KL "
    room = max(8, width - len(label))
    size = max(1, math.ceil(len(distances) / room))
    bins = [distances[n : n + size] for n in range(0, len(distances), size)]
    marks = [" "] * len(bins)
    if comparison.split is not None and comparison.split // size < len(marks):
        marks[comparison.split // size] = "┆"
    if at // size < len(marks):
        marks[at // size] = "▲"
    scale = f"▁…█ 1e-5 to 1 nat · a bar {'is a token' if size == 1 else f'is {size} tokens'}"
    return [
        say((label, DIM), *(_bar(part) for part in bins)),
        say((" " * len(label) + "".join(marks), "$accent")),
        say((f"   {scale} · ┆ texts split · ▲ cursor", DIM)),
    ]


def _bar(part: list[Distance | None]) -> tuple[str, str]:
    """The largest distance of a bin; `·` where there is no record of both."""
    known = [d.kl for d in part if d is not None]
    if not known:
        return ("·", DIM)
    most = max(known)
    level = (math.log10(most) - LOW) / (HIGH - LOW) if most > 0 else 0.0
    sign = "█" if math.isinf(most) else "▁▂▃▄▅▆▇█"[max(0, min(7, int(8 * level)))]
    style = "$error" if level > 0.8 else "$warning" if level > 0.5 else "$success"
    return (sign, style)


def text_lines(comparison: Comparison, at: int) -> list[Content]:
    """Both texts around the cursor; what stands behind the split is bold."""
    lines = []
    split = comparison.split
    for name, turn in (("A", comparison.source), ("B", comparison.branch)):
        first, last = max(0, at - PIECES), min(len(turn.pieces), at + PIECES)
        parts: list[tuple[str, str]] = [(f"{name} ", "bold $accent"), ("…" if first else "", DIM)]
        for index in range(first, last):
            piece = clean(turn.pieces[index]).replace("\n", "⏎").replace("\t", "⇥")
            style = "bold" if split is not None and index >= split else DIM
            parts.append((piece, "reverse" if index == at else style))
        parts.append(("…" if last < len(turn.pieces) else "", DIM))
        lines += [say(*parts), say("")]
    return lines


def token_lines(comparison: Comparison, at: int, rows: int, width: int) -> list[Content]:
    """One token of A as both saw it: probabilities, experts, saturated blocks."""
    a, b = comparison.record_a(at), comparison.record_b(at)
    if a is None or b is None:
        whose = "A" if a is None else "B"
        return [say((f"{whose} has no record of token {at}" + _why(comparison, whose), DIM))]
    distance = comparison.distance(at)
    assert distance is not None
    experts, clipped = agreement(a, b), [sum(record["saturated"]) for record in (a, b)]
    layers = len(experts.sets)
    same = f"same experts in {sum(experts.sets)} of {layers} layers"
    where = f", not in L{experts.first}" if experts.first is not None else ""
    weights = f" · weights ≤ {experts.weight:.1g} apart"
    head = [
        say((f"KL {distance.kl:.2g} nat", "bold"),
            (f" · largest {distance.largest:.2g} nat", DIM)),
        say((same + where, "$warning" if where else ""), (weights, DIM)),
        say(("saturated blocks ", DIM), (f"A {clipped[0]}  B {clipped[1]}",
            "$error" if any(clipped) else "")),
        say((f"{'token':<16}{'A':>7}{'B':>8}   A above, B below", DIM)),
    ]  # fmt: skip
    logs = [
        {int(i): probability(record, float(logit))
         for i, logit in zip(record["top_ids"], record["top_logits"], strict=True) if i >= 0}
        for record in (a, b)
    ]  # fmt: skip
    names = comparison.pieces(at)
    ids = sorted(logs[0].keys() | logs[1].keys(), key=lambda i: -max(d.get(i, 0) for d in logs))
    cells = max(4, min(24, width - 34))
    table = []
    for token_id in ids[: max(1, (rows - len(head)) // 2)]:
        shares = [values.get(token_id) for values in logs]
        figures = "".join(f"{share:8.1%}" if share is not None else "       –" for share in shares)
        name = quoted(names[token_id], 14) if token_id in names else f"id {token_id}"
        table.append(say((f"{name:<15}", "bold"), (figures, ""), "  ",
                         (bar(shares[0] or 0, cells), "$primary")))  # fmt: skip
        table.append(say(" " * 33, (bar(shares[1] or 0, cells), "$accent")))
    return head + table


def _why(comparison: Comparison, whose: str) -> str:
    if comparison.session.busy:
        return " yet"
    return ": taps were off" if whose == "A" else ": the rerun was stopped"
