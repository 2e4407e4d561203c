"""The messages the prompt layout works on, and how they come from the app's or from OpenAI's form.

`Message` can express everything the reference encoder accepts, also what the app refuses to send
(chat-encoding 4.7): `layout` follows the reference on all of it, `validate` is a separate step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.protocol import ChatMessage
from engine.text.control import Task

JsonObject = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """A call in the history. `arguments` is JSON text as the model gave it."""

    name: str
    arguments: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a user turn: what a person wrote, or a tool result if `call_id` is not None."""

    text: str
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One message before or after merging.

    Attributes:
        role: system, user, assistant, tool, latest_reminder or developer.
        parts: of a merged user turn; empty before merging.
        tools: OpenAI tool objects on a system or developer message.
        ends: an assistant turn closes with EOS.
        in_reasoning: an unfinished turn stops inside its reasoning: no closing think token.
        source: the app's message, for reuse of its sampled ids.
    """

    role: str
    content: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    call_id: str = ""
    parts: tuple[Part, ...] = ()
    tools: tuple[JsonObject, ...] = ()
    response_format: JsonObject | None = None
    task: Task | None = None
    ends: bool = True
    in_reasoning: bool = False
    source: ChatMessage | None = None


def from_chat(message: ChatMessage, *, last: bool, think_end_id: int) -> Message:
    """The app's message. Only the last one can be `unfinished`; an earlier one is closed with EOS.

    A reply cut before its first answer character is taken to be inside its reasoning, unless its
    sampled ids say that the reasoning was closed.
    """
    unfinished = last and message.unfinished and message.role == "assistant"
    reasoning_closed = bool(message.content) or think_end_id in message.token_ids
    return Message(
        role=message.role,
        content=message.content,
        reasoning=message.reasoning,
        calls=tuple(Call(call.name, call.arguments, call.id) for call in message.tool_calls),
        call_id=message.tool_call_id,
        ends=not unfinished,
        in_reasoning=unfinished and not reasoning_closed,
        source=message,
    )


def from_openai(message: JsonObject) -> Message:
    """A message in OpenAI's form with the reference's extra keys (tools, task, wo_eos, ...)."""
    calls = message.get("tool_calls") or ()
    return Message(
        role=message["role"],
        content=flatten(message.get("content")),
        reasoning=message.get("reasoning_content") or "",
        calls=tuple(
            Call(call["function"]["name"], call["function"]["arguments"], call.get("id") or "")
            for call in calls
        ),
        call_id=message.get("tool_call_id") or "",
        tools=tuple(message.get("tools") or ()),
        response_format=message.get("response_format") or None,
        task=message.get("task"),
        ends=not message.get("wo_eos", False),
    )


def flatten(content: str | Sequence[JsonObject] | None) -> str:
    """Text of OpenAI content: blocks joined by a blank line, those that are no text named."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts = (
        block.get("text") or ""
        if block.get("type") == "text"
        else f"[Unsupported {block.get('type')}]"
        for block in content
    )
    return "\n\n".join(texts)


def with_request(
    messages: Sequence[Message],
    tools: Sequence[JsonObject],
    response_format: JsonObject | None,
) -> list[Message]:
    """Put what belongs to the request on the first system message, adding an empty one if needed.

    Never a second system message before an existing one: that would move the tools block.
    """
    result = list(messages)
    if not tools and not response_format:
        return result
    place = next((i for i, message in enumerate(result) if message.role == "system"), None)
    if place is None:
        place = 0
        result.insert(0, Message("system"))
    result[place] = replace(
        result[place],
        tools=tuple(tools) or result[place].tools,
        response_format=response_format or result[place].response_format,
    )
    return result
