"""Codecs over all codes, rounding at ties, and the goldens of the published formats."""

import math

import pytest
import torch
from torch import Tensor

from kernels import formats
from kernels.formats import Nvfp4Weight

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]

# The published NVFP4 example: 32 values, two blocks (architecture.md 9).
GOLDEN_X = """
.0001 .0149 -.0137 -.0445 -.0227 -.0496 .003 .067 -.0246 -.031 .0245 .0178 .0053 -.0465 -.0015 .0348
-.0054 -.0018 -.0076 -.0052 -.0074 -.0009 -.0051 .0011 .0006 -.0007 -.0101 -.0022 -.0002 .0005
-.0061 -.0019
"""


def nearest(x: float, grid: list[float]) -> float:
    """Nearest grid value by exhaustive search; a tie goes to the even index (even mantissa)."""
    best = min(range(len(grid)), key=lambda i: (abs(grid[i] - abs(x)), i % 2))
    return math.copysign(grid[best], x)


def test_e2m1_decodes_all_codes() -> None:
    codes = torch.arange(16, dtype=torch.uint8)
    assert formats.decode_e2m1(codes).tolist() == E2M1 + [-v for v in E2M1]
    assert torch.signbit(formats.decode_e2m1(codes[8:9])).item()


def test_e2m1_codes_survive_a_round_trip() -> None:
    codes = torch.arange(16, dtype=torch.uint8)
    assert formats.encode_e2m1(formats.decode_e2m1(codes)).tolist() == codes.tolist()


def test_e2m1_rounds_ties_to_even_and_saturates() -> None:
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.0, 1e30, math.inf])
    assert formats.round_e2m1(ties).tolist() == [0, 1, 1, 2, 2, 4, 4, 6, 6, 6]
    assert formats.round_e2m1(-ties).tolist() == [-0.0, -1, -1, -2, -2, -4, -4, -6, -6, -6]
    assert formats.round_e2m1(torch.tensor([math.nan])).isnan().all()


def test_e2m1_rounds_to_nearest_everywhere() -> None:
    x = torch.linspace(-7, 7, 5601)
    expected = [nearest(max(-6.0, min(6.0, v)), E2M1) for v in x.tolist()]
    assert formats.round_e2m1(x).tolist() == expected
    codes = formats.encode_e2m1(x)
    assert formats.decode_e2m1(codes).tolist() == expected


def test_nibbles_put_the_even_element_low() -> None:
    codes = torch.arange(16, dtype=torch.uint8)
    packed = formats.pack_nibbles(codes)
    assert packed.tolist() == [(2 * i + 1) << 4 | 2 * i for i in range(8)]
    assert formats.unpack_nibbles(packed).tolist() == codes.tolist()
    assert formats.unpack_nibbles(packed.view(torch.int8)).tolist() == codes.tolist()


def test_e4m3_decodes_all_codes() -> None:
    def decode(code: int) -> float:
        sign, exponent, mantissa = -1.0 if code >> 7 else 1.0, code >> 3 & 15, code & 7
        if code & 0x7F == 0x7F:
            return math.nan
        if exponent == 0:
            return sign * mantissa * 2.0**-9
        return sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7)

    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    expected = torch.tensor([decode(c) for c in range(256)])
    assert torch.equal(
        codes.view(torch.float8_e4m3fn).float().nan_to_num(1e9), expected.nan_to_num(1e9)
    )


def test_e4m3_saturates_instead_of_overflowing() -> None:
    x = torch.tensor([447.0, 448.0, 449.0, 464.0, 465.0, 1e9, math.inf, -math.inf])
    assert formats.round_e4m3(x).tolist() == [448, 448, 448, 448, 448, 448, 448, -448]
    assert formats.round_e4m3(torch.tensor([math.nan])).isnan().all()


def test_e8m0_decodes_all_codes() -> None:
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    values = formats.decode_e8m0(codes)
    assert values[:255].double().tolist() == [2.0 ** (c - 127) for c in range(255)]
    assert values[255].isnan()
    assert formats.encode_e8m0(values[1:255]).tolist() == list(range(1, 255))


