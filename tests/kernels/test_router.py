"""The router: goldens, adversarial rows, and the fused search against the sorted one."""

import math

import pytest
import torch
from torch import Tensor

from kernels.formats import Nvfp4Rows, quantise_nvfp4_rows, quantise_nvfp4_weight
from kernels.linear import dense
from kernels.linear import reference as linear
from kernels.router import reference as router


def test_score_golden() -> None:
    x = torch.tensor([-4.0, -1, 0, 1, 4, 12])
    expected = torch.tensor([0.1347217, 0.5596979, 0.8325546, 1.1459763, 2.0045323, 3.4641025])
    torch.testing.assert_close(router.scores(x), expected, rtol=1e-6, atol=1e-7)


def test_score_agrees_with_fp64_and_never_leaves_fp32() -> None:
    x = torch.linspace(-160, 200, 3601)
    wide = torch.nn.functional.softplus(x.double(), threshold=700).sqrt()
    exact = torch.where(x < -30, (x.double() / 2).exp(), wide)
    torch.testing.assert_close(router.scores(x).double(), exact, rtol=2e-6, atol=0)
    extreme = router.scores(torch.tensor([-1e30, -math.inf, math.inf, 1e38, math.nan]))
    assert extreme.isfinite().all() and extreme[:2].tolist() == [0, 0] and extreme[4] == 0


def route(logits: Tensor, bias: Tensor | None = None, k: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    bias = torch.zeros(logits.shape[-1]) if bias is None else bias
    return router.route(logits, bias, top_k=k, route_scale=1.5)


def test_ties_go_to_the_lowest_id_in_rank_order() -> None:
    ids, weights, margin = route(torch.zeros(1, 64))
    assert ids.tolist() == [[0, 1, 2, 3, 4, 5]] and margin.tolist() == [0.0]
    torch.testing.assert_close(weights, torch.full((1, 6), 0.25))


def test_bias_selects_and_does_not_weigh() -> None:
    logits = torch.randn(4, 32, generator=torch.Generator().manual_seed(0))
    bias = torch.zeros(32)
    bias[7] = 100.0
    ids, weights, _ = route(logits, bias)
    assert (ids[:, 0] == 7).all()
    chosen = router.scores(logits).gather(1, ids)
    torch.testing.assert_close(weights, 1.5 * chosen / chosen.sum(-1, keepdim=True))


ADVERSARIAL = {
    "nan": torch.full((1, 16), math.nan),
    "one nan": torch.cat((torch.tensor([[math.nan]]), torch.randn(1, 15)), 1),
    "inf": torch.cat((torch.tensor([[math.inf, math.inf, -math.inf]]), torch.randn(1, 13)), 1),
    "all -inf": torch.full((1, 16), -math.inf),
    "hugely negative": torch.full((1, 16), -3e38),
    "hugely positive": torch.full((1, 16), 3e38),
    "mixed": torch.tensor([[3e38, -3e38, math.nan, math.inf] * 4]),
    "underflow": torch.full((1, 16), -300.0),
}


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_any_row_gets_distinct_ids_and_finite_weights(name: str) -> None:
    logits = ADVERSARIAL[name]
    ids, weights, margin = route(logits)
    assert len(set(ids[0].tolist())) == 6 and 0 <= int(ids.min()) <= int(ids.max()) < 16
    assert weights.isfinite().all() and weights.sum().item() == pytest.approx(1.5)
    assert not margin.isnan().any()
    assert torch.equal(route(logits)[0], ids)


def test_a_nan_logit_ranks_last() -> None:
    logits = torch.full((1, 8), -1e30)
    logits[0, 2] = math.nan
    ids, _, _ = route(logits, k=7)
    assert 2 not in ids[0].tolist()


def rows_for(logits: Tensor) -> tuple[Nvfp4Rows, dense.DenseWeight]:
    """A one-column problem whose gate logits are exactly the given ones."""
    none = torch.zeros(logits.shape[0], dtype=torch.int32)
    one = torch.ones(logits.shape[0], 1)
    identity = torch.eye(logits.shape[1])
    return Nvfp4Rows(logits, one, one, none, none), dense.DenseWeight(identity, torch.tensor(1.0))


@pytest.mark.parametrize("name", [n for n in ADVERSARIAL if n not in ("nan", "one nan", "inf")])
def test_fused_agrees_with_sorted_on_adversarial_rows(name: str) -> None:
    logits = ADVERSARIAL[name].nan_to_num(nan=0.5, posinf=3e38, neginf=-3e38)
    rows, gate = rows_for(logits)
    found = router.fused_route(rows, gate, torch.zeros(16), top_k=6, route_scale=1.5)
    expected = route((rows.values @ gate.values.T) * rows.gsa)
    for mine, other in zip(found, expected, strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("shape", [(12, 2), (256, 6), (384, 6)])
def test_fused_agrees_with_two_kernels(shape: tuple[int, int]) -> None:
    experts, k = shape
    generator = torch.Generator().manual_seed(experts)
    x = torch.randn(40, 128, generator=generator)
    weight = quantise_nvfp4_weight(torch.randn(experts, 128, generator=generator))
    bias = 0.3 * torch.randn(experts, generator=generator)
    rows = quantise_nvfp4_rows(x)
    gate = dense.prepare(weight)
    expected = router.route(dense.nvfp4_linear(rows, gate), bias, top_k=k, route_scale=2.5)
    for prepared in (gate, linear.prepare(weight)):
        found = router.fused_route(rows, prepared, bias, top_k=k, route_scale=2.5)
        for mine, other in zip(found, expected, strict=True):
            assert torch.equal(mine, other)


def test_permuting_experts_permutes_ids() -> None:
    logits = torch.randn(3, 32, generator=torch.Generator().manual_seed(5))
    order = torch.randperm(32, generator=torch.Generator().manual_seed(6))
    ids, weights, _ = route(logits)
    moved, moved_weights, _ = route(logits[:, order])
    assert torch.equal(order[moved], ids)
    torch.testing.assert_close(moved_weights, weights)
