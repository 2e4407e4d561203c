"""The chat and its store together: autosave, resuming, the list, drafts."""

import sqlite3

from dsv4chat.app import ChatApp
from dsv4chat.core import places
from dsv4chat.core.engine_client import EngineClient
from dsv4chat.core.session import ChatSession
from dsv4chat.core.settings import Settings
from dsv4chat.screens.history import HistoryScreen
from tests.ui.conftest import (
    answer,
    sees,
    send,
    until,
)
from tests.ui.fake_engine import ANSWER


def resumed(model) -> ChatApp:
    return ChatApp(ChatSession(EngineClient(), Settings(), str(model)), resume=True)


def on_disk(sql: str = "SELECT text FROM turns ORDER BY number") -> list[str]:
    with sqlite3.connect(places.store_file()) as connection:
        return [row[0] for row in connection.execute(sql)]


async def test_an_answer_is_on_disk_while_it_streams(make_app):
    app = make_app()
    async with app.run_test() as pilot:
        await until(pilot, lambda: app.session.phase == "ready")
        await send(pilot, "!slow please")
        await until(pilot, lambda: bool(app.session.answering and app.session.answering.text))
        start = app.session.answering.text
        await until(pilot, lambda: start in "".join(on_disk()[1:]), 2.0)
        assert app.session.busy and on_disk()[0] == "!slow please"
        await pilot.press("escape")
        await until(pilot, lambda: not app.session.busy)
        said = app.session.conversation.path[-1].text
        await until(pilot, lambda: on_disk()[1] == said)


async def test_continue_opens_the_last_chat_with_its_records(make_app, model):
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await answer(pilot, "first question")
        await pilot.press("ctrl+r")
        await until(pilot, lambda: len(app.session.conversation.turns) == 3)
        await until(pilot, lambda: not app.session.busy)
        before = app.session.conversation
    app = resumed(model)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(
            pilot, lambda: app.session.phase == "ready" and bool(app.session.conversation.path)
        )
        chat = app.session.conversation
        assert (chat.id, chat.leaf, chat.turns) == (before.id, before.leaf, before.turns)
        await sees(pilot, ANSWER.split("`")[1], "2 of 2")
        turn = chat.path[-1]
        await until(pilot, lambda: app.session.records.get(turn.id) is not None)
        records = app.session.records.get(turn.id)
        assert len(records.payloads) == len(turn.token_ids)
        await pilot.press("f9", "f9")
        await until(pilot, lambda: app.cursor == len(turn.token_ids) - 2)
        await sees(pilot, f"token {app.cursor}")
        await answer(pilot, "and then?")
        assert len(chat.path) == 4
    assert len(on_disk()) == 5 and len(set(on_disk("SELECT conversation FROM turns"))) == 1


async def test_list_searches_renames_deletes_and_brings_back(make_app):
    app = make_app()
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        await answer(pilot, "!say alpha [/x] beta")
        await pilot.press("ctrl+n")
        await answer(pilot, "!say gamma delta")
        first = list(on_disk("SELECT id FROM conversations ORDER BY created"))[0]
        await pilot.press("ctrl+l")
        await sees(pilot, "!say gamma", "[/x]")
        await pilot.press(*"alpha")
        await until(pilot, lambda: [e.id for e in app.screen.entries] == [first])
        await pilot.press("ctrl+t", *" renamed", "enter")
        await until(pilot, lambda: app.screen.entries[0].title.endswith("renamed"))
        await pilot.press("ctrl+d")
        await until(pilot, lambda: app.screen.entries == [])
        await pilot.press("ctrl+z")
        await until(pilot, lambda: [e.id for e in app.screen.entries] == [first])
        await pilot.press("enter")
        await until(pilot, lambda: app.session.conversation.id == first)
        assert not isinstance(app.screen, HistoryScreen)
        await sees(pilot, "alpha [/x] beta")
        assert app.chat.composer.has_focus


async def test_the_list_stays_away_from_a_running_answer(make_app):
    app = make_app()
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        await answer(pilot, "!say one")
        await pilot.press("ctrl+n")
        await send(pilot, "!slow")
        await until(pilot, lambda: bool(app.session.answering and app.session.answering.text))
        running = app.session.conversation
        await pilot.press("ctrl+l")
        await until(pilot, lambda: len(getattr(app.screen, "entries", [])) == 2)
        await pilot.press("ctrl+d", "down", "enter")
        await until(pilot, lambda: not isinstance(app.screen, HistoryScreen))
        assert app.session.conversation is running and app.session.busy
        await sees(pilot, "esc stops it")
        await pilot.press("escape")
        await until(pilot, lambda: not app.session.busy)


async def test_a_draft_belongs_to_its_chat_and_survives(make_app, model, monkeypatch):
    app = make_app()
    async with app.run_test() as pilot:
        await answer(pilot, "!say one")
        app.chat.composer.insert("unsent words")
        await until(pilot, lambda: on_disk("SELECT text FROM drafts") == ["unsent words"])
        await pilot.press("ctrl+n")
        await until(pilot, lambda: app.chat.composer.text == "")
        app.chat.composer.insert("never begun")
        await until(pilot, lambda: len(on_disk("SELECT text FROM drafts")) == 2)
    app = resumed(model)
    async with app.run_test() as pilot:
        await until(pilot, lambda: app.chat.composer.text == "unsent words")
        app.chat.composer.text = ""
        await until(pilot, lambda: on_disk("SELECT text FROM drafts") == ["never begun"])
    app = make_app()
    async with app.run_test() as pilot:
        await until(pilot, lambda: app.chat.composer.text == "never begun")


async def test_without_a_disk_the_chat_goes_on_and_says_so(make_app, home):
    (home / "data").write_text("a file where the folder should be")
    app = make_app()
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        await answer(pilot, "!say one")
        await until(pilot, lambda: "cannot be saved" in " ".join(app.session.notices))
        await sees(pilot, "memory only")
        await pilot.press("ctrl+l")
        await until(pilot, lambda: len(getattr(app.screen, "entries", [])) == 1)


async def test_a_message_taken_back_leaves_the_disk(make_app, monkeypatch):
    from tests.ui.conftest import use_engine

    use_engine(monkeypatch, "--load-s", "30")
    app = make_app()
    async with app.run_test() as pilot:
        await until(pilot, lambda: app.session.phase == "loading")
        await send(pilot, "too early")
        await until(pilot, lambda: on_disk() == ["too early"])
        await pilot.press("escape")
        await until(pilot, lambda: on_disk() == [])
        assert app.chat.composer.text == "too early"
