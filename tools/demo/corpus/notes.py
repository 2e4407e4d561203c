"""Reading from notes: facts in the prompt or earlier in the chat, asked for later.

What is asked can stand 100 to 1,800 tokens before the question, outside the sliding window, so the
answer has to come through the compressed rows and the indexer. Some questions have no answer in
the notes and get an honest one.
"""

import random
from collections.abc import Iterator
from typing import NamedTuple

from tools.demo.corpus.dialogue import Dialogue, vary
from tools.demo.wire import Turn

NAMES = (
    "Anna Ben Clara David Emma Felix Grace Henry Iris Jack Kate Leo Maria Noah Olivia Paul Quinn "
    "Rosa Sam Tina Ursula Victor Wendy Yusuf Zoe Alice Boris Carmen Daniel Elena Frank Greta Hugo "
    "Ines Jonas Karin Lucas Mia Nina Oscar Petra Rita Simon Tom Vera Walter Lena Max Nora Omar "
    "Ella Ivan Julia Kurt Lily Martin Nadia Peter Ruth Stella Theo Amir Bella Carl Dora Erik Fiona"
).split()  # fmt: skip
_THINGS = (
    "key wallet umbrella book phone hat coat bag camera passport ticket ring watch map letter "
    "bicycle guitar laptop lamp notebook scarf torch basket ladder hammer kettle violin drum kite "
    "ball blanket helmet suitcase wrench compass"
).split()  # fmt: skip
_COLOURS = "red blue green yellow black white brown grey orange purple pink silver".split()
_HOLDERS = (
    "box drawer cupboard bag basket chest jar shed car garage kitchen cellar office attic locker "
    "bookcase closet tent boat barn"
).split()  # fmt: skip
_FOODS = (
    "plums apples bread cheese soup rice noodles fish honey carrots pears cherries cake pancakes "
    "tomatoes beans mushrooms eggs olives grapes potatoes salad pizza walnuts"
).split()  # fmt: skip
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
_CITIES = (
    "Oslo Lima Cairo Paris Rome Dublin Prague Vienna Lisbon Madrid Berlin Athens Helsinki Tokyo "
    "Delhi Nairobi Havana Quito Warsaw Budapest Bern Riga Tunis Accra Seoul Ankara"
).split()  # fmt: skip
_JOBS = (
    "baker teacher nurse pilot painter farmer carpenter doctor gardener tailor driver singer "
    "lawyer plumber waiter writer fisherman librarian cook dentist engineer clerk judge"
).split()  # fmt: skip
_PETS = "dog cat horse parrot rabbit turtle goldfish hamster goat donkey pony mouse".split()
_PET_NAMES = (
    "Rex Luna Milo Bella Coco Shadow Pepper Ginger Rocky Daisy Biscuit Pip Nemo Tiger Smokey "
    "Ziggy Moss Clover Hazel Rusty"
).split()  # fmt: skip


class Fact(NamedTuple):
    """statement: a line of the notes. subject: what no other fact may share. questions, answer."""

    statement: str
    subject: str
    questions: tuple[str, ...]
    answer: str


def _fact(rng: random.Random) -> Fact:
    name, kind = rng.choice(NAMES), rng.randrange(9)
    if kind == 0:
        thing = rng.choice(_THINGS)
        place = f"in the {rng.choice(_COLOURS)} {rng.choice(_HOLDERS)}"
        line = f"{name}'s {thing} is {place}."
        return Fact(
            line,
            f"{name} {thing}",
            (
                f"Where is {name}'s {thing}?",
                f"Where can I find {name}'s {thing}?",
                f"Where did {name} leave the {thing}?",
            ),
            line,
        )
    if kind == 1:
        food = rng.choice(_FOODS)
        return Fact(
            f"{name} likes {food}.",
            f"{name} food",
            (f"What does {name} like?", f"What food does {name} like?"),
            f"{name} likes {food}.",
        )
    if kind == 2:
        day, hour = rng.choice(_DAYS), rng.randint(1, 12)
        line = f"The meeting with {name} is on {day} at {hour}."
        return Fact(
            line,
            f"{name} meeting",
            (
                f"When is the meeting with {name}?",
                f"When do I meet {name}?",
                f"On which day is the meeting with {name}?",
            ),
            line,
        )
    if kind == 3:
        city = rng.choice(_CITIES)
        return Fact(
            f"{name} lives in {city}.",
            f"{name} city",
            (f"Where does {name} live?", f"In which city does {name} live?"),
            f"{name} lives in {city}.",
        )
    if kind == 4:
        job = rng.choice(_JOBS)
        line = (
            f"{name} works as a {job}." if job[0] not in "aeiou" else f"{name} works as an {job}."
        )
        return Fact(
            line,
            f"{name} job",
            (
                f"What is {name}'s job?",
                f"What does {name} do for a living?",
                f"What does {name} work as?",
            ),
            line,
        )
    if kind == 5:
        colour, holder, code = rng.choice(_COLOURS), rng.choice(_HOLDERS), rng.randint(100, 9999)
        line = f"The code of the {colour} {holder} is {code}."
        return Fact(
            line,
            f"{colour} {holder}",
            (
                f"What is the code of the {colour} {holder}?",
                f"Which code opens the {colour} {holder}?",
            ),
            line,
        )
    if kind == 6:
        pet, called = rng.choice(_PETS), rng.choice(_PET_NAMES)
        line = f"{name}'s {pet} is called {called}."
        return Fact(
            line,
            f"{name} {pet}",
            (f"What is {name}'s {pet} called?", f"What is the name of {name}'s {pet}?"),
            line,
        )
    if kind == 7:
        age = rng.randint(5, 90)
        line = f"{name} is {age} years old."
        return Fact(line, f"{name} age", (f"How old is {name}?", f"What is {name}'s age?"), line)
    colour, thing = rng.choice(_COLOURS), rng.choice(("car", "house", "boat", "door", "bike"))
    line = f"{name}'s {thing} is {colour}."
    return Fact(
        line,
        f"{name} {thing} colour",
        (f"What color is {name}'s {thing}?", f"Which colour is {name}'s {thing}?"),
        line,
    )


