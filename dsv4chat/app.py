"""The Textual app.

Starts the engine, carries its events to the screens at a bounded rate, owns the cursor.
"""

import asyncio
import contextlib
import signal
import sys
from pathlib import Path

from textual.app import App
from textual.binding import Binding
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content

from dsv4chat.actions import ChatActions
from dsv4chat.branch_actions import BranchActions
from dsv4chat.chat_actions import ConversationActions
from dsv4chat.compare_actions import CompareActions
from dsv4chat.core import places
from dsv4chat.core.clipboard import copy_text
from dsv4chat.core.commands import COMMANDS
from dsv4chat.core.config import Config
from dsv4chat.core.history import History
from dsv4chat.core.session import Change, ChatSession
from dsv4chat.core.store import Store
from dsv4chat.core.text import clean
from dsv4chat.instrument_actions import InstrumentActions
from dsv4chat.screens.chat import ChatScreen
from dsv4chat.screens.debug import DebugScreen

FRAME_S = 1 / 15
INTERRUPTED = 130
SLOW_FRAME_S = 1 / 4  # low motion, for slow links and for readers who want calm


class CommandSource(Provider):
    """The palette's rows: the same table as the slash commands and the keys."""

    async def discover(self) -> Hits:
        for command in COMMANDS:
            yield DiscoveryHit(command.title, self._run(command.action), help=_help(command))

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for command in COMMANDS:
            score = max(matcher.match(command.title), 0.8 * matcher.match(command.help))
            if score > 0:
                shown = matcher.highlight(command.title)
                yield Hit(score, shown, self._run(command.action), command.title, _help(command))

    def _run(self, action: str):
        async def run() -> None:
            await self.app.run_action(f"app.{action}" if "(" in action else f"app.{action}()")

        return run


def _help(command) -> str:
    keys = ", ".join(command.key_names)
    slash = f"/{command.slash}" if command.slash else ""
    return "  ".join(part for part in (command.help, keys, slash) if part)


def _bindings() -> list[Binding]:
    """Keys of the command table. Keys for browsing give way to typing."""
    return [
        Binding(
            key,
            command.action,
            command.title,
            show=False,
            priority=len(key) > 1 and not _typed(key),
        )
        for command in COMMANDS
        for key in command.keys
    ]


def _typed(key: str) -> bool:
    """A key that a text field takes, or one with a meaning in dialogs."""
    return key == "escape" or key.endswith(("bracket", "space")) or len(key) == 1


