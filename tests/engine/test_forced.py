"""Forced and kept tokens in the engine process: a branch equals the answer that forced them all."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.loading import load_session
from engine.protocol import (
    ChatMessage,
    Event,
    Finished,
    Generate,
    Load,
    Ready,
    Sampling,
    Telemetry,
    Tokens,
)
from engine.telemetry import TapRecord
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


def test_a_step_that_is_not_finite_leaves_its_record(tmp_path: Path) -> None:
    events: list[Event] = []
    command = Load(str(write_model(tmp_path / "model")), device="cpu", context=256)
    loaded = load_session(command, events.append, lambda: False, lambda: 0)
    with torch.inference_mode():
        loaded.session.runner.model.embed[40] = float("nan")
    messages = [ChatMessage("user", "hello")]
    loaded.session.generate(Generate(1, messages, sampling=SAMPLING, forced_ids=[30, 40]))
    done = events[-1]
    assert isinstance(done, Finished) and done.reason == "fault"
    assert "the first bad layer is 0" in done.message and done.tokens == 2
    last = [event for event in events if isinstance(event, Telemetry)][-1]
    assert last.index == 2
    record = TapRecord(loaded.session.runner.layout, last.payload)
    assert record.scalar("first_bad_layer") == 0
