"""Conversations on disk: saved turn by turn, listed, searched, deleted and brought back.

Every method queues a job on the database's thread and returns its future; nothing here blocks.
"""

import os
import sqlite3
import time
from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path

from dsv4chat.core.conversation import Conversation, Turn
from dsv4chat.core.database import Database
from dsv4chat.core.records import TurnRecords
from dsv4chat.core.search import Entry, find
from dsv4chat.core.stored import pack_records, pack_turn, unpack_records, unpack_turn

RECORDS_BYTES = 512 * 1024 * 1024  # tap records on disk; the oldest go first
UNDO_S = 24 * 3600.0

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE conversations (
            id TEXT PRIMARY KEY, name TEXT NOT NULL, system TEXT NOT NULL, leaf TEXT,
            created REAL NOT NULL, changed REAL NOT NULL, deleted REAL)""",
        """CREATE TABLE turns (
            number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, conversation TEXT NOT NULL,
            parent TEXT, role TEXT NOT NULL, text TEXT NOT NULL, reasoning TEXT NOT NULL,
            body BLOB NOT NULL)""",
        "CREATE INDEX turns_by_conversation ON turns (conversation)",
        """CREATE VIRTUAL TABLE words USING fts5(
            text, reasoning, content='turns', content_rowid='number', tokenize='trigram')""",
        """CREATE TRIGGER words_insert AFTER INSERT ON turns BEGIN
            INSERT INTO words (rowid, text, reasoning)
            VALUES (new.number, new.text, new.reasoning); END""",
        """CREATE TRIGGER words_delete AFTER DELETE ON turns BEGIN
            INSERT INTO words (words, rowid, text, reasoning)
            VALUES ('delete', old.number, old.text, old.reasoning); END""",
        """CREATE TRIGGER words_update AFTER UPDATE OF text, reasoning ON turns
            WHEN old.text != new.text OR old.reasoning != new.reasoning BEGIN
            INSERT INTO words (words, rowid, text, reasoning)
            VALUES ('delete', old.number, old.text, old.reasoning);
            INSERT INTO words (rowid, text, reasoning)
            VALUES (new.number, new.text, new.reasoning); END""",
        """CREATE TABLE records (
            number INTEGER PRIMARY KEY, turn TEXT NOT NULL, start INTEGER NOT NULL,
            size INTEGER NOT NULL, data BLOB NOT NULL, UNIQUE (turn, start))""",
        """CREATE TABLE drafts (
            conversation TEXT PRIMARY KEY, process INTEGER NOT NULL, text TEXT NOT NULL,
            changed REAL NOT NULL)""",
    ),
)
"""Schema changes in order; a file's `user_version` says how many it has had."""


