"""Every parameter of a model, under DeepSeek's names (architecture.md 8.1). Needs no torch."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from engine.model.config import ModelConfig

Role = Literal["linear", "matrix", "vector", "table"]


class Parameter(NamedTuple):
    """One parameter.

    kind: its class in reports. role: linear (a projection, stored in any format), matrix (two axes,
    never quantised), vector (held in fp32) or table (integers).
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    role: Role

    @property
    def prefix(self) -> str:
        """A linear's name without `.weight`."""
        return self.name.removesuffix(".weight")


def parameters(config: ModelConfig) -> Iterator[Parameter]:
    """All of them, layer by layer, a layer's experts first: the order in which they are loaded."""
    hidden, vocab = config.hidden_size, config.vocab_size
    yield Parameter("embed.weight", (vocab, hidden), "embedding", "matrix")
    for layer in range(config.num_layers):
        prefix = f"layers.{layer}"
        yield from _moe(config, layer, f"{prefix}.ffn")
        yield from _site(config, f"{prefix}.hc_attn", config.streams + 2, 3)
        yield Parameter(f"{prefix}.attn_norm.weight", (hidden,), "norms", "vector")
        yield from _attention(config, layer, f"{prefix}.attn")
        yield from _site(config, f"{prefix}.hc_ffn", config.streams + 2, 3)
        yield Parameter(f"{prefix}.ffn_norm.weight", (hidden,), "norms", "vector")
    yield from _site(config, "hc_head", 1, 1)
    yield Parameter("norm.weight", (hidden,), "norms", "vector")
    yield Parameter("head.weight", (vocab, hidden), "lm_head", "linear")


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name -> shape of all of them."""
    return {parameter.name: parameter.shape for parameter in parameters(config)}


def _site(config: ModelConfig, prefix: str, groups: int, scales: int) -> Iterator[Parameter]:
    rows, columns = config.streams * groups, config.streams * config.hidden_size
    for suffix, shape in (("fn", (rows, columns)), ("base", (rows,)), ("scale", (scales,))):
        yield Parameter(f"{prefix}_{suffix}", shape, "mHC", "vector")


def _attention(config: ModelConfig, layer: int, prefix: str) -> Iterator[Parameter]:
    hidden, dim, latent = config.hidden_size, config.head_dim, config.q_lora_rank
    wide, mixed = config.num_heads * dim, config.o_groups * config.o_lora_rank
    if config.compress_ratios[layer]:
        yield from _compressor(config, layer, f"{prefix}.compressor", dim)
    if config.has_indexer(layer):
        rows = config.index_heads * config.index_head_dim
        where = f"{prefix}.indexer"
        yield Parameter(f"{where}.wq_b.weight", (rows, latent), "indexer", "linear")
        heads = (config.index_heads, hidden)
        yield Parameter(f"{where}.weights_proj.weight", heads, "compressor", "matrix")
        yield from _compressor(config, layer, f"{where}.compressor", config.index_head_dim)
    for name, shape in (
        ("wq_a", (latent, hidden)),
        ("wq_b", (wide, latent)),
        ("wkv", (dim, hidden)),
        ("wo_a", (mixed, wide // config.o_groups)),
        ("wo_b", (hidden, mixed)),
    ):
        yield Parameter(f"{prefix}.{name}.weight", shape, "attention", "linear")
    yield Parameter(f"{prefix}.q_norm.weight", (latent,), "norms", "vector")
    yield Parameter(f"{prefix}.kv_norm.weight", (dim,), "norms", "vector")
    yield Parameter(f"{prefix}.attn_sink", (config.num_heads,), "norms", "vector")


def _compressor(config: ModelConfig, layer: int, prefix: str, width: int) -> Iterator[Parameter]:
    rows = width * (2 if config.overlaps(layer) else 1)
    for name in ("wkv", "wgate"):
        shape = (rows, config.hidden_size)
        yield Parameter(f"{prefix}.{name}.weight", shape, "compressor", "matrix")
    ratio = config.compress_ratios[layer]
    yield Parameter(f"{prefix}.ape", (ratio, rows), "compressor", "vector")
    yield Parameter(f"{prefix}.norm.weight", (width,), "norms", "vector")


def _moe(config: ModelConfig, layer: int, prefix: str) -> Iterator[Parameter]:
    hidden, inner = config.hidden_size, config.expert_size
    shapes = (("w1", (inner, hidden)), ("w3", (inner, hidden)), ("w2", (hidden, inner)))
    for expert in range(config.num_experts):
        for part, shape in shapes:
            name = f"{prefix}.experts.{expert}.{part}.weight"
            yield Parameter(name, shape, "experts", "linear")
    for part, shape in shapes:
        yield Parameter(f"{prefix}.shared_experts.{part}.weight", shape, "shared expert", "linear")
    count = config.num_experts
    yield Parameter(f"{prefix}.gate.weight", (count, hidden), "router gate", "linear")
    if layer < config.num_hash_layers:
        shape = (config.vocab_size, config.top_k)
        yield Parameter(f"{prefix}.gate.tid2eid", shape, "hash tables", "table")
    else:
        yield Parameter(f"{prefix}.gate.bias", (count,), "router gate", "vector")
