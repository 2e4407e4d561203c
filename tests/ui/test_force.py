"""Forcing a token: the branch keeps what stands before it, text and records, and goes on."""

import pytest

from dsv4chat.core.branching import (
    Alternative,
    ForceError,
    find_alternative,
    keep_tokens,
)
from dsv4chat.core.conversation import Turn
from dsv4chat.core.settings import Settings
from dsv4chat.panels.view import current_view
from dsv4chat.screens.force import ForceScreen
from engine.protocol import Delta, StepOptions, Token, Tokens
from tests.ui.conftest import answer, sees, send, until

SAY = "!say alpha beta gamma delta"


def test_kept_tokens_take_the_text_that_was_certain_with_them():
    turn = Turn("assistant", "u")
    deltas = [Delta(0, "thinking", "hm"), Delta(2, "answer", "one"), Delta(4, "answer", " two")]
    tokens = [Token(n, 10 + n, f"p{n}", -1.0, "fused", "runtime") for n in range(5)]
    turn.add(Tokens(1, tokens, deltas))
    assert (keep_tokens(turn, 2).reasoning, keep_tokens(turn, 2).text) == ("hm", "")
    kept = keep_tokens(turn, 4)
    assert (kept.reasoning, kept.text, kept.token_ids) == ("hm", "one", [10, 11, 12, 13])
    assert keep_tokens(turn, 5).text == turn.text and keep_tokens(turn, 0).token_ids == []
    with pytest.raises(ValueError, match="6 of 5"):
        keep_tokens(turn, 6)


def test_an_alternative_is_found_by_rank_text_or_id():
    choices = [Alternative(7, " Paris", -0.1, 1, True), Alternative(9, "2", -3.0, 2)]
    assert find_alternative("1", choices, 100).id == 7
    assert find_alternative("2", choices, 100).id == 9  # its text, and not only its rank
    assert find_alternative("Paris", choices, 100).id == 7
    assert find_alternative("id 9", choices, 100) == choices[1]
    assert find_alternative("id 55", [], 100).id == 55
    for text, words in (("id 100", "ends at 99"), ("3", "rank from 1 to 2"), ("x", "'x' is not")):
        with pytest.raises(ForceError, match=words):
            find_alternative(text, choices, 100)
    with pytest.raises(ForceError, match="taps were off"):
        find_alternative("1", [], 100)


async def test_forcing_branches_and_keeps_text_and_records(make_app):
    app = make_app(Settings(seed=11, temperature=0.5))
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await answer(pilot, SAY)
        await pilot.press("f9", "f9")  # the last, then the one before
        await until(pilot, lambda: app.cursor == 2)
        await pilot.press("escape", "f")
        await until(pilot, lambda: isinstance(app.screen, ForceScreen))
        await sees(pilot, "token 2: instead of ' gamma'", "◀ taken", "' word1'")
        await pilot.press("down", "enter")  # from rank 2 to rank 3
        await until(pilot, lambda: app.session.busy or app.screen is app.chat)
        await until(pilot, lambda: not app.session.busy)
        source, branch = app.session.conversation.children(app.session.conversation.path[0].id)
        assert (
            source.text == "alpha beta gamma delta" and app.session.conversation.path[1] is branch
        )
        assert branch.text == "alpha beta word2 delta"
        assert branch.token_ids == [500, 500, 502, 500] and branch.kept == 2
        assert branch.settings.seed == 11 and branch.settings.temperature == 0.5
        ours, theirs = (app.session.records.get(turn.id) for turn in (branch, source))
        assert [ours.payloads[n] for n in (0, 1)] == [theirs.payloads[n] for n in (0, 1)]
        assert [ours.tokens[n].forced for n in range(4)] == [False, False, True, False]
        await sees(pilot, "token 2 forced: ' word2' instead of ' gamma'", "2 of 2")
        await pilot.press("f9", "f9")
        await sees(pilot, "forced by you")
        assert current_view(app.session, app.cursor, 0).token.forced


async def test_a_thinking_token_can_be_forced(make_app):
    app = make_app(Settings(effort="high"))
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await answer(pilot, SAY)
        app.set_cursor(3)
        await send(pilot, "/force word4")
        await until(pilot, lambda: len(app.session.conversation.turns) == 3)
        await until(pilot, lambda: not app.session.busy)
        turn = app.session.conversation.path[-1]
        assert turn.reasoning.startswith("The user wants word4 know about")
        assert turn.text == "alpha beta gamma delta" and turn.finished.thinking_tokens > 4
        await sees(pilot, "token 3 forced: ' word4' instead of ' to'")


async def test_switches_of_now_hold_from_the_forced_token_on(make_app):
    app = make_app()
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await answer(pilot, SAY)
        await send(pilot, "/gsa checkpoint")
        app.set_cursor(1)
        await send(pilot, "/force 2")
        await until(pilot, lambda: len(app.session.conversation.turns) == 3)
        await until(pilot, lambda: not app.session.busy)
        turn = app.session.conversation.path[-1]
        assert turn.gsa_modes == ["runtime"] + 3 * ["checkpoint"]
        assert turn.settings.gsa == "runtime" and turn.options == StepOptions(gsa="checkpoint")
        await sees(pilot, "gsa runtime → checkpoint from token 1 on", "token 1 forced")


async def test_what_cannot_be_forced_is_said_in_words(make_app):
    app = make_app()
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await answer(pilot, SAY)
        await send(pilot, "/force 2")
        await sees(pilot, "Put the token cursor on a token first")
        app.set_cursor(1)
        await send(pilot, "/force 1")
        await sees(pilot, "stands there already")
        app.session.conversation.path[-1].model = "Another V4"
        await send(pilot, "/force 2")
        await sees(pilot, "this answer is by Another V4")
        assert len(app.session.conversation.turns) == 2


async def test_a_forced_branch_comes_back_from_disk(make_app):
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await answer(pilot, SAY)
        app.set_cursor(2)
        await send(pilot, "/force 3")
        await until(pilot, lambda: len(app.session.conversation.turns) == 3)
        await until(pilot, lambda: not app.session.busy)
        branch = app.session.conversation.path[-1]
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await app.open_chat(None)
        turn = app.session.conversation.path[-1]
        assert turn.forced == branch.forced and turn.text == branch.text
        await until(pilot, lambda: app.session.records.get(turn.id) is not None)
        assert app.session.records.get(turn.id).tokens[2].forced
