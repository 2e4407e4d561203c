"""Trains the demo's tokenizer: byte-level BPE, digits one by one, DeepSeek's control tokens.

Control tokens take the first ids and have the exact spellings of the real tokenizer; like there,
only BOS, EOS and pad are flagged special.
"""

from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from tools.demo.config import BOS, DEMO, EOS, PAD, SPECIALS
from tools.demo.corpus.dialogue import Dialogue

_SAMPLE_BYTES = 14_000_000
_PIECES = Regex(
    r"\p{N}|'(?:s|t|re|ve|m|ll|d)\b| ?\p{L}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train(dialogues: list[Dialogue], path: Path, *, reuse: bool = False) -> Tokenizer:
    """Train on the text of `dialogues` (shuffled already) and write tokenizer.json.

    reuse: read the file that is there instead.
    """
    if reuse:
        return Tokenizer.from_file(str(path))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(_PIECES, "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=DEMO.vocab_size,
        special_tokens=[AddedToken(name, special=name in (BOS, EOS, PAD)) for name in SPECIALS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(dialogues), trainer)
    tokenizer.save(str(path))
    return tokenizer


def _texts(dialogues: list[Dialogue]) -> Iterator[str]:
    """Text between control tokens, up to a limit."""
    size = 0
    for dialogue in dialogues:
        for is_control, piece in dialogue.pieces():
            if not is_control:
                size += len(piece)
                yield piece
        if size > _SAMPLE_BYTES:
            return
