"""`dsv4chat inspect`: from headers alone, fast, and honest about what is wrong."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.checkpoint.census import take_census
from engine.checkpoint.convert import mxfp4_as_nvfp4
from engine.checkpoint.files import TORCH_DTYPES, CheckpointFiles
from engine.checkpoint.geometry import RandomTensors, flash
from engine.checkpoint.layouts import draft_stage, layout_config, to_layout
from engine.checkpoint.synthetic import (
    MemoryTensors,
    random_parameters,
    small_config,
    write_checkpoint,
)
from engine.errors import ConfigError
from engine.inspect import _fits, _per_gpu, inspect
from engine.model.build import build_model
from engine.model.config import ModelConfig
from engine.model.split import Split
from engine.model.team import Team
from kernels.compiled import CollectingLibrary
from kernels.formats import quantise_mxfp4

DEMO = Path(__file__).parents[2] / "assets" / "demo"


def test_the_demo_is_described() -> None:
    found = inspect(DEMO)
    assert found["problems"] == []
    assert 21e6 < found["parameters"] < 24e6
    assert found["formats"]["experts"].startswith("nvfp4")
    assert found["formats"]["attention"].startswith("fp8")
    nvfp4, stored = found["needs"]["nvfp4"], found["needs"]["checkpoint"]
    assert nvfp4["resident_bytes"] < stored["resident_bytes"]
    assert nvfp4["bytes_per_token"] < nvfp4["resident_bytes"]


class _Shapes(CheckpointFiles):
    """A checkpoint whose tensors have shapes and no numbers."""

    def read(self, name: str, device: torch.device) -> Tensor:
        info = self.infos()[name]
        return torch.empty(info.shape, dtype=TORCH_DTYPES[info.dtype], device=device)

    def start(self, order: object, device: torch.device) -> None:
        pass


@pytest.mark.parametrize("precision", ["nvfp4", "checkpoint"])
def test_its_bytes_are_those_of_a_load(precision: str, tmp_path: Path) -> None:
    built = build_model(
        ModelConfig.load(DEMO), _Shapes(DEMO), precision=precision, device=torch.device("meta"),
        library=CollectingLibrary(tmp_path, "sm_90a"),
    )  # fmt: skip
    needs = inspect(DEMO)["needs"][precision]
    assert needs["resident_bytes"] == pytest.approx(built.resident_bytes, rel=1e-3)
    assert needs["bytes_per_token"] == pytest.approx(built.active_bytes, rel=1e-3)


@pytest.mark.parametrize("is_cast", [True, False])
def test_the_lossless_cast_is_told_from_other_nvfp4(is_cast: bool, tmp_path: Path) -> None:
    raw = small_config()
    config = ModelConfig.parse(raw)
    values = random_parameters(config, 0)
    stored = to_layout("nvidia", config, values)
    if is_cast:
        first = "layers.0.ffn.experts.0.w1"
        made = mxfp4_as_nvfp4(*quantise_mxfp4(values[f"{first}.weight"]))
        stored[f"{first}.weight"], stored[f"{first}.weight_scale"] = made.packed, made.scale
        stored[f"{first}.weight_scale_2"] = made.scale_2
    write_checkpoint(tmp_path, layout_config("nvidia", raw), stored)
    assert ("lossless cast" in inspect(tmp_path)["formats"]["experts"]) is is_cast


@pytest.mark.parametrize("size", [1, 2])
def test_bytes_of_a_gpu_are_those_of_a_rank(size: int, tmp_path: Path) -> None:
    config, source = ModelConfig.load(DEMO), _Shapes(DEMO)
    ranks = [
        build_model(
            config, source, precision="nvfp4", device=torch.device("meta"),
            library=CollectingLibrary(tmp_path, "sm_90a"), team=Team(Split(rank, size)),
        ).resident_bytes
        for rank in range(size)
    ]  # fmt: skip
    census = take_census(config, source.infos(), "demo")
    assert _per_gpu(config, census, size) == pytest.approx(max(ranks), rel=1e-3)


def test_a_model_too_large_for_one_gpu_says_how_many_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = flash(layers=4)
    census = take_census(config, RandomTensors(config).infos(), "flash")
    monkeypatch.setattr("engine.inspect._this_gpu", lambda: {"small": 12e9})
    (row,) = _fits(config, census)
    assert row["gpus"] in (2, 4) and not row["fits"] and row["context"] > 0
    monkeypatch.setattr("engine.inspect._this_gpu", lambda: {"tiny": 3e9})
    (row,) = _fits(config, census)
    assert row["gpus"] == 0 and row["context"] == 0


def test_what_is_left_out_is_named() -> None:
    config = ModelConfig.parse(small_config())
    stored, one = random_parameters(config, 0), draft_stage(config)
    many = {
        name.replace("mtp.0.", f"mtp.{stage}."): tensor
        for stage in range(3)
        for name, tensor in one.items()
    }
    vision = {"vision.blocks.0.attn.qkv.weight": torch.ones(4, 4)}
    for extra, what in (
        (one, "MTP draft stage"),
        (many, "3 DSpark draft stages"),
        (vision, "vision tower"),
    ):
        census = take_census(config, MemoryTensors(stored | extra).infos(), "here")
        assert census.problems == []
        assert {what: len(extra)} == {k: len(names) for k, names in census.ignored.items()}


def test_v41_is_refused_by_name(tmp_path: Path) -> None:
    """Its config is nested: nothing in it but the model type is looked at."""
    raw = {"model_type": "deepseek_v41", "text_config": {"num_hidden_layers": 40}}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(ConfigError, match=r"DeepSeek-V4\.1, another architecture"):
        inspect(tmp_path)


def test_it_needs_no_torch() -> None:
    script = "import sys; sys.modules['torch'] = None; from engine.inspect import main; main()"
    started = time.monotonic()
    ran = subprocess.run(
        [sys.executable, "-c", script, str(DEMO), "--json"], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["folder"] == str(DEMO)
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("broken", ["missing shard", "truncated shard"])
def test_faults_are_named_in_one_line(tmp_path: Path, broken: str) -> None:
    for name in ("config.json", "model.safetensors.index.json"):
        (tmp_path / name).write_bytes((DEMO / name).read_bytes())
    if broken == "truncated shard":
        whole = (DEMO / "model.safetensors").read_bytes()
        (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    problems = inspect(tmp_path)["problems"]
    assert len(problems) == 1 and "model.safetensors" in problems[0]
