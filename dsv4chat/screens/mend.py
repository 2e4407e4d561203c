"""Ways to mend the message that the model cannot take."""

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from dsv4chat.core.mending import Mend
from dsv4chat.core.text import one_line
from dsv4chat.widgets.safe import say

EDIT = -1


class MendScreen(ModalScreen[int | None]):
    """Returns the number of the chosen mend, EDIT to change its text, or None."""

    BINDINGS = [Binding("escape", "dismiss(None)", "Close")]

    def __init__(self, reason: str, choices: list[Mend]) -> None:
        super().__init__()
        self.reason = reason
        self.choices = choices

    def compose(self) -> ComposeResult:
        with Vertical(id="mend", classes="dialog") as box:
            box.border_title = "mend this chat"
            box.border_subtitle = "enter mends as a new branch · esc closes"
            yield Static(say((one_line(self.reason, 400), "$error")), id="state")
            rows = [Option(say(one_line(mend.title, 100))) for mend in self.choices]
            yield OptionList(*rows, Option(say("edit its text")), id="entries")

    def on_mount(self) -> None:
        self.query_one(OptionList).focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        at = event.option_index
        self.dismiss(at if at < len(self.choices) else EDIT)
