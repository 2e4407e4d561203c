"""The conversation as one scrolling widget that draws lines.

Only what is on screen costs anything.
"""

from bisect import bisect_left, bisect_right

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip

from dsv4chat.core.session import ChatSession
from dsv4chat.widgets.found import Span, find_in_rows, highlight, may_hold, needle_of
from dsv4chat.widgets.look import COMPONENTS, Look, read_look
from dsv4chat.widgets.turn_view import Frame, Row, TurnView

GUTTER = 2
MAX_LINE_WIDTH = 110


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
        self._stale: set[str] = set()  # turns whose rows are missing or out of date
        self._first = ""  # the turn that begins the path
        self.needle = ""  # what is looked for
        self._found: dict[str, list[list[Span]]] = {}
        self._match = 0
        self._refused = ""  # the turn that the engine cannot take
        self._look: Look | None = None

    # ---- keeping up -----------------------------------------------------------------------------

    def refresh_path(self) -> None:
        """The path may be another one: take its turns."""
        path = self.session.conversation.path
        self._path = [self._views.setdefault(turn.id, TurnView(turn)) for turn in path]
        if self._path and self._path[0].turn.id != self._first:
            self._first, self.following = self._path[0].turn.id, True
            self._views = {view.turn.id: view for view in self._path}
        self._stale = {view.turn.id for view in self._path if not view.rows}
        refusal = self.session.refusal
        before, self._refused = self._refused, refusal.turn_id if refusal else ""
        if before != self._refused:
            self._stale |= {view.turn.id for view in self._path} & {before, self._refused}
        self.refresh_tail()
        if self._refused and before != self._refused:
            self.show_end_of(self._refused)

    def redraw_all(self) -> None:
        """Width, theme or folding changed: no drawn line is valid any more."""
        self._stale = {view.turn.id for view in self._path}
        self._place()

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

    def show_end_of(self, turn_id: str) -> None:
        """Bring the last lines of a turn on screen."""
        for view, top in zip(self._path, self._tops, strict=True):
            if view.turn.id == turn_id:
                if self.virtual_size.height - top <= self.size.height:
                    return self.follow()
                line = top + view.height(self._text_width, self.unfold) - 4
                self.following = False
                self.scroll_to_region(Region(0, max(line, 0), 1, 4), animate=False)

    def _frame(self, view: TurnView) -> Frame:
        if self._look is None:
            self._look = read_look(self)
        turn, session = view.turn, self.session
        ids = [other.id for other in session.conversation.siblings(turn)]  # less what went
        cursor = self.cursor[1] if self.cursor and self.cursor[0] == turn.id else None
        return Frame(
            console=self.app.console,
            width=self._text_width,
            look=self._look,
            model=session.ready.model.name if session.ready else "assistant",
            unfold=self.unfold,
            live=turn is session.answering,
            waiting=self.waiting,
            refusal=session.refusal.reason if turn.id == self._refused and session.refusal else "",
            cursor=cursor,
            branch=(ids.index(turn.id) + 1 if turn.id in ids else 1, len(ids)),
        )

    @property
    def _text_width(self) -> int:
        return max(min(self.size.width, MAX_LINE_WIDTH) - GUTTER - 1, 8)

    def _draw(self, view: TurnView) -> None:
        if self.size.width > GUTTER:
            view.draw(self._frame(view))
            self._stale.discard(view.turn.id)
            if self.needle:
                texts = ["".join(segment.text for segment in row.line) for row in view.rows]
                self._found[view.turn.id] = find_in_rows(texts, self.needle)

    def _place(self) -> None:
        """Draw what is on screen or near it, and put every turn in its place.

        Other turns keep an estimated height until they come near. The first line on screen, or
        the end when following, stays where it is while heights above become exact.
        """
        if not self.is_attached or self.size.width <= GUTTER:
            return
        anchor = self._anchor() if not self.following else None
        while True:
            self._measure()
            if self.following:
                at = max(0, self.virtual_size.height - self.size.height)
            else:
                at = self._line_of(anchor) if anchor else round(self.scroll_y)
            near = [view for view in self._near(at) if view.turn.id in self._stale]
            if not near:
                break
            for view in near:
                self._draw(view)
        if at != round(self.scroll_y):
            self.scroll_to(y=at, animate=False, immediate=True, force=True)
        self.refresh()

    def _measure(self) -> None:
        self._tops, top = [], 0
        width = self._text_width
        for view in self._path:
            self._tops.append(top)
            top += view.height(width, self.unfold)
        self.virtual_size = Size(self.size.width, top)

    def _near(self, at: int) -> list[TurnView]:
        """The turns on screen when it begins at line `at`, and a screenful above and below."""
        height = max(self.size.height, 1)
        first = max(bisect_right(self._tops, at - height) - 1, 0)
        last = bisect_left(self._tops, at + 2 * height)
        return self._path[first:last]

    def _anchor(self) -> tuple[str, int] | None:
        """The turn and its line at the top of the screen."""
        at = round(self.scroll_y)
        number = bisect_right(self._tops, at) - 1
        if not 0 <= number < len(self._path):
            return None
        return self._path[number].turn.id, at - self._tops[number]

    def _line_of(self, anchor: tuple[str, int]) -> int:
        """Where an anchor is now; the top if its turn is gone."""
        for view, top in zip(self._path, self._tops, strict=True):
            if view.turn.id == anchor[0]:
                last = view.height(self._text_width, self.unfold) - 1
                return max(0, min(top + min(anchor[1], last), self.max_scroll_y))
        return 0

    # ---- finding --------------------------------------------------------------------------------

    def find(self, text: str) -> int:
        """Mark every place of `text` and show the last one; returns how many. "" ends it."""
        self.needle, self._found = needle_of(text), {}
        holders = [view for view in self._path if self.needle and may_hold(view.turn, self.needle)]
        if holders and not self.unfold:
            folded = any(self.needle in needle_of(view.turn.reasoning) for view in holders)
            self.unfold = folded or any(view.folds for view in holders)
            self._stale |= {view.turn.id for view in self._path if self.unfold}
        for view in holders:
            self._draw(view)
        self._place()
        self._match = len(self._matches()) - 1
        self.step_match(0)
        return len(self._matches())

    def step_match(self, step: int) -> None:
        """Show the next match; after the last comes the first."""
        matches = self._matches()
        if not matches:
            return
        self._match = (self._match + step) % len(matches)
        turn_id, number = matches[self._match]
        row = self._found[turn_id][number][0][0]
        for view, top in zip(self._path, self._tops, strict=True):
            if view.turn.id == turn_id:
                self.following = False
                at = max(0, min(top + row - self.size.height // 3, self.max_scroll_y))
                self.scroll_to(y=at, animate=False, immediate=True, force=True)
        self.refresh()

    @property
    def match_position(self) -> tuple[int, int]:
        """Which match is shown, of how many."""
        total = len(self._matches())
        return min(self._match + 1, total), total

    def _matches(self) -> list[tuple[str, int]]:
        return [
            (view.turn.id, number)
            for view in self._path
            for number in range(len(self._found.get(view.turn.id, ())))
        ]

    def _with_matches(self, strip: Strip, at: int, look: Look) -> Strip:
        number = bisect_right(self._tops, at) - 1
        if not self.needle or not 0 <= number < len(self._path):
            return strip
        turn_id, matches = self._path[number].turn.id, self._matches()
        current = matches[self._match] if self._match < len(matches) else None
        for match, spans in enumerate(self._found.get(turn_id, ())):
            here = [(a, b) for row, a, b in spans if row == at - self._tops[number]]
            style = look.cursor if (turn_id, match) == current else look.found
            strip = highlight(strip, here, style, GUTTER)
        return strip

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
        if any(view.turn.id in self._stale for view in self._near(round(new_value))):
            self._place()

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
        strip = self._selected(self._with_matches(strip, at, look), at)
        return strip.apply_offsets(0, at)

    def _row(self, at: int) -> Row | None:
        number = bisect_right(self._tops, at) - 1
        if not 0 <= number < len(self._path):
            return None
        rows = self._path[number].rows
        return rows[at - self._tops[number]] if at - self._tops[number] < len(rows) else None

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
        if selection.start is None or selection.end is None:
            for view in self._path:
                if view.turn.id in self._stale:
                    self._draw(view)
            self._place()
        lines: list[str] = []
        for view, top in zip(self._path, self._tops, strict=True):
            lines += [""] * (top - len(lines))  # turns that are not drawn
            for row in view.rows:
                lines.append(" " * GUTTER + "".join(segment.text for segment in row.line))
        text = selection.extract("\n".join(lines))
        return "\n".join(line.removeprefix(" " * GUTTER) for line in text.split("\n")), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        self.refresh()
