"""`dsv4chat doctor`: can this machine run the engine, and does every kernel here agree with its
reference?

On a GPU it runs each kernel on fresh random data, then 200 decode steps of a small model under
torch's sync detector. What only a B200 executes (sm_100a code) is checked the first time here, on
its owner's machine.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import platformdirs
import torch

from engine.checkpoint.files import CheckpointFiles
from engine.checkpoint.layouts import to_nvidia
from engine.checkpoint.synthetic import MemoryTensors, random_parameters, small_config
from engine.machine import driver, packages
from engine.model.build import build_model
from engine.model.config import ModelConfig
from engine.precompile import precompile
from engine.protocol import Sampling, StepOptions
from engine.runner import Runner
from kernels import conformance
from kernels.compiled import CollectingLibrary, KernelLibrary, architecture

_DEMO = Path(__file__).parents[1] / "assets" / "demo"
_STEPS = 200

# Architectures whose kernels somebody has run against their references; the others are compiled
# only.
RUN_ON = {"sm_90a": "NVIDIA H200"}


def run(say: Callable[[str], None]) -> dict[str, Any]:
    """Everything, said line by line; the result is what --json prints."""
    result: dict[str, Any] = {"machine": _machine(), "packages": packages(), "problems": []}
    machine = result["machine"]
    say(f"machine   {machine['system']}, {machine['cores']} cores, python {machine['python']}")
    say("packages  " + ", ".join(f"{name} {v}" for name, v in result["packages"].items()))
    result["demo"] = _demo()
    say(f"demo      {result['demo']}")
    result["gpu"] = _gpu()
    say(f"gpu       {result['gpu']['name']} {result['gpu']['note']}")
    if not result["gpu"]["arch"]:
        say("kernels   none to check without a supported GPU; the plain torch path is used")
        return result
    device = torch.device("cuda")
    library = _library(device, say)
    result["kernels"] = _kernels(library, device, say)
    try:
        result["decode"] = _decode(library, device)
    except Exception as error:
        result["decode"] = {"note": str(error), "problems": [f"decode: {error}"]}
    say(f"decode    {result['decode']['note']}")
    bad = [row for row in result["kernels"] if not row["ok"]]
    result["problems"] += [f"{row['op']} {row['case']}: {row['note']}" for row in bad]
    result["problems"] += result["decode"]["problems"]
    return result


def _machine() -> dict[str, Any]:
    return {
        "system": platform.platform(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
    }


def _demo() -> str:
    try:
        config = ModelConfig.load(_DEMO)
        built = build_model(
            config, CheckpointFiles(_DEMO), precision="nvfp4", device=torch.device("cpu")
        )
        runner = Runner(built.model, 256, torch.device("cpu"))
        runner.begin(config.eos_ids[0], Sampling(temperature=0), 0)
        runner.step(StepOptions())
    except Exception as error:
        return f"cannot be run: {error}"
    return "loads and computes a token on the CPU"


def _gpu() -> dict[str, str]:
    if not torch.cuda.is_available():
        hint = "torch is a CPU build" if torch.version.cuda is None else "no CUDA device is visible"
        return {"name": "none", "arch": "", "note": f"({hint})", "driver": ""}
    name = torch.cuda.get_device_name()
    arch = architecture(torch.device("cuda"))
    note = f"{arch}, CUDA {torch.version.cuda}" if arch else "(no kernels are made for it)"
    if arch and arch not in RUN_ON:
        note += "; its kernels are compiled and inspected, and checked for the first time now"
    return {"name": name, "arch": arch, "note": note, "driver": driver()}


def _library(device: torch.device, say: Callable[[str], None]) -> KernelLibrary:
    """Kernels of all cases, compiled together first."""
    folder = Path(platformdirs.user_cache_dir("dsv4chat")) / "kernels"
    arch = architecture(device)
    collected = CollectingLibrary(folder, arch, lambda name: say(f"compile   {name}"))
    for row in conformance.run(collected, torch.device("meta")):
        say(f"FAIL      {row.op} {row.case}: {row.message}")
    collected.compile(list(collected.wanted))
    return KernelLibrary(folder, arch, lambda name: say(f"compile   {name}"))


def _kernels(
    library: KernelLibrary, device: torch.device, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    torch.backends.cuda.matmul.allow_tf32 = False
    rows = []
    for row in conformance.run(library, device, seed=int(time.time())):
        mark = "ok  " if row.ok else "FAIL"
        note = row.message or f"error {row.error:.1e}, limit {row.limit:.0e}"
        say(f"{mark}      {row.op:<22}{row.case:<48}{note}")
        rows.append({**asdict(row), "ok": row.ok, "note": note})
    return rows


def _decode(library: KernelLibrary, device: torch.device) -> dict[str, Any]:
    """Steps of a small model in a graph: no sync, no allocation, no compile, as eager to the
    bit."""
    config = ModelConfig.parse(
        small_config(hidden_size=256, head_dim=128, qk_rope_head_dim=64, q_lora_rank=128,
                     o_lora_rank=128, moe_intermediate_size=128, index_head_dim=128)
    )  # fmt: skip
    precompile(config, 1024, CollectingLibrary(library.folder, library.arch))
    source = MemoryTensors(to_nvidia(random_parameters(config, 1)))
    built = build_model(config, source, precision="nvfp4", device=device, library=library)
    tokens = {graphs: _greedy(built.model, device, graphs) for graphs in (False, True)}
    problems = [] if tokens[False] == tokens[True] else ["the graph's tokens differ from eager's"]
    runner = Runner(built.model, 1024, device)
    runner.begin(3, Sampling(temperature=0), 0)
    for _ in range(3):
        runner.step(StepOptions())
    problems += runner.graphs.notes[1:] if runner.graphs else []
    torch.cuda.synchronize()
    allocated = torch.cuda.memory_stats()["allocation.all.allocated"]
    compiled = library.compiled
    torch.cuda.set_sync_debug_mode("error")
    try:
        runner.start(StepOptions())
        for _ in range(_STEPS):
            runner.start(StepOptions())
            runner.collect()
    except RuntimeError as error:
        problems.append(f"a step synchronised with the host: {error}")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    allocations = torch.cuda.memory_stats()["allocation.all.allocated"] - allocated
    if allocations:
        problems.append(f"{allocations} allocations in {_STEPS} steps")
    if library.compiled != compiled:
        problems.append("a kernel was compiled during decode")
    note = f"{_STEPS} graph steps: no sync, no allocation, no compile, equal to eager"
    return {"note": "; ".join(problems) or note, "problems": problems}


def _greedy(model: Any, device: torch.device, graphs: bool) -> list[int]:
    runner = Runner(model, 1024, device)
    if not graphs:
        runner.graphs = None
    runner.prefill(list(range(2, 150)), StepOptions(), lambda done: True)
    runner.begin(3, Sampling(temperature=0), 0)
    return [runner.step(StepOptions()).token_id for _ in range(100)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="dsv4chat doctor", description=__doc__)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    result = run((lambda line: None) if args.json else print)
    if args.json:
        print(json.dumps(result))
    elif result["problems"]:
        print(f"\n{len(result['problems'])} problem(s):")
        for problem in result["problems"]:
            print(f"  {problem}")
    return 1 if result["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
