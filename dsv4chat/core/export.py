"""Conversations as files: Markdown to read, JSON to read back. Both hold all branches."""

import re
import time
import uuid
from dataclasses import replace
from pathlib import Path

import msgspec

from dsv4chat.core.conversation import NAMES, Conversation, Turn
from dsv4chat.core.stored import ImportRefusedError, from_json, to_plain
from dsv4chat.core.text import count, seconds

MAX_IMPORT_BYTES = 512 * 1024 * 1024


def export_file(conversation: Conversation, target: str, folder: Path) -> Path:
    """Write a conversation; returns where.

    Args:
        target: a file ending in .md or .json; or "", "md", "json" for a name made from the title.
        folder: where relative names begin.

    Raises:
        ValueError: another ending. OSError: it cannot be written, or is there already.
    """
    kind = target.strip().lower().lstrip(".") or "md"
    if kind in ("md", "json"):
        slug = re.sub(r"\W+", "-", conversation.title[:60]).strip("-").lower()[:40] or "chat"
        path = folder / f"{slug}-{time.strftime('%Y%m%d-%H%M%S')}.{kind}"
    else:
        path = folder / Path(target.strip()).expanduser()
        kind = path.suffix.lower().lstrip(".")
    if kind not in ("md", "json"):
        raise ValueError("the file must end in .md or .json")
    data = to_markdown(conversation).encode() if kind == "md" else to_json(conversation)
    with path.open("xb") as file:  # never over a file that is there
        file.write(data)
    return path


def import_file(path: Path) -> Conversation:
    """A conversation from a JSON export, under ids of its own.

    Raises:
        ImportRefusedError: not such a file. OSError: it cannot be read.
    """
    if not path.is_file():
        raise ImportRefusedError("no such file" if not path.exists() else "not a file")
    if path.stat().st_size > MAX_IMPORT_BYTES:
        raise ImportRefusedError(f"larger than {MAX_IMPORT_BYTES >> 20} MiB")
    return with_new_ids(from_json(path.read_bytes()))


def with_new_ids(conversation: Conversation) -> Conversation:
    """The same tree, which can be stored beside the one it came from."""
    new: dict[str | None, str | None] = {None: None}
    new |= {turn_id: uuid.uuid4().hex for turn_id in conversation.turns}
    copy = Conversation(conversation.system)
    copy.name, copy.created = conversation.name, conversation.created
    turns = [
        replace(turn, id=new[turn.id] or "", parent=new[turn.parent])
        for turn in conversation.turns.values()
    ]
    copy.adopt(turns, new[conversation.leaf])
    return copy


def to_json(conversation: Conversation) -> bytes:
    """What `from_json` reads back as an equal conversation."""
    return msgspec.json.format(msgspec.json.encode(to_plain(conversation)), indent=1) + b"\n"


def to_markdown(conversation: Conversation) -> str:
    """All turns in tree order, numbered; at a fork each says which one it is."""
    title = " ".join(conversation.title.split())[:120] or "chat"
    parts = [f"# {title}"]
    if conversation.system:
        parts.append(_quote("system", conversation.system))
    numbers: dict[str | None, int] = {}
    stack = conversation.children(None)[::-1]
    while stack:
        turn = stack.pop()
        numbers[turn.id] = len(numbers) + 1
        parts += _turn(conversation, turn, numbers)
        stack += conversation.children(turn.id)[::-1]
    return "\n\n".join(parts) + "\n"


def _turn(conversation: Conversation, turn: Turn, numbers: dict[str | None, int]) -> list[str]:
    who = NAMES.get(turn.role) or turn.model or turn.role
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(turn.created))
    siblings = conversation.siblings(turn)
    fork = ""
    if len(siblings) > 1:
        after = f" after {numbers[turn.parent]}" if turn.parent else ""
        fork = f" · branch {siblings.index(turn) + 1} of {len(siblings)}{after}"
    parts = [f"## {numbers[turn.id]} {who} · {when}{fork}"]
    if turn.reasoning:
        tokens = sum(channel == "thinking" for channel in turn.channels)
        parts.append(
            _quote(f"thought, {count(tokens)} tokens, {seconds(turn.thinking_s)}", turn.reasoning)
        )
    parts.append(turn.text)
    parts += [f"    tool call {call.name} {call.arguments}" for call in turn.tool_calls]
    if turn.finish not in (None, "stop"):
        parts.append(f"*({turn.finish}{': ' if turn.note else ''}{turn.note})*")
    return [part for part in parts if part]


def _quote(head: str, text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in (f"*{head}*", "", *text.split("\n")))
