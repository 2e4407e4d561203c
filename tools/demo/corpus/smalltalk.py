"""Small talk: our own exchanges, and question-answer pairs that pass the filters."""

import random
import re
from collections.abc import Iterator

from tools.demo.corpus import manual
from tools.demo.corpus.dialogue import Dialogue, ask, vary
from tools.demo.wire import Turn

CATEGORIES = ("computers", "science", "food")

_REASON = "Just small talk. A short, friendly answer."
_STARTS, _ENDS = ("hello", "morning", "evening"), ("bye", "thanks")
_FOLLOWS = {
    "howareyou": ("iamfine", "iamsad", "iamtired", "iamhappy", "iambored"),
    "iambored": ("joke", "riddle", "secret"),
    "joke": ("anotherjoke", "good", "thanks"),
    "hello": ("howareyou", "name", "talk", "help"),
    "name": ("age", "where", "human"),
    "talk": ("howareyou", "hobbies", "plans", "pets"),
}


def own(rng: random.Random, rounds: int, flows: int) -> Iterator[Dialogue]:
    """Single exchanges, and chats that go from one to the next."""
    known = {entry.name: entry for entry in manual.entries("smalltalk.txt")}
    for _ in range(rounds):
        for entry in known.values():
            for question in entry.questions:
                thinks = (
                    "Just small talk. A short, friendly answer." if rng.random() < 0.05 else None
                )
                asked = vary(rng, question) if len(question) > 3 else question
                key = question.lower()
                yield ask("smalltalk", key, asked, rng.choice(entry.answers), thinks)
    names = list(known)
    for number in range(flows):
        path = [rng.choice(_STARTS)]
        for _ in range(rng.randint(1, 5)):
            after = _FOLLOWS.get(path[-1])
            path.append(rng.choice(after) if after and rng.random() < 0.7 else rng.choice(names))
        path.append(rng.choice(_ENDS))
        turns = []
        for name in path:
            turns.append(Turn("user", manual.shown(rng, known[name], "smalltalk")))
            turns.append(Turn("assistant", rng.choice(known[name].answers)))
        yield Dialogue("smalltalk", f"flow {number}", turns)


_BLOCKED = re.compile(
    r"fuck|shit|bitch|damn|ass\b|sex|porn|kill|suicid|nazi|hitler|trump|democrat|republican|racis|"
    r"gay\b|drunk|drug|weed\b|beer|vodka|http|www\.|@\w|\bmd\b|chatbot|bot\b|turing|\bUCB\b|mturk",
    re.I,
)
# A program has no job, body, family or past: a reply may say "I" in these ways only.
_FIRST_PERSON = re.compile(r"\b(i|im|i'm|i'll|i'd|i've|my|mine|me|we|we're|our|us|myself)\b", re.I)
_HARMLESS = re.compile(
    r"\bi (think|hope|agree|see|guess|bet|understand|am sure|am glad|would say|am sorry|know)\b"
    r"|\bi'm (sure|glad|sorry|happy to hear)\b|\b(tell|ask) me\b",
    re.I,
)


def acceptable(text: str, *, reply: bool) -> bool:
    if not text.isascii() or _BLOCKED.search(text) or not 2 <= len(text) <= 160:
        return False
    if reply and (_FIRST_PERSON.search(_HARMLESS.sub("", text)) or not 10 <= len(text) <= 120):
        return False
    letters = sum(c.isalpha() or c.isspace() for c in text)
    return letters >= 0.85 * len(text) and not re.search(r"(.)\1\1|\*", text)


def tidy(text: str) -> str:
    """A reply with capitals and a full stop, as ours are written."""
    text = re.sub(r"\bi\b", "I", text)
    text = re.sub(r"\bi'(m|ll|d|ve)\b", r"I'\1", text)
    text = re.sub(r"\b(im)\b", "I'm", text)
    text = re.sub(r"(^|[.!?] )([a-z])", lambda m: m[1] + m[2].upper(), text)
    return text if text[-1] in ".!?)" else text + "."


def pairs(rng: random.Random, found: list[tuple[str, str]]) -> Iterator[Dialogue]:
    for question, answer in found:
        if acceptable(answer, reply=True) and acceptable(question, reply=False):
            yield ask("smalltalk", question.lower(), vary(rng, question), tidy(answer))
