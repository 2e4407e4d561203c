"""Finds a place of the source again after Markdown has been drawn.

A sign without width is put into the source at a place where it cannot change the Markdown, and
taken out of the drawn lines again. `clean` guarantees that no text brings such a character with it.
"""

import re

from rich.segment import Segment
from rich.style import Style

from dsv4chat.core.text import CURSOR_POINT, MARK_END, MARK_POINT, MARK_START

_MARKS = re.compile(f"([{MARK_START}{MARK_END}{MARK_POINT}{CURSOR_POINT}])")
_LINE_START = re.compile(r"\s*(?:>\s*)*(?:[-*+]\s|\d{1,9}[.)]\s|#{1,6}\s)?")
Line = list[Segment]


def with_marks(
    source: str, start: int, end: int, points: list[int], cursor: tuple[int, int] | None
) -> str:
    """source[start:end] with a mark at every option point and around the token under the cursor."""
    places: list[tuple[int, str]] = []
    for point in points:
        if (at := _safe(source, point, end)) is not None:
            places.append((at, MARK_POINT))
    if cursor is not None:
        places += _around(source, cursor, end)
    text = source[start:end]
    for at, mark in sorted(places, reverse=True):
        text = text[: at - start] + mark + text[at - start :]
    return text


def _around(source: str, cursor: tuple[int, int], end: int) -> list[tuple[int, str]]:
    first = _safe(source, cursor[0], cursor[1])
    if first is None:
        at = _safe(source, cursor[0], end)
        return [] if at is None else [(at, CURSOR_POINT)]
    last = cursor[1]
    while last > first + 1 and not source[last - 1].isalnum():
        last -= 1
    return [(first, MARK_START), (last, MARK_END)]


def _safe(source: str, at: int, end: int) -> int | None:
    """The next letter or digit that is not part of a list number, a fence line or other markup."""
    for index in range(at, end):
        if not source[index].isalnum():
            continue
        line = source.rfind("\n", 0, index) + 1
        match = _LINE_START.match(source, line)
        if match and index < match.end():
            continue
        if source.startswith(("```", "~~~"), line):
            continue
        if index and source[index - 1] == "&":
            continue
        return index
    return None


def take_marks(lines: list[Line], cursor_style: Style) -> dict[int, str]:
    """Remove the marks in place; returns the gutter sign of each line that had one."""
    gutter: dict[int, str] = {}
    inside = False
    for number, line in enumerate(lines):
        if not inside and not any(_MARKS.search(segment.text) for segment in line):
            continue
        drawn: Line = []
        for segment in line:
            for part in _MARKS.split(segment.text):
                if part == MARK_POINT:
                    gutter[number] = "⟂"
                elif part in (MARK_START, CURSOR_POINT):
                    gutter.setdefault(number, "▸")
                    inside = part == MARK_START
                elif part == MARK_END:
                    inside = False
                elif part:
                    style = (
                        (segment.style or Style.null()) + cursor_style if inside else segment.style
                    )
                    drawn.append(Segment(part, style))
        lines[number] = drawn
    return gutter