class ChatApp(
    ChatActions, ConversationActions, BranchActions, InstrumentActions, CompareActions, App[int]
):
    """One window, one session, one engine."""

    CSS_PATH = "app.tcss"
    TITLE = "dsv4chat"
    COMMANDS = {CommandSource}
    BINDINGS = [*_bindings(), Binding("ctrl+c", "interrupt", "Copy or stop", show=False)]
    HORIZONTAL_BREAKPOINTS = [(0, "-thin"), (60, "-narrow"), (110, "-wide"), (170, "-huge")]
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (14, "-low"), (30, "-tall"), (50, "-high")]

    def __init__(
        self,
        session: ChatSession,
        config: Config | None = None,
        *,
        resume: bool = False,
        store: Path | None = None,
    ) -> None:
        """store: the file of the chats; the user's own if not given."""
        super().__init__()
        self.session = session
        self.history = History(session, Store(store or places.store_file()))
        self._resume = resume
        self.config = config or Config()
        self.cursor: int | None = None
        self.layer = 0
        self.chat = ChatScreen(session, self.config.problems)
        self._changes: set[Change] = set()
        self._told = 0
        self.frozen = ""  # the turn at whose first bad token the panels were held

    async def on_mount(self) -> None:
        self.session.listener = self._changes.add
        if self.config.theme in self.available_themes:
            self.theme = self.config.theme
        if self.config.low_motion:
            self.animation_level = "none"
        await self.push_screen(self.chat)
        self.set_cursor(self.cursor)
        self._catch_signals()
        self.run_worker(self.begin_chat(resume=self._resume), group="open")
        self.run_worker(self.session.pump(), group="pump", exit_on_error=True)
        self.run_worker(self.session.start(), group="engine", exclusive=True)
        self.set_interval(SLOW_FRAME_S if self.config.low_motion else FRAME_S, self._frame)

    def _catch_signals(self) -> None:
        """Leave the terminal clean when asked to end from outside."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, self.exit, INTERRUPTED)

    async def on_unmount(self) -> None:
        await self.session.backend.close()
        self.history.flush()

    def _frame(self) -> None:
        """Bring the screens up to date with what has changed since the last frame."""
        changes, moving = set(self._changes), self._moving
        self._changes.clear()
        self.history.keep(changes)
        for notice in self.session.notices[self._told :]:
            self.tell(notice, "warning")
        self._told = len(self.session.notices)
        if "notice" in changes:
            self.freeze_panels()
        if not changes and not moving:
            return
        self.chat.show_changes(changes)
        if self.screen is not self.chat and hasattr(self.screen, "show_changes"):
            self.screen.show_changes(changes)

    @property
    def _moving(self) -> bool:
        """Something on screen turns although nothing has changed."""
        return self.session.phase in ("starting", "loading", "prefill", "answering")

    # ---- what actions use -----------------------------------------------------------------------

    def tell(self, message: str, severity: str = "information") -> None:
        """A toast. Never markup."""
        self.notify(clean(message), severity=severity, markup=False, timeout=5)  # type: ignore[arg-type]

    def refuse_while_busy(self) -> bool:
        if self.session.busy:
            self.tell("An answer is on its way: esc stops it.")
            return True
        return False

    def refuse_in_replay(self) -> bool:
        if self.session.replay:
            self.tell("This is a replay: no engine runs.", "warning")
        return bool(self.session.replay)

    def refuse_without_engine(self) -> bool:
        if self.refuse_in_replay():
            return True
        if self.session.phase == "dead":
            self.tell("The engine is not running: F8 restarts it. Your text stays.", "warning")
            return True
        return False

    def set_cursor(self, index: int | None) -> None:
        """Put the token cursor on a token of the last answer; None follows the newest."""
        self.cursor = index
        turn = self.session.conversation.last("assistant")
        self.chat.show_cursor((turn.id, index) if turn and index is not None else None)
        self.session.listener("telemetry")

    def copy(self, text: str, what: str) -> None:
        self.run_worker(self._copy(text, what), group="copy", exclusive=True)

    def copy_to_clipboard(self, text: str) -> None:
        """Textual's own way to copy, for text fields."""
        self.copy(text, "selection")

    async def _copy(self, text: str, what: str) -> None:
        self._clipboard = text  # for paste inside the app
        copied = await asyncio.to_thread(
            copy_text, text, places.environment(), sys.platform, self._write
        )
        if copied.done:
            self.tell(f"copied: {what}, {len(text)} characters, {copied.how}")
        else:
            self.tell(f"Not copied: {copied.how}. /export writes a file.", "warning")

    def _write(self, sequence: str) -> None:
        if self._driver is not None:
            self._driver.write(sequence)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """While a dialog is open, its own keys rule."""
        if action in ("quit", "command_palette", "interrupt") or not self.is_running:
            return True
        names = {command.action.partition("(")[0] for command in COMMANDS}
        if action in names and not isinstance(self.screen, (ChatScreen, DebugScreen)):
            return False
        return True

    async def action_interrupt(self) -> None:
        """ctrl+c: copy a selection, else stop the answer, else say how to quit."""
        selected = self.screen.get_selected_text()
        if selected:
            self.copy(selected, "selection")
            self.screen.clear_selection()
        elif self.session.busy:
            self.action_stop()
        else:
            self.tell("ctrl+q quits.")

    async def action_quit(self) -> None:
        self.exit(0)


def title(text: str, key: str = "") -> Content:
    """A border title that is ours, never markup."""
    return Content.assemble((text, "bold"), (f"  {key}" if key else "", "$foreground 60%"))
