"""One turn of the transcript as lines. Closed pieces are drawn once per width.

Only the tail is drawn again.
"""

import time
from dataclasses import dataclass, field

from rich.console import Console
from rich.segment import Segment

from dsv4chat.core.conversation import NAMES, Turn
from dsv4chat.core.loops import find_loop
from dsv4chat.core.markdown_pieces import Piece, Splitter
from dsv4chat.core.text import clean, count, one_line, seconds
from dsv4chat.core.turn_notes import turn_notes
from dsv4chat.widgets.look import Look
from dsv4chat.widgets.marked_text import take_marks, with_marks
from dsv4chat.widgets.plain_lines import Line, plain_lines

THINKING_TAIL = 6
THINKING_LIMIT = 20_000
MESSAGE_HEAD, MESSAGE_LIMIT, MESSAGE_LINES = 4_000, 20_000, 40
STOP_WORDS = {
    "length": "token limit reached",
    "cancelled": "stopped by you",
    "fault": "not finished",
    "context": "context full",
}


@dataclass(slots=True)
class Frame:
    """What drawing needs besides the turn."""

    console: Console
    width: int
    look: Look
    model: str
    unfold: bool = False
    live: bool = False
    waiting: str = ""
    refusal: str = ""  # why the engine cannot take this turn
    cursor: int | None = None
    branch: tuple[int, int] = (1, 1)


@dataclass(slots=True)
class Row:
    """A drawn line: gutter sign and segments."""

    line: Line
    sign: str = ""


