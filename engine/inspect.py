"""`dsv4chat inspect DIR`: what a checkpoint is and needs, and what is wrong with it.

From config.json, the index and the shards' headers, and one expert's scales: no torch is needed,
and it takes two to four seconds for the largest model.
"""

import argparse
import gc
import json
import math
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from engine.checkpoint.cast import is_lossless_cast
from engine.checkpoint.census import Census, Placed, take_census
from engine.checkpoint.index import scan
from engine.errors import CheckpointError, ConfigError
from engine.gpus import query_gpus
from engine.model.config import ModelConfig
from engine.model.split import Split

WORKSPACE_BYTES = 2 << 30  # graphs, prefill tiles, the driver
_GPUS = {"H100 80 GB": 80e9, "RTX PRO 6000 96 GB": 96e9, "H200 141 GB": 141e9,
         "B200 180 GB": 180e9, "B300 288 GB": 288e9}  # fmt: skip
_BOXES = (1, 2, 4, 8)  # GPUs of one machine
_BF16, _F32 = 2, 4


def inspect(folder: Path) -> dict[str, Any]:
    """Everything that --json prints; `problems` says, a line each, why it cannot be loaded.

    Raises:
        CheckpointError, ConfigError: there is nothing to look at, or it is another model.
    """
    config = ModelConfig.load(folder)
    infos, problems = scan(folder)
    census = take_census(config, infos, str(folder))
    # A broken shard explains its missing tensors: only its own line is shown.
    problems = problems or census.problems
    needs = {precision: _needs(config, census, precision) for precision in ("nvfp4", "checkpoint")}
    return {
        "folder": str(folder),
        "model": f"DeepSeek-V4, {config.num_layers} layers, hidden {config.hidden_size}, "
        f"{config.num_experts} experts, {config.top_k} a token",
        "formats": _formats(census),
        "parameters": sum(math.prod(placed.parameter.shape) for placed in census.placed),
        "bytes_on_disk": sum(info.size_bytes for info in infos.values()),
        "ignored": {what: len(names) for what, names in census.ignored.items()},
        "needs": needs,
        "kv_bytes_per_1000_tokens": _kv_bytes(config, 1000),
        "max_context": config.max_context,
        "fits": _fits(config, census),
        "problems": problems,
    }


def _formats(census: Census) -> dict[str, str]:
    """Tensor class -> formats of its linears, with their spelling."""
    found: dict[str, set[str]] = defaultdict(set)
    for parameter, layout, _ in census.placed:
        if layout is not None:
            found[parameter.kind].add(f"{layout.format} ({layout.spelling})")
    formats = {kind: ", ".join(sorted(names)) for kind, names in found.items()}
    experts = (placed for placed in census.placed if placed.parameter.kind == "experts")
    first = next(experts, None)
    if first is not None and first.layout is not None and is_lossless_cast(first.layout):
        formats["experts"] += ", the lossless cast of MXFP4 (seen in the first expert)"
    return formats


def _held(placed: Placed, precision: str) -> int:
    """Bytes of a parameter on the device, as the builder holds it; of the gate the NVFP4 form."""
    parameter, layout, stored = placed
    count = math.prod(parameter.shape)
    if layout is None:
        return stored if parameter.role == "matrix" else count * _F32  # a table's ids are int32
    if "nvfp4" in (precision, layout.format) or parameter.kind == "router gate":
        return count // 2 + count // 16 + _F32
    is_o_a = parameter.prefix.endswith(".wo_a")  # kept in bf16, and its input unquantised
    return count * _BF16 if is_o_a or layout.format == "float" else stored


def _needs(config: ModelConfig, census: Census, precision: str) -> dict[str, int]:
    """resident_bytes: weights on the device. bytes_per_token: weights that one token reads."""
    resident = per_token = 0
    for placed in census.placed:
        parameter, size = placed.parameter, _held(placed, precision)
        resident += size
        if parameter.kind == "router gate":
            resident += math.prod(parameter.shape) * _BF16  # for the router path bf16
        if parameter.name == "embed.weight" or parameter.role == "table":
            continue  # a token reads one row
        routed = parameter.kind == "experts"
        per_token += size * config.top_k // config.num_experts if routed else size
    return {"resident_bytes": resident, "bytes_per_token": per_token}


