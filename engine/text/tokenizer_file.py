"""Reads a tokenizer.json and refuses one this engine cannot use without losing or inventing text.

The file is not trusted: size, structure, ids and names are checked before anything is built. What
comes out encodes plain text only; control tokens are not reachable from text (chat-encoding 3).
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import tokenizers

from engine.text.control import FULL_VOCAB_IDS, FULL_VOCAB_SIZE, REQUIRED, SYSTEM_OF_V41
from engine.text.errors import TokenizerError

MAX_FILE_BYTES = 64 * 1024 * 1024
MAX_TOKEN_ID = 4 * 1024 * 1024
_ROUND_TRIP = (
    "def f(x):\n    return  x\t# é e\u0301 東京 👩🏽‍🚀"
    " \x00\x1b\r\n\n 12345 <think></think> ｜DSML｜"
)


class _AddedToken(msgspec.Struct):
    id: int
    content: str


class _Model(msgspec.Struct):
    type: str
    vocab: dict[str, int]
    merges: list[Any]


class _File(msgspec.Struct):
    added_tokens: list[_AddedToken]
    model: _Model


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """What a tokenizer.json holds.

    Attributes:
        bpe: encodes text, with the added vocabulary emptied.
        token_bytes: id -> bytes; None where the file has no such id.
        added: spelling -> id of every added token.
        sha256: of the file, hexadecimal.
    """

    bpe: tokenizers.Tokenizer
    token_bytes: list[bytes | None]
    added: dict[str, int]
    sha256: str


def read_tokenizer_file(path: Path) -> TokenizerFile:
    """Load and check `path`.

    Raises:
        TokenizerError: missing, too large, malformed, of another kind than byte-level BPE, with
            conflicting ids, without a required control token, or of the V4.1 format.
    """
    raw = _read(path)
    try:
        document = msgspec.json.decode(raw)
        parsed = msgspec.convert(document, _File)
    except (msgspec.DecodeError, RecursionError) as error:
        raise TokenizerError(
            f"{path}: not a usable tokenizer.json ({error}); download it again"
        ) from error
    if parsed.model.type != "BPE":
        raise TokenizerError(f"{path}: model type {parsed.model.type!r}, expected 'BPE'")
    added = _added_tokens(path, parsed)
    vocab_size = 1 + max([*parsed.model.vocab.values(), *added.values()], default=-1)
    _check_control_tokens(path, added, vocab_size)
    token_bytes = _byte_table(path, parsed, added)
    bpe = _plain_bpe(path, document, added)
    _check_round_trip(path, bpe, token_bytes)
    return TokenizerFile(bpe, token_bytes, added, hashlib.sha256(raw).hexdigest())


def _read(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise TokenizerError(f"{path}: {size} bytes, over the limit of {MAX_FILE_BYTES}")
        return path.read_bytes()
    except FileNotFoundError as error:
        raise TokenizerError(
            f"{path} is missing; copy tokenizer.json from the model's release into the model folder"
        ) from error
    except OSError as error:
        raise TokenizerError(f"{path} cannot be read: {error.strerror}") from error


def _added_tokens(path: Path, parsed: _File) -> dict[str, int]:
    added: dict[str, int] = {}
    ids: set[int] = set()
    for token in parsed.added_tokens:
        if not token.content or token.content in added or token.id in ids:
            raise TokenizerError(
                f"{path}: added token {token.content!r} (id {token.id}) is empty or there twice"
            )
        added[token.content] = token.id
        ids.add(token.id)
    return added


def _byte_table(path: Path, parsed: _File, added: dict[str, int]) -> list[bytes | None]:
    """Bytes of each id: BPE entries through the byte-level alphabet, added tokens as UTF-8."""
    vocab = {text: id for text, id in parsed.model.vocab.items() if text not in added}
    highest = max(max(vocab.values(), default=-1), max(added.values(), default=-1))
    lowest = min(min(vocab.values(), default=0), min(added.values(), default=0))
    if lowest < 0 or highest > MAX_TOKEN_ID:
        raise TokenizerError(f"{path}: token ids from {lowest} to {highest} are out of range")
    table: list[bytes | None] = [None] * (highest + 1)
    alphabet = byte_alphabet()
    for text, id in vocab.items():
        try:
            data = bytes([alphabet[char] for char in text])
        except KeyError as error:
            raise TokenizerError(f"{path}: token {text!r} is not byte-level text") from error
        if table[id] is not None:
            raise TokenizerError(f"{path}: id {id} belongs to two tokens")
        table[id] = data
    for text, id in added.items():
        if table[id] is not None:
            raise TokenizerError(f"{path}: id {id} of {text!r} belongs to two tokens")
        table[id] = text.encode("utf-8", "replace")
    missing = [byte for char, byte in alphabet.items() if char not in vocab]
    if missing:
        raise TokenizerError(
            f"{path}: no token for {len(missing)} byte values (first: 0x{min(missing):02X}), "
            "so some text could not be encoded"
        )
    return table


def byte_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level BPE: printable Latin-1 stands for itself, the rest from
    U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(rest)}


def _check_control_tokens(path: Path, added: dict[str, int], vocab_size: int) -> None:
    if SYSTEM_OF_V41 in added and vocab_size >= FULL_VOCAB_SIZE:
        raise TokenizerError(
            f"{path} is of DeepSeek-V4.1 (it has {SYSTEM_OF_V41}), whose chat format this app does "
            "not write; choose a DeepSeek-V4 checkpoint"
        )
    missing = [control.value for control in REQUIRED if control.value not in added]
    if missing:
        raise TokenizerError(
            f"{path} has no {', '.join(missing)} among its added tokens; it is not of a "
            "DeepSeek-V4 chat model"
        )
    if vocab_size != FULL_VOCAB_SIZE:
        return
    for text, id in FULL_VOCAB_IDS.items():
        if added.get(text) != id:
            raise TokenizerError(
                f"{path}: {text} has id {added.get(text)}, expected {id} in a vocabulary of "
                f"{vocab_size}; the file does not belong to DeepSeek-V4"
            )


def _plain_bpe(path: Path, document: dict[str, Any], added: dict[str, int]) -> tokenizers.Tokenizer:
    """The same BPE without any added token.

    Their spellings also leave the BPE's own vocabulary, so no text can become a control id,
    whatever the merges or the `ignore_merges` flag of the file say.
    """
    for name in ("normalizer", "pre_tokenizer"):
        _refuse_text_changes(path, name, document.get(name))
    model = dict(document["model"])
    model["vocab"] = {text: id for text, id in model["vocab"].items() if text not in added}
    plain = {
        **document,
        "added_tokens": [],
        "post_processor": None,
        "truncation": None,
        "padding": None,
        "model": model,
    }
    try:
        return tokenizers.Tokenizer.from_buffer(msgspec.json.encode(plain))
    except Exception as error:  # the binding raises bare Exception for every fault in the file
        raise TokenizerError(f"{path}: the tokenizers library refuses it: {error}") from error


def _refuse_text_changes(path: Path, name: str, step: Any) -> None:
    """Refuse steps that change text (lower case, NFC, stripped or added spaces)."""
    if step is None:
        return
    if not isinstance(step, dict):
        raise TokenizerError(f"{path}: {name} is not an object")
    inner = step.get("normalizers", step.get("pretokenizers"))
    if step.get("type") == "Sequence" and isinstance(inner, list):
        for part in inner:
            _refuse_text_changes(path, name, part)
        return
    harmless = name == "pre_tokenizer" and step.get("type") in ("Split", "Digits", "ByteLevel")
    if not harmless or step.get("add_prefix_space") or step.get("behavior") == "Removed":
        raise TokenizerError(f"{path}: {name} step {step.get('type')!r} changes the text")


def _check_round_trip(path: Path, bpe: tokenizers.Tokenizer, table: list[bytes | None]) -> None:
    ids = bpe.encode(_ROUND_TRIP, add_special_tokens=False).ids
    if b"".join(table[id] or b"" for id in ids) != _ROUND_TRIP.encode():
        raise TokenizerError(f"{path}: text does not survive encoding and decoding")
