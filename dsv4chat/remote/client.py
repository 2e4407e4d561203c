"""An OpenAI-compatible server (vLLM, SGLang) behind `Backend`: requests out, server events in."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx

from dsv4chat.core.backend import BackendEvent, EngineLost
from dsv4chat.core.text import one_line
from dsv4chat.remote.wire import Answer, ServerError, error_text, request_body
from engine.protocol import (
    PROTOCOL_VERSION,
    Cancel,
    Command,
    Finished,
    Generate,
    Hello,
    Load,
    LoadProgress,
    ModelInfo,
    PlanRow,
    Ready,
    SetOptions,
    StopReason,
    Tokens,
)
from engine.telemetry import TapLayout

CONNECT_S, SILENCE_S = 10.0, 120.0
REASONS: dict[str, StopReason] = {"length": "length"}


class RemoteClient:
    """`start` finds the model; each `Generate` is one streaming request.

    Args:
        url: up to and including /v1. key: sent as a bearer token unless empty.
    """

    def __init__(self, url: str, key: str = "") -> None:
        self.url = url
        self.pid: int | None = None
        self.telemetry_dropped = 0
        self._key = key
        self._model = ""
        self._queue: asyncio.Queue[BackendEvent] = asyncio.Queue()
        self._http: httpx.AsyncClient | None = None
        self._task: asyncio.Task[None] | None = None
        self._request = -1

    async def start(self, load: Load) -> None:
        await self.close()
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        timeout = httpx.Timeout(SILENCE_S, connect=CONNECT_S)
        self._http = httpx.AsyncClient(headers=headers, timeout=timeout)
        self._queue.put_nowait(Hello(PROTOCOL_VERSION, 0))
        self._queue.put_nowait(LoadProgress(f"asking {self.url} for its models"))
        self._task = asyncio.create_task(self._greet(load))

    def send(self, command: Command) -> bool:
        """A `Generate` begins a request, a `Cancel` ends it; nothing else concerns a server."""
        if self._http is None:
            return False
        if isinstance(command, Generate):
            self._request = command.request
            self._task = asyncio.create_task(self._generate(command))
            return True
        if isinstance(command, Cancel):
            if self._task is not None and command.request == self._request:
                self._task.cancel()
            return True
        return isinstance(command, SetOptions)

    async def events(self) -> AsyncIterator[BackendEvent]:
        while True:
            yield await self._queue.get()

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()

    def log_tail(self, lines: int = 12) -> tuple[str, ...]:
        return ()

    # ---- the model ------------------------------------------------------------------------------

    async def _greet(self, load: Load) -> None:
        try:
            model, context = self._choose(await self._models(), load.model)
        except ServerError as error:
            self._queue.put_nowait(EngineLost(str(error)))
            return
        self._model = model
        info = ModelInfo(
            name=model, path=self.url, is_demo=False, layers=0, hidden_size=0, vocab_size=0,
            experts=0, top_k=0, hash_layers=0, compress_ratios=(), precision=load.precision,
            parameters=0, resident_bytes=0, bytes_per_token=0, formats={}, gsa_stored={},
            effort_profile="official",
        )  # fmt: skip
        plan = [PlanRow("everything", self.url, "on the server")]
        layout = TapLayout(layers=0, top_k=0, streams=0, blocks=())
        self._queue.put_nowait(Ready(info, "server", context, plan, layout, []))

    async def _models(self) -> list[dict[str, Any]]:
        assert self._http is not None
        try:
            response = await self._http.get(f"{self.url}/models")
            if response.status_code != 200:
                raise self._refusal(response.status_code, response.text)
            listed = response.json()["data"]
            return [row for row in listed if isinstance(row, dict) and row.get("id")]
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None
        except (ValueError, KeyError, TypeError):
            raise ServerError(
                f"{self.url}/models is not a list of models: is this an OpenAI-compatible server?"
            ) from None

    def _choose(self, listed: list[dict[str, Any]], wanted: str) -> tuple[str, int]:
        names = [str(row["id"]) for row in listed]
        if not names:
            raise ServerError(f"{self.url} serves no model")
        if wanted and wanted not in names:
            raise ServerError(
                f"{self.url} has no model {wanted}; it has {one_line(', '.join(names), 200)}"
            )
        row = listed[names.index(wanted)] if wanted else listed[0]
        context = row.get("max_model_len")
        return str(row["id"]), context if isinstance(context, int) else 0

    # ---- an answer ----------------------------------------------------------------------------

    async def _generate(self, command: Generate) -> None:
        """Run one request; whatever happens, exactly one `Finished` follows."""
        answer, started = Answer(), time.monotonic()
        first = [0.0]
        reason: StopReason = "fault"
        message, warnings = "", []
        try:
            if command.forced_ids:
                raise ServerError("a server cannot be made to take a token")
            try:
                await self._stream(command, answer, first, plain=False)
            except _NotKnownError as error:
                warnings = [f"without logprobs and thinking, which the server refuses: {error}"]
                await self._stream(command, answer, first, plain=True)
            reason = REASONS.get(answer.finish, "stop")
        except asyncio.CancelledError:
            reason = "cancelled"
        except ServerError as error:
            message = str(error)
        except httpx.HTTPError as error:
            message = str(self._unreachable(error, answer.tokens > 0))
        now = time.monotonic()
        tokens = answer.usage_tokens or answer.tokens
        pace = (tokens - 1) / (now - first[0]) if first[0] and tokens > 1 and now > first[0] else 0
        self._queue.put_nowait(
            Finished(
                command.request,
                reason,
                prompt_tokens=answer.prompt_tokens,
                tokens=tokens,
                thinking_tokens=answer.thinking_tokens,
                ttft_ms=1000 * (first[0] - started) if first[0] else 0.0,
                tok_s=pace,
                seed=command.sampling.seed or 0,
                message=message,
                tool_calls=[call for _, call in sorted(answer.calls.items())],
                warnings=warnings,
            )
        )

    async def _stream(
        self, command: Generate, answer: Answer, first: list[float], *, plain: bool
    ) -> None:
        assert self._http is not None
        body = request_body(command, self._model, plain=plain)
        url = f"{self.url}/chat/completions"
        async with self._http.stream("POST", url, json=body) as response:
            if response.status_code != 200:
                text = (await response.aread()).decode("utf-8", "replace")
                if response.status_code in (400, 422) and not plain:
                    raise _NotKnownError(one_line(_words(text), 200))
                raise self._refusal(response.status_code, text)
            async for line in response.aiter_lines():
                if not line.startswith("data:"):
                    continue
                data = line[5:].strip()
                if data == "[DONE]":
                    return
                tokens, deltas = answer.take(_parse(data))
                if tokens or deltas:
                    first[0] = first[0] or time.monotonic()
                    self._queue.put_nowait(Tokens(command.request, tokens, deltas))
        if not answer.finish:
            raise ServerError("the server ended the stream in the middle of the answer")

    # ---- what went wrong ------------------------------------------------------------------------

    def _refusal(self, status: int, text: str) -> ServerError:
        words = one_line(_words(text), 300)
        if status in (401, 403):
            way = "its key in DSV4CHAT_API_KEY is wrong" if self._key else "set DSV4CHAT_API_KEY"
            return ServerError(f"{self.url} wants a key: {way} ({status} {words})")
        if status == 404:
            return ServerError(f"{self.url} does not know this: {words} (404); check URL and model")
        return ServerError(f"{self.url} failed with status {status}: {words}")

    def _unreachable(self, error: httpx.HTTPError, begun: bool = False) -> ServerError:
        words = one_line(str(error) or type(error).__name__, 200)
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return ServerError(f"nothing answers at {self.url}: {words}; is the server running?")
        if isinstance(error, httpx.TimeoutException):
            return ServerError(f"no sign of life from {self.url} for {SILENCE_S:.0f} s")
        where = "in the middle of the answer" if begun else f"to {self.url}"
        return ServerError(f"the connection broke {where}: {words}")


class _NotKnownError(Exception):
    """The server does not take one of the fields that are not part of every server."""


def _parse(data: str) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        raise ServerError(
            f"the server sent a line that is not JSON: {one_line(data, 80)}"
        ) from None


def _words(text: str) -> str:
    with contextlib.suppress(ValueError):
        return error_text(json.loads(text))
    return text[:300]
