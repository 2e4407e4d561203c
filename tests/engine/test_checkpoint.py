"""Loading: what a good folder gives, and one clear line for each kind of broken one."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.checkpoint.files import CheckpointFiles
from engine.checkpoint.index import INDEX, read_infos
from engine.checkpoint.synthetic import (
    MemoryTensors,
    random_parameters,
    small_config,
    to_nvidia,
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


def test_draft_stages_are_left_out(folder: Path) -> None:
    edit_tensors(folder, lambda tensors: tensors.update({"mtp.0.norm.weight": torch.ones(8)}))
    load(folder)


# ---- broken ones ---------------------------------------------------------------------------------


def shard_of(folder: Path, name: str) -> Path:
    return folder / json.loads((folder / INDEX).read_text())["weight_map"][name]


def edit_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Rewrite the folder with changed tensors."""
    files = CheckpointFiles(folder)
    tensors = {name: files.read(name, CPU) for name in files.infos()}
    change(tensors)
    for shard in folder.glob("*.safetensors"):
        shard.unlink()
    write_checkpoint(folder, json.loads((folder / "config.json").read_text()), tensors, shards=3)


def edit_header(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Rewrite a shard's header, the data untouched."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    change(header)
    body = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(body)) + body + raw[8 + length :])


def edit_index(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    index = json.loads((folder / INDEX).read_text())
    change(index["weight_map"])
    (folder / INDEX).write_text(json.dumps(index))


NORM = "layers.1.attn_norm.weight"
EXPERT = "layers.2.ffn.experts.3.w2"


def set_in(name: str, value: float) -> Callable[[Path], None]:
    def breaks(folder: Path) -> None:
        edit_tensors(folder, lambda t: t[name].view(-1)[0].fill_(value))

    return breaks


def drop(name: str) -> Callable[[Path], None]:
    return lambda folder: edit_tensors(folder, lambda t: t.pop(name))


def replace(name: str, tensor: torch.Tensor) -> Callable[[Path], None]:
    return lambda folder: edit_tensors(folder, lambda t: t.update({name: tensor}))


def truncate(folder: Path) -> None:
    shard = shard_of(folder, NORM)
    shard.write_bytes(shard.read_bytes()[:-100])


def header_value(key: str, value: Any) -> Callable[[Path], None]:
    def breaks(folder: Path) -> None:
        edit_header(shard_of(folder, NORM), lambda header: header[NORM].update({key: value}))

    return breaks


def point_at(where: str) -> Callable[[Path], None]:
    return lambda folder: edit_index(folder, lambda weight_map: weight_map.update({NORM: where}))


BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing shard": (lambda f: shard_of(f, NORM).unlink(), "is missing"),
    "truncated shard": (truncate, "truncated"),
    "not safetensors": (lambda f: shard_of(f, NORM).write_text("version https://git-lfs"), "LFS"),
    "empty shard": (lambda f: shard_of(f, NORM).write_bytes(b""), "not a safetensors file"),
    "huge header": (
        lambda f: shard_of(f, NORM).write_bytes(struct.pack("<Q", 1 << 60)), "not a safetensors"),
    "index is not JSON": (lambda f: (f / INDEX).write_text("{"), "cannot be read as JSON"),
    "index without a map": (lambda f: (f / INDEX).write_text("{}"), "no weight_map"),
    "index points outside": (point_at("../evil.safetensors"), "not a shard beside it"),
    "index points at root": (point_at("/etc/passwd"), "not a shard beside it"),
    "index names another shard": (
        lambda f: edit_index(f, lambda m: m.update({NORM: sorted(set(m.values()) - {m[NORM]})[0]})),
        "not listed for this shard"),
    "index names a ghost": (
        lambda f: edit_index(f, lambda m: m.update({"ghost": m[NORM]})), "'ghost' is in"),
    "overlap": (
        lambda f: edit_header(shard_of(f, NORM), lambda h: next(
            v for k, v in h.items() if k not in (NORM, "__metadata__")).update(
                {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]})), "a gap|overlaps"),
    "unknown dtype": (header_value("dtype", "F4"), "unknown dtype"),
    "impossible shape": (header_value("shape", [1 << 60, 1 << 60]), "needs"),
    "negative shape": (header_value("shape", [-64]), "list of sizes"),
    "offsets past the end": (header_value("data_offsets", [1 << 40, (1 << 40) + 128]), "truncated"),
    "missing tensor": (drop(NORM), f"tensor '{NORM}' is missing"),
    "missing block scale": (drop(f"{EXPERT}.weight_scale"), "weight_scale' is missing"),
    "missing global scale": (drop(f"{EXPERT}.weight_scale_2"), f"{EXPERT}.scale' is missing"),
    "wrong shape": (replace(NORM, torch.ones(3)), r"has shape \[3\], expected \[64\]"),
    "wrong dtype": (replace(NORM, torch.ones(64, dtype=torch.int64)), "is I64, expected BF16"),
    "stray tensor": (replace("layers.1.attn.extra", torch.ones(3)), "not part of this"),
    "zero global scale": (set_in(f"{EXPERT}.weight_scale_2", 0.0), "finite and above zero"),
    "nan global scale": (set_in(f"{EXPERT}.weight_scale_2", float("nan")), "finite and above"),
    "inf input scale": (set_in(f"{EXPERT}.input_scale", float("inf")), "finite and above zero"),
    "negative input scale": (set_in(f"{EXPERT}.input_scale", -1.0), "finite and above zero"),
    "nan block scale": (
        lambda f: edit_tensors(f, lambda t: t[f"{EXPERT}.weight_scale"].view(
            torch.uint8).view(-1)[3].fill_(0x7F)), "finite and not negative"),
    "nan tile scale": (
        lambda f: edit_tensors(f, lambda t: t["layers.0.attn.wq_a.scale"].view(
            torch.uint8).view(-1)[0].fill_(255)), "holds NaN"),
    "expert id out of range": (
        lambda f: edit_tensors(f, lambda t: t["layers.0.ffn.gate.tid2eid"][0].fill_(99)),
        "an expert that does not exist"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_folder_is_refused_in_one_line(folder: Path, name: str) -> None:
    breaks, words = BROKEN[name]
    breaks(folder)
    with pytest.raises(CheckpointError, match=words) as raised:
        load(folder)
    assert "\n" not in str(raised.value)


def test_a_header_that_names_a_tensor_twice_is_refused(folder: Path) -> None:
    shard = shard_of(folder, NORM)
    raw = shard.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    entry = json.dumps({NORM: {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}})[1:-1]
    body = raw[8 : 8 + length].rstrip()[:-1] + b"," + entry.encode() + b"}"
    shard.write_bytes(struct.pack("<Q", len(body)) + body + raw[8 + length :])
    with pytest.raises(CheckpointError, match="stands twice"):
        read_infos(folder)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("model_type", "deepseek_v41", "DeepSeek-V4.1"),
        ("model_type", "llama", "'llama', expected 'deepseek_v4'"),
        ("scoring_func", "softmax", "expected 'sqrtsoftplus'"),
        ("hidden_size", "64", "expected an integer"),
        ("hidden_size", True, "expected an integer"),
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
