"""Repeating what was said: word for word, a part of it, in another order.

The shortest way to learn to copy, which notes, names and unknown words all need.
"""

import random
from collections.abc import Iterator

from tools.demo.corpus.dialogue import Dialogue, listed
from tools.demo.corpus.notes import NAMES, unrelated_facts
from tools.demo.corpus.refusals import invented
from tools.demo.wire import Turn

_REPEAT = (
    "Repeat after me: {x}", "Say this: {x}", "Please repeat: {x}", "Write this down again: {x}",
    "Copy this: {x}", "Say exactly this: {x}", "Repeat: {x}", "Echo: {x}",
)  # fmt: skip


def dialogues(rng: random.Random, count: int, words: list[str]) -> Iterator[Dialogue]:
    """words: real words to draw from."""
    known = set(words)
    for number in range(count):
        turns: list[Turn] = []
        for _ in range(rng.randint(1, 4)):
            question, answer = rng.choice((_whole, _whole, _place, _order))(rng, words, known)
            turns += [Turn("user", question), Turn("assistant", answer)]
        yield Dialogue("copy", f"copy {number}", turns)


def _item(rng: random.Random, words: list[str], known: set[str]) -> str:
    kind = rng.randrange(5)
    if kind == 0:
        return invented(rng, known)
    if kind == 1:
        return rng.choice(NAMES)
    if kind == 2:
        return str(rng.randint(0, 99999))
    return rng.choice(words)


def _whole(rng: random.Random, words: list[str], known: set[str]) -> tuple[str, str]:
    if rng.random() < 0.3:
        said = rng.choice(unrelated_facts(rng, 1)).statement
    else:
        said = " ".join(_item(rng, words, known) for _ in range(rng.randint(1, 12)))
    return rng.choice(_REPEAT).format(x=said), said


def _place(rng: random.Random, words: list[str], known: set[str]) -> tuple[str, str]:
    """The first or last of a list, or the one behind another."""
    items = list(dict.fromkeys(_item(rng, words, known) for _ in range(rng.randint(3, 9))))
    given = listed(items)
    at = rng.randrange(len(items) - 1) if len(items) > 1 else 0
    question, answer = rng.choice((
        ("Which one is first?", items[0]),
        ("Which one is last?", items[-1]),
        (f"Which one comes after {items[at]}?", items[min(at + 1, len(items) - 1)]),
        (f"Which one comes after {items[at]}?", items[min(at + 1, len(items) - 1)]),
    ))  # fmt: skip
    return f"Here is a list: {given}. {question}", f"{answer}."


def _order(rng: random.Random, words: list[str], known: set[str]) -> tuple[str, str]:
    items = [_item(rng, words, known) for _ in range(rng.randint(2, 6))]
    return f"Say it backwards: {', '.join(items)}", ", ".join(reversed(items))
