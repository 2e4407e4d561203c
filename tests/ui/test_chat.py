"""The chat by behaviour: type, stream, stop in every phase, regenerate, edit, branch, resize."""

import pytest
from textual.command import CommandList, CommandPalette

from dsv4chat.core.config import Config
from dsv4chat.core.settings import Settings
from dsv4chat.screens.branches import BranchScreen
from engine.protocol import StepOptions
from tests.ui.conftest import (
    answer,
    sees,
    send,
    until,
    use_engine,
)
from tests.ui.fake_engine import ANSWER


async def test_message_is_answered_and_drawn(make_app):
    app = make_app()
    async with app.run_test(size=(100, 60), notifications=True) as pilot:
        await answer(pilot, "hello")
        user, reply = app.session.conversation.path
        assert (user.text, reply.text, reply.finish) == ("hello", ANSWER, "stop")
        assert len(reply.token_ids) == len(reply.ends) == len(reply.pieces)
        shown = await sees(
            pilot,
            "global scale",
            "return max(abs(x) for x in row) / 2688",
            "stop: stop",
            "tok/s",
            "TTFT",
        )
        assert "**" not in shown


async def test_welcome_says_what_the_demo_model_is(make_app):
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.session.phase == "ready")
        await sees(pilot, "demo model", "makes mistakes")


async def test_load_progress_shows_stage_rate_and_time_left(make_app, monkeypatch):
    use_engine(monkeypatch, "--load-s", "3")
    app = make_app()
    async with app.run_test(size=(90, 24)) as pilot:
        await until(pilot, lambda: bool(app.session.load_progress))
        await sees(pilot, "reading weights", "6.2 GB/s", "left")


async def test_message_written_while_loading_is_sent_when_ready(make_app, monkeypatch):
    use_engine(monkeypatch, "--load-s", "0.6")
    app = make_app()
    async with app.run_test(size=(90, 24)) as pilot:
        await until(pilot, lambda: app.session.phase == "loading")
        await send(pilot, "early")
        assert app.session.queued is not None
        await until(pilot, lambda: bool(app.session.conversation.last("assistant")))
        await until(pilot, lambda: not app.session.busy)
        assert app.session.conversation.path[-1].text == ANSWER


async def test_stop_while_loading_gives_the_text_back(make_app, monkeypatch):
    use_engine(monkeypatch, "--load-s", "5")
    app = make_app()
    async with app.run_test(size=(90, 24)) as pilot:
        await until(pilot, lambda: app.session.phase == "loading")
        await send(pilot, "too early")
        await pilot.press("escape")
        await until(pilot, lambda: app.chat.composer.text == "too early")
        assert app.session.conversation.path == [] and not app.session.busy


async def test_stop_in_prefill(make_app):
    app = make_app()
    async with app.run_test(size=(90, 24)) as pilot:
        await until(pilot, lambda: app.session.phase == "ready")
        await send(pilot, "!prefill please")
        await until(pilot, lambda: app.session.prefill is not None)
        await sees(pilot, "reading")
        await pilot.press("escape")
        await until(pilot, lambda: not app.session.busy)
        assert app.session.conversation.path[-1].finish == "cancelled"
        await answer(pilot, "again")
        assert app.session.conversation.path[-1].text == ANSWER


async def test_stop_while_answering_keeps_every_character(make_app):
    app = make_app()
    async with app.run_test(size=(90, 24)) as pilot:
        await until(pilot, lambda: app.session.phase == "ready")
        await send(pilot, "!slow")
        await until(
            pilot, lambda: bool(app.session.answering and len(app.session.answering.text) > 20)
        )
        await pilot.press("escape")
        await until(pilot, lambda: not app.session.busy)
        turn = app.session.conversation.path[-1]
        assert turn.finish == "cancelled" and ANSWER.startswith(turn.text) and len(turn.text) > 20
        assert turn.finished.tokens == len(turn.token_ids)
        await sees(pilot, "stopped by you")


async def test_stop_while_thinking(make_app):
    app = make_app(Settings(effort="high"))
    async with app.run_test(size=(90, 24)) as pilot:
        await until(pilot, lambda: app.session.phase == "ready")
        await send(pilot, "!slow")
        await until(pilot, lambda: bool(app.session.answering and app.session.answering.reasoning))
        await sees(pilot, "thinking")
        await pilot.press("escape")
        await until(pilot, lambda: not app.session.busy)
        assert app.session.conversation.path[-1].reasoning


