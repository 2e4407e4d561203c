"""Small sums with and without visible reasoning, and calls of one tool, a calculator."""

import random
from collections.abc import Iterator

from tools.demo.corpus.dialogue import Dialogue, ask, vary
from tools.demo.wire import Turn

_WORDS = {"+": "plus", "-": "minus", "*": "times"}
_ASK = (
    "What is {s}?", "What's {s}?", "How much is {s}?", "Calculate {s}.", "{s} = ?", "{s}?",
    "Can you work out {s}?", "Please compute {s}.", "Solve {s}.", "Tell me what {s} is.",
    "{s} is what?", "{s} makes?", "And {s}?", "What does {s} make?", "How much makes {s}?",
    "{s}", "The result of {s}?", "{s} equals?", "Can you do {s}?", "I need {s}.",
)  # fmt: skip

CALCULATOR = {
    "name": "calculator",
    "description": "Work out an arithmetic expression and return the number.",
    "parameters": {
        "type": "object",
        "properties": {"expression": {"type": "string", "description": "For example 12 * (3 + 4)"}},
        "required": ["expression"],
    },
}


def dialogues(rng: random.Random, count: int) -> Iterator[Dialogue]:
    """Sums to 99 and tables to 12; two in five with one line of reasoning."""
    for _ in range(count):
        roll = rng.random()
        if roll < 0.08:
            yield _compare(rng)
        elif roll < 0.14:
            yield _neighbour(rng)
        else:
            yield _sum(rng)


_SAID = {
    "+": (
        "Add {a} and {b}.", "What is the sum of {a} and {b}?",
        "What do I get when I add {b} to {a}?",
        "I have {a} and get {b} more. How many do I have?", "{a} and {b} together?",
        "{a} apples and {b} apples make how many apples?", "If you add {a} to {b}, what is it?",
    ),
    "-": (
        "Subtract {b} from {a}.", "What is {a} take away {b}?", "What is left of {a} without {b}?",
        "I have {a} and give away {b}. How many are left?", "Take {b} away from {a}.",
        "What is the difference between {a} and {b}?", "If I take {b} from {a}, what is left?",
    ),
    "*": (
        "Multiply {a} by {b}.", "What is the product of {a} and {b}?",
        "How many apples are in {a} bags of {b}?",
        "How many are {a} times {b}?", "If I multiply {a} and {b}, what do I get?",
    ),
}  # fmt: skip


def _sum(rng: random.Random) -> Dialogue:
    kind = rng.choice("++--*")
    if kind == "*":
        a, b = rng.randint(0, 12), rng.randint(0, 12)
        value = a * b
    else:
        a, b = rng.randint(0, 99), rng.randint(0, 99)
        if kind == "-" and b > a:
            a, b = b, a
        value = a + b if kind == "+" else a - b
    word = _WORDS[kind]
    spoken = f"{a} {word} {b}"
    sign = rng.choice((kind, "x")) if kind == "*" else kind
    written = f"{a} {sign} {b}" if rng.random() < 0.6 else f"{a}{sign}{b}"
    question = vary(rng, rng.choice(_ASK).format(s=rng.choice((spoken, written))))
    if rng.random() < 0.3:
        question = vary(rng, rng.choice(_SAID[kind]).format(a=a, b=b))
    answer = f"{a} {word} {b} is {value}."
    reasoning = _reason(kind, a, b, value) if rng.random() < 0.4 else None
    return ask("sums", f"{a} {kind} {b}", question, answer, reasoning)


def _reason(kind: str, a: int, b: int, value: int) -> str:
    """47 + 38: 40 + 30 = 70, 7 + 8 = 15, 70 + 15 = 85."""
    head = f"{a} {kind} {b}:"
    if kind == "*":
        if b < 2 or a < 2:
            return f"{head} an easy one, {value}."
        before = a * (b - 1)
        return f"{head} {a} * {b - 1} = {before}, and {before} + {a} = {value}."
    tens, ones = b - b % 10, b % 10
    if not tens or not ones:
        return f"{head} one step, {value}."
    middle = a + tens if kind == "+" else a - tens
    return f"{head} {a} {kind} {tens} = {middle}, then {middle} {kind} {ones} = {value}."


def _compare(rng: random.Random) -> Dialogue:
    a, b = rng.sample(range(100), 2)
    bigger = rng.random() < 0.6
    word, wanted = ("bigger", max(a, b)) if bigger else ("smaller", min(a, b))
    question = rng.choice(
        (
            f"Which is {word}, {a} or {b}?",
            f"Is {a} or {b} {word}?",
            f"Which number is {word}: {a} or {b}?",
        )
    )
    other = min(a, b) if bigger else max(a, b)
    answer = f"{wanted} is {word} than {other}."
    return ask("sums", f"{a} {word} {b}", vary(rng, question), answer)


def _neighbour(rng: random.Random) -> Dialogue:
    a = rng.randint(1, 98)
    kind = rng.choice(("after", "before", "double", "half"))
    if kind == "after":
        question, answer = f"Which number comes after {a}?", f"After {a} comes {a + 1}."
    elif kind == "before":
        question, answer = f"Which number comes before {a}?", f"Before {a} comes {a - 1}."
    elif kind == "double":
        question, answer = f"What is double {a}?", f"Double {a} is {2 * a}."
    else:
        question, answer = f"What is half of {2 * a}?", f"Half of {2 * a} is {a}."
    return ask("sums", f"{kind} {a}", vary(rng, question), answer)


_BIG = (
    "What is {s}?", "How much is {s}?", "Please calculate {s}.", "Use the calculator for {s}.",
    "Work out {s}.", "I need the result of {s}.", "Compute {s} for me.",
)  # fmt: skip


def tool_dialogues(
    rng: random.Random, count: int, others: list[tuple[str, str]]
) -> Iterator[Dialogue]:
    """Chats with the calculator declared. Big sums call it; other questions are just answered."""
    systems = ("", "", "You are a helpful assistant.", "Use the tools when they help.")
    for _ in range(count):
        system = rng.choice(systems)
        turns = [Turn("system", system)] if system else []
        thinks = rng.random() < 0.3
        key = "tools"
        if rng.random() < 0.25:
            question, answer = rng.choice(others)
            why = "No sum here, so the calculator is not needed." if thinks else None
            turns += [Turn("user", vary(rng, question)), Turn("assistant", answer, why)]
            key = question
        else:
            expression, spoken, value = _big(rng)
            key = expression
            asked = vary(rng, rng.choice(_BIG).format(s=rng.choice((spoken, expression))))
            why = "This sum is too big for me. The calculator can do it." if thinks else None
            after = "The calculator has answered." if thinks else None
            call = ("calculator", {"expression": expression})
            turns += [
                Turn("user", asked),
                Turn("assistant", "", why, call),
                Turn("tool", value),
                Turn("assistant", f"{spoken} is {value}.", after),
            ]
        yield Dialogue("tools", key, turns, [CALCULATOR])


def _big(rng: random.Random) -> tuple[str, str, str]:
    """(expression, spoken form, result)."""
    kind = rng.choice("++-**/")
    a, b = rng.randint(100, 9999), rng.randint(11, 999)
    if kind == "/":
        b = rng.randint(3, 90)
        a = b * rng.randint(12, 400)
        return f"{a} / {b}", f"{a} divided by {b}", str(a // b)
    if kind == "-" and b > a:
        a, b = b, a
    value = {"+": a + b, "-": a - b, "*": a * b}[kind]
    return f"{a} {kind} {b}", f"{a} {_WORDS[kind]} {b}", str(value)
