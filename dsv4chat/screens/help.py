"""All keys and commands, from the one table."""

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from dsv4chat.core.commands import COMMANDS
from dsv4chat.widgets.safe import say


class HelpScreen(ModalScreen[None]):
    """esc or F1 closes it."""

    BINDINGS = [Binding("escape,f1,q,enter", "dismiss", "Close")]

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help", classes="dialog") as box:
            box.border_title = "keys and commands"
            box.border_subtitle = "esc closes"
            yield Static(help_text())


def help_text() -> Content:
    """Keys, slash command and meaning of every command, by group."""
    lines: list[Content] = []
    group = ""
    for command in COMMANDS:
        if command.group != group:
            group = command.group
            lines += [say(""), say((group, "bold $primary"))]
        keys = " ".join(command.key_names)
        slash = f"/{command.slash} {command.argument}".strip() if command.slash else ""
        lines.append(
            say((f"  {keys:<15}", "bold"), (f"{slash:<34}", "$accent"), (command.help, ""))
        )
    lines += [
        say(""),
        say(("writing", "bold $primary")),
        say(
            ("  enter          ", "bold"), "send; ctrl+j, alt+enter or shift+enter makes a new line"
        ),
        say(("  up, down       ", "bold"), "in an empty composer: messages sent before"),
        say(("  //text         ", "bold"), "sends a message that begins with /"),
        say(("  ctrl+c         ", "bold"), "copies a selection, else stops the answer"),
        say(("  [ ] { }        ", "bold"), "work while the transcript has the focus (tab or esc)"),
    ]
    return Content("\n").join(lines[1:])
