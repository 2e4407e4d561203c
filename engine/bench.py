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

from engine.checkpoint import geometry
from engine.checkpoint.files import CheckpointFiles, TensorSource
from engine.loading import describe_device, kernel_library, pick_context, pick_device
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


def measure(
    runner: Runner, prompt: int, tokens: int, options: StepOptions, *, filled: bool
) -> dict[str, Any]:
    """Greedy decode after `prompt` tokens: median and percentiles of one step, in ms.

    filled: instead of a prefill, the state is filled with noise and said to hold the prompt.
    """
    runner.rewind(0, [])
    vocab = runner.model.config.vocab_size
    ids = [3 + i % (vocab - 3) for i in range(prompt)]
    prefill_rate = None
    if filled:
        fill(runner, ids[:-1])
    else:
        start = time.perf_counter()
        runner.prefill(ids[:-1], options, lambda done: True)
        prefill_rate = (prompt - 1) / (time.perf_counter() - start)
    runner.begin(ids[-1], Sampling(temperature=0), 0)
    steps, taken = [], []
    for _ in range(runner.lookahead):
        runner.start(options)
    for index in range(_WARM_UP + tokens):
        start = time.perf_counter()
        runner.start(options)
        taken.append(runner.collect().token_id)
        if index >= _WARM_UP:
            steps.append(1e3 * (time.perf_counter() - start))
    runner.discard()
    cuts = statistics.quantiles(steps, n=100)
    return {
        "context": prompt,
        "prefill_tok_s": prefill_rate,
        "ms": statistics.median(steps),
        "p90_ms": cuts[89],
        "p99_ms": cuts[98],
        "tokens": taken,
    }


def fill(runner: Runner, ids: list[int]) -> None:
    """Pretend that `ids` were run: noise in every cache row."""
    for tensor in runner.state.tensors():
        if tensor.is_floating_point():
            tensor.normal_()
    runner.ids = list(ids)
    runner.state.position.fill_(len(ids))


def run(args: argparse.Namespace) -> dict[str, Any]:
    device = pick_device(args.device)
    source: TensorSource
    if args.synthetic:
        make = geometry.flash if args.synthetic == "flash" else geometry.pro
        config = make(args.layers or (43 if args.synthetic == "flash" else 4), args.experts)
        source = geometry.RandomTensors(config)
    else:
        config = ModelConfig.load(args.model)
        source = CheckpointFiles(args.model)
    context = pick_context(config, args.context)
    library = kernel_library(device, config, context, lambda event: None)
    built = build_model(config, source, precision=args.precision, device=device, library=library)
    rate = read_rate(device)
    runner = Runner(built.model, context, device)
    rows = []
    lengths = [n for n in (128, 1024, 8192, 65536) if n + args.tokens + _WARM_UP <= context]
    for taps in (False, True):
        for length in lengths:
            options = StepOptions(args.router, args.gsa, taps)
            row = measure(runner, length, args.tokens, options, filled=bool(args.synthetic))
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
        "model": f"random {args.synthetic}" if args.synthetic else str(args.model),
        "layers": config.num_layers,
        "plan": {row.op: row.impl for row in built.plan},
        "notes": runner.graphs.notes if runner.graphs else [],
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
            f"{row['limit_tok_s']:>9.0f}{row['share_of_limit']:>9.1%}"
            + (f"{row['prefill_tok_s']:>15.0f}" if row["prefill_tok_s"] else f"{'-':>15}")
        )
    for note in result["notes"]:
        print(note)


def main() -> None:
    parser = argparse.ArgumentParser(prog="dsv4chat bench", description=__doc__)
    demo = Path(__file__).parents[1] / "assets" / "demo"
    parser.add_argument("--model", type=Path, default=demo)
    parser.add_argument("--synthetic", choices=("flash", "pro"), help="random weights, real sizes")
    parser.add_argument("--layers", type=int, help="fewer layers of a synthetic model")
    parser.add_argument("--experts", type=int, default=160, help="experts of a synthetic model")
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--context", type=int)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--precision", choices=("nvfp4", "checkpoint"), default="nvfp4")
    parser.add_argument("--router", choices=("fused", "two-kernel", "bf16"), default="fused")
    parser.add_argument("--gsa", choices=("runtime", "checkpoint"), default="runtime")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    result = run(args)
    if args.json:
        print(json.dumps(result))
    else:
        show(result)


if __name__ == "__main__":
    main()
