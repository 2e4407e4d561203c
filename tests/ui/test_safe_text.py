"""No text from a model, a user, a file or the engine is ever markup or an escape sequence."""

import re
import unicodedata
from pathlib import Path

import pytest

from dsv4chat.core.text import clean, one_line, quoted
from tests.ui.conftest import (
    answer,
    sees,
    send,
    until,
    use_engine,
)
from tests.ui.fake_engine import NASTY

MARKUP = "[/a/x] [bold]b[/bold] [@click=app.quit]q[/] [$foo"
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "code", [*range(0x20), *range(0x7F, 0xA0), 0x202E, 0x2066, 0x2028, 0x2029, 0xD83D, 0x2062]
)
def test_clean_leaves_nothing_a_terminal_obeys(code):
    for text in (clean(f"a{chr(code)}b"), one_line(f"a{chr(code)}b"), quoted(f"a{chr(code)}b")):
        text.encode("utf-8")
        for ch in text.replace("\n", "").replace("\t", ""):
            assert (
                unicodedata.category(ch) not in ("Cc", "Cs", "Zl", "Zp")
                and ch not in "\u202e\u2066\u2062"
            )


def test_clean_keeps_ordinary_text():
    text = "naïve 漢字 👩‍👩‍👧 é\n\ttab [x] <b> &amp;"
    assert clean(text) == text
    assert clean("a\r\nb\rc") == "a\nb\nc"


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_nasty_answer_and_question_are_shown_as_text(make_app, size):
    app = make_app()
    async with app.run_test(size=size, notifications=True) as pilot:
        await answer(pilot, f"!nasty {MARKUP} \x1b[2J")
        shown = await sees(pilot, "[bold]not bold[/bold]", "[bold]b[/bold]")
        assert "\x1b" not in shown and "\x9b" not in shown
        assert app.session.conversation.path[-1].text == NASTY
        for key in ("f9", "f9", "f2", "f2", "ctrl+b"):
            await pilot.press(key)
        await sees(pilot, "[/a/x]")


async def test_engine_strings_are_shown_as_text(make_app, monkeypatch):
    use_engine(
        monkeypatch, "--name", "'[/a/x]\x1b[31m'", "--refuse", "'two-kernel=[/no]'", "'bf16=[red]x'"
    )
    app = make_app()
    async with app.run_test(size=(200, 60), notifications=True) as pilot:
        await answer(pilot, "hello")
        await sees(pilot, "[/a/x]␛[31m")
        await pilot.press("f5")
        await sees(pilot, "[/no]")


async def test_notices_and_slash_errors_are_shown_as_text(make_app):
    app = make_app()
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        await until(pilot, lambda: app.session.phase == "ready")
        app.session.notify(MARKUP)
        await sees(pilot, "[/a/x]")
        await send(pilot, f"/router {MARKUP}")
        await until(pilot, lambda: app.is_running and app.session.settings.router == "fused")


async def test_system_prompt_with_markup(make_app):
    app = make_app()
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        await until(pilot, lambda: app.session.phase == "ready")
        await send(pilot, f"/system {MARKUP}")
        await until(pilot, lambda: app.session.conversation.system == MARKUP)


def test_no_widget_is_given_a_formatted_string():
    """Strings are markup to Textual: f-strings may reach widgets only through `say` or `line`."""
    bad = re.compile(
        r"(Static|Label|Option|Collapsible|Button)\(\s*f[\"']|\.update\(\s*f[\"']|"
        r"border_(sub)?title = f[\"']|from_markup|\.notify\((?!clean)"
    )
    for path in (ROOT / "dsv4chat").rglob("*.py"):
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if (
                bad.search(text)
                and "session.notify" not in text
                and "self.notify(event" not in text
            ):
                if "core" not in path.parts:
                    pytest.fail(f"{path.name}:{number}: {text.strip()}")
