"""Tokenizer of a checkpoint: plain text to ids, ids to bytes, control tokens by name.

Text never becomes a control token here; the prompt encoder places those by id (chat-encoding 2, 3).
Loading takes about half a second on the full vocabulary; keep it off a thread that draws.
"""

import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from engine.text.control import Control
from engine.text.display import visible_bytes
from engine.text.errors import TokenizerError
from engine.text.tokenizer_file import TokenizerFile, read_tokenizer_file

V41_MODEL_TYPE = "deepseek_v41"
_PLACEHOLDER = re.compile("place[▁_ ]?holder", re.IGNORECASE)
# A reply that contains one of these is over, or the model is lost (chat-encoding 7.1).
_STOPS = (Control.EOS, Control.BOS, Control.PAD, Control.USER, Control.ASSISTANT, Control.REMINDER)


class Tokenizer:
    """Encodes and decodes. Immutable after loading; safe to share between threads."""

    def __init__(self, file: TokenizerFile, name: str = "tokenizer.json") -> None:
        self._bpe = file.bpe
        self._bytes = file.token_bytes
        self._name = name
        self._ids = {c: file.added[c.value] for c in Control if c.value in file.added}
        self._controls = {id: control for control, id in self._ids.items()}
        self.added_ids = frozenset(file.added.values())
        self.sha256 = file.sha256
        self.vocab_size = len(self._bytes)
        self.bos_id = self._ids[Control.BOS]
        self.eos_id = self._ids[Control.EOS]
        placeholders = (id for text, id in file.added.items() if _PLACEHOLDER.search(text))
        self.stop_ids = frozenset(self._ids[c] for c in _STOPS if c in self._ids).union(
            placeholders
        )

    @classmethod
    def load(cls, model_dir: Path | str) -> "Tokenizer":
        """Tokenizer of the checkpoint in `model_dir`.

        Raises:
            TokenizerError: as `read_tokenizer_file`; or config.json is of another chat format, or
                of a model with fewer ids than the tokenizer has.
        """
        folder = Path(model_dir)
        config = read_config(folder)
        if config.get("model_type") == V41_MODEL_TYPE:
            raise TokenizerError(
                f"{folder} holds a DeepSeek-V4.1 model, whose chat format this app does not write; "
                "choose a DeepSeek-V4 checkpoint"
            )
        tokenizer = cls.from_file(folder / "tokenizer.json")
        rows = config.get("vocab_size")
        if isinstance(rows, int) and rows < tokenizer.vocab_size:
            raise TokenizerError(
                f"{folder}: tokenizer.json has ids up to {tokenizer.vocab_size - 1}, but the "
                f"model's vocab_size is {rows}; the two files are of different models"
            )
        return tokenizer

    @classmethod
    def from_file(cls, path: Path | str) -> "Tokenizer":
        """Tokenizer of a lone tokenizer.json. Raises TokenizerError."""
        return cls(read_tokenizer_file(Path(path)), str(path))

    def has(self, control: Control) -> bool:
        return control in self._ids

    def id_of(self, control: Control) -> int:
        """Id of a control token.

        Raises:
            TokenizerError: this vocabulary has no such token.
        """
        try:
            return self._ids[control]
        except KeyError:
            raise TokenizerError(
                f"this model's vocabulary has no {control.value} token ({self._name}), "
                "so the feature that needs it is not available with it"
            ) from None

    def control_of(self, id: int) -> Control | None:
        return self._controls.get(id)

    def encode_text(self, text: str) -> list[int]:
        """Ids of plain text. A control token's spelling in it stays text; U+FFFD for lone
        surrogates.
        """
        ids: list[int] = self._bpe.encode(repair(text), add_special_tokens=False).ids
        return ids

    def bytes_of(self, id: int) -> bytes:
        """Bytes of one token (a control token's spelling); empty for an id that does not exist."""
        if not 0 <= id < self.vocab_size:
            return b""
        return self._bytes[id] or b""

    def decode(self, ids: Iterable[int]) -> str:
        """Text of a finished list of ids, control tokens as their spelling. Not for streaming."""
        return b"".join(map(self.bytes_of, ids)).decode("utf-8", "replace")

    def piece(self, id: int) -> str:
        """One token for display: control characters as symbols, part of a character as <F0><9F>."""
        if not 0 <= id < self.vocab_size or self._bytes[id] is None:
            return f"<id {id}>"
        return visible_bytes(self.bytes_of(id))


def repair(text: str) -> str:
    """`text` with lone surrogates, which no encoding can carry, as U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return re.sub("[\ud800-\udfff]", "\ufffd", text)
    return text


def read_config(folder: Path) -> dict[str, object]:
    """config.json of a checkpoint; empty where there is none. Raises TokenizerError: not JSON."""
    path = folder / "config.json"
    try:
        config = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise TokenizerError(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise TokenizerError(f"{path} is not a JSON object")
    return config
