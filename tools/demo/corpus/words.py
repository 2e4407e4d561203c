"""Word tasks from WordNet: meanings, synonyms, opposites, kinds, sentences.

Only the most used words by WordNet's own counts: a small model learns a few thousand words well or
many badly. The answer to a word is always the same; the question varies.
"""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tools.demo.corpus.dialogue import TEXTS, Dialogue, article, ask, capital, listed, vary

_FILES = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
_TYPES = {"1": "n", "2": "v", "3": "a", "4": "r", "5": "a"}
_VAGUE = {
    "entity", "abstraction", "physical entity", "object", "whole", "artifact", "matter", "thing",
    "attribute", "relation", "psychological feature", "event", "act", "group", "state",
    "instrumentality", "measure", "unit", "causal agent", "process", "cognition", "condition",
    "change", "action", "activity", "quality", "property", "content", "communication", "happening",
    "part", "substance", "being", "organism", "creation", "way", "cause",
}  # fmt: skip
_COARSE = re.compile(
    r"sex|coit|genital|penis|vagina|breast|prostitut|rape|whore|slut|homosex|lesbian|nigg|negro|"
    r"excre|urin|feces|faec|shit|fuck|damn|bastard|bitch|murder|suicide|kill|ethnic|racial|jew|"
    r"orgasm|erotic|nude|obscen|vulgar|offensive|terroris|nazi|drug",
    re.I,
)
_NAMES_OF_TIME = re.compile(r"month|day of the week|calendar")


@dataclass(slots=True)
class Sense:
    offset: str
    pos: str
    count: int
    gloss: str = ""
    examples: list[str] = field(default_factory=list)
    lemmas: list[str] = field(default_factory=list)
    topic: int = 0  # WordNet's lexicographer file
    hypernyms: list[str] = field(default_factory=list)
    opposites: list[str] = field(default_factory=list)
    similar: list[str] = field(default_factory=list)


class WordNet:
    """lemma -> senses, most used first; and how often each lemma is tagged."""

    def __init__(self, folder: Path) -> None:
        self.synsets = {pos: _synsets(folder / f"data.{name}") for pos, name in _FILES.items()}
        counts = _counts(folder / "cntlist.rev")
        self.senses: dict[str, list[Sense]] = {}
        for pos, name in _FILES.items():
            for lemma, offsets in _index(folder / f"index.{name}"):
                for number, offset in enumerate(offsets, 1):
                    count = counts.get((lemma, pos, number), 0)
                    self.senses.setdefault(lemma, []).append(Sense(offset, pos, count))
        self.count = {lemma: sum(s.count for s in found) for lemma, found in self.senses.items()}

    def main_sense(self, lemma: str) -> Sense:
        sense = max(self.senses[lemma], key=lambda s: s.count)
        self.fill(sense, lemma)
        return sense

    def fill(self, sense: Sense, lemma: str) -> None:
        if sense.gloss:
            return
        lemmas, pointers, gloss, sense.topic = self.synsets[sense.pos][sense.offset]
        parts = re.split(r";\s*(?=\")", gloss)
        sense.gloss = _clean(parts[0].split("; ")[0])
        sense.examples = [e for e in (_example(p, lemma) for p in parts[1:]) if e]
        sense.lemmas = lemmas
        place = lemmas.index(lemma) + 1 if lemma in lemmas else 0
        for symbol, offset, pos, ends in pointers:
            target = self.synsets["a" if pos == "s" else pos].get(offset)
            if target is None:
                continue
            if symbol in ("@", "@i"):
                sense.hypernyms.append(target[0][0])
            elif symbol == "!" and int(ends[:2], 16) == place:
                sense.opposites.append(target[0][int(ends[2:], 16) - 1])
            elif symbol == "&":
                sense.similar.append(target[0][0])


def _synsets(path: Path) -> dict[str, tuple]:
    made = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("  "):
            continue
        data, gloss = line.split(" | ", 1)
        f = data.split()
        count = int(f[3], 16)
        lemmas = [re.sub(r"\(\w+\)$", "", f[4 + 2 * i]).replace("_", " ") for i in range(count)]
        at = 4 + 2 * count
        number = int(f[at])
        pointers = [tuple(f[at + 1 + 4 * i : at + 5 + 4 * i]) for i in range(number)]
        made[f[0]] = (lemmas, pointers, gloss.strip(), int(f[1]))
    return made


