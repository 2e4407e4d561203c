"""The chat screen: transcript, panels beside it where there is room, composer, bars."""

from pathlib import Path

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from dsv4chat.core.attachments import AttachmentError, attach
from dsv4chat.core.commands import SLASH, parse_slash
from dsv4chat.core.conversation import Turn
from dsv4chat.core.mending import edited
from dsv4chat.core.session import Change, ChatSession
from dsv4chat.core.text import one_line
from dsv4chat.panels.column import PanelColumn
from dsv4chat.panels.glance import glance
from dsv4chat.panels.view import current_view
from dsv4chat.widgets.bars import KeyBar, StatusBar, TopBar, spinner
from dsv4chat.widgets.cards import EngineCard, Welcome
from dsv4chat.widgets.composer import Composer
from dsv4chat.widgets.safe import say
from dsv4chat.widgets.transcript import Transcript

SUGGESTIONS = 6
MAX_COMPOSER_LINES = 9


class ChatScreen(Screen):
    """Draws the session; what the user does goes to the app's actions."""

    AUTO_FOCUS = "#composer"

    def __init__(self, session: ChatSession, notes: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.session = session
        self._notes = notes
        self._editing: Turn | None = None
        self._mending: Turn | None = None
        self._found = ""
        self._draft = ""
        self._drawable = False  # widgets are there

    def compose(self) -> ComposeResult:
        yield TopBar(self.session, id="top")
        with Horizontal(id="main"):
            with Vertical(id="left"):
                yield Welcome(self.session, self._notes, id="welcome")
                yield Transcript(self.session, id="transcript")
                yield Static(id="below")
                yield EngineCard(self.session, id="card")
            yield PanelColumn(self.session, id="column")
        yield Static(id="suggest")
        yield Composer(id="composer", placeholder="Write a message")
        yield StatusBar(self.session, id="status")
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        self.transcript = self.query_one(Transcript)
        self.composer = self.query_one(Composer)
        self.welcome, self.card = self.query_one(Welcome), self.query_one(EngineCard)
        self.top, self.status = self.query_one(TopBar), self.query_one(StatusBar)
        self.column = self.query_one(PanelColumn)
        self.below = self.query_one("#below", Static)
        self.suggestions = self.query_one("#suggest", Static)
        self._drawable = True
        self._title_composer()
        self.show_changes({"phase", "path"})

    # ---- drawing --------------------------------------------------------------------------------

    def show_changes(self, changes: set[Change]) -> None:
        """Refresh what `changes` touch. Called at most once a frame."""
        if not self._drawable:
            return
        session = self.session
        if changes & {"path", "phase"}:
            empty = not session.conversation.path
            self.set_class(empty, "-empty")
            self.set_class(session.lost is not None or session.stuck is not None, "-lost")
            self.welcome.refresh(layout=True)
            self.card.refresh(layout=True)
            self.top.refresh()
        if "stuck" in changes:
            self.set_class(session.lost is not None or session.stuck is not None, "-lost")
            self.card.refresh(layout=True)
        if "progress" in changes and session.ready is None:
            self.welcome.refresh(layout=True)
        self._show_transcript(changes)
        if changes & {"telemetry", "tokens", "options", "path", "finished", "phase"}:
            view = current_view(session, self.app.cursor, self.app.layer)
            self.column.show(view)
            self.status.glance = glance(view)
            self.top.refresh()
        self.status.refresh()

    def _show_transcript(self, changes: set[Change]) -> None:
        transcript = self.transcript
        waiting = {"starting": "waiting for the engine", "loading": "waiting for the model"}
        phase = waiting.get(self.session.phase, "reading the conversation")
        transcript.waiting = f"{spinner()} {phase}"
        if changes & {"path", "phase"}:
            transcript.refresh_path()
        elif changes & {"tokens", "finished", "options"} or self.session.phase == "prefill":
            transcript.refresh_tail()
        below = not transcript.following and bool(self.session.conversation.path)
        self.set_class(below, "-scrolled")
        if below:
            hidden = transcript.max_scroll_y - round(transcript.scroll_y)
            text = say(
                (f"▼ {hidden} more lines  ", "$accent"), ("end goes there", "$foreground 60%")
            )
            self.below.update(text)

    def show_cursor(self, cursor: tuple[str, int] | None) -> None:
        self.transcript.show_cursor(cursor)

    def step_panel(self, step: int) -> None:
        self.column.step(step)

    def fold_thinking(self) -> None:
        self.transcript.unfold = not self.transcript.unfold
        self.transcript.redraw_all()

    # ---- writing --------------------------------------------------------------------------------

    @on(Composer.Sent)
    def _sent(self, event: Composer.Sent) -> None:
        if self._mending is not None:
            turn = self._mending
            self.leave_editing()
            self.app.apply_mend(edited(self.session.conversation.path, turn, event.text))
            return
        parsed = parse_slash(event.text)
        if isinstance(parsed, str):
            self.app.tell(parsed, "warning")
            return
        if parsed is not None:
            self.composer.take()
            self.app.run_command(*parsed)
            return
        if self.app.refuse_while_busy() or self.app.refuse_without_engine():
            return
        text = event.text[1:] if event.text.startswith("//") else event.text
        try:
            text, files = attach(text, Path.cwd())
        except AttachmentError as error:
            self.app.tell(str(error), "warning")
            return
        if files:
            self.app.tell(f"with {', '.join(files)}")
        self.composer.take()
        editing, self._editing = self._editing, None
        self.app.set_cursor(None)
        self.session.send(text, replacing=editing)
        if editing is not None:
            self.composer.set_text(self._draft)
        self._title_composer()
        self.transcript.follow()

    @on(Composer.Changed)
    def _typed(self) -> None:
        """Grow with the text; offer slash commands; keep a draft."""
        composer = self.composer
        self.app.history.draft("" if self._editing or self._mending else composer.full_text())
        lines = composer.wrapped_document.height
        room = max(1, min(MAX_COMPOSER_LINES, self.size.height // 3))
        composer.styles.height = max(1, min(lines, room)) + composer.gutter.height
        rows = [
            say(
                (f"/{name} {SLASH[name].argument}".ljust(34), "bold $primary"),
                (SLASH[name].help, "$foreground 60%"),
            )
            for name in composer.slash_matches()[:SUGGESTIONS]
        ] or [say((name, "bold $primary")) for name in composer.file_matches()[1]]
        self.set_class(bool(rows), "-suggesting")
        self.suggestions.update(Content("\n").join(rows))

    @on(Transcript.ThinkingClicked)
    def _thinking_clicked(self) -> None:
        self.fold_thinking()

    def edit_previous(self) -> bool:
        """Take the last user message into the composer; again: the one before it."""
        users = [turn for turn in self.session.conversation.path if turn.role == "user"]
        if self._editing is not None:
            at = next((n for n, turn in enumerate(users) if turn.id == self._editing.id), 0)
            users = users[:at]
        else:
            self._draft = self.composer.full_text()
        if not users:
            return False
        self._editing = users[-1]
        self.composer.set_text(users[-1].text)
        self.composer.focus()
        self._title_composer()
        return True

    def edit_refused(self, turn: Turn) -> None:
        """Take a turn that the model cannot take into the composer."""
        self._draft = self.composer.full_text()
        self._mending = turn
        self.restore_text(turn.text)
        self._title_composer()

    def leave_editing(self) -> bool:
        """Give the draft back; False if nothing was being edited."""
        if self._editing is None and self._mending is None:
            return False
        self._editing = self._mending = None
        self.composer.set_text(self._draft)
        self._title_composer()
        return True

    def find(self, text: str) -> None:
        """Mark a text in the transcript; the composer's frame says which match is shown."""
        self._found = one_line(text, 40)
        if self.transcript.find(text):
            self.transcript.focus()
        else:
            self.app.tell(f"{self._found} is not in this chat; /chats searches all of them.")
            self.transcript.find("")
        self._title_composer()

    def step_match(self, step: int) -> None:
        self.transcript.step_match(step)
        self._title_composer()

    def end_finding(self) -> bool:
        """Take the marks away; False if nothing was looked for."""
        if not self.transcript.needle:
            return False
        self.transcript.find("")
        self.composer.focus()
        self._title_composer()
        return True

    def begin(self, draft: str) -> None:
        """Another conversation is on screen: write in it, from where it was left."""
        self._editing = self._mending = None
        self.restore_text(draft)
        self._title_composer()
        self.transcript.follow()

    def restore_text(self, text: str) -> None:
        """A message was taken back before it was sent."""
        self.composer.set_text(text)
        self.composer.focus()

    def prefill(self, text: str) -> None:
        """Begin a command in the composer, unless something is written there."""
        if self.composer.text.strip():
            self.app.tell(f"Send or clear your message first, then type {text.strip()}.")
            return
        self.restore_text(text)

    def switch_focus(self) -> None:
        (self.transcript if self.composer.has_focus else self.composer).focus()

    def on_resize(self) -> None:
        if self._drawable:
            self._title_composer()

    def on_descendant_focus(self) -> None:
        self._title_composer()

    def _title_composer(self) -> None:
        composer = self.composer
        self.set_class(self._editing is not None or self._mending is not None, "-editing")
        if self._mending is not None:
            composer.border_title = "mending what the model cannot take"
            composer.border_subtitle = "enter keeps it as a new branch · esc leaves it as it was"
            return
        if self._editing is not None:
            composer.border_title = "editing an earlier message"
            composer.border_subtitle = "enter sends it as a new branch · esc leaves it as it was"
            return
        if self.transcript.needle:
            at, of = self.transcript.match_position
            composer.border_title = say(f"find {self._found} · {at} of {of}")
            composer.border_subtitle = "n next · N before · esc ends"
            return
        composer.border_title = "message"
        if self.transcript.has_focus:
            composer.border_subtitle = say("[ ] tokens · { } layers · tab writes")
        else:
            wide = self.size.width >= 60
            composer.border_subtitle = "enter send · ctrl+j new line" + " · / commands" * wide
