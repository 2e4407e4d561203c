"""`dsv4chat bench`: the decode step against this machine's memory limit, in one run.

A token at batch 1 reads every active weight once, so its floor is those bytes over the speed of
memory, which is measured here first.
"""

import argparse
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from engine.checkpoint.files import CheckpointFiles
from engine.loading import describe_device, pick_context, pick_device
from engine.model.build import build_model
from engine.model.config import ModelConfig
from engine.protocol import Sampling, StepOptions
from engine.runner import Runner

_COPY_BYTES = {"cpu": 1 << 29, "cuda": 1 << 32}
_WARM_UP = 8


def read_rate(device: torch.device) -> float:
    """Bytes a second that one reduction over a large array reads, the best of five."""
    array = torch.ones(_COPY_BYTES[device.type] // 4, device=device)
    best = 0.0
    for _ in range(5):
        start = time.perf_counter()
        array.sum().item()
        best = max(best, array.nbytes / (time.perf_counter() - start))
    return best


def measure(runner: Runner, prompt: int, tokens: int, options: StepOptions) -> dict[str, float]:
    """Greedy decode after `prompt` tokens: median and percentiles of one step, in ms."""
    runner.rewind(0, [])
    vocab = runner.model.config.vocab_size
    ids = [3 + i % (vocab - 3) for i in range(prompt)]
    start = time.perf_counter()
    runner.prefill(ids[:-1], options, lambda done: True)
    prefill = time.perf_counter() - start
    runner.begin(ids[-1], Sampling(temperature=0), 0)
    steps = []
    for index in range(_WARM_UP + tokens):
        start = time.perf_counter()
        runner.step(options)
        if index >= _WARM_UP:
            steps.append(1e3 * (time.perf_counter() - start))
    cuts = statistics.quantiles(steps, n=100)
    return {
        "context": prompt,
        "prefill_tok_s": (prompt - 1) / prefill,
        "ms": statistics.median(steps),
        "p90_ms": cuts[89],
        "p99_ms": cuts[98],
    }


def run(args: argparse.Namespace) -> dict[str, Any]:
    device = pick_device(args.device)
    config = ModelConfig.load(args.model)
    context = pick_context(config, args.context)
    built = build_model(
        config, CheckpointFiles(args.model), precision=args.precision, device=device
    )
    rate = read_rate(device)
    runner = Runner(built.model, context, device)
    rows = []
    lengths = [n for n in (128, 1024, 8192, 65536) if n + args.tokens + _WARM_UP <= context]
    for taps in (False, True):
        for length in lengths:
            options = StepOptions(args.router, args.gsa, taps)
            row: dict[str, Any] = measure(runner, length, args.tokens, options)
            row |= {
                "taps": taps,
                "tok_s": 1e3 / row["ms"],
                "limit_tok_s": rate / built.active_bytes,
                "share_of_limit": built.active_bytes / rate / (row["ms"] / 1e3),
            }
            rows.append(row)
    return {
        "device": describe_device(device),
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "model": str(args.model),
        "precision": args.precision,
        "router": args.router,
        "gsa": args.gsa,
        "bytes_per_token": built.active_bytes,
        "read_gb_s": rate / 1e9,
        "rows": rows,
    }


def show(result: dict[str, Any]) -> None:
    print(
        f"{result['device']} ({result['processor']}), {result['threads']} thread(s), "
        f"torch {result['torch']}\n{result['model']}, precision {result['precision']}, "
        f"router {result['router']}, gsa {result['gsa']}\n"
        f"memory reads {result['read_gb_s']:.1f} GB/s; "
        f"a token reads {result['bytes_per_token'] / 1e6:.1f} MB of weights as held here\n"
    )
    heads = ("context", "taps", "ms", "p90", "p99", "tok/s", "limit", "share", "prefill tok/s")
    print("".join(f"{head:>9}" if head != heads[-1] else f"{head:>15}" for head in heads))
    for row in result["rows"]:
        print(
            f"{row['context']:>9}{'on' if row['taps'] else 'off':>9}{row['ms']:>9.2f}"
            f"{row['p90_ms']:>9.2f}{row['p99_ms']:>9.2f}{row['tok_s']:>9.1f}"
            f"{row['limit_tok_s']:>9.0f}{row['share_of_limit']:>9.1%}{row['prefill_tok_s']:>15.0f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="dsv4chat bench", description=__doc__)
    demo = Path(__file__).parents[1] / "assets" / "demo"
    parser.add_argument("--model", type=Path, default=demo)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--context", type=int)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--precision", choices=("nvfp4", "checkpoint"), default="nvfp4")
    parser.add_argument("--router", choices=("fused", "two-kernel", "bf16"), default="fused")
    parser.add_argument("--gsa", choices=("runtime", "checkpoint"), default="runtime")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    result = run(args)
    print(json.dumps(result)) if args.json else show(result)


if __name__ == "__main__":
    main()
