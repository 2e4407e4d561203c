"""Sampled ids of earlier turns: which of them may stand for the turn in a new prompt.

A prompt that repeats the sampled ids keeps the KV cache of the reply; rendering it anew loses
newlines the parser dropped, spacing of JSON and the model's own choice of tokens (chat-encoding
7.3). The ids are used only if parsing them gives the stored message again, so an edited turn is
rendered from its text.
"""

from collections.abc import Sequence

import msgspec

from engine.protocol import ChatMessage, StopReason, ToolCall
from engine.text.cache import WeightedCache
from engine.text.control import Control
from engine.text.layout import Start, Stored
from engine.text.messages import JsonObject
from engine.text.parser import ReplyStart, StreamParser
from engine.text.tokenizer import Tokenizer
from engine.text.toolcall import json_object

_CACHED_IDS = 4 * 1024 * 1024
_MAX_CHARACTER_TOKENS = (
    3  # a character has at most four bytes, so at most three tokens of a cut one
)


class StoredTurns:
    """Finds and remembers the ids that may stand for a turn."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: WeightedCache[object, tuple[Stored | None]] = WeightedCache(_CACHED_IDS)

    def find(
        self, message: ChatMessage, starts_in: Start, tools: Sequence[JsonObject]
    ) -> Stored | None:
        """Ids for `message` after a header that opened `starts_in`; None if they say another turn.

        Without EOS. The ids of a turn that is to be continued end at a whole character.
        """
        if not message.token_ids:
            return None
        calls = tuple((call.name, call.arguments, bool(call.error)) for call in message.tool_calls)
        key = (
            tuple(message.token_ids),
            message.reasoning,
            message.content,
            calls,
            message.unfinished,
            starts_in,
            msgspec.json.encode(tools) if tools else b"",
        )
        known = self._known.get(key)
        if known is None:
            known = (self._check(message, starts_in, tools),)
            self._known.put(key, known, len(message.token_ids) + 1)
        return known[0]

    def _check(
        self, message: ChatMessage, starts_in: Start, tools: Sequence[JsonObject]
    ) -> Stored | None:
        ids = list(message.token_ids)
        ended = ids[-1] == self._tokenizer.eos_id
        if ended:
            ids.pop()
        if message.unfinished:
            if ended:
                return None
            ids = self._whole_characters(ids)
        if not self._well_formed(ids, message, starts_in):
            return None
        # A cut turn has no failed call at its end; one with calls was whole.
        reason: StopReason = "stop" if ended or message.tool_calls else "cancelled"
        parser = StreamParser(self._tokenizer, ReplyStart(starts_in), tools)
        parser.feed(ids)
        turn = parser.finish(reason)
        same = (
            turn.thinking == message.reasoning
            and turn.answer == message.content
            and _same_calls(turn.tool_calls, message.tool_calls)
        )
        return Stored(tuple(ids), self._tokenizer.decode(ids)) if same else None

    def _well_formed(self, ids: list[int], message: ChatMessage, starts_in: Start) -> bool:
        """Whether `ids` hold just the control tokens that the turn, written by us, would hold.

        Else the model would read its own slips again, and text would hide control tokens.
        """
        if not ids or not all(0 <= id < self._tokenizer.vocab_size for id in ids):
            return False
        controls = [id for id in ids if id in self._tokenizer.added_ids]
        closings = controls.count(self._tokenizer.id_of(Control.THINK_END))
        expected = 1 if starts_in == "thinking" else 0
        if closings > expected:
            return False
        cut_in_reasoning = message.unfinished and not message.content and not message.tool_calls
        if closings < expected and not cut_in_reasoning:
            return False
        markup = 0
        if message.tool_calls and self._tokenizer.has(Control.DSML):
            markup = controls.count(self._tokenizer.id_of(Control.DSML))
        return len(controls) == closings + markup and self._is_text(ids)

    def _is_text(self, ids: list[int]) -> bool:
        try:
            b"".join(map(self._tokenizer.bytes_of, ids)).decode()
        except UnicodeDecodeError:
            return False
        return True

    def _whole_characters(self, ids: list[int]) -> list[int]:
        """`ids` without the tokens of a character that was cut at the end."""
        for dropped in range(_MAX_CHARACTER_TOKENS + 1):
            kept = ids[: len(ids) - dropped]
            if self._is_text(kept[-_MAX_CHARACTER_TOKENS - 1 :]) or self._is_text(kept):
                return kept
        return ids


def _same_calls(parsed: Sequence[ToolCall], stored: Sequence[ToolCall]) -> bool:
    def key(call: ToolCall) -> tuple[str, str, bool]:
        return call.name, call.arguments, bool(call.error)

    return list(map(key, parsed)) == list(map(key, stored))


def without_broken_calls(
    messages: Sequence[ChatMessage],
    stored: StoredTurns,
    tools: Sequence[JsonObject],
    starts_in: Start,
) -> list[ChatMessage]:
    """Leave out failed calls that cannot be written again, and their results (chat-encoding 8.4).

    A failed call stays if its turn's ids can be repeated, or if its arguments are an object and so
    can be rendered. `starts_in` is what the headers of calling turns open. If only its results
    stood after the turn, the turn goes too: the model then answers the user's message again, rather
    than nothing.
    """
    if not any(call.error for message in messages for call in message.tool_calls):
        return list(messages)
    kept: list[ChatMessage] = []
    removed: set[str] = set()
    for message in messages:
        if message.role == "tool" and message.tool_call_id in removed:
            continue
        if message.role == "assistant" and message.tool_calls:
            repeated = stored.find(message, starts_in, tools) is not None
            broken = () if repeated else filter(_unwritable, message.tool_calls)
            removed = {call.id for call in broken}
            if removed:
                calls = [call for call in message.tool_calls if call.id not in removed]
                message = msgspec.structs.replace(message, tool_calls=calls, token_ids=[])
        kept.append(message)
    if removed and kept and kept[-1].role == "assistant" and not kept[-1].unfinished:
        kept.pop()
    return kept


def _unwritable(call: ToolCall) -> bool:
    return bool(call.error) and (not call.name or json_object(call.arguments) is None)
