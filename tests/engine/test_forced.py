"""Forced and kept tokens in the engine process: a branch equals the answer that forced them all."""

from collections.abc import Iterator

import pytest

from engine.protocol import ChatMessage, Event, Finished, Generate, Load, Ready, Sampling, Tokens
from tests.engine.process import EngineUnderTest, engine
from tests.engine.tiny import write_model

SAMPLING = Sampling(temperature=0.8, seed=5, max_tokens=12)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineUnderTest]:
    model = write_model(tmp_path_factory.mktemp("tiny") / "model")
    with engine(tmp_path_factory.mktemp("log")) as process:
        process.send(Load(str(model), device="cpu", context=256))
        process.wait_for(Ready)
        yield process


def ask(running: EngineUnderTest, request: int, **fields) -> tuple[Finished, list[Event]]:
    messages = [ChatMessage("user", "hello")]
    running.send(Generate(request, messages, **{"sampling": SAMPLING, **fields}))
    return running.wait_for(Finished)


def tokens(events: list[Event]) -> list:
    return [token for event in events if isinstance(event, Tokens) for token in event.tokens]


def text(events: list[Event], start: int = 0) -> str:
    deltas = [delta for event in events if isinstance(event, Tokens) for delta in event.deltas]
    return "".join(delta.text for delta in deltas if delta.index >= start)


@pytest.mark.parametrize("effort", ["none", "high"])
def test_kept_tokens_are_not_reported_and_change_nothing(running, effort) -> None:
    done, events = ask(running, 1, effort=effort)
    first = tokens(events)
    assert len(first) == 12 and not any(token.forced for token in first)
    other = next(i for i, _ in first[6].top if i != first[6].id)
    forced = [token.id for token in first[:6]] + [other]
    whole, all_events = ask(running, 2, forced_ids=forced, effort=effort)
    part, events = ask(running, 3, forced_ids=forced, kept=6, effort=effort)
    branch = tokens(events)
    assert [token.index for token in branch] == list(range(6, whole.tokens))
    assert [token.forced for token in branch] == [True] + [False] * (len(branch) - 1)
    assert (
        branch[0].id == other and [t.id for t in branch] == [t.id for t in tokens(all_events)][6:]
    )
    assert text(events) == text(all_events, 6)
    assert (part.tokens, part.thinking_tokens) == (whole.tokens, whole.thinking_tokens)
    assert (part.prompt_tokens, part.seed) == (done.prompt_tokens, 5)
    assert part.reused_tokens >= done.prompt_tokens - 1


def test_more_kept_than_forced_is_refused(running) -> None:
    done, events = ask(running, 9, forced_ids=[30], kept=2)
    assert done.reason == "fault" and "kept 2 of 1" in done.message and not tokens(events)


def test_step_times_are_percentiles_of_what_was_made(running) -> None:
    done, events = ask(running, 12)
    assert len(done.step_ms) == 3 and 0 < done.step_ms[0] <= done.step_ms[1] <= done.step_ms[2]
    assert done.graph_tokens == 0  # no graphs on a CPU
    assert len(tokens(events)) == done.tokens