def test_nvfp4_weight_golden() -> None:
    x = torch.tensor([float(v) for v in GOLDEN_X.split()]).view(1, 32)
    weight = formats.quantise_nvfp4_weight(x)
    assert weight.scale_2.item() == pytest.approx(2.4925595e-5, rel=1e-7)
    assert weight.scale.view(torch.uint8).tolist() == [[0x7E, 0x68]]
    assert bytes(weight.packed.flatten().tolist()).hex(" ") == (
        "30 ea ec 71 dc 34 e1 58 ad de 9e 1d 91 bf 18 ae"
    )


def test_nvfp4_weight_zero_blocks_and_matrices() -> None:
    weight = torch.zeros(2, 32)
    zero = formats.quantise_nvfp4_weight(weight)
    assert zero.scale_2.item() == 1.0 and (zero.scale.view(torch.uint8) == 0x38).all()
    weight[0, 0], weight[1, 16] = 1000.0, 1e-6  # one block far below the others
    tiny = formats.quantise_nvfp4_weight(weight)
    assert tiny.scale.float()[1, 1].item() == 2.0**-9
    assert torch.isfinite(formats.dequantise_nvfp4(tiny)).all()


def test_nvfp4_weight_doubling_the_global_scale_doubles_the_weight() -> None:
    weight = formats.quantise_nvfp4_weight(torch.randn(8, 64))
    doubled = Nvfp4Weight(weight.packed, weight.scale, weight.scale_2 * 2)
    assert torch.equal(formats.dequantise_nvfp4(doubled), formats.dequantise_nvfp4(weight) * 2)


def test_nvfp4_weight_is_unbiased_and_close() -> None:
    weight = torch.randn(256, 256, generator=torch.Generator().manual_seed(1))
    error = formats.dequantise_nvfp4(formats.quantise_nvfp4_weight(weight)) - weight
    assert 0.08 < (error.norm() / weight.norm()).item() < 0.11  # 9.6 % for a Gaussian
    assert abs((error * weight.sign()).mean().item()) < 0.01


def rows(x: Tensor, gsa: Tensor | None = None) -> formats.Nvfp4Rows:
    return formats.quantise_nvfp4_rows(x, gsa)


def test_nvfp4_rows_agree_with_the_weight_quantiser_on_one_row() -> None:
    x = torch.randn(1, 128, generator=torch.Generator().manual_seed(2))
    quantised = rows(x)
    weight = formats.quantise_nvfp4_weight(x)
    assert torch.equal(quantised.gsa.flatten(), weight.scale_2.flatten())
    assert torch.equal(quantised.values, formats.nvfp4_values(weight.packed, weight.scale))


def test_nvfp4_rows_do_not_depend_on_their_neighbours() -> None:
    x = torch.randn(5, 64)
    x[2] *= 1e4
    together = rows(x)
    for i in range(5):
        alone = rows(x[i : i + 1])
        assert torch.equal(alone.values[0], together.values[i])
        assert torch.equal(alone.gsa[0], together.gsa[i])


