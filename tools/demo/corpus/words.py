"""Word tasks from WordNet: meanings, synonyms, opposites, kinds, sentences.

Only the most used words by WordNet's own counts: a small model learns a few thousand words well or
many badly. The answer to a word is always the same; the question varies.
"""

import random
import re
from collections.abc import Iterator

from tools.demo.corpus.dialogue import TEXTS, Dialogue, article, ask, capital, listed, vary
from tools.demo.corpus.wordnet import COARSE, Sense, WordNet, usable

_VAGUE = {
    "entity", "abstraction", "physical entity", "object", "whole", "artifact", "matter", "thing",
    "attribute", "relation", "psychological feature", "event", "act", "group", "state",
    "instrumentality", "measure", "unit", "causal agent", "process", "cognition", "condition",
    "change", "action", "activity", "quality", "property", "content", "communication", "happening",
    "part", "substance", "being", "organism", "creation", "way", "cause",
}  # fmt: skip
_NAMES_OF_TIME = re.compile(r"month|day of the week|calendar")


def everyday_sense(net: WordNet, word: str) -> Sense | None:
    """The most used sense of an everyday word that can be told; at a tie, the thing."""
    senses = sorted(net.senses.get(word, ()), key=lambda s: (-s.count, s.pos != "n"))
    for sense in senses:
        net.fill(sense, word)
        if usable(word, sense, longest=150):
            return sense
    return None


def vocabulary(net: WordNet, count: int) -> list[tuple[str, Sense]]:
    """Everyday words of our own list, then the most used usable words by WordNet's counts."""
    everyday = (TEXTS / "everyday_words.txt").read_text(encoding="utf-8").split()
    made: dict[str, Sense] = {}
    for lemma in dict.fromkeys(everyday):
        sense = net.main_sense(lemma) if lemma in net.senses else None
        if sense is None or not usable(lemma, sense):
            sense = everyday_sense(net, lemma)
        if sense is not None:
            made[lemma] = sense
    ranked = sorted((-n, lemma) for lemma, n in net.count.items() if n)
    for _, lemma in ranked:
        if len(made) >= count:
            break
        if lemma not in made and usable(lemma, sense := net.main_sense(lemma)):
            made[lemma] = sense
    return list(made.items())[:count]


# Lexicographer files of things one can count: artifact, animal, body, communication, event, group,
# location, object, person, plant, possession, quantity, shape, time.
_COUNTABLE = {6, 5, 8, 10, 11, 14, 15, 17, 18, 20, 21, 23, 25, 28}


def meaning(word: str, sense: Sense) -> str:
    """The one answer to what a word means."""
    gloss = sense.gloss
    if sense.pos == "v":
        head = f"To {word} means to {gloss.removeprefix('to ')}"
    elif counts(sense):
        head = f"{capital(article(word))} is {gloss}"
    else:
        head = f'The word "{word}" means {gloss}'
    head = head.removesuffix(".")
    return head + "." + (f' For example: "{sense.examples[0]}"' if sense.examples else "")


def counts(sense: Sense) -> bool:
    """Whether "a <word> is <gloss>" is English."""
    return sense.pos == "n" and sense.topic in _COUNTABLE and sense.gloss.startswith(("a ", "an "))


MEANING = (
    'What does "{w}" mean?', "What does {w} mean?", "Define {w}.", "Define the word {w}.",
    'What is the meaning of "{w}"?', "What is the meaning of {w}?", 'Explain the word "{w}".',
    'Can you explain what "{w}" means?', "Give me the definition of {w}.", "{W}: what is that?",
    'Do you know what "{w}" means?', "Tell me what {w} means.", "Meaning of {w}?",
    'What is meant by "{w}"?', "What do people mean when they say {w}?", "Explain {w} to me.",
    "I do not know the word {w}.", "I don't know what {w} means.", 'What is "{w}"?', "{w}?",
    "I have read the word {w}. What does it mean?", "Someone said {w}. What is that?",
    "What would you say {w} means?", "How would you explain {w}?", "Describe the word {w}.",
    "My daughter wants to know what {w} means.", "Please define {w} for me.", "{w} means what?",
    'The word is "{w}". What does it mean?', "What does the word {w} mean?", "define {w}",
    "Please say what {w} means.", "Can you define {w}?", "What is the word {w} for?",
)  # fmt: skip
_MEANING_NOUN = (
    "What is {a}?", "What's {a}?", "Tell me what {a} is.", "Explain what {a} is.",
    "Do you know what {a} is?", "What exactly is {a}?", "Can you tell me what {a} is?",
)  # fmt: skip
_SYNONYM = (
    "Give me another word for {w}.", 'What is another word for "{w}"?', "Synonym for {w}?",
    'What is a synonym of "{w}"?', "Which word means the same as {w}?", "Another word for {w}?",
    'Can I say something else instead of "{w}"?', "Find a word like {w}.",
    "What else can I say for {w}?", "I need another word for {w}.", "Words like {w}?",
    'A different word for "{w}", please.', "What word means nearly the same as {w}?",
    "Instead of {w}, what can I say?", "Name a synonym of {w}.",
)  # fmt: skip
_OPPOSITE = (
    "What is the opposite of {w}?", 'What is the opposite of "{w}"?', "Opposite of {w}?",
    "Give me the opposite of {w}.", "Which word is the opposite of {w}?", "Antonym of {w}?",
    "What's the opposite of {w}?", "The opposite of {w} is what?", "Name the opposite of {w}.",
)  # fmt: skip
_KIND = (
    "What kind of thing is {a}?", "What sort of thing is {a}?", "{A} is a kind of what?",
    "To which group does {a} belong?", "What type of thing is {a}?",
)  # fmt: skip
_SENTENCE = (
    'Use "{w}" in a sentence.', "Use the word {w} in a sentence.", "Make a sentence with {w}.",
    'Can you use "{w}" in a sentence?', 'Give me an example sentence with "{w}".',
    "Show me how to use {w}.", "Write a sentence with the word {w}.",
    "A sentence with {w}, please.", "How do I use {w} in a sentence?", "Say something with {w}.",
)  # fmt: skip


