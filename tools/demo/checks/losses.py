"""Held-out loss of the exported model on the engine, whole and with a part of it broken.

Every ablation must hurt: it shows that the model uses what is taken away.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from engine.model.moe import Router, Routing
from engine.model.transformer import Transformer
from engine.protocol import StepOptions
from engine.runner import logits_of
from tools.demo.checks.heldout import logit_losses, mean_loss

Rows = list[tuple[Tensor, Tensor]]
PLAIN = StepOptions(taps=False)


@dataclass(frozen=True, slots=True)
class Ablation:
    """title: for the table. breaks: changes a model while it is open."""

    title: str
    options: StepOptions
    breaks: Callable[[Transformer], AbstractContextManager[None]]


def loss(model: Transformer, found: Rows, options: StepOptions, context: int) -> float:
    return mean_loss(
        (logit_losses(logits_of(model, ids, options, context), ids), reply) for ids, reply in found
    )


@contextmanager
def whole(model: Transformer) -> Iterator[None]:
    yield


@contextmanager
def changed_op(model: Transformer, name: str, made: Callable[..., Any]) -> Iterator[None]:
    ops = model.ops
    model.ops = replace(ops, **{name: made})
    try:
        yield
    finally:
        model.ops = ops


def without_compressed(model: Transformer) -> AbstractContextManager[None]:
    """No layer sees a compressed row; window and sink stay."""
    attend = model.ops.attend

    def near_only(q, kv, ring, position, blocks, chosen, *rest, **named):
        return attend(q, kv, ring, position, None, None, *rest, **named)

    return changed_op(model, "attend", near_only)


def random_blocks(model: Transformer) -> AbstractContextManager[None]:
    """The indexer's choice replaced by as many random blocks of the past."""
    generator = torch.Generator().manual_seed(1)

    def choose(q, weights, keys, position, *rest, ratio, top_k, **named):
        positions = position + torch.arange(q.shape[0])
        score = torch.rand(len(positions), keys.shape[0], generator=generator)
        seen = torch.arange(keys.shape[0]) < ((positions + 1) // ratio)[:, None]
        best = score.masked_fill(~seen, -1.0).topk(min(top_k, keys.shape[0]), -1)
        return best.indices, best.values >= 0

    return changed_op(model, "choose_blocks", choose)


@contextmanager
def shuffled_hash(model: Transformer) -> Iterator[None]:
    """Hash layers send every token to the experts of another one."""
    order = torch.randperm(model.config.vocab_size, generator=torch.Generator().manual_seed(1))
    routers = [layer.moe.router for layer in model.layers]
    tables = [router.tid2eid for router in routers]
    for router, table in zip(routers, tables, strict=True):
        router.tid2eid = None if table is None else table[order]
    try:
        yield
    finally:
        for router, table in zip(routers, tables, strict=True):
            router.tid2eid = table


ABLATIONS = (
    Ablation("compressed attention off", PLAIN, without_compressed),
    Ablation("indexer: random blocks", PLAIN, random_blocks),
    Ablation("hash layers shuffled", PLAIN, shuffled_hash),
    Ablation("gsa mode checkpoint", StepOptions(gsa="checkpoint", taps=False), whole),
)
ROUTER_PATHS = (
    Ablation("router two-kernel", StepOptions(router="two-kernel", taps=False), whole),
    Ablation("router bf16", StepOptions(router="bf16", taps=False), whole),
)


@dataclass(slots=True)
class CountingRouter:
    """A router that counts what it chose. load: [E] int64."""

    router: Router
    load: Tensor

    def __call__(self, act, step) -> Routing:
        chosen = self.router(act, step)
        self.load += torch.bincount(chosen.expert_ids.flatten(), minlength=len(self.load))
        return chosen


def expert_loads(model: Transformer, found: Rows, context: int) -> list[list[float]]:
    """Share of each expert's choices, by layer."""
    counters = []
    for layer in model.layers:
        zeros = torch.zeros(model.config.num_experts, dtype=torch.int64)
        counters.append(CountingRouter(layer.moe.router, zeros))
        layer.moe.router = counters[-1]
    for ids, _ in found:
        logits_of(model, ids, PLAIN, context)
    for layer, counter in zip(model.layers, counters, strict=True):
        layer.moe.router = counter.router
    return [(c.load / c.load.sum()).tolist() for c in counters]
