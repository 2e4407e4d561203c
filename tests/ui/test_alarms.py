"""What raises an alarm by itself: an answer in a loop, a token that is not finite."""

from array import array

import pytest

from dsv4chat.core.loops import Loop, find_loop
from dsv4chat.core.settings import Settings
from dsv4chat.panels.logits import drawn_shares
from tests.ui.conftest import answer, hides, sees, send, until


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        ([5, 6, 7] * 8, Loop(3, 8)),
        ([1, 2, *([5, 6, 7] * 10), 5], Loop(3, 10)),  # in the middle of a round
        ([9] * 24, Loop(1, 24)),
        ([9] * 23, None),  # too short to be sure
        (list(range(64)) * 4, Loop(64, 4)),
        (list(range(65)) * 4, None),
        ([*([5, 6, 7] * 20), 1], None),  # it has left the loop
        ([], None),
    ],
)
def test_a_loop_is_the_shortest_round_at_the_end(ids, found):
    assert find_loop(ids) == found


async def test_a_loop_is_said_while_it_runs_and_esc_stops_it(make_app):
    app = make_app()
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await until(pilot, lambda: app.session.phase == "ready")
        await send(pilot, "!slow !say " + 300 * "again ")
        await sees(pilot, "in a loop: the same token", "esc stops")
        await pilot.press("escape")
        await until(pilot, lambda: not app.session.busy)
        await sees(pilot, "in a loop", "stopped by you")


async def test_the_panels_stay_at_the_first_token_that_is_not_finite(make_app):
    app = make_app()
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await answer(pilot, "!nan !say alpha beta gamma delta")
        await until(pilot, lambda: app.cursor == 0)
        await sees(pilot, "▸ token 0", "not finite from layer 2", "F11")
        await sees(pilot, "token 0 is not finite from layer 2 on")  # in the transcript
        await pilot.press("f11")
        await sees(pilot, "token 3")
        await hides(pilot, "▸ token 0")


async def test_a_step_without_a_token_can_be_looked_at(make_app):
    app = make_app()
    async with app.run_test(size=(200, 60)) as pilot:
        await answer(pilot, "!say alpha beta")
        turn = app.session.conversation.last("assistant")
        records, count = app.session.records, len(turn.token_ids)
        held = records.get(turn.id)
        words = array("I", held.payloads[count - 1])
        for field in held.layout.fields():
            value = 0x7FC00000 if field.kind == "f" else words[field.offset]
            bad = 2 if field.name == "first_bad_layer" else value
            words[field.offset : field.offset + field.size] = array("I", [bad] * field.size)
        assert records.add_payload(turn.id, count, words.tobytes()) == 2
        await pilot.press("f9")
        await sees(pilot, f"token {count}", "not finite from layer 2")
        await pilot.press("f2")
        await sees(pilot, "not finite from layer 2")


def test_drawn_shares_are_those_of_the_sampler():
    assert drawn_shares([2.0, 1.0, 0.0], 1, 0.0) == [1.0]
    half = drawn_shares([2.0, 1.0, 0.0], 2, 0.5)
    assert half[0] / half[1] == pytest.approx(7.389056, rel=1e-5)
    assert sum(half) == pytest.approx(1)
    assert drawn_shares([2.0, 1.0], 50, 1.0) == []  # most of what it kept is not recorded


async def test_the_logits_panel_shows_what_the_sampler_drew_from(make_app):
    app = make_app(Settings(temperature=0.5, top_p=0.9))
    async with app.run_test(size=(120, 40)) as pilot:
        await answer(pilot, "hello")
        await sees(pilot, "raw", "drawn", "sampler keeps 5: T 0.5 top-p 0.9")
