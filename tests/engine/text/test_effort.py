"""Effort texts and the choice of profile from a checkpoint folder (chat-encoding 5)."""

import hashlib
from pathlib import Path

import pytest

from engine.text.effort import EFFORT_TEXTS, choose_profile
from engine.text.errors import TextError

OFFICIAL = 'REASONING_EFFORT_PROMPTS = {\n}\nDEFAULT_REASONING_EFFORT = "low"\n'
PREVIEW = "REASONING_EFFORT_MAX = (\n)\n"


def test_texts_are_the_published_ones() -> None:
    digest = {text: hashlib.sha256(text.encode()).hexdigest() for text in all_texts()}
    high, top = EFFORT_TEXTS["official"]["high"], EFFORT_TEXTS["official"]["max"]
    assert digest[high] == "f7a24f3b3050d4a83781e9b755b316aae2ec1d9dc87562541d90bcb04d7350f7"
    assert digest[top] == "53fb31b8392ec5b4a926481943efc67636748f137c1a49d493a7af4d4fa55d2c"
    assert EFFORT_TEXTS["preview"]["max"] == high
    assert EFFORT_TEXTS["preview"]["high"] == EFFORT_TEXTS["official"]["low"] == ""


def all_texts() -> list[str]:
    return [text for texts in EFFORT_TEXTS.values() for text in texts.values()]


@pytest.mark.parametrize(
    ("source", "config", "profile"),
    [
        (OFFICIAL, "{}", "official"),
        (PREVIEW, '{"dspark_x": 1}', "preview"),
        ("# REASONING_EFFORT_PROMPTS\n" + PREVIEW, "{}", "preview"),
        ("REASONING_EFFORT_PROMPTS = {}\n", "{}", "preview"),
        ('DEFAULT_REASONING_EFFORT = "low"\n', "{}", "preview"),
        ("", '{"dspark_block": 1}', "official"),
        ("", '{"model_type": "deepseek_v4"}', "preview"),
        (None, '{"dspark_block": 1}', "official"),
        (None, None, "preview"),
        ("raise SystemExit(1)\n" + OFFICIAL, None, "official"),
    ],
)
@pytest.mark.parametrize("name", ["encoding/encoding_dsv4.py", "encoding_dsv4.py"])
def test_profile_of_a_checkpoint(
    tmp_path: Path, name: str, source: str | None, config: str | None, profile: str
) -> None:
    if source is not None:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source)
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    choice = choose_profile(tmp_path)
    assert choice.profile == profile
    assert choice.reason


def test_user_overrides_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "encoding_dsv4.py").write_text(OFFICIAL)
    choice = choose_profile(tmp_path, "preview")
    assert (choice.profile, choice.reason) == ("preview", "chosen by the user")
    with pytest.raises(TextError, match="choose auto"):
        choose_profile(tmp_path, "best")  # type: ignore[arg-type]
