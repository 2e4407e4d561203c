"""Kernels panel: which implementation every op got and why, the pace, and the engine's log."""

import statistics
import time

from textual.content import Content

from dsv4chat.core.text import count, one_line, seconds, size
from dsv4chat.panels.base import Panel
from dsv4chat.panels.view import View
from dsv4chat.widgets.safe import say


class KernelsPanel(Panel):
    TITLE = "kernels"
    NOTE = "what runs, not what was asked for"
    NEEDS_RECORD = False

    def build(self, view: View, width: int, height: int) -> list[Content]:
        ready = view.session.ready
        if ready is None:
            return [
                say(("The model is not loaded yet: the plan comes with it.", "$foreground 60%"))
            ]
        head = [*_pace(view), *_steps(view), *_engine(view)]
        log = view.session.backend.log_tail(4) if height >= 14 else ()
        rows = max(1, height - len(head) - len(log) - (1 if log else 0))
        lines = head + _plan(view, rows, width)
        if log:
            lines.append(say(("engine log", "$foreground 60%")))
            lines += [say((one_line(text, max(width, 8)), "$foreground 60%")) for text in log]
        return lines


def _pace(view: View) -> list[Content]:
    timing = view.session.timing
    p50, p90, p99 = (timing.percentile_ms(share) for share in (0.5, 0.9, 0.99))
    if p50 is None:
        return [say(("inter-token time: no answer yet", "$foreground 60%"))]
    lines = [
        say(
            ("inter-token ms  p50 ", "$foreground 60%"),
            (f"{p50:.1f}", "bold"),
            ("  p90 ", "$foreground 60%"),
            (f"{p90:.1f}", "bold"),
            ("  p99 ", "$foreground 60%"),
            (f"{p99:.1f}", "bold"),
            ("  on arrival, newest run", "$foreground 60%"),
        )  # fmt: skip
    ]
    done = view.turn.finished if view.turn else None
    first = done.ttft_ms / 1000 if done else timing.ttft_s
    if first:
        lines.append(say(("time to first token ", "$foreground 60%"), (seconds(first), "bold")))
    rate = done.tok_s if done else timing.tok_s
    info = view.info
    if info and info.bytes_per_token and rate:
        lines.append(
            say(
                ("weights read  ", "$foreground 60%"),
                (f"{info.bytes_per_token * rate / 1e9:.2f} GB/s", "bold"),
                (f"  = {size(info.bytes_per_token)} a token × {rate:.1f} tok/s", "$foreground 60%"),
            )  # fmt: skip
        )
    return lines


def _steps(view: View) -> list[Content]:
    """Step times as the engine measured them, graph state, and what taps cost."""
    done = view.turn.finished if view.turn else None
    if done is None or not done.step_ms:
        return []
    p50, p90, p99 = done.step_ms
    figures = f"{p50:.1f}   p90 {p90:.1f}   p99 {p99:.1f}"
    lines = [say(("in the engine   p50 ", "$foreground 60%"), (figures, ""))]
    device = view.session.ready.device if view.session.ready else ""
    if done.graph_tokens:
        made = done.tokens - (view.turn.kept if view.turn else 0)
        text = f"{done.graph_tokens} of {made} tokens replayed a CUDA graph"
        lines.append(say(("graph ", "$foreground 60%"), (text, "")))
    else:
        why = "the CPU runs the step directly" if device.startswith("cpu") else "none was replayed"
        lines.append(say((f"graph – {why}", "$foreground 60%")))
    costs = tap_costs(view)
    if len(costs) == 2:
        share = costs[True] / costs[False] - 1
        text = f"{share:+.1%}: {costs[True]:.1f} ms a token with, {costs[False]:.1f} without"
        lines.append(say(("taps cost ", "$foreground 60%"), (text, "")))
    else:
        lines.append(say(("taps cost: answer once with taps on, once off (F7)", "$foreground 60%")))
    return lines


def tap_costs(view: View) -> dict[bool, float]:
    """Median ms a token with taps and without, over this chat's answers on the path in view."""
    if view.turn is None or view.turn.settings is None:
        return {}
    ours = view.turn.settings
    found: dict[bool, list[float]] = {}
    for turn in view.session.conversation.turns.values():
        its, done = turn.settings, turn.finished
        if its is None or done is None or not done.step_ms or turn.marks:
            continue
        same = (its.router, its.gsa, its.precision) == (ours.router, ours.gsa, ours.precision)
        if same and turn.model == view.turn.model:
            found.setdefault(its.taps, []).append(done.step_ms[0])
    return {taps: statistics.median(times) for taps, times in found.items()}


def _engine(view: View) -> list[Content]:
    session = view.session
    ready = session.ready
    assert ready is not None
    pid = getattr(session.backend, "pid", None)
    started = getattr(session.backend, "started_at", 0.0)
    up = f" · up {seconds(time.monotonic() - started)}" if pid else ""
    where = f"engine {f'pid {pid}' if pid else 'gone'}{up}"
    done = view.turn.finished if view.turn else None
    dropped = (done.telemetry_dropped if done else 0) + getattr(
        session.backend, "telemetry_dropped", 0
    )
    info = ready.model
    return [
        say(
            (where, ""),
            (f" · {ready.device} · {size(info.resident_bytes)} resident", "$foreground 60%"),
        ),
        say(
            ("taps ", "$foreground 60%"),
            ("on" if session.settings.taps else "off", "bold"),
            (
                f" · {count(4 * ready.layout.words)} bytes a token · {dropped} records dropped",
                "$foreground 60%",
            ),
        ),  # fmt: skip
    ]


def _plan(view: View, rows: int, width: int) -> list[Content]:
    ready = view.session.ready
    assert ready is not None
    refused = [(f"router {name}", "refused", reason) for name, reason in ready.refused.items()]
    plan = [(row.op, row.impl, row.reason) for row in ready.plan] + refused
    first = max((len(op) for op, _, _ in plan), default=0)
    second = max((len(impl) for _, impl, _ in plan), default=0)
    lines = [
        say(
            (f"{one_line(op, 24):<{min(first, 24)}}  ", ""),
            (
                f"{one_line(impl, 24):<{min(second, 24)}}  ",
                "$warning" if impl == "refused" else "bold",
            ),
            (one_line(reason, 120), "$foreground 60%"),
        )
        for op, impl, reason in plan
    ]
    if len(lines) > rows:
        lines = [
            *lines[: rows - 1],
            say((f"… {len(lines) - rows + 1} more on F2", "$foreground 60%")),
        ]
    return lines
