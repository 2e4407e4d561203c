"""The tree of a conversation, to choose which branch is on screen."""

import time

from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from dsv4chat.core.conversation import NAMES, Conversation, Turn
from dsv4chat.core.text import one_line
from dsv4chat.widgets.safe import say


class BranchScreen(ModalScreen[str | None]):
    """Returns the id of the chosen turn, or None."""

    BINDINGS = [Binding("escape", "dismiss(None)", "Close")]

    def __init__(self, conversation: Conversation) -> None:
        super().__init__()
        self.conversation = conversation

    def compose(self) -> ComposeResult:
        path = {turn.id for turn in self.conversation.path}
        rows = [Option(text, id=turn.id) for turn, text in self._rows(None, "", path)]
        choices = OptionList(*rows, id="branches", classes="dialog")
        choices.border_title = "branches"
        choices.border_subtitle = "enter shows · esc closes"
        yield choices

    def on_mount(self) -> None:
        choices = self.query_one(OptionList)
        if self.conversation.leaf is not None:
            choices.highlighted = choices.get_option_index(self.conversation.leaf)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option.id)

    def _rows(self, parent: str | None, indent: str, path: set[str]):
        """Turns in tree order. Only forks indent, so that a long chat stays narrow."""
        stack = [(turn, indent) for turn in reversed(self.conversation.children(parent))]
        while stack:
            turn, indent = stack.pop()
            forked = len(self.conversation.siblings(turn)) > 1
            yield turn, self._row(turn, indent + ("├ " if forked else ""), turn.id in path)
            deeper = indent + ("│ " if forked else "")
            stack += [(child, deeper) for child in reversed(self.conversation.children(turn.id))]

    def _row(self, turn: Turn, indent: str, on_path: bool) -> Content:
        sign = "● " if on_path else "○ "
        path = f" by {turn.routers[0]}" if turn.routers and turn.token_ids[0] >= 0 else ""
        who = NAMES.get(turn.role) or f"answer{path}"
        when = time.strftime("%H:%M", time.localtime(turn.created))
        return say(
            (indent, "$foreground 60%"),
            (sign, "$success" if on_path else "$foreground 60%"),
            (f"{who} ", "bold" if turn.role == "user" else "$accent"),
            (one_line(turn.text or turn.note or "(empty)", 70), ""),
            (f"  {when}", "$foreground 60%"),
        )
