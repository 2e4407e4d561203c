"""The engine process end to end, on a tiny random model: answers, toggles, cancel, faults, its
end."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.protocol import (
    Cancel,
    ChatMessage,
    Event,
    Fault,
    Finished,
    Generate,
    Heartbeat,
    Hello,
    Load,
    LoadProgress,
    OptionsApplied,
    PrefillProgress,
    Ready,
    Sampling,
    SetOptions,
    Shutdown,
    StepOptions,
    Telemetry,
    Tokens,
)
from engine.telemetry import TapRecord
from engine.text.tokenizer import Tokenizer
from tests.engine.process import EngineUnderTest, engine
from tests.engine.tiny import write_model

GREEDY = Sampling(temperature=0, max_tokens=20)
QUIET = StepOptions(taps=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def shared(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineUnderTest]:
    """One loaded engine for the tests that leave it as they found it."""
    with engine(tmp_path_factory.mktemp("shared")) as running:
        running.send(Load(str(model), device="cpu", context=1024))
        running.ready, _ = running.wait_for(Ready)  # type: ignore[attr-defined]
        yield running


_request = 0


def ask(text: str = "hello", **fields: Any) -> Generate:
    global _request
    _request += 1
    fields = {"sampling": GREEDY, "options": QUIET, **fields}
    messages = fields.pop("messages", [ChatMessage("user", text)])
    return Generate(_request, messages, **fields)


def answer(running: EngineUnderTest, command: Generate) -> tuple[Finished, list[Event]]:
    running.send(command)
    finished, before = running.wait_for(Finished)
    assert finished.request == command.request
    return finished, before


def ids(events: list[Event]) -> list[int]:
    return [token.id for event in events if isinstance(event, Tokens) for token in event.tokens]


def text(events: list[Event]) -> str:
    return "".join(d.text for event in events if isinstance(event, Tokens) for d in event.deltas)


def test_ready_describes_the_model(shared: Any) -> None:
    ready = shared.ready
    assert ready.model.layers == 4 and ready.device == "cpu" and ready.context == 1024
    assert {row.op: row.impl for row in ready.plan}["nvfp4_linear"] == "dense-fp32"
    assert ready.model.formats["experts"] == "nvfp4" and not ready.model.is_demo
    assert ready.model.gsa_stored["ffn_in"][0] > 0


def test_a_greedy_answer_is_repeatable(shared: Any) -> None:
    first, events = answer(shared, ask())
    again, more = answer(shared, ask())
    assert first.reason == again.reason and ids(events) == ids(more)
    assert first.tokens == len(ids(events)) <= 20
    assert again.reused_tokens >= again.prompt_tokens - 1


def test_a_seed_repeats_a_sampled_answer_and_no_seed_does_not(shared: Any) -> None:
    def sampled(seed: int | None) -> list[int]:
        _, events = answer(shared, ask(sampling=Sampling(1.5, seed=seed, max_tokens=20)))
        return ids(events)

    assert sampled(7) == sampled(7) != sampled(8)
    assert len({tuple(sampled(None)) for _ in range(3)}) == 3


def test_every_token_has_a_record_with_taps_on(shared: Any) -> None:
    _, events = answer(shared, ask(options=StepOptions(taps=True)))
    records = {e.index: TapRecord(shared.ready.layout, e.payload)
               for e in events if isinstance(e, Telemetry)}  # fmt: skip
    tokens = [token for event in events if isinstance(event, Tokens) for token in event.tokens]
    assert tokens and sorted(records) == [token.index for token in tokens]
    for token in tokens:
        record = records[token.index]
        assert record.scalar("chosen_id") == token.id == record["top_ids"][0]
        assert record.scalar("chosen_logit") - record.scalar("logsumexp") == pytest.approx(
            token.logprob, abs=1e-4
        )
        assert token.top[0] == (token.id, pytest.approx(token.logprob, abs=1e-4))
        assert all(value > 0 for value in record["gsa_live"][: len(shared.ready.layout.sites) - 1])
        assert sum(record.row("expert_weights", 2)) == pytest.approx(1.5, abs=1e-4)
        masses = [record[name][1] for name in ("sink_mass", "window_mass", "compressed_mass")]
        assert sum(masses) == pytest.approx(1, abs=1e-4)
        assert record.scalar("first_bad_layer") == -1


def test_gsa_from_the_checkpoint_shows_its_fault_and_runtime_does_not(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Stored scales far too small: the fault this instrument is for."""
    import json

    from safetensors.torch import load_file, save_file

    folder = write_model(tmp_path / "model")
    for shard in folder.glob("*.safetensors"):
        tensors = load_file(shard)
        for name in tensors:
            if name.endswith("input_scale"):
                tensors[name] /= 256
        save_file(tensors, shard)
    assert json.loads((folder / "config.json").read_text())
    with engine(tmp_path) as running:
        running.send(Load(str(folder), device="cpu"))
        ready, _ = running.wait_for(Ready)
        counts = {}
        for gsa in ("runtime", "checkpoint"):
            _, events = answer(running, ask(options=StepOptions("fused", gsa, True)))  # type: ignore[arg-type]
            record = next(TapRecord(ready.layout, e.payload)
                          for e in events if isinstance(e, Telemetry))  # fmt: skip
            counts[gsa] = sum(record["saturated"])
            site = ready.layout.sites.index("ffn_in")
            used, live = record.row("gsa_used", 2)[site], record.row("gsa_live", 2)[site]
            assert (used == live) == (gsa == "runtime")
        assert counts["runtime"] == 0 < counts["checkpoint"]


