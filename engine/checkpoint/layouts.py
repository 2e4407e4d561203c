"""Parameters stored as each publisher stores them (architecture.md 8.1 to 8.3).

One table says which style each class of projection has; everything not named there is bf16, or fp32
where its name does not end in `.weight`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from engine.checkpoint.convert import exact_nvfp4
from engine.checkpoint.parameters import Parameter, parameters
from engine.checkpoint.synthetic import Tensors, random_parameters, small_config
from engine.model.config import ModelConfig
from kernels.formats import (
    E4M3_MAX,
    FP8_TILE,
    GSA_DIVISOR,
    Nvfp4Weight,
    dequantise_fp8_block,
    quantise_fp8_block,
    quantise_mxfp4,
    quantise_nvfp4_weight,
)

# The activation scale of an input whose largest magnitude is 8.
INPUT_SCALE = 8.0 / GSA_DIVISOR

# Layout -> class of projection -> style. "demo" is what our demo model ships as.
LAYOUTS: dict[str, dict[str, str]] = {
    "nvidia": {"experts": "modelopt", "": "fp8"},
    "native": {"experts": "mxfp4", "": "fp8"},
    "compressed-tensors": {"experts": "compressed", "attention": "fp8-float", "": "bf16"},
    "native-nvfp4": {"experts": "old-names", "": "fp8"},
    "bf16": {"": "bf16"},
    "base": {"": "fp8-float-native"},
    "demo": {"experts": "modelopt", "": "fp8"},
}
_PROJECTIONS = ("experts", "attention", "indexer", "shared expert")

_CONFIGS: dict[str, dict[str, Any]] = {
    "nvidia": {"quant_method": "fp8", "moe_quant_algo": "NVFP4", "group_size": 16},
    "native": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
    "compressed-tensors": {"quant_method": "compressed-tensors", "format": "mixed-precision"},
}


def layout_config(layout: str, raw: dict[str, Any]) -> dict[str, Any]:
    """config.json with the words this publisher puts there; they decide nothing."""
    words = _CONFIGS.get(layout)
    return raw if words is None else {**raw, "quantization_config": words}


def to_layout(layout: str, config: ModelConfig, values: Tensors) -> Tensors:
    """All parameters of a model as `layout` stores them."""
    by_name = {parameter.name: parameter for parameter in parameters(config)}
    return _store(LAYOUTS[layout], {name: (by_name[name], t) for name, t in values.items()})


def to_nvidia(values: Tensors) -> Tensors:
    """As NVIDIA stores them, for parameters whose configuration is not at hand."""
    return _store(
        LAYOUTS["nvidia"],
        {
            name: (Parameter(name, tuple(t.shape), _class_of(name), "linear"), t)
            for name, t in values.items()
        },
    )


def draft_stage(config: ModelConfig, seed: int = 1) -> Tensors:
    """The tensors of one MTP stage as NVIDIA and DeepSeek ship it: experts MXFP4, the rest FP8."""
    sizes = {"num_hidden_layers": 1, "compress_ratios": [0], "num_hash_layers": 0}
    one = ModelConfig.parse(
        small_config(
            **sizes,
            hidden_size=config.hidden_size,
            n_routed_experts=config.num_experts,
            moe_intermediate_size=config.expert_size,
        )
    )
    stored = to_layout("native", one, random_parameters(one, seed))
    stage = {
        name.replace("layers.0.", "mtp.0."): value
        for name, value in stored.items()
        if name.startswith("layers.0.")
    }
    hidden = config.hidden_size
    for name in ("e_proj", "h_proj"):
        stage |= _fp8(f"mtp.0.{name}", torch.eye(hidden), None)
    return stage | {f"mtp.0.{name}.weight": torch.ones(hidden) for name in ("enorm", "hnorm")}


def _class_of(name: str) -> str:
    if not name.endswith(".weight"):
        return ""
    if ".ffn.experts." in name:
        return "experts"
    if ".shared_experts." in name:
        return "shared expert"
    if name.endswith(".indexer.wq_b.weight"):
        return "indexer"
    part = name.removesuffix(".weight").rpartition(".")[2]
    is_attention = ".attn.w" in name and part in ("wq_a", "wq_b", "wkv", "wo_a", "wo_b")
    return "attention" if is_attention else ""


def _store(styles: dict[str, str], values: dict[str, tuple[Parameter, Tensor]]) -> Tensors:
    stored: Tensors = {}
    for name, (parameter, value) in values.items():
        if parameter.kind in _PROJECTIONS and parameter.role == "linear":
            style = styles.get(parameter.kind, styles[""])
            partner = _partner(parameter)
            other = values[partner][1] if partner in values else None
            stored |= _STYLES[style](parameter.prefix, value, other)
        elif name.endswith(".weight"):
            stored[name] = value.to(torch.bfloat16)
        else:
            stored[name] = value
    return stored


def _partner(parameter: Parameter) -> str:
    """The other half of a fused w1 and w3, or an empty name."""
    head, _, part = parameter.prefix.rpartition(".")
    other = {"w1": "w3", "w3": "w1"}.get(part)
    return f"{head}.{other}.weight" if other else ""


# ---- styles: (prefix, value [N, K], the value w1 or w3 shares its scale with) -> tensors ----


def _nvfp4(value: Tensor, partner: Tensor | None) -> Nvfp4Weight:
    """NVIDIA's cast where it is exact, else the nearest; one global scale for w1 and w3."""
    together = value if partner is None else torch.cat((value, partner))
    cast = exact_nvfp4(together)
    if cast is None:
        return quantise_nvfp4_weight(value, together.abs().max())
    rows = value.shape[0]
    return Nvfp4Weight(cast.packed[:rows].clone(), cast.scale[:rows].clone(), cast.scale_2)


