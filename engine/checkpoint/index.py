"""A checkpoint folder's tensors by header: the index and the shards it names.

The index and the shards' headers must agree in both directions; `metadata.total_size` is often
stale and is not looked at. Needs no torch.
"""

from pathlib import Path
from typing import Any

from engine.checkpoint.headers import TensorInfo, read_header
from engine.checkpoint.strict_json import read_object, shown
from engine.errors import CheckpointError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_MAX_INDEX_BYTES = 128 << 20
_MAX_SHARDS = 4096

Infos = dict[str, TensorInfo]


def read_infos(folder: Path) -> Infos:
    """Where every tensor of a checkpoint lies.

    Raises:
        CheckpointError: no such folder, no index, a missing, truncated or foreign shard, an index
            that disagrees with the headers. The first of `scan`'s problems.
    """
    infos, problems = scan(folder)
    if problems:
        raise CheckpointError(problems[0])
    return infos


def scan(folder: Path) -> tuple[Infos, list[str]]:
    """Every tensor that can be read, and one line for each file that is wrong.

    Raises:
        CheckpointError: there is nothing to look at: no such folder, no index, no usable one.
    """
    if not folder.is_dir():
        kind = "is a file" if folder.exists() else "does not exist"
        raise CheckpointError(f"{folder}: {kind}; give the folder of a DeepSeek-V4 checkpoint")
    index_path, single = folder / INDEX, folder / SINGLE
    if not index_path.exists():
        if single.exists():
            return read_header(single), []
        raise CheckpointError(f"{folder}: neither {INDEX} nor {SINGLE}: no weights here")
    weight_map = _weight_map(index_path)
    shards = sorted(set(weight_map.values()))
    missing = [shard for shard in shards if not (folder / shard).exists()]
    problems = []
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        problems.append(f"{folder}: shard {missing[0]}{more} is missing; fetch it again")
    infos: Infos = {}
    broken = set(missing)
    for shard in shards:
        if shard in broken:
            continue
        try:
            infos.update(_shard(folder, shard, weight_map))
        except CheckpointError as error:
            problems.append(str(error))
            broken.add(shard)
    for name, shard in weight_map.items():
        if name not in infos and shard not in broken:
            problems.append(f"{folder / shard}: {shown(name)} is in {INDEX}, not in the shard")
            broken.add(shard)
    return infos, problems


def _shard(folder: Path, shard: str, weight_map: dict[str, str]) -> Infos:
    found = read_header(folder / shard)
    for name in found:
        if weight_map.get(name) != shard:
            raise CheckpointError(
                f"{folder / shard}: {name!r} is not listed for this shard in {INDEX}"
            )
    return found


def _weight_map(path: Path) -> dict[str, str]:
    index: Any = read_object(path, _MAX_INDEX_BYTES)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path}: no weight_map")
    plain: set[str] = set()
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or shard not in plain:
            if not _is_beside(shard):
                raise CheckpointError(
                    f"{path}: {shown(name)} points at {shown(shard)}, not a shard beside it"
                )
            plain.add(shard)
    if len(plain) > _MAX_SHARDS:
        raise CheckpointError(f"{path}: {len(plain)} shards, more than any checkpoint has")
    return weight_map


def _is_beside(shard: Any) -> bool:
    """Whether a shard's name is a plain file name of the expected kind."""
    return (
        isinstance(shard, str)
        and shard == Path(shard).name
        and "\\" not in shard
        and shard.isprintable()
        and shard.endswith(".safetensors")
        and len(shard) < 256
    )
