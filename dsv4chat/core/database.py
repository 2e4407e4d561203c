"""One SQLite file, one thread that touches it, and the words for what can go wrong with it.

Jobs are functions of a connection; each runs in one transaction, in the order given, never on the
caller's thread. A corrupt file is set aside and a fresh one begun. Where no file can be had the
database lives in memory, so that callers need not care.
"""

import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
Job = Callable[[sqlite3.Connection], T]

BUSY_S = 10.0
_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_WORDS = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_READONLY: "the file or its folder is read-only",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened",
    sqlite3.SQLITE_IOERR: "reading or writing the disk failed",
    sqlite3.SQLITE_BUSY: f"another dsv4chat has held it for {BUSY_S:.0f} s",
    sqlite3.SQLITE_PERM: "permission denied",
}


class StoreError(Exception):
    """A job failed; the message says why in words."""


class Database:
    """Opens on first use, in its thread.

    Attributes:
        notices: what the user should hear, oldest first; the reader empties it.
        generation: rises when a fresh file was begun, so that callers save again what they hold.
    """

    def __init__(self, path: Path, migrations: Sequence[Sequence[str]]) -> None:
        self.path = path
        self.notices: list[str] = []
        self.generation = 0
        self.in_memory = False
        self._migrations = migrations
        self._connection: sqlite3.Connection | None = None
        self._inode: int | None = None
        self._failing = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")

    def read(self, job: Job[T]) -> "Future[T]":
        """Queue a job that changes nothing. Its future raises StoreError."""
        return self._thread.submit(self._run, job, "BEGIN")

    def write(self, job: Job[T]) -> "Future[T]":
        """Queue a job that saves. The first failure is told; later ones only raise."""
        return self._thread.submit(self._save, job)

    def close(self) -> None:
        """Finish what is queued and close the file."""
        self._thread.submit(self._close)
        self._thread.shutdown()

    # ---- in the thread ---------------------------------------------------------------------------

    def _save(self, job: Job[T]) -> T:
        try:
            result = self._run(job, "BEGIN IMMEDIATE")
        except StoreError as error:
            if not self._failing:
                self.notices.append(
                    f"Chats are not being saved: {error}. The chat goes on in memory, "
                    "and saving is tried again with every message."
                )
            self._failing = True
            raise
        if self._failing:
            self._failing = False
            self.notices.append("Saving works again; nothing of this chat was lost.")
        return result

    def _run(self, job: Job[T], begin: str) -> T:
        try:
            return self._transaction(job, begin)
        except sqlite3.Error as error:
            if _code(error) not in _CORRUPT or self.in_memory:
                raise StoreError(f"{_words(error)} ({self.path})") from error
            broken = error
        self._begin_fresh(broken)
        try:
            return self._transaction(job, begin)
        except sqlite3.Error as error:
            raise StoreError(f"{_words(error)} ({self.path})") from error

    def _transaction(self, job: Job[T], begin: str) -> T:
        connection = self._connection or self._open()
        connection.execute(begin)
        try:
            result = job(connection)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return result

    def _open(self) -> sqlite3.Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            connection = self._connect(str(self.path))
            self._inode = _inode(self.path)
        except (OSError, sqlite3.Error) as error:
            if isinstance(error, sqlite3.Error) and _code(error) in _CORRUPT:
                raise
            connection = self._fall_back(_words(error))
        except _TooNewError as error:
            connection = self._fall_back(str(error))
        self._connection = connection
        return connection

    def _connect(self, path: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA journal_mode=WAL").fetchone()
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute("PRAGMA secure_delete=OFF")
            self._migrate(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _migrate(self, connection: sqlite3.Connection) -> None:
        """Bring the schema up to date, together with whoever else is starting now."""
        if _version(connection) == len(self._migrations):
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            have, want = _version(connection), len(self._migrations)
            if have > want:
                raise _TooNewError(f"a newer dsv4chat has written it (schema {have}, ours {want})")
            for statements in self._migrations[have:]:
                for statement in statements:
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version={want}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _fall_back(self, why: str) -> sqlite3.Connection:
        self.in_memory = True
        self.notices.append(
            f"Chats cannot be saved: {why} ({self.path}). The chat goes on in memory only; "
            "/export writes it to a file of your choice."
        )
        return self._connect(":memory:")

    def _begin_fresh(self, error: sqlite3.Error) -> None:
        """Set the corrupt file aside, unless another instance has done so already."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._inode is None or self._inode == _inode(self.path):
            stamp = time.strftime("%Y%m%d-%H%M%S")
            aside = self.path.with_name(f"{self.path.name}.corrupt-{stamp}")
            try:
                os.replace(self.path, aside)
                for suffix in ("-wal", "-shm"):
                    if (side := Path(f"{self.path}{suffix}")).exists():
                        os.replace(side, f"{aside}{suffix}")
                kept = f"kept as {aside.name}; a fresh one was begun"
            except OSError as failure:
                self._connection = self._fall_back(f"it is damaged and in the way: {failure}")
                return
            self.notices.append(f"The chat history was damaged ({error}): {kept}.")
        self.generation += 1
        self._inode = None

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _TooNewError(Exception):
    """The file's schema is of a later version."""


def _code(error: sqlite3.Error) -> int:
    """The primary result code."""
    return (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def _words(error: Exception) -> str:
    if isinstance(error, sqlite3.Error):
        return _WORDS.get(_code(error), str(error))
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None
