"""The sampler: greedy, cuts, reproducible draws, and the right distribution."""

import math

import pytest
import torch
from torch import Tensor

from kernels.sample.reference import Sampled, SampleSettings, sample, uniform


def settings(
    temperature: float = 1.0, top_p: float = 1.0, min_p: float = 0.0, seed: int = 0,
    forced: int = -1,
) -> SampleSettings:  # fmt: skip
    floats = [torch.tensor(v, dtype=torch.float64) for v in (temperature, top_p, min_p)]
    return SampleSettings(*floats, torch.tensor(seed), torch.tensor(forced))


def draw(logits: Tensor, position: int = 0, **changes: float) -> tuple[int, int]:
    out = Sampled.empty(logits.device)
    sample(logits, settings(**changes), torch.tensor(position), out)  # type: ignore[arg-type]
    chosen, kept, finite, _ = out.result.tolist()
    assert finite and chosen == int(out.token)
    return chosen, kept


def test_temperature_zero_is_the_first_of_the_largest() -> None:
    logits = torch.tensor([0.0, 3, 3, 1])
    assert {draw(logits, p, temperature=0, seed=s) for p in range(20) for s in range(5)} == {(1, 1)}


def test_forced_token_wins_over_everything() -> None:
    assert draw(torch.tensor([9.0, 0, 0]), temperature=0, forced=2) == (2, 1)
    assert draw(torch.tensor([9.0, 0, 0]), forced=0) == (0, 1)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_distribution(temperature: float) -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -20.0])
    count = 4000
    drawn = [draw(logits, p, temperature=temperature, seed=3)[0] for p in range(count)]
    expected = torch.softmax(logits.double() / temperature, 0).tolist()
    for token, p in enumerate(expected):
        sigma = math.sqrt(p * (1 - p) / count)
        assert abs(drawn.count(token) / count - p) < 5 * sigma + 1e-9


def test_top_p_keeps_the_token_that_crosses_it() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert {draw(logits, p, top_p=0.6)[0] for p in range(400)} == {0, 1}
    assert draw(logits, top_p=0.6)[1] == 2
    assert draw(logits, top_p=0.5)[1] == 1
    assert draw(logits, top_p=1.0)[1] == 4


def test_min_p_is_relative_to_the_best() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert draw(logits, min_p=0.59)[1] == 2
    assert {draw(logits, p, min_p=0.59)[0] for p in range(400)} == {0, 1}


@pytest.mark.parametrize("cut", [{"top_p": 1e-30}, {"min_p": 1.0}, {"top_p": 0.0}])
def test_the_best_token_always_survives(cut: dict[str, float]) -> None:
    logits = torch.randn(50, generator=torch.Generator().manual_seed(1))
    assert {draw(logits, p, **cut)[0] for p in range(50)} == {int(logits.argmax())}


def test_every_id_stays_reachable_without_cuts() -> None:
    logits = torch.zeros(8)
    assert {draw(logits, p)[0] for p in range(300)} == set(range(8))


def test_extreme_temperatures_stay_finite() -> None:
    logits = torch.tensor([1e4, -1e4, 0.0])
    assert draw(logits, temperature=1e-6) == (0, 3)
    assert {draw(logits, p, temperature=1e9)[0] for p in range(200)} == {0, 1, 2}


def test_a_draw_depends_on_seed_and_position_only() -> None:
    logits = torch.zeros(1000)
    run = [draw(logits, p, seed=5)[0] for p in range(30)]
    assert run == [draw(logits, p, seed=5)[0] for p in range(30)]
    assert run != [draw(logits, p, seed=6)[0] for p in range(30)]
    assert len(set(run)) > 20


def test_uniform_is_uniform_across_seeds_and_counters() -> None:
    counters = torch.arange(20000)
    by_counter = uniform(torch.tensor(1), counters)
    by_seed = uniform(counters, torch.tensor(1))
    for values in (by_counter, by_seed):
        assert 0 <= float(values.min()) and float(values.max()) < 1
        histogram = torch.histc(values.float(), 20, 0, 1)
        assert ((histogram - 1000).abs() < 5 * math.sqrt(1000)).all()
        lag = torch.corrcoef(torch.stack((values[1:], values[:-1])))[0, 1]
        assert abs(float(lag)) < 0.03
