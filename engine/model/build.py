"""Builds a Transformer from a checkpoint: every parameter by name, in the wanted precision.

Names are DeepSeek's own (architecture.md 8.1); `builder` turns what is stored into what is held.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.checkpoint.census import Census, take_census
from engine.checkpoint.files import TensorSource
from engine.checkpoint.weights import WeightReader
from engine.errors import CheckpointError
from engine.model.attention import Attention, Compressor
from engine.model.builder import Builder, Part
from engine.model.config import ModelConfig
from engine.model.experts import build_experts
from engine.model.linear import Nvfp4Linear
from engine.model.moe import Nvfp4MoE, Router, SharedExpert
from engine.model.ops import Ops, Plan
from engine.model.step import Frequencies, Numerics
from engine.model.team import Team
from engine.model.transformer import Layer, Transformer
from engine.protocol import PlanRow, Precision
from kernels import linear as linear_ops
from kernels import router as router_ops
from kernels.compiled import KernelLibrary
from kernels.residual.reference import HyperSite

Progress = Callable[[str, int, int], None]
# A CPU model of more parameters keeps its weights packed: slower a token, a seventh of the memory,
# and loaded at the speed of the disk.
MOST_EXPANDED = 500_000_000
_PROGRESS_SECONDS = 0.05


@dataclass(slots=True)
class Built:
    """A model and what loading it showed.

    formats: tensor class -> formats as stored. gsa_stored: site -> input_scale per layer, the
    smallest of a layer's experts, 0 where the checkpoint has none. active_bytes: weight bytes a
    token reads.
    """

    model: Transformer
    plan: list[PlanRow]
    formats: dict[str, str]
    gsa_stored: dict[str, list[float]]
    parameters: int
    resident_bytes: int
    active_bytes: int


def build_model(
    config: ModelConfig,
    source: TensorSource,
    *,
    precision: Precision,
    device: torch.device,
    numerics: Numerics | None = None,
    library: KernelLibrary | None = None,
    team: Team | None = None,
    progress: Progress | None = None,
) -> Built:
    """Load every parameter of `source`, or the part of one rank.

    Args:
        precision: `nvfp4` quantises every linear of the decode path; `checkpoint` keeps each as
            stored.
        team: the ranks the model is split over; one alone by default.
        progress: called with (stage, bytes read, bytes in all) a few times a second; what it raises
            ends the load.

    Raises:
        CheckpointError: a tensor is missing, odd, or left over. Nothing is read or allocated before
            the headers are known to be right.
    """
    census = take_census(config, source.infos(), source.where)
    if census.problems:
        raise CheckpointError(census.problems[0])
    plan = Plan(device, library, compact=_count(census) > MOST_EXPANDED)
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    team = team or Team()
    split = team.split
    mine = [placed for placed in census.placed if split.reads(config, placed.parameter)]
    order = [name for placed in mine for name in placed.names()]
    elsewhere = {name for placed in census.placed for name in placed.names()} - set(order)
    steps = _Steps(progress, sum(placed.size_bytes for placed in mine))
    reader = WeightReader(source, device, elsewhere, steps)
    build = Builder(config, reader, precision, device, dtype, plan, split)
    source.start(order, device)
    try:
        built = _build(build, steps, numerics or Numerics(), team)
    finally:
        source.close()
    built.parameters = _count(census)
    return built


def _count(census: Census) -> int:
    """Trained numbers, whatever each is stored in; no scales, no hash tables."""
    found = (placed.parameter for placed in census.placed)
    return sum(math.prod(parameter.shape) for parameter in found if parameter.role != "table")


class _Steps:
    """Tells `progress` how far a load is, a few times a second."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._last = 0.0
        self.stage = "embedding"

    def __call__(self, done: int) -> None:
        if self._progress is None:
            return
        now = time.monotonic()
        if now - self._last >= _PROGRESS_SECONDS or done == self._total:
            self._last = now
            self._progress(self.stage, done, self._total)


