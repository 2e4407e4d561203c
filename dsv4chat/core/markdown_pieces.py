"""Cuts Markdown that is still growing into pieces that will not change any more, and an open tail.

A piece is a paragraph, heading, table, one top-level list item, or up to `MAX_CODE_LINES` lines of
a fence: small enough to be drawn in a few milliseconds. Every character of the text is in exactly
one piece or in the tail.
"""

import re
from dataclasses import dataclass
from typing import Literal

MAX_CODE_LINES = 30
MAX_PIECE = 4000

Kind = Literal["text", "item", "heading", "code"]
_FENCE = re.compile(r"^(\s*)(`{3,}|~{3,})\s*([^`\n]*)$")
_ITEM = re.compile(r"^ {0,3}([-*+]|\d{1,9}[.)])(\s|$)")
_HEADING = re.compile(r"^ {0,3}#{1,6}(\s|$)")


@dataclass(frozen=True, slots=True)
class Piece:
    """text[start:end]. A fence longer than one piece has `first` or `last` unset on its parts."""

    start: int
    end: int
    kind: Kind
    language: str = ""
    first: bool = True
    last: bool = True


class Splitter:
    """Reads a growing text line by line. `closed` only ever grows."""

    def __init__(self) -> None:
        self.closed: list[Piece] = []
        self._start = 0  # of the open piece
        self._at = 0  # next line to read
        self._kind: Kind = "text"
        self._language = ""
        self._fence = ""  # the marker that opened the fence we are in
        self._nested = ""  # the same for a fence inside a list item
        self._first = True
        self._lines = 0
        self._blank = False

    def feed(self, text: str) -> None:
        """Take the whole text so far.

        Only what follows the last complete line read before is looked at.
        """
        while (end := text.find("\n", self._at)) >= 0:
            self._line(text[self._at : end], self._at, end + 1)
            self._at = end + 1
        if self._kind == "text" and len(text) - self._start > MAX_PIECE:
            space = text.rfind(" ", self._start + MAX_PIECE // 2)
            if space > self._at:
                self._close(space + 1)
                self._at = space + 1

    def tail(self, text: str) -> Piece | None:
        """The open piece, as if the text ended here."""
        if not text[self._start :].strip():
            return None
        kind = self._kind
        if self._start == self._at and _HEADING.match(text[self._start :]):
            kind = "heading"
        elif self._start == self._at and _ITEM.match(text[self._start :]):
            kind = "item"
        return Piece(
            self._start, len(text), kind, self._language, first=self._first, last=not self._fence
        )

    def _line(self, line: str, start: int, end: int) -> None:
        self._lines += 1
        if self._fence:
            self._code_line(line, end)
        elif self._nested:
            if _closes(line, self._nested):
                self._nested = ""
        elif fence := _FENCE.match(line):
            self._open_fence(fence, start)
        elif not line.strip():
            self._blank = True
            if self._kind != "item":
                self._close(end)
        else:
            self._text_line(line, start, end)

    def _code_line(self, line: str, end: int) -> None:
        if _closes(line, self._fence):
            self._fence = ""
            self._close(end)
        elif self._lines >= MAX_CODE_LINES:
            language, fence = self._language, self._fence
            self._close(end, last=False)
            self._kind, self._language, self._fence, self._first = "code", language, fence, False

    def _open_fence(self, fence: re.Match[str], start: int) -> None:
        if self._kind == "item" and len(fence[1]) >= 2:
            self._nested = fence[2]
            return
        self._close(start)
        self._kind, self._fence, self._language = "code", fence[2], fence[3].strip().split(" ")[0]

    def _text_line(self, line: str, start: int, end: int) -> None:
        indented = line.startswith(("  ", "\t"))
        if _ITEM.match(line) and not indented:
            self._close(start)
            self._kind = "item"
        elif _HEADING.match(line):
            self._close(start)
            self._kind = "heading"
            self._close(end)
        elif self._kind == "item" and self._blank and not indented:
            self._close(start)
        elif end - self._start > MAX_PIECE:
            self._close(end)
        self._blank = False

    def _close(self, end: int, *, last: bool = True) -> None:
        """End the open piece before `end`. Blank stretches become part of the next piece."""
        if end > self._start:
            piece = Piece(
                self._start, end, self._kind, self._language, first=self._first, last=last
            )
            self.closed.append(piece)
        self._start, self._kind, self._language, self._first = end, "text", "", True
        self._lines, self._blank, self._nested = 0, False, ""


def code_blocks(text: str) -> list[str]:
    """The source of every fenced block, as Markdown reads them: also in lists, also unclosed."""
    from markdown_it import MarkdownIt

    return [token.content for token in MarkdownIt().parse(text) if token.type == "fence"]


def _closes(line: str, fence: str) -> bool:
    stripped = line.strip()
    return len(stripped) >= len(fence) and set(stripped) == {fence[0]}