def _modelopt(prefix: str, value: Tensor, partner: Tensor | None) -> Tensors:
    weight = _nvfp4(value, partner)
    return {
        f"{prefix}.weight": weight.packed,
        f"{prefix}.weight_scale": weight.scale,
        f"{prefix}.weight_scale_2": weight.scale_2,
        f"{prefix}.input_scale": torch.tensor(INPUT_SCALE),
    }


def _old_names(prefix: str, value: Tensor, partner: Tensor | None) -> Tensors:
    weight = _nvfp4(value, partner)
    return {
        f"{prefix}.weight": weight.packed,
        f"{prefix}.scale": weight.scale,
        f"{prefix}.weight_scale_2": weight.scale_2.view(1),
        f"{prefix}.input_scale": torch.ones(1),
    }


def _compressed(prefix: str, value: Tensor, partner: Tensor | None) -> Tensors:
    """compressed-tensors: reciprocal globals, and w1 and w3 calibrated apart."""
    weight = _nvfp4(value, None)
    return {
        f"{prefix}.weight_packed": weight.packed,
        f"{prefix}.weight_scale": weight.scale,
        f"{prefix}.weight_global_scale": 1.0 / weight.scale_2,
        f"{prefix}.input_global_scale": torch.tensor(1.0 / INPUT_SCALE),
    }


def _mxfp4(prefix: str, value: Tensor, partner: Tensor | None) -> Tensors:
    packed, scale = quantise_mxfp4(value)
    scale = scale.view(torch.float8_e8m0fnu)
    return {f"{prefix}.weight": packed.view(torch.int8), f"{prefix}.scale": scale}


def _fp8(prefix: str, value: Tensor, partner: Tensor | None) -> Tensors:
    codes, scale = quantise_fp8_block(value)
    return {f"{prefix}.weight": codes, f"{prefix}.scale": scale.view(torch.float8_e8m0fnu)}


def _fp8_float(name: str) -> Callable[[str, Tensor, Tensor | None], Tensors]:
    """FP8 with fp32 tile scales: amax / 448, unless a power of two keeps every number."""

    def store(prefix: str, value: Tensor, partner: Tensor | None) -> Tensors:
        codes, raw = quantise_fp8_block(value)
        scale = torch.ldexp(torch.ones(raw.shape), raw.to(torch.int32) - 127)
        if not torch.equal(dequantise_fp8_block(codes, scale), value):
            rows, columns = value.shape
            pad = (0, -columns % FP8_TILE, 0, -rows % FP8_TILE)
            tiles = torch.nn.functional.pad(value, pad)
            tiles = tiles.unflatten(0, (-1, FP8_TILE)).unflatten(2, (-1, FP8_TILE))
            scale = tiles.abs().amax((1, 3)).clamp(min=1e-4) / E4M3_MAX
            tiles = (tiles / scale[:, None, :, None]).clamp(-E4M3_MAX, E4M3_MAX)
            codes = tiles.flatten(2, 3).flatten(0, 1)[:rows, :columns]
            codes = codes.to(torch.float8_e4m3fn).contiguous()
        return {f"{prefix}.weight": codes, f"{prefix}.{name}": scale}

    return store


def _bf16(prefix: str, value: Tensor, partner: Tensor | None) -> Tensors:
    return {f"{prefix}.weight": value.to(torch.bfloat16)}


_STYLES: dict[str, Callable[[str, Tensor, Tensor | None], Tensors]] = {
    "modelopt": _modelopt,
    "old-names": _old_names,
    "compressed": _compressed,
    "mxfp4": _mxfp4,
    "fp8": _fp8,
    "fp8-float": _fp8_float("weight_scale_inv"),
    "fp8-float-native": _fp8_float("scale"),
    "bf16": _bf16,
}