def fill(template: str, word: str) -> str:
    named = article(word)
    return template.format(w=word, W=capital(word), a=named, A=capital(named))


def dialogues(
    rng: random.Random, net: WordNet, known: list[tuple[str, Sense]]
) -> Iterator[Dialogue]:
    common = {word for word, _ in known} | {w for w, n in net.count.items() if n > 1}
    own = _own_pairs()
    for word, sense in known:
        answer = meaning(word, sense)
        asked = [*MEANING, *(_MEANING_NOUN * 2 if counts(sense) else ())]
        for template in rng.sample(asked, 12):
            yield _one(rng, word, template, answer)
        near, opposite = own.get(word, (_near(net, word, sense, common), ""))
        for template in rng.sample(_SYNONYM, 8 if word in own else 3):
            yield _one(rng, word, template, _synonyms(word, near))
        opposite = opposite or next((w for w in sense.opposites if w in common), "")
        text = f'I don\'t know an opposite of "{word}".'
        if opposite:
            text = f'The opposite of "{word}" is "{opposite}".'
        for template in rng.sample(_OPPOSITE, 6 if opposite else 1):
            yield _one(rng, word, template, text)
        kinds = [k for k in sense.hypernyms if k not in _VAGUE and not COARSE.search(k)]
        if counts(sense) and kinds and kinds[0].islower():
            text = f"{capital(article(word))} is a kind of {kinds[0]}."
            for template in rng.sample(_KIND, 3):
                yield _one(rng, word, template, text)
        for template in rng.sample(_SENTENCE, 6):
            yield _one(rng, word, template, sentence(word, sense))


def _own_pairs() -> dict[str, tuple[list[str], str]]:
    """word -> (words of nearly the same meaning, its opposite or ""), from our own list."""
    made = {}
    for line in (TEXTS / "synonyms.txt").read_text(encoding="utf-8").splitlines():
        word, _, rest = line.partition(" = ")
        if rest:
            near, _, opposite = rest.partition("/")
            made[word] = ([w.strip() for w in near.split(",") if w.strip()], opposite.strip())
    return made


def _near(net: WordNet, word: str, sense: Sense, common: set[str]) -> list[str]:
    if _NAMES_OF_TIME.search(sense.gloss):
        return []
    similar = [w for w in sense.similar if net.count.get(w, 0) >= 5]
    others = [w for w in [*sense.lemmas, *similar] if w != word and w in common]
    return [w for w in dict.fromkeys(others) if " " not in w][:3]


def _synonyms(word: str, near: list[str]) -> str:
    named = [f'"{w}"' for w in near]
    if not named:
        return f'I don\'t know another word for "{word}".'
    if len(named) == 1:
        return f'Another word for "{word}" is {named[0]}.'
    return f'Other words for "{word}" are {listed(named)}.'


_VISIBLE = {5, 6, 18, 20}  # lexicographer files animal, artifact, person, plant
_OWN_SENTENCES = {
    "thing": ("I saw {a} yesterday.", "There is {a} in the story.", "She told me about {a}."),
    "n": ("We talked about the {w} today.", "He has read about the {w}."),
    "v": ("They want to {w} again tomorrow.", "She likes to {w} in the morning."),
    "a": ("It was very {w} that day.", "He is a {w} man.", "That is not so {w}."),
    "r": ("She did it {w}.", "It happened {w}."),
}


def sentence(word: str, sense: Sense) -> str:
    """WordNet's example, or a plain sentence of our own; always the same for a word."""
    if sense.examples:
        return sense.examples[-1]
    thing = sense.pos == "n" and sense.topic in _VISIBLE
    forms = _OWN_SENTENCES["thing" if thing else sense.pos]
    made = random.Random(word).choice(forms).format(w=word, a=article(word))
    return made.replace(" a " + word, " " + article(word))


def _one(rng: random.Random, word: str, template: str, answer: str) -> Dialogue:
    reasoning = None
    if rng.random() < 0.05:
        reasoning = rng.choice(_REASONS).format(w=word)
    # Held out by phrasing: a word that is never shown cannot be known.
    question = fill(template, word)
    return ask("words", question.lower(), vary(rng, question), answer, reasoning)


_REASONS = (
    'The question is about the word "{w}". I know this word.',
    'This is about the word "{w}". I will give a short answer.',
    'The user asks about "{w}". I remember its entry.',
)  # fmt: skip
