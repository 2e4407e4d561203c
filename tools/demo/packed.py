"""The packed corpus: dialogues as token ids, by part, and rows of one training length made of them.

A document is stored without BOS. Rows start with BOS and hold whole documents; documents that may
follow another turn of the same chat (no system text of their own) often do so without a new BOS,
which gives chats of many unrelated turns. Who says a token is not stored: it follows from the
control tokens.
"""

import io
import lzma
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tools.demo.config import ASSISTANT, BOS, END_THINK, EOS, PAD, SPECIALS, THINK, USER

BOS_ID, EOS_ID, PAD_ID = (SPECIALS.index(name) for name in (BOS, EOS, PAD))
USER_ID, ASSISTANT_ID = SPECIALS.index(USER), SPECIALS.index(ASSISTANT)
HEADER_ENDS = (SPECIALS.index(THINK), SPECIALS.index(END_THINK))

MAY_FOLLOW, MAY_BE_FOLLOWED = 1, 2  # bits of Documents.joins
NOTHING, PROMPT, REPLY = 0, 1, 2  # what a target token is: padding, given text, the model's text


@dataclass(slots=True)
class Documents:
    """tokens: [N] uint16, all documents one after another. lengths: [D] int32. part: [D] uint8, an
    index into `parts`. joins: [D] uint8, the bits of corpus.dialogue: may follow, may be
    followed."""

    parts: list[str]
    tokens: np.ndarray
    lengths: np.ndarray
    part: np.ndarray
    joins: np.ndarray

    def save(self, path: Path) -> None:
        buffer = io.BytesIO()
        np.savez(
            buffer,
            parts=np.array(self.parts),
            tokens=self.tokens.astype(np.uint16),
            lengths=self.lengths.astype(np.int32),
            part=self.part.astype(np.uint8),
            joins=self.joins.astype(np.uint8),
        )
        path.write_bytes(lzma.compress(buffer.getvalue(), preset=6))

    @staticmethod
    def load(path: Path) -> "Documents":
        arrays = np.load(io.BytesIO(lzma.decompress(path.read_bytes())))
        names = [str(name) for name in arrays["parts"]]
        return Documents(
            names, arrays["tokens"], arrays["lengths"], arrays["part"], arrays["joins"]
        )


class RowPacker:
    """Endless rows of `length + 1` tokens with the parts' shares by token count."""

    LONG = 400  # a longer document is never cut; it waits for the next row

    def __init__(
        self, documents: Documents, shares: dict[str, float], length: int, seed: int,
        join: float = 0.6,
    ) -> None:  # fmt: skip
        self.documents, self.length, self.join = documents, length, join
        self.rng = np.random.default_rng(seed)
        self.starts = np.concatenate(([0], np.cumsum(documents.lengths)))
        self.roles = document_roles(documents)
        members = {name: np.flatnonzero(documents.part == i)
                   for i, name in enumerate(documents.parts)}  # fmt: skip
        self.members = [members[name] for name in shares if len(members.get(name, ()))]
        rate = np.array([
            share / documents.lengths[members[name]].mean()
            for name, share in shares.items() if len(members.get(name, ()))
        ])  # fmt: skip
        self.rate = rate / rate.sum()
        self.orders = [self.rng.permutation(ids) for ids in self.members]
        self.cursors = [0] * len(self.members)

    def _stream(self) -> Iterator[int]:
        while True:
            for part in self.rng.choice(len(self.rate), size=4096, p=self.rate):
                if self.cursors[part] == len(self.orders[part]):
                    self.orders[part] = self.rng.permutation(self.members[part])
                    self.cursors[part] = 0
                self.cursors[part] += 1
                yield self.orders[part][self.cursors[part] - 1]

    def rows(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """tokens [length+1] uint16 and roles [length+1] uint8."""
        stream, waiting = self._stream(), []
        lengths, joins = self.documents.lengths, self.documents.joins
        size = self.length + 1
        while True:
            tokens, kinds = np.full(size, PAD_ID, np.uint16), np.zeros(size, np.uint8)
            used, fresh, open_end = 0, True, False
            while used < size - 8:
                pick = waiting.pop() if fresh and waiting else next(stream)
                need, room = int(lengths[pick]), size - used - 1
                if need > room and need > self.LONG and not (fresh and need > size - 1):
                    waiting.append(pick)
                    if len(waiting) > 64:
                        break
                    continue
                joined = open_end and joins[pick] & MAY_FOLLOW and self.rng.random() < self.join
                if not joined:
                    tokens[used], kinds[used] = BOS_ID, PROMPT
                    used += 1
                start, count = self.starts[pick], min(need, size - used)
                tokens[used : used + count] = self.documents.tokens[start : start + count]
                kinds[used : used + count] = self.roles[start : start + count]
                used, fresh = used + count, False
                open_end = bool(joins[pick] & MAY_BE_FOLLOWED)
            yield tokens, kinds

    def batches(self, rows: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """[rows, length+1] each."""
        source = self.rows()
        while True:
            picked = [next(source) for _ in range(rows)]
            yield np.stack([p[0] for p in picked]), np.stack([p[1] for p in picked])


def document_roles(documents: Documents) -> np.ndarray:
    """[N] uint8 of PROMPT or REPLY for every token. A reply starts after the header's think token
    and ends with EOS; a document without any turn is REPLY throughout. Documents end with EOS."""
    tokens, place = documents.tokens, np.arange(len(documents.tokens))
    if not len(tokens):
        return np.zeros(0, np.uint8)
    starts = np.cumsum(documents.lengths) - documents.lengths
    header = (tokens[:-1] == ASSISTANT_ID) & np.isin(tokens[1:], HEADER_ENDS)
    opens, closes = np.zeros(len(tokens), bool), np.zeros(len(tokens), bool)
    opens[2:] = header[:-1]
    closes[1:] = tokens[:-1] == EOS_ID
    closes[0] = True
    last_open = np.maximum.accumulate(np.where(opens, place, -1))
    last_close = np.maximum.accumulate(np.where(closes, place, -1))
    plain = np.add.reduceat((tokens == USER_ID).astype(np.int64), starts) == 0
    replied = (last_open >= last_close) | np.repeat(plain, documents.lengths)
    return np.where(replied, REPLY, PROMPT).astype(np.uint8)
