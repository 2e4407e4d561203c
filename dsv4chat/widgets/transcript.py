"""The conversation as one scrolling widget that draws lines.

Only what is on screen costs anything.
"""

import time

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip

from dsv4chat.core.session import ChatSession
from dsv4chat.widgets.look import COMPONENTS, Look, read_look
from dsv4chat.widgets.turn_view import Frame, TurnView

GUTTER = 2
MAX_LINE_WIDTH = 110
SLICE_S = 0.012


class Transcript(ScrollView, can_focus=True):
    """Shows the session's path.

    `refresh_path` after branches change, `refresh_tail` while it grows.
    """

    COMPONENT_CLASSES = COMPONENTS
    ALLOW_SELECT = True

    class ThinkingClicked(Message):
        """The title of a thinking block was clicked."""

    def __init__(self, session: ChatSession, **kwargs) -> None:
        super().__init__(**kwargs)
        self.session = session
        self.following = True
        self.unfold = False
        self.cursor: tuple[str, int] | None = None
        self.waiting = ""
        self._views: dict[str, TurnView] = {}
        self._path: list[TurnView] = []
        self._tops: list[int] = []
        self._stale: set[str] = set()
        self._look: Look | None = None

    # ---- keeping up -----------------------------------------------------------------------------

    def refresh_path(self) -> None:
        """The path may be another one: take its turns, draw those that are new."""
        path = self.session.conversation.path
        self._path = [self._views.setdefault(turn.id, TurnView(turn)) for turn in path]
        self._stale = {view.turn.id for view in self._path if not view.rows}
        self._draw_stale()
        self.refresh_tail()

    def redraw_all(self) -> None:
        """Width, theme or folding changed: the last turns at once, the others in slices."""
        self._stale = {view.turn.id for view in self._path}
        self._draw_stale()

    def refresh_tail(self) -> None:
        """Draw the last turns again; they are the ones that grow."""
        for view in self._path[-2:]:
            self._draw(view)
        self._place()

    def show_cursor(self, cursor: tuple[str, int] | None) -> None:
        """Mark a token of a turn, and bring its line on screen."""
        touched = {item[0] for item in (self.cursor, cursor) if item}
        self.cursor = cursor
        for view in self._path:
            if view.turn.id in touched:
                self._draw(view)
        self._place()
        if cursor:
            self._show_marked(cursor[0])

    def _show_marked(self, turn_id: str) -> None:
        for view, top in zip(self._path, self._tops, strict=True):
            if view.turn.id == turn_id:
                line = next((n for n, row in enumerate(view.rows) if row.sign == "▸"), None)
                if line is not None:
                    self.scroll_to_region(Region(0, top + line, 1, 1), animate=False)

    def _frame(self, view: TurnView) -> Frame:
        if self._look is None:
            self._look = read_look(self)
        turn, session = view.turn, self.session
        siblings = session.conversation.siblings(turn)
        cursor = self.cursor[1] if self.cursor and self.cursor[0] == turn.id else None
        return Frame(
            console=self.app.console,
            width=max(min(self.size.width, MAX_LINE_WIDTH) - GUTTER - 1, 8),
            look=self._look,
            model=session.ready.model.name if session.ready else "assistant",
            unfold=self.unfold,
            live=turn is session.answering,
            waiting=self.waiting,
            cursor=cursor,
            branch=(siblings.index(turn) + 1, len(siblings)),
        )

    def _draw(self, view: TurnView) -> None:
        if self.size.width > GUTTER:
            view.draw(self._frame(view))
            self._stale.discard(view.turn.id)

    def _draw_stale(self) -> None:
        """Draw stale turns from the bottom for a moment, then go on when the loop is idle."""
        if not self.is_attached or self.size.width <= GUTTER:
            return
        end = time.monotonic() + SLICE_S
        for view in reversed(self._path):
            if view.turn.id in self._stale:
                self._draw(view)
                if time.monotonic() > end:
                    break
        self._place()
        if self._stale:
            self.set_timer(0.01, self._draw_stale)

    def _place(self) -> None:
        """Tops of all turns, the scrollable size, and the view's position in it."""
        anchor = self._anchor() if not self.following else None
        self._tops, top = [], 0
        for view in self._path:
            self._tops.append(top)
            top += len(view.rows)
        self.virtual_size = Size(self.size.width, top)
        if self.following:
            self.scroll_to(y=self.max_scroll_y, animate=False, immediate=True, force=True)
        elif anchor:
            for view, top in zip(self._path, self._tops, strict=True):
                if view.turn.id == anchor[0]:
                    at = top + min(anchor[1], max(len(view.rows) - 1, 0))
                    self.scroll_to(y=at, animate=False, immediate=True, force=True)
        self.refresh()

    def _anchor(self) -> tuple[str, int] | None:
        """The turn and its line at the top of the screen."""
        at = round(self.scroll_y)
        for view, top in zip(reversed(self._path), reversed(self._tops), strict=False):
            if top <= at:
                return view.turn.id, at - top
        return None

    # ---- events ---------------------------------------------------------------------------------

    def on_resize(self, event: events.Resize) -> None:
        self.redraw_all()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._look = None
        if self.is_attached:
            self.call_after_refresh(self.redraw_all)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if new_value < old_value and new_value < self.max_scroll_y - 1:
            self.following = False
        elif new_value >= self.max_scroll_y - 1:
            self.following = True

    def follow(self) -> None:
        """Go to the end and stay there."""
        self.following = True
        self._place()

    def on_click(self, event: events.Click) -> None:
        at = event.y + round(self.scroll_y)
        for view, top in zip(self._path, self._tops, strict=True):
            row = at - top
            if 0 <= row < len(view.rows) and row == 1 and view.turn.reasoning:
                self.post_message(self.ThinkingClicked())

    # ---- drawing --------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        at = round(self.scroll_y) + y
        base = self.rich_style
        width = self.size.width
        row = self._row(at)
        if row is None:
            return Strip.blank(width, base)
        look = self._look or read_look(self)
        sign = Segment(f"{row.sign:<{GUTTER}}", look.mark if row.sign else None)
        strip = Strip([sign, *row.line]).apply_style(base).crop_extend(0, width, base)
        strip = self._selected(strip, at)
        return strip.apply_offsets(0, at)

    def _row(self, at: int):
        for view, top in zip(reversed(self._path), reversed(self._tops), strict=False):
            if top <= at:
                rows = view.rows
                return rows[at - top] if at - top < len(rows) else None
        return None

    def _selected(self, strip: Strip, y: int) -> Strip:
        selection = self.text_selection
        span = selection.get_span(y) if selection is not None else None
        if span is None:
            return strip
        start, end = span
        end = strip.cell_length if end == -1 else strip.index_to_cell_position(end)
        start = strip.index_to_cell_position(start)
        before, chosen, after = (
            strip.crop(0, start), strip.crop(start, end), strip.crop(end)
        )  # fmt: skip
        style: Style = self.screen.get_component_rich_style("screen--selection")
        return Strip.join(
            [before, Strip([Segment(s.text, (s.style or Style()) + style) for s in chosen]), after]
        )

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The selected lines as drawn, without the gutter."""
        lines = []
        for view in self._path:
            for row in view.rows:
                lines.append(" " * GUTTER + "".join(segment.text for segment in row.line))
        text = selection.extract("\n".join(lines))
        return "\n".join(line.removeprefix(" " * GUTTER) for line in text.split("\n")), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        self.refresh()
