"""Every kernel a model's step needs, compiled into the cache without a GPU and without weights."""

import torch

from engine.checkpoint.geometry import RandomTensors
from engine.decode import DecodeStep
from engine.model.build import build_model
from engine.model.config import ModelConfig
from engine.protocol import StepOptions
from engine.runner import tap_layout
from engine.state import SequenceState
from kernels.compiled import CompilingLibrary

_META = torch.device("meta")


def precompile(config: ModelConfig, context: int, library: CompilingLibrary) -> int:
    """Run the step on shapes alone, for all options; returns how many kernels were compiled.

    Raises:
        KernelError: one of them does not compile.
    """
    built = build_model(
        config, RandomTensors(config), precision="nvfp4", device=_META, library=library
    )
    state = SequenceState(config, context, _META, built.model.dtype)
    step = DecodeStep(built.model, state, tap_layout(config), _META)
    for router in ("fused", "two-kernel", "bf16"):
        for taps in (False, True):
            for gsa in ("runtime", "checkpoint"):
                step.run(StepOptions(router, gsa, taps))  # type: ignore[arg-type]
    return library.compiled
