"""Small checkpoints made here: random parameters of any configuration, in memory or on disk.

For tests and bug reports. `random_parameters` gives plain float tensors under DeepSeek's names;
`to_nvidia` stores them as NVIDIA's exporter does (architecture.md 8.2).
"""

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.checkpoint.files import DTYPE_NAMES
from engine.checkpoint.headers import TensorInfo
from engine.checkpoint.index import INDEX
from engine.model.config import ModelConfig
from kernels.formats import GSA_DIVISOR, quantise_fp8_block, quantise_nvfp4_weight

Tensors = dict[str, Tensor]

_EXPERT = re.compile(r"(layers\.\d+\.ffn\.experts\.\d+)\.(w[123])\.weight")
_FP8 = re.compile(
    r"layers\.\d+\.(attn\.(wq_a|wq_b|wkv|wo_a|wo_b|indexer\.wq_b)|ffn\.shared_experts\.w[123])\.weight"
)


def small_config(**changes: Any) -> dict[str, Any]:
    """A tiny model's config.json with every layer kind; keyword arguments replace values."""
    return {
        "model_type": "deepseek_v4",
        "architectures": ["DeepseekV4ForCausalLM"],
        "num_hidden_layers": 4,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "qk_rope_head_dim": 16,
        "q_lora_rank": 32,
        "o_groups": 2,
        "o_lora_rank": 32,
        "moe_intermediate_size": 32,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "swiglu_limit": 10.0,
        "num_hash_layers": 1,
        "sliding_window": 16,
        "compress_ratios": [0, 4, 128, 4],
        "index_n_heads": 8,
        "index_head_dim": 32,
        "index_topk": 8,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000,
        "compress_rope_theta": 160000,
        "rope_scaling": {
            "type": "yarn",
            "factor": 16,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": 65536,
        },
        "max_position_embeddings": 4096,
        "vocab_size": 256,
        "num_nextn_predict_layers": 0,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "bos_token_id": 0,
        "eos_token_id": 1,
        **changes,
    }


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every parameter of a model, under DeepSeek's names (architecture.md 8.1)."""
    hidden, streams = config.hidden_size, config.streams
    flat, mixes = streams * hidden, streams * (streams + 2)
    shapes: dict[str, tuple[int, ...]] = {
        "embed.weight": (config.vocab_size, hidden),
        "head.weight": (config.vocab_size, hidden),
        "norm.weight": (hidden,),
        "hc_head_fn": (streams, flat),
        "hc_head_base": (streams,),
        "hc_head_scale": (1,),
    }
    for layer in range(config.num_layers):
        prefix = f"layers.{layer}"
        for site in ("attn", "ffn"):
            shapes |= {
                f"{prefix}.{site}_norm.weight": (hidden,),
                f"{prefix}.hc_{site}_fn": (mixes, flat),
                f"{prefix}.hc_{site}_base": (mixes,),
                f"{prefix}.hc_{site}_scale": (3,),
            }
        shapes |= _attention_shapes(config, layer, f"{prefix}.attn")
        shapes |= _moe_shapes(config, layer, f"{prefix}.ffn")
    return shapes


