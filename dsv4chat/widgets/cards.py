"""What stands in the transcript's place before the first message, and the card of a lost engine."""

from textual.content import Content
from textual.widget import Widget

from dsv4chat.core.session import ChatSession
from dsv4chat.core.text import count, one_line, seconds, size
from dsv4chat.widgets.bars import memory_text, spinner
from dsv4chat.widgets.safe import bar, say

DEMO_NOTE = (
    "This is the demo model: tiny, trained for this app. It knows the app's manual, word meanings, "
    "capitals, small sums and small talk. It makes mistakes and cannot reason. Its mechanics are "
    "those of the full model: every panel shows real numbers."
)


SERVER_NOTE = (
    "A server answers here. The logits panel shows what it sends; the panels of the layers and the "
    "switches of router and gsa need the local engine."
)


class Welcome(Widget):
    """Load progress while the engine starts; what the model is, and first steps, after that."""

    def __init__(self, session: ChatSession, notes: tuple[str, ...] = (), **kwargs) -> None:
        super().__init__(**kwargs)
        self.session = session
        self.notes = notes

    def render(self) -> Content:
        session = self.session
        lines = [
            say(
                ("dsv4chat", "bold $primary"), ("  DeepSeek-V4, from the inside", "$foreground 60%")
            ),
            say(""),
        ]
        if session.ready is None and session.phase != "dead":
            lines += self._loading()
        elif session.ready is not None:
            lines += self._model()
        for note in self.notes:
            lines += [say(""), say((f"⚠ {one_line(note, 300)}", "$warning"))]
        return Content("\n").join(lines)

    def _loading(self) -> list[Content]:
        session, progress = self.session, self.session.load_progress
        lines = [
            say(
                ("loading ", "$foreground 60%"),
                (one_line(session.model or session.remote, 120), "bold"),
            )
        ]
        for stage in session.load_log[:-1]:
            lines.append(say(("✓ ", "$success"), (one_line(stage, 60), "$foreground 60%")))
        if progress is None:
            return [*lines, say((f"{spinner()} starting the engine", "$accent"))]
        lines.append(say((f"{spinner()} {one_line(progress.stage, 60)}", "$accent")))
        if progress.total_bytes:
            share = progress.done_bytes / progress.total_bytes
            cells = max(10, min(40, self.size.width - 12))
            figures = f"{size(progress.done_bytes)} of {size(progress.total_bytes)}"
            rate = f" · {progress.gb_s:.1f} GB/s" if progress.gb_s else ""
            eta = f" · {seconds(progress.eta_s)} left" if progress.eta_s is not None else ""
            lines.append(
                say(
                    "  ",
                    (bar(share, cells), "$accent on $surface-lighten-1"),
                    f" {100 * share:3.0f} %",
                )
            )
            lines.append(say((f"  {figures}{rate}{eta}", "$foreground 60%")))
        return [
            *lines,
            say(""),
            say(
                (
                    "You can write already; a message waits until the model is ready.",
                    "$foreground 60%",
                )
            ),
        ]

    def _model(self) -> list[Content]:
        ready = self.session.ready
        assert ready is not None
        info = ready.model
        if self.session.remote:
            return [
                say((one_line(info.name, 60), "bold"), (f" on {one_line(info.path, 80)}", "")),
                say((SERVER_NOTE, "$foreground 60%")),
                *_first_keys(),
            ]
        shape = f"{info.layers} layers, {info.top_k} of {info.experts} experts a token"
        lines = [
            say((one_line(info.name, 60), "bold"), (f" on {ready.device}", "$foreground 60%")),
            say((f"{memory_text(self.session)}", "$foreground 60%")),
            say((f"{shape}, context {count(ready.context)} tokens", "$foreground 60%")),
        ]
        if info.is_demo:
            lines += [say(""), say((DEMO_NOTE, ""))]
        return lines + _first_keys()


def _first_keys() -> list[Content]:
    """The keys to begin with."""
    keys = (
        ("enter", "send", "ctrl+j", "new line"),
        ("F2", "look inside", "F1", "all keys"),
        ("F5", "router path", "/", "commands"),
    )
    lines = [say("")]
    for key, text, key2, text2 in keys:
        lines.append(
            say(
                (f"{key:>7}", "bold $primary"),
                f"  {text:<14}",
                (f"{key2:>7}", "bold $primary"),
                f"  {text2}",
            )
        )
    return lines


class EngineCard(Widget):
    """Why the engine is gone, what is kept, what to press."""

    def __init__(self, session: ChatSession, **kwargs) -> None:
        super().__init__(**kwargs)
        self.session = session

    def render(self) -> Content:
        session, lost, stuck = self.session, self.session.lost, self.session.stuck
        if lost is None and stuck is None:
            return say("")
        if lost is not None:
            lines = [say(("✖ ", "bold $error"), (one_line(lost.reason, 400), "bold"))]
            lines += [say((f"  {text}", "$foreground 60%")) for text in lost.log_tail[-5:]]
        else:
            assert stuck is not None
            what = (
                "no sign of life" if stuck.silent else f"no progress ({one_line(stuck.busy, 40)})"
            )
            lines = [
                say(
                    ("⚠ ", "bold $warning"),
                    (f"{what} from the engine for {seconds(stuck.seconds)}", "bold"),
                )
            ]
        kept = sum(len(turn.text) for turn in session.conversation.path)
        lines += [
            say(("Your conversation is kept", "$success"), f", {count(kept)} characters."),
            say(("F8", "bold $primary"), " restart   ", ("ctrl+q", "bold $primary"), " quit"),
        ]
        return Content("\n").join(lines)
