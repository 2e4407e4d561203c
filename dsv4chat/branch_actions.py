"""Actions on branches: walk them, and make one by taking another token."""

from typing import TYPE_CHECKING

from dsv4chat.core.branching import (
    Alternative,
    ForceError,
    alternatives,
    find_alternative,
    force_token,
)
from dsv4chat.core.conversation import Turn
from dsv4chat.core.text import quoted

if TYPE_CHECKING:
    from dsv4chat.app import ChatApp


class BranchActions:
    """Mixed into the app."""

    def action_branch(self: "ChatApp", step: int) -> None:
        if self.refuse_while_busy():
            return
        if not self.session.conversation.step_branch(step):
            self.tell("No other branch: ctrl+r answers again, ctrl+e edits a message.")
        self.set_cursor(None)
        self.session.listener("path")

    def action_branches(self: "ChatApp") -> None:
        from dsv4chat.screens.branches import BranchScreen

        if self.refuse_while_busy():
            return

        def chosen(turn_id: str | None) -> None:
            if turn_id is not None:
                self.session.conversation.select(turn_id)
                self.set_cursor(None)
                self.session.listener("path")

        self.push_screen(BranchScreen(self.session.conversation), chosen)

    def action_force(self: "ChatApp", choice: str = "") -> None:
        """Take another token at the cursor: the one named, or one chosen from a list."""
        if self.refuse_while_busy() or self.refuse_without_engine():
            return
        turn, index = self.session.conversation.last("assistant"), self.cursor
        if turn is None or index is None or index >= len(turn.token_ids):
            self.tell("Put the token cursor on a token first: F9, or [ in the transcript.")
            return
        choices = alternatives(turn, self.session.records.get(turn.id), index)
        if choice:
            vocab = self.session.ready.model.vocab_size if self.session.ready else 0
            try:
                self._force(turn, index, find_alternative(choice, choices, vocab))
            except ForceError as error:
                self.tell(str(error), "warning")
        elif not choices:
            self.tell("No alternatives were recorded here (taps were off): /force id N works.")
        else:
            self._choose_token(turn, index, choices)

    def _choose_token(self: "ChatApp", turn: Turn, index: int, choices: list[Alternative]) -> None:
        from dsv4chat.screens.force import ForceScreen

        def chosen(choice: Alternative | None) -> None:
            if choice is not None and not self.refuse_while_busy():
                self._force(turn, index, choice)

        title = f"token {index}: instead of {quoted(turn.pieces[index])}"
        self.push_screen(ForceScreen(title, choices), chosen)

    def _force(self: "ChatApp", turn: Turn, index: int, choice: Alternative) -> None:
        try:
            force_token(self.session, turn, index, choice)
        except ForceError as error:
            self.tell(str(error), "warning")
            return
        self.set_cursor(None)
        self.chat.transcript.follow()
