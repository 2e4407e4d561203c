"""WordNet's files read into senses, and which senses are fit to teach."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tools.demo.corpus.dialogue import capital

_FILES = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
_TYPES = {"1": "n", "2": "v", "3": "a", "4": "r", "5": "a"}
COARSE = re.compile(
    r"sex|coit|genital|penis|vagina|breast|prostitut|rape|whore|slut|homosex|lesbian|nigg|negro|"
    r"excre|urin|feces|faec|shit|fuck|damn|bastard|bitch|murder|suicide|kill|ethnic|racial|jew|"
    r"orgasm|erotic|nude|obscen|vulgar|offensive|terroris|nazi|drug",
    re.I,
)


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
    if not 5 <= len(words) <= 16 or COARSE.search(sentence):
        return ""
    if not re.search(rf"\b{stem}", sentence, re.I):
        return ""
    first = words[0].lower().rstrip(",")
    if first not in _SUBJECTS and not (first in _STARTS and _VERB.search(sentence)):
        return ""
    sentence = capital(sentence.replace(" - ", ", "))
    return sentence if sentence[-1] in ".!?" else sentence + "."


def usable(lemma: str, sense: Sense, longest: int = 110) -> bool:
    if not re.fullmatch(r"[a-z]{3,14}", lemma) or COARSE.search(f"{lemma} {sense.gloss}"):
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