def _attention_shapes(config: ModelConfig, layer: int, prefix: str) -> dict[str, tuple[int, ...]]:
    hidden, dim, ratio = config.hidden_size, config.head_dim, config.compress_ratios[layer]
    wide = config.num_heads * dim
    shapes: dict[str, tuple[int, ...]] = {
        f"{prefix}.wq_a.weight": (config.q_lora_rank, hidden),
        f"{prefix}.q_norm.weight": (config.q_lora_rank,),
        f"{prefix}.wq_b.weight": (wide, config.q_lora_rank),
        f"{prefix}.wkv.weight": (dim, hidden),
        f"{prefix}.kv_norm.weight": (dim,),
        f"{prefix}.wo_a.weight": (config.o_groups * config.o_lora_rank, wide // config.o_groups),
        f"{prefix}.wo_b.weight": (hidden, config.o_groups * config.o_lora_rank),
        f"{prefix}.attn_sink": (config.num_heads,),
    }

    def compressor(where: str, width: int) -> dict[str, tuple[int, ...]]:
        rows = width * (2 if config.overlaps(layer) else 1)
        return {
            f"{where}.wkv.weight": (rows, hidden),
            f"{where}.wgate.weight": (rows, hidden),
            f"{where}.ape": (ratio, rows),
            f"{where}.norm.weight": (width,),
        }

    if ratio:
        shapes |= compressor(f"{prefix}.compressor", dim)
    if config.has_indexer(layer):
        index_rows = config.index_heads * config.index_head_dim
        shapes |= {
            f"{prefix}.indexer.wq_b.weight": (index_rows, config.q_lora_rank),
            f"{prefix}.indexer.weights_proj.weight": (config.index_heads, hidden),
        }
        shapes |= compressor(f"{prefix}.indexer.compressor", config.index_head_dim)
    return shapes


def _moe_shapes(config: ModelConfig, layer: int, prefix: str) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.expert_size
    shapes: dict[str, tuple[int, ...]] = {f"{prefix}.gate.weight": (config.num_experts, hidden)}
    if layer < config.num_hash_layers:
        shapes[f"{prefix}.gate.tid2eid"] = (config.vocab_size, config.top_k)
    else:
        shapes[f"{prefix}.gate.bias"] = (config.num_experts,)
    experts = [f"{prefix}.experts.{expert}" for expert in range(config.num_experts)]
    for expert in [*experts, f"{prefix}.shared_experts"]:
        shapes[f"{expert}.w1.weight"] = (inner, hidden)
        shapes[f"{expert}.w3.weight"] = (inner, hidden)
        shapes[f"{expert}.w2.weight"] = (hidden, inner)
    return shapes


def random_parameters(config: ModelConfig, seed: int) -> Tensors:
    """fp32 parameters that keep activations near unit size; norms are near 1, hash tables legal."""
    generator = torch.Generator().manual_seed(seed)
    made: Tensors = {}
    for name, shape in parameter_shapes(config).items():
        if name.endswith("tid2eid"):
            rows = [
                torch.randperm(config.num_experts, generator=generator)[: config.top_k]
                for _ in range(shape[0])
            ]
            made[name] = torch.stack(rows)
            continue
        value = torch.randn(shape, generator=generator)
        if name.endswith("norm.weight"):
            value = 1 + 0.1 * value
        elif name.endswith("_scale"):
            value = 1 + 0.1 * value
        elif len(shape) == 2 and not name.endswith((".ape", "embed.weight")):
            value *= shape[1] ** -0.5
        elif name.endswith((".bias", "attn_sink", "_base")):
            value *= 0.3
        made[name] = value
    return made


def to_nvidia(parameters: Tensors) -> Tensors:
    """As NVIDIA stores them: experts NVFP4 with shared w1/w3 scales, other projections FP8 blocks,
    the rest bf16 or fp32. input_scale is that of an input with largest magnitude 8."""
    stored: Tensors = {}
    for name, value in parameters.items():
        expert = _EXPERT.fullmatch(name)
        if expert:
            prefix, part = expert.groups()
            amax = value.abs().max()
            if part != "w2":
                other = parameters[f"{prefix}.{'w3' if part == 'w1' else 'w1'}.weight"]
                amax = torch.maximum(amax, other.abs().max())
            weight = quantise_nvfp4_weight(value, amax)
            stored[name] = weight.packed
            stored[f"{prefix}.{part}.weight_scale"] = weight.scale
            stored[f"{prefix}.{part}.weight_scale_2"] = weight.scale_2
            stored[f"{prefix}.{part}.input_scale"] = torch.tensor(8.0 / GSA_DIVISOR)
        elif _FP8.fullmatch(name):
            codes, scale = quantise_fp8_block(value)
            stored[name] = codes
            stored[name.removesuffix("weight") + "scale"] = scale.view(torch.float8_e8m0fnu)
        elif name.endswith(".weight"):
            stored[name] = value.to(torch.bfloat16)
        else:
            stored[name] = value
    return stored


def write_checkpoint(
    folder: Path, raw_config: dict[str, Any], tensors: Tensors, shards: int = 1
) -> None:
    """Write config.json, the index and `shards` safetensors files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw_config, indent=2))
    names = sorted(tensors)
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = names[shard::shards]
        save_file({name: tensors[name].contiguous() for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index))


class MemoryTensors:
    """A tensor source over a dict."""

    where = "memory"

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors

    def infos(self) -> dict[str, TensorInfo]:
        return {
            name: TensorInfo(
                name,
                DTYPE_NAMES[t.dtype],
                tuple(t.shape),
                Path(name),
                0,
                t.nbytes,
            )
            for name, t in self._tensors.items()
        }

    def read(self, name: str, device: torch.device) -> Tensor:
        return self._tensors[name].clone().to(device)
