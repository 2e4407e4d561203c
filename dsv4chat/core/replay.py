"""Opens a dump bundle in the place of an engine: everything can be looked at, nothing answered."""

import asyncio
from collections.abc import AsyncIterator

from dsv4chat.core.backend import BackendEvent
from dsv4chat.core.bundle import Bundle
from dsv4chat.core.records import BUDGET_BYTES, TOKEN_BYTES, RecordStore, TurnRecords
from dsv4chat.core.session import ChatSession
from engine.protocol import PROTOCOL_VERSION, Command, Hello, Load


class ReplayBackend:
    """Says what the engine of the bundle had said when it was ready."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._queue: asyncio.Queue[BackendEvent] = asyncio.Queue()

    async def start(self, load: Load) -> None:
        self._queue.put_nowait(Hello(PROTOCOL_VERSION, 0))
        if self._bundle.manifest.ready is not None:
            self._queue.put_nowait(self._bundle.manifest.ready)

    def send(self, command: Command) -> bool:
        return False

    async def events(self) -> AsyncIterator[BackendEvent]:
        while True:
            yield await self._queue.get()

    async def close(self) -> None:
        pass

    def log_tail(self, lines: int = 12) -> tuple[str, ...]:
        return tuple(self._bundle.manifest.log[-lines:])


def replay_session(bundle: Bundle, name: str) -> ChatSession:
    """A session that shows the bundle; `name` is what it is called on screen."""
    model = bundle.manifest.ready.model.path if bundle.manifest.ready else ""
    session = ChatSession(ReplayBackend(bundle), bundle.manifest.settings, model)
    session.replay = name
    session.conversation = bundle.conversation
    session.notices += bundle.manifest.notices
    session.records = RecordStore(BUDGET_BYTES + sum(map(_size, bundle.records.values())))
    for turn_id, records in bundle.records.items():
        session.records.put(turn_id, records)
    return session


def _size(records: TurnRecords) -> int:
    return TOKEN_BYTES * len(records.tokens) + sum(map(len, records.payloads.values()))
