"""The model's configuration: config.json read, checked, and turned into one frozen object.

Every value the maths depends on is read here and nowhere else; an unknown one is refused, never
mapped to the nearest (architecture.md 1).
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from engine.checkpoint.strict_json import read_object
from engine.errors import CheckpointError, ConfigError

_REFUSED = {
    "deepseek_v41": "this is DeepSeek-V4.1, another architecture (single-pass mHC, Engram tables, "
    "CSA2); dsv4chat runs DeepSeek-V4 checkpoints only",
    "deepseek_v3": "this is DeepSeek-V3; dsv4chat runs DeepSeek-V4 checkpoints only",
    "deepseek_v32": "this is DeepSeek-V3.2; dsv4chat runs DeepSeek-V4 checkpoints only",
}
NVFP4_BLOCK = 16  # every projection can be held in NVFP4
_MAX_CONFIG_BYTES = 64 << 20  # some exporters list every projection
_WINDOW_ONLY, _OVERLAPPED = 0, 4  # compress ratios with rules of their own


class YarnScaling(NamedTuple):
    factor: float
    beta_fast: float
    beta_slow: float
    original_context: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes and constants of one checkpoint; the names of architecture.md 1.1."""

    num_layers: int
    hidden_size: int
    num_heads: int
    head_dim: int
    rope_dims: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    expert_size: int
    num_experts: int
    top_k: int
    route_scale: float
    swiglu_limit: float
    num_hash_layers: int
    window: int
    compress_ratios: tuple[int, ...]
    index_heads: int
    index_head_dim: int
    index_top_k: int
    streams: int
    sinkhorn_iterations: int
    hyper_eps: float
    norm_eps: float
    rope_theta: float
    compress_rope_theta: float
    yarn: YarnScaling
    max_context: int
    vocab_size: int
    eos_ids: tuple[int, ...]

    def overlaps(self, layer: int) -> bool:
        """Whether blocks of this layer's compressor mix in the block before."""
        return self.compress_ratios[layer] == _OVERLAPPED

    def has_indexer(self, layer: int) -> bool:
        return self.compress_ratios[layer] == _OVERLAPPED

    @staticmethod
    def load(model_dir: Path) -> "ModelConfig":
        """Read and check `config.json`.

        Raises:
            ConfigError: not there, not JSON, another model, a missing or impossible value.
        """
        path = model_dir / "config.json"
        if not path.exists():
            raise ConfigError(f"{model_dir}: no config.json; give a DeepSeek-V4 folder")
        try:
            raw = read_object(path, _MAX_CONFIG_BYTES)
        except CheckpointError as error:
            raise ConfigError(str(error)) from None
        return ModelConfig.parse(raw, str(path))

    @staticmethod
    def parse(raw: dict[str, Any], where: str = "config.json") -> "ModelConfig":
        """The same from a decoded object."""
        return _Reader(raw, where).config()


