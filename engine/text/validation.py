"""Refuses conversations the model must not see (chat-encoding 4.7). Each message says the way out.

Apart from the layout on purpose: that one follows the reference on every input, this one is ours.
"""

import re
from collections.abc import Sequence
from typing import Any

from engine.protocol import ChatMessage, Effort
from engine.text.control import TASK_CONTROLS, Control
from engine.text.effort import EFFORT_TEXTS
from engine.text.errors import ConversationError
from engine.text.messages import JsonObject
from engine.text.tokenizer import Tokenizer
from engine.text.toolmarkup import to_json

ROLES = ("system", "user", "assistant", "tool", "latest_reminder")
# A name is written between quotes without escapes.
_UNWRITABLE_NAME = re.compile(r'["<>\x00-\x1f\x7f]')


def validate(
    tokenizer: Tokenizer,
    messages: Sequence[ChatMessage],
    tools: Sequence[JsonObject],
    *,
    effort: Effort,
    task: str | None,
    response_format: JsonObject | None,
) -> None:
    """See `ChatEncoder.validate`."""
    if not messages:
        raise ConversationError("the conversation is empty; write a message first")
    _check_request(tokenizer, tools, effort, task, response_format)
    for index, message in enumerate(messages):
        _check_fields(index, message)
        _check_place(index, message, messages[index - 1] if index else None)
        if message.role == "latest_reminder":
            tokenizer.id_of(Control.REMINDER)
        if message.tool_calls:
            tokenizer.id_of(Control.DSML)
    _check_results(messages)
    _check_end(len(messages) - 1, messages[-1], task)


def _refuse(index: int, message: ChatMessage, fault: str) -> ConversationError:
    return ConversationError(f"message {index + 1} ({message.role}): {fault}", index)


def _check_request(
    tokenizer: Tokenizer,
    tools: Sequence[JsonObject],
    effort: str,
    task: str | None,
    response_format: JsonObject | None,
) -> None:
    if effort not in EFFORT_TEXTS["official"]:
        raise ConversationError(f"effort {effort!r}: choose none, low, high or max")
    if effort != "none":
        tokenizer.id_of(Control.THINK)
    if task is not None:
        if task not in TASK_CONTROLS:
            raise ConversationError(f"task {task!r}: choose one of {', '.join(TASK_CONTROLS)}")
        tokenizer.id_of(TASK_CONTROLS[task])
    if response_format is not None:
        _check_json("the response format", response_format)
    check_tools(tools)
    if tools:
        tokenizer.id_of(Control.DSML)
        tokenizer.id_of(Control.THINK)


def check_tools(tools: Sequence[JsonObject]) -> None:
    """Refuse tool declarations the model could not call. Raises ConversationError."""
    names: set[str] = set()
    for number, tool in enumerate(tools, 1):
        function = tool.get("function") if isinstance(tool, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(function, dict) or not isinstance(name, str) or not name:
            raise ConversationError(f"tool {number}: needs the form {{function: {{name: ...}}}}")
        if _UNWRITABLE_NAME.search(name):
            raise ConversationError(
                f"tool {number}: the name {name!r} cannot be written in a call; "
                "use letters, digits, _ and -"
            )
        if name in names:
            raise ConversationError(f"tool {number}: a second tool is named {name!r}; rename one")
        if not isinstance(function.get("parameters", {}), dict):
            raise ConversationError(f"tool {name!r}: its parameters must be a JSON Schema object")
        names.add(name)
        _check_json(f"tool {name!r}", function)


def _check_json(what: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise ConversationError(f"{what} must be a JSON object")
    try:
        to_json(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConversationError(f"{what} cannot be written as JSON: {error}") from error


def _check_fields(index: int, message: ChatMessage) -> None:
    if message.role not in ROLES:
        raise _refuse(index, message, f"unknown role; use one of {', '.join(ROLES)}")
    texts: dict[str, object] = {
        "content": message.content,
        "reasoning": message.reasoning,
        "tool_call_id": message.tool_call_id,
    }
    for call in message.tool_calls:
        texts |= {"a call's id": call.id, "a call's arguments": call.arguments}
        texts |= {"a call's name": call.name}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise _refuse(index, message, f"{name} is not text but {type(text).__name__}")
    if message.tool_calls and message.role != "assistant":
        raise _refuse(index, message, "only an assistant message can make calls; remove them")


def _check_place(index: int, message: ChatMessage, before: ChatMessage | None) -> None:
    """What a message may follow."""
    previous = before.role if before else None
    if message.role == "system" and index > 0:
        raise _refuse(
            index, message, "a system message must be first; add its text to the first one"
        )
    if message.role == "latest_reminder" and previous in ("user", "tool"):
        raise _refuse(index, message, "a reminder must stand before the user message it belongs to")
    if message.role not in ("user", "latest_reminder") and previous == "latest_reminder":
        raise _refuse(index, message, "a reminder must be followed by a user message; move it")
    if message.role != "assistant":
        return
    if previous not in ("user", "tool"):
        raise _refuse(index, message, "an answer must follow a user message; merge or remove it")
    empty = not (message.content or message.reasoning or message.tool_calls)
    if empty and not message.unfinished:
        raise _refuse(index, message, "the answer is empty; remove it")


def _check_results(messages: Sequence[ChatMessage]) -> None:
    """Each call gets one result before the next user text, and each result has its call."""
    open_calls: dict[str, str] = {}
    answered: set[str] = set()
    for index, message in enumerate(messages):
        if message.role == "tool":
            if message.tool_call_id in answered:
                raise _refuse(
                    index, message, f"a second result for call {message.tool_call_id!r}; remove one"
                )
            if message.tool_call_id not in open_calls:
                raise _refuse(
                    index,
                    message,
                    f"no call of the answer before it has the id {message.tool_call_id!r}; "
                    "remove the result",
                )
            del open_calls[message.tool_call_id]
            answered.add(message.tool_call_id)
            continue
        if open_calls:
            raise _missing_result(index, message, open_calls)
        if message.role == "assistant":
            answered = set()
            for call in message.tool_calls:
                if not call.id or call.id in open_calls:
                    raise _refuse(index, message, f"call {call.name!r} needs an id of its own")
                open_calls[call.id] = call.name
    if open_calls and messages[-1].role == "tool":
        raise _missing_result(len(messages) - 1, messages[-1], open_calls)


def _missing_result(
    index: int, message: ChatMessage, open_calls: dict[str, str]
) -> ConversationError:
    id, name = next(iter(open_calls.items()))
    return _refuse(
        index,
        message,
        f"call {name!r} ({id}) has no result yet; add a tool message such as '[cancelled by user]'",
    )


def _check_end(index: int, last: ChatMessage, task: str | None) -> None:
    if last.role in ("user", "tool"):
        if task == "title":
            raise _refuse(index, last, "a title needs the answer; ask for it after the reply")
        return
    if last.role == "assistant" and task == "title" and not last.tool_calls:
        return
    if task is not None:
        raise _refuse(index, last, f"the task {task!r} goes on a user message")
    if last.role != "assistant":
        raise _refuse(index, last, "the conversation must end with a user message or tool result")
    if not last.unfinished:
        raise _refuse(
            index,
            last,
            "the answer is complete; add a user message, or mark it unfinished to continue it",
        )
    if last.tool_calls:
        raise _refuse(
            index, last, "an answer cannot be continued inside a call; drop the call first"
        )
