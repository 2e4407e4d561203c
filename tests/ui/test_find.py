"""Find in chat: matches across wraps and Markdown, thinking included, next and previous."""

import pytest

from dsv4chat.core.settings import Settings
from dsv4chat.widgets.found import find_in_rows, needle_of
from tests.ui.conftest import answer, hides, sees, send, until


@pytest.mark.parametrize(
    ("rows", "words", "spans"),
    [
        (["a Global", "scale b"], "global  SCALE", [[(0, 2, 8), (1, 0, 5)]]),
        (["│ one two", "│ three"], "two three", [[(0, 6, 10), (1, 2, 7)]]),
        (["aaaa"], "aa", [[(0, 0, 2)], [(0, 2, 4)]]),
        (["İstanbul 漢字 x"], "漢字", [[(0, 9, 11)]]),
        (["none here"], "other", []),
        (["text"], "", []),
    ],
)
def test_matches_are_found_where_they_are_drawn(rows, words, spans):
    found = find_in_rows(rows, needle_of(words))
    shown = [[(row, rows[row][a:b].strip()) for row, a, b in match] for match in found]
    wanted = [[(row, rows[row][a:b].strip()) for row, a, b in match] for match in spans]
    assert shown == wanted


async def test_find_walks_over_all_matches_and_back(make_app):
    app = make_app()
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await answer(pilot, "!say first apple here")
        for _ in range(3):
            await answer(pilot, "something else")
        await answer(pilot, "!say last APPLE there")
        await send(pilot, "/find apple")
        shown = await sees(pilot, "find apple · 4 of 4", "last APPLE there")
        assert "first apple here" not in shown
        await pilot.press("n")
        await sees(pilot, "find apple · 1 of 4", "first apple here")
        await pilot.press("N")
        await sees(pilot, "find apple · 4 of 4", "last APPLE there")
        await pilot.press("ctrl+f")
        await sees(pilot, "find apple · 1 of 4")
        await pilot.press("escape")
        await hides(pilot, "find apple")
        assert not app.chat.transcript.needle


async def test_find_opens_the_thinking_and_marks_the_words(make_app):
    app = make_app(Settings(effort="high"))
    async with app.run_test(size=(80, 40), notifications=True) as pilot:
        await answer(pilot, "hello")
        await hides(pilot, "formula once")
        await send(pilot, "/find formula once")
        await sees(pilot, "find formula once · 1 of 1", "formula once")
        transcript = app.chat.transcript
        lines = [transcript.render_line(y) for y in range(transcript.size.height)]
        line = next(strip for strip in lines if "formula" in strip.text)
        marked = [s.text for s in line if s.style and s.style.reverse]
        assert "".join(marked).startswith("formula")


async def test_what_is_not_there_is_said(make_app):
    app = make_app()
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await answer(pilot, "hello")
        await send(pilot, "/find zebra [/x]")
        await sees(pilot, "zebra [/x] is not in this chat")
        await until(pilot, lambda: not app.chat.transcript.needle)
