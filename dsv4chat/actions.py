"""What keys, slash commands and the palette do.

Every action here belongs to a row of `core/commands.py`.
"""

import contextlib
from typing import TYPE_CHECKING

from textual.app import SuspendNotSupported

from dsv4chat.core import places
from dsv4chat.core.commands import Command
from dsv4chat.core.editor import EditorError, edit_text
from dsv4chat.core.markdown_pieces import code_blocks
from dsv4chat.core.settings import EFFORTS, GSA_MODES, next_router
from dsv4chat.core.text import one_line

if TYPE_CHECKING:
    from dsv4chat.app import ChatApp


class ChatActions:
    """Mixed into the app. Nothing here draws; screens hear of changes through the session."""

    # ---- chat -----------------------------------------------------------------------------------

    def action_stop(self: "ChatApp") -> None:
        """esc: stop what runs; else leave editing; else move to the transcript."""
        queued = self.session.queued
        if self.session.stop():
            if queued is not None and queued.role == "user":
                self.chat.restore_text(queued.text)
            return
        if not self.chat.leave_editing() and not self.chat.end_finding():
            self.action_focus_switch()

    def action_regenerate(self: "ChatApp") -> None:
        if self.refuse_while_busy() or self.refuse_without_engine():
            return
        if not self.session.regenerate():
            self.tell("There is no message to answer yet.")

    def action_edit(self: "ChatApp") -> None:
        if not self.refuse_while_busy() and not self.chat.edit_previous():
            self.tell("There is no earlier message to edit.")

    def action_editor(self: "ChatApp") -> None:
        """The app stands still meanwhile, so not while an answer runs."""
        if self.refuse_while_busy():
            return
        composer = self.chat.composer
        try:
            with self.suspend():
                text = edit_text(composer.full_text(), places.environment())
        except (EditorError, SuspendNotSupported) as error:
            self.tell(str(error), "warning")
        else:
            composer.set_text(text)

    def action_thinking(self: "ChatApp") -> None:
        self.chat.fold_thinking()

    def action_copy_answer(self: "ChatApp", which: str = "") -> None:
        """The last answer; with a number, that many messages back."""
        path = self.session.conversation.path
        if which:
            at = int(which) if which.isdigit() else 0
            turn = path[-at] if 1 <= at <= len(path) else None
        else:
            turn = self.session.conversation.last("assistant")
        if turn is None or not turn.text:
            self.tell("There is no answer to copy yet." if not which else f"no message {which}")
            return
        self.copy(turn.text, "message" if turn.role == "user" else "answer")

    def action_copy_code(self: "ChatApp", which: str = "") -> None:
        turn = self.session.conversation.last("assistant")
        blocks = code_blocks(turn.text) if turn else []
        if not blocks:
            self.tell("The last answer has no code block.")
            return
        number = int(which) if which.isdigit() else len(blocks)
        if not 1 <= number <= len(blocks):
            self.tell(f"The last answer has {len(blocks)} code blocks.", "warning")
            return
        self.copy(blocks[number - 1], f"code block {number} of {len(blocks)}")

    def action_system(self: "ChatApp", text: str | None = None) -> None:
        if text is None:
            self.chat.prefill("/system ")
            return
        self.session.conversation.system = text
        self.session.listener("path")
        self.tell(
            "System prompt set; it holds from the next message on."
            if text
            else "System prompt cleared."
        )

    # ---- engine ---------------------------------------------------------------------------------

    def action_router(self: "ChatApp", name: str = "") -> None:
        if not name:
            refused = self.session.ready.refused if self.session.ready else {}
            name, skipped = next_router(self.session.settings.router, refused)
            for reason in skipped:
                self.tell(f"skipped {reason}", "warning")
        self.action_set_value("router", name)

    def action_gsa_mode(self: "ChatApp", name: str = "") -> None:
        values = GSA_MODES
        now = values.index(self.session.settings.gsa)
        self.action_set_value("gsa", name or values[(now + 1) % len(values)])

    def action_effort(self: "ChatApp", name: str = "") -> None:
        now = EFFORTS.index(self.session.settings.effort)
        self.action_set_value("effort", name or EFFORTS[(now + 1) % len(EFFORTS)])

    def action_taps(self: "ChatApp", name: str = "") -> None:
        self.action_set_value("taps", name or ("off" if self.session.settings.taps else "on"))

    def action_set_value(self: "ChatApp", name: str, value: str = "") -> None:
        """Change a setting; without a value, put its command into the composer."""
        if not value:
            self.chat.prefill(f"/{name.replace('_', '-')} ")
            return
        if self.refuse_in_replay():
            return
        if self.session.remote and name in ("router", "gsa"):
            self.tell(f"{name} is the local engine's: a server decides by itself.", "warning")
            return
        try:
            self.session.set_value(name, value)
        except ValueError as error:
            self.tell(f"{name.replace('_', '-')} {error}", "warning")
            return
        if name not in ("router", "gsa", "taps"):
            self.tell(f"{name.replace('_', '-')} is {value} from the next answer on.")

    def action_restart(self: "ChatApp") -> None:
        if self.refuse_in_replay():
            return
        self.run_worker(self.session.start(), group="engine", exclusive=True)

    # ---- look inside ----------------------------------------------------------------------------

    def action_debug(self: "ChatApp") -> None:
        from dsv4chat.screens.debug import DebugScreen

        if isinstance(self.screen, DebugScreen):
            self.pop_screen()
        else:
            self.push_screen(DebugScreen(self.session))

    def action_panel(self: "ChatApp", step: int) -> None:
        with contextlib.suppress(AttributeError):
            self.screen.step_panel(step)

    def action_token(self: "ChatApp", step: int) -> None:
        turn = self.session.conversation.last("assistant")
        last = self.session.records.last_index(turn) if turn else -1
        if last < 0:
            self.tell("There is no token to look at yet.")
            return
        at = last if self.cursor is None else self.cursor
        self.set_cursor(max(0, min(last, at + step if self.cursor is not None else last)))

    def action_token_live(self: "ChatApp") -> None:
        self.set_cursor(None)

    def action_layer(self: "ChatApp", step: int) -> None:
        layers = max(self.session.ready.model.layers if self.session.ready else 1, 1)
        self.layer = (self.layer + step) % layers
        self.session.listener("telemetry")

    # ---- app ------------------------------------------------------------------------------------

    def action_focus_switch(self: "ChatApp") -> None:
        self.chat.switch_focus()

    def action_palette(self: "ChatApp") -> None:
        self.action_command_palette()

    def action_help(self: "ChatApp") -> None:
        from dsv4chat.screens.help import HelpScreen

        if not isinstance(self.screen, HelpScreen):
            self.push_screen(HelpScreen())

    def action_theme(self: "ChatApp", name: str = "") -> None:
        names = sorted(self.available_themes)
        if name and name not in names:
            self.tell(f"no theme {one_line(name, 30)}; there are {', '.join(names)}", "warning")
            return
        self.theme = name or names[(names.index(self.theme) + 1) % len(names)]
        self.tell(f"theme {self.theme}")

    def run_command(self: "ChatApp", command: Command, argument: str) -> None:
        """A slash command: the action of its row, with its argument."""
        name, _, fixed = command.action.partition("(")
        method = getattr(self, f"action_{name}")
        if fixed:
            method(fixed.rstrip(")").strip("'"), argument)
        elif command.argument:
            method(argument)
        else:
            method()