async def test_thinking_folds_with_tokens_and_time(make_app):
    app = make_app(Settings(effort="high"))
    async with app.run_test(size=(90, 50)) as pilot:
        await answer(pilot, "hello")
        shown = await sees(pilot, "▸ thought · 17 tokens · ")
        assert "formula once" not in shown
        await pilot.press("ctrl+t")
        await sees(pilot, "formula once")


async def test_regenerate_is_a_sibling_and_branches_can_be_chosen(make_app):
    app = make_app()
    async with app.run_test(size=(90, 50)) as pilot:
        await answer(pilot, "hello")
        first = app.session.conversation.path[-1]
        await pilot.press("ctrl+r")
        await until(pilot, lambda: app.session.conversation.path[-1].id != first.id)
        await until(pilot, lambda: not app.session.busy)
        second = app.session.conversation.path[-1]
        assert app.session.conversation.siblings(second) == [first, second]
        await sees(pilot, "‹ 2 of 2 ›")
        await pilot.press("alt+left")
        await until(pilot, lambda: app.session.conversation.path[-1] is first)
        await sees(pilot, "‹ 1 of 2 ›")
        await pilot.press("ctrl+b")
        await until(pilot, lambda: isinstance(app.screen, BranchScreen))
        await pilot.press("down", "enter")
        await until(pilot, lambda: app.session.conversation.path[-1] is second)


async def test_edit_resends_as_a_sibling_and_keeps_the_draft(make_app):
    app = make_app()
    async with app.run_test(size=(90, 30)) as pilot:
        await answer(pilot, "first question")
        app.chat.composer.insert("a draft")
        await pilot.press("ctrl+e")
        assert app.chat.composer.text == "first question"
        await pilot.press("escape")
        assert app.chat.composer.text == "a draft"
        await pilot.press("ctrl+e", "!", "enter")
        await until(pilot, lambda: len(app.session.conversation.turns) == 4)
        await until(pilot, lambda: not app.session.busy)
        texts = [turn.text for turn in app.session.conversation.children(None)]
        assert texts == ["first question", "first question!"]
        assert app.chat.composer.text == "a draft"


async def test_newline_keys_grow_the_composer(make_app):
    app = make_app()
    async with app.run_test(size=(80, 30)) as pilot:
        await until(pilot, lambda: app.session.phase == "ready")
        low = app.chat.composer.size.height
        await pilot.press("a", "ctrl+j", "b", "shift+enter", "c", "alt+enter", "d")
        await until(pilot, lambda: app.chat.composer.text == "a\nb\nc\nd")
        assert app.chat.composer.size.height == low + 3
        assert not app.session.conversation.turns


async def test_long_paste_becomes_a_token_and_is_sent_whole(make_app):
    from textual import events

    app = make_app()
    pasted = "\n".join(f"line {n}" for n in range(40))
    async with app.run_test(size=(80, 30)) as pilot:
        await until(pilot, lambda: app.session.phase == "ready")
        app.post_message(events.Paste(pasted))
        await until(pilot, lambda: app.chat.composer.text == "[paste 1: 40 lines]")
        await pilot.press("enter")
        await until(pilot, lambda: bool(app.session.conversation.turns))
        assert app.session.conversation.path[0].text == pasted


@pytest.mark.parametrize("size", [(40, 10), (60, 15), (80, 24), (120, 40), (200, 60)])
async def test_every_size_shows_composer_and_answer(make_app, size):
    app = make_app()
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        await answer(pilot, "!say one two three")
        await pilot.resize_terminal(*size)
        await sees(pilot, "one two three", "message")
        assert app.chat.composer.region.bottom <= size[1]


async def test_reader_who_scrolled_up_is_not_pulled_down(make_app):
    app = make_app()
    async with app.run_test(size=(80, 16)) as pilot:
        await until(pilot, lambda: app.session.phase == "ready")
        await send(pilot, "!pace 0.02")
        await until(pilot, lambda: app.chat.transcript.max_scroll_y > 6)
        app.chat.transcript.scroll_to(y=1, animate=False)
        tokens = app.session.timing.tokens
        await until(pilot, lambda: app.session.timing.tokens > tokens + 10)
        assert app.chat.transcript.scroll_y == 1
        await sees(pilot, "more lines")
        await pilot.press("escape")
        await until(pilot, lambda: not app.session.busy)


