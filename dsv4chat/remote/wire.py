"""The OpenAI chat API as plain values: requests out of ours, our events out of its chunks."""

import math
from dataclasses import dataclass, field
from typing import Any

from engine.protocol import ChatMessage, Delta, Generate, Token, ToolCall

NO_ID = -1  # the API sends texts of tokens, not their ids
TOP = 10


class ServerError(Exception):
    """The server refuses or breaks off. One line that says what and the way out."""


def request_body(command: Generate, model: str, *, plain: bool = False) -> dict[str, Any]:
    """A streaming request. `plain`: without what not every server knows."""
    sampling = command.sampling
    body: dict[str, Any] = {
        "model": model,
        "messages": [_message(message) for message in command.messages],
        "stream": True,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
    }
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    if sampling.max_tokens is not None:
        body["max_tokens"] = sampling.max_tokens
    if plain:
        return body
    body["stream_options"] = {"include_usage": True}
    if command.options.taps:
        body |= {"logprobs": True, "top_logprobs": TOP}
    if sampling.min_p:
        body["min_p"] = sampling.min_p
    if command.effort != "none":
        body["chat_template_kwargs"] = {"thinking": True, "reasoning_effort": command.effort}
    return body


def _message(message: ChatMessage) -> dict[str, Any]:
    plain: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        plain["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    if message.role == "tool":
        plain["tool_call_id"] = message.tool_call_id
    return plain


@dataclass(slots=True)
class Answer:
    """What the chunks of one answer have said so far."""

    finish: str = ""
    prompt_tokens: int = 0
    tokens: int = 0
    thinking_tokens: int = 0
    usage_tokens: int = 0
    calls: dict[int, ToolCall] = field(default_factory=dict)

    def take(self, chunk: Any) -> tuple[list[Token], list[Delta]]:
        """One chunk as tokens and the text they released.

        Raises:
            ServerError: the chunk reports an error, or is not one of this API.
        """
        if not isinstance(chunk, dict):
            raise ServerError("the server sent something that is not a chunk of an answer")
        if chunk.get("error"):
            raise ServerError(f"the server reports: {error_text(chunk)}")
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self.prompt_tokens = int(usage.get("prompt_tokens") or 0)
            self.usage_tokens = int(usage.get("completion_tokens") or 0)
        choices = chunk.get("choices") or []
        if not choices:
            return [], []
        try:
            return self._choice(choices[0])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ServerError(f"the server sent a chunk that cannot be read: {error!r}") from None

    def _choice(self, choice: dict[str, Any]) -> tuple[list[Token], list[Delta]]:
        delta = choice.get("delta") or {}
        thinking = delta.get("reasoning_content") or delta.get("reasoning") or ""
        text = delta.get("content") or ""
        self.finish = choice.get("finish_reason") or self.finish
        for call in delta.get("tool_calls") or []:
            self._call(call)
        rows = (choice.get("logprobs") or {}).get("content") or []
        start = self.tokens
        if rows:
            tokens = [_token(start + n, row) for n, row in enumerate(rows)]
        else:
            tokens = [Token(start, NO_ID, text or thinking, math.nan, "fused", "runtime")]
            tokens = tokens if text or thinking else []
        self.tokens += len(tokens)
        self.thinking_tokens += len(tokens) if thinking else 0
        last = max(self.tokens - 1, 0)
        deltas = [Delta(start if tokens else last, "thinking", thinking)] if thinking else []
        deltas += [Delta(start if tokens else last, "answer", text)] if text else []
        return tokens, deltas

    def _call(self, part: dict[str, Any]) -> None:
        function = part.get("function") or {}
        at = int(part.get("index") or 0)
        call = self.calls.setdefault(at, ToolCall("", "", ""))
        call.id = part.get("id") or call.id
        call.name += function.get("name") or ""
        call.arguments += function.get("arguments") or ""


def _token(index: int, row: dict[str, Any]) -> Token:
    top = row.get("top_logprobs") or []
    return Token(
        index=index,
        id=NO_ID,
        piece=str(row["token"]),
        logprob=float(row["logprob"]),
        router="fused",
        gsa="runtime",
        top=[(NO_ID, float(other["logprob"])) for other in top],
        pieces=[str(other["token"]) for other in top],
    )


def error_text(body: Any) -> str:
    """The words of an error body, whatever its shape."""
    if isinstance(body, dict):
        inner = body.get("error") or body.get("message") or body.get("detail") or body
        if isinstance(inner, dict):
            inner = inner.get("message") or inner
        return str(inner)[:300]
    return str(body)[:300]
