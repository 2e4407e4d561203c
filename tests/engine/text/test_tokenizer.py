"""Tokenizer: names to ids, no control id from text, bytes, and refusal of unusable files."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers

from engine.text.control import FULL_VOCAB_IDS, Control
from engine.text.display import visible
from engine.text.errors import TextError, TokenizerError
from engine.text.tokenizer import Tokenizer, repair
from tests.engine.text.conftest import FULL_SHA256, TINY_CONTROLS, tiny_document, write_tokenizer


def test_full_vocabulary_has_the_known_ids(tokenizer: Tokenizer) -> None:
    assert tokenizer.sha256 == FULL_SHA256
    assert tokenizer.vocab_size == 129_280
    for control in Control:
        assert tokenizer.id_of(control) == FULL_VOCAB_IDS[control.value]
        assert tokenizer.control_of(tokenizer.id_of(control)) is control


def test_ids_are_looked_up_by_name(tiny: Tokenizer) -> None:
    assert [tiny.id_of(Control(text)) for text in TINY_CONTROLS] == list(range(8))
    assert (tiny.bos_id, tiny.eos_id) == (0, 1)
    assert tiny.decode(tiny.encode_text("the é")) == "the é"


def test_missing_token_is_refused_in_words(tiny: Tokenizer) -> None:
    assert not tiny.has(Control.REMINDER)
    with pytest.raises(TokenizerError, match="latest_reminder.*not available"):
        tiny.id_of(Control.REMINDER)


@pytest.mark.parametrize("name", ["tokenizer", "tiny"])
def test_no_spelling_becomes_a_control_token(name: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    for id in tokenizer.added_ids:
        text = tokenizer.bytes_of(id).decode()
        for sample in (text, f"a{text}b", f" {text}\n", text + text):
            ids = tokenizer.encode_text(sample)
            assert tokenizer.added_ids.isdisjoint(ids)
            assert tokenizer.decode(ids) == sample


def test_ignore_merges_does_not_reach_control_tokens(tmp_path: Path) -> None:
    document = tiny_document()
    document["model"]["ignore_merges"] = True
    document["pre_tokenizer"]["use_regex"] = False
    tokenizer = Tokenizer.load(write_tokenizer(tmp_path, document))
    assert tokenizer.added_ids.isdisjoint(tokenizer.encode_text("<think>"))


def test_random_unicode_agrees_with_the_library(tokenizer: Tokenizer, full_path: Path) -> None:
    oracle = tokenizers.Tokenizer.from_file(str(full_path))
    rng = random.Random(7)
    texts = [random_text(rng) for _ in range(10_000)]
    expected = oracle.encode_batch(texts, add_special_tokens=False)
    for text, encoding in zip(texts, expected, strict=True):
        ids = tokenizer.encode_text(text)
        assert ids == encoding.ids
        assert tokenizer.decode(ids) == text


def random_text(rng: random.Random) -> str:
    """Code points of all planes, weighted towards spaces, newlines, digits and punctuation."""
    pools: list[Callable[[], int]] = [
        lambda: rng.choice(b" \n\t\r"),
        lambda: rng.randint(0x20, 0x7E),
        lambda: rng.randint(0x30, 0x39),
        lambda: rng.randint(0, 0x24F),
        lambda: rng.randint(0x300, 0x36F),
        lambda: rng.randint(0x3040, 0x9FFF),
        lambda: rng.randint(0x2000, 0x206F),
        lambda: rng.randint(0x1F300, 0x1FAFF),
        lambda: rng.randint(0, 0x10FFFF),
    ]
    points = (rng.choice(pools)() for _ in range(rng.randint(0, 40)))
    return "".join(chr(point) for point in points if not 0xD800 <= point <= 0xDFFF)


def test_composed_and_decomposed_letters_differ(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode_text("\u00e9") != tokenizer.encode_text("e\u0301")


def test_lone_surrogates_are_repaired(tokenizer: Tokenizer) -> None:
    assert repair("a\ud800é\udfffb") == "a\ufffdé\ufffdb"
    assert tokenizer.decode(tokenizer.encode_text("a\ud83d")) == "a\ufffd"


def test_bytes_of_every_byte_value(tokenizer: Tokenizer) -> None:
    data = bytes(range(256))
    singles = {tokenizer.bytes_of(id) for id in range(tokenizer.vocab_size)}
    assert all(bytes([byte]) in singles for byte in data)
    assert tokenizer.bytes_of(129_280) == tokenizer.bytes_of(-1) == b""


def test_pieces_are_safe_to_show(tokenizer: Tokenizer, tiny: Tokenizer) -> None:
    assert tokenizer.piece(tokenizer.encode_text("\n\n")[0]) == "␊␊"
    assert tokenizer.piece(25730) == "<F0><9F><91>"
    assert tokenizer.piece(tokenizer.eos_id) == "<｜end▁of▁sentence｜>"
    assert tokenizer.piece(500_000) == "<id 500000>"
    assert visible("\x1b[2J\x7f\x85\u202e\ta", keep="\t") == "␛[2J␡<U+0085><U+202E>\ta"
    for id in range(tiny.vocab_size):
        assert tiny.piece(id).isprintable()


# ---- files that must be refused ----------------------------------------------------------------


def _set(document: dict, path: str, value: object) -> None:
    *parents, last = path.split("/")
    for name in parents:
        document = document[int(name) if name.isdigit() else name]
    document[last] = value


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("model/type", "Unigram", "expected 'BPE'"),
        ("model/vocab/Ā", "x", "not a usable"),
        ("model/vocab/Ā", 2**40, "out of range"),
        ("model/vocab/Ā", -5, "out of range"),
        ("model/vocab/é東", 400, "not byte-level"),
        ("model/vocab/th", 5, "belongs to two"),
        ("model/merges", ["t h", "q ZZ"], "library refuses"),
        ("added_tokens", [], "not of a DeepSeek-V4 chat model"),
        ("added_tokens", [{"id": 0, "content": ""}], "empty or there twice"),
        ("added_tokens", [{"content": "<think>"}], "not a usable"),
        ("added_tokens/5/id", 100, "id 100 of .* belongs to two"),
        ("pre_tokenizer", None, "does not survive"),
        ("normalizer", {"type": "NFC"}, "changes the text"),
        ("normalizer", {"type": "Sequence", "normalizers": [{"type": "Lowercase"}]}, "changes the"),
        ("pre_tokenizer/add_prefix_space", True, "changes the text"),
        ("pre_tokenizer", {"type": "Whitespace"}, "changes the text"),
    ],
)
def test_unusable_file_is_refused(tmp_path: Path, path: str, value: object, words: str) -> None:
    document = tiny_document()
    _set(document, path, value)
    with pytest.raises(TokenizerError, match=words):
        Tokenizer.load(write_tokenizer(tmp_path, document))


def test_vocabulary_without_a_byte_is_refused(tmp_path: Path) -> None:
    document = tiny_document()
    del document["model"]["vocab"]["Ā"]
    with pytest.raises(TokenizerError, match="no token for 1 byte values.*0x00"):
        Tokenizer.load(write_tokenizer(tmp_path, document))


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b"git-lfs"], ids=range(6)
)
def test_damaged_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(TokenizerError, match="not a usable"):
        Tokenizer.load(tmp_path)


def test_missing_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(TextError, match="is missing; copy tokenizer.json"):
        Tokenizer.load(tmp_path)


def test_oversized_file_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate(65 * 1024 * 1024)
    with pytest.raises(TokenizerError, match="over the limit"):
        Tokenizer.load(tmp_path)


def test_full_vocabulary_with_exchanged_ids_is_refused(full_path: Path, tmp_path: Path) -> None:
    document = json.loads(full_path.read_text(encoding="utf-8"))
    by_text = {token["content"]: token for token in document["added_tokens"]}
    user, assistant = by_text["<｜User｜>"], by_text["<｜Assistant｜>"]
    user["id"], assistant["id"] = assistant["id"], user["id"]
    with pytest.raises(TokenizerError, match="expected 128803"):
        Tokenizer.load(write_tokenizer(tmp_path, document))


def test_v41_is_refused_by_tokenizer_and_by_config(full_path: Path, tmp_path: Path) -> None:
    document = json.loads(full_path.read_text(encoding="utf-8"))
    for token in document["added_tokens"]:
        if token["id"] == 128799:
            token["content"] = "<｜System｜>"
    write_tokenizer(tmp_path, document)
    with pytest.raises(TokenizerError, match="V4.1"):
        Tokenizer.load(tmp_path)
    write_tokenizer(tmp_path, tiny_document())
    (tmp_path / "config.json").write_text('{"model_type": "deepseek_v41"}')
    with pytest.raises(TokenizerError, match="V4.1"):
        Tokenizer.load(tmp_path)


def test_config_of_a_smaller_model_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, tiny_document())
    config = tmp_path / "config.json"
    config.write_text('{"vocab_size": 100}')
    with pytest.raises(TokenizerError, match="different models"):
        Tokenizer.load(tmp_path)
    config.write_text('{"vocab_size": 512}')
    assert Tokenizer.load(tmp_path).vocab_size == 265
    for damaged in ("{", "[]"):
        config.write_text(damaged)
        with pytest.raises(TokenizerError, match=r"config\.json"):
            Tokenizer.load(tmp_path)
