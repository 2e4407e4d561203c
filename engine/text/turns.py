"""Preparation of a conversation: merging, ordering of tool results, dropping of old reasoning.

Steps 2 to 4 of chat-encoding 4.2, each a function from a list of messages to a new one.
"""

from collections.abc import Sequence
from dataclasses import replace

from engine.text.messages import Message, Part

USER_ROLES = ("user", "developer")
_KEPT_BEFORE_LAST_USER = ("user", "system", "latest_reminder")


def merge(messages: Sequence[Message]) -> list[Message]:
    """Make one user turn of neighbouring user messages and tool results.

    A message with a task is never continued by another text, since its task token must come last.
    """
    merged: list[Message] = []
    for message in messages:
        if message.role not in ("user", "tool"):
            merged.append(message)
            continue
        is_result = message.role == "tool"
        part = Part(message.content, message.call_id if is_result else None)
        last = merged[-1] if merged else None
        if last is not None and last.role == "user" and (is_result or last.task is None):
            merged[-1] = replace(last, parts=(*last.parts, part))
        else:
            merged.append(Message("user", parts=(part,), task=None if is_result else message.task))
    return merged


def sort_results(messages: Sequence[Message]) -> list[Message]:
    """Order the tool results of each user turn as the latest calls were made.

    Texts keep their places. An unknown id counts as the first call; the sort is stable.
    """
    result: list[Message] = []
    order: dict[str, int] = {}
    for message in messages:
        if message.role == "assistant" and message.calls:
            order = {call.id: place for place, call in enumerate(message.calls) if call.id}
        results = [part for part in message.parts if part.call_id is not None]
        if len(results) > 1 and order:
            results.sort(key=lambda part, order=order: order.get(part.call_id or "", 0))  # type: ignore[misc]
            rest = iter(results)
            parts = (part if part.call_id is None else next(rest) for part in message.parts)
            message = replace(message, parts=tuple(parts))
        result.append(message)
    return result


def carries_tools(messages: Sequence[Message]) -> bool:
    """Whether any message brings a tools block; then reasoning of all turns is kept."""
    return any(message.tools for message in messages)


def last_user_index(messages: Sequence[Message]) -> int:
    """Index of the last user or developer turn of a merged list; -1 if there is none."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].role in USER_ROLES:
            return index
    return -1


def drop_old_reasoning(messages: Sequence[Message]) -> list[Message]:
    """Before the last user turn: no reasoning in assistant turns, and no developer turns."""
    last = last_user_index(messages)
    result: list[Message] = []
    for index, message in enumerate(messages):
        if index >= last or message.role in _KEPT_BEFORE_LAST_USER:
            result.append(message)
        elif message.role == "assistant":
            result.append(replace(message, reasoning=""))
    return result
