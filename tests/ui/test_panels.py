"""Panels show what the records say, live and under the cursor, and say why when they are empty."""

import pytest

from dsv4chat.core.settings import Settings
from dsv4chat.panels import PANELS
from dsv4chat.panels.gsa import read_cells
from dsv4chat.panels.view import current_view, headroom_bits
from tests.ui.conftest import (
    answer,
    sees,
    send,
    until,
)


def test_headroom_is_log2_of_stored_over_live():
    assert headroom_bits(0.004, 0.001) == 2.0
    assert headroom_bits(0.001, 0.002) == -1.0
    assert headroom_bits(0.0, 0.001) is None


async def test_empty_panels_say_why(make_app):
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.session.phase == "ready")
        await sees(pilot, "every token leaves a")
        await send(pilot, "/taps off")
        await sees(pilot, "Taps are off")
        await answer(pilot, "hello")
        await sees(pilot, "Taps are off")


async def test_saturation_raises_alarms_in_words(make_app):
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await answer(pilot, "!saturate")
        await sees(pilot, "14 blocks saturate: L4 ffn_in 14 of 16", "▲", "gsa = amax/2688")
        view = current_view(app.session, None, 0)
        cells = [cell for cell in read_cells(view, view.record) if cell.saturated]
        assert [(cell.layer, cell.site, cell.saturated) for cell in cells] == [(4, "ffn_in", 14)]
        assert cells[0].headroom == pytest.approx(-0.632, abs=1e-3)


async def test_summary_line_warns_at_80_columns(make_app):
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await answer(pilot, "!saturate")
        await sees(pilot, "gsa L4 saturates")


async def test_cursor_drives_panels_and_marks_its_token(make_app):
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await answer(pilot, "!say alpha beta gamma delta")
        await pilot.press("f9")
        assert app.cursor == 3
        await pilot.press("f9", "f9")
        await until(pilot, lambda: app.cursor == 1)
        await sees(pilot, "token 1 ' beta'", "▸ ")
        await pilot.press("escape")  # to the transcript
        await pilot.press("right_square_bracket")
        await until(pilot, lambda: app.cursor == 2)
        await sees(pilot, "token 2 ' gamma'")
        await pilot.press("f11")
        assert app.cursor is None


async def test_brackets_are_text_in_the_composer(make_app):
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await answer(pilot, "hello")
        await pilot.press("left_square_bracket", "x", "right_square_bracket")
        assert app.chat.composer.text == "[x]" and app.cursor is None


async def test_non_finite_layer_is_named(make_app):
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await answer(pilot, "!nan")
        await sees(pilot, "not finite from layer 2")


WORDS = {
    "logits": "entropy", "gsa": "blocks saturate", "router": "path fused", "attention": "window",
    "kernels": "inter-token",
}  # fmt: skip


@pytest.mark.parametrize("size", [(40, 12), (120, 40), (200, 60)])
async def test_debug_screen_shows_every_panel(make_app, size):
    app = make_app()
    async with app.run_test(size=size) as pilot:
        await answer(pilot, "hello")
        await pilot.press("f2")
        await pilot.pause(0.2)
        seen = set()
        for number, panel in enumerate(PANELS):
            await pilot.press(str(number + 1))
            shown = await sees(pilot, WORDS[panel.TITLE])
            assert "could not read" not in shown
            seen |= {panel.TITLE} if panel.TITLE in shown else set()
        assert seen == {panel.TITLE for panel in PANELS}
        await pilot.press("f5")
        await until(pilot, lambda: app.session.settings.router == "two-kernel")
        await pilot.press("f2")
        await until(pilot, lambda: app.screen is app.chat)


async def test_record_of_a_wrong_size_is_counted_not_fatal(make_app):
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await answer(pilot, "hello")
        turn = app.session.conversation.path[-1]
        app.session.records.add_payload(turn.id, 3, b"short")
        assert app.session.records.bad_records == 1


async def test_kernels_panel_shows_the_plan_with_reasons(make_app):
    app = make_app(Settings())
    async with app.run_test(size=(200, 60)) as pilot:
        await answer(pilot, "hello")
        await sees(
            pilot, "nvfp4_linear", "first that supports cpu", "p50", "p99", "fake engine: started"
        )


async def test_kernels_panel_says_what_taps_cost_and_what_was_replayed(make_app):
    app = make_app()
    async with app.run_test(size=(200, 60)) as pilot:
        await answer(pilot, "!say alpha beta")
        await sees(pilot, "p50 2.2   p90 3.0   p99 4.0", "1 of 2 tokens replayed a CUDA graph")
        await sees(pilot, "taps cost: answer once with taps on, once off")
        await send(pilot, "/taps off")
        await answer(pilot, "!say alpha beta")
        await sees(pilot, "taps cost +10.0%: 2.2 ms a token with, 2.0 without")
