"""`-p`: one answer on standard output, as text or as JSON lines.

Nothing else is ever written there.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from dataclasses import dataclass

from dsv4chat.cli import Request
from dsv4chat.core.backend import Backend, EngineLost, EngineStuck
from dsv4chat.core.text import clean
from engine.protocol import (
    Cancel,
    ChatMessage,
    Delta,
    Finished,
    Generate,
    Load,
    Ready,
    Tokens,
)

INTERRUPTED = 130
CANCEL_WAIT_S = 3.0
GIVE_UP_S = 60.0
EXIT_STATUS = {"stop": 0, "length": 0, "cancelled": INTERRUPTED, "fault": 1, "context": 1}


def answer_once(
    backend: Backend, prompt: str, request: Request, model: str, *, system: str = ""
) -> int:
    """Load, answer, print; returns the exit status."""
    writer = JsonWriter() if request.json else TextWriter()
    messages = [ChatMessage(role="system", content=system)] if system else []
    messages.append(ChatMessage(role="user", content=prompt))
    try:
        return asyncio.run(_OneAnswer(backend, writer, request, messages, model).run())
    except KeyboardInterrupt:
        return INTERRUPTED


class TextWriter:
    """The answer's text and nothing else. Control characters become visible signs."""

    def __init__(self) -> None:
        self._open_line = False

    def start(self, ready: Ready) -> None:
        pass

    def tokens(self, batch: Tokens) -> None:
        text = clean("".join(delta.text for delta in batch.deltas if delta.channel == "answer"))
        if text:
            _write(text)
            self._open_line = not text.endswith("\n")

    def done(self, fields: dict[str, object]) -> None:
        if self._open_line:
            _write("\n")


@dataclass(slots=True)
class JsonWriter:
    """JSON lines: start, one per token, done.

    Non-ASCII characters are escaped, so any reader takes them.
    """

    started: bool = False
    channel: str = "answer"

    def start(self, ready: Ready) -> None:
        self.started = True
        plan = [{"op": row.op, "impl": row.impl, "reason": row.reason} for row in ready.plan]
        self._line(
            type="start",
            model=ready.model.name,
            path=ready.model.path,
            device=ready.device,
            context=ready.context,
            plan=plan,
        )

    def tokens(self, batch: Tokens) -> None:
        """One line a token. A token that releases text in two channels has a second line."""
        released: dict[int, list[Delta]] = {}
        for delta in batch.deltas:
            released.setdefault(delta.index, []).append(delta)
        for token in batch.tokens:
            for delta in _merged(released.pop(token.index, [])) or [None]:
                self.channel = delta.channel if delta else self.channel
                self._line(
                    type="token",
                    index=token.index,
                    id=token.id,
                    text=delta.text if delta else "",
                    channel=self.channel,
                    logprob=_finite(token.logprob),
                    top=[[token_id, _finite(logprob)] for token_id, logprob in token.top],
                    gsa_max=_finite(token.gsa_max),
                    saturated=token.saturated,
                    router=token.router,
                    gsa=token.gsa,
                )
        for deltas in released.values():  # text that became certain after its token was reported
            for delta in deltas:
                self._line(type="token", index=delta.index, text=delta.text, channel=delta.channel)

    def done(self, fields: dict[str, object]) -> None:
        self._line(type="done", **fields)

    def _line(self, **fields: object) -> None:
        _write(json.dumps(fields) + "\n")


def _merged(deltas: list[Delta]) -> list[Delta]:
    """Neighbours of one channel as one."""
    merged: list[Delta] = []
    for delta in deltas:
        if merged and merged[-1].channel == delta.channel:
            delta = Delta(delta.index, delta.channel, merged.pop().text + delta.text)
        merged.append(delta)
    return merged


def _finite(number: float) -> float | None:
    """JSON knows neither NaN nor Infinity."""
    return number if abs(number) < float("inf") else None


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding or "ascii"
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()


