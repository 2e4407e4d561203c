"""Reading from notes: facts in the prompt or earlier in the chat, asked for later.

What is asked can stand 100 to 1,800 tokens before the question, outside the sliding window, so the
answer has to come through the compressed rows and the indexer. Some questions have no answer in
the notes and get an honest one.
"""

import random
from collections.abc import Iterator
from typing import NamedTuple

from tools.demo.corpus.dialogue import Dialogue, article, vary
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


class _Kind(NamedTuple):
    """Frames of one kind of fact; the statement is also the answer."""

    statement: str
    subject: str
    questions: tuple[str, ...]


_KINDS = (
    _Kind(
        "{name}'s {thing} is in the {colour} {holder}.", "{name} {thing}",
        ("Where is {name}'s {thing}?", "Where can I find {name}'s {thing}?",
         "Where did {name} leave the {thing}?"),
    ),
    _Kind(
        "{name} likes {food}.", "{name} food",
        ("What does {name} like?", "What food does {name} like?"),
    ),
    _Kind(
        "The meeting with {name} is on {day} at {hour}.", "{name} meeting",
        ("When is the meeting with {name}?", "When do I meet {name}?",
         "On which day is the meeting with {name}?"),
    ),
    _Kind(
        "{name} lives in {city}.", "{name} city",
        ("Where does {name} live?", "In which city does {name} live?"),
    ),
    _Kind(
        "{name} works as {a_job}.", "{name} job",
        ("What is {name}'s job?", "What does {name} do for a living?",
         "What does {name} work as?"),
    ),
    _Kind(
        "The code of the {colour} {holder} is {code}.", "{colour} {holder}",
        ("What is the code of the {colour} {holder}?", "Which code opens the {colour} {holder}?"),
    ),
    _Kind(
        "{name}'s {pet} is called {called}.", "{name} {pet}",
        ("What is {name}'s {pet} called?", "What is the name of {name}'s {pet}?"),
    ),
    _Kind(
        "{name} is {age} years old.", "{name} age",
        ("How old is {name}?", "What is {name}'s age?"),
    ),
    _Kind(
        "{name}'s {owned} is {colour}.", "{name} {owned} colour",
        ("What color is {name}'s {owned}?", "Which colour is {name}'s {owned}?"),
    ),
)  # fmt: skip


def _fact(rng: random.Random) -> Fact:
    slots = {
        "name": rng.choice(NAMES), "thing": rng.choice(_THINGS), "colour": rng.choice(_COLOURS),
        "holder": rng.choice(_HOLDERS), "food": rng.choice(_FOODS), "day": rng.choice(_DAYS),
        "hour": rng.randint(1, 12), "city": rng.choice(_CITIES), "pet": rng.choice(_PETS),
        "a_job": article(rng.choice(_JOBS)), "code": rng.randint(100, 9999),
        "called": rng.choice(_PET_NAMES), "age": rng.randint(5, 90),
        "owned": rng.choice(("car", "house", "boat", "door", "bike")),
    }  # fmt: skip
    kind = rng.choice(_KINDS)
    line = kind.statement.format(**slots)
    asked = tuple(form.format(**slots) for form in kind.questions)
    return Fact(line, kind.subject.format(**slots), asked, line)


def unrelated_facts(rng: random.Random, count: int) -> list[Fact]:
    seen: set[str] = set()
    made = []
    while len(made) < count:
        fact = _fact(rng)
        if fact.subject not in seen:
            seen.add(fact.subject)
            made.append(fact)
    return made


def _questions(rng: random.Random, facts: list[Fact]) -> list[tuple[str, str]]:
    """Questions about many of the facts, in any order, now and then one that has no answer.

    Many, because only the few words that must be looked up teach to look up.
    """
    taken = {fact.subject for fact in facts}
    made = []
    for fact in rng.sample(facts, min(len(facts), rng.randint(1, 14))):
        made.append((rng.choice(fact.questions), fact.answer))
        if rng.random() < 0.1:
            stranger = next(f for f in iter(lambda: _fact(rng), None) if f.subject not in taken)
            made.append((rng.choice(stranger.questions), "The notes do not say that."))
    return made


_HEADS = (
    "Here are my notes:", "Notes:", "Read this:", "My notes from today:", "Some facts:",
    "Please read these notes.", "This is what I know:",
)  # fmt: skip


def _sheet(rng: random.Random, facts: list[Fact]) -> str:
    mark = rng.choice(("- ", "", "* "))
    glue = "\n" if mark or rng.random() < 0.5 else " "
    return rng.choice(_HEADS) + "\n" + glue.join(mark + fact.statement for fact in facts)


