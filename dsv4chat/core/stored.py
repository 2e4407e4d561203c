"""Turns and records as bytes, and whole conversations as plain values for JSON.

A turn whose bytes can no longer be read still gives its text back.
"""

import contextlib
import math
import zlib
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, get_args

import msgspec

from dsv4chat.core.conversation import Conversation, Role, Turn
from dsv4chat.core.records import TurnRecords
from engine.protocol import Token
from engine.telemetry import TapLayout

FORMAT, VERSION = "dsv4chat-conversation", 1
CHUNK_TOKENS = 64
MAX_CHUNK_BYTES = 64 * 1024 * 1024
INTERRUPTED = "interrupted: the app ended before this answer did"
STEPPED = ("token_ids", "pieces", "logprobs", "routers", "gsa_modes", "channels", "ends")

_TURN = msgspec.msgpack.Decoder(Turn)


class ImportRefusedError(ValueError):
    """Not a conversation of ours. One line that says what is wrong, and where."""


class _Chunk(msgspec.Struct):
    """Up to `CHUNK_TOKENS` tokens of an answer with their tap records."""

    layout: TapLayout | None
    tokens: list[Token]
    payloads: dict[int, bytes]


# ---- turns ---------------------------------------------------------------------------------------


def snapshot(turn: Turn) -> Turn:
    """A copy that another thread may encode while the turn grows."""
    lists = {f.name: getattr(turn, f.name)[:] for f in fields(turn) if str(f.type)[:4] == "list"}
    return replace(turn, **lists)


def pack_turn(turn: Turn) -> bytes:
    """Everything but the two texts, which the store keeps as text."""
    return msgspec.msgpack.encode(replace(turn, text="", reasoning=""))


def unpack_turn(
    body: bytes, *, turn_id: str, parent: str | None, role: str, text: str, reasoning: str
) -> Turn:
    """The turn as it was saved; without its tokens if they cannot be read or do not fit."""
    try:
        turn = replace(_TURN.decode(body), text=text, reasoning=reasoning)
        _check_lists(turn)
    except ValueError:  # msgspec's errors are ValueErrors
        known = role if role in get_args(Role) else "user"
        turn = Turn(known, parent, id=turn_id, text=text, reasoning=reasoning)  # type: ignore[arg-type]
        turn.finish = "stop" if known == "assistant" else None
    if not turn.done:
        turn.finish, turn.note = "fault", INTERRUPTED
    return turn


def _check_lists(turn: Turn) -> None:
    """The lists of tokens run in step, and no token ends outside its text."""
    if len({len(getattr(turn, name)) for name in STEPPED}) != 1:
        raise ImportRefusedError("its lists of tokens differ in length")
    texts = {"thinking": turn.reasoning, "answer": turn.text, "tool": turn.tool_text}
    for channel, end in zip(turn.channels, turn.ends, strict=True):
        if not 0 <= end <= len(texts.get(channel, "")):
            raise ImportRefusedError("a token ends outside the text")


# ---- records -------------------------------------------------------------------------------------


def pack_records(records: TurnRecords) -> Iterator[tuple[int, bytes]]:
    """Pieces of a turn's records, each with the index of its first token."""
    indices = sorted(records.tokens)
    for at in range(0, len(indices), CHUNK_TOKENS):
        part = indices[at : at + CHUNK_TOKENS]
        payloads = {n: records.payloads[n] for n in part if n in records.payloads}
        chunk = _Chunk(records.layout, [records.tokens[n] for n in part], payloads)
        yield part[0], zlib.compress(msgspec.msgpack.encode(chunk), 1)


def unpack_piece(piece: bytes) -> _Chunk:
    """One piece of a turn's records.

    Raises:
        ValueError: it cannot be read, or a record is not as long as its layout says.
    """
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(piece, MAX_CHUNK_BYTES)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not unpacker.eof:
        raise ValueError("cut off, or too large")
    chunk = msgspec.msgpack.decode(data, type=_Chunk)
    words = chunk.layout.words if chunk.layout else 0
    for index, payload in chunk.payloads.items():
        if len(payload) != 4 * words:
            raise ValueError(f"token {index}: a record of {len(payload)} bytes, not {4 * words}")
    return chunk


def join_records(chunks: list[_Chunk]) -> TurnRecords:
    records = TurnRecords(None)
    for chunk in chunks:
        records.layout = chunk.layout
        records.tokens |= {token.index: token for token in chunk.tokens}
        records.payloads |= chunk.payloads
    return records


def unpack_records(pieces: list[bytes]) -> TurnRecords:
    """Records from their pieces; unreadable ones are left out."""
    chunks = []
    for piece in pieces:
        with contextlib.suppress(ValueError):
            chunks.append(unpack_piece(piece))
    return join_records(chunks)


# ---- JSON ----------------------------------------------------------------------------------------


def to_plain(conversation: Conversation) -> dict[str, Any]:
    """All branches as values that JSON can hold. Figures that are not finite become text."""
    turns = [msgspec.to_builtins(turn) for turn in conversation.turns.values()]
    for turn in turns:
        turn["logprobs"] = [p if math.isfinite(p) else str(p) for p in turn["logprobs"]]
    return {
        "format": FORMAT,
        "version": VERSION,
        "id": conversation.id,
        "name": conversation.name,
        "system": conversation.system,
        "created": conversation.created,
        "leaf": conversation.leaf,
        "turns": turns,
    }


def from_json(data: bytes) -> Conversation:
    """The conversation that `to_plain` described.

    Raises:
        ImportRefusedError: anything else.
    """
    try:
        plain = msgspec.json.decode(data)
    except ValueError as error:
        raise ImportRefusedError(f"not JSON: {error}") from None
    except RecursionError:
        raise ImportRefusedError("not a conversation: nested too deeply") from None
    if not isinstance(plain, dict) or plain.get("format") != FORMAT:
        raise ImportRefusedError(f'not a conversation: no "format": "{FORMAT}"')
    if plain.get("version") != VERSION:
        raise ImportRefusedError(f"version {plain.get('version')!r}, expected {VERSION}")
    try:
        head = msgspec.convert(plain, _Head)
    except ValueError as error:
        raise ImportRefusedError(str(error)) from None
    turns = [_import_turn(number, value) for number, value in enumerate(head.turns)]
    conversation = Conversation(head.system)
    conversation.id, conversation.name, conversation.created = head.id, head.name, head.created
    if mended := conversation.adopt(turns, head.leaf):
        raise ImportRefusedError(mended)
    return conversation


class _Head(msgspec.Struct):
    id: str
    name: str
    system: str
    created: float
    leaf: str | None
    turns: list[dict[str, Any]]


def _import_turn(number: int, value: dict[str, Any]) -> Turn:
    try:
        # Not strict: a logprob may be the text "-inf".
        turn = msgspec.convert(value, Turn, strict=False)
        _check_lists(turn)
    except ValueError as error:
        raise ImportRefusedError(f"turn {number}: {error}") from None
    if not turn.done:
        turn.finish, turn.note = "fault", INTERRUPTED
    return turn
