"""`python -m engine.ranks.follower --fd N`: a rank that does what the first one tells it.

It holds its part of the model and the whole state, takes the same steps, and takes the first rank's
token. It ends with the first rank: a thread reads the socket and sees it close.
"""

import argparse
import os
import queue
import socket
import threading
import traceback
from pathlib import Path

from engine.errors import EngineError, NumericsError
from engine.model.config import ModelConfig
from engine.ranks.messages import (
    Begin,
    Collect,
    Discard,
    Failed,
    Join,
    Joined,
    Order,
    Prefill,
    Rewind,
    Snapshot,
    Start,
    receive_order,
    send,
)
from kernels.errors import KernelError


class Follower:
    """Serves one first rank."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="reader", daemon=True).start()

    def serve(self) -> None:
        """For ever; the reading thread ends the process."""
        try:
            join = self._orders.get()
            assert isinstance(join, Join)
            self._join(join)
            while True:
                self._obey(self._orders.get())
        except (EngineError, KernelError) as error:
            send(self._sock, Failed(str(error)))
        except Exception as error:
            traceback.print_exc()
            words = f"internal error: {type(error).__name__}: {error}; see the log"
            send(self._sock, Failed(words))

    def _join(self, join: Join) -> None:
        import torch

        from engine.loading import kernel_library, load_part, pick_device
        from engine.model.split import Split
        from engine.ranks.meeting import meet
        from engine.runner import Runner
        from engine.state import RingSnapshot

        device = pick_device(join.device, join.rank)
        folder, split = Path(join.load.model), Split(join.rank, join.load.gpus)
        config = ModelConfig.load(folder)
        library = kernel_library(device, config, join.context, lambda event: None, split)
        team = meet(join.store, split, device)
        built = load_part(folder, config, join.load, device, library, team)
        self._runner = Runner(built.model, join.context, device)
        self._snapshots: list[RingSnapshot] = []
        if device.type == "cuda":
            torch.cuda.synchronize()
        send(self._sock, Joined(built.resident_bytes))

    def _obey(self, order: Order) -> None:
        runner = self._runner
        match order:
            case Prefill():
                runner.prefill(order.ids, order.options, lambda done: True)
            case Begin():
                runner.begin(order.token_id, order.sampling, order.seed)
            case Start():
                runner.start(order.options, order.forced)
            case Collect():
                try:
                    runner.collect()
                except NumericsError:
                    pass  # the first rank reports it; the state is back before the step
            case Discard():
                runner.discard(always=order.always)
            case Rewind():
                kept = [shot for shot in self._snapshots if shot.position in order.kept]
                self._snapshots = kept
                runner.rewind(order.length, kept)
            case Snapshot():
                self._snapshots.append(runner.snapshot())
            case Join():
                raise EngineError("told to join twice")

    def _read(self) -> None:
        try:
            while (order := receive_order(self._sock)) is not None:
                self._orders.put(order)
        except Exception:
            traceback.print_exc()
        # Without a first rank there is nothing to do, whatever the main thread waits for.
        os._exit(0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="inherited socket of the first rank")
    Follower(socket.socket(fileno=parser.parse_args().fd)).serve()
