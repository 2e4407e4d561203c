"""Sizes of the demo model, and its config.json with the keys of the real one.

The names in `Sizes` follow engine.model.config.ModelConfig; only sizes that differ between the demo
and the tests' tiny models are fields.
"""

from dataclasses import dataclass
from typing import Any

BOS, EOS, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"
USER, ASSISTANT = "<｜User｜>", "<｜Assistant｜>"
THINK, END_THINK, DSML = "<think>", "</think>", "｜DSML｜"
SPECIALS = (BOS, EOS, PAD, USER, ASSISTANT, THINK, END_THINK, DSML)  # ids 0, 1, 2, ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Config A of the demo: 22 M parameters, 8 M active."""

    vocab_size: int = 8192
    hidden_size: int = 256
    num_heads: int = 4
    head_dim: int = 128
    rope_dims: int = 64
    q_lora_rank: int = 128
    o_groups: int = 2
    o_lora_rank: int = 128
    num_experts: int = 12
    top_k: int = 2
    expert_size: int = 256
    route_scale: float = 1.5
    swiglu_limit: float = 10.0
    num_hash_layers: int = 2
    compress_ratios: tuple[int, ...] = (0, 0, 4, 128, 4, 128)
    window: int = 128
    index_heads: int = 4
    index_head_dim: int = 128
    index_top_k: int = 64
    streams: int = 4
    sinkhorn_iterations: int = 20
    hyper_eps: float = 1e-6
    norm_eps: float = 1e-6
    max_context: int = 2048

    @property
    def num_layers(self) -> int:
        return len(self.compress_ratios)


DEMO = Sizes()


def hf_config(sizes: Sizes) -> dict[str, Any]:
    """config.json of an exported model (architecture.md 1.1 and 8.2)."""
    return {
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": sizes.hidden_size,
        "num_hidden_layers": sizes.num_layers,
        "num_attention_heads": sizes.num_heads,
        "num_key_value_heads": 1,
        "head_dim": sizes.head_dim,
        "qk_rope_head_dim": sizes.rope_dims,
        "q_lora_rank": sizes.q_lora_rank,
        "o_groups": sizes.o_groups,
        "o_lora_rank": sizes.o_lora_rank,
        "moe_intermediate_size": sizes.expert_size,
        "n_routed_experts": sizes.num_experts,
        "n_shared_experts": 1,
        "num_experts_per_tok": sizes.top_k,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": sizes.route_scale,
        "swiglu_limit": sizes.swiglu_limit,
        "num_hash_layers": sizes.num_hash_layers,
        "sliding_window": sizes.window,
        "compress_ratios": list(sizes.compress_ratios),
        "index_n_heads": sizes.index_heads,
        "index_head_dim": sizes.index_head_dim,
        "index_topk": sizes.index_top_k,
        "hc_mult": sizes.streams,
        "hc_sinkhorn_iters": sizes.sinkhorn_iterations,
        "hc_eps": sizes.hyper_eps,
        "rms_norm_eps": sizes.norm_eps,
        "rope_theta": 10000,
        "compress_rope_theta": 160000,
        "rope_scaling": {
            "type": "yarn",
            "factor": 16,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": 65536,
        },
        "max_position_embeddings": sizes.max_context,
        "num_nextn_predict_layers": 0,
        "initializer_range": 0.02,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": sizes.vocab_size,
        "expert_dtype": "fp4",
        "quantization_config": _quantization(sizes),
    }


def _quantization(sizes: Sizes) -> dict[str, Any]:
    quantized = {
        f"layers.{layer}.ffn.experts": {"quant_algo": "NVFP4", "group_size": 16}
        for layer in range(sizes.num_layers)
    }
    excluded = ["*.attn.*", "*.ffn.shared_experts.*", "head", "mtp.*"]
    fp4 = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}
    return {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "scale_fmt": "ue8m0",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
        "moe_quant_algo": "NVFP4",
        "quant_algo": "MIXED_PRECISION",
        "kv_cache_quant_algo": None,
        "group_size": 16,
        "producer": {"name": "modelopt", "version": "dsv4-nvfp4-experts"},
        "quantized_layers": quantized,
        "exclude_modules": excluded,
        "ignore": excluded,
        "config_groups": {
            "group_0": {"input_activations": fp4, "weights": fp4, "targets": ["Linear"]}
        },
    }