class _Reader:
    """Typed access to config.json; every complaint names the file and the key."""

    def __init__(self, raw: dict[str, Any], where: str) -> None:
        self.raw = raw
        self.where = where

    def fail(self, key: str, found: object, expected: str) -> ConfigError:
        return ConfigError(f"{self.where}: {key} is {found!r}, expected {expected}")

    def integer(self, key: str, low: int = 1, high: int = 1 << 24) -> int:
        value = self.raw.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.fail(key, value, f"an integer from {low} to {high}")
        return value

    def number(self, key: str, source: dict[str, Any] | None = None) -> float:
        value = (self.raw if source is None else source).get(key)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.fail(key, value, "a number")
        if not math.isfinite(value) or value <= 0:
            raise self.fail(key, value, "a positive number")
        return float(value)

    def exactly(self, key: str, expected: object, *, optional: bool = True) -> None:
        value = self.raw.get(key)
        if value is None and optional:
            return
        if value != expected:
            raise self.fail(key, value, f"{expected!r} (the only one this engine implements)")

    def config(self) -> ModelConfig:
        self._check_kind()
        layers = self.integer("num_hidden_layers", high=1024)
        config = ModelConfig(
            num_layers=layers,
            hidden_size=self.integer("hidden_size"),
            num_heads=self.integer("num_attention_heads"),
            head_dim=self.integer("head_dim"),
            rope_dims=self.integer("qk_rope_head_dim"),
            q_lora_rank=self.integer("q_lora_rank"),
            o_groups=self.integer("o_groups"),
            o_lora_rank=self.integer("o_lora_rank"),
            expert_size=self.integer("moe_intermediate_size"),
            num_experts=self.integer("n_routed_experts"),
            top_k=self.integer("num_experts_per_tok"),
            route_scale=self.number("routed_scaling_factor"),
            swiglu_limit=self.number("swiglu_limit"),
            num_hash_layers=self.integer("num_hash_layers", low=0, high=layers),
            window=self.integer("sliding_window"),
            compress_ratios=self._ratios(layers),
            index_heads=self.integer("index_n_heads"),
            index_head_dim=self.integer("index_head_dim"),
            index_top_k=self.integer("index_topk"),
            streams=self.integer("hc_mult", high=64),
            sinkhorn_iterations=self.integer("hc_sinkhorn_iters", high=1000),
            hyper_eps=self.number("hc_eps"),
            norm_eps=self.number("rms_norm_eps"),
            rope_theta=self.number("rope_theta"),
            compress_rope_theta=self.number("compress_rope_theta"),
            yarn=self._yarn(),
            max_context=self.integer("max_position_embeddings"),
            vocab_size=self.integer("vocab_size"),
            eos_ids=self._eos_ids(),
        )
        self._check_sizes(config)
        return config

    def _check_kind(self) -> None:
        kind = self.raw.get("model_type")
        if isinstance(kind, str) and kind in _REFUSED:
            raise ConfigError(f"{self.where}: model_type {kind}: {_REFUSED[kind]}")
        self.exactly("model_type", "deepseek_v4", optional=False)
        self.exactly("scoring_func", "sqrtsoftplus")
        self.exactly("topk_method", "noaux_tc")
        self.exactly("norm_topk_prob", True)
        self.exactly("hidden_act", "silu")
        self.exactly("num_key_value_heads", 1)
        self.exactly("n_shared_experts", 1)
        self.exactly("tie_word_embeddings", False)
        self.exactly("attention_bias", False)

    def _ratios(self, layers: int) -> tuple[int, ...]:
        """One ratio a layer; entries past the trunk belong to draft stages."""
        ratios = self.raw.get("compress_ratios")
        if not isinstance(ratios, list) or len(ratios) < layers:
            raise self.fail("compress_ratios", ratios, f"a list of at least {layers} ratios")
        trunk = ratios[:layers]
        for ratio in trunk:
            if not isinstance(ratio, int) or isinstance(ratio, bool) or not 0 <= ratio <= 4096:
                raise self.fail("compress_ratios", ratio, "0 (window only) or a block length")
            if ratio in (1, 2):
                raise self.fail("compress_ratios", ratio, "0, 4 or 128 (1 and 2 are DeepSeek-V4.1)")
        return tuple(trunk)

    def _yarn(self) -> YarnScaling:
        scaling = self.raw.get("rope_scaling")
        if not isinstance(scaling, dict):
            raise self.fail("rope_scaling", scaling, "an object with YaRN factors")
        kind = scaling.get("type", scaling.get("rope_type"))
        if kind != "yarn":
            raise self.fail("rope_scaling.type", kind, "'yarn'")
        return YarnScaling(
            factor=self.number("factor", scaling),
            beta_fast=self.number("beta_fast", scaling),
            beta_slow=self.number("beta_slow", scaling),
            original_context=int(self.number("original_max_position_embeddings", scaling)),
        )

    def _eos_ids(self) -> tuple[int, ...]:
        value = self.raw.get("eos_token_id")
        ids = value if isinstance(value, list) else [value]
        if not ids or not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
            raise self.fail("eos_token_id", value, "a token id or a list of them")
        return tuple(ids)

    def _check_sizes(self, config: ModelConfig) -> None:
        rules = [
            (config.top_k < config.num_experts, "num_experts_per_tok", "below n_routed_experts"),
            *(
                (size % NVFP4_BLOCK == 0, key, f"a multiple of {NVFP4_BLOCK}")
                for key, size in (
                    ("hidden_size", config.hidden_size),
                    ("q_lora_rank", config.q_lora_rank),
                    ("moe_intermediate_size", config.expert_size),
                    ("o_lora_rank", config.o_groups * config.o_lora_rank),
                    ("head_dim", config.num_heads * config.head_dim // config.o_groups),
                )
            ),
            (config.rope_dims % 2 == 0, "qk_rope_head_dim", "even"),
            (config.rope_dims < config.head_dim, "qk_rope_head_dim", "below head_dim"),
            (config.rope_dims <= config.index_head_dim, "index_head_dim", "at least rope dims"),
            (config.num_heads % config.o_groups == 0, "o_groups", "a divisor of the heads"),
            (
                config.index_head_dim & (config.index_head_dim - 1) == 0,
                "index_head_dim",
                "a power of two",
            ),
            (
                all(0 <= i < config.vocab_size for i in config.eos_ids),
                "eos_token_id",
                "below vocab_size",
            ),
        ]
        for holds, key, expected in rules:
            if not holds:
                raise self.fail(key, self.raw.get(key), expected)
