"""Finds an answer that has begun to repeat itself."""

from collections.abc import Sequence
from dataclasses import dataclass

LONGEST = 64  # tokens of one round
ROUNDS = 4  # this often the same
TOKENS = 24  # and at least this much in all: "ha ha ha ha" is no loop yet


@dataclass(frozen=True, slots=True)
class Loop:
    """The last `rounds` times `period` tokens are the same."""

    period: int
    rounds: int

    def __str__(self) -> str:
        tokens = "token" if self.period == 1 else f"{self.period} tokens"
        return f"the same {tokens} {self.rounds} times"


def find_loop(ids: Sequence[int]) -> Loop | None:
    """The shortest round that the ids end in, whole rounds counted; None if they do not repeat."""
    for period in range(1, min(LONGEST, len(ids) // ROUNDS) + 1):
        need = max(ROUNDS * period, TOKENS)
        tail = ids[-need:]
        if len(tail) == need and tail[period:] == tail[:-period]:
            same = need
            while same < len(ids) and ids[-same - 1] == ids[-same - 1 + period]:
                same += 1
            return Loop(period, same // period)
    return None