class _OneAnswer:
    """The run of one answer: events in, text out, signals turned into a cancel."""

    def __init__(
        self,
        backend: Backend,
        writer: TextWriter | JsonWriter,
        request: Request,
        messages: list[ChatMessage],
        model: str,
    ) -> None:
        self.backend, self.writer, self.request = backend, writer, request
        self.messages, self.model = messages, model
        self.running = False
        self.interrupted = asyncio.Event()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(NotImplementedError):
                loop.add_signal_handler(number, self.interrupted.set)
        main = asyncio.create_task(self._main())
        stop = asyncio.create_task(self.interrupted.wait())
        try:
            await asyncio.wait({main, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not main.done():
                await self._cancel(main)
            if not main.done():
                main.cancel()
                return INTERRUPTED
            return main.result()
        except BrokenPipeError:  # the reader has gone: nobody is left to tell
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        finally:
            stop.cancel()
            await asyncio.gather(main, stop, return_exceptions=True)
            await self.backend.close()

    async def _cancel(self, main: "asyncio.Task[int]") -> None:
        """Ask the engine to stop; do not wait long for it."""
        if self.running and self.backend.send(Cancel(1)):
            await asyncio.wait({main}, timeout=CANCEL_WAIT_S)

    async def _main(self) -> int:
        settings = self.request.settings
        try:
            await self.backend.start(
                Load(
                    model=self.model,
                    device=settings.device,
                    precision=settings.precision,
                    context=settings.context,
                    gpus=settings.gpus,
                )
            )
        except OSError as error:
            return self._fail(f"the engine could not be started: {error}")
        events = aiter(self.backend.events())
        patience = None
        while True:
            try:
                event = await asyncio.wait_for(anext(events), patience)
            except TimeoutError:
                return self._fail("the engine stopped responding")
            patience = None
            match event:
                case Ready():
                    router = settings.router
                    if router in event.refused:
                        return self._fail(
                            f"router {router} cannot run here: {event.refused[router]}"
                        )
                    self._generate(event)
                case Tokens():
                    self.writer.tokens(event)
                case Finished():
                    return self._finish(event)
                case EngineStuck():
                    _complain(
                        f"no sign of progress for {event.seconds:.0f} s {event.busy}".rstrip()
                    )
                    patience = GIVE_UP_S if event.silent else None
                case EngineLost():
                    return self._fail(event.reason)

    def _generate(self, ready: Ready) -> None:
        settings = self.request.settings
        self.writer.start(ready)
        self.running = True
        self.backend.send(
            Generate(
                request=1,
                messages=self.messages,
                sampling=settings.sampling,
                options=settings.options,
                effort=settings.effort,
            )
        )

    def _finish(self, event: Finished) -> int:
        self.writer.done(
            {
                "reason": event.reason,
                "prompt_tokens": event.prompt_tokens,
                "tokens": event.tokens,
                "thinking_tokens": event.thinking_tokens,
                "reused_tokens": event.reused_tokens,
                "ttft_ms": _finite(event.ttft_ms),
                "tok_s": _finite(event.tok_s),
                "seed": event.seed,
                "message": event.message,
                "warnings": event.warnings,
                "tool_calls": [
                    {
                        "id": call.id,
                        "name": call.name,
                        "arguments": call.arguments,
                        "error": call.error,
                    }
                    for call in event.tool_calls
                ],
            }
        )
        for warning in event.warnings:
            _complain(warning)
        if EXIT_STATUS[event.reason] == 1:
            _complain(event.message or f"the answer ended: {event.reason}")
        return EXIT_STATUS[event.reason]

    def _fail(self, message: str) -> int:
        if isinstance(self.writer, TextWriter) or self.writer.started:
            self.writer.done({"reason": "fault", "message": message})
        _complain(message)
        return 1


def _complain(message: str) -> None:
    print(f"dsv4chat: {clean(message)}", file=sys.stderr)
