"""Trains the demo model within a wall-clock budget, on one GPU or (tiny sizes) on the CPU.

Three phases by share of the time (demo-model recipe): base (loss on all text, every compressed
block visible), chat (loss mostly on replies, top-k selection on), QAT (as chat, with every fake
quantiser of the engine on). The weights at the end are kept: held-out loss over all parts would
choose wrongly, since a part of it cannot be known.

    python -m tools.demo.train --corpus DIR --out DIR --minutes 8
"""

import argparse
import json
import math
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
from torch import Tensor

from tools.demo import master, sample
from tools.demo.config import DEMO
from tools.demo.model import DemoModel, run_layer, token_losses
from tools.demo.optim import Optimiser
from tools.demo.packed import PROMPT, REPLY, Documents, RowPacker
from tools.demo.shares import SHARES

PHASES = (("base", 0.45, 0.4), ("chat", 0.30, 0.1), ("qat", 0.25, 0.1))  # share, prompt weight
INDEX_WEIGHT = 0.1
BIAS_STEP = 1e-3
REPORT_S = 15.0


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, required=True, help="folder of train.xz, held.xz")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--minutes", type=float, default=8.0, help="wall clock of the training loop"
    )
    parser.add_argument("--start", type=Path, help="folder of an earlier master to go on from")
    parser.add_argument("--skip-base", action="store_true", help="with --start: chat and QAT only")
    parser.add_argument("--rate", type=float, default=8e-3)
    parser.add_argument("--optimiser", choices=("muon", "adamw"), default="muon")
    parser.add_argument("--rows", type=int, default=32, help="rows of 2048 tokens a step")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--warm-cache", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--max-steps", type=int, default=1 << 30)
    return parser.parse_args()


class Feed:
    """Batches built by threads ahead of the GPU."""

    def __init__(self, packer: RowPacker, rows: int, device: torch.device) -> None:
        self.device, self.queue = device, queue.Queue(maxsize=24)
        self.source = packer.batches(rows)
        threading.Thread(target=self._fill, daemon=True).start()

    def _fill(self) -> None:
        for tokens, kinds in self.source:
            pair = torch.from_numpy(tokens.astype("int32")), torch.from_numpy(kinds)
            if self.device.type == "cuda":
                pair = pair[0].pin_memory(), pair[1].pin_memory()
            self.queue.put(pair)

    def next(self) -> tuple[Tensor, Tensor]:
        """ids [B, T+1] int64 and roles [B, T+1] uint8, on the device."""
        tokens, kinds = self.queue.get()
        tokens = tokens.to(self.device, non_blocking=True).long()
        return tokens, kinds.to(self.device, non_blocking=True)