def _facts(rng: random.Random, count: int) -> list[Fact]:
    seen: set[str] = set()
    made = []
    while len(made) < count:
        fact = _fact(rng)
        if fact.subject not in seen:
            seen.add(fact.subject)
            made.append(fact)
    return made


def _question(rng: random.Random, facts: list[Fact]) -> tuple[str, str]:
    if rng.random() < 0.12:
        taken = {fact.subject for fact in facts}
        stranger = next(f for f in iter(lambda: _fact(rng), None) if f.subject not in taken)
        return rng.choice(stranger.questions), "The notes do not say that."
    fact = rng.choice(facts)
    return rng.choice(fact.questions), fact.answer


_HEADS = (
    "Here are my notes:", "Notes:", "Read this:", "My notes from today:", "Some facts:",
    "Please read these notes.", "This is what I know:",
)  # fmt: skip


def _sheet(rng: random.Random, facts: list[Fact]) -> str:
    mark = rng.choice(("- ", "", "* "))
    glue = "\n" if mark or rng.random() < 0.5 else " "
    return rng.choice(_HEADS) + "\n" + glue.join(mark + fact.statement for fact in facts)


def _size(rng: random.Random) -> int:
    """Facts in a sheet; a fact is about 10 tokens. Up to 1,800 tokens."""
    roll = rng.random()
    if roll < 0.35:
        return rng.randint(2, 8)
    if roll < 0.6:
        return rng.randint(8, 30)
    return rng.randint(30, 150)


def dialogues(rng: random.Random, count: int, filler: list[tuple[str, str]]) -> Iterator[Dialogue]:
    """filler: unrelated question and answer pairs to put between a fact and its question."""
    makers = (_in_message, _in_message, _in_system, _told_in_chat, _told_in_chat, _own_name)
    for number in range(count):
        turns = rng.choice(makers)(rng, filler)
        yield Dialogue("notes", f"sheet {number}", turns)


def _in_message(rng: random.Random, filler: list[tuple[str, str]]) -> list[Turn]:
    facts = _facts(rng, _size(rng))
    question, answer = _question(rng, facts)
    turns = [Turn("user", f"{_sheet(rng, facts)}\n\n{question}"), Turn("assistant", answer)]
    for _ in range(rng.choice((0, 1, 2, 3, 4))):
        question, answer = _question(rng, facts)
        turns += [Turn("user", vary(rng, question)), Turn("assistant", answer)]
    return turns


def _in_system(rng: random.Random, filler: list[tuple[str, str]]) -> list[Turn]:
    facts = _facts(rng, _size(rng))
    turns = [Turn("system", _sheet(rng, facts))]
    for _ in range(rng.randint(1, 5)):
        if rng.random() < 0.15:
            question, answer = rng.choice(filler)
        else:
            question, answer = _question(rng, facts)
        turns += [Turn("user", vary(rng, question)), Turn("assistant", answer)]
    return turns


_TELL = ("Remember this: {s}", "Please remember: {s}", "Note this down: {s}", "{s} Remember that.")
_NOTED = ("OK, I will remember that.", "Noted.", "I will keep that in mind.")


def _between(rng: random.Random, filler: list[tuple[str, str]]) -> list[Turn]:
    """Unrelated turns, up to about 1,600 tokens."""
    turns: list[Turn] = []
    for _ in range(rng.choice((0, 1, 2, 4, 8, 16, 24))):
        question, answer = rng.choice(filler)
        turns += [Turn("user", question), Turn("assistant", answer)]
    return turns


def _told_in_chat(rng: random.Random, filler: list[tuple[str, str]]) -> list[Turn]:
    facts = _facts(rng, rng.randint(1, 4))
    turns: list[Turn] = []
    for fact in facts:
        said = rng.choice(_TELL).format(s=fact.statement)
        turns += [Turn("user", said), Turn("assistant", rng.choice(_NOTED))]
    turns += _between(rng, filler)
    for fact in rng.sample(facts, rng.randint(1, len(facts))):
        asked = vary(rng, rng.choice(fact.questions))
        turns += [Turn("user", asked), Turn("assistant", fact.answer)]
    return turns


def _own_name(rng: random.Random, filler: list[tuple[str, str]]) -> list[Turn]:
    name = rng.choice(NAMES)
    hello = rng.choice(
        ("My name is {n}.", "Hi, I'm {n}.", "I am {n}.", "Call me {n}.", "Hello, my name is {n}.")
    )
    reply = rng.choice(
        ("Nice to meet you, {n}!", "Hello, {n}! How can I help?", "Hi {n}, nice to meet you.")
    )
    turns = [Turn("user", hello.format(n=name)), Turn("assistant", reply.format(n=name))]
    turns += _between(rng, filler)
    asked = rng.choice(
        ("What is my name?", "Do you remember my name?", "Who am I?", "What's my name?")
    )
    return [*turns, Turn("user", vary(rng, asked)), Turn("assistant", f"Your name is {name}.")]
