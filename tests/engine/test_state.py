"""The state of a sequence: any chunking, rewind and snapshot equal a fresh run, at every
residue."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.checkpoint.layouts import to_nvidia
from engine.checkpoint.synthetic import (
    MemoryTensors,
    random_parameters,
    small_config,
)
from engine.model.build import build_model
from engine.model.config import ModelConfig
from engine.model.transformer import Transformer
from engine.protocol import Sampling, StepOptions
from engine.runner import Runner
from engine.state import LOOKAHEAD, SequenceState
from engine.taps import TapWriter

CPU = torch.device("cpu")
OPTIONS = StepOptions(taps=False)


def make(precision: str, seed: int = 0, **changes: Any) -> Transformer:
    config = ModelConfig.parse(small_config(**changes))
    tensors = random_parameters(config, seed)
    if precision == "nvfp4":
        tensors = to_nvidia(tensors)
    built = build_model(config, MemoryTensors(tensors), precision=precision, device=CPU)  # type: ignore[arg-type]
    return built.model


@pytest.fixture(scope="module")
def plain() -> Transformer:
    """Float weights; KV and index caches through FP8 and FP4 as always."""
    return make("checkpoint")


@pytest.fixture(scope="module")
def quantised() -> Transformer:
    return make("nvfp4")


def ids_of(model: Transformer, count: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, model.config.vocab_size, (count,), generator=generator)


def run(model: Transformer, ids: Tensor, sizes: list[int]) -> tuple[Tensor, SequenceState]:
    """Logits of the last token, and the state, after chunks of the given sizes."""
    state = SequenceState(model.config, 512, CPU, model.dtype)
    logits = None
    for chunk in ids.split(sizes):
        logits = model(chunk, state, OPTIONS)
    assert logits is not None
    return logits[-1], state


def assert_same_state(found: SequenceState, expected: SequenceState, tolerance: float) -> None:
    length = int(expected.position)
    assert int(found.position) == length
    for mine, other in zip(found.layers, expected.layers, strict=True):
        pairs = [(mine.window, other.window)]
        for a, b in ((mine.main, other.main), (mine.index, other.index)):
            if a is not None and b is not None:
                pairs += [(a.kv, b.kv), (a.score, b.score), (a.blocks[:-1], b.blocks[:-1])]
        for x, y in pairs:
            assert (x - y).abs().max() <= tolerance * (1 + y.abs().max())


@pytest.mark.parametrize("length", [3, 4, 5, 6, 7, 8, 127, 128, 129, 130, 131, 255, 256, 257])
def test_prefill_then_decode_equals_prefill(plain: Transformer, length: int) -> None:
    # fp32 sums in another order; the FP8 and FP4 caches can turn one such difference into a step.
    ids = ids_of(plain, length + 1)
    expected, whole = run(plain, ids, [length + 1])
    found, split = run(plain, ids, [length, 1])
    assert (found - expected).abs().max() < 2e-2 * expected.abs().max()
    assert found.argmax() == expected.argmax()
    assert_same_state(split, whole, 5e-2)


@pytest.mark.parametrize(
    "sizes", [[1] * 150, [7, 1, 1, 50, 3, 88], [128, 22], [2] * 75, [149, 1], [5, 145]]
)
def test_any_chunking_gives_the_same_state(plain: Transformer, sizes: list[int]) -> None:
    ids = ids_of(plain, 150)
    expected, whole = run(plain, ids, [150])
    found, split = run(plain, ids, sizes)
    assert (found - expected).abs().max() < 2e-2 * expected.abs().max()
    assert_same_state(split, whole, 5e-2)


def test_quantised_decode_agrees_with_prefill(quantised: Transformer) -> None:
    """W4A4 turns a last-bit difference into a whole rounding step now and then, so the logits are
    compared by their distance in all, and the state loosely."""
    ids = ids_of(quantised, 140)
    expected, _ = run(quantised, ids, [140])
    found, _ = run(quantised, ids, [1] * 140)
    assert ((found - expected).norm() / expected.norm()) < 0.1


def runner_of(model: Transformer) -> Runner:
    return Runner(model, 512, CPU)


def decode(runner: Runner, prompt: list[int], count: int) -> list[int]:
    """Greedy continuation, through the runner."""
    runner.prefill(prompt[len(runner.ids) : -1], OPTIONS, lambda done: True)
    runner.begin(prompt[-1], Sampling(temperature=0), 0)
    return [runner.step(OPTIONS).token_id for _ in range(count)]


@pytest.mark.parametrize("back", range(1, LOOKAHEAD + 1))
@pytest.mark.parametrize("length", [9, 16, 130, 131])
def test_a_short_rewind_equals_a_fresh_run(quantised: Transformer, length: int, back: int) -> None:
    ids = ids_of(quantised, length).tolist()
    runner = runner_of(quantised)
    decode(runner, ids, back)  # leaves length - 1 + back ids in the state
    assert runner.rewind(length - 1, []) == length - 1
    fresh = decode(runner_of(quantised), [*ids[:-1], 9], 12)
    assert decode(runner, [*ids[:-1], 9], 12) == fresh


@pytest.mark.parametrize("length", [20, 128, 133])
def test_a_long_rewind_uses_a_snapshot(quantised: Transformer, length: int) -> None:
    ids = ids_of(quantised, length).tolist()
    runner = runner_of(quantised)
    runner.prefill(ids[:-1], OPTIONS, lambda done: True)
    shot = runner.snapshot()
    runner.begin(ids[-1], Sampling(temperature=0), 0)
    for _ in range(150):
        runner.step(OPTIONS)
    assert runner.rewind(length + 5, [shot]) == length - 1
    fresh = decode(runner_of(quantised), [*ids[:-1], 11], 12)
    assert decode(runner, [*ids[:-1], 11], 12) == fresh


def test_a_long_rewind_without_a_snapshot_starts_over(quantised: Transformer) -> None:
    ids = ids_of(quantised, 60).tolist()
    runner = runner_of(quantised)
    decode(runner, ids, 3)
    assert runner.rewind(20, []) == 0
    assert decode(runner, ids, 12) == decode(runner_of(quantised), ids, 12)


def test_a_new_sequence_does_not_see_the_old_one(quantised: Transformer) -> None:
    """Prompts shorter than a block, after a long conversation."""
    runner = runner_of(quantised)
    decode(runner, ids_of(quantised, 200).tolist(), 5)
    for length in (1, 2, 3, 5):
        ids = ids_of(quantised, length, seed=9).tolist()
        runner.rewind(0, [])
        assert decode(runner, ids, 10) == decode(runner_of(quantised), ids, 10)


def test_taps_do_not_change_the_numbers(quantised: Transformer) -> None:
    ids = ids_of(quantised, 40).tolist()
    runner = runner_of(quantised)
    quiet = decode(runner, ids, 20)
    loud = runner_of(quantised)
    loud.prefill(ids[:-1], OPTIONS, lambda done: True)
    loud.begin(ids[-1], Sampling(temperature=0), 0)
    assert [loud.step(StepOptions(taps=True)).token_id for _ in range(20)] == quiet
    for mine, other in zip(loud.state.tensors(), runner.state.tensors(), strict=True):
        assert torch.equal(mine, other)


def on_meta(value: Any) -> Any:
    """A deep copy with every tensor on the meta device, where reading one from the host raises."""

    memo: dict[int, Any] = {}

    def to_meta(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
        return memo.setdefault(id(tensor), torch.empty_like(tensor, device="meta"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "__deepcopy__", to_meta)
        return copy.deepcopy(value, memo)


@pytest.mark.parametrize("router", ["fused", "two-kernel", "bf16"])
@pytest.mark.parametrize("gsa", ["runtime", "checkpoint"])
@pytest.mark.parametrize("taps", [False, True])
def test_the_step_reads_nothing_on_the_host(
    quantised: Transformer, router: Any, gsa: Any, taps: bool
) -> None:
    step = on_meta(runner_of(quantised).decode)
    step.tap = TapWriter(step.tap.layout, torch.device("meta"))
    step.run(StepOptions(router, gsa, taps))


def test_the_host_read_probe_catches_a_read() -> None:
    with pytest.raises(RuntimeError):
        torch.zeros((), device="meta").item()
    with pytest.raises(RuntimeError):
        bool(torch.zeros((), device="meta"))
