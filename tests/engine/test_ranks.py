"""A model split over ranks: the same tokens as one rank, and no hang when one of them ends."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.checkpoint.layouts import to_layout
from engine.checkpoint.synthetic import MemoryTensors, random_parameters, small_config
from engine.model.build import Built, build_model
from engine.model.config import ModelConfig
from engine.model.split import Split
from engine.model.team import Team
from engine.protocol import (
    ChatMessage,
    Fault,
    Finished,
    Generate,
    Load,
    Ready,
    Sampling,
    StepOptions,
    Token,
    Tokens,
)
from engine.runner import logits_of
from tests.engine.process import engine
from tests.engine.tiny import write_model

CPU = torch.device("cpu")
DEMO = Path(__file__).parents[2] / "assets" / "demo"
CONFIG = ModelConfig.parse(small_config())
# Only the order of a layer's expert sums differs; a logit has about 1e-6 of rounding per layer.
LOGITS = 2e-3


class Thread(Team):
    """Ranks that are threads of this process."""

    def __init__(self, rank: int, size: int, barrier: threading.Barrier, parts: list[Any]) -> None:
        super().__init__(Split(rank, size))
        self._barrier, self._parts = barrier, parts

    def sum(self, x: Tensor) -> Tensor:
        self._parts[self.split.rank] = x.clone()
        self._barrier.wait(20)
        total = torch.stack(self._parts).sum(0)
        self._barrier.wait(20)
        return x.copy_(total)


def split_logits(stored: dict[str, Tensor], size: int, ids: Tensor, **how: Any) -> list[Tensor]:
    """Every rank's logits."""
    barrier, parts, found = threading.Barrier(size), [None] * size, [ids] * size

    def run(rank: int) -> None:
        with torch.inference_mode():
            team = Thread(rank, size, barrier, parts)
            found[rank] = logits(build(stored, team, **how), ids)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def build(stored: dict[str, Tensor], team: Team | None = None, precision: Any = "nvfp4") -> Built:
    source = MemoryTensors(stored)
    return build_model(CONFIG, source, precision=precision, device=CPU, team=team)


def logits(built: Built, ids: Tensor) -> Tensor:
    """Of a prompt in one piece, and of its last token alone."""
    many = logits_of(built.model, ids, StepOptions(taps=False), 64)
    one = logits_of(built.model, ids[:1], StepOptions("two-kernel", "checkpoint", False), 64)
    return torch.cat((many, one))


@pytest.mark.parametrize("size", [2, 3, 4, 9])  # more than groups (2) and experts (8), too
@pytest.mark.parametrize(
    ("layout", "precision"),
    [("nvidia", "nvfp4"), ("nvidia", "checkpoint"), ("native", "checkpoint"), ("bf16", "nvfp4")],
)
def test_every_rank_gets_the_logits_of_one(size: int, layout: str, precision: str) -> None:
    stored = to_layout(layout, CONFIG, random_parameters(CONFIG, 0))
    ids = torch.arange(2, 34)
    expected = logits(build(stored, precision=precision), ids)
    found = split_logits(stored, size, ids, precision=precision)
    assert all(torch.equal(other, found[0]) for other in found)
    # A rounding may tip an E2M1 code; then a few logits of that row move together.
    far = (found[0] - expected).abs().amax(-1) > LOGITS
    assert far.float().mean() < 0.25
    assert torch.equal(found[0].argmax(-1)[~far], expected.argmax(-1)[~far])


def test_ranks_hold_parts_that_make_up_the_whole() -> None:
    stored = to_layout("nvidia", CONFIG, random_parameters(CONFIG, 0))
    whole = build(stored)
    parts = [build(stored, Team(Split(rank, 2))) for rank in range(2)]
    assert [part.model.layers[1].moe.held.own for part in parts] == [range(4), range(4, 8)]
    assert all(part.parameters == whole.parameters for part in parts)
    assert max(part.resident_bytes for part in parts) < 0.75 * whole.resident_bytes
    head = torch.cat([part.model.head.prepared[0] for part in parts])  # type: ignore[attr-defined]
    assert torch.equal(head, whole.model.head.prepared[0])  # type: ignore[attr-defined]


@pytest.mark.parametrize(("size", "count", "unit"), [(3, 10, 1), (4, 300, 128), (5, 3, 1)])
def test_shares_cover_all_rows_once(size: int, count: int, unit: int) -> None:
    shares = [Split(rank, size).share(count, unit) for rank in range(size)]
    assert [row for share in shares for row in share.own] == list(range(count))
    assert all(len(share.held) > 0 and share.held.start % unit == 0 for share in shares)


# ---- processes -----------------------------------------------------------------------------------


def answers(tmp_path: Path, load: Load, count: int = 24) -> list[list[Token]]:
    """Two greedy answers of one engine, the second behind a rewind."""
    found = []
    with engine(tmp_path) as running:
        running.send(load)
        ready, _ = running.wait_for(Ready)
        assert ready.device.startswith(f"{load.gpus}x cpu" if load.gpus > 1 else "cpu")
        for request, text in enumerate(("Hello, who are you?", "Hello, what is 3 plus 4?")):
            sampling = Sampling(temperature=0, max_tokens=count)
            running.send(Generate(request, [ChatMessage("user", text)], sampling))
            finished, before = running.wait_for(Finished)
            assert finished.message == ""
            found.append([t for event in before if isinstance(event, Tokens) for t in event.tokens])
    return found


@pytest.mark.parametrize(("model", "gpus"), [("demo", 2), ("tiny", 4)])
def test_greedy_answers_are_those_of_one_rank(model: str, gpus: int, tmp_path: Path) -> None:
    folder = DEMO if model == "demo" else write_model(tmp_path / "model")
    one, split = (
        answers(tmp_path, Load(str(folder), device="cpu", context=512, gpus=count))
        for count in (1, gpus)
    )
    for expected, found in zip(one, split, strict=True):
        assert len(expected) > 3
        assert [token.id for token in found] == [token.id for token in expected]
        for a, b in zip(found, expected, strict=True):
            assert a.logprob == pytest.approx(b.logprob, abs=0.05)


def test_a_rank_that_ends_is_an_error_and_no_hang(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    with engine(tmp_path) as running:
        running.send(Load(str(folder), device="cpu", context=512, gpus=2))
        running.wait_for(Ready)
        sampling = Sampling(temperature=1, max_tokens=400)
        running.send(Generate(1, [ChatMessage("user", "Hello")], sampling))
        running.wait_for(Tokens)
        children = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children")
        (follower,) = children.read_text().split()
        os.kill(int(follower), signal.SIGKILL)
        fault, _ = running.wait_for(Fault)
        assert fault.fatal and "GPU 2 of 2" in fault.message
        assert running.process.wait(timeout=20) == 1


def test_a_rank_that_cannot_load_says_why(tmp_path: Path) -> None:
    """NaN in an expert that only the second rank reads."""
    from tests.engine.mutations import set_byte

    folder = write_model(tmp_path / "model")
    set_byte("layers.2.ffn.experts.7.w2.weight_scale", 0x7F)(folder)
    with engine(tmp_path) as running:
        running.send(Load(str(folder), device="cpu", context=512, gpus=2))
        fault, _ = running.wait_for(Fault)
        assert "GPU 2 of 2" in fault.message and "experts.7.w2.weight_scale" in fault.message


def test_more_gpus_than_there_are_is_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    with engine(tmp_path) as running:
        running.send(Load(str(folder), gpus=64))
        fault, _ = running.wait_for(Fault)
        assert "--gpus 64: this machine shows" in fault.message
