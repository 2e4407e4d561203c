"""Keeps the store up to date with a session, and a session with the store.

`keep` is called once a frame with what has changed. It saves at once what is rare and twice a
second what grows, and never while an earlier save is still under way, so that a slow disk costs
freshness, not memory.
"""

import time
from concurrent.futures import Future

from dsv4chat.core.conversation import Conversation, Turn
from dsv4chat.core.records import TurnRecords
from dsv4chat.core.session import Change, ChatSession
from dsv4chat.core.store import Store
from dsv4chat.core.stored import snapshot

SAVE_EVERY_S = 0.5
AT_ONCE: set[Change] = {"path", "finished"}
GROWING: set[Change] = {"tokens", "options", "phase"}


class History:
    """One session's line to the store."""

    def __init__(self, session: ChatSession, store: Store) -> None:
        self.session = session
        self.store = store
        self.saved_at: float | None = None  # when this conversation was last safe on disk
        self._watched = session.conversation
        self._versions: dict[str, tuple[object, ...]] = {}
        self._head: tuple[object, ...] = ()
        self._records: set[str] = set()
        self._dirty = False
        self._next = 0.0
        self._saving: Future[None] | None = None
        self._draft = self._draft_saved = ""
        self._generation = store.generation
        self._loading: dict[str, Future[TurnRecords]] = {}

    def keep(self, changes: set[Change]) -> None:
        """Save what has changed, if it is time to."""
        self._take_result()
        self._take_records()
        while self.store.notices:
            self.session.notify(self.store.notices.pop(0))
        if self.store.generation != self._generation:
            self._generation = self.store.generation
            self._forget()
            self._dirty = True
        if self.session.conversation is not self._watched:
            self._save()
            self._watch(self.session.conversation)
        if changes & AT_ONCE:
            self._dirty, self._next = True, 0.0
            self._want_records(self.session.conversation.last("assistant"))
        self._dirty = self._dirty or bool(changes & GROWING)
        now = time.monotonic()
        if now >= self._next and (self._saving is None or self._saving.done()):
            self._next = now + SAVE_EVERY_S
            if self._dirty:
                self._dirty = False
                self._save()
            self._save_draft()

    def flush(self) -> None:
        """Save everything that is left and close the store. Waits for the disk."""
        self._save()
        self._save_draft()
        self.store.close()

    def draft(self, text: str) -> None:
        """What stands in the composer now; saved with the next `keep`."""
        self._draft = text

    # ---- opening ---------------------------------------------------------------------------------

    def show(self, conversation: Conversation, draft: str = "") -> bool:
        """Put a loaded conversation on screen; False while an answer runs."""
        if not self.session.open_conversation(conversation):
            return False
        self.keep({"path"})
        self._draft = self._draft_saved = draft
        return True

    def _want_records(self, turn: Turn | None) -> None:
        """Fetch the records of an answer from disk, once, if memory does not have them."""
        if turn is None or not turn.token_ids or turn is self.session.answering:
            return
        if turn.id in self._loading or self.session.records.get(turn.id) is not None:
            return
        self._loading[turn.id] = self.store.load_records(turn.id)

    # ---- saving ----------------------------------------------------------------------------------

    def _watch(self, conversation: Conversation) -> None:
        """Another conversation is on screen. What was loaded is what is stored."""
        self._watched = conversation
        self._forget()
        if conversation.stored:
            self._versions = {turn.id: _version(turn) for turn in conversation.turns.values()}
            self._head = _head(conversation)
            self._records = set(self._versions)
        self._draft = self._draft_saved = ""

    def _forget(self) -> None:
        self._versions, self._head, self._records = {}, (), set()

    def _save(self) -> None:
        conversation = self._watched
        versions = {turn.id: _version(turn) for turn in conversation.turns.values()}
        head = _head(conversation)
        changed = [
            turn for turn in conversation.turns.values()
            if versions[turn.id] != self._versions.get(turn.id)
        ]  # fmt: skip
        gone = self._versions.keys() - versions.keys()
        if (changed or gone or head != self._head) and (versions or self._versions):
            self._saving = self.store.save(conversation, [snapshot(t) for t in changed], gone)
            self._versions, self._head = versions, head
        for turn in conversation.turns.values():
            if turn.role == "assistant" and turn.done and turn.id not in self._records:
                self._records.add(turn.id)
                records = self.session.records.get(turn.id)
                if records is not None and records.tokens:
                    self.store.save_records(turn.id, records)

    def _save_draft(self) -> None:
        if self._draft != self._draft_saved:
            self._draft_saved = self._draft
            self.store.save_draft(self._watched.id, self._draft)

    def _take_result(self) -> None:
        """After a failure everything counts as unsaved again."""
        if self._saving is not None and self._saving.done():
            if self._saving.exception() is None:
                self.saved_at = time.time()
            else:
                self._forget()
                self._dirty = True
                self._next = time.monotonic() + 10 * SAVE_EVERY_S
            self._saving = None

    def _take_records(self) -> None:
        """Hand records that have come from disk to the panels."""
        for turn_id, future in list(self._loading.items()):
            if not future.done():
                continue
            if future.exception() is None and future.result().tokens:
                del self._loading[turn_id]  # may be wanted again, once memory has let them go
                self.session.records.put(turn_id, future.result())
                self.session.listener("telemetry")


def _version(turn: Turn) -> tuple[object, ...]:
    """Differs whenever there is something new to save."""
    return (len(turn.token_ids), len(turn.text), len(turn.reasoning), len(turn.marks),
            turn.finish, turn.note, turn.finished is None, turn.parent)  # fmt: skip


def _head(conversation: Conversation) -> tuple[object, ...]:
    return conversation.name, conversation.system, conversation.leaf
