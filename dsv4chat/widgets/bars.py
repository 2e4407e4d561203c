"""The one-line bars: what runs (top), how it runs (above the keys), and the keys."""

import time

from rich.cells import cell_len
from textual.content import Content
from textual.widget import Widget

from dsv4chat.core.commands import COMMANDS, key_name
from dsv4chat.core.loops import find_loop
from dsv4chat.core.session import ChatSession
from dsv4chat.core.text import count, one_line, seconds, size
from dsv4chat.widgets.safe import bar, columns, muted, say

SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


def spinner() -> str:
    return SPINNER[int(time.monotonic() * 10) % len(SPINNER)]


class TopBar(Widget):
    """Model and device on the left; rate and context on the right."""

    def __init__(self, session: ChatSession, **kwargs) -> None:
        super().__init__(**kwargs)
        self.session = session

    def render(self) -> Content:
        session, width = self.session, self.size.width
        ready = session.ready
        name = one_line(ready.model.name, 40) if ready else "no model yet"
        left = say(("dsv4chat", "bold $primary"), ("  ", ""), (name, "bold"))
        if session.remote and width >= 70:
            left += say((f"  {one_line(session.remote, 60)}", "$foreground 60%"))
        elif ready and width >= 70:
            left += say((f"  {ready.device} · {ready.model.precision}", "$foreground 60%"))
        if ready and ready.model.layers and width >= 110:
            info = ready.model
            left += say(
                (
                    f" · {info.layers} layers · {info.top_k} of {info.experts} experts",
                    "$foreground 60%",
                )
            )
        return columns(left, self._right(width), width)

    def _right(self, width: int) -> Content:
        session = self.session
        if session.ready is None:
            return say("")
        used, room = session.context_used, session.ready.context
        if not room:
            return say((f"context {count(used)}", "$foreground 60%"))
        share = used / room
        style = "$error" if share > 0.9 else "$warning" if share > 0.75 else "$foreground 60%"
        text = say((f"context {count(used)} of {count(room)}", style))
        if width >= 60:
            cells = 8 if width < 110 else 14
            text = text + say(
                (" ", ""),
                (bar(max(share, 0.005 if used else 0), cells), f"{style} on $surface-lighten-1"),
            )
        return text


