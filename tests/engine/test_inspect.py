"""`dsv4chat inspect`: from headers alone, fast, and honest about what is wrong."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.inspect import inspect

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
