"""Every implementation of the linears and the experts against the plain reference."""

from typing import Any

import pytest
import torch
from torch import Tensor

from kernels import linear, moe
from kernels.dispatch import Impl, OnlyOn, Op, Refusal, anywhere, select
from kernels.formats import (
    Nvfp4Weight,
    dequantise_nvfp4,
    quantise_nvfp4_rows,
    quantise_nvfp4_weight,
)
from kernels.linear.reference import fp8_linear
from kernels.moe.reference import stack as stack_halves

CPU = torch.device("cpu")


def runs_here(op: Op) -> list[Impl]:
    return [impl for impl in op.impls if not impl.supports(CPU)]


@pytest.mark.parametrize("impl", runs_here(linear.OP), ids=lambda impl: impl.name)
@pytest.mark.parametrize(("rows", "n", "k"), [(1, 16, 32), (3, 40, 64), (7, 5, 128)])
def test_linear(impl: Impl, rows: int, n: int, k: int) -> None:
    generator = torch.Generator().manual_seed(k)
    x = torch.randn(rows, k, generator=generator)
    x[-1] = 0  # a zero row among others
    weight = quantise_nvfp4_weight(torch.randn(n, k, generator=generator))
    quantised = quantise_nvfp4_rows(x)
    assert impl.prepare is not None
    found = impl.run(quantised, impl.prepare(weight))
    exact = (quantised.values.double() * quantised.gsa) @ dequantise_nvfp4(weight).double().T
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)
    assert (found[-1] == 0).all()
    doubled = impl.prepare(Nvfp4Weight(weight.packed, weight.scale, weight.scale_2 * 2))
    assert torch.equal(impl.run(quantised, doubled), found * 2)


@pytest.mark.parametrize("impl", runs_here(linear.GROUPED_OP), ids=lambda impl: impl.name)
def test_grouped_linear_keeps_groups_apart(impl: Impl) -> None:
    x = torch.randn(3, 2, 32)
    weight = quantise_nvfp4_weight(torch.randn(2, 8, 32))
    quantised = quantise_nvfp4_rows(x)
    assert impl.prepare is not None
    found = impl.run(quantised, impl.prepare(weight))
    w = dequantise_nvfp4(weight)
    for group in range(2):
        exact = (quantised.values[:, group] * quantised.gsa[:, group]) @ w[group].T
        torch.testing.assert_close(found[:, group], exact, rtol=1e-5, atol=1e-5)


def test_fp8_linear_quantises_its_input_by_blocks() -> None:
    x = torch.randn(2, 256)
    codes = torch.randn(8, 256).to(torch.float8_e4m3fn)
    scale = torch.full((1, 2), 127, dtype=torch.uint8)
    found = fp8_linear(x, codes, scale)
    exact = x @ codes.float().T
    assert 0 < (found - exact).norm() / exact.norm() < 0.05


def expert_by_hand(x: Tensor, w1: Tensor, w3: Tensor, w2: Tensor, mix: float) -> Tensor:
    """One expert in fp64 on a quantised input, its middle quantised too."""
    rows = quantise_nvfp4_rows(x)
    entered = rows.values.double() * rows.gsa.double()
    gate = (entered @ w1.double().T).clamp(max=10)
    up = (entered @ w3.double().T).clamp(-10, 10)
    hidden = torch.nn.functional.silu(gate) * up * mix
    middle = quantise_nvfp4_rows(hidden.float())
    return (middle.values.double() * middle.gsa.double()) @ w2.double().T


@pytest.mark.parametrize("impl", runs_here(moe.OP), ids=lambda impl: impl.name)
@pytest.mark.parametrize("tokens", [1, 2, 9])
def test_experts(impl: Impl, tokens: int) -> None:
    generator = torch.Generator().manual_seed(tokens)
    experts, hidden, inner, k = 6, 64, 32, 3

    def stack(n: int, columns: int) -> Nvfp4Weight:
        return quantise_nvfp4_weight(0.3 * torch.randn(experts, n, columns, generator=generator))

    w1, w3, w2 = stack(inner, hidden), stack(inner, hidden), stack(hidden, inner)
    assert not torch.equal(w1.scale_2, w3.scale_2)  # parts with scales of their own
    x = 3 * torch.randn(tokens, hidden, generator=generator)
    ids = torch.stack([torch.randperm(experts, generator=generator)[:k] for _ in range(tokens)])
    mix = torch.rand(tokens, k, generator=generator)
    assert impl.prepare is not None
    found, middle = impl.run(
        quantise_nvfp4_rows(x), impl.prepare(stack_halves(w1, w3), w2), ids, mix,
        limit=10.0, quantise_mid=quantise_nvfp4_rows,
    )  # fmt: skip
    assert (middle is not None) == (tokens == 1)
    dense: list[Any] = [dequantise_nvfp4(w) for w in (w1, w3, w2)]
    for t in range(tokens):
        expected = sum(
            expert_by_hand(x[t : t + 1], *(w[e] for w in dense), float(mix[t, choice]))
            for choice, e in enumerate(ids[t].tolist())
        )
        torch.testing.assert_close(found[t : t + 1].double(), expected, rtol=2e-3, atol=2e-3)


def test_experts_clamp_the_gate_on_one_side_only() -> None:
    gate = torch.tensor([-50.0, 50.0])
    found = moe.reference.clamped_swiglu(gate, torch.tensor([50.0, -50.0]), 10.0)
    silu = torch.nn.functional.silu(torch.tensor([-50.0, 10.0]))
    assert torch.equal(found, silu * torch.tensor([10.0, -10.0]))


def test_experts_with_scales_of_their_own_agree_in_both_forms() -> None:
    """gsa mode `checkpoint`: rows [T, K, H], one token at a time against all together."""
    impl = select(moe.OP, CPU)
    assert isinstance(impl, Impl) and impl.prepare is not None
    w1, w3 = (quantise_nvfp4_weight(torch.randn(4, 32, 32)) for _ in range(2))
    weights = impl.prepare(stack_halves(w1, w3), quantise_nvfp4_weight(torch.randn(4, 32, 32)))
    x, ids, mix = (
        torch.randn(5, 32),
        torch.randint(0, 2, (5, 2)) + torch.tensor([0, 2]),
        torch.rand(5, 2),
    )
    stored = torch.tensor([0.001, 0.002, 0.0005, 0.004])[ids].unsqueeze(-1)
    rows = quantise_nvfp4_rows(x.unsqueeze(1).expand(-1, 2, -1), stored)
    options = {"limit": 10.0, "quantise_mid": quantise_nvfp4_rows}
    together, _ = impl.run(rows, weights, ids, mix, **options)
    for t in range(5):
        row = type(rows)(*(part[t : t + 1] for part in rows))
        alone, _ = impl.run(row, weights, ids[t : t + 1], mix[t : t + 1], **options)
        torch.testing.assert_close(alone[0], together[t], rtol=2e-3, atol=2e-3)


def test_dispatch_gives_what_was_asked_or_a_reason() -> None:
    op = Op("op", (Impl("gpu", print, OnlyOn("cuda")), Impl("plain", print, anywhere)))
    chosen = select(op, CPU)
    assert isinstance(chosen, Impl) and chosen.name == "plain"
    refusal = select(op, CPU, "gpu")
    assert isinstance(refusal, Refusal) and "needs a cuda device" in refusal.reason
    unknown = select(op, CPU, "fast")
    assert isinstance(unknown, Refusal) and "gpu, plain" in unknown.reason
    nothing = select(Op("op", (Impl("gpu", print, OnlyOn("cuda")),)), CPU)
    assert isinstance(nothing, Refusal)
