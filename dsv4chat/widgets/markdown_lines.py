"""Draws pieces of Markdown as lines of segments.

No widgets, so a long answer costs what is on screen.
"""

from functools import lru_cache

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, ListItem, Markdown, TableElement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

from dsv4chat.core.markdown_pieces import Piece
from dsv4chat.widgets.look import Look
from dsv4chat.widgets.plain_lines import Line, segments


@lru_cache(maxsize=1)
def _parser():
    from markdown_it import MarkdownIt

    # HTML stays visible text, and pictures stay links: an answer must not lose a character unseen.
    return (
        MarkdownIt("commonmark", {"html": False})
        .enable(["table", "strikethrough"])
        .disable("image")
    )


class _Heading(Heading):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _ListItem(ListItem):
    def render_bullet(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from _hanging(self, console, options, "• ")

    def render_number(
        self, console: Console, options: ConsoleOptions, number: int, last_number: int
    ) -> RenderResult:
        yield from _hanging(self, console, options, f"{number}. ")


def _hanging(item: ListItem, console: Console, options: ConsoleOptions, sign: str) -> RenderResult:
    """The item's lines behind a sign; following lines are indented by its width."""
    width = max(options.max_width - len(sign), 1)
    lines = console.render_lines(item.elements, options.update(width=width), style=item.style)
    style = console.get_style("markdown.item.bullet", default="none")
    for number, line in enumerate(lines):
        yield Segment(sign, style) if number == 0 else Segment(" " * len(sign))
        yield from line
        yield Segment("\n")


class _NestedCode(CodeBlock):
    """A code block inside a list item; those at the top level are drawn by `code_lines`."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        style = console.get_style("markdown.code_block", default="none")
        for line in str(self.text).rstrip().split("\n"):
            yield Text(f"  {line.expandtabs(4)}", style=style)


class _Table(TableElement):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for item in super().__rich_console__(console, options):
            if isinstance(item, Table):
                item.pad_edge, item.padding, item.collapse_padding = False, (0, 2, 0, 0), True
                item.show_edge, item.expand = False, False
            yield item


class _Markdown(Markdown):
    elements = {
        **Markdown.elements,
        "heading_open": _Heading,
        "list_item_open": _ListItem,
        "fence": _NestedCode,
        "code_block": _NestedCode,
        "table_open": _Table,
    }

    def __init__(self, source: str) -> None:
        super().__init__("", hyperlinks=False)
        self.markup, self.parsed = source, _parser().parse(source)


@lru_cache(maxsize=4)
def _theme(look: Look) -> Theme:
    heading = {f"markdown.h{level}": look.heading for level in range(1, 7)}
    return Theme(
        {
            **heading,
            "markdown.code": look.code,
            "markdown.code_block": look.code,
            "markdown.block_quote": look.quote,
            "markdown.item.bullet": look.bullet,
            "markdown.link": look.link,
            "markdown.link_url": look.link,
            "markdown.hr": look.frame,
            "markdown.table.border": look.frame,
            "markdown.table.header": look.heading,
        }
    )


def text_lines(console: Console, source: str, width: int, look: Look) -> list[Line]:
    """A piece of Markdown that is not a top-level fence."""
    with console.use_theme(_theme(look)):
        options = console.options.update(width=max(width, 4), height=None, highlight=False)
        lines = console.render_lines(
            _Markdown(source.expandtabs(4)), options, style=look.text, pad=False
        )
    while lines and not _plain(lines[0]).strip():
        lines.pop(0)
    while lines and not _plain(lines[-1]).strip():
        lines.pop()
    return lines


def code_lines(source: str, piece: Piece, width: int, look: Look) -> list[Line]:
    """A fence, or a part of one, in a light frame that names the language."""
    body = source.split("\n")
    if piece.first:
        body = body[1:]
    if piece.last and body and set(body[-1].strip()) <= {"`", "~"}:
        body.pop()
    if piece.last and body and set(body[-1].strip()) in ({"`"}, {"~"}):
        body.pop()
    inner = max(width - 2, 4)
    lines: list[Line] = []
    if piece.first:
        label = f" {piece.language[:20]} " if piece.language else ""
        lines.append([Segment("╭─" + label + "─" * max(inner - len(label) - 1, 0), look.frame)])
    for text in _highlighted("\n".join(body), piece.language, look).split("\n", allow_blank=True):
        text.expand_tabs(4)
        for part in _folded(text, inner - 1):
            lines.append([Segment("│ ", look.frame), *segments(part)])
    if piece.last:
        lines.append([Segment("╰" + "─" * inner, look.frame)])
    return lines


def _folded(text: Text, width: int) -> list[Text]:
    """Code is cut, not wrapped at words."""
    if text.cell_len <= width:
        return [text]
    parts: list[Text] = []
    while text.cell_len > width:
        cut = min(len(text), width)
        while text[:cut].cell_len > width:
            cut -= 1
        parts.append(text[:cut])
        text = text[cut:]
    return [*parts, text]


def _highlighted(code: str, language: str, look: Look) -> Text:
    """Code coloured by kind of token; plain where the language is not known."""
    text = Text(code, style=look.code, no_wrap=True, end="")
    if not language:
        return text
    from pygments.lexers import get_lexer_by_name
    from pygments.token import Comment, Keyword, Literal, Name, Number, String
    from pygments.util import ClassNotFound

    try:
        lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return text
    kinds = (
        (Comment, look.comment), (String, look.string), (Number, look.number),
        (Literal, look.number),
        (Keyword, look.keyword), (Name.Function, look.name), (Name.Class, look.name),
        (Name.Builtin, look.name),
    )  # fmt: skip
    for start, kind, value in lexer.get_tokens_unprocessed(code):
        for family, style in kinds:
            if kind in family:
                text.stylize(style, start, start + len(value))
                break
    return text


def _plain(line: Line) -> str:
    return "".join(segment.text for segment in line)