def _build(build: Builder, steps: _Steps, numerics: Numerics, team: Team) -> Built:
    config, reader = build.config, build.reader
    hidden, vocab = config.hidden_size, config.vocab_size
    embed = reader.tensor("embed.weight", (vocab, hidden))
    build.resident_bytes += embed.nbytes
    layers, stored_scales = [], []
    for index in range(config.num_layers):
        steps.stage = f"layer {index + 1} of {config.num_layers}"
        layer, scales = _layer(build, index)
        layers.append(layer)
        stored_scales.append(scales)
        reader.settle()
    steps.stage = "head"
    head_rows = build.split.rows(vocab)
    model = Transformer(
        config=config,
        embed=embed,
        layers=layers,
        head_site=_site(build, "hc_head", config.streams, 1),
        norm=build.vector("norm.weight", hidden),
        head=build.linear("head", vocab, hidden, "lm_head", head_rows.held),
        frequencies=Frequencies(config, build.device),
        numerics=numerics,
        ops=Ops.resolve(build.plan),
        team=team,
        head_rows=head_rows,
        dtype=build.dtype,
    )
    reader.finish()
    sites = ("ffn_in", "w2_in")
    return Built(
        model,
        list(build.plan.rows.values()),
        {kind: "+".join(sorted(found)) for kind, found in reader.formats.items()},
        {site: [scales[i] for scales in stored_scales] for i, site in enumerate(sites)},
        0,
        build.resident_bytes,
        build.active_bytes,
    )


def _site(build: Builder, prefix: str, rows: int, scales: int) -> HyperSite:
    columns = build.config.streams * build.config.hidden_size
    return HyperSite(
        build.vector(f"{prefix}_fn", rows, columns),
        build.vector(f"{prefix}_base", rows),
        build.vector(f"{prefix}_scale", scales),
    )


def _layer(build: Builder, index: int) -> tuple[Layer, tuple[float, float]]:
    config, prefix = build.config, f"layers.{index}"
    rows = config.streams * (config.streams + 2)
    moe, scales = _moe(build, index, f"{prefix}.ffn")
    return Layer(
        index=index,
        attn_site=_site(build, f"{prefix}.hc_attn", rows, 3),
        attn_norm=build.vector(f"{prefix}.attn_norm.weight", config.hidden_size),
        attention=_attention(build, index, f"{prefix}.attn"),
        ffn_site=_site(build, f"{prefix}.hc_ffn", rows, 3),
        ffn_norm=build.vector(f"{prefix}.ffn_norm.weight", config.hidden_size),
        moe=moe,
    ), scales