class StatusBar(Widget):
    """The phase in words, timing of the answer, and the path that makes the tokens."""

    def __init__(self, session: ChatSession, **kwargs) -> None:
        super().__init__(**kwargs)
        self.session = session
        self.glance: tuple[Content, Content] | None = None

    def render(self) -> Content:
        """State and alarms first, then the path, then figures, as far as they fit."""
        width = self.size.width
        state, figures = self._state()
        facts, alarms = self.glance or (say(""), say(""))
        left, right = state + say("  ") + alarms, self._path()
        if left.cell_length + right.cell_length + 2 > width:
            right = say("")
        room = width - left.cell_length - right.cell_length - 2
        shown = ""
        for figure in figures:
            longer = f"{shown} · {figure}" if shown else figure
            shown = longer if cell_len(longer) <= room else shown
        left = left + muted(shown)
        if facts.cell_length + cell_len(shown) + 3 <= room:
            left = left + say("   ") + facts
        return columns(left, right, width)

    def _state(self) -> tuple[Content, list[str]]:
        """The phase in a few words, and its figures."""
        session = self.session
        if session.phase == "dead":
            return say(("✖ engine lost", "bold $error")), ["F8 restarts it", "your chat is kept"]
        if session.stuck is not None:
            return say(("⚠ engine does not respond", "bold $warning")), ["F8 restarts it"]
        if session.stopping:
            return say((f"{spinner()} stopping", "$warning")), []
        if session.phase in ("starting", "loading"):
            return self._loading()
        if session.phase == "prefill":
            return self._prefill()
        if session.phase == "answering":
            return self._answering()
        if session.replay:
            return say((f"▷ replay of {one_line(session.replay, 40)}", "$accent")), self._idle()
        if session.refusal is not None:
            return say(("✖ the model cannot take this chat", "bold $error")), ["/mend repairs it"]
        return say(("● ready", "$success")), self._idle()

    def _loading(self) -> tuple[Content, list[str]]:
        progress = self.session.load_progress
        queued = ["your message is sent when it is ready"] if self.session.queued else []
        if progress is None:
            return say((f"{spinner()} starting the engine", "$accent")), queued
        parts = [one_line(progress.stage, 40)]
        if progress.total_bytes:
            parts.append(f"{100 * progress.done_bytes / progress.total_bytes:.0f} %")
        if progress.gb_s:
            parts.append(f"{progress.gb_s:.1f} GB/s")
        if progress.eta_s is not None:
            parts.append(f"{seconds(progress.eta_s)} left")
        return say((f"{spinner()} {' · '.join(parts)}", "$accent")), queued

    def _prefill(self) -> tuple[Content, list[str]]:
        prefill = self.session.prefill
        if prefill is None or not prefill.total:
            return say((f"{spinner()} reading the conversation", "$accent")), []
        text = f"{spinner()} reading {count(prefill.done)} of {count(prefill.total)} tokens"
        reused = [f"{count(prefill.reused)} reused"] if prefill.reused else []
        return say((text, "$accent")), reused

    def _answering(self) -> tuple[Content, list[str]]:
        timing, turn = self.session.timing, self.session.answering
        word = "thinking" if turn and turn.reasoning and not turn.text else "answering"
        if turn and turn.id not in self.session.conversation.turns:
            word = "running the same tokens again"
        parts = [f"{count(timing.tokens)} tokens"]
        if timing.ttft_s is not None:
            parts.append(f"TTFT {seconds(timing.ttft_s)}")
        if turn and (loop := find_loop(turn.token_ids)):
            return say((f"⚠ in a loop: {loop} · esc stops", "bold $warning")), parts
        state = say((f"{spinner()} {word} · {timing.tok_s:.1f} tok/s", "$accent"))
        return state, parts

    def _idle(self) -> list[str]:
        last = self.session.conversation.last("assistant")
        if last is None or last.finished is None:
            return []
        done = last.finished
        parts = [f"stop: {done.reason}"]
        if done.tok_s:
            parts.append(f"{done.tok_s:.1f} tok/s")
        if done.ttft_ms:
            parts.append(f"TTFT {seconds(done.ttft_ms / 1000)}")
        return parts

    def _path(self) -> Content:
        if self.session.remote:
            return say(("on a server", "$foreground 60%"))
        wanted = self.session.settings.options
        now = self.session.applied or wanted
        ahead = now != wanted and self.session.answering is not None
        options = wanted if not ahead else now
        parts: list[tuple[str, str]] = [("router ", "$foreground 60%"), (options.router, "bold")]
        if ahead and wanted.router != now.router:
            parts.append((f" → {wanted.router}", "$warning"))
        parts += [("  gsa ", "$foreground 60%"), (options.gsa, "bold")]
        if ahead and wanted.gsa != now.gsa:
            parts.append((f" → {wanted.gsa}", "$warning"))
        if self.size.width >= 80:
            parts += [("  taps ", "$foreground 60%"), ("on" if wanted.taps else "off", "bold")]
            effort = self.session.settings.effort
            parts += [("  effort ", "$foreground 60%"), (effort, "bold")]
        return say(*parts)


class KeyBar(Widget):
    """The keys worth knowing, as many as fit. Each can be clicked."""

    def render(self) -> Content:
        text, width = say(""), self.size.width
        chosen = [command for command in COMMANDS if command.hint]
        order = {"stop": 0, "help": 1, "quit": 2, "palette": 3, "debug": 4, "router": 5}
        keep: list[str] = []
        used = 0
        for command in sorted(chosen, key=lambda command: order.get(command.action, 9)):
            cells = len(key_name(command.keys[0])) + len(command.hint) + 3
            if used + cells <= width + 2:
                keep.append(command.action)
                used += cells
        for command in chosen:
            if command.action in keep:
                word = say((command.hint, f"@click=app.{_call(command.action)}"))
                text = text + say((f"{key_name(command.keys[0])} ", "bold $primary")) + word
                text = text + say("  ")
        return text


def _call(action: str) -> str:
    return action if "(" in action else f"{action}()"


def memory_text(session: ChatSession) -> str:
    """Weights and what one token reads, for the welcome card."""
    if session.ready is None:
        return ""
    info = session.ready.model
    return f"{count(info.parameters)} parameters, {size(info.resident_bytes)} resident"
