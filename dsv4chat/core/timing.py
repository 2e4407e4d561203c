"""Rates and percentiles of an answer, as seen by the app when batches arrive."""

import time
from collections import deque


class Timing:
    """Arrival times of one answer. Batches hide single tokens: gaps are means over a batch."""

    def __init__(self) -> None:
        self.sent_at = time.monotonic()
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self.answer_at: float | None = None
        self.ended_at: float | None = None
        self.tokens = 0
        self.gaps_ms: deque[float] = deque(maxlen=4096)
        self._recent: deque[tuple[float, int]] = deque(maxlen=64)

    def add(self, tokens: int) -> None:
        """A batch arrived."""
        if not tokens:
            return
        now = time.monotonic()
        if self.last_token_at is None:
            self.first_token_at = now
        else:
            gap = 1000 * (now - self.last_token_at) / tokens
            self.gaps_ms.extend([gap] * min(tokens, 64))
        self.last_token_at = now
        self.tokens += tokens
        self._recent.append((now, tokens))

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_token_at is None else self.first_token_at - self.sent_at

    @property
    def tok_s(self) -> float:
        """Rate over the last few seconds."""
        if len(self._recent) < 2:
            return 0.0
        start = self._recent[0][0]
        tokens = sum(count for _, count in self._recent) - self._recent[0][1]
        span = self._recent[-1][0] - start
        return tokens / span if span > 0 else 0.0

    @property
    def elapsed_s(self) -> float:
        return (self.ended_at or time.monotonic()) - self.sent_at

    def percentile_ms(self, share: float) -> float | None:
        """Inter-token time below which `share` of the tokens lie."""
        if not self.gaps_ms:
            return None
        ordered = sorted(self.gaps_ms)
        return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]
