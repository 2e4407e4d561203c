"""From a model folder to a session that can answer: device, weights, tokenizer, context,
warm-up."""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import platformdirs
import torch

from engine.checkpoint.files import CheckpointFiles
from engine.errors import EngineError, LoadStopped
from engine.machine import describe_machine
from engine.model.build import Built, Progress, build_model
from engine.model.config import ModelConfig
from engine.model.split import Split
from engine.model.team import Team
from engine.precompile import precompile
from engine.protocol import Event, Load, LoadProgress, ModelInfo, Ready, Sampling, StepOptions
from engine.ranks.lead import Followers
from engine.ranks.meeting import meet
from engine.ranks.runner import LeadRunner
from engine.runner import Runner
from engine.session import Session
from engine.text.effort import choose_profile
from engine.text.encoding import ChatEncoder
from engine.text.tokenizer import Tokenizer
from kernels.compiled import CollectingLibrary, KernelLibrary, architecture

# Contexts are opened at most this long unless asked for: state is allocated up front.
DEFAULT_CONTEXT = 32768
_DEMO = Path(__file__).parents[1] / "assets" / "demo"


@dataclass(frozen=True, slots=True)
class Loaded:
    session: Session
    ready: Ready


def end_process(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
    os._exit(1)


def load_session(
    command: Load,
    emit: Callable[[Event], None],
    interrupted: Callable[[], bool],
    take_dropped: Callable[[], int],
    stopped: Callable[[], bool] = lambda: False,
    lost: Callable[[str], None] = end_process,
) -> Loaded:
    """Load a model folder and run one step, so that `Ready` means a token was computed.

    stopped: asked often while weights are read; True ends the load.
    lost: called from a thread, at any time from now on, with words on a GPU whose process ended;
        this process may then be waiting for it for ever, and must end.

    Raises:
        LoadStopped: `stopped` said so.
        CheckpointError, ConfigError, TokenizerError, EngineError: in words fit to show.
    """
    folder = Path(command.model)
    check_gpus(command)
    device = pick_device(command.device)
    config = ModelConfig.load(folder)
    context = pick_context(config, command.context)
    emit(LoadProgress("reading the tokenizer"))
    tokenizer = Tokenizer.load(folder)
    profile = choose_profile(folder, command.effort_profile)
    encoder = ChatEncoder(tokenizer, profile.profile)

    split = Split(0, command.gpus)
    followers = Followers(command, context, device.type, lost) if command.gpus > 1 else None
    library = kernel_library(device, config, context, emit, split)
    team = Team()
    if followers is not None:
        emit(LoadProgress(f"waiting for {command.gpus} GPUs to meet"))
        team = meet(followers.store, split, device)
    progress = _reporter(emit, stopped)
    built = load_part(folder, config, command, device, library, team, progress)
    if followers is None:
        runner = Runner(built.model, context, device)
    else:
        emit(LoadProgress("waiting for the other GPUs"))
        built.resident_bytes += followers.wait(stopped)
        runner = LeadRunner(built.model, context, device, followers.tell)
    emit(LoadProgress("warming up"))
    warm_up(runner, tokenizer)
    session = Session(runner, tokenizer, encoder, emit, interrupted, take_dropped)
    ready = Ready(
        model=describe(folder, command, config, built, profile.profile),
        device=describe_device(device, command.gpus),
        context=context,
        plan=built.plan,
        layout=runner.layout,
        eos_ids=sorted(config.eos_ids),
        machine=describe_machine(device),
    )
    return Loaded(session, ready)


def _reporter(emit: Callable[[Event], None], stopped: Callable[[], bool]) -> Progress:
    """Progress as events; ends the load where `stopped` says so."""
    started = time.monotonic()

    def progress(stage: str, done: int, total: int) -> None:
        if stopped():
            raise LoadStopped("loading was stopped")
        spent = time.monotonic() - started
        rate = done / spent if spent > 0 else 0.0
        eta = (total - done) / rate if rate > 0 else None
        emit(LoadProgress(stage, done, total, rate / 1e9, eta))

    return progress


def load_part(
    folder: Path,
    config: ModelConfig,
    command: Load,
    device: torch.device,
    library: KernelLibrary | None,
    team: Team,
    progress: Progress | None = None,
) -> Built:
    """This rank's part of the model."""
    return build_model(
        config,
        CheckpointFiles(folder),
        precision=command.precision,
        device=device,
        library=library,
        team=team,
        progress=progress,
    )


def kernel_library(
    device: torch.device,
    config: ModelConfig,
    context: int,
    emit: Callable[[Event], None],
    split: Split | None = None,
) -> KernelLibrary | None:
    """The compiled kernels of a GPU we make kernels for, all of this rank's ready; else None.

    Raises KernelError.
    """
    arch = architecture(device)
    if not arch:
        return None
    folder = Path(platformdirs.user_cache_dir("dsv4chat")) / "kernels"

    def say(name: str) -> None:
        emit(LoadProgress(f"compiling {name}"))

    precompile(config, context, CollectingLibrary(folder, arch, say), split)
    return KernelLibrary(folder, arch, say)


def check_gpus(command: Load) -> None:
    """Raises EngineError where more GPUs are asked for than there are, or fewer than one."""
    if command.gpus < 1:
        raise EngineError(f"--gpus {command.gpus}: at least one")
    found = torch.cuda.device_count()
    if command.device != "cpu" and command.gpus > max(found, 1):
        raise EngineError(
            f"--gpus {command.gpus}: this machine shows {found}; nvidia-smi and "
            "CUDA_VISIBLE_DEVICES say which (--device cpu splits over processes, for trying it out)"
        )


def pick_device(wanted: str, rank: int = 0) -> torch.device:
    """The device of a rank, made the current one.

    Raises EngineError where cuda is asked for and there is none.
    """
    if wanted == "cuda" and not torch.cuda.is_available():
        raise EngineError(
            "no CUDA device is usable here: check nvidia-smi and that torch is a CUDA build "
            "(`make clean chat TORCH=cuda`), or use --device cpu"
        )
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cpu":
        # Decode is a stream of small ops; a second thread costs more than it brings.
        torch.set_num_threads(1)
        return torch.device(wanted)
    torch.cuda.set_device(rank)
    return torch.device(wanted, rank)


def pick_context(config: ModelConfig, wanted: int | None) -> int:
    """Raises EngineError where more is asked for than the model was made for."""
    if wanted is None:
        return min(config.max_context, DEFAULT_CONTEXT)
    if wanted > config.max_context:
        raise EngineError(f"--context {wanted}: this model's positions end at {config.max_context}")
    return wanted


def warm_up(runner: Runner, tokenizer: Tokenizer) -> None:
    """One greedy step of each kind on a throwaway token; leaves the sequence empty."""
    for taps in (False, True):
        runner.begin(min(tokenizer.stop_ids), Sampling(temperature=0), 0)
        runner.step(StepOptions(taps=taps))
        runner.rewind(0, [])


def describe_device(device: torch.device, count: int = 1) -> str:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return name if count == 1 else f"{count}x {name}"


def describe(
    folder: Path, command: Load, config: ModelConfig, built: Built, profile: str
) -> ModelInfo:
    return ModelInfo(
        name=folder.resolve().name,
        path=str(folder.resolve()),
        is_demo=folder.resolve() == _DEMO,
        layers=config.num_layers,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        experts=config.num_experts,
        top_k=config.top_k,
        hash_layers=config.num_hash_layers,
        compress_ratios=config.compress_ratios,
        precision=command.precision,
        parameters=built.parameters,
        resident_bytes=built.resident_bytes,
        bytes_per_token=built.active_bytes,
        formats=built.formats,
        gsa_stored=built.gsa_stored,
        effort_profile=profile,
    )
