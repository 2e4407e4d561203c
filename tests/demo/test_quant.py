"""Fake quantisers of the trainer: bit-equal to the engine's, with straight-through gradients."""

import pytest
import torch

from kernels import formats
from tools.demo import quant


def awkward_rows() -> torch.Tensor:
    """Random rows, and rows of zeros, zero blocks, tiny blocks and exact ties."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(40, 256, generator=generator)
    x *= torch.exp(3 * torch.randn(40, 1, generator=generator))
    x[3] = 0
    x[4, :16] = 0
    x[5, 16:32] *= 1e-7
    x[6] = torch.randint(-24, 24, (256,), generator=generator) * 0.25
    return x


def test_rows_are_bit_equal_to_the_engines():
    x = awkward_rows()
    values, gsa = quant.nvfp4_rows(x)
    expected = formats.quantise_nvfp4_rows(x)
    assert torch.equal(values, expected.values)
    assert torch.equal(gsa, expected.gsa)


@pytest.mark.parametrize("shared", [False, True])
def test_weights_are_bit_equal_to_the_engines(shared: bool):
    weight = awkward_rows().view(2, 20, 256)
    amax = weight.abs().amax((1, 2)) * 1.5 if shared else None
    values, scale_2 = quant.nvfp4_weight(weight, amax)
    stored = formats.quantise_nvfp4_weight(weight, amax)
    assert torch.equal(values, formats.nvfp4_values(stored.packed, stored.scale))
    assert torch.equal(scale_2, stored.scale_2)


def test_fp8_blocks_and_round_trips_are_bit_equal_to_the_engines():
    weight = awkward_rows()
    codes, scale = formats.quantise_fp8_block(weight)
    assert torch.equal(quant.fp8_block(weight), formats.dequantise_fp8_block(codes, scale))
    assert torch.equal(quant.fp8_round_trip(weight, 64), formats.fp8_round_trip(weight, 64))
    assert torch.equal(quant.fp4_round_trip(weight), formats.fp4_round_trip(weight))


def test_gradients_are_those_of_the_dequantised_product():
    x = awkward_rows()[8:].requires_grad_()
    weight = torch.randn(24, 256, generator=torch.Generator().manual_seed(1)).requires_grad_()
    y = quant.linear(quant.enter(x, True), weight, stored_as_fp8=False)
    pull = torch.randn(y.shape, generator=torch.Generator().manual_seed(2))
    y.backward(pull)
    rows = formats.quantise_nvfp4_rows(x.detach())
    wide = formats.dequantise_nvfp4(formats.quantise_nvfp4_weight(weight.detach()))
    torch.testing.assert_close(x.grad, pull @ wide)
    expected = pull.T @ (rows.values * rows.gsa)
    torch.testing.assert_close(weight.grad, expected, atol=1e-3, rtol=1e-4)
