"""Text as it is, wrapped to a width: user messages, thinking, notes."""

from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

Line = list[Segment]
_CONSOLE = Console(width=500, color_system="truecolor", force_terminal=True, legacy_windows=False)


def plain_lines(source: str, width: int, style: Style) -> list[Line]:
    """Wrapped at words; a word longer than a line is cut."""
    text = Text(source.expandtabs(4), style=style)
    return [segments(line) for line in text.wrap(_CONSOLE, max(width, 4), overflow="fold")]


def segments(text: Text) -> Line:
    """One line of Rich text as segments."""
    drawn = (segment for segment in text.render(_CONSOLE, end="") if segment.text)
    # Without spans Rich leaves the text's own style to the console.
    style = text.style if isinstance(text.style, Style) else Style.null()
    return list(Segment.apply_style(drawn, style))
