"""The one door for text into widgets.

Everything passes `clean` and nothing is ever read as markup.
"""

from textual.content import Content
from textual.style import Style

from dsv4chat.core.text import clean, one_line

Part = str | tuple[str, str | Style]


def say(*parts: Part) -> Content:
    """Content of plain strings and (text, style) pairs; styles are ours, texts may be anyone's."""
    return Content.assemble(
        *(
            (clean(part[0]), part[1]) if isinstance(part, tuple) else clean(part)
            for part in parts
        )
    )  # fmt: skip


def muted(text: str) -> Content:
    """Text of second rank."""
    return say((text, "$foreground 60%"))


def line(text: str, style: str = "", limit: int = 200) -> Content:
    """One line of foreign text."""
    return Content.assemble((one_line(text, limit), style))


def columns(left: Content, right: Content, width: int) -> Content:
    """Left and right text on one line of `width` cells; the left one is cut if both do not fit."""
    room = width - right.cell_length
    if room < 8:
        return left.truncate(width, ellipsis=True)
    left = left.truncate(room - 1, ellipsis=True)
    return Content.assemble(left, " " * (room - left.cell_length), right)


def bar(share: float, width: int) -> str:
    """A bar of `width` cells in eighths, padded with blanks."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + ("▏▎▍▌▋▊▉"[rest - 1] if rest else "")).ljust(width)


def spark(values: list[float], low: float, high: float) -> str:
    """One character a value, from low to high."""
    span = (high - low) or 1.0
    return "".join(
        "▁▂▃▄▅▆▇█"[max(0, min(7, int(8 * (value - low) / span)))] if value == value else "?"
        for value in values
    )
