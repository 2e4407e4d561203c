"""Small checkpoints made here: random parameters of any configuration, in memory or on disk.

For tests and bug reports. `random_parameters` gives plain float tensors under DeepSeek's names;
`layouts` stores them as each publisher does.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.checkpoint.files import DTYPE_NAMES
from engine.checkpoint.headers import TensorInfo
from engine.checkpoint.index import INDEX
from engine.checkpoint.parameters import parameters
from engine.model.config import ModelConfig
from kernels.formats import dequantise_mxfp4, quantise_mxfp4

Tensors = dict[str, Tensor]


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


def random_parameters(config: ModelConfig, seed: int, *, exact: bool = False) -> Tensors:
    """fp32 parameters that keep activations near unit size; norms are near 1, hash tables legal.

    exact: linears hold E2M1 codes times a power of two per 32-block, numbers that every format
    stores without loss.
    """
    generator = torch.Generator().manual_seed(seed)
    made: Tensors = {}
    for name, shape, _, role in parameters(config):
        if role == "table":
            rows = [
                torch.randperm(config.num_experts, generator=generator)[: config.top_k]
                for _ in range(shape[0])
            ]
            made[name] = torch.stack(rows)
            continue
        value = torch.randn(shape, generator=generator)
        if name.endswith(("norm.weight", "_scale")):
            value = 1 + 0.1 * value
        elif len(shape) == 2 and not name.endswith((".ape", "embed.weight")):
            value *= shape[1] ** -0.5
        elif name.endswith((".bias", "attn_sink", "_base")):
            value *= 0.3
        if exact and role == "linear":
            value = dequantise_mxfp4(*quantise_mxfp4(value))
        made[name] = value
    return made


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

    def start(self, order: Sequence[str], device: torch.device) -> None:
        pass

    def read(self, name: str, device: torch.device) -> Tensor:
        return self._tensors[name].clone().to(device)

    def close(self) -> None:
        pass
