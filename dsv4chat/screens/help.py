"""All keys and commands, from the one table."""

import textwrap

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.geometry import Size
from textual.screen import ModalScreen
from textual.widget import Widget

from dsv4chat.core.commands import COMMANDS
from dsv4chat.widgets.safe import say

KEYS, SLASH = 12, 14


class HelpScreen(ModalScreen[None]):
    """esc or F1 closes it."""

    BINDINGS = [Binding("escape,f1,q,enter", "dismiss", "Close")]

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help", classes="dialog") as box:
            box.border_title = "keys and commands"
            box.border_subtitle = "esc closes"
            yield HelpText()


WRITING = (
    ("enter", "", "send; ctrl+j, alt+enter or shift+enter makes a new line"),
    ("up, down", "", "in an empty composer: messages sent before"),
    ("", "@file", "sends a text file along; tab completes its name"),
    ("", "//text", "sends a message that begins with /"),
    ("ctrl+c", "", "copies a selection, else stops the answer"),
    ("[ ] { }", "", "work while the transcript has the focus (tab or esc)"),
)


class HelpText(Widget):
    """Keys, slash command and meaning of every command, by group, wrapped to the width."""

    def render(self) -> Content:
        return Content("\n").join(help_lines(max(self.size.width, 30)))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(help_lines(max(width, 30)))


def help_lines(width: int) -> list[Content]:
    """The help as lines of at most `width` cells."""
    lines: list[Content] = []
    group = ""
    for command in COMMANDS:
        if command.group != group:
            group = command.group
            lines += [say(""), say((group, "bold $primary"))]
        slash = f"/{command.slash}" if command.slash else ""
        choice = f" ({command.argument})" if "|" in command.argument else ""
        meaning = command.help + choice
        lines += _row(" ".join(command.key_names), slash, meaning, width)
    lines += [say(""), say(("writing", "bold $primary"))]
    for keys, slash, meaning in WRITING:
        lines += _row(keys, slash, meaning, width)
    return lines[1:]


def _row(keys: str, slash: str, meaning: str, width: int) -> list[Content]:
    indent = 2 + KEYS + SLASH
    first, *rest = textwrap.wrap(meaning, max(width - indent, 10))
    head = say((f"  {keys:<{KEYS}}", "bold"), (f"{slash:<{SLASH}}", "$accent"), first)
    return [head, *(say(" " * indent + text) for text in rest)]
