"""Asks the engine for the ids of a prompt, and waits for them."""

import asyncio
import contextlib

from dsv4chat.core.backend import Backend
from engine.framing import ProtocolError
from engine.protocol import ChatMessage, Effort, Encode, Encoded

WAIT_S = 10.0


class PromptUnknownError(Exception):
    """No ids came. One line that says why."""


class Prompts:
    """Questions under way."""

    def __init__(self) -> None:
        self._asked: dict[int, asyncio.Future[Encoded]] = {}
        self._number = 0

    def take(self, event: Encoded) -> None:
        """An answer came; one that nobody waits for is dropped."""
        future = self._asked.pop(event.request, None)
        if future is not None and not future.done():
            future.set_result(event)

    async def ids(self, backend: Backend, messages: list[ChatMessage], effort: Effort) -> list[int]:
        """The ids that an answer to `messages` would start from.

        Raises:
            PromptUnknownError: there is no engine, it does not answer, or it refuses.
        """
        self._number += 1
        number = self._number
        future = self._asked[number] = asyncio.get_running_loop().create_future()
        sent = False
        with contextlib.suppress(ProtocolError):
            sent = backend.send(Encode(number, messages, effort))
        try:
            if not sent:
                raise PromptUnknownError("no engine runs")
            event: Encoded = await asyncio.wait_for(future, WAIT_S)
        except TimeoutError:
            raise PromptUnknownError(f"the engine did not answer within {WAIT_S:.0f} s") from None
        finally:
            self._asked.pop(number, None)
        if event.message:
            raise PromptUnknownError(event.message)
        return event.ids