def _kv_bytes(config: ModelConfig, tokens: int) -> int:
    """Cache rows that `tokens` of context add, in bf16; the windows are constant."""
    total = 0
    for layer, ratio in enumerate(config.compress_ratios):
        if ratio:
            width = config.head_dim + config.index_head_dim * config.has_indexer(layer)
            total += tokens * width * _BF16 // ratio
    return total


def _per_gpu(config: ModelConfig, census: Census, size: int) -> int:
    """Bytes in NVFP4 on the fullest of `size` GPUs."""
    experts = sum(_held(p, "nvfp4") for p in census.placed if p.parameter.kind == "experts")
    others = [p for p in census.placed if p.parameter.kind != "experts"]
    totals = []
    for split in (Split(rank, size) for rank in range(size)):
        total = experts * len(split.experts(config).held) // config.num_experts
        for placed in others:
            rows = split.held_rows(config, placed.parameter)
            total += _held(placed, "nvfp4") * rows // placed.parameter.shape[0]
            if placed.parameter.kind == "router gate" and placed.layout is not None:
                total += math.prod(placed.parameter.shape) * _BF16
        totals.append(total)
    return max(totals)


def _fits(config: ModelConfig, census: Census) -> list[dict[str, Any]]:
    """Per kind of GPU: how many hold the weights in NVFP4, 0 where no box of them does, and the
    longest context beside the weights. `fits`: one is enough."""
    here = _this_gpu()
    needed = {size: _per_gpu(config, census, size) for size in _BOXES}
    per_token = max(_kv_bytes(config, 1000) / 1000, 1)  # every GPU holds all of it
    rows = []
    for name, memory in (here or _GPUS).items():
        rooms = {size: memory - bytes_ - WORKSPACE_BYTES for size, bytes_ in needed.items()}
        count = next((size for size, room in rooms.items() if room > 0), 0)
        context = int(min(rooms[count] / per_token, config.max_context)) if count else 0
        rows.append({"gpu": name, "here": bool(here), "fits": count == 1, "gpus": count,
                     "context": context})  # fmt: skip
    return rows


def _this_gpu() -> dict[str, float]:
    """Name -> bytes of the first GPU of this machine; empty without one."""
    found = query_gpus("name,memory.total")
    if not found:
        return {}
    name, _, mebibytes = found[0].rpartition(",")
    return {name: float(mebibytes) * (1 << 20)}


def show(found: dict[str, Any]) -> None:
    print(f"{found['folder']}\n{found['model']}")
    print(f"parameters  {found['parameters'] / 1e9:,.3f} billion, "
          f"{found['bytes_on_disk'] / 1e9:,.2f} GB on disk")  # fmt: skip
    for kind, formats in found["formats"].items():
        print(f"  {kind:<16}{formats}")
    for what, count in found["ignored"].items():
        print(f"  left out: {count} tensors: {what}")
    for precision, needs in found["needs"].items():
        print(f"--precision {precision:<12}{needs['resident_bytes'] / 1e9:>9,.2f} GB resident, "
              f"{needs['bytes_per_token'] / 1e9:,.3f} GB read a token")  # fmt: skip
    print(f"context     {found['kv_bytes_per_1000_tokens'] / 1e6:,.2f} MB for 1,000 tokens, "
          f"at most {found['max_context']:,} tokens")  # fmt: skip
    for row in found["fits"]:
        text = f"does not fit {_BOXES[-1]} of them"
        if row["gpus"]:
            count = "fits" if row["fits"] else f"fits {row['gpus']} (--gpus {row['gpus']})"
            text = f"{count}, context up to {row['context']:,}"
        print(f"  {row['gpu']:<20}{'this machine: ' if row['here'] else ''}{text}")
    for problem in found["problems"]:
        print(f"problem     {problem}")
    if not found["problems"]:
        print("no problem found: every tensor has one use, every parameter one source")


def main() -> int:
    parser = argparse.ArgumentParser(prog="dsv4chat inspect", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    gc.disable()  # hundreds of thousands of small objects, none of them garbage before the end
    try:
        found = inspect(args.folder)
    except (CheckpointError, ConfigError) as error:
        print(f"dsv4chat: {error}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(found))
    else:
        show(found)
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
