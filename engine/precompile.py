"""Every kernel a model's step needs, compiled into the cache without its weights or even a GPU."""

import dataclasses
from typing import get_args

import torch

from engine.checkpoint.geometry import RandomTensors
from engine.decode import DecodeStep
from engine.model.build import build_model
from engine.model.config import ModelConfig
from engine.model.split import Split
from engine.model.team import Team
from engine.protocol import GsaMode, RouterPath, StepOptions
from engine.runner import tap_layout
from engine.state import SequenceState
from kernels.compiled import CollectingLibrary

_META = torch.device("meta")


def precompile(
    config: ModelConfig, context: int, library: CollectingLibrary, split: Split | None = None
) -> int:
    """Run the step of one rank on shapes alone, for all options, and compile what it asked for.

    Returns:
        how many kernels were compiled.

    Raises:
        KernelError: one of them does not compile.
    """
    config = _one_layer_of_each_kind(config)
    source = RandomTensors(config, input_scales=True)
    built = build_model(
        config, source, precision="nvfp4", device=_META, library=library, team=Team(split)
    )
    state = SequenceState(config, context, _META, built.model.dtype)
    step = DecodeStep(built.model, state, tap_layout(config), _META)
    for router in get_args(RouterPath):
        for gsa in get_args(GsaMode):
            for taps in (False, True):
                step.run(StepOptions(router, gsa, taps))
    library.compile(list(library.wanted))
    return library.compiled


def _one_layer_of_each_kind(config: ModelConfig) -> ModelConfig:
    """Kernels depend on a layer's compress ratio and on whether it is hash-routed, nothing else."""
    kinds = {
        (index >= config.num_hash_layers, ratio)
        for index, ratio in enumerate(config.compress_ratios)
    }
    ordered = sorted(kinds)  # hash layers come first
    return dataclasses.replace(
        config,
        num_layers=len(ordered),
        compress_ratios=tuple(ratio for _, ratio in ordered),
        num_hash_layers=sum(not scored for scored, _ in ordered),
    )