def test_a_toggle_in_mid_answer_holds_from_the_token_it_names(shared: Any) -> None:
    command = ask(sampling=Sampling(temperature=0, max_tokens=200))
    shared.send(command)
    shared.wait_for(Tokens)
    shared.send(SetOptions(StepOptions("bf16", "runtime", True)))
    applied, before = shared.wait_for(OptionsApplied)
    assert applied.request == command.request and applied.options.router == "bf16"
    finished, after = shared.wait_for(Finished)
    tokens = [t for e in before + after if isinstance(e, Tokens) for t in e.tokens]
    assert all((t.router == "bf16") == (t.index >= applied.index) for t in tokens)
    assert {e.index for e in before + after if isinstance(e, Telemetry)} == {
        t.index for t in tokens if t.index >= applied.index
    }


def test_forced_ids_come_first_and_branch_the_answer(shared: Any) -> None:
    _, events = answer(shared, ask())
    plain = ids(events)
    forced = [*plain[:3], (plain[3] - 8 + 1) % 256 + 8]
    _, branched = answer(shared, ask(forced_ids=forced))
    assert ids(branched)[:4] == forced


def test_cancel_in_the_answer_keeps_the_text_and_the_next_answer_is_untouched(shared: Any) -> None:
    fresh, expected = answer(shared, ask("what now"))
    command = ask("tell me", sampling=Sampling(temperature=0, max_tokens=900))
    shared.send(command)
    _, before = shared.wait_for(Tokens)
    shared.send(Cancel(command.request))
    finished, _ = shared.wait_for(Finished)
    assert finished.reason == "cancelled" and 0 < finished.tokens < 900
    _, found = answer(shared, ask("what now"))
    assert ids(found) == ids(expected)


def test_cancel_in_the_prompt_ends_it_there(shared: Any) -> None:
    command = ask("x" * 900)
    shared.send(command)
    shared.wait_for(PrefillProgress)
    shared.send(Cancel(command.request))
    finished, _ = shared.wait_for(Finished)
    assert finished.reason == "cancelled" and finished.tokens == 0
    _, events = answer(shared, ask("hello"))
    assert events


def test_a_second_request_is_refused_while_one_runs(shared: Any) -> None:
    running = ask(sampling=Sampling(temperature=0, max_tokens=300))
    second = ask()
    shared.send(running)
    shared.wait_for(Tokens)
    shared.send(second)
    refused, _ = shared.wait_for(Finished)
    assert (refused.request, refused.reason) == (second.request, "fault")
    assert "still running" in refused.message
    finished, _ = shared.wait_for(Finished)
    assert finished.request == running.request


def test_a_prompt_that_does_not_fit_is_refused_in_words(shared: Any) -> None:
    finished, _ = answer(shared, ask("x" * 2000))
    assert finished.reason == "context" and "1024" in finished.message


