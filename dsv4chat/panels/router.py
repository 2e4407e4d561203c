"""Router panel: which path ran, which experts a token got, and how close the decision was."""

import math
from collections import Counter

from textual.content import Content

from dsv4chat.core.probing import agreement, path_record
from dsv4chat.core.settings import ROUTERS
from dsv4chat.panels.base import Panel
from dsv4chat.panels.view import View, layer_kind
from dsv4chat.widgets.safe import bar, say, spark

NEAR_TIE = 1e-3


class RouterPanel(Panel):
    TITLE = "router"
    NOTE = "margin = last chosen score − next"

    def build(self, view: View, width: int, height: int) -> list[Content]:
        record, info, layer = view.record, view.info, view.layer
        assert record is not None
        path = view.turn.routers[view.index] if view.turn else ""
        experts = info.experts if info else 0
        lines = [
            say(
                ("path ", "$foreground 60%"),
                (path, "bold"),
                (f" · {record.layout.top_k} of {experts} experts a layer", "$foreground 60%"),
            ),  # fmt: skip
            say(
                (f"layer {layer} ", "bold"),
                (layer_kind(info, layer), "$foreground 60%"),
                ("  { } moves" if width > 54 else "", "$foreground 60%"),
            ),  # fmt: skip
        ]
        lines += _experts(view, width)
        lines.append(_margin(float(record["router_margin"][layer]), layer, view))
        lines += _paths(view)
        if height >= len(lines) + 2:
            lines += _load(view, width)
        lines += _table(view, width, height - len(lines))
        return lines


def _experts(view: View, width: int) -> list[Content]:
    """The layer's experts in rank order, as many a line as fit."""
    record, layer = view.record, view.layer
    assert record is not None
    ids, weights = record.row("expert_ids", layer), record.row("expert_weights", layer)
    top = max((float(weight) for weight in weights), default=1.0) or 1.0
    cell = 21
    a_line = max(1, width // cell)
    items = [
        say(
            (f"{int(i):>4} ", "bold"),
            (f"{w:.2f} ", ""),
            (bar(float(w) / top, 8), "$primary"),
            "   ",
        )
        for i, w in zip(ids, weights, strict=True)
    ]
    return [Content("").join(items[n : n + a_line]) for n in range(0, len(items), a_line)]


def _margin(margin: float, layer: int, view: View) -> Content:
    if math.isinf(margin):
        return say(
            ("margin — ", "$foreground 60%"),
            ("ids come from the hash table, no cut", "$foreground 60%"),
        )
    close = margin < NEAR_TIE
    text = f"margin {margin:.4f}"
    return say(
        (text, "$warning" if close else ""),
        (" ~ near tie: kernels may differ here" if close else "", "$warning"),
    )


def _paths(view: View) -> list[Content]:
    """How the other paths routed this token, where they have been run on the same tokens."""
    record, turn = view.record, view.turn
    assert record is not None
    lines = []
    for router in ROUTERS if turn else ():
        if turn is None or router == turn.routers[view.index]:
            continue
        other = path_record(view.session, turn, router, view.index)
        if other is None:
            continue
        found = agreement(record, other)
        layers = len(found.sets)
        sets, orders = sum(found.sets), sum(found.orders)
        swap = ""
        if found.swapped is not None:
            at, ours, theirs = found.swapped
            swap = f"  L{at} {_ids(ours)}→{_ids(theirs)}"
        lines.append(
            say(
                (f"{router:<11}", "bold"),
                (f"set {sets}/{layers}", "$warning" if swap else "$success"),
                (f"  order {orders}/{layers}  Δw {found.weight:.0e}", "$foreground 60%"),
                (swap, "$warning"),
            )
        )
    if not lines and not view.session.replay:
        lines = [say(("other paths on these tokens: ", "$foreground 60%"), ("p", "bold $primary"),
                     (" or /paths", "$foreground 60%"))]  # fmt: skip
    return lines


def _ids(experts: list[int]) -> str:
    return ",".join(str(expert) for expert in experts)


def _load(view: View, width: int) -> list[Content]:
    """How often each expert of the layer was chosen lately, in as many bins as fit."""
    history = view.history(128)
    experts = view.info.experts if view.info else 0
    if len(history) < 2 or not experts:
        return []
    counts: Counter[int] = Counter()
    for record in history:
        counts.update(int(expert) for expert in record.row("expert_ids", view.layer))
    bins = min(experts, max(8, width - 6))
    totals = [0.0] * bins
    for expert, number in counts.items():
        if 0 <= expert < experts:
            totals[expert * bins // experts] += number
    used = sum(1 for expert in counts if expert >= 0)
    previous = set(history[-2].row("expert_ids", view.layer))
    same = len(previous & set(history[-1].row("expert_ids", view.layer)))
    text = f"last {len(history)} tokens used {used} of {experts} · {same} as before"
    return [
        say(("load ", "$foreground 60%"), (spark(totals, 0, max(totals) or 1), "$accent")),
        say((text, "$foreground 60%")),
    ]


def _table(view: View, width: int, rows: int) -> list[Content]:
    """Layers around the chosen one: ids and margin."""
    record = view.record
    assert record is not None
    if rows < 2:
        return []
    layers = record.layout.layers
    first = max(0, min(view.layer - rows // 2, layers - rows + 1))
    lines = [say(("  layer  margin   experts in rank order", "$foreground 60%"))]
    for layer in range(first, min(layers, first + rows - 1)):
        margin = float(record["router_margin"][layer])
        shown = "   hash" if math.isinf(margin) else f"{margin:7.4f}"
        ids = " ".join(f"{int(expert):>3}" for expert in record.row("expert_ids", layer))
        here = "▶" if layer == view.layer else " "
        tie = "~" if margin < NEAR_TIE else " "
        lines.append(
            say(
                (f"{here} L{layer:<4}", "bold" if here == "▶" else "$foreground 60%"),
                (f"{shown} {tie} ", "$warning" if tie == "~" else ""),
                ids,
            )
        )
    return lines
