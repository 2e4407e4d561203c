"""Loading: what a good folder gives, and one clear line for each kind of broken one."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.checkpoint.files import CheckpointFiles
from engine.checkpoint.index import INDEX, read_infos
from engine.checkpoint.layouts import draft_stage, to_nvidia
from engine.checkpoint.synthetic import (
    MemoryTensors,
    random_parameters,
    small_config,
    write_checkpoint,
)
from engine.errors import CheckpointError, ConfigError
from engine.model.build import build_model
from engine.model.config import ModelConfig
from engine.protocol import StepOptions
from engine.runner import logits_of

CPU = torch.device("cpu")
RAW = small_config()
CONFIG = ModelConfig.parse(RAW)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    write_checkpoint(folder, RAW, to_nvidia(random_parameters(CONFIG, 0)), shards=3)
    return folder


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "model"))


def load(folder: Path) -> Any:
    config = ModelConfig.load(folder)
    return build_model(config, CheckpointFiles(folder), precision="nvfp4", device=CPU)


def test_a_folder_gives_the_model_it_was_written_from(good: Path) -> None:
    ids = torch.arange(2, 42)
    stored = to_nvidia(random_parameters(CONFIG, 0))
    memory = build_model(CONFIG, MemoryTensors(stored), precision="nvfp4", device=CPU)
    disk = load(good)
    options = StepOptions(taps=False)
    assert torch.equal(
        logits_of(disk.model, ids, options, 64), logits_of(memory.model, ids, options, 64)
    )
    assert disk.formats["experts"] == "nvfp4" and disk.formats["attention"] == "fp8"
    assert disk.gsa_stored["ffn_in"] == pytest.approx([8 / 2688] * 4)
    assert disk.parameters == sum(
        p.numel() for name, p in random_parameters(CONFIG, 0).items() if "tid2eid" not in name
    )


@pytest.mark.parametrize("precision", ["nvfp4", "checkpoint"])
@pytest.mark.parametrize("router", ["fused", "two-kernel", "bf16"])
@pytest.mark.parametrize("gsa", ["runtime", "checkpoint"])
def test_every_mode_gives_finite_logits_near_the_plain_ones(
    good: Path, precision: Any, router: Any, gsa: Any
) -> None:
    ids = torch.arange(2, 42)
    plain = build_model(
        CONFIG, MemoryTensors(random_parameters(CONFIG, 0)), precision="checkpoint", device=CPU
    )
    built = build_model(CONFIG, CheckpointFiles(good), precision=precision, device=CPU)
    expected = logits_of(plain.model, ids, StepOptions("bf16", "runtime", False), 64)
    found = logits_of(built.model, ids, StepOptions(router, gsa, False), 64)
    assert found.isfinite().all()
    similarity = torch.cosine_similarity(found.flatten(), expected.flatten(), 0)
    assert 0.5 < similarity < 0.9999  # 4-bit weights and inputs: near, and not the same


def test_one_file_without_an_index_loads(folder: Path) -> None:
    for file in [folder / INDEX, *folder.glob("*.safetensors")]:
        file.unlink()
    from safetensors.torch import save_file

    tensors = to_nvidia(random_parameters(CONFIG, 0))
    save_file(tensors, folder / "model.safetensors")
    assert load(folder).formats["experts"] == "nvfp4"


def test_odd_but_normal_folders_load(folder: Path, tmp_path: Path) -> None:
    """Shards as links into a blob store, a stale total_size, extra files."""
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for number, shard in enumerate(sorted(folder.glob("*.safetensors"))):
        target = blobs / str(number)
        shard.rename(target)
        shard.symlink_to(target)
    index = json.loads((folder / INDEX).read_text())
    index["metadata"]["total_size"] = 7
    (folder / INDEX).write_text(json.dumps(index))
    (folder / "README.md").write_text("hello")
    load(folder)


def test_draft_stages_and_vision_parts_are_left_out(tmp_path: Path) -> None:
    stored = to_nvidia(random_parameters(CONFIG, 0)) | draft_stage(CONFIG)
    stored["vision.blocks.0.attn.qkv.weight"] = torch.ones(4, 4)
    write_checkpoint(tmp_path / "m", RAW, stored, shards=2)
    load(tmp_path / "m")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("model_type", "deepseek_v41", "DeepSeek-V4.1"),
        ("model_type", "llama", "'llama', expected 'deepseek_v4'"),
        ("scoring_func", "softmax", "expected 'sqrtsoftplus'"),
        ("hidden_size", "64", "expected an integer"),
        ("hidden_size", True, "expected an integer"),
        ("q_lora_rank", 40, "a multiple of 16"),
        ("num_experts_per_tok", 8, "below n_routed_experts"),
        ("compress_ratios", [0, 4], "at least 4 ratios"),
        ("compress_ratios", [0, 2, 2, 1], "DeepSeek-V4.1"),
        ("rms_norm_eps", float("nan"), "a positive number"),
        ("rope_scaling", {"type": "linear"}, "expected 'yarn'"),
        ("eos_token_id", 999, "below vocab_size"),
    ],
)
def test_a_config_this_engine_cannot_run_is_refused(key: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ModelConfig.parse({**RAW, key: value})


def test_a_folder_that_is_not_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json"):
        load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(RAW))
    with pytest.raises(CheckpointError, match="no weights here"):
        load(tmp_path)
    with pytest.raises(CheckpointError, match="does not exist"):
        read_infos(tmp_path / "nowhere")
