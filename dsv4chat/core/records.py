"""Keeps what the panels show.

Tokens with their alternatives and tap records, by turn, within a memory bound.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from dsv4chat.core.conversation import Turn
from engine.protocol import Token
from engine.telemetry import TapLayout, TapRecord

BUDGET_BYTES = 96 * 1024 * 1024
TOKEN_BYTES = 2600  # a Token with twenty alternatives, measured with sys.getsizeof over its parts


@dataclass(slots=True)
class TurnRecords:
    """Tokens and payloads of one turn. Payloads may be missing: the engine may drop them."""

    layout: TapLayout | None
    tokens: dict[int, Token] = field(default_factory=dict)
    payloads: dict[int, bytes] = field(default_factory=dict)
    size: int = 0

    def record(self, index: int) -> TapRecord | None:
        payload = self.payloads.get(index)
        return TapRecord(self.layout, payload) if payload and self.layout else None


class RecordStore:
    """Records of the newest turns; whole older turns go first when the budget is spent."""

    def __init__(self, budget_bytes: int = BUDGET_BYTES) -> None:
        self.budget_bytes = budget_bytes
        self.evicted_turns: set[str] = set()
        self.bad_records = 0
        self._turns: OrderedDict[str, TurnRecords] = OrderedDict()
        self._size = 0

    def open(self, turn_id: str, layout: TapLayout | None) -> None:
        """Begin a turn."""
        if (before := self._turns.get(turn_id)) is not None:
            self._size -= before.size
        self._turns[turn_id] = TurnRecords(layout)
        self.evicted_turns.discard(turn_id)

    def add_tokens(self, turn_id: str, tokens: list[Token]) -> None:
        records = self._turns.get(turn_id)
        if records is None:
            return
        for token in tokens:
            records.tokens[token.index] = token
            self._grow(records, TOKEN_BYTES if token.top else 200)
        self._shrink(turn_id)

    def add_payload(self, turn_id: str, index: int, payload: bytes) -> int:
        """Keep one tap record; one of a wrong size is counted and left out.

        Returns the first layer that is not finite, or -1.
        """
        records = self._turns.get(turn_id)
        if records is None:
            return -1
        if records.layout is None or len(payload) != 4 * records.layout.words:
            self.bad_records += 1
            return -1
        bad = int(TapRecord(records.layout, payload).scalar("first_bad_layer"))
        if index not in records.payloads:
            self._grow(records, len(payload) + 100)
        records.payloads[index] = payload
        self._shrink(turn_id)
        return bad

    def last_index(self, turn: Turn) -> int:
        """The last token to look at: the one that ended the answer by not being finite left a
        record and no text."""
        records, count = self._turns.get(turn.id), len(turn.token_ids)
        return count if records and count in records.payloads else count - 1

    def put(self, turn_id: str, records: TurnRecords) -> None:
        """Take records that were read from disk."""
        records.size = TOKEN_BYTES * len(records.tokens) + sum(map(len, records.payloads.values()))
        self._turns[turn_id] = records
        self._size += records.size
        self._shrink(turn_id)

    def take_over(self, source_id: str, turn_id: str, count: int) -> None:
        """The first `count` tokens of one turn's records for another, just opened one."""
        source = self._turns.get(source_id)
        if source is not None:
            part = TurnRecords(
                source.layout or self._turns[turn_id].layout,
                {n: token for n, token in source.tokens.items() if n < count},
                {n: payload for n, payload in source.payloads.items() if n < count},
            )
            self.put(turn_id, part)

    def probes(self) -> list[str]:
        """The ids under which an answer's tokens were run again (`TURN@HOW`)."""
        return [turn_id for turn_id in self._turns if "@" in turn_id]

    def get(self, turn_id: str) -> TurnRecords | None:
        return self._turns.get(turn_id)

    def _grow(self, records: TurnRecords, size: int) -> None:
        records.size += size
        self._size += size

    def _shrink(self, keep: str) -> None:
        """Drop the oldest turns; within the turn being written, its oldest records."""
        while self._size > self.budget_bytes and len(self._turns) > 1:
            oldest = next(iter(self._turns))
            if oldest == keep:
                self._turns.move_to_end(oldest)
                continue
            self._size -= self._turns.pop(oldest).size
            self.evicted_turns.add(oldest)
        records = self._turns.get(keep)
        while records and self._size > self.budget_bytes and records.payloads:
            index = next(iter(records.payloads))
            freed = len(records.payloads.pop(index)) + 100
            records.size -= freed
            self._size -= freed
