"""The child process.

Spawned with one end of a socket pair, its output in a log file, its end explained.
"""

import asyncio
import contextlib
import os
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from dsv4chat.core import places
from dsv4chat.core.text import one_line

KEPT_LOGS = 10
TERMINATE_WAIT_S = 2.0


@dataclass(slots=True)
class EngineProcess:
    """A running child, our end of its socket, and its log file."""

    process: asyncio.subprocess.Process
    connection: socket.socket
    log_path: Path | None

    async def end(self) -> None:
        """Terminate, then kill. Returns when the child is reaped."""
        for stop in (self.process.terminate, self.process.kill):
            if self.process.returncode is not None:
                return
            with contextlib.suppress(ProcessLookupError):
                stop()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait(), TERMINATE_WAIT_S)
        await self.process.wait()


async def spawn_engine() -> EngineProcess:
    """Start the engine in a session of its own, so that ctrl+c in the terminal reaches only the
    app.

    Raises:
        OSError: the program cannot be started.

    """
    ours, theirs = socket.socketpair()
    log_path = _new_log()
    log = open(log_path, "ab", buffering=0) if log_path else None  # noqa: SIM115
    output: object = log if log else asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(
            *places.engine_command(),
            "--fd",
            str(theirs.fileno()),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,  # type: ignore[arg-type]
            stderr=output,  # type: ignore[arg-type]
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
            env=places.child_environment(),
        )
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
        if log:
            log.close()
    ours.setblocking(False)
    return EngineProcess(process, ours, log_path)


def _new_log() -> Path | None:
    """A fresh log file.

    None where the state folder cannot be written, which must not stop the chat.
    """
    folder = places.log_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in sorted(folder.glob("engine-*.log"))[: -KEPT_LOGS + 1]:
            old.unlink(missing_ok=True)
        path = folder / f"engine-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
        path.touch(mode=0o600)
    except OSError:
        return None
    return path


def read_tail(path: Path | None, lines: int) -> tuple[str, ...]:
    """The last lines of a log, safe to show."""
    if path is None:
        return ()
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 16384))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ()
    return tuple(one_line(line) for line in text.splitlines() if line.strip())[-lines:]


def describe_exit(code: int | None) -> str:
    """How a process ended, in words."""
    if code is None:
        return "the engine closed its connection"
    if code >= 0:
        return f"the engine ended with exit status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = {
        "SIGKILL": ": killed from outside, often because memory ran out",
        "SIGSEGV": ": it crashed inside native code",
        "SIGABRT": ": native code gave up",
        "SIGTERM": ": asked to stop from outside",
    }.get(name, "")
    return f"the engine was ended by {name}{hint}"
