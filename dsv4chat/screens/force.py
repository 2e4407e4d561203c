"""The tokens that could stand under the cursor, to choose one and branch."""

from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from dsv4chat.core.branching import Alternative
from dsv4chat.core.text import quoted
from dsv4chat.widgets.safe import bar, say

CELLS = 20


class ForceScreen(ModalScreen[Alternative | None]):
    """Returns the chosen token, or None. `title` says which token it would replace."""

    BINDINGS = [Binding("escape", "dismiss(None)", "Close")]

    def __init__(self, title: str, choices: list[Alternative]) -> None:
        super().__init__()
        self.choices = choices
        self._title = title

    def compose(self) -> ComposeResult:
        rows = [Option(_row(choice), disabled=choice.taken) for choice in self.choices]
        box = OptionList(*rows, id="alternatives", classes="dialog")
        box.border_title = say(self._title)
        box.border_subtitle = "enter branches here · esc closes"
        yield box

    def on_mount(self) -> None:
        free = (n for n, choice in enumerate(self.choices) if not choice.taken)
        self.query_one(OptionList).highlighted = next(free, None)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self.choices[event.option_index])


def _row(choice: Alternative) -> Content:
    share = choice.probability
    return say(
        (f"{choice.rank:>2} ", "$foreground 60%"),
        (f"{quoted(choice.piece, 18):<20} ", "bold"),
        (bar(share, CELLS), "$success" if choice.taken else "$primary"),
        (f" {share:7.2%}", ""),
        (f"  id {choice.id}", "$foreground 60%"),
        ("  ◀ taken" if choice.taken else "", "$success"),
    )
