"""Recall from notes by distance: facts of a long sheet, asked for at its end.

The sheet is read once; each question starts from there. An answer counts when every token of it is
the model's first choice, which is what greedy decoding needs.
"""

import random
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer

from engine.model.transformer import Transformer
from engine.protocol import StepOptions
from engine.runner import PREFILL_CHUNK
from engine.state import SequenceState
from tools.demo.config import ASSISTANT, BOS, END_THINK, EOS, USER
from tools.demo.corpus import notes
from tools.demo.wire import Piece, WireEncoder, control, text

BUCKETS = (0, 128, 400, 800, 1200, 1900)  # tokens between the fact and its question


@dataclass(slots=True)
class Recall:
    """right and asked by bucket."""

    right: list[int]
    asked: list[int]

    def shares(self) -> list[float]:
        return [r / max(a, 1) for r, a in zip(self.right, self.asked, strict=True)]

    @property
    def far(self) -> float:
        """Outside the sliding window."""
        return sum(self.right[1:]) / max(sum(self.asked[1:]), 1)


@torch.inference_mode()
def recall(
    model: Transformer, tokenizer: Tokenizer, options: StepOptions, *, sheets: int, questions: int
) -> Recall:
    rng = random.Random("recall")
    found = Recall([0] * (len(BUCKETS) - 1), [0] * (len(BUCKETS) - 1))
    encoder = WireEncoder(tokenizer)
    for _ in range(sheets):
        facts = notes.unrelated_facts(rng, rng.randint(90, 190))
        lines = [f"- {fact.statement}" for fact in facts]
        sheet = encoder.ids([control(BOS), text("Notes:\n" + "\n".join(lines))])  # system text
        sheet = sheet[:1960]
        state = SequenceState(model.config, 2048, torch.device("cpu"), model.dtype)
        for chunk in torch.tensor(sheet).split(PREFILL_CHUNK):
            model(chunk, state, options, with_logits=False)
        mark = state.snapshot(len(sheet))
        ends = _line_ends(encoder, lines)
        for index in rng.sample(range(len(facts)), questions):
            if ends[index] > len(sheet):
                continue
            fact = facts[index]
            state.restore(mark)
            asked, answer = _question(encoder, rng.choice(fact.questions), fact.answer)
            logits = model(torch.tensor(asked + answer[:-1]), state, options)
            assert logits is not None
            right = logits[-len(answer) :].argmax(-1).tolist() == answer
            distance = len(sheet) - ends[index]
            bucket = max(i for i, low in enumerate(BUCKETS[:-1]) if distance >= low)
            found.asked[bucket] += 1
            found.right[bucket] += right
    return found


def _line_ends(encoder: WireEncoder, lines: list[str]) -> list[int]:
    """Tokens up to the end of each line of the sheet, close enough to sort by distance."""
    ends, used = [], 3
    for ids in encoder.batch([[text(line + "\n")] for line in lines]):
        used += len(ids)
        ends.append(used)
    return ends


def _question(encoder: WireEncoder, question: str, answer: str) -> tuple[list[int], list[int]]:
    parts: list[Piece] = [control(USER), text(question), control(ASSISTANT), control(END_THINK)]
    return encoder.ids(parts), encoder.ids([text(answer), control(EOS)])
