"""Tiny stories by a grammar of our own: hero, place, wish, obstacle, helper, way out, ending.

A plot is a chain of sentence frames that share one cast, so names and pronouns stay consistent by
construction. The request names the hero or a thing; the story keeps to it. Some chats go on with a
question that the story answers.
"""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tools.demo.corpus import plots
from tools.demo.corpus.dialogue import Dialogue, article, capital, vary
from tools.demo.wire import Turn


@dataclass(frozen=True, slots=True)
class Cast:
    """What the frames of one story may name."""

    slots: dict[str, str]

    def say(self, frame: str) -> str:
        sentence = re.sub(r"\{(\w+)\}", lambda m: self.slots[m[1]], frame)
        return re.sub(r"(^|[.!?] )([a-z])", lambda m: m[1] + m[2].upper(), sentence)


def _pronouns(prefix: str, female: bool) -> dict[str, str]:
    he, him, his = ("she", "her", "her") if female else ("he", "him", "his")
    return {f"{prefix}he": he, f"{prefix}him": him, f"{prefix}his": his}


def _fitting(kind: str) -> list[tuple[str, bool]]:
    """Names for an animal or a person of that kind."""
    if kind in plots.FEMALE or kind in plots.MALE:
        return [pair for pair in plots.NAMES if pair[1] == (kind in plots.FEMALE)]
    return list(plots.NAMES)


def cast(rng: random.Random) -> Cast:
    hero, friend = rng.sample(plots.HEROES, 2)
    name = rng.choice(_fitting(hero))
    other = rng.choice([pair for pair in _fitting(friend) if pair != name])
    place, thing = rng.choice(plots.PLACES), rng.choice(plots.THINGS)
    size = rng.choice(plots.SIZES)
    slots = {
        "hero": hero,
        "a_hero": article(f"{size} {hero}"),
        "name": name[0],
        "friend": friend,
        "a_friend": article(friend),
        "other": other[0],
        "place": place,
        "thing": thing,
        "a_thing": article(thing),
        "food": rng.choice(plots.FOODS),
        "weather": rng.choice(plots.WEATHER),
        "time": rng.choice(plots.TIMES),
        "mood": rng.choice(plots.MOODS),
        "trait": rng.choice(plots.TRAITS),
        "hiding": rng.choice(plots.HIDING),
        "colour": rng.choice(plots.COLOURS),
        **_pronouns("", name[1]),
        **_pronouns("o", other[1]),
    }
    return Cast(slots)


def story(rng: random.Random, who: Cast) -> tuple[str, plots.Plot]:
    """60 to 130 words, and the plot it came from."""
    plot = rng.choice(plots.PLOTS)
    sentences = [rng.choice(plots.OPENINGS), rng.choice(plots.SECONDS)]
    sentences += [rng.choice(step) for step in plot.steps]
    sentences.append(rng.choice(plots.ENDINGS))
    return " ".join(who.say(frame) for frame in sentences), plot


_ANY = (
    "Tell me a story.", "Tell me a short story.", "Can you tell me a story?", "I want a story.",
    "Write a little story for me.", "Please tell me a bedtime story.", "Do you know a story?",
    "Tell my child a story.", "A story, please.", "Make up a short story.",
)  # fmt: skip
_HERO = (
    "Tell me a story about {a}.", "Tell me a short story about {a}.", "A story about {a}, please.",
    "Write a short story about {a}.", "Can you tell me a story about {a}?",
    "Make up a story with {a} in it.", "I would like to hear a story about {a}.",
)  # fmt: skip
_BOTH = (
    "Tell me a short story about {a} and {b}.", "Tell me a story about {a} and {b}.",
    "Write a story with {a} and {b}.", "A story about {a} and {b}, please.",
    "Make up a short story about {a} with {b}.",
)  # fmt: skip
_NAMED = (
    "Tell me a story about {a} called {n}.", "Write a story about {a} named {n}.",
    "I want a story about {n} the {h}.",
)  # fmt: skip
_AGAIN = ("Another story, please.", "Tell me another one.", "One more!", "Now a different story.")
_LIKED = (
    ("That was nice.", "I am glad you liked it."), ("Thank you!", "You are welcome."),
    ("I like that story.", "I am happy to hear that."), ("Nice story!", "Thank you!"),
)  # fmt: skip


def request(rng: random.Random, who: Cast) -> str:
    slots = who.slots
    roll = rng.random()
    forms = _ANY if roll < 0.25 else _HERO if roll < 0.55 else _BOTH if roll < 0.88 else _NAMED
    return rng.choice(forms).format(
        a=article(slots["hero"]), b=slots["a_thing"], n=slots["name"], h=slots["hero"]
    )


def dialogues(rng: random.Random, count: int) -> Iterator[Dialogue]:
    for number in range(count):
        who = cast(rng)
        text, plot = story(rng, who)
        reason = "A story is wanted. I will keep it short and simple."
        thinks = rng.random() < 0.03
        asked = vary(rng, request(rng, who))
        turns = [Turn("user", asked), Turn("assistant", text, reason if thinks else None)]
        if not thinks:
            turns += _after(rng, who, plot)
        yield Dialogue("stories", f"story {number}", turns)


def _after(rng: random.Random, who: Cast, plot: plots.Plot) -> list[Turn]:
    """What the reader says next, in some chats."""
    slots, roll = who.slots, rng.random()
    if roll < 0.3:
        asked = [
            (f"What was the {slots['hero']} called?", "The {hero} was called {name}."),
            ("Who was the story about?", "It was about {a_hero} called {name}."),
            (f"Who helped {slots['name']}?", plot.helper),
            (f"What did {slots['name']} want?", plot.wish),
            (f"Where did {slots['name']} live?", "{name} lived {place}."),
        ]
        turns = []
        for question, answer in rng.sample(asked, rng.randint(1, 2)):
            if answer:
                turns += [Turn("user", question), Turn("assistant", capital(who.say(answer)))]
        return turns
    if roll < 0.38:
        said, reply = rng.choice(_LIKED)
        return [Turn("user", said), Turn("assistant", reply)]
    if roll < 0.46:
        text, _ = story(rng, cast(rng))
        return [Turn("user", rng.choice(_AGAIN)), Turn("assistant", text)]
    return []
