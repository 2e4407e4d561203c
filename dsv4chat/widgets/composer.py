"""Where messages are written.

Grows with its text, folds long pastes into tokens, keeps what was sent before.
"""

import re
from pathlib import Path

from textual import events
from textual.message import Message
from textual.widgets import TextArea

from dsv4chat.core.attachments import completions
from dsv4chat.core.commands import SLASH

NEWLINE_KEYS = {"shift+enter", "alt+enter", "ctrl+j", "ctrl+enter"}
FOLD_LINES, FOLD_CHARS = 9, 1500
MAX_OPEN_CHARS = 20_000
_PASTE = re.compile(r"\[paste (\d+): [^\]]*\]")


class Composer(TextArea):
    """Enter sends.

    Several keys make a new line, because terminals differ in which they can report.
    """

    class Sent(Message):
        """The user sent `text`, pastes unfolded."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self, **kwargs) -> None:
        super().__init__(soft_wrap=True, tab_behavior="focus", **kwargs)
        self.sent_texts: list[str] = []
        self._pastes: list[str] = []
        self._at: int | None = None
        self._draft = ""

    async def _on_key(self, event: events.Key) -> None:
        if event.key == "enter":
            event.stop()
            event.prevent_default()
            self._send()
            return
        if event.key in NEWLINE_KEYS:
            event.stop()
            event.prevent_default()
            self.insert("\n")
            return
        if event.key == "tab" and self._complete():
            event.stop()
            event.prevent_default()
            return
        if event.key in ("up", "down") and self._recall(-1 if event.key == "up" else 1):
            event.stop()
            event.prevent_default()
            return
        await super()._on_key(event)

    def _send(self) -> None:
        text = self.full_text()
        if not text.strip():
            return
        self.post_message(self.Sent(text))

    def full_text(self) -> str:
        """The text with every paste token replaced by what was pasted."""

        def unfold(match: re.Match[str]) -> str:
            number = int(match[1]) - 1
            return self._pastes[number] if number < len(self._pastes) else match[0]

        return _PASTE.sub(unfold, self.text) if self._pastes else self.text

    def take(self) -> None:
        """The text has been accepted: remember it and start empty."""
        self.sent_texts.append(self.full_text())
        self.set_text("")

    def set_text(self, text: str) -> None:
        """Replace everything and put the cursor at the end. A very long text is folded."""
        self._pastes.clear()
        self._at = None
        self.load_text(self._fold(text) if len(text) > MAX_OPEN_CHARS else text)
        self.move_cursor(self.document.end)

    async def _on_paste(self, event: events.Paste) -> None:
        text = event.text.replace("\r\n", "\n").replace("\r", "\n")
        event.stop()
        event.prevent_default()
        if text.count("\n") >= FOLD_LINES or len(text) > FOLD_CHARS:
            text = self._fold(text)
        if result := self._replace_via_keyboard(text, *self.selection):
            self.move_cursor(result.end_location)

    def _fold(self, text: str) -> str:
        """A token that stands for a long text until it is sent."""
        self._pastes.append(text)
        lines = text.count("\n") + 1
        what = f"{lines} lines" if lines > 1 else f"{len(text)} characters"
        return f"[paste {len(self._pastes)}: {what}]"

    def _recall(self, step: int) -> bool:
        """Walk through sent messages from the first (up) or last (down) line."""
        row = self.cursor_location[0]
        edge = 0 if step < 0 else self.document.line_count - 1
        untouched = self._at is not None and self.text == self.sent_texts[self._at]
        if row != edge or not self.sent_texts or (self.text and not untouched):
            return False
        if self._at is None:
            if step > 0:
                return False
            at = len(self.sent_texts) - 1
        else:
            at = self._at + step
        if at < 0:
            return True
        self.set_text(self.sent_texts[at] if at < len(self.sent_texts) else "")
        self._at = at if at < len(self.sent_texts) else None
        return True

    def slash_matches(self) -> list[str]:
        """Names of the slash commands that the text may become."""
        text = self.text
        if not text.startswith("/") or text.startswith("//") or "\n" in text or " " in text:
            return []
        return [name for name in SLASH if name.startswith(text[1:].lower())]

    def file_matches(self) -> tuple[int, list[str]]:
        """Column where the `@word` before the cursor begins, and files that it may become."""
        row, column = self.cursor_location
        return completions(self.document.get_line(row)[:column], Path.cwd())

    def _complete(self) -> bool:
        if matches := self.slash_matches():
            self.set_text(f"/{matches[0]} ")
            return True
        start, names = self.file_matches()
        row, column = self.cursor_location
        if not names or names[0] == self.document.get_line(row)[start:column]:
            return False
        done = "" if names[0].endswith(("/", '/"')) else " "
        self.replace(names[0] + done, (row, start), (row, column))
        return True
