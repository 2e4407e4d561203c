"""The held-out text that ships with the model, a small file a part, and what it is measured with.

assets/demo/heldout/PART.txt has one document a line, as a JSON string with control tokens spelled
out. recorded.json beside them has the losses of the trained master and of a unigram model, which
cannot be measured again from the shipped files alone.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from tools.demo.model import DemoModel, token_losses
from tools.demo.packed import BOS_ID, PAD_ID, REPLY, Documents, document_roles

BYTES_A_PART = 40_000
ROW = 2048


def write(corpus: Path, folder: Path, tokenizer: Tokenizer) -> None:
    """PART.txt of every part, from the corpus' held-out documents, in a fixed order."""
    folder.mkdir(parents=True, exist_ok=True)
    held = Documents.load(corpus / "held.xz")
    starts = np.cumsum(held.lengths) - held.lengths
    for index, name in enumerate(held.parts):
        lines, size = [], 0
        members = np.flatnonzero(held.part == index)
        for document in np.random.default_rng(5).permutation(members):
            ids = held.tokens[starts[document] :][: held.lengths[document]].tolist()
            text = tokenizer.decode(ids, skip_special_tokens=False)
            if tokenizer.encode(text, add_special_tokens=False).ids != ids:
                continue  # its text spells a control token
            line = json.dumps(text, ensure_ascii=False)
            size += len(line.encode()) + 1
            if size > BYTES_A_PART:
                break
            lines.append(line + "\n")
        if lines:
            (folder / f"{name}.txt").write_text("".join(lines), encoding="utf-8")


def parts(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.txt"))


def rows(folder: Path, part: str, tokenizer: Tokenizer) -> list[tuple[Tensor, Tensor]]:
    """(ids [T] int64, which are reply tokens [T] bool); documents one behind the other, each
    behind its BOS, as in training."""
    lines = (folder / f"{part}.txt").read_text(encoding="utf-8").splitlines()
    encoded = tokenizer.encode_batch([json.loads(line) for line in lines], add_special_tokens=False)
    made, ids, reply = [], [], []
    for found in encoded:
        if len(ids) + len(found.ids) + 1 > ROW and ids:
            made.append((ids, reply))
            ids, reply = [], []
        length = np.array([len(found.ids)], np.int32)
        nothing = np.zeros(1, np.uint8)
        one = Documents([part], np.array(found.ids, np.uint16), length, nothing, nothing)
        ids = [*ids, BOS_ID, *found.ids]
        reply = [*reply, False, *(document_roles(one) == REPLY).tolist()]
    made.append((ids, reply))
    return [(torch.tensor(i), torch.tensor(r)) for i, r in made]


def mean_loss(pairs: Iterator[tuple[Tensor, Tensor]]) -> float:
    """Mean over all reply tokens of pairs (loss [T-1], reply [T])."""
    total = count = 0.0
    for losses, reply in pairs:
        total += float(losses[reply[1:]].double().sum())
        count += int(reply[1:].sum())
    return total / max(count, 1)


def logit_losses(logits: Tensor, ids: Tensor) -> Tensor:
    """[T-1] loss of each next id."""
    return torch.nn.functional.cross_entropy(logits[:-1], ids[1:], reduction="none")


@torch.no_grad()
def master_loss(model: DemoModel, found: list[tuple[Tensor, Tensor]], quantised: bool) -> float:
    """Of the trainer's model in fp32, with or without the fake quantisers."""
    grain = 128

    def one(ids: Tensor, reply: Tensor) -> tuple[Tensor, Tensor]:
        padded = torch.full((1, -(-len(ids) // grain) * grain), PAD_ID)
        padded[0, : len(ids)] = ids
        top_k_only = torch.tensor(False)
        streams, _, _ = model.trunk(padded, torch.float32, top_k_only, quantised)
        used = streams[: len(ids) - 1]
        _, losses = token_losses(model, used, ids[1:], torch.ones(len(ids) - 1), quantised)
        return losses, reply

    return mean_loss(one(*pair) for pair in found)


def unigram_loss(train: Documents, part: str, found: list[tuple[Tensor, Tensor]]) -> float:
    """Of the frequencies of the part's own training tokens, one added to each."""
    owner = np.repeat(train.part, train.lengths)
    tokens = train.tokens[owner == train.parts.index(part)]
    counts = torch.from_numpy(np.bincount(tokens, minlength=int(train.tokens.max()) + 1)).double()
    log_p = torch.log((counts + 1) / (counts + 1).sum())
    return mean_loss((-log_p[ids[1:]], reply) for ids, reply in found)


def record(
    corpus: Path, folder: Path, tokenizer: Tokenizer, model: DemoModel
) -> dict[str, dict[str, float]]:
    """Write recorded.json: per part the master's losses and the unigram model's."""
    train = Documents.load(corpus / "train.xz")
    made = {}
    for part in parts(folder):
        found = rows(folder, part, tokenizer)
        made[part] = {
            "reply_tokens": int(sum(reply[1:].sum() for _, reply in found)),
            "unigram": round(unigram_loss(train, part, found), 4),
            "master": round(master_loss(model, found, False), 4),
            "master_quantised": round(master_loss(model, found, True), 4),
        }
    (folder / "recorded.json").write_text(json.dumps(made, indent=1) + "\n")
    return made