async def test_router_toggle_leaves_a_mark_at_its_token(make_app):
    app = make_app()
    async with app.run_test(size=(90, 50)) as pilot:
        await until(pilot, lambda: app.session.phase == "ready")
        await send(pilot, "!slow")
        await until(pilot, lambda: bool(app.session.answering and app.session.answering.text))
        await pilot.press("f5")
        await until(pilot, lambda: bool(app.session.answering and app.session.answering.marks))
        turn = app.session.answering
        mark = turn.marks[0]
        await pilot.press("escape")
        await until(pilot, lambda: not app.session.busy)
        assert mark.options == StepOptions(router="two-kernel")
        assert set(turn.routers[: mark.index]) == {"fused"}
        assert set(turn.routers[mark.index :]) <= {"two-kernel"}
        await sees(pilot, f"router fused → two-kernel from token {mark.index} on", "⟂")


async def test_refused_router_is_skipped_with_its_reason(make_app, monkeypatch):
    use_engine(monkeypatch, "--refuse", "two-kernel=needs.a.GPU")
    app = make_app()
    async with app.run_test(size=(90, 30), notifications=True) as pilot:
        await until(pilot, lambda: app.session.phase == "ready")
        await pilot.press("f5")
        await sees(pilot, "needs.a.GPU")
        assert app.session.settings.router == "bf16"


async def test_slash_commands_change_settings_and_refuse_nonsense(make_app):
    app = make_app()
    async with app.run_test(size=(90, 30), notifications=True) as pilot:
        await until(pilot, lambda: app.session.phase == "ready")
        for text in (
            "/temperature 0.5",
            "/effort high",
            "/gsa checkpoint",
            "/taps off",
            "/router bf16",
        ):
            await send(pilot, text)
            await pilot.pause()
        settings = app.session.settings
        assert (settings.temperature, settings.effort, settings.gsa) == (0.5, "high", "checkpoint")
        assert (settings.taps, settings.router) == (False, "bf16")
        await send(pilot, "/temperature nan")
        await sees(pilot, "must be a number")
        assert app.session.settings.temperature == 0.5
        await send(pilot, "/nothing")
        await sees(pilot, "No command /nothing")
        assert app.chat.composer.text == "/nothing" and not app.session.conversation.turns


async def test_palette_runs_a_command(make_app):
    app = make_app()
    async with app.run_test(size=(90, 30), notifications=True) as pilot:
        await until(pilot, lambda: app.session.phase == "ready")
        await pilot.press("ctrl+p")
        await until(pilot, lambda: isinstance(app.screen, CommandPalette))
        await pilot.press(*"router")
        hits = app.screen.query_one(CommandList)
        await until(pilot, lambda: hits.option_count > 0 and hits.highlighted == 0)
        await pilot.press("enter")
        await until(pilot, lambda: app.session.settings.router == "two-kernel")


async def test_ctrl_c_stops_and_never_quits(make_app):
    app = make_app()
    async with app.run_test(size=(90, 24), notifications=True) as pilot:
        await until(pilot, lambda: app.session.phase == "ready")
        await send(pilot, "!slow")
        await until(pilot, lambda: bool(app.session.answering and app.session.answering.text))
        await pilot.press("ctrl+c")
        await until(pilot, lambda: not app.session.busy)
        assert app.session.conversation.path[-1].finish == "cancelled"
        await pilot.press("ctrl+c")
        await sees(pilot, "ctrl+q quits")


async def test_quit_ends_the_engine(make_app):
    import os

    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.session.phase == "ready")
        pid = app.session.backend.pid
        await pilot.press("ctrl+q")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_bad_config_is_reported_and_start_goes_on(make_app):
    app = make_app(config=Config(problems=("config.toml:3: [/x] ignored",)))
    async with app.run_test(size=(90, 30)) as pilot:
        await until(pilot, lambda: app.session.phase == "ready")
        await sees(pilot, "config.toml:3: [/x] ignored")