class Trainer:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.began = args, time.monotonic()
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        torch.manual_seed(args.seed)
        torch.set_float32_matmul_precision("high")
        documents = Documents.load(args.corpus / "train.xz")
        self.held = Documents.load(args.corpus / "held.xz")
        self.say(
            f"{len(documents.tokens) / 1e6:.1f} M tokens in {len(documents.lengths)} documents"
        )
        self.model = DemoModel(DEMO)
        if args.start:
            master.load(self.model, args.start)
        else:
            master.fill_hash_tables(self.model, documents.tokens, args.seed)
        self.model.to(self.device)
        self.optimiser = Optimiser(self.model, args.optimiser)
        self.feed = Feed(
            RowPacker(documents, SHARES, args.length, args.seed), args.rows, self.device
        )
        self.held_rows = self._held_batches()
        self.all_blocks = torch.tensor(True, device=self.device)
        self.prompt_weight = torch.tensor(0.0, device=self.device)
        self.compiled: dict[bool, tuple] = {}  # quantised -> (layer, losses) functions
        self.step, self.log = 0, []

    def compile(self, quantised: bool) -> None:
        """Compile one precision; without a compiler, go on eagerly."""
        if self.args.no_compile or self.device.type != "cuda":
            return
        torch._dynamo.config.recompile_limit = 64
        ids, kinds = self.feed.next()
        self.compiled[quantised] = tuple(
            torch.compile(function, fullgraph=True, dynamic=False)
            for function in (run_layer, token_losses)
        )
        try:
            loss, index_loss, *_ = self.forward(ids, kinds, quantised)
            (loss + INDEX_WEIGHT * index_loss).backward()
            self.say(f"compiled (quantised {quantised}), loss {loss.item():.3f}")
        except Exception as error:  # whatever the compiler raises, eager still trains
            del self.compiled[quantised]
            self.say(f"compile failed, eager instead: {type(error).__name__} {error}"[:3000])
        for parameter in self.model.parameters():
            parameter.grad = None

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.began:6.1f} s] {text}", flush=True)

    def _held_batches(self) -> dict[str, tuple[Tensor, Tensor]]:
        """One small batch of rows per part."""
        made = {}
        for index, name in enumerate(self.held.parts):
            if not (self.held.part == index).any():
                continue
            packer = RowPacker(self.held, {name: 1.0}, self.args.length, seed=0)
            tokens, kinds = next(packer.batches(max(self.args.rows // 8, 1)))
            made[name] = (
                torch.from_numpy(tokens.astype("int64")).to(self.device),
                torch.from_numpy(kinds).to(self.device),
            )
        return made

    def forward(self, ids: Tensor, kinds: Tensor, quantised: bool) -> tuple[Tensor, ...]:
        """-> loss, index loss, loads, loss per target [N], roles of the targets [N]."""
        run, losses = self.compiled.get(quantised, (run_layer, token_losses))
        streams, index_loss, loads = self.model.trunk(
            ids[:, :-1], self.dtype, self.all_blocks, quantised, run
        )
        kinds = kinds[:, 1:].flatten()
        weights = (kinds == REPLY).float() + (kinds == PROMPT).float() * self.prompt_weight
        targets = ids[:, 1:].flatten()
        loss, each = losses(self.model, streams, targets, weights, quantised)
        return loss, index_loss, loads, each, kinds

    def train_step(self, rate: float, quantised: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        ids, kinds = self.feed.next()
        loss, index_loss, loads, losses, kinds = self.forward(ids, kinds, quantised)
        (loss + INDEX_WEIGHT * index_loss).backward()
        norm = self.optimiser.step(rate)
        with torch.no_grad():
            for layer, load in zip(self.model.layers, loads, strict=True):
                if not layer.ffn.hashed:
                    layer.ffn.bias += BIAS_STEP * torch.sign(load.mean() - load)
            reply = kinds == REPLY
            mean = (losses.detach() * reply).sum() / reply.sum().clamp(min=1)
        self.step += 1
        return mean, index_loss.detach(), norm, torch.stack(loads)

    @torch.no_grad()
    def evaluate(self, quantised: bool) -> dict[str, float]:
        """Mean loss of reply tokens per held-out part, and "all" by the training shares."""
        made = {}
        for name, (ids, kinds) in self.held_rows.items():
            parts = []
            for row in range(0, ids.shape[0], 4):
                streams, _, _ = self.model.trunk(
                    ids[row : row + 4, :-1], self.dtype, self.all_blocks, quantised
                )
                targets = ids[row : row + 4, 1:].flatten()
                weights = (kinds[row : row + 4, 1:].flatten() == REPLY).float()
                _, losses = token_losses(self.model, streams, targets, weights, quantised)
                parts.append(torch.stack(((losses * weights).sum(), weights.sum())))
            total, count = torch.stack(parts).sum(0).tolist()
            made[name] = total / max(count, 1.0)
        known = {name: SHARES[name] for name in made if name in SHARES}
        made["all"] = sum(made[n] * s for n, s in known.items()) / max(sum(known.values()), 1e-9)
        return made

    def report(self, name: str, quantised: bool) -> None:
        losses = self.evaluate(quantised)
        text = "  ".join(f"{part} {value:.3f}" for part, value in losses.items())
        self.say(f"held-out after {name} (quantised {quantised}): {text}")
        self.log.append({"phase": name, "step": self.step, "quantised": quantised, **losses})

    def train(self) -> None:
        args = self.args
        phases = [p for p in PHASES if not (args.skip_base and p[0] == "base")]
        whole = sum(share for _, share, _ in phases)
        # The budget counts from the start of the program, so compiling cannot overrun it.
        started, end = self.began, 0.0
        for name, share, prompt_weight in phases:
            end += share / whole
            self.prompt_weight.fill_(prompt_weight)
            self.all_blocks.fill_(name == "base")
            if (name == "qat") not in self.compiled:
                self.compile(name == "qat")
            self._phase(name, started, end)
            if self.step >= args.max_steps:
                break

    def _phase(self, name: str, started: float, end: float) -> None:
        """Steps until `end` of the budget is used; the rate follows the clock, not a step count."""
        args, budget = self.args, self.args.minutes * 60
        quantised = name == "qat"
        shown, shown_step = time.monotonic(), self.step
        while self.step < args.max_steps:
            used = (time.monotonic() - started) / budget
            if used >= end:
                break
            numbers = self.train_step(self.rate(used), quantised)
            if time.monotonic() - shown > REPORT_S or self.step in (1, 2, 10, 50):
                loss, index_loss, norm, loads = numbers[0].item(), *numbers[1:]
                now = time.monotonic()
                speed = (self.step - shown_step) * args.rows * args.length / (now - shown)
                spread = (loads.amin(1) / loads.mean(1)).min().item()
                self.say(
                    f"{name} step {self.step} used {used:.3f} rate {self.rate(used):.1e} "
                    f"reply loss {loss:.3f} index {index_loss.item():.3f} norm {norm.item():.2f} "
                    f"least load {spread:.2f} {speed / 1e3:.0f} k tok/s"
                )
                shown, shown_step = now, self.step
                if not math.isfinite(loss):
                    raise SystemExit("the loss is not finite")
        master.save(self.model, args.out / "master")
        self.report(name, quantised)

    def rate(self, used: float) -> float:
        """Warm-up over 100 steps, flat to 40 % of the clock, then a straight line to 1 %."""
        warm = min(1.0, (self.step + 1) / 100)
        fall = 1.0 if used < 0.4 else max(0.0, (1 - used) / 0.6)
        return self.args.rate * warm * (0.01 + 0.99 * fall)


def main() -> None:
    args = options()
    args.out.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(args)
    if args.warm_cache:
        trainer.compile(True)
        return
    # The QAT phase's code is compiled by a second process meanwhile; its cache is on disk.
    warmer = None
    if trainer.device.type == "cuda" and not args.no_compile:
        command = [sys.executable, "-m", "tools.demo.train", *sys.argv[1:], "--warm-cache"]
        warmer = subprocess.Popen(command)
    try:
        trainer.train()
    finally:
        if warmer is not None:
            warmer.kill()
        (args.out / "log.json").write_text(json.dumps(trainer.log, indent=1))
    prompts = args.corpus / "prompts.json"
    if prompts.exists():
        if (args.out / "master").exists():
            master.load(trainer.model, args.out / "master")
        trainer.all_blocks.fill_(False)
        text = sample.answers(
            trainer.model, args.corpus / "tokenizer.json", json.loads(prompts.read_text())
        )
        (args.out / "samples.txt").write_text(text)
        print(text, flush=True)


if __name__ == "__main__":
    main()