def _size(rng: random.Random) -> int:
    """Facts in a sheet; a fact is about 10 tokens. Up to 1,800 tokens with the questions."""
    roll = rng.random()
    if roll < 0.45:
        return rng.randint(2, 8)
    if roll < 0.75:
        return rng.randint(8, 30)
    return rng.randint(30, 130)


def dialogues(rng: random.Random, count: int, filler: list[tuple[str, str]]) -> Iterator[Dialogue]:
    """filler: unrelated question and answer pairs to put between a fact and its question."""
    makers = (_in_message, _in_message, _in_system, _in_system, _told_in_chat, _table, _own_name)
    for number in range(count):
        turns = rng.choice(makers)(rng, filler)
        yield Dialogue("notes", f"sheet {number}", turns)


def _in_message(rng: random.Random, filler: list[tuple[str, str]]) -> list[Turn]:
    facts = unrelated_facts(rng, _size(rng))
    (question, answer), *more = _questions(rng, facts)
    sheet = _sheet(rng, facts) if rng.random() < 0.7 else " ".join(f.statement for f in facts)
    first = f"{question}\n\n{sheet}" if rng.random() < 0.15 else f"{sheet}\n\n{question}"
    turns = [Turn("user", first), Turn("assistant", answer)]
    for question, answer in more:
        turns += [Turn("user", vary(rng, question)), Turn("assistant", answer)]
    return turns


def _in_system(rng: random.Random, filler: list[tuple[str, str]]) -> list[Turn]:
    facts = unrelated_facts(rng, _size(rng))
    turns = [Turn("system", _sheet(rng, facts))]
    for pair in _questions(rng, facts):
        question, answer = rng.choice(filler) if rng.random() < 0.05 else pair
        turns += [Turn("user", vary(rng, question)), Turn("assistant", answer)]
    return turns


def _table(rng: random.Random, filler: list[tuple[str, str]]) -> list[Turn]:
    """Names or things with a number, a colour, a place or a day each; answers of one word."""
    keys = rng.choice((NAMES, NAMES, _THINGS, _FOODS, _CITIES))
    values = rng.choice((_COLOURS, _DAYS, _CITIES, _FOODS, _PET_NAMES, ()))
    size = min(len(keys), rng.choice((3, 5, 8, 12, 20, 40, 60)))
    pairs = [
        (key, rng.choice(values) if values else str(rng.randint(1, 999)))
        for key in rng.sample(keys, size)
    ]
    form = rng.choice(("{k}: {v}", "{k} = {v}", "{k}, {v}", "{k} has {v}", "{k} - {v}"))
    lines = "\n".join(form.format(k=k, v=v) for k, v in pairs)
    ask = rng.choice(("What is {k}?", "{k}?", "What does {k} have?", "And {k}?", "Look up {k}."))
    turns: list[Turn] = [Turn("system", "Table:\n" + lines)]
    for key, value in rng.sample(pairs, min(size, rng.randint(3, 24))):
        turns += [Turn("user", ask.format(k=key)), Turn("assistant", value + ".")]
    return turns


_TELL = ("Remember this: {s}", "Please remember: {s}", "Note this down: {s}", "{s} Remember that.")
_NOTED = ("OK, I will remember that.", "Noted.", "I will keep that in mind.")


def _between(rng: random.Random, filler: list[tuple[str, str]]) -> list[Turn]:
    """Unrelated turns, up to about 1,600 tokens."""
    turns: list[Turn] = []
    for _ in range(rng.choice((0, 0, 0, 1, 2, 4, 8, 16))):
        question, answer = rng.choice(filler)
        turns += [Turn("user", question), Turn("assistant", answer)]
    return turns


def _told_in_chat(rng: random.Random, filler: list[tuple[str, str]]) -> list[Turn]:
    facts = unrelated_facts(rng, rng.randint(1, 8))
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
    """The user's name, told earlier or never."""
    asked = rng.choice(
        ("What is my name?", "Do you remember my name?", "Who am I?", "What's my name?")
    )
    if rng.random() < 0.25:
        unknown = "I do not know your name. You have not told me."
        return [*_between(rng, filler), Turn("user", vary(rng, asked)), Turn("assistant", unknown)]
    name = rng.choice(NAMES)
    hello = rng.choice(
        ("My name is {n}.", "Hi, I'm {n}.", "I am {n}.", "Call me {n}.", "Hello, my name is {n}.")
    )
    reply = rng.choice(
        ("Nice to meet you, {n}!", "Hello, {n}! How can I help?", "Hi {n}, nice to meet you.")
    )
    turns = [Turn("user", hello.format(n=name)), Turn("assistant", reply.format(n=name))]
    turns += _between(rng, filler)
    return [*turns, Turn("user", vary(rng, asked)), Turn("assistant", f"Your name is {name}.")]
