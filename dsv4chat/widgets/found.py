"""Where a text stands in drawn lines, also where a line end runs through it."""

import re

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from dsv4chat.core.conversation import Turn

Span = tuple[int, int, int]
"""Row, first and last + 1 character of a match in that row."""

_MARKUP = re.compile(r"[*_`#|>~]")


def needle_of(text: str) -> str:
    """What is compared: case does not count, and any blank equals any other."""
    return _fold(" ".join(text.split()))


def may_hold(turn: Turn, needle: str) -> bool:
    """Whether it is worth drawing a turn to look for `needle`. Markdown hides its own signs."""
    bare = _MARKUP.sub("", needle)
    source = _MARKUP.sub("", f"{turn.reasoning}\n{turn.text}\n{turn.tool_calls or ''}")
    return bare in needle_of(source)


def find_in_rows(texts: list[str], needle: str) -> list[list[Span]]:
    """Every match in the rows of a turn, in order; each as its spans, row by row."""
    if not needle:
        return []
    letters: list[str] = []
    places: list[tuple[int, int]] = []
    for row, text in enumerate(texts):
        for column, letter in enumerate(text):
            blank = letter.isspace() or (letter == "│" and column == 0)
            if blank and (not letters or letters[-1] == " "):
                continue
            letters.append(" " if blank else letter)
            places.append((row, column))
        if letters and letters[-1] != " ":
            letters.append(" ")
            places.append((row, len(text)))
    flat = _fold("".join(letters))
    found: list[list[Span]] = []
    at = flat.find(needle)
    while at >= 0:
        found.append(_spans(places[at : at + len(needle)]))
        at = flat.find(needle, at + len(needle))
    return found


def highlight(strip: Strip, spans: list[tuple[int, int]], style: Style, shift: int) -> Strip:
    """Give characters of a line another style; `shift` is the width of the gutter."""
    for start, end in spans:
        first = strip.index_to_cell_position(start + shift)
        last = strip.index_to_cell_position(end + shift)
        before, chosen, after = strip.crop(0, first), strip.crop(first, last), strip.crop(last)
        marked = Strip([Segment(s.text, (s.style or Style()) + style) for s in chosen])
        strip = Strip.join([before, marked, after])
    return strip


def _spans(places: list[tuple[int, int]]) -> list[Span]:
    spans: list[Span] = []
    for row, column in places:
        if spans and spans[-1][0] == row:
            spans[-1] = (row, spans[-1][1], column + 1)
        else:
            spans.append((row, column, column + 1))
    return spans


def _fold(text: str) -> str:
    """Lower case, one character for one."""
    if text.isascii():
        return text.lower()
    return "".join(low if len(low := letter.lower()) == 1 else letter for letter in text)
