"""Answers of the real engine, in this process: greedy ones to judge, sampled ones to see that they
end."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.loading import load_session
from engine.protocol import (
    ChatMessage,
    Event,
    Finished,
    Generate,
    Load,
    Sampling,
    StepOptions,
    Tokens,
)
from engine.session import Session
from tools.demo.checks.prompts import Check

GREEDY = Sampling(temperature=0, max_tokens=300)
_CLAIM = re.compile(r"\b(i am|i'm|this is|my name is)( the)?( real)? deepseek", re.I)


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    reason: str
    tokens: int
    tok_s: float

    @property
    def ended(self) -> bool:
        return self.reason == "stop"

    @property
    def loops(self) -> bool:
        """Whether six words in a row are there three times."""
        words = self.text.split()
        runs = [tuple(words[i : i + 6]) for i in range(len(words) - 5)]
        return any(runs.count(run) >= 3 for run in set(runs))

    @property
    def claims(self) -> bool:
        return _CLAIM.search(self.text) is not None


class Chat:
    """A loaded model that answers one conversation after the other."""

    def __init__(self, folder: Path) -> None:
        self.events: list[Event] = []
        load = Load(model=str(folder), device="cpu")
        loaded = load_session(load, self.events.append, lambda: False, lambda: 0)
        self.session: Session = loaded.session
        self.info = loaded.ready.model

    def answer(
        self,
        turns: tuple[str, ...],
        sampling: Sampling = GREEDY,
        options: StepOptions | None = None,
    ) -> Answer:
        """The reply to texts of user and assistant in turn."""
        roles = ("user", "assistant")
        messages = [ChatMessage(roles[i % 2], text) for i, text in enumerate(turns)]
        self.events.clear()
        plain = options or StepOptions(taps=False)
        self.session.generate(Generate(1, messages, sampling, plain))
        finished = self.events[-1]
        assert isinstance(finished, Finished)
        text = "".join(
            delta.text for event in self.events if isinstance(event, Tokens)
            for delta in event.deltas if delta.channel == "answer"
        )  # fmt: skip
        return Answer(text, finished.reason, finished.tokens, finished.tok_s)


@dataclass(frozen=True, slots=True)
class Judged:
    check: Check
    answer: Answer

    @property
    def right(self) -> bool:
        answer = self.answer
        sound = answer.ended and not answer.loops and not answer.claims
        return sound and self.check.right(answer.text)


def judge(chat: Chat, checks: list[Check]) -> Iterator[Judged]:
    for check in checks:
        yield Judged(check, chat.answer(check.turns))


def sampled(chat: Chat, checks: list[Check], count: int, settings: Sampling) -> list[Answer]:
    """Answers to the checks' prompts in turn, each with a seed of its own."""
    made = []
    for seed in range(count):
        sampling = Sampling(settings.temperature, settings.top_p, settings.min_p, seed, 300)
        made.append(chat.answer(checks[seed % len(checks)].turns, sampling))
    return made
