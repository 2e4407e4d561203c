"""A checkpoint folder's tensors by header: the index and the shards it names.

The index and the shards' headers must agree in both directions; `metadata.total_size` is often
stale and is not looked at. Needs no torch.
"""

import json
from pathlib import Path
from typing import Any

from engine.checkpoint.headers import TensorInfo, read_header
from engine.errors import CheckpointError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


def read_infos(folder: Path) -> dict[str, TensorInfo]:
    """Where every tensor of a checkpoint lies.

    Raises:
        CheckpointError: no such folder, no index, a missing, truncated or foreign shard, an index
        that
            disagrees with the headers.
    """
    if not folder.is_dir():
        kind = "is a file" if folder.exists() else "does not exist"
        raise CheckpointError(f"{folder}: {kind}; give the folder of a DeepSeek-V4 checkpoint")
    index_path, single = folder / INDEX, folder / SINGLE
    if not index_path.exists():
        if single.exists():
            return read_header(single)
        raise CheckpointError(f"{folder}: neither {INDEX} nor {SINGLE}: no weights here")
    weight_map = _weight_map(index_path)
    shards = sorted(set(weight_map.values()))
    missing = [shard for shard in shards if not (folder / shard).exists()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointError(f"{folder}: shard {missing[0]}{more} is missing; fetch it again")
    infos: dict[str, TensorInfo] = {}
    for shard in shards:
        for name, info in read_header(folder / shard).items():
            if weight_map.get(name) != shard:
                raise CheckpointError(
                    f"{folder / shard}: {name!r} is not listed for this shard in {INDEX}"
                )
            infos[name] = info
    for name, shard in weight_map.items():
        if name not in infos:
            raise CheckpointError(f"{folder / shard}: {name!r} is in {INDEX}, not in the shard")
    return infos


def _weight_map(path: Path) -> dict[str, str]:
    try:
        index: Any = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON: {error}") from None
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path}: no weight_map")
    for name, shard in weight_map.items():
        plain = isinstance(shard, str) and shard == Path(shard).name and "\\" not in shard
        if not plain or not shard.endswith(".safetensors"):
            raise CheckpointError(f"{path}: {name!r} points at {shard!r}, not a shard beside it")
    return weight_map
