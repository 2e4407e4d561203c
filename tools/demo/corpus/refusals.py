"""What the model must not pretend to know, and the honest answers.

Made from templates over names, places, things and invented words.
"""

import random
from collections.abc import Iterator

from tools.demo.corpus.dialogue import Dialogue, article, ask, capital, vary
from tools.demo.wire import Turn

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


_OF_THINGS = (
    "How tall is {a}?", "How much does {a} cost?", "Where can I buy {a}?", "Who invented the {w}?",
    "How do I repair {a}?", "What is the best {w} in the world?", "When was the first {w} made?",
    "Why does {a} break?", "How heavy is {a}?", "How do you build {a}?", "Who has the biggest {w}?",
    "How many kinds of {w} are there?", "What is {a} made of?", "Who sold the first {w}?",
    "Which {w} should I take?", "How long does {a} last?", "How old is the oldest {w}?",
    "What is the history of the {w}?", "How does {a} work?", "Is {a} better than {b}?",
)  # fmt: skip
_OF_FAME = (
    "How tall is {x}?", "How old is {x}?", "Who built {x}?", "Where is {x}?", "What is {x}?",
    "When was {x} built?", "How much does it cost to see {x}?", "Who owns {x}?", "Tell me of {x}.",
)  # fmt: skip
_SIGHTS = (
    "the Tower of London", "Big Ben", "the Golden Gate Bridge", "the Colosseum", "the Louvre",
    "the Statue of Liberty", "the Great Wall", "Machu Picchu", "the Taj Mahal", "the Titanic",
    "the Kremlin", "the White House", "Stonehenge", "the Grand Canyon", "Niagara Falls", "NASA",
    "the Berlin Wall", "Wall Street", "Disneyland", "Harvard", "Hollywood", "Google", "Microsoft",
)  # fmt: skip
_SPEECH = "Python Java Rust C++ JavaScript Go Perl Ruby SQL Haskell Kotlin Swift".split()
_PROGRAMS = (
    "Write a {l} function that {x}.", "Write a {l} program that {x}.", "How do I {y} in {l}?",
    "Show me {l} code that {x}.", "Can you write {l}?", "Give me a {l} script that {x}.",
    "Implement a method in {l} that {x}.", "I need a {l} class that {x}.", "Fix my {l} code.",
)  # fmt: skip
_WORKS = (
    "sort a list", "read a file", "count words", "open a window", "download a page", "add numbers",
    "find the largest number", "print the date", "parse a date", "copy a folder", "draw a circle",
)  # fmt: skip


_WORD_FORMS = (
    'What does "{w}" mean?', "What does {w} mean?", "Define {w}.", "What is the meaning of {w}?",
    "Meaning of {w}?", 'Use "{w}" in a sentence.', "Explain {w}.", 'Explain the word "{w}".',
    "Give me another word for {w}.", "What is the opposite of {w}?",
    'What is "{w}"?', "What does the word {w} mean?", "I do not know the word {w}.", "{w}?",
    "How would you explain {w}?", "Synonym for {w}?", "Please define {w} for me.",
)  # fmt: skip


def refusals(
    rng: random.Random,
    count: int,
    places: list[str],
    rare: list[str],
    things: list[str],
    known: set[str],
) -> Iterator[Dialogue]:
    """places: names of countries and cities. rare: real words outside the learned vocabulary.
    things: nouns one can count, learned ones. known: words that exist."""
    for _ in range(count):
        if rng.random() < 0.25:
            question, answer = _of_things(rng, things)
        else:
            question, answer = _refusal(rng, places, rare, known)
        thinks = "I do not know this, so I should say so." if rng.random() < 0.06 else None
        asked = vary(rng, question)
        yield ask("manual", question.lower(), asked, answer, thinks)


def _of_things(rng: random.Random, things: list[str]) -> tuple[str, str]:
    kind = rng.randrange(4)
    if kind == 0:
        form, work = rng.choice(_PROGRAMS), rng.choice(_WORKS)
        verb, _, rest = work.partition(" ")
        asked = form.format(l=rng.choice(_SPEECH), y=work, x=f"{verb}s {rest}")
        return asked, rng.choice(_CANNOT)
    if kind == 1:
        return rng.choice(_OF_FAME).format(x=rng.choice(_SIGHTS)), rng.choice(_UNKNOWN)
    word, other = rng.sample(things, 2)
    form = rng.choice(_OF_THINGS)
    return form.format(w=word, a=article(word), b=article(other)), rng.choice(_UNKNOWN)


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


_HEARD = (
    "I see. Tell me more, or ask me something.", "Thank you for telling me.",
    "Interesting! Do you have a question for me?", "All right. What would you like to know?",
    "I see. I am a small model, so I cannot say much about that.", "OK. How can I help you?",
)  # fmt: skip


def statements(rng: random.Random, sentences: list[str]) -> Iterator[Dialogue]:
    """Sentences that ask nothing, and an answer that pretends nothing."""
    for sentence in sentences:
        said = vary(rng, sentence) if rng.random() < 0.5 else sentence
        turns = [Turn("user", said), Turn("assistant", rng.choice(_HEARD))]
        yield Dialogue("smalltalk", f"statement {sentence}", turns)