def _index(path: Path) -> Iterator[tuple[str, list[str]]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("  "):
            f = line.split()
            yield f[0].replace("_", " "), f[-int(f[2]) :]


def _counts(path: Path) -> dict[tuple[str, str, int], int]:
    made = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        key, number, count = line.split()
        lemma, rest = key.split("%")
        place = (lemma.replace("_", " "), _TYPES[rest[0]], int(number))
        made[place] = max(made.get(place, 0), int(count))
    return made


def _clean(gloss: str) -> str:
    gloss = re.sub(r"\([^)]*\)", "", gloss).replace("`", "'")
    return " ".join(gloss.split()).strip(" ;:,")


_SUBJECTS = {
    "he", "she", "they", "we", "i", "it", "you", "this", "there", "don't", "that's", "it's",
    "let's", "i'm", "he's", "she's", "what", "how", "please", "can",
}  # fmt: skip
_STARTS = {
    "the", "a", "an", "his", "her", "my", "our", "their", "these", "those", "that", "many", "some",
    "all", "no", "most", "your", "when", "if", "in", "every",
}  # fmt: skip
_VERB = re.compile(
    r"\b(is|was|were|are|has|had|have|did|do|does|will|can|could|would|should|may|must|went|came|"
    r"made|took|gave|got|said|ran|fell|lost|won|left|felt|found|kept|held|sat|stood|grew|wrote|"
    r"broke|brought|became|began|saw|knew|met|led|put|cut|hit|let|spoke|rose|[a-z]{2,}ed)\b"
)


def _example(text: str, lemma: str) -> str:
    """A whole sentence with the word in it, or nothing."""
    found = re.match(r'"([^"]+)"', text.strip())
    if not found or re.search(r"[`(]|--|\.\.", found[1]) or not found[1].isascii():
        return ""
    words = found[1].strip().split()
    sentence = " ".join(words)
    stem = lemma[: max(3, len(lemma) - 2)] if lemma[-1] in "ey" else lemma
    if not 5 <= len(words) <= 16 or _COARSE.search(sentence):
        return ""
    if not re.search(rf"\b{stem}", sentence, re.I):
        return ""
    first = words[0].lower().rstrip(",")
    if first not in _SUBJECTS and not (first in _STARTS and _VERB.search(sentence)):
        return ""
    sentence = capital(sentence.replace(" - ", ", "))
    return sentence if sentence[-1] in ".!?" else sentence + "."


def usable(lemma: str, sense: Sense, longest: int = 110) -> bool:
    if not re.fullmatch(r"[a-z]{3,14}", lemma) or _COARSE.search(f"{lemma} {sense.gloss}"):
        return False
    gloss = sense.gloss
    # A name ("Aegean") is not among the synset's lemmas in lower case.
    return (
        lemma in sense.lemmas
        and 12 <= len(gloss) <= longest
        and gloss[0].islower()
        and gloss.isascii()
        and '"' not in gloss
        and not re.search(rf"\b{lemma}\b", gloss)
    )


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
    for word, sense in known:
        answer = meaning(word, sense)
        asked = [*MEANING, *(_MEANING_NOUN * 2 if counts(sense) else ())]
        for template in rng.sample(asked, 12):
            yield _one(rng, word, template, answer)
        for template in rng.sample(_SYNONYM, 3):
            yield _one(rng, word, template, _synonyms(net, word, sense, common))
        opposite = next(iter(sense.opposites), "")
        text = f'I don\'t know an opposite of "{word}".'
        if opposite in common:
            text = f'The opposite of "{word}" is "{opposite}".'
        for template in rng.sample(_OPPOSITE, 4 if opposite in common else 1):
            yield _one(rng, word, template, text)
        kinds = [k for k in sense.hypernyms if k not in _VAGUE and not _COARSE.search(k)]
        if counts(sense) and kinds and kinds[0].islower():
            text = f"{capital(article(word))} is a kind of {kinds[0]}."
            for template in rng.sample(_KIND, 3):
                yield _one(rng, word, template, text)
        for template in rng.sample(_SENTENCE, 3):
            yield _one(rng, word, template, sentence(word, sense))


def _synonyms(net: WordNet, word: str, sense: Sense, common: set[str]) -> str:
    near = [w for w in sense.similar if net.count.get(w, 0) >= 5]
    others = [w for w in [*sense.lemmas, *near] if w != word and w in common]
    named = [f'"{w}"' for w in dict.fromkeys(others) if " " not in w][:3]
    if not named or _NAMES_OF_TIME.search(sense.gloss):
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