def _attention(build: Builder, index: int, prefix: str) -> Attention:
    config = build.config
    hidden, latent, dim = config.hidden_size, config.q_lora_rank, config.head_dim
    wide = config.num_heads * dim
    groups, out_rows = build.split.groups(config), build.split.rows(hidden)
    heads = groups.times(config.num_heads // config.o_groups).held
    compressor = index_compressor = None
    from_hidden: list[Tensor] = []
    queries = range(heads.start * dim, heads.stop * dim)
    from_latent = [Part(f"{prefix}.wq_b", wide, "attention", queries)]
    if config.compress_ratios[index]:
        where = f"{prefix}.compressor"
        compressor = _compressor(build, index, where, dim, from_hidden, is_index=False)
    if config.has_indexer(index):
        width, scorers = config.index_head_dim, config.index_heads
        from_latent.append(Part(f"{prefix}.indexer.wq_b", scorers * width, "indexer"))
        where = f"{prefix}.indexer.compressor"
        index_compressor = _compressor(build, index, where, width, from_hidden, is_index=True)
        from_hidden.append(build.matrix(f"{prefix}.indexer.weights_proj.weight", scorers, hidden))
    return Attention(
        q_a_and_kv=build.projections(
            [
                Part(f"{prefix}.wq_a", latent, "attention"),
                Part(f"{prefix}.wkv", dim, "attention"),
            ],
            hidden,
        ),
        q_norm=build.vector(f"{prefix}.q_norm.weight", latent),
        from_latent=build.projections(from_latent, latent),
        from_hidden=build.joined(from_hidden) if from_hidden else None,
        kv_norm=build.vector(f"{prefix}.kv_norm.weight", dim),
        wo_a=build.grouped_linear(
            f"{prefix}.wo_a",
            config.o_groups,
            config.o_lora_rank,
            wide // config.o_groups,
            groups.held,
        ),
        wo_b=build.linear(
            f"{prefix}.wo_b",
            hidden,
            config.o_groups * config.o_lora_rank,
            "attention",
            out_rows.held,
        ),
        sink=build.vector(f"{prefix}.attn_sink", config.num_heads)[heads.start : heads.stop],
        groups=groups,
        rows=out_rows,
        compressor=compressor,
        index_compressor=index_compressor,
    )


def _compressor(
    build: Builder, index: int, prefix: str, dim: int, projections: list[Tensor], *, is_index: bool
) -> Compressor:
    """Appends its two projections [F, H] to `projections`."""
    config = build.config
    ratio, overlap = config.compress_ratios[index], config.overlaps(index)
    width = dim * (2 if overlap else 1)
    for name in ("wkv", "wgate"):
        projections.append(build.matrix(f"{prefix}.{name}.weight", width, config.hidden_size))
    return Compressor(
        ape=build.vector(f"{prefix}.ape", ratio, width),
        norm=build.vector(f"{prefix}.norm.weight", dim),
        ratio=ratio,
        overlap=overlap,
        is_index=is_index,
    )


def _moe(build: Builder, index: int, prefix: str) -> tuple[Nvfp4MoE, tuple[float, float]]:
    config = build.config
    hidden, inner = config.hidden_size, config.expert_size
    experts, shared_inside, scales = build_experts(build, prefix)
    shared = (
        None
        if shared_inside or not build.split.holds_shared
        else SharedExpert(
            build.linear(f"{prefix}.shared_experts.w1", inner, hidden, "shared expert"),
            build.linear(f"{prefix}.shared_experts.w3", inner, hidden, "shared expert"),
            build.linear(f"{prefix}.shared_experts.w2", hidden, inner, "shared expert"),
        )
    )
    router = _router(build, index, f"{prefix}.gate")
    return Nvfp4MoE(router, experts, shared, build.split.experts(config)), scales


def _router(build: Builder, index: int, prefix: str) -> Router:
    config = build.config
    stored = build.reader.linear(prefix, (config.num_experts, config.hidden_size), "router gate")
    weight = build.nvfp4(prefix, stored)
    gate = build.dense(stored)
    gate_nvfp4 = Nvfp4Linear(build.plan.pick(linear_ops.OP), weight, stored.input_scale)
    fused = build.plan.pick(router_ops.FUSED_OP)
    build.resident_bytes += gate.size_bytes + gate_nvfp4.size_bytes
    build.active_bytes += gate_nvfp4.size_bytes
    bias = tid2eid = None
    if index < config.num_hash_layers:
        shape = (config.vocab_size, config.top_k)
        tid2eid = build.reader.table(f"{prefix}.tid2eid", shape, config.num_experts)
        build.resident_bytes += tid2eid.nbytes
    else:
        bias = build.vector(f"{prefix}.bias", config.num_experts)
    return Router(
        gate=gate,
        gate_nvfp4=gate_nvfp4,
        fused=fused,
        fused_gate=fused.prepare(weight),
        topk=build.plan.pick(router_ops.EPILOGUE_OP),
        hashed=build.plan.pick(router_ops.HASH_OP),
        bias=bias,
        tid2eid=tid2eid,
    )
