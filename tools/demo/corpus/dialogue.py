"""A dialogue of the corpus, and ways to say a question differently."""

import hashlib
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.demo.packed import MAY_BE_FOLLOWED, MAY_FOLLOW
from tools.demo.wire import Piece, Turn, control, pieces, text

TEXTS = Path(__file__).parent / "text"
HELD_OUT_OF = 40  # one key in so many is held out


@dataclass(slots=True)
class Dialogue:
    """part: name in shares. key: what the held-out split goes by (word, topic, conversation id, or
    phrasing). turns: as the wire module takes them. plain: running text instead of turns."""

    part: str
    key: str
    turns: list[Turn] = field(default_factory=list)
    tools: list[dict[str, Any]] | None = None
    plain: str = ""

    @property
    def held_out(self) -> bool:
        return is_held_out(self.part, self.key)

    @property
    def joins(self) -> int:
        """Bits: may stand after other turns of a chat; other turns may stand after it. A turn with
        reasoning must be the last one of its chat, since later prompts drop it."""
        if self.plain or self.tools or self.turns[0].role == "system":
            return 0
        thinks = any(turn.reasoning is not None for turn in self.turns)
        return MAY_FOLLOW | (0 if thinks else MAY_BE_FOLLOWED)

    def pieces(self) -> list[Piece]:
        if self.plain:
            return [text(self.plain), control("<｜end▁of▁sentence｜>")]
        return pieces(self.turns, self.tools)


def is_held_out(part: str, key: str) -> bool:
    digest = hashlib.sha256(f"{part}\0{key}".encode()).digest()
    return int.from_bytes(digest[:4], "big") % HELD_OUT_OF == 0


def ask(part: str, key: str, question: str, answer: str, reasoning: str | None = None) -> Dialogue:
    return Dialogue(part, key, [Turn("user", question), Turn("assistant", answer, reasoning)])


_OPENERS = (
    "Please tell me: ", "Hey, ", "Hi! ", "Hello. ", "Okay, ", "So, ", "One question: ",
    "I have a question. ", "Quick question: ", "I was wondering: ", "Tell me, ", "Now, ",
)  # fmt: skip
_CLOSERS = (" Thanks!", " Please.", " Thank you.", " I want to know.", " I am curious.")


def vary(rng: random.Random, question: str) -> str:
    """The same question as people type it: openers, closers, no capitals, no punctuation."""
    roll = rng.random()
    if roll < 0.12:
        opener = rng.choice(_OPENERS)
        question = opener + (_lower(question) if opener.endswith((": ", ", ")) else question)
    elif roll < 0.17:
        question += rng.choice(_CLOSERS)
    roll = rng.random()
    if roll < 0.15:
        question = question.lower()
    elif roll < 0.2:
        question = _lower(question)
    if rng.random() < 0.2 and question[-1] in "?.":
        question = question[:-1]
    return question


def _lower(sentence: str) -> str:
    if sentence.startswith(("I ", "I'", "NVFP4", "NVIDIA", "DSML", "DeepSeek")):
        return sentence
    first = sentence.split(" ", 1)[0]
    return sentence if first.isupper() and len(first) > 1 else sentence[0].lower() + sentence[1:]


def capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def article(noun: str) -> str:
    """With its article: an oak, a fox."""
    sounds = ("hour", "honest", "heir")
    silent = ("uni", "use", "eu", "one", "ut", "ura")
    vowel = noun[:1].lower() in "aeiou" and not noun.lower().startswith(silent)
    return ("an " if vowel or noun.lower().startswith(sounds) else "a ") + noun


def listed(words: list[str]) -> str:
    """Joined as people write it: a, b and c."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]
