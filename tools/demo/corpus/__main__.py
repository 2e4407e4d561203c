"""Builds the corpus: dialogues of every part, tokenizer, packed token files.

    python -m tools.demo.corpus --packages DIR --out DIR

The same packages and seed give the same files, byte for byte.
"""

import argparse
import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tools.demo.corpus import (
    copying,
    facts,
    manual,
    notes,
    refusals,
    smalltalk,
    stories,
    sums,
    words,
)
from tools.demo.corpus.dialogue import Dialogue, is_held_out
from tools.demo.corpus.sources import Packages
from tools.demo.corpus.wordnet import WordNet, usable
from tools.demo.packed import Documents
from tools.demo.shares import SHARES
from tools.demo.tokenizer import train
from tools.demo.wire import WireEncoder

WORDS = 2800
MAX_TOKENS = 2040


def dialogues(packages: Packages, seed: int, scale: float = 1.0) -> Iterator[Dialogue]:
    """All parts. `scale` shrinks what is generated without end, for tests."""

    def rng(part: str) -> random.Random:
        return random.Random(f"{seed} {part}")

    def count(number: int) -> int:
        return max(1, round(number * scale))

    net = WordNet(packages.wordnet())
    known = words.vocabulary(net, count(WORDS))
    yield from words.dialogues(rng("words"), net, known)
    tables = packages.countries()
    yield from facts.dialogues(rng("facts"), tables, packages.elements())
    yield from smalltalk.own(rng("own"), count(24), count(12000))
    yield from smalltalk.pairs(rng("pairs"), packages.chatterbot(smalltalk.CATEGORIES))
    yield from manual.dialogues(rng("manual"), count(12))
    places = sorted(c["name"] for c in tables[0].values() if c["name"].isascii())
    in_use = set(net.count)
    learned = {word for word, _ in known}
    rare = [w for w, n in net.count.items()
            if not n and w not in learned and usable(w, net.main_sense(w))]  # fmt: skip
    rare = rng("rare").sample(sorted(rare), count(8000))
    things = [word for word, sense in known if words.counts(sense)]
    yield from refusals.refusals(
        rng("refusals"), count(24000), places, rare, things, in_use | {w for w, _ in known}
    )
    said = [e for _, s in known for e in s.examples if not e.endswith("?")]
    yield from refusals.statements(rng("statements"), said[: count(3000)])
    yield from copying.dialogues(rng("copying"), count(16000), [word for word, _ in known])
    yield from sums.dialogues(rng("sums"), count(50000))
    filler = _filler(rng("filler"), known)
    yield from sums.tool_dialogues(rng("tools"), count(3000), filler)
    yield from notes.dialogues(rng("notes"), count(24000), filler)
    yield from stories.dialogues(rng("stories"), count(50000))


def _filler(rng: random.Random, known: list) -> list[tuple[str, str]]:
    """Question and answer pairs of all kinds, to stand between other turns."""
    pairs = []
    for part, file, times in (("manual", "manual.txt", 1), ("smalltalk", "smalltalk.txt", 3)):
        for entry in manual.entries(file):
            pairs += [(manual.shown(rng, entry, part), entry.answers[0]) for _ in range(times)]
    for questions, answer in facts.everyday():
        shown = [q for q in questions if not is_held_out("facts", q.lower())]
        pairs += [(shown[0], answer)] if shown else []
    for word, sense in rng.sample(known, min(len(known), 300)):
        question = words.fill(rng.choice(words.MEANING), word)
        if not is_held_out("words", question.lower()):
            pairs.append((question, words.meaning(word, sense)))
    return pairs


def pack(encoder: WireEncoder, made: list[Dialogue]) -> Documents:
    parts = list(SHARES)
    rows = encoder.batch([dialogue.pieces() for dialogue in made])
    kept = [(row, d) for row, d in zip(rows, made, strict=True) if len(row) <= MAX_TOKENS]
    return Documents(
        parts,
        np.concatenate([np.array(row, np.uint16) for row, _ in kept]),
        np.array([len(row) for row, _ in kept], np.int32),
        np.array([parts.index(d.part) for _, d in kept], np.uint8),
        np.array([d.joins for _, d in kept], np.uint8),
    )


def statistics(documents: Documents) -> dict[str, dict[str, int]]:
    made = {}
    for index, name in enumerate(documents.parts):
        lengths = documents.lengths[documents.part == index]
        made[name] = {"documents": len(lengths), "tokens": int(lengths.sum())}
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packages", type=Path, required=True, help="downloaded package files")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--tokenizer", type=Path, help="use this one instead of training one")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    packages = Packages(args.packages, args.out / "unpacked")
    made = list(dialogues(packages, args.seed, args.scale))
    random.Random(args.seed).shuffle(made)
    print(Counter(d.part for d in made))
    tokenizer_file = args.out / "tokenizer.json"
    if args.tokenizer:
        tokenizer_file.write_bytes(args.tokenizer.read_bytes())
    tokenizer = train(made, tokenizer_file, reuse=bool(args.tokenizer))
    encoder = WireEncoder(tokenizer)
    report = {}
    for name, held in (("train", False), ("held", True)):
        documents = pack(encoder, [d for d in made if d.held_out == held])
        path = args.out / f"{name}.xz"
        documents.save(path)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        report[name] = {"sha256": digest, "parts": statistics(documents)}
    (args.out / "corpus.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))
    prompts = Path(__file__).parent / "text" / "prompts.json"
    (args.out / "prompts.json").write_text(prompts.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
