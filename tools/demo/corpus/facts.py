"""Small facts: capitals, continents, currencies, languages, elements, units, everyday tables."""

import random
from collections.abc import Iterator
from typing import Any

from tools.demo.corpus.dialogue import TEXTS, Dialogue, ask, capital, vary

_WITH_THE = (
    "United", "Netherlands", "Philippines", "Bahamas", "Gambia", "Maldives", "Comoros",
    "Seychelles",
    "Dominican", "Czech Republic", "Central African", "Democratic Republic", "Republic of",
    "Marshall", "Solomon", "Cayman", "Faroe", "Falkland", "Cook", "British Virgin", "U.S.",
)  # fmt: skip

_CAPITAL = (
    "What is the capital of {c}?", "What's the capital of {c}?", "Capital of {c}?",
    "Which city is the capital of {c}?", "Tell me the capital of {c}.",
    "Do you know the capital of {c}?", "Name the capital city of {c}.",
    "What is the capital city of {c}?", "{C}: what is its capital?",
    "What is {c}'s capital?", "Which city is {c}'s capital?", "Tell me {c}'s capital.",
    "I forgot the capital of {c}.", "I want to know the capital of {c}.", "{C} has what capital?",
    "In {c}, which city is the capital?", "{C}'s capital?", "The capital of {c} is what?",
    "I am in {c}. What is the capital here?", "Capital city of {c}, please.",
    "We travel to {c}. What is its capital called?", "How is the capital of {c} called?",
)  # fmt: skip
_COUNTRY = (
    "{k} is the capital of which country?", "Of which country is {k} the capital?",
    "What country has {k} as its capital?", "Which country's capital is {k}?",
    "{k} is the capital of what?", "What is {k} the capital of?", "In which country is {k}?",
    "{k}: capital of which country?", "I am in {k}. Which country is that the capital of?",
)  # fmt: skip
_CONTINENT = (
    "On which continent is {c}?", "Where is {c}?", "In which part of the world is {c}?",
    "What continent is {c} in?", "Is {c} in Europe, in Asia or somewhere else?",
)  # fmt: skip
_CURRENCY = (
    "What is the currency of {c}?", "What money do they use in {c}?",
    "Which currency is used in {c}?", "How do people pay in {c}?",
)  # fmt: skip
_LANGUAGE = (
    "What language do people speak in {c}?", "Which language is spoken in {c}?",
    "What is the official language of {c}?",
)  # fmt: skip
_SYMBOL = (
    "What is the symbol of {e}?", "What is the chemical symbol for {e}?",
    "Which symbol does {e} have?", "Chemical symbol of {e}?",
)  # fmt: skip
_NUMBER = (
    "What is the atomic number of {e}?", "Which atomic number does {e} have?",
    "Atomic number of {e}?",
)  # fmt: skip


def everyday() -> list[tuple[list[str], str]]:
    """(question forms, answer) of text/everyday.txt."""
    made = []
    for line in (TEXTS / "everyday.txt").read_text(encoding="utf-8").splitlines()[1:]:
        *questions, answer = (part.strip() for part in line.split("|"))
        made.append((questions, answer))
    return made


def dialogues(rng: random.Random, tables: tuple, elements: list) -> Iterator[Dialogue]:
    """One pass over all tables; several phrasings each. Held out by phrasing: a fact that is never
    shown cannot be known."""
    yield from _countries(rng, *tables)
    for name, symbol, number in elements:
        if number > 100:
            continue
        for question in _SYMBOL:
            yield _fact(rng, question.format(e=name), f"The symbol of {name} is {symbol}.")
        for question in _NUMBER:
            answer = f"The atomic number of {name} is {number}."
            yield _fact(rng, question.format(e=name), answer)
        if len(symbol) <= 2:
            question = rng.choice(("Which element has the symbol {}?", "What does {} stand for?"))
            yield _fact(rng, question.format(symbol), f"{symbol} is the symbol of {name}.")
    for questions, answer in everyday():
        for question in questions * 4:
            yield _fact(rng, question, answer)


def _countries(
    rng: random.Random, countries: dict[str, Any], continents: dict[str, str],
    currencies: dict[str, Any], languages: dict[str, Any],
) -> Iterator[Dialogue]:  # fmt: skip
    for country in countries.values():
        if "partOf" in country or not country.get("capital"):
            continue
        if not (country["name"] + country["capital"]).isascii():
            continue
        name, city = country["name"], country["capital"]
        named = f"the {name}" if name.startswith(_WITH_THE) else name
        places = {"c": named, "C": capital(named), "k": city}
        for question in _CAPITAL:
            yield _fact(rng, question.format(**places), f"The capital of {named} is {city}.")
        for question in _COUNTRY:
            yield _fact(rng, question.format(**places), f"{city} is the capital of {named}.")
        yield _fact(rng, f"Is {city} the capital of {named}?",
                    f"Yes. The capital of {named} is {city}.")  # fmt: skip
        where = continents[country["continent"]]
        for question in rng.sample(_CONTINENT, 3):
            yield _fact(rng, question.format(**places), f"{capital(named)} is in {where}.")
        if country["currency"] and country["currency"][0] in currencies:
            money = currencies[country["currency"][0]]["name"]
            for question in rng.sample(_CURRENCY, 2):
                answer = f"The currency of {named} is the {money}."
                yield _fact(rng, question.format(**places), answer)
        if country["languages"] and country["languages"][0] in languages:
            tongue = languages[country["languages"][0]]["name"]
            for question in rng.sample(_LANGUAGE, 2):
                answer = f"In {named} people speak {tongue}."
                yield _fact(rng, question.format(**places), answer)


def _fact(rng: random.Random, question: str, answer: str) -> Dialogue:
    reasoning = None
    if rng.random() < 0.05:
        reasoning = "A small fact. I have learned this one."
    return ask("facts", question.lower(), vary(rng, question), answer, reasoning)
