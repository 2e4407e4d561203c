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
        """Draw another view at the next refresh; the title names its token."""
        self.view = view
        if self.NEEDS_RECORD:
            self.border_title = say(self.TITLE, *token_parts(view))
        self.refresh()

    def build(self, view: View, width: int, height: int) -> list[Content]:
        raise NotImplementedError

    def without_record(self, view: View, width: int, height: int) -> list[Content]:
        """What can be shown without a tap record; empty: why there is none."""
        return []

    def render(self) -> Content:
        width, height = self.size.width, self.size.height
        view = self.view
        if view is None or width < 4:
            return say("")
        bare = self.NEEDS_RECORD and view.record is None
        try:
            lines = (self.without_record if bare else self.build)(view, width, height)
        except Exception as error:  # noqa: BLE001  a bad record must not end the chat
            return say((f"This panel could not read the record: {error!r}", "$warning"))
        if bare and not lines:
            return say((view.why_empty, "$foreground 60%"))
        return Content("\n").join(cut.truncate(width, ellipsis=True) for cut in lines[:height])


def token_parts(view: View) -> list[tuple[str, str]]:
    """Which token the panel is about: number, text, id, and whether the cursor holds it."""
    if view.turn is None:
        return []
    number = f"  {'' if view.live else '▸ '}token {view.index} "
    token_id = f" id {view.token.id}" if view.token and view.token.id >= 0 else ""
    pieces = view.turn.pieces
    named = quoted(pieces[view.index], 14) if view.index < len(pieces) else "none was taken"
    return [
        (number, "$foreground 60%"),
        (named, "$accent"),
        (token_id, "$foreground 60%"),
    ]