def test_nvfp4_rows_zero_row_is_exactly_zero() -> None:
    quantised = rows(torch.zeros(2, 32))
    assert (quantised.values == 0).all() and (quantised.gsa == 0).all()
    assert quantised.saturated.tolist() == [0, 0] and quantised.flushed.tolist() == [0, 0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nvfp4_rows_do_not_hide_non_finite_input(bad: float) -> None:
    x = torch.ones(1, 32)
    x[0, 3] = bad
    assert rows(x).values.isnan().any()


def test_nvfp4_rows_values_are_exact_in_bf16() -> None:
    values = rows(torch.randn(64, 256) * torch.logspace(-3, 3, 64)[:, None]).values
    assert torch.equal(values.to(torch.bfloat16).float(), values)


def test_nvfp4_rows_with_a_stored_scale_that_is_too_small_saturate() -> None:
    x = torch.randn(1, 64, generator=torch.Generator().manual_seed(3))
    live = rows(x).live
    good, bad = rows(x, live), rows(x, live / 64)
    assert good.saturated.item() == 0
    assert bad.saturated.item() == 4
    assert (bad.values * bad.gsa).abs().max() <= 448 * 6 * bad.gsa.item()


def test_nvfp4_rows_count_flushed_blocks() -> None:
    x = torch.full((1, 32), 1e-6)
    x[0, :16] = 1.0
    quantised = rows(x)
    assert quantised.flushed.item() == 1
    assert (quantised.values[0, 16:] == 0).all()


def test_mxfp4_golden() -> None:
    packed = torch.tensor([0xA0, 0xA8, 0xEC, 0x4A, 0xAD, 0xAF, 0x42, 0xAA] + [0] * 8)
    scale = torch.tensor([[0x78]], dtype=torch.uint8)
    values = formats.dequantise_mxfp4(packed.to(torch.uint8)[None], scale)[0, :16]
    assert values.tolist() == [
        0, -.0078125, 0, -.0078125, -.015625, -.03125, -.0078125, .015625, -.0234375, -.0078125,
        -.046875, -.0078125, .0078125, .015625, -.0078125, -.0078125,
    ]  # fmt: skip


def test_mxfp4_codes_survive_a_round_trip() -> None:
    packed, scale = formats.quantise_mxfp4(torch.randn(4, 64))
    again = formats.quantise_mxfp4(formats.dequantise_mxfp4(packed, scale))
    assert torch.equal(formats.dequantise_mxfp4(*again), formats.dequantise_mxfp4(packed, scale))


def test_fp8_block_golden() -> None:
    raw = torch.tensor([[0xD8, 0x71, 0xF2, 0x79, 0x70, 0x69, 0xF0, 0xE5]], dtype=torch.uint8)
    scale = torch.tensor([[0x73]], dtype=torch.uint8)
    values = formats.dequantise_fp8_block(raw.view(torch.float8_e4m3fn), scale)
    assert values.tolist() == [
        [-.00390625, .03515625, -.0390625, .0703125, .03125, .017578125, -.03125, -.0126953125]
    ]  # fmt: skip


def test_fp8_block_uses_each_tile_s_own_scale() -> None:
    weight = torch.randn(200, 300)
    weight[128:, 128:256] *= 1000
    codes, scale = formats.quantise_fp8_block(weight)
    assert scale.shape == (2, 3)
    error = (formats.dequantise_fp8_block(codes, scale) - weight).abs()
    float_scale = formats.decode_e8m0(scale)
    tile_scale = float_scale.repeat_interleave(128, 0)[:200].repeat_interleave(128, 1)[:, :300]
    # half a mantissa step of a normal number, or half a subnormal step
    assert (error <= torch.maximum(weight.abs() * 2**-4, tile_scale * 2**-10)).all()
    assert torch.equal(
        formats.dequantise_fp8_block(codes, float_scale), formats.dequantise_fp8_block(codes, scale)
    )


@pytest.mark.parametrize(
    ("amax", "exponent"), [(1e-4, -22), (1.0, -8), (3.5, -7), (448.0, 0), (449.0, 1)]
)
def test_fp8_scale_golden(amax: float, exponent: int) -> None:
    assert formats._fp8_scale(torch.tensor([amax])).item() == 2.0**exponent


@pytest.mark.parametrize(("amax", "exponent"), [(1.0, -2), (3.0, -1), (6.0, 0), (6.01, 1)])
def test_fp4_scale_golden(amax: float, exponent: int) -> None:
    assert formats._fp4_scale(torch.tensor([[amax, -amax / 2]])).item() == 2.0**exponent


def test_fp8_and_fp4_round_trips_are_idempotent() -> None:
    x = torch.randn(3, 128)
    once = formats.fp8_round_trip(x, 64)
    assert torch.equal(formats.fp8_round_trip(once, 64), once) and not torch.equal(once, x)
    once = formats.fp4_round_trip(x)
    assert torch.equal(formats.fp4_round_trip(once), once) and not torch.equal(once, x)
