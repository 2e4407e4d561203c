"""Broken checkpoints: each refused in one line that names file and tensor, soon and cheaply."""

import json
import os
import random
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.checkpoint.files import CheckpointFiles
from engine.checkpoint.headers import read_header
from engine.checkpoint.index import INDEX
from engine.checkpoint.layouts import LAYOUTS, layout_config, to_layout
from engine.checkpoint.synthetic import random_parameters, small_config, write_checkpoint
from engine.errors import CheckpointError
from engine.model.build import build_model
from engine.model.config import ModelConfig
from tests.engine.mutations import MUTATIONS, NORM, SHARDS, edit_header, join, shard_of, split

CPU = torch.device("cpu")
RAW = small_config()
MOST_SECONDS = 1.0
MOST_BYTES = 200 << 20


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder per layout."""
    root = tmp_path_factory.mktemp("good")
    config = ModelConfig.parse(RAW)
    plain = random_parameters(config, 0)
    for layout in LAYOUTS:
        stored = to_layout(layout, config, plain)
        write_checkpoint(root / layout, layout_config(layout, RAW), stored, shards=SHARDS)
        load(root / layout)
    return root


def load(folder: Path) -> Any:
    config = ModelConfig.load(folder)
    return build_model(config, CheckpointFiles(folder), precision="nvfp4", device=CPU)


def memory(field: str) -> int:
    status = Path("/proc/self/status").read_text()
    found = re.search(rf"{field}:\s+(\d+) kB", status)
    assert found
    return int(found[1]) << 10


@pytest.fixture
def peak() -> Iterator[Any]:
    """Bytes of memory used at most since the test began, beyond what was in use then."""
    Path("/proc/self/clear_refs").write_text("5")
    idle = memory("VmRSS")
    yield lambda: memory("VmHWM") - idle


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_folder_is_refused(good: Path, tmp_path: Path, name: str, peak: Any) -> None:
    mutation = MUTATIONS[name]
    folder = Path(shutil.copytree(good / mutation.layout, tmp_path / "model"))
    mutation.breaks(folder)
    Path("/proc/self/clear_refs").write_text("5")
    start = time.process_time()
    with pytest.raises(CheckpointError, match=mutation.words) as raised:
        load(folder)
    message = str(raised.value)
    assert time.process_time() - start < MOST_SECONDS and peak() < MOST_BYTES
    assert str(folder) in message and mutation.names in message and "\n" not in message
    assert len(message) < 1000


def test_there_are_enough_ways_to_break_one() -> None:
    assert len(MUTATIONS) >= 60


# ---- odd but normal ------------------------------------------------------------------------------


def test_odd_but_normal_folders_load(good: Path, tmp_path: Path) -> None:
    """Shards as links into a blob store, a stale total_size, extra files, headers written by hand,
    scales of shape [1] beside those of shape []."""
    folder = Path(shutil.copytree(good / "nvidia", tmp_path / "snapshot"))
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for number, shard in enumerate(sorted(folder.glob("*.safetensors"))):
        target = blobs / f"{number:064x}"
        shard.rename(target)
        shard.symlink_to(os.path.relpath(target, folder))
    index = json.loads((folder / INDEX).read_text())
    index["metadata"]["total_size"] = 7
    index["extra"] = [1, 2]
    (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True))
    (folder / "README.md").write_text("hello")
    (folder / "consolidated.safetensors").write_bytes(b"not looked at")
    (folder / ".cache").mkdir()

    def by_hand(header: dict[str, Any]) -> None:
        header["__metadata__"] = {"format": "pt"}
        for name, entry in header.items():
            if name.endswith("weight_scale_2"):
                entry["shape"] = [1]
            header[name] = dict(reversed(entry.items()))

    edit_header(blobs / f"{0:064x}", by_hand)
    load(folder)


def test_one_file_without_an_index_loads(good: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    whole = {}
    for shard in (good / "nvidia").glob("*.safetensors"):
        whole |= load_file(shard)
    save_file(whole, tmp_path / "model.safetensors", metadata={"format": "pt"})
    shutil.copy(good / "nvidia" / "config.json", tmp_path)
    load(tmp_path)


def test_a_file_that_shrinks_while_it_is_read_is_an_error(good: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(good / "nvidia", tmp_path / "model"))
    files = CheckpointFiles(folder)
    for shard in folder.glob("*.safetensors"):
        os.truncate(shard, 5000)
    with pytest.raises(CheckpointError, match="become shorter"):
        build_model(ModelConfig.load(folder), files, precision="nvfp4", device=CPU)


# ---- random damage -------------------------------------------------------------------------------

_BITS = [b"{", b"}", b"[", b"]", b'"', b",", b":", b"-", b"\\", b"0", b"9" * 30, b"1e9", b"null"]
_BITS += [b"\x00", b"\xff", b"\\u0000", b'"shape":', b'"data_offsets":[0,0]', b"true", b"[[[["]
FUZZ_SECONDS = float(os.environ.get("DSV4_FUZZ_SECONDS", "20"))


def damage(body: bytes, rng: random.Random) -> bytes:
    """Header JSON with one to four small edits."""
    for _ in range(rng.randint(1, 4)):
        at, width = rng.randrange(len(body)), rng.choice((0, 1, 1, 4, 40))
        kind = rng.random()
        if kind < 0.4:
            put = rng.choice(_BITS)
        elif kind < 0.6:
            put = rng.randbytes(rng.randint(0, 4))
        elif kind < 0.8:
            start = rng.randrange(len(body))
            put = body[start : start + rng.randint(1, 200)]
        else:
            numbers = list(re.finditer(rb"\d+", body))
            found = rng.choice(numbers)
            at, width = found.start(), len(found[0])
            put = str(int(found[0]) + rng.choice((-1, 1, 8, -(1 << 40), 1 << 60))).encode()
        body = body[:at] + put + body[at + width :]
    return body


@pytest.mark.timeout(0)
def test_damaged_headers_are_refused_or_read_consistently(
    good: Path, tmp_path: Path, peak: Any
) -> None:
    """Whatever the header says, reading it ends in CheckpointError or in tensors inside the file.

    DSV4_FUZZ_SECONDS=600 for a longer run.
    """
    shard = shard_of(good / "nvidia", NORM)
    body, data = split(shard)
    target = tmp_path / "model.safetensors"
    end, seed, refused = time.monotonic() + FUZZ_SECONDS, 0, 0
    while time.monotonic() < end:
        rng = random.Random(seed)
        join(target, damage(body, rng), data)
        if rng.random() < 0.1:
            whole = bytearray(target.read_bytes())
            for _ in range(3):
                whole[rng.randrange(8)] = rng.randrange(256)
            target.write_bytes(whole[: rng.randrange(len(whole))])
        start = time.process_time()
        try:
            infos = read_header(target)
        except CheckpointError as error:
            refused += 1
            assert "\n" not in str(error) and str(target) in str(error), f"seed {seed}"
        else:
            spans = sorted((info.start, info.end) for info in infos.values())
            assert spans[-1][1] <= target.stat().st_size, f"seed {seed}"
            assert all(a[1] <= b[0] for a, b in zip(spans, spans[1:], strict=False))
        assert time.process_time() - start < MOST_SECONDS, f"seed {seed}"
        seed += 1
    assert refused > seed * 0.5 and peak() < MOST_BYTES
