"""An answer and its rerun: what differs, where the texts split, how far apart the logits are."""

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from dsv4chat.core.comparing import Comparison
from dsv4chat.core.session import Change
from dsv4chat.panels.comparison import (
    settings_lines,
    strip_lines,
    summary_lines,
    text_lines,
    token_lines,
)
from dsv4chat.widgets.bars import StatusBar, TopBar
from dsv4chat.widgets.safe import say

HINTS = (("[ ]", "token"), ("s", "split"), ("m", "largest distance"), ("esc", "stop, then back"))


class CompareScreen(Screen):
    """Follows the rerun while it goes on. Its cursor is on a token of A."""

    AUTO_FOCUS = None
    BINDINGS = [
        Binding("escape,f12,q", "back", "Back"),
        Binding("left,left_square_bracket,f9", "move(-1)", "Previous token"),
        Binding("right,right_square_bracket,f10", "move(1)", "Next token"),
        Binding("s", "split", "Split"),
        Binding("m", "largest", "Largest distance"),
    ]

    def __init__(self, comparison: Comparison) -> None:
        super().__init__()
        self.comparison = comparison
        self.at: int | None = None  # None: the split, else the newest token
        self._drawable = False  # widgets are there

    def compose(self) -> ComposeResult:
        yield TopBar(self.comparison.session, id="top")
        yield Static(id="differs")
        yield Static(id="distances")
        with Container(id="sides"):
            yield Static(id="texts", classes="panel")
            yield Static(id="token", classes="panel")
        yield StatusBar(self.comparison.session, id="status")
        yield Static(id="keys")

    def on_mount(self) -> None:
        self.query_one("#texts").border_title = "texts"
        parts: list[tuple[str, str]] = []
        for key, text in HINTS:
            parts += [(key, "bold $primary"), (f" {text}   ", "$foreground 60%")]
        self.query_one("#keys", Static).update(say(*parts))
        self._drawable = True
        self.show_changes({"tokens"})

    def on_resize(self) -> None:
        self.show_changes({"tokens"})

    @property
    def token(self) -> int:
        """The token of A that is shown."""
        comparison = self.comparison
        if self.at is not None:
            return self.at
        last = max(0, len(comparison.source.token_ids) - 1)
        split = comparison.split
        newest = max(0, len(comparison.branch.token_ids) - 1)
        return min(last, newest if split is None else split)

    def show_changes(self, changes: set[Change]) -> None:
        """Bring everything up to date."""
        if not self._drawable:
            return
        comparison, at = self.comparison, self.token
        width = max(20, self.size.width - 2)
        head = settings_lines(comparison) + summary_lines(comparison)
        self.query_one("#differs", Static).update(_lines(head))
        self.query_one("#distances", Static).update(_lines(strip_lines(comparison, at, width)))
        self.query_one("#texts", Static).update(_lines(text_lines(comparison, at)))
        token = self.query_one("#token", Static)
        token.border_title = say(f"token {at}")
        room = token.content_size
        token.update(_lines(token_lines(comparison, at, max(6, room.height), room.width)))
        self.query_one(StatusBar).refresh()
        self.query_one(TopBar).refresh()

    # ---- keys -----------------------------------------------------------------------------------

    def action_back(self) -> None:
        if not self.comparison.session.stop():
            self.app.pop_screen()

    def action_move(self, step: int) -> None:
        last = max(0, len(self.comparison.source.token_ids) - 1)
        self._go(max(0, min(last, self.token + step)))

    def action_split(self) -> None:
        self._go(None)

    def action_largest(self) -> None:
        known = [(d.kl, -n) for n, d in enumerate(self.comparison.distances()) if d is not None]
        if known:
            self._go(-max(known)[1])

    def _go(self, at: int | None) -> None:
        self.at = at
        self.show_changes({"tokens"})


def _lines(lines: list[Content]) -> Content:
    return Content("\n").join(lines)
