"""What the panels look at.

One token of the last answer, with its record, live or under the cursor.
"""

import math
from dataclasses import dataclass

from dsv4chat.core.conversation import Turn
from dsv4chat.core.records import TurnRecords
from dsv4chat.core.session import ChatSession
from engine.protocol import ModelInfo, Token
from engine.telemetry import TapLayout, TapRecord

HISTORY = 200
ON_SERVER = "A server does not send what this panel shows: it needs the local engine."


@dataclass(frozen=True, slots=True)
class View:
    """Everything a panel may read. `why_empty` is set when there is no record, and says why."""

    session: ChatSession
    turn: Turn | None = None
    index: int = -1
    live: bool = True
    token: Token | None = None
    record: TapRecord | None = None
    records: TurnRecords | None = None
    layer: int = 0
    why_empty: str = ""

    @property
    def info(self) -> ModelInfo | None:
        return self.session.ready.model if self.session.ready else None

    @property
    def layout(self) -> TapLayout | None:
        return self.record.layout if self.record else None

    def history(self, count: int = HISTORY) -> list[TapRecord]:
        """Records up to this token, oldest first, gaps left out."""
        if self.records is None:
            return []
        found = (
            self.records.record(n) for n in range(max(0, self.index - count + 1), self.index + 1)
        )
        return [record for record in found if record is not None]


def current_view(session: ChatSession, cursor: int | None, layer: int) -> View:
    """The token under the cursor, else the newest one that has a record."""
    turn = session.conversation.last("assistant")
    last = session.records.last_index(turn) if turn else -1
    if turn is None or last < 0:
        return View(session, layer=layer, why_empty=_nothing_yet(session))
    records = session.records.get(turn.id)
    index = last if cursor is None else min(cursor, last)
    if cursor is None and records and records.payloads and index not in records.payloads:
        index = max(n for n in records.payloads if n <= index) if records.payloads else index
    layers = records.layout.layers if records and records.layout else 1
    record = records.record(index) if records else None
    return View(
        session=session,
        turn=turn,
        index=index,
        live=cursor is None,
        token=records.tokens.get(index) if records else None,
        record=record,
        records=records,
        layer=min(layer, layers - 1),
        why_empty="" if record else _no_record(session, turn, records),
    )


def _nothing_yet(session: ChatSession) -> str:
    if session.remote:
        return ON_SERVER
    if session.ready is None:
        return "The model is not loaded yet."
    if not session.settings.taps:
        return "Taps are off: F7 switches them on for the tokens that follow."
    return "No token yet. Send a message; every token leaves a record here."


def _no_record(session: ChatSession, turn: Turn, records: TurnRecords | None) -> str:
    if session.remote:
        return ON_SERVER
    if records is None:
        return "The records of this answer were dropped to stay within the memory bound."
    if not session.settings.taps:
        return "Taps are off: F7 switches them on for the tokens that follow."
    if turn.finished is not None and turn.finished.telemetry_dropped:
        return f"The engine dropped {turn.finished.telemetry_dropped} records to keep its pace."
    return "No record of this token has arrived."


def entropy_bits(record: TapRecord) -> float:
    return float(record.scalar("entropy")) / math.log(2)


def probability(record: TapRecord, logit: float) -> float:
    return math.exp(min(0.0, logit - float(record.scalar("logsumexp"))))


def headroom_bits(stored: float, live: float) -> float | None:
    """log2(stored/live): below 0 the checkpoint's scale is too small. None without both."""
    return math.log2(stored / live) if stored > 0 and live > 0 else None


def layer_kind(info: ModelInfo | None, layer: int) -> str:
    """How a layer attends, and whether its experts come from the hash table."""
    if info is None:
        return ""
    ratio = info.compress_ratios[layer] if layer < len(info.compress_ratios) else 0
    kind = f"window + compressed {ratio}:1" if ratio else "window only"
    return f"{kind}, hash-routed" if layer < info.hash_layers else kind
