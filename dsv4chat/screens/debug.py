"""The full-screen look inside: all panels at once, or one at a time as tabs where room is short."""

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from dsv4chat.core.session import Change, ChatSession
from dsv4chat.core.text import clean
from dsv4chat.panels import PANELS
from dsv4chat.panels.base import Panel
from dsv4chat.panels.glance import glance
from dsv4chat.panels.view import View, current_view
from dsv4chat.widgets.bars import StatusBar, TopBar
from dsv4chat.widgets.safe import say

CONTEXT_PIECES = 60
HINTS = (
    ("[ ]", "token"),
    ("{ }", "layer"),
    ("← →", "panel"),
    ("F5", "router"),
    ("F6", "gsa"),
    ("F7", "taps"),
    ("F2", "back"),
)


class DebugScreen(Screen):
    """F2 or esc goes back to the chat."""

    AUTO_FOCUS = None
    BINDINGS = [
        Binding("escape", "back", "Back"),
        Binding("right,tab", "step_panel(1)", "Next panel"),
        Binding("left,shift+tab", "step_panel(-1)", "Previous panel"),
        *(Binding(str(n + 1), f"panel_number({n})", PANELS[n].TITLE) for n in range(len(PANELS))),
    ]

    def __init__(self, session: ChatSession) -> None:
        super().__init__()
        self.session = session
        self._at = 0
        self._drawable = False  # widgets are there

    def compose(self) -> ComposeResult:
        yield TopBar(self.session, id="top")
        yield Static(id="tabs")
        yield Static(id="strip")
        with Container(id="grid"):
            for panel in PANELS:
                yield panel(classes="panel")
        yield StatusBar(self.session, id="status")
        yield Static(id="keys")

    def on_mount(self) -> None:
        self.top, self.status = self.query_one(TopBar), self.query_one(StatusBar)
        self.strip = self.query_one("#strip", Static)
        parts: list[tuple[str, str]] = []
        for key, text in HINTS:
            parts += [(key, "bold $primary"), (f" {text}   ", "$foreground 60%")]
        self.query_one("#keys", Static).update(say(*parts))
        self.step_panel(0)
        self._drawable = True
        self.show_changes({"telemetry"})

    def step_panel(self, step: int) -> None:
        self.action_panel_number((self._at + step) % len(PANELS))

    def action_step_panel(self, step: int) -> None:
        self.step_panel(step)

    def action_panel_number(self, number: int) -> None:
        self._at = number
        tabs: list[tuple[str, str]] = []
        for at, panel in enumerate(self.query(Panel)):
            panel.set_class(at != number, "-away")
            style = "bold reverse $primary" if at == number else "$foreground 60%"
            tabs += [(f" {at + 1} {panel.TITLE} ", style), (" ", "")]
        self.query_one("#tabs", Static).update(say(*tabs))

    def action_back(self) -> None:
        if not self.session.stop():
            self.app.pop_screen()

    def show_changes(self, changes: set[Change]) -> None:
        """Bring panels, token strip and status up to date."""
        if not self._drawable:
            return
        view = current_view(self.session, self.app.cursor, self.app.layer)
        for panel in self.query(Panel):
            panel.show(view)
        self.status.glance = glance(view)
        self.status.refresh()
        self.top.refresh()
        self.strip.update(token_strip(view, max(10, self.size.width - 2)))


def token_strip(view: View, width: int) -> Content:
    """The answer's tokens around the one in view, on one line."""
    turn = view.turn
    if turn is None:
        return say((view.why_empty, "$foreground 60%"))

    def piece(index: int) -> str:
        if index >= len(turn.pieces):
            return ""
        return clean(turn.pieces[index]).replace("\n", "⏎").replace("\t", "⇥")

    here = piece(view.index) or "∅"
    first, last = max(0, view.index - CONTEXT_PIECES), view.index + CONTEXT_PIECES
    before = "".join(piece(n) for n in range(first, view.index))
    after = "".join(piece(n) for n in range(view.index + 1, min(len(turn.pieces), last)))
    room = max(0, width - cell_len(here))
    left = max(room // 2, room - cell_len(after))
    while cell_len(before) > left:
        before = before[1:]
    return say(before, (here, "reverse bold"), after).truncate(width)
