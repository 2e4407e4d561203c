"""A panel: a titled box whose lines are a function of the view and its size."""

from typing import ClassVar

from textual.content import Content
from textual.widget import Widget

from dsv4chat.core.text import quoted
from dsv4chat.panels.view import View
from dsv4chat.widgets.safe import say


class Panel(Widget):
    """One panel, one file. `build` returns lines; it must not change anything."""

    TITLE: ClassVar[str] = ""
    NOTE: ClassVar[str] = ""  # unit or direction, always on screen
    NEEDS_RECORD: ClassVar[bool] = True

    view: View | None = None

    def on_mount(self) -> None:
        self.border_title = self.TITLE
        self.border_subtitle = self.NOTE

    def show(self, view: View) -> None:
        """Draw another view at the next refresh."""
        self.view = view
        self.refresh()

    def build(self, view: View, width: int, height: int) -> list[Content]:
        raise NotImplementedError

    def render(self) -> Content:
        width, height = self.size.width, self.size.height
        view = self.view
        if view is None or width < 4:
            return say("")
        if self.NEEDS_RECORD and view.record is None:
            return say((view.why_empty, "$text-muted"))
        try:
            lines = self.build(view, width, height)
        except Exception as error:  # noqa: BLE001  a bad record must not end the chat
            return say((f"This panel could not read the record: {error!r}", "$warning"))
        return Content("\n").join(cut.truncate(width, ellipsis=True) for cut in lines[:height])


def token_line(view: View) -> Content:
    """Which token the panel is about."""
    token = view.token
    piece = quoted(view.turn.pieces[view.index]) if view.turn else ""
    number = f"token {view.index}"
    state = "newest" if view.live else "cursor"
    token_id = f" · id {token.id}" if token else ""
    return say((f"{number} ", "bold"), (piece, "$accent"), (f"{token_id} · {state}", "$text-muted"))
