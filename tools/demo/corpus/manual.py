"""What the model must know best: the app, itself, its limits.

The text is in text/manual.txt, text/glossary.txt and text/smalltalk.txt; refusals are made
in refusals.py. Held out by phrasing.
"""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tools.demo.corpus.dialogue import TEXTS, Dialogue, article, ask, is_held_out, vary


@dataclass(frozen=True, slots=True)
class Entry:
    name: str
    questions: tuple[str, ...]
    answers: tuple[str, ...]


def entries(file: str) -> list[Entry]:
    """Blocks of a text file: [name], Q: forms split by |, A: one reply a line."""
    made = []
    text = (TEXTS / file).read_text(encoding="utf-8")
    for block in re.split(r"\n(?=\[)", text)[1:]:
        head, *lines = [line for line in block.splitlines() if line.strip()]
        questions = [q.strip() for line in lines if line.startswith("Q:")
                     for q in line[2:].split(" | ")]  # fmt: skip
        answers = [line[2:].strip() for line in lines if line.startswith("A:")]
        made.append(Entry(head.strip("[]"), tuple(questions), tuple(answers)))
    return made


# Other ways to ask how to do something, and what a key or command does.
_HOW = (
    "How can I {x}?", "How to {x}?", "What do I press to {x}?", "Which key do I press to {x}?",
    "I want to {x}.", "Tell me how to {x}.", "Is there a way to {x}?",
    "Can you tell me how to {x}?",
    "What must I do to {x}?", "I would like to {x}. How?", "I need to {x}.", "How does one {x}?",
    "Please help me to {x}.", "What is the key to {x}?", "Where can I {x}?", "I cannot {x}.",
)  # fmt: skip
_DOES = (
    "What happens when I press {x}?", "What is {x} for?", "Tell me about {x}.", "Explain {x}.",
    "What is the function of {x}?", "When do I use {x}?", "{x}?", "Why would I use {x}?",
)  # fmt: skip


def asked_otherwise(question: str) -> list[str]:
    """Other forms of a question, where its form is known."""
    if how := re.fullmatch(r"How (?:do|can) I (.+)\?", question):
        return [form.format(x=how[1]) for form in _HOW]
    if does := re.fullmatch(r"What does (\S+) do\?", question):
        return [form.format(x=does[1]) for form in _DOES]
    return []


_WHAT = (
    "What is {t}?", "What's {t}?", "What does {t} mean?", "Explain {t}.", "Tell me about {t}.",
    "Define {t}.", "Can you explain {t}?", "What do you know about {t}?", "{t}?",
    "I do not know what {t} is.", "Please explain {t} to me.", "What is meant by {t}?",
)  # fmt: skip


def glossary() -> list[Entry]:
    made = []
    for line in (TEXTS / "glossary.txt").read_text(encoding="utf-8").splitlines()[1:]:
        term, aliases, answer = (part.strip() for part in line.split(" | "))
        named = [term, *(alias.strip() for alias in aliases.split(","))]
        forms = [form.format(t=_named(name)) for name in named for form in _WHAT]
        made.append(Entry(term, tuple(forms), (answer,)))
    return made


# Plain words that take no article, by their start, and whole terms.
_BARE = (
    "attention", "softmax", "entropy", "quanti", "sampl", "prefill", "decod", "thinking",
    "training", "perplex", "saturation", "clipping", "greedy", "reasoning", "logits", "square",
    "compressed sparse", "heavily", "multi-token", "input scale", "end of", "begin of",
)  # fmt: skip
_PLAIN = ("gsa", "bf16", "lm head", "sqrtsoftplus", "batch size", "mixture of experts")


def _named(term: str) -> str:
    """A plain English term wants "a" or "the"; a name does not."""
    if not re.fullmatch(r"[a-z][a-z -]*", term) or term.startswith(_BARE) or term.endswith("s"):
        return term
    if term in _PLAIN:
        return term
    the = ("router", "indexer", "compressor", "kv cache", "engine", "gate", "head", "sink")
    return f"the {term}" if term in the else article(term)


def dialogues(rng: random.Random, rounds: int) -> Iterator[Dialogue]:
    """Every phrasing `rounds` times, each time typed a little differently."""
    known = [*entries("manual.txt"), *glossary()]
    for _ in range(rounds):
        for entry in known:
            for question in entry.questions:
                if len(entry.questions) > 20 and rng.random() < 0.6:
                    continue
                yield _one(rng, "manual", question, rng.choice(entry.answers))
                others = asked_otherwise(question)
                for other in rng.sample(others, min(len(others), 2)):
                    yield _one(rng, "manual", other, rng.choice(entry.answers))
    yield from _flows(rng, known, rounds * 200)


def shown(rng: random.Random, entry: Entry, part: str) -> str:
    """A phrasing that is not held out, for use inside longer chats."""
    allowed = [q for q in entry.questions if not is_held_out(part, q.lower())]
    return rng.choice(allowed or entry.questions)


def _one(rng: random.Random, part: str, question: str, answer: str) -> Dialogue:
    reasoning = rng.choice(_REASONS) if rng.random() < 0.06 else None
    return ask(part, question.lower(), vary(rng, question), answer, reasoning)


_REASONS = (
    "This is in the manual.", "A question about the app. I know this one.",
    "The user asks something I was trained on. A short answer will do.",
)  # fmt: skip


def _flows(rng: random.Random, known: list[Entry], count: int) -> Iterator[Dialogue]:
    """Chats of two to four manual questions in a row."""
    for number in range(count):
        turns = []
        for entry in rng.sample(known, rng.randint(2, 4)):
            made = _one(rng, "manual", shown(rng, entry, "manual"), rng.choice(entry.answers))
            turns += made.turns
        for turn in turns:
            if turn.reasoning is not None:
                break
        else:
            yield Dialogue("manual", f"flow {number}", turns)
