"""What the model must know best: the app, itself, its limits. And what it must not pretend to know.

The text is in text/manual.txt, text/glossary.txt and text/smalltalk.txt. Refusals are made here
from templates over names, places and invented words. Held out by phrasing.
"""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tools.demo.corpus.dialogue import TEXTS, Dialogue, article, ask, capital, is_held_out, vary


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


# ---- what it does not know ----------------------------------------------------------------------

_UNKNOWN = (
    "I am a very small demo model, and I don't know that. "
    "Try asking me about the app, a word, a capital, or a small sum.",
    "I don't know that. I am only a small demo model.",
    "Sorry, I don't know. That is more than a small demo model can tell you.",
)
_CANNOT = (
    "I cannot do that. I am a very small demo model. The real DeepSeek-V4 can: load it with "
    "dsv4chat --model DIR.",
    "That is too hard for me. I am only the demo model; the real DeepSeek-V4 can help with it.",
)
_ASK_EXPERT = (
    "I cannot give advice on that. Please ask someone who knows, such as a doctor or a lawyer.",
)

_OFFICES = ("mayor", "president", "prime minister", "king", "queen", "governor", "leader")
_EVENTS = (
    "the next election", "the football game tonight", "the world cup", "the race tomorrow",
    "the match on Sunday", "the lottery", "the next war", "the Oscars",
)  # fmt: skip
_CODE = (
    "a Python program", "a sorting function", "a web page in HTML", "a shell script", "a game",
    "some JavaScript", "an SQL query", "a C++ class", "a regular expression", "code for a robot",
)  # fmt: skip
_TONGUES = "German French Spanish Chinese Italian Japanese Russian Latin Dutch Turkish".split()
_THEMES = (
    "quantum physics", "the French revolution", "the stock market", "black holes", "philosophy",
    "world war two", "the roman empire", "photosynthesis", "inflation", "relativity", "genetics",
    "the theory of evolution", "blockchain", "opera", "football", "the history of China",
)  # fmt: skip
_LONG_WORK = (
    "Write an essay about {x}.", "Write a long article about {x}.", "Summarize the book about {x}.",
    "Write my homework about {x}.", "Give me a full lecture on {x}.", "Compare all views on {x}.",
)  # fmt: skip
_ILLS = ("a headache", "a fever", "a rash", "chest pain", "a broken arm", "the flu", "back pain")
_HEALTH = (
    "I have {x}. What should I take?", "Which medicine is good for {x}?", "Is {x} dangerous?",
    "How do I cure {x}?", "Can I sue my neighbour?", "Should I sign this contract?",
    "Which stock should I buy?", "How should I invest my money?", "How much tax must I pay?",
)  # fmt: skip
_NEWS = (
    "What is in the news today?", "What happened yesterday?", "Who won the game last night?",
    "What is the price of gold?", "How much is a bitcoin?", "What is the stock price of NVIDIA?",
    "What is the traffic like?", "When does the next train leave?", "Which films are on tonight?",
    "What is the phone number of the police?", "Where is the nearest bakery?",
)  # fmt: skip
_FAMOUS = (
    "Who wrote {x}?", "When was {x} born?", "Who invented {x}?", "Who discovered {x}?",
    "Who painted {x}?", "When did {x} die?", "Who is {x}?", "Tell me about {x}.",
    "What did {x} do?", "How old is {x}?", "Where was {x} born?",
)  # fmt: skip
_PEOPLE = (
    "Albert Einstein", "Napoleon", "Cleopatra", "Shakespeare", "Mozart", "Marie Curie", "Newton",
    "Elon Musk", "Taylor Swift", "Messi", "Julius Caesar", "Picasso", "Gandhi", "Obama", "Trump",
    "Hamlet", "the telephone", "the radio", "penicillin", "the Mona Lisa", "Don Quixote",
    "Harry Potter", "the airplane", "the light bulb", "America", "Plato", "Beethoven", "Darwin",
)  # fmt: skip
_LAST = ("Miller", "Okafor", "Larsen", "Petrov", "Tanaka", "Silva", "Novak", "Haddad", "Berg",
         "Costa", "Weber", "Kim", "Ali", "Moreau", "Rossi", "Walsh")  # fmt: skip
_FIRST = (
    "Adam",
    "Bianca",
    "Conrad",
    "Delia",
    "Edgar",
    "Flora",
    "Gilbert",
    "Hanna",
    "Igor",
    "Jasmin",
    "Kevin",
    "Laura",
    "Marco",
    "Nadine",
    "Otto",
    "Paula",
    "Ralf",
    "Susan",
)
_COUNTS = (
    "How many people live in {x}?", "How big is {x}?", "How far is it to {x}?",
    "What is the highest mountain of {x}?", "What is the longest river of {x}?",
    "Who is the {o} of {x}?", "What is the history of {x}?", "What is the flag of {x}?",
    "When was {x} founded?", "How do I travel to {x}?", "What food do people eat in {x}?",
)  # fmt: skip