class Store(Database):
    """The history of one user. Instances of the app share it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, MIGRATIONS)

    # ---- saving ----------------------------------------------------------------------------------

    def save(
        self, conversation: Conversation, turns: list[Turn], gone: Iterable[str]
    ) -> "Future[None]":
        """Save the frame of a conversation with the turns that changed (`stored.snapshot`s).

        `gone` are turns that were taken back. Saving brings a deleted conversation back.
        """
        row = (
            conversation.id, conversation.name, conversation.system, conversation.leaf,
            conversation.created, time.time(),
        )  # fmt: skip
        gone = list(gone)

        def job(connection: sqlite3.Connection) -> None:
            connection.execute(
                """INSERT INTO conversations (id, name, system, leaf, created, changed)
                VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET
                name = excluded.name, system = excluded.system, leaf = excluded.leaf,
                changed = excluded.changed, deleted = NULL""",
                row,
            )
            connection.executemany("DELETE FROM turns WHERE id = ?", [(turn,) for turn in gone])
            connection.executemany(
                """INSERT INTO turns (id, conversation, parent, role, text, reasoning, body)
                VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET
                parent = excluded.parent, text = excluded.text,
                reasoning = excluded.reasoning, body = excluded.body""",
                (
                    (turn.id, row[0], turn.parent, turn.role, turn.text, turn.reasoning,
                     pack_turn(turn))
                    for turn in turns
                ),
            )  # fmt: skip

        return self.write(job)

    def save_records(self, turn_id: str, records: TurnRecords) -> "Future[None]":
        """Keep what the panels show of a finished answer; the oldest go when they are too many."""
        copy = TurnRecords(records.layout, dict(records.tokens), dict(records.payloads))

        def job(connection: sqlite3.Connection) -> None:
            connection.executemany(
                "INSERT OR REPLACE INTO records (turn, start, size, data) VALUES (?, ?, ?, ?)",
                ((turn_id, start, len(data), data) for start, data in pack_records(copy)),
            )
            (total,) = connection.execute("SELECT COALESCE(SUM(size), 0) FROM records").fetchone()
            while total > RECORDS_BYTES:
                turn, freed = connection.execute(
                    """SELECT turn, SUM(size) FROM records WHERE turn =
                    (SELECT turn FROM records ORDER BY number LIMIT 1)"""
                ).fetchone()
                connection.execute("DELETE FROM records WHERE turn = ?", (turn,))
                total -= freed

        return self.write(job)

    def save_draft(self, conversation_id: str, text: str) -> "Future[None]":
        """What stands in the composer; an empty text forgets it."""
        row = (conversation_id, os.getpid(), text, time.time())

        def job(connection: sqlite3.Connection) -> None:
            if text:
                connection.execute("INSERT OR REPLACE INTO drafts VALUES (?, ?, ?, ?)", row)
            else:
                connection.execute("DELETE FROM drafts WHERE conversation = ?", row[:1])

        return self.write(job)

    # ---- reading ---------------------------------------------------------------------------------

    def load(self, conversation_id: str) -> "Future[Conversation | None]":
        """The whole conversation; None if there is none. An unfinished answer is closed."""

        def job(connection: sqlite3.Connection) -> Conversation | None:
            head = connection.execute(
                "SELECT name, system, leaf, created FROM conversations WHERE id = ?",
                (conversation_id,),
            ).fetchone()
            if head is None:
                return None
            conversation = Conversation(head[1])
            conversation.id, conversation.stored = conversation_id, True
            conversation.name, conversation.created = head[0], head[3]
            rows = connection.execute(
                """SELECT id, parent, role, text, reasoning, body FROM turns
                WHERE conversation = ? ORDER BY number""",
                (conversation_id,),
            )
            conversation.adopt(
                [
                    unpack_turn(body, turn_id=turn_id, parent=parent, role=role, text=text,
                                reasoning=reasoning)
                    for turn_id, parent, role, text, reasoning, body in rows
                ],
                head[2],
            )  # fmt: skip
            return conversation

        return self.read(job)

    def load_records(self, turn_id: str) -> "Future[TurnRecords]":
        """The records of an answer; empty if none were kept."""

        def job(connection: sqlite3.Connection) -> list[bytes]:
            rows = connection.execute(
                "SELECT data FROM records WHERE turn = ? ORDER BY start", (turn_id,)
            )
            return [data for (data,) in rows]

        return self._thread.submit(lambda: unpack_records(self._run(job, "BEGIN")))

    def newest(self) -> "Future[str | None]":
        """The id of the conversation that changed last."""

        def job(connection: sqlite3.Connection) -> str | None:
            row = connection.execute(
                """SELECT id FROM conversations c WHERE deleted IS NULL AND EXISTS
                (SELECT 1 FROM turns WHERE conversation = c.id) ORDER BY changed DESC LIMIT 1"""
            ).fetchone()
            return row[0] if row else None

        return self.read(job)

    def search(self, text: str) -> "Future[list[Entry]]":
        """Conversations in which one turn, the name or the system prompt has every word.

        Newest first; all of them for an empty text. Case does not count; parts of words do.
        """
        words = text.split()
        return self.read(lambda connection: find(connection, words))

    def recent_messages(self, limit: int = 100) -> "Future[list[str]]":
        """What the user sent last, oldest first."""

        def job(connection: sqlite3.Connection) -> list[str]:
            rows = connection.execute(
                "SELECT text FROM turns WHERE role = 'user' ORDER BY number DESC LIMIT ?", (limit,)
            )
            return [text for (text,) in rows][::-1]

        return self.read(job)

    def draft(self, conversation_id: str) -> "Future[str]":
        def job(connection: sqlite3.Connection) -> str:
            row = connection.execute(
                "SELECT text FROM drafts WHERE conversation = ?", (conversation_id,)
            ).fetchone()
            return row[0] if row else ""

        return self.read(job)

    def take_lost_draft(self) -> "Future[str]":
        """The newest draft of a chat that was never begun and whose app is gone."""

        def job(connection: sqlite3.Connection) -> str:
            rows = connection.execute(
                """SELECT conversation, process, text FROM drafts d WHERE NOT EXISTS
                (SELECT 1 FROM turns WHERE conversation = d.conversation) ORDER BY changed DESC"""
            ).fetchall()
            for conversation, process, text in rows:
                if not _alive(process):
                    connection.execute("DELETE FROM drafts WHERE conversation = ?", (conversation,))
                    return str(text)
            return ""

        return self.write(job)

    # ---- changing --------------------------------------------------------------------------------

    def delete(self, conversation_id: str) -> "Future[None]":
        """Out of the list; `restore` brings it back for a day."""

        def job(connection: sqlite3.Connection) -> None:
            now = time.time()
            connection.execute(
                "UPDATE conversations SET deleted = ? WHERE id = ?", (now, conversation_id)
            )
            old = connection.execute(
                "SELECT id FROM conversations WHERE deleted < ?", (now - UNDO_S,)
            ).fetchall()
            for row in old:
                connection.execute(
                    "DELETE FROM records WHERE turn IN "
                    "(SELECT id FROM turns WHERE conversation = ?)",
                    row,
                )
                connection.execute("DELETE FROM turns WHERE conversation = ?", row)
                connection.execute("DELETE FROM drafts WHERE conversation = ?", row)
                connection.execute("DELETE FROM conversations WHERE id = ?", row)

        return self.write(job)

    def restore(self, conversation_id: str) -> "Future[None]":
        def job(connection: sqlite3.Connection) -> None:
            connection.execute(
                "UPDATE conversations SET deleted = NULL WHERE id = ?", (conversation_id,)
            )

        return self.write(job)

    def rename(self, conversation_id: str, name: str) -> "Future[None]":
        def job(connection: sqlite3.Connection) -> None:
            connection.execute(
                "UPDATE conversations SET name = ? WHERE id = ?", (name, conversation_id)
            )

        return self.write(job)


def _alive(process: int) -> bool:
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
