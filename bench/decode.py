"""Where a decode step's time goes: every kernel of one captured step, by name, on a GPU.

    python -m bench.decode --synthetic flash --context 66048 --at 128

A kernel's time is from the end of the one before to its own end, over graph replays under torch's
profiler: kernels start early and wait, so their own durations overlap; these add up to the step.
"""

import argparse
import re
import time
from collections import defaultdict

import torch

from engine.bench import fill, read_rate
from engine.checkpoint import geometry
from engine.loading import kernel_library
from engine.model.build import build_model
from engine.protocol import Sampling, StepOptions
from engine.runner import Runner

_REPLAYS = 5


def short(name: str) -> str:
    """A kernel's name without its template arguments."""
    found = re.match(r"kernel_cutlass_(\w+?)_(?:kernel_)?", name)
    if found:
        return "cute " + found[1]
    return re.sub(r"<.*|\(.*", "", name.replace("void ", "").replace("at::native::", ""))[:48]


def profile(runner: Runner, at: int, options: StepOptions, layers: int) -> None:
    runner.rewind(0, [])
    fill(runner, [3] * (at - 1))
    runner.begin(3, Sampling(temperature=0), 0)
    for _ in range(8):
        runner.step(options)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(50):
        runner.step(options)
    torch.cuda.synchronize()
    wall = (time.perf_counter() - start) / 50
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as found:
        for _ in range(_REPLAYS):
            runner.step(options)
        torch.cuda.synchronize()
    ends = sorted(
        (event.time_range.end, short(event.name))
        for event in found.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    )
    exposed: dict[str, list[float]] = defaultdict(list)
    for (before, _), (end, name) in zip(ends, ends[1:], strict=False):
        exposed[name].append(end - before)
    nodes = len(ends) / _REPLAYS
    print(f"\ncontext {at}, taps {options.taps}: {1e3 * wall:.2f} ms a step, "
          f"{nodes:.0f} nodes, {nodes / layers:.1f} a layer")  # fmt: skip
    print(f"{'us a step':>10}{'share':>8}{'count':>7}{'us each':>9}  kernel")
    for name, times in sorted(exposed.items(), key=lambda item: -sum(item[1]))[:30]:
        total, each = sum(times) / _REPLAYS, sum(times) / len(times)
        share = total / (1e6 * wall)
        print(f"{total:>10.1f}{share:>8.1%}{len(times) / _REPLAYS:>7.0f}{each:>9.2f}  {name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--synthetic", choices=("flash", "pro"), default="flash")
    parser.add_argument("--layers", type=int, default=43)
    parser.add_argument("--experts", type=int, default=160)
    parser.add_argument("--context", type=int, default=66048)
    parser.add_argument("--at", type=int, nargs="+", default=[128, 65000])
    parser.add_argument("--taps", action="store_true")
    args = parser.parse_args()
    device = torch.device("cuda")
    config = getattr(geometry, args.synthetic)(args.layers, args.experts)
    library = kernel_library(device, config, args.context, lambda event: None)
    built = build_model(config, geometry.RandomTensors(config), precision="nvfp4", device=device,
                        library=library)  # fmt: skip
    rate = read_rate(device)
    print(f"memory reads {rate / 1e9:.0f} GB/s; a token reads {built.active_bytes / 1e9:.2f} GB: "
          f"at least {1e3 * built.active_bytes / rate:.2f} ms")  # fmt: skip
    runner = Runner(built.model, args.context, device)
    for at in args.at:
        profile(runner, at, StepOptions(taps=args.taps), config.num_layers)


if __name__ == "__main__":
    main()
