"""The shipped demo model: its files are those of DATA.md, it is as good as recorded, it answers."""

import hashlib
import json
import math
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from tools.demo.checks import heldout, losses
from tools.demo.checks.answers import Chat, Judged, judge
from tools.demo.checks.prompts import FIXED

DEMO = Path(__file__).parents[2] / "assets" / "demo"


@pytest.fixture(scope="module")
def chat() -> Chat:
    return Chat(DEMO)


def test_files_are_those_of_the_datasheet() -> None:
    rows = re.findall(
        r"\| (\S+) \| ([\d,]+) \| `([0-9a-f]{64})` \|", (DEMO / "DATA.md").read_text()
    )
    assert {name for name, _, _ in rows} >= {"config.json", "model.safetensors", "tokenizer.json"}
    for name, size, digest in rows:
        data = (DEMO / name).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (int(size.replace(",", "")), digest)


def test_assets_stay_small() -> None:
    assert sum(path.stat().st_size for path in DEMO.rglob("*") if path.is_file()) < 30e6


def test_every_block_scale_is_finite() -> None:
    for name, tensor in load_file(DEMO / "model.safetensors").items():
        if tensor.dtype == torch.float8_e4m3fn:
            assert tensor.float().isfinite().all(), name


@pytest.mark.parametrize("part", ["manual", "notes", "words"])
def test_held_out_loss_is_as_recorded(chat: Chat, part: str) -> None:
    """Two rows of a part: within a tenth of the part's recorded loss in perplexity."""
    known = json.loads((DEMO / "heldout" / "recorded.json").read_text())[part]
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    rows = heldout.rows(DEMO / "heldout", part, tokenizer)[:2]
    found = losses.loss(chat.session.runner.model, rows, losses.PLAIN, 2048)
    assert math.exp(found) < 1.1 * math.exp(known["master_quantised"])
    assert found < 0.35 * known["unigram"]


def test_fixed_prompts_are_answered_right(chat: Chat) -> None:
    short = [check for check in FIXED if "story" not in check.turns[-1]]
    wrong: list[Judged] = [item for item in judge(chat, short) if not item.right]
    assert not wrong, [(item.check.turns[-1], item.answer.text) for item in wrong]