@dataclass(slots=True)
class TurnView:
    """Draws a turn. `rows` are valid for the frame given last."""

    turn: Turn
    rows: list[Row] = field(default_factory=list)
    _message_unfold: bool = False
    _splitter: Splitter = field(default_factory=Splitter)
    _source: str = ""
    _raw_length: int = 0
    _drawn: list[tuple[list[Row], Piece]] = field(default_factory=list)
    _key: tuple[object, ...] = ()

    def height(self, width: int, unfold: bool) -> int:
        """How many rows it has; an estimate before it is drawn."""
        if self.rows:
            return len(self.rows)
        turn = self.turn
        text = turn.text if turn.role == "assistant" else turn.text[:MESSAGE_HEAD]
        folded = turn.reasoning if unfold else turn.reasoning[:width]
        return 2 + sum(part.count("\n") + len(part) // width + 1 for part in (text, folded) if part)

    @property
    def folds(self) -> bool:
        """Whether it is a message that may be shown by its beginning alone."""
        text = self.turn.text
        long = len(text) > MESSAGE_HEAD or text.count("\n") > MESSAGE_LINES
        return self.turn.role != "assistant" and long

    def draw(self, frame: Frame) -> int:
        """Draw what has changed; returns the height."""
        notes = len(turn_notes(self.turn))
        key = (frame.width, id(frame.look), notes, frame.cursor)
        if key != self._key:
            self._key, self._drawn = key, []
        rows = [Row(self._title(frame))]
        if self.turn.role != "assistant":
            rows += self._message(frame)
        else:
            rows += self._thinking(frame)
            rows += self._answer(frame)
            rows += self._ending(frame)
        if frame.refusal:
            text = f"✖ the model cannot take this: {clean(frame.refusal)}"
            rows += [Row(line) for line in plain_lines(text, frame.width, frame.look.warning)]
            rows.append(Row([Segment("/mend repairs it", frame.look.dim)]))
        rows.append(Row([]))
        self.rows = rows
        return len(rows)

    # ---- parts ----------------------------------------------------------------------------------

    def _title(self, frame: Frame) -> Line:
        turn, look = self.turn, frame.look
        when = time.strftime("%H:%M", time.localtime(turn.created))
        name = NAMES.get(turn.role) or one_line(turn.model or frame.model, 40)
        style = look.model if turn.role == "assistant" else look.user
        call = [f"of call {one_line(turn.tool_call_id, 30)}"] if turn.role == "tool" else []
        parts = [when, *call, *self._summary(frame)]
        if turn.rerun_of and turn.settings:
            parts.insert(1, f"same seed, router {turn.settings.router}, gsa {turn.settings.gsa}")
        at, of = frame.branch
        if of > 1:
            parts.insert(0, f"‹ {at} of {of} ›")
        return [Segment(name, style), Segment("  " + " · ".join(parts), look.dim)]

    def _summary(self, frame: Frame) -> list[str]:
        """What the answer was, once it has ended."""
        turn = self.turn
        if turn.role != "assistant" or not turn.done:
            return []
        parts = [f"{count(len(turn.token_ids))} tokens"] if turn.token_ids else []
        if turn.finished and turn.finished.tok_s and frame.width >= 60:
            parts.append(f"{turn.finished.tok_s:.1f} tok/s")
        if word := STOP_WORDS.get(turn.finish or "stop", ""):
            parts.append(word)
        if loop := find_loop(turn.token_ids):
            parts.append(f"in a loop: {loop}")
        return parts

    def _message(self, frame: Frame) -> list[Row]:
        """What the user wrote. A very long one is shown by its beginning."""
        if self._message_unfold != frame.unfold or not self._drawn:
            self._message_unfold = frame.unfold
            text, limit = self.turn.text, MESSAGE_LIMIT if frame.unfold else MESSAGE_HEAD
            lines = plain_lines(clean(text[:limit]), frame.width, frame.look.text)
            if not frame.unfold and len(lines) > MESSAGE_LINES + 5:
                lines = lines[:MESSAGE_LINES]
                limit = sum(len(segment.text) for line in lines for segment in line)
            rows = [Row(line) for line in lines]
            if len(text) > limit:
                more = f"… {count(len(text) - limit)} more characters"
                hint = "" if frame.unfold else "  ctrl+t"
                rows.append(Row([Segment(more, frame.look.dim), Segment(hint, frame.look.frame)]))
            self._drawn = [(rows, Piece(0, 0, "text"))]
        return self._drawn[0][0]

    def _thinking(self, frame: Frame) -> list[Row]:
        turn, look = self.turn, frame.look
        if not turn.reasoning:
            return []
        tokens = sum(channel == "thinking" for channel in turn.channels)
        thinking = frame.live and not turn.text
        open_ = frame.unfold or thinking
        time_text = f" · {seconds(turn.thinking_s)}" if turn.thinking_s else ""
        word = "thinking" if thinking else "thought"
        title = f"{'▾' if open_ else '▸'} {word} · {count(tokens)} tokens{time_text}"
        rows = [Row([Segment(title, look.dim), Segment("  ctrl+t", look.frame)])]
        if open_:
            text = clean(turn.reasoning[-THINKING_LIMIT:]).strip("\n")
            lines = plain_lines(text, frame.width - 2, look.thinking)
            if thinking and not frame.unfold:
                lines = lines[-THINKING_TAIL:]
            rows += [Row([Segment("│ ", look.frame), *line]) for line in lines]
        notes = [note for note in turn_notes(turn) if not self._in_answer(note.index)]
        rows += [Row([Segment(note.text, look.mark)], "⟂") for note in notes]
        return [*rows, Row([])]

    def _answer(self, frame: Frame) -> list[Row]:
        raw = self.turn.text
        if len(raw) != self._raw_length:
            self._extend(raw)
        self._splitter.feed(self._source)
        rows: list[Row] = []
        last: Piece | None = None
        for number, piece in enumerate(self._splitter.closed):
            if number == len(self._drawn):
                self._drawn.append((self._piece(piece, frame), piece))
            drawn = self._drawn[number][0]
            if drawn:
                rows += self._gap(last, piece) if rows else []
                rows += drawn
                last = piece
        if tail := self._splitter.tail(self._source):
            rows += self._gap(last, tail) if rows else []
            rows += self._piece(tail, frame)
        if frame.live and not self.turn.text and not self.turn.reasoning:
            rows.append(Row([Segment(frame.waiting, frame.look.dim)]))
        return rows

    def _extend(self, raw: str) -> None:
        """Clean what is new. A CR at the end waits: it may be half of a line end."""
        ready = len(raw) - 1 if raw.endswith("\r") and not self.turn.done else len(raw)
        self._source += clean(raw[self._raw_length : ready])
        self._raw_length = ready

    def _gap(self, last: Piece | None, piece: Piece) -> list[Row]:
        """A blank line between pieces, but not inside lists, split fences and after headings."""
        tight = last is None or not piece.first or last.kind == "heading"
        return [] if tight or (last and last.kind == piece.kind == "item") else [Row([])]

    def _piece(self, piece: Piece, frame: Frame) -> list[Row]:
        """Draw one piece with its marks; as plain text if Markdown cannot."""
        from dsv4chat.widgets.markdown_lines import code_lines, text_lines  # slow; not at start

        look, width = frame.look, frame.width
        notes = [note for note in turn_notes(self.turn) if self._in_piece(note.index, piece)]
        points = [self._offset(note.index) for note in notes]
        source = with_marks(
            self._source, piece.start, piece.end, points, self._cursor(frame, piece)
        )
        try:
            if piece.kind == "code":
                lines = code_lines(source, piece, width, look)
            else:
                lines = text_lines(frame.console, source, width, look)
        except Exception:  # noqa: BLE001  a renderer's fault must not take the chat down
            lines = plain_lines(source, width, look.text)
        signs = take_marks(lines, look.cursor)
        rows = [Row(line, signs.get(number, "")) for number, line in enumerate(lines)]
        for note in notes:
            rows.append(Row([Segment(note.text, look.mark)], "⟂"))
        return rows

    def _ending(self, frame: Frame) -> list[Row]:
        turn, look = self.turn, frame.look
        rows: list[Row] = []
        if turn.done and turn.finish in ("fault", "context") and turn.note:
            text = f"✖ {clean(turn.note)}"
            rows += [Row(line) for line in plain_lines(text, frame.width, look.warning)]
        for call in turn.tool_calls:
            text = f"tool call {one_line(call.name, 40)} {one_line(call.arguments, 120)}"
            rows += [Row(line) for line in plain_lines(text, frame.width, look.dim)]
        if turn.done and not turn.text and turn.finish in ("stop", "length"):
            rows.append(Row([Segment("(the answer is empty)", look.dim)]))
        return rows

    # ---- marks ----------------------------------------------------------------------------------

    def _offset(self, index: int) -> int:
        """Where token `index` begins in the answer. Cleaning may shift it by a few characters."""
        ends = self.turn.ends
        if not ends:
            return 0
        channel, start, _ = self.turn.span(min(index, len(ends) - 1))
        at = self.turn.ends[-1] if index >= len(ends) else start
        return at if channel == "answer" else 0

    def _in_answer(self, index: int) -> bool:
        """Whether a note at this token stands in the answer, and not with the thinking."""
        channels = self.turn.channels
        if not self.turn.reasoning or not channels:
            return True
        return channels[min(index, len(channels) - 1)] == "answer"

    def _in_piece(self, index: int, piece: Piece) -> bool:
        if not self._in_answer(index):
            return False
        at = self._offset(index)
        return piece.start <= at < piece.end or at == piece.end == len(self._source)

    def _cursor(self, frame: Frame, piece: Piece) -> tuple[int, int] | None:
        if frame.cursor is None or frame.cursor >= len(self.turn.ends):
            return None
        channel, start, end = self.turn.span(frame.cursor)
        if channel != "answer" or not piece.start <= start < piece.end:
            return None
        return start, min(end, piece.end)