_WORD_FORMS = (
    'What does "{w}" mean?', "What does {w} mean?", "Define {w}.", "What is the meaning of {w}?",
    "Meaning of {w}?", 'Use "{w}" in a sentence.', "Explain {w}.", 'Explain the word "{w}".',
    "Give me another word for {w}.", "What is the opposite of {w}?",
)  # fmt: skip


def refusals(
    rng: random.Random, count: int, places: list[str], rare: list[str], known: set[str]
) -> Iterator[Dialogue]:
    """places: names of countries and cities. rare: real words outside the learned vocabulary."""
    for _ in range(count):
        question, answer = _refusal(rng, places, rare, known)
        thinks = "I do not know this, so I should say so." if rng.random() < 0.06 else None
        asked = vary(rng, question)
        yield ask("manual", question.lower(), asked, answer, thinks)


def _refusal(
    rng: random.Random, places: list[str], rare: list[str], known: set[str]
) -> tuple[str, str]:
    kind = rng.randrange(12)
    place = rng.choice(places)
    if kind == 0:
        return rng.choice(_COUNTS).format(x=place, o=rng.choice(_OFFICES)), rng.choice(_UNKNOWN)
    if kind == 1:
        form = rng.choice(("Who will win {x}?", "Who won {x}?", "Who should win {x}?"))
        return form.format(x=rng.choice(_EVENTS)), rng.choice(_UNKNOWN)
    if kind == 2:
        forms = (
            "Write {x}.",
            "Write {x} for me.",
            "Can you write {x}?",
            "I need {x}.",
            "Debug {x}.",
        )
        return rng.choice(forms).format(x=rng.choice(_CODE)), rng.choice(_CANNOT)
    if kind == 3:
        form = rng.choice((
            "Translate this into {x}.", "How do you say {w} in {x}?", "Say {w} in {x}.",
            "Translate {w} to {x}.", "What is {w} in {x}?"))  # fmt: skip
        word = rng.choice(sorted(known)[:400])
        return form.format(x=rng.choice(_TONGUES), w=f'"{word}"'), rng.choice(_CANNOT)
    if kind == 4:
        return rng.choice(_LONG_WORK).format(x=rng.choice(_THEMES)), rng.choice(_CANNOT)
    if kind == 5:
        return rng.choice(_HEALTH).format(x=rng.choice(_ILLS)), _ASK_EXPERT[0]
    if kind == 6:
        return rng.choice(_NEWS), rng.choice(_UNKNOWN)
    if kind == 7:
        return rng.choice(_FAMOUS).format(x=rng.choice(_PEOPLE)), rng.choice(_UNKNOWN)
    if kind == 8:
        person = f"{rng.choice(_FIRST)} {rng.choice(_LAST)}"
        form = rng.choice(("Who is {x}?", "Do you know {x}?", "Where does {x} live?",
                           "What is the job of {x}?", "How old is {x}?"))  # fmt: skip
        return form.format(x=person), "I don't know who that is. I am only a small demo model."
    if kind == 9:
        form = rng.choice(("What is the capital of {x}?", "Where is {x}?", "Capital of {x}?"))
        made = capital(invented(rng, known)) + rng.choice(("ia", "land", "stan", "a"))
        return form.format(x=made), f"I don't know a place called {made}."
    word = rng.choice(rare) if kind == 10 else invented(rng, known)
    form = rng.choice(_WORD_FORMS)
    return form.format(w=word), f'I don\'t know the word "{word}".'


_ONSETS = (
    "b bl br c ch cl d dr f fl fr g gl gr h j k kl l m n p pl pr qu r s sk sn st t tr v w z".split()
)
_NUCLEI = "a e i o u oo ee ai ou".split()
_CODAS = "b ck d ft g lp m mp n nd ng nk p rb rk rp s sh st t x zz".split() + [""] * 6


def invented(rng: random.Random, known: set[str]) -> str:
    """A word that does not exist, as far as WordNet knows."""
    while True:
        parts = [rng.choice(_ONSETS) + rng.choice(_NUCLEI) + rng.choice(_CODAS)
                 for _ in range(rng.randint(1, 3))]  # fmt: skip
        word = "".join(parts)
        if 4 <= len(word) <= 12 and word not in known:
            return word
