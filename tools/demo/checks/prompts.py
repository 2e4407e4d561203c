"""Prompts with a written rule for a right answer.

A rule is a list of terms that must all be in the answer, whatever the case. "a|b" is satisfied by
either; "!a" must not be there; a term of digits must stand as a number of its own. "copy" in notes
means that the fact's own sentence is repeated. Every answer must also end by itself, repeat no
6-gram three times and not claim to be DeepSeek-V4.
"""

import random
import re
from dataclasses import dataclass, field

from tools.demo.corpus import notes

DECLINES = "don't know|do not know|cannot|can't|not know|no connection|only a small|too hard"


@dataclass(frozen=True, slots=True)
class Check:
    """kind: for the table. turns: user, assistant, user, ... texts. rule: terms, as above."""

    kind: str
    turns: tuple[str, ...]
    rule: tuple[str, ...] = field(default=())
    max_tokens: int = 300

    def right(self, answer: str) -> bool:
        return all(_holds(term, answer.lower()) for term in self.rule)

    @property
    def rule_in_words(self) -> str:
        made = []
        for term in self.rule:
            words = " or ".join(repr(part) for part in term.removeprefix("!").split("|"))
            made.append(("not " if term.startswith("!") else "") + words)
        return "; ".join(made) or "any answer"


def _holds(term: str, answer: str) -> bool:
    if term.startswith("!"):
        return not _holds(term[1:], answer)
    return any(_found(part.lower(), answer) for part in term.split("|"))


def _found(part: str, answer: str) -> bool:
    if part.isdigit():
        return re.search(rf"(?<!\d){part}(?!\d)", answer) is not None
    return part in answer


def _all(kind: str, *pairs: tuple[str, str]) -> list[Check]:
    return [Check(kind, (ask,), tuple(rule.split(" + ")) if rule else ()) for ask, rule in pairs]


FIXED: list[Check] = [
    *_all(
        "fixed",
        ("Hello!", "hello|hi"),
        ("How are you today?", "fine|well"),
        ("Who are you?", "demo model"),
        ("Are you DeepSeek-V4?", "no + demo model"),
        ("What can you do?", "app + word + capital"),
        ("How do I load the real model?", "--model DIR"),
        ("How do I quit the app?", "ctrl+q"),
        ("What is NVFP4?", "4-bit|4 bit + 16 values|share"),
        ("What is a sliding window?", "128 + token"),
        ('What does "lantern" mean?', "light|lamp + !don't know"),
        ("Define river.", "stream|water"),
        ("Give me another word for big.", "large|great|huge"),
        ('Use "gentle" in a sentence.', "gentle + !don't know"),
        ("What kind of thing is an oak?", "tree"),
        ("What is the capital of Japan?", "Tokyo"),
        ("What is 17 plus 25?", "42"),
        ("Tell me a short story about a fox and a boat.", "fox + boat"),
        ("Give me three tips for sleeping better.", "1. + 2. + 3."),
        (
            "Anna's key is in the blue box. Ben's hat is in the red drawer. Clara likes pears.\n\n"
            "Where is Anna's key?",
            "blue box",
        ),
        ("Who will win the next election?", DECLINES),
    )
]

_UNSEEN: list[Check] = [
    *_all(
        "meaning",
        ("Could you tell me the meaning of the word river?", "stream|water"),
        ('I read the word "island" today. What does that mean?', "land + water"),
        ("In simple words, what is a hammer?", "tool + hit|strik|head|deliver|drive"),
        ("My son asks what a promise is.", "!don't know + promise"),
        ("Say what the word ancient means, please.", "old|past|times|history"),
        ('Which word could I use in place of "happy"?', "glad|joyful|felicitous|cheerful|content"),
        ("And the opposite of hot is what?", "cold"),
    ),
    *_all(
        "capital",
        ("I am going to Peru. Which city is its capital?", "Lima"),
        ("Please name Norway's capital.", "Oslo"),
        ("Kenya has which capital?", "Nairobi"),
        ("Is Paris the capital of France or of Spain?", "France"),
        ("What do you call the capital of Egypt?", "Cairo"),
        ("In what country would I find Lisbon as the capital?", "Portugal"),
    ),
    *_all(
        "sum",
        ("If I add 34 and 51, what do I get?", "85"),
        ("And 62 minus 17 is?", "45"),
        ("I had 8 apples and got 9 more: 8 + 9?", "17"),
        ("Could you compute 7 times 8 for me?", "56"),
        ("Quick: 90 - 45", "45"),
        ("Tell me, how much does 26 plus 73 make?", "99"),
    ),
    *_all(
        "manual",
        ("Which button ends this program?", "ctrl+q"),
        ("I want the model to answer once more. Which key?", "ctrl+r"),
        ("What must I press to halt a running answer?", "esc"),
        ("How can I see what the router is doing?", "F2|F5|router panel"),
        ("Where do I see the list of all keys?", "F1"),
        ("How do I set the temperature to zero?", "temperature"),
        ("What does gsa stand for?", "activation global scale|global scale"),
        ("What is an expert in this model?", "feed-forward|network|12 experts"),
    ),
    *_all(
        "unknown",
        ("Who painted the ceiling of the Sistine Chapel?", DECLINES),
        ("How tall is the Eiffel Tower?", DECLINES),
        ("Who is the president of Peru?", DECLINES),
        ("Please write a Java method that reverses a string.", DECLINES),
        ('What does the word "grumpelfink" mean?', DECLINES),
    ),
]


def _from_notes() -> list[Check]:
    """Sheets of 300 to 1,500 tokens; the asked fact stands in the first half of the sheet."""
    made = []
    for seed, count in enumerate((28, 40, 55, 70, 85, 100, 115, 125)):
        rng = random.Random(f"unseen notes {seed}")
        facts = notes.unrelated_facts(rng, count)
        fact = facts[rng.randrange(count // 2)]
        sheet = "Here are my notes:\n\n" + "\n".join(f"- {f.statement}" for f in facts)
        asked = f"{sheet}\n\n{rng.choice(fact.questions)}"
        made.append(Check("notes", (asked,), (fact.answer,)))
    return made


UNSEEN = [*_UNSEEN, *_from_notes()]
