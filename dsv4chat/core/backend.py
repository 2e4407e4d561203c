"""What the app needs from something that answers: the local engine process, or a server."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from engine.protocol import Command, Event, Load


@dataclass(frozen=True, slots=True)
class EngineLost:
    """The engine is gone and nobody asked it to go. `reason` is one line for people."""

    reason: str
    log_tail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineStuck:
    """The engine has been silent, or busy without progress, for `seconds`. It may come back."""

    seconds: float
    busy: str
    silent: bool


@dataclass(frozen=True, slots=True)
class EngineBack:
    """The engine reported `EngineStuck` before and moves again."""


BackendEvent = Event | EngineLost | EngineStuck | EngineBack


class Backend(Protocol):
    """One engine at a time. `start` again after `EngineLost` or `close` gives a fresh one."""

    async def start(self, load: Load) -> None:
        """Start and load. Whatever fails later arrives as an event.

        Raises OSError if it cannot start.
        """

    def send(self, command: Command) -> bool:
        """Queue a command; False when there is no engine to take it."""

    def events(self) -> AsyncIterator[BackendEvent]:
        """Events of this and any later engine, until the backend is closed for good."""

    async def close(self) -> None:
        """End the engine and wait until it is gone."""

    def log_tail(self, lines: int = 12) -> tuple[str, ...]:
        """The last lines that the engine wrote to its log."""
