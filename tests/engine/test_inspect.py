"""`dsv4chat inspect`: from headers alone, fast, and honest about what is wrong."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.checkpoint.files import TORCH_DTYPES, CheckpointFiles
from engine.inspect import inspect
from engine.model.build import build_model
from engine.model.config import ModelConfig
from kernels.compiled import CollectingLibrary

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
