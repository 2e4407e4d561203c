"""One model in every layout a publisher uses: the same numbers give the same logits."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.checkpoint.convert import exact_nvfp4, mxfp4_as_nvfp4, to_nvfp4
from engine.checkpoint.files import CheckpointFiles
from engine.checkpoint.layouts import LAYOUTS, layout_config, to_layout
from engine.checkpoint.synthetic import (
    MemoryTensors,
    random_parameters,
    small_config,
    write_checkpoint,
)
from engine.checkpoint.weights import WeightReader
from engine.errors import CheckpointError
from engine.model.build import Built, build_model
from engine.model.config import ModelConfig
from engine.protocol import StepOptions
from engine.runner import logits_of
from kernels.formats import (
    dequantise_mxfp4,
    dequantise_nvfp4,
    quantise_mxfp4,
    quantise_nvfp4_weight,
)

CPU = torch.device("cpu")
RAW = small_config()
CONFIG = ModelConfig.parse(RAW)
IDS = torch.arange(2, 34)
EXPERT = "layers.2.ffn.experts.3"


def build(tensors: dict[str, Tensor], precision: Any = "nvfp4", config: Any = CONFIG) -> Built:
    return build_model(config, MemoryTensors(tensors), precision=precision, device=CPU)


def logits(built: Built, gsa: Any = "runtime") -> Tensor:
    return logits_of(built.model, IDS, StepOptions("fused", gsa, False), 64)


@pytest.fixture(scope="module")
def exact() -> dict[str, Tensor]:
    return random_parameters(CONFIG, 0, exact=True)


@pytest.fixture(scope="module")
def expected(exact: dict[str, Tensor]) -> Tensor:
    return logits(build(to_layout("bf16", CONFIG, exact)))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_of_one_model_gives_the_same_logits(
    exact: dict[str, Tensor], expected: Tensor, layout: str, tmp_path: Path
) -> None:
    """From disk, bit for bit: numbers that every format holds."""
    raw = layout_config(layout, RAW)
    write_checkpoint(tmp_path, raw, to_layout(layout, CONFIG, exact), shards=2)
    config = ModelConfig.load(tmp_path)
    built = build_model(config, CheckpointFiles(tmp_path), precision="nvfp4", device=CPU)
    assert torch.equal(logits(built), expected)


FORMATS = {
    "nvidia": ("nvfp4", "fp8", "fp8"),
    "native": ("mxfp4", "fp8", "fp8"),
    "compressed-tensors": ("nvfp4", "fp8", "float"),
    "native-nvfp4": ("nvfp4", "fp8", "fp8"),
    "bf16": ("float", "float", "float"),
    "base": ("fp8", "fp8", "fp8"),
    "demo": ("nvfp4", "fp8", "fp8"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_checkpoint_precision_keeps_what_is_stored(exact: dict[str, Tensor], layout: str) -> None:
    built = build(to_layout(layout, CONFIG, exact), "checkpoint")
    kinds = ("experts", "attention", "shared expert")
    assert tuple(built.formats[kind] for kind in kinds) == FORMATS[layout]
    assert logits(built).isfinite().all()


@pytest.mark.parametrize(("one", "other"), [("nvidia", "native-nvfp4"), ("native", "base")])
def test_layouts_of_like_precision_agree_as_stored(
    exact: dict[str, Tensor], one: str, other: str
) -> None:
    first, second = (build(to_layout(x, CONFIG, exact), "checkpoint") for x in (one, other))
    assert torch.equal(logits(first), logits(second))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_any_numbers_stay_near(layout: str) -> None:
    """Scales that are no powers of two, and w1 and w3 with global scales of their own."""
    plain = random_parameters(CONFIG, 3)
    reader = WeightReader(MemoryTensors(to_layout(layout, CONFIG, plain)), CPU)
    limits = {"nvfp4": 0.11, "mxfp4": 0.15, "fp8": 0.03, "float": 0.002}
    for prefix in ("layers.1.attn.wq_b", f"{EXPERT}.w1", f"{EXPERT}.w3", f"{EXPERT}.w2"):
        value = plain[f"{prefix}.weight"]
        stored = reader.linear(prefix, (value.shape[0], value.shape[1]), "any")
        error = (stored.dequantise() - value).norm() / value.norm()
        assert 0 < error < limits[stored.format]
    reader.settle()
    if layout == "compressed-tensors":
        scales = reader.source.read
        one, other = (scales(f"{EXPERT}.{part}.weight_global_scale", CPU) for part in ("w1", "w3"))
        assert one != other


def test_reciprocal_globals_mean_the_same_as_multipliers(exact: dict[str, Tensor]) -> None:
    """gsa mode `checkpoint` too, which reads the stored activation scales."""
    names = {"experts": "compressed", "": "fp8"}
    LAYOUTS["like nvidia"] = names
    try:
        stored = to_layout("like nvidia", CONFIG, exact)
    finally:
        del LAYOUTS["like nvidia"]
    nvidia = to_layout("nvidia", CONFIG, exact)
    for name in nvidia:
        if name.endswith(".input_scale"):
            nvidia[name] = 1.0 / stored[name.replace("input_scale", "input_global_scale")]
    for gsa in ("runtime", "checkpoint"):
        assert torch.equal(logits(build(stored), gsa), logits(build(nvidia), gsa))


def test_doubling_a_stored_scale_doubles_the_contribution(exact: dict[str, Tensor]) -> None:
    """Each spelling of a global scale, and each in its own direction."""
    for layout, name, factor in (
        ("nvidia", "weight_scale_2", 2.0),
        ("native-nvfp4", "weight_scale_2", 2.0),
        ("compressed-tensors", "weight_global_scale", 0.5),
    ):
        stored = to_layout(layout, CONFIG, exact)
        before = build(stored).model.layers[2].moe.experts.weights
        stored[f"{EXPERT}.w3.{name}"] = stored[f"{EXPERT}.w3.{name}"] * factor
        after = build(stored).model.layers[2].moe.experts.weights
        ratio = after.w13_scale_2 / before.w13_scale_2
        expected = torch.ones_like(ratio)
        expected[3, 1] = 2.0
        assert torch.equal(ratio, expected)


def test_fp8_experts_off_the_tile_are_decoded_half_by_half() -> None:
    """An inner size of 192: the tiles of w3 do not follow those of w1 in one stack."""
    config = ModelConfig.parse(small_config(moe_intermediate_size=192, num_hidden_layers=4))
    plain = random_parameters(config, 5, exact=True)
    for part, factor in (("w1", 1.0), ("w3", 16.0)):  # tiles of different scales
        plain[f"{EXPERT}.{part}.weight"] *= factor
    built = build(to_layout("base", config, plain), "checkpoint", config)
    w13, w2 = built.model.layers[2].moe.experts.weights.expand(3)
    both = torch.cat([plain[f"{EXPERT}.w1.weight"], plain[f"{EXPERT}.w3.weight"]])
    assert torch.equal(w13, both) and torch.equal(w2, plain[f"{EXPERT}.w2.weight"])


def test_formats_may_differ_within_a_layer_when_all_become_nvfp4(exact: dict[str, Tensor]) -> None:
    stored = to_layout("nvidia", CONFIG, exact)
    for name in [name for name in stored if name.startswith(f"{EXPERT}.w2.")]:
        del stored[name]
    stored[f"{EXPERT}.w2.weight"] = exact[f"{EXPERT}.w2.weight"].bfloat16()
    whole = logits(build(to_layout("nvidia", CONFIG, exact)))
    for part in ("w1", "w3", "w2"):  # an input scale in all experts or in none
        for name in [n for n in stored if n.endswith(f".{part}.input_scale")]:
            del stored[name]
    assert torch.equal(logits(build(stored)), whole)
    with pytest.raises(CheckpointError, match="stored as float"):
        build(stored, "checkpoint")


# ---- conversions ---------------------------------------------------------------------------------


def test_mxfp4_becomes_nvfp4_without_loss() -> None:
    packed, scale = quantise_mxfp4(torch.randn(48, 128) * torch.logspace(-1, 1, 48)[:, None])
    made = mxfp4_as_nvfp4(packed, scale)
    assert torch.equal(made.packed, packed)
    assert torch.equal(dequantise_nvfp4(made), dequantise_mxfp4(packed, scale))


def test_blocks_far_below_the_largest_are_rounded_not_lost() -> None:
    packed = torch.full((1, 32), 0x77, dtype=torch.uint8)  # codes 7: 6.0
    scale = torch.tensor([[127, 127 - 18]], dtype=torch.uint8)
    values = dequantise_nvfp4(mxfp4_as_nvfp4(packed, scale))
    assert values[0, 0] == 6.0 and values[0, 40] == 6.0 * 2.0**-18  # 3 at the lowest scale


def test_empty_blocks_do_not_move_the_global_scale() -> None:
    packed, scale = quantise_mxfp4(torch.randn(4, 64))
    packed[0, :16] = 0x80  # zero codes, some of them negative
    scale[0, 0] = 254
    assert torch.equal(
        dequantise_nvfp4(mxfp4_as_nvfp4(packed, scale))[:, 32:],
        dequantise_mxfp4(packed, scale)[:, 32:],
    )


def test_wide_tensors_that_were_mxfp4_keep_every_number() -> None:
    weight = dequantise_mxfp4(*quantise_mxfp4(torch.randn(64, 64))).bfloat16()
    assert torch.equal(dequantise_nvfp4(to_nvfp4(weight)), weight.float())
    assert exact_nvfp4(torch.randn(64, 64)) is None
    weight[50, :16] = 1.0
    weight[50, 3] = 1.25  # no E2M1 number; beyond the rows that are looked at first
    assert exact_nvfp4(weight.float()) is None
    zero = to_nvfp4(torch.zeros(4, 32))
    assert float(zero.scale_2) == 1.0 and not dequantise_nvfp4(zero).any()


def test_other_wide_tensors_are_rounded_to_the_nearest() -> None:
    weight = torch.randn(32, 64)
    found, wanted = to_nvfp4(weight), quantise_nvfp4_weight(weight)
    assert torch.equal(dequantise_nvfp4(found), dequantise_nvfp4(wanted))
