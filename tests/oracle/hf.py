"""transformers' DeepSeek-V4 as an outside oracle: the same random model on both sides."""

import re
from typing import Any

import torch
from torch import Tensor

from engine.checkpoint.synthetic import MemoryTensors, random_parameters, small_config
from engine.model.build import build_model
from engine.model.config import ModelConfig
from engine.model.step import Numerics
from engine.model.transformer import Transformer
from engine.protocol import StepOptions
from engine.state import SequenceState

CPU = torch.device("cpu")
PLAIN = StepOptions(router="bf16", taps=False)

_TOP = {
    "embed.weight": "model.embed_tokens.weight",
    "head.weight": "lm_head.weight",
    "norm.weight": "model.norm.weight",
    "hc_head_fn": "model.hc_head.hc_fn",
    "hc_head_base": "model.hc_head.hc_base",
    "hc_head_scale": "model.hc_head.hc_scale",
}
_LAYER = {
    "attn_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "attn.wq_a.weight": "self_attn.q_a_proj.weight",
    "attn.q_norm.weight": "self_attn.q_a_norm.weight",
    "attn.wq_b.weight": "self_attn.q_b_proj.weight",
    "attn.wkv.weight": "self_attn.kv_proj.weight",
    "attn.kv_norm.weight": "self_attn.kv_norm.weight",
    "attn.wo_a.weight": "self_attn.o_a_proj.weight",
    "attn.wo_b.weight": "self_attn.o_b_proj.weight",
    "attn.attn_sink": "self_attn.sinks",
    "attn.indexer.wq_b.weight": "self_attn.compressor.indexer.q_b_proj.weight",
    "attn.indexer.weights_proj.weight": "self_attn.compressor.indexer.scorer.weights_proj.weight",
    "ffn.gate.weight": "mlp.gate.weight",
    "ffn.gate.bias": "mlp.gate.e_score_correction_bias",
    "ffn.gate.tid2eid": "mlp.gate.tid2eid",
    "ffn.shared_experts.w1.weight": "mlp.shared_experts.gate_proj.weight",
    "ffn.shared_experts.w3.weight": "mlp.shared_experts.up_proj.weight",
    "ffn.shared_experts.w2.weight": "mlp.shared_experts.down_proj.weight",
    **{f"hc_attn_{part}": f"attn_hc.{part}" for part in ("fn", "base", "scale")},
    **{f"hc_ffn_{part}": f"ffn_hc.{part}" for part in ("fn", "base", "scale")},
}
_COMPRESSOR = {
    "wkv.weight": "kv_proj.weight",
    "wgate.weight": "gate_proj.weight",
    "ape": "position_bias",
    "norm.weight": "kv_norm.weight",
}
for _part, _theirs in _COMPRESSOR.items():
    _LAYER[f"attn.compressor.{_part}"] = f"self_attn.compressor.{_theirs}"
    _LAYER[f"attn.indexer.compressor.{_part}"] = f"self_attn.compressor.indexer.{_theirs}"


def to_transformers(parameters: dict[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Our parameters under transformers' names, experts stacked."""
    theirs: dict[str, Tensor] = {}
    for name, value in parameters.items():
        if name in _TOP:
            theirs[_TOP[name]] = value
            continue
        match = re.fullmatch(r"layers\.(\d+)\.(.+)", name)
        assert match is not None, name
        layer, rest = match.groups()
        if ".experts." not in rest:
            theirs[f"model.layers.{layer}.{_LAYER[rest]}"] = value
    for layer in range(config.num_layers):
        prefix = f"layers.{layer}.ffn.experts"
        w13, w2 = [], []
        for expert in range(config.num_experts):
            part = {w: parameters[f"{prefix}.{expert}.{w}.weight"] for w in ("w1", "w2", "w3")}
            w13.append(torch.cat((part["w1"], part["w3"])))
            w2.append(part["w2"])
        theirs[f"model.layers.{layer}.mlp.experts.gate_up_proj"] = torch.stack(w13)
        theirs[f"model.layers.{layer}.mlp.experts.down_proj"] = torch.stack(w2)
    return theirs


def transformers_model(raw: dict[str, Any], parameters: dict[str, Tensor]) -> Any:
    """transformers' model with our parameters, fp32, eager."""
    from transformers.models.deepseek_v4 import DeepseekV4Config, DeepseekV4ForCausalLM

    config = DeepseekV4Config(**raw, attn_implementation="eager", experts_implementation="eager")
    model = DeepseekV4ForCausalLM(config).eval().float()
    state = to_transformers(parameters, ModelConfig.parse(raw))
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected, unexpected
    assert not [name for name in missing if "inv_freq" not in name], missing
    return model


def pair(seed: int, **changes: Any) -> tuple[Transformer, Any, ModelConfig]:
    """Our fp32 model and transformers', from the same random parameters."""
    raw = small_config(**changes)
    config = ModelConfig.parse(raw)
    parameters = random_parameters(config, seed)
    built = build_model(
        config,
        MemoryTensors(parameters),
        precision="checkpoint",
        device=CPU,
        numerics=Numerics(kv_fp8=False, index_fp4=False),
    )
    return built.model, transformers_model(raw, parameters), config


def our_logits(model: Transformer, ids: Tensor, chunks: list[int], context: int = 512) -> Tensor:
    """[T, V] logits of all tokens, run in chunks of the given sizes."""
    state = SequenceState(model.config, context, CPU, model.dtype)
    parts = []
    for chunk in ids.split(chunks):
        logits = model(chunk, state, PLAIN)
        assert logits is not None
        parts.append(logits)
    return torch.cat(parts)
