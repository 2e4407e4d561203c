"""CUDA graphs of the decode step: one per `StepOptions`, captured when first wanted, sharing one
pool."""

import time

import torch

from engine.decode import DecodeStep
from engine.protocol import StepOptions


class StepGraphs:
    """Captures and replays a DecodeStep.

    Attributes:
        notes: what a person should know, in order: captures with their time, and failures. A step
        whose
            capture failed runs without a graph.
    """

    def __init__(self, step: DecodeStep) -> None:
        self._step = step
        self._graphs: dict[StepOptions, torch.cuda.CUDAGraph | None] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()
        self.notes: list[str] = []

    def run(self, options: StepOptions) -> None:
        """One step, on the current stream."""
        if options not in self._graphs:
            self._graphs[options] = self._capture(options)
        graph = self._graphs[options]
        if graph is None:
            self._step.run(options)
        else:
            graph.replay()

    def holds(self, options: StepOptions) -> bool:
        """Whether steps with these options replay a graph."""
        return self._graphs.get(options) is not None

    def _capture(self, options: StepOptions) -> torch.cuda.CUDAGraph | None:
        """Warm up and capture; the sequence, its input token and its result are left as they
        were."""
        step, started = self._step, time.monotonic()
        rings = step.state.snapshot(0).rings
        kept = [step.state.position, *step.sampled]
        copies = [tensor.clone() for tensor in kept]
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        captured = False
        try:
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                step.run(options)
            torch.cuda.current_stream().wait_stream(self._stream)
            # NCCL has threads of its own, which a global capture would take for ours.
            mode = "global" if step.model.team.size == 1 else "thread_local"
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode=mode
            ):
                step.run(options)
            captured = True
        except RuntimeError as error:
            words = str(error).splitlines()[0]
            self.notes.append(
                f"no graph for {describe(options)}: {words}; its steps run without one, slower"
            )
        finally:
            torch.cuda.synchronize()
            for tensor, copy in zip(kept, copies, strict=True):
                tensor.copy_(copy)
            for ring, saved in zip(step.state.rings(), rings, strict=True):
                ring.copy_(saved)
        if not captured:
            return None
        took = 1e3 * (time.monotonic() - started)
        self.notes.append(f"captured the graph of {describe(options)} in {took:.0f} ms")
        return graph


def describe(options: StepOptions) -> str:
    taps = "on" if options.taps else "off"
    return f"router {options.router}, gsa {options.gsa}, taps {taps}"
