"""All conversations, newest first; what is typed searches them, thinking included."""

import asyncio
import time

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from dsv4chat.core.database import StoreError
from dsv4chat.core.search import LIST_LIMIT, Entry
from dsv4chat.core.store import Store
from dsv4chat.core.text import clean, one_line
from dsv4chat.widgets.safe import say

HINT = "enter opens · ctrl+t renames · ctrl+d deletes · ctrl+z brings back · esc closes"


class HistoryScreen(ModalScreen[str | None]):
    """Returns the id of the conversation to open, or None."""

    BINDINGS = [
        Binding("escape", "leave", "Close"),
        Binding("down", "move(1)", priority=True),
        Binding("up", "move(-1)", priority=True),
        Binding("pagedown", "move(8)", priority=True),
        Binding("pageup", "move(-8)", priority=True),
        Binding("ctrl+d,delete", "delete", priority=True),
        Binding("ctrl+z", "undo", priority=True),
        Binding("ctrl+t", "rename", priority=True),
    ]

    def __init__(self, store: Store, current: str, words: str = "") -> None:
        super().__init__()
        self.store = store
        self.current = current
        self.deleted: list[str] = []
        self.entries: list[Entry] = []
        self._words = words
        self._renaming: Entry | None = None

    def compose(self) -> ComposeResult:
        with Vertical(id="history", classes="dialog") as box:
            box.border_title = "chats"
            box.border_subtitle = HINT
            yield Input(self._words, placeholder="search in everything", id="words")
            yield OptionList(id="entries")
            yield Static(id="state")

    def on_mount(self) -> None:
        self.query_one(Input).focus()
        self._list(self._words)

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        if self._renaming is None:
            self._list(event.value)

    @work(exclusive=True, group="search", exit_on_error=False)
    async def _list(self, words: str, keep: str | None = None) -> None:
        """Show what matches; `keep` stays highlighted if it is still there."""
        try:
            self.entries = await asyncio.wrap_future(self.store.search(words))
        except StoreError as error:
            self._state(f"⚠ {error}")
            return
        rows = self.query_one(OptionList)
        rows.clear_options()
        rows.add_options([Option(self._row(entry), id=entry.id) for entry in self.entries])
        ids = [entry.id for entry in self.entries]
        rows.highlighted = (ids.index(keep) if keep in ids else 0) if ids else None
        more = " or more; type to find others" if len(ids) == LIST_LIMIT else ""
        nothing = "nothing found" if words.strip() else "no chats yet"
        self._state(f"{len(ids)}{more}" if ids else nothing)

    def _row(self, entry: Entry) -> Content:
        here = ("● ", "$success") if entry.id == self.current else ("  ", "")
        head = say(
            (f"{_when(entry.changed):>9} ", "$foreground 60%"), here,
            (one_line(entry.title, 90), "bold"), (f"  {entry.turns}", "$foreground 60%"),
        )  # fmt: skip
        if not entry.excerpt:
            return head
        start, end = entry.found
        text = clean(entry.excerpt).replace("\n", " ")
        where = "thinking: " if entry.in_thinking else ""
        return Content("\n").join(
            [
                head,
                say(
                    (" " * 12 + where + text[:start], "$foreground 60%"),
                    (text[start:end], "bold $accent"),
                    (text[end:], "$foreground 60%"),
                ),
            ]
        )

    def _state(self, text: str) -> None:
        self.query_one("#state", Static).update(say((text, "$foreground 60%")))

    def _chosen(self) -> Entry | None:
        at = self.query_one(OptionList).highlighted
        return self.entries[at] if at is not None and at < len(self.entries) else None

    # ---- keys -----------------------------------------------------------------------------------

    def action_move(self, step: int) -> None:
        rows = self.query_one(OptionList)
        if rows.option_count and self._renaming is None:
            at = (rows.highlighted or 0) + step
            rows.highlighted = max(0, min(rows.option_count - 1, at))

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if self._renaming is None:
            entry = self._chosen()
            if entry is not None:
                self.dismiss(entry.id)
            return
        self.app.rename_chat(self._renaming.id, one_line(event.value, 120))
        self._end_renaming()

    @on(OptionList.OptionSelected)
    def _selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option.id)

    def action_leave(self) -> None:
        if self._renaming is not None:
            self._end_renaming()
        else:
            self.dismiss(None)

    def action_delete(self) -> None:
        entry = self._chosen()
        if entry is None or self._renaming is not None:
            return
        if not self.app.delete_chat(entry.id):
            return
        self.deleted.append(entry.id)
        at = self.entries.index(entry)
        near = self.entries[at + 1 : at + 2] or self.entries[max(at - 1, 0) : at]
        self._list(self._words_now(), near[0].id if near else None)
        self.app.tell(f"deleted: {one_line(entry.title, 40)} · ctrl+z brings it back")

    def action_undo(self) -> None:
        if not self.deleted or self._renaming is not None:
            self.app.tell("Nothing was deleted here.")
            return
        back = self.deleted.pop()
        self.store.restore(back)
        self._list(self._words_now(), back)

    def action_rename(self) -> None:
        entry = self._chosen()
        if entry is None or self._renaming is not None:
            return
        words = self.query_one(Input)
        self._words, self._renaming = words.value, entry
        with self.prevent(Input.Changed):
            words.value = clean(entry.title).replace("\n", " ")
        words.cursor_position = len(words.value)
        self.query_one("#history").border_title = "new name"
        self.query_one("#history").border_subtitle = "enter keeps it · esc leaves it as it was"

    def _end_renaming(self) -> None:
        entry, self._renaming = self._renaming, None
        words = self.query_one(Input)
        with self.prevent(Input.Changed):
            words.value = self._words
        self.query_one("#history").border_title = "chats"
        self.query_one("#history").border_subtitle = HINT
        self._list(self._words, entry.id if entry else None)

    def _words_now(self) -> str:
        return self.query_one(Input).value


def _when(moment: float) -> str:
    """Today the time, else the day."""
    then, now = time.localtime(moment), time.localtime()
    if then[:3] == now[:3]:
        return time.strftime("%H:%M", then)
    return time.strftime("%d %b" if then[0] == now[0] else "%b %Y", then)
