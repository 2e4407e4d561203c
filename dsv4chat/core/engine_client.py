"""The local engine behind `Backend`.

Spawning, framing, typed events, and noticing when it dies or hangs.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from dsv4chat.core.backend import BackendEvent, EngineBack, EngineLost, EngineStuck
from dsv4chat.core.engine_process import EngineProcess, describe_exit, read_tail, spawn_engine
from engine.framing import HEADER_BYTES, ProtocolError, decode_event, encode_frame, frame_length
from engine.protocol import (
    PROTOCOL_VERSION,
    Command,
    Event,
    Fault,
    Heartbeat,
    Hello,
    Load,
    Shutdown,
    Telemetry,
)

SILENT_AFTER_S = 8.0
NO_PROGRESS_AFTER_S = 90.0
MAX_QUEUED_EVENTS = 4096
CLOSE_WAIT_S = 1.5


class EngineClient:
    """Runs one engine process at a time; `start` replaces a finished one."""

    def __init__(
        self,
        *,
        silent_after_s: float = SILENT_AFTER_S,
        no_progress_after_s: float = NO_PROGRESS_AFTER_S,
    ) -> None:
        self.telemetry_dropped = 0
        self.pid: int | None = None
        self.started_at = 0.0
        self._silent_after_s = silent_after_s
        self._no_progress_after_s = no_progress_after_s
        self._queue: asyncio.Queue[BackendEvent] = asyncio.Queue()
        self._child: EngineProcess | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = False
        self._last_frame = 0.0
        self._last_progress = 0.0
        self._progress = -1
        self._busy = ""
        self._stuck = False
        self._fatal = ""

    async def start(self, load: Load) -> None:
        """Spawn an engine and tell it what to load; an engine that still runs is ended first.

        Raises:
            OSError: the process cannot be started.
        """
        await self.close()
        self._closing, self._stuck, self._fatal = False, False, ""
        self._progress, self._busy = -1, ""
        self._child = await spawn_engine()
        self.pid, self.started_at = self._child.process.pid, time.monotonic()
        self._last_frame = self._last_progress = time.monotonic()
        reader, self._writer = await asyncio.open_connection(sock=self._child.connection)
        self._tasks = [
            asyncio.create_task(self._read(reader, self._child, load)),
            asyncio.create_task(self._watch()),
        ]

    def send(self, command: Command) -> bool:
        """Queue a command for the engine; False when none runs.

        Raises:
            ProtocolError: the command does not fit in a frame.
        """
        if self._writer is None or self._writer.is_closing():
            return False
        self._writer.write(encode_frame(command))
        return True

    async def events(self) -> AsyncIterator[BackendEvent]:
        """All events, of this engine and of later ones."""
        while True:
            yield await self._queue.get()

    async def close(self) -> None:
        """Shut the engine down; kill it if it does not go by itself."""
        self._closing = True
        child, self._child = self._child, None
        if self._writer is not None:
            with contextlib.suppress(OSError, RuntimeError):
                self.send(Shutdown())
                self._writer.close()
            self._writer = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if child is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(child.process.wait(), CLOSE_WAIT_S)
            await child.end()
            self.pid = None

    def log_tail(self, lines: int = 12) -> tuple[str, ...]:
        """The last lines of the engine's log."""
        return read_tail(self._child.log_path if self._child else None, lines)

    async def _read(self, reader: asyncio.StreamReader, child: EngineProcess, load: Load) -> None:
        """Frames to events until the connection ends; then say why it ended."""
        broken = ""
        try:
            await self._greet(reader, load)
            while True:
                self._take(await self._next(reader))
        except asyncio.IncompleteReadError as error:
            broken = "the engine's connection ended inside a message" if error.partial else ""
        except ProtocolError as error:
            broken = f"the engine sent something this app does not understand: {error}"
        except OSError as error:
            broken = f"the connection to the engine failed: {error}"
        await self._explain(child, broken)

    async def _greet(self, reader: asyncio.StreamReader, load: Load) -> None:
        hello = await self._next(reader)
        if isinstance(hello, Fault):
            self._take(hello)
            hello = await self._next(reader)
        if not isinstance(hello, Hello):
            raise ProtocolError(f"first message was {type(hello).__name__}, not Hello")
        if hello.version != PROTOCOL_VERSION:
            raise ProtocolError(
                f"engine speaks protocol {hello.version}, this app {PROTOCOL_VERSION}; "
                "reinstall so that both come from the same version"
            )
        self._queue.put_nowait(hello)
        self.send(load)

    async def _next(self, reader: asyncio.StreamReader) -> Event:
        length = frame_length(await reader.readexactly(HEADER_BYTES))
        try:
            body = await reader.readexactly(length)
        except asyncio.IncompleteReadError as error:
            raise ProtocolError("the connection ended inside a message") from error
        return decode_event(body)

    def _take(self, event: Event) -> None:
        now = time.monotonic()
        self._last_frame = now
        if isinstance(event, Heartbeat):
            if event.progress != self._progress or not event.busy:
                self._last_progress = now
            self._progress, self._busy = event.progress, event.busy
        else:
            self._last_progress = now
        if isinstance(event, Fault) and event.fatal:
            self._fatal = event.message
        if self._stuck and not self._stuck_for(now):
            self._stuck = False
            self._queue.put_nowait(EngineBack())
        if isinstance(event, Telemetry) and self._queue.qsize() > MAX_QUEUED_EVENTS:
            self.telemetry_dropped += 1
            return
        self._queue.put_nowait(event)

    async def _explain(self, child: EngineProcess, broken: str) -> None:
        """Report the loss once, with the exit status if the process is gone within a moment."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(child.process.wait(), CLOSE_WAIT_S)
        code = child.process.returncode
        await child.end()
        if self._closing:
            return
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        reason = self._fatal or broken or describe_exit(code)
        self._queue.put_nowait(EngineLost(reason, read_tail(child.log_path, 12)))

    def _stuck_for(self, now: float) -> EngineStuck | None:
        if now - self._last_frame > self._silent_after_s:
            return EngineStuck(now - self._last_frame, self._busy, silent=True)
        if now - self._last_progress > self._no_progress_after_s:
            return EngineStuck(now - self._last_progress, self._busy, silent=False)
        return None

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(min(1.0, self._silent_after_s / 4))
            if self._writer is None:
                return
            stuck = self._stuck_for(time.monotonic())
            if stuck and not self._stuck:
                self._stuck = True
                self._queue.put_nowait(stuck)