def test_the_end_of_the_context_ends_the_answer(shared: Any) -> None:
    finished, events = answer(shared, ask("x" * 1000, sampling=Sampling(temperature=0)))
    assert finished.reason in ("context", "stop")
    assert finished.prompt_tokens + finished.tokens <= 1024


def test_a_malformed_conversation_is_refused_in_words(shared: Any) -> None:
    finished, _ = answer(shared, ask(messages=[ChatMessage("assistant", "hi")]))
    assert finished.reason == "fault" and finished.message


def test_a_second_turn_reuses_the_first(shared: Any) -> None:
    # A random model writes broken characters and stray control tokens: have it write letters.
    letters = Tokenizer.load(shared.ready.model.path).encode_text("fine, thank you")
    sampling = Sampling(temperature=0, max_tokens=len(letters))
    first, events = answer(shared, ask("one", forced_ids=letters, sampling=sampling))
    assert text(events) == "fine, thank you"
    turn = ChatMessage("assistant", text(events), token_ids=ids(events))
    messages = [ChatMessage("user", "one"), turn, ChatMessage("user", "two")]
    second, _ = answer(shared, ask(messages=messages))
    assert second.reused_tokens >= first.prompt_tokens + first.tokens - 1


def test_the_heart_beats(shared: Any) -> None:
    beat, _ = shared.wait_for(Heartbeat)
    assert beat.busy == ""


# ---- how it ends ---------------------------------------------------------------------------------


def test_shutdown_ends_it_cleanly(tmp_path: Path) -> None:
    with engine(tmp_path) as running:
        running.wait_for(Hello)
        running.send(Shutdown())
        assert running.process.wait(timeout=10) == 0


def test_it_ends_when_the_app_is_gone(model: Path, tmp_path: Path) -> None:
    with engine(tmp_path) as running:
        running.send(Load(str(model), device="cpu"))
        running.wait_for(Ready)
        running.send(ask(sampling=Sampling(temperature=0, max_tokens=900)))
        running.wait_for(Tokens)
        running.socket.close()
        running.process.wait(timeout=10)


def test_a_killed_engine_is_an_end_of_the_stream(model: Path, tmp_path: Path) -> None:
    with engine(tmp_path) as running:
        running.send(Load(str(model), device="cpu"))
        running.wait_for(Ready)
        os.kill(running.process.pid, signal.SIGKILL)
        assert [e for e in running.events() if not isinstance(e, Heartbeat)] == []


def test_a_folder_that_is_not_a_model_is_a_fatal_fault(tmp_path: Path) -> None:
    with engine(tmp_path) as running:
        running.wait_for(Hello)
        running.send(Load(str(tmp_path)))
        fault, _ = running.wait_for(Fault)
        assert fault.fatal and "no config.json" in fault.message and "\n" not in fault.message
        assert running.process.wait(timeout=10) == 1


def test_a_load_ends_when_it_is_stopped(model: Path) -> None:
    from engine.errors import LoadStopped
    from engine.loading import load_session

    events: list[Event] = []
    with pytest.raises(LoadStopped):
        load_session(
            Load(str(model), device="cpu"),
            events.append,
            interrupted=lambda: False,
            take_dropped=lambda: 0,
            stopped=lambda: len(events) > 1,
        )
    progress = [event for event in events if isinstance(event, LoadProgress)]
    assert progress[-1].done_bytes < progress[-1].total_bytes
    assert not [t for t in threading.enumerate() if t.name.startswith("weights-")]


def test_shutdown_while_loading_ends_the_process(model: Path, tmp_path: Path) -> None:
    with engine(tmp_path) as running:
        running.send(Load(str(model), device="cpu"))
        running.send(Shutdown())
        assert not [e for e in running.events() if isinstance(e, Ready | Fault)]
        assert running.process.wait(timeout=10) == 0


def test_nan_logits_are_a_fault_that_names_the_layer(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = write_model(tmp_path / "model")
    for shard in folder.glob("*.safetensors"):
        tensors = load_file(shard)
        if "layers.2.attn_norm.weight" in tensors:
            tensors["layers.2.attn_norm.weight"].fill_(3e38)  # overflows in the step
            save_file(tensors, shard)
    with engine(tmp_path) as running:
        running.send(Load(str(folder), device="cpu"))
        fault, _ = running.wait_for(Fault)
        assert fault.fatal and "not finite" in fault.message
        assert "layer" in fault.message
