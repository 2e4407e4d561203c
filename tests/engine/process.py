"""Drives the real engine process over its socket, as the app does."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from engine.framing import decode_event, encode_frame, read_frame
from engine.protocol import Command, Event

ROOT = Path(__file__).parents[2]
E = TypeVar("E")


class EngineUnderTest:
    def __init__(self, log: Path) -> None:
        ours, theirs = socket.socketpair()
        self.log = log
        with log.open("wb") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "engine", "--fd", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdout=sink,
                stderr=sink,
                cwd=ROOT,
            )
        theirs.close()
        self.socket = ours
        self.socket.settimeout(60)

    def send(self, command: Command) -> None:
        self.socket.sendall(encode_frame(command))

    def events(self) -> Iterator[Event]:
        while (body := read_frame(self.socket)) is not None:
            yield decode_event(body)

    def wait_for(self, kind: type[E]) -> tuple[E, list[Event]]:
        """The next event of a kind, and those before it."""
        before: list[Event] = []
        for event in self.events():
            if isinstance(event, kind):
                return event, before
            before.append(event)
        raise AssertionError(f"no {kind.__name__} before the end; log:\n{self.log.read_text()}")


@contextmanager
def engine(tmp_path: Path) -> Iterator[EngineUnderTest]:
    started = EngineUnderTest(tmp_path / "engine.log")
    try:
        yield started
    finally:
        started.socket.close()
        started.process.wait(timeout=10)
