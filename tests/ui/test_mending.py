"""A conversation that the model cannot take: shown where it is at fault, and mended there."""

import json

import pytest

from dsv4chat.app import ChatApp
from dsv4chat.core.conversation import Conversation, Turn
from dsv4chat.core.engine_client import EngineClient
from dsv4chat.core.mending import edited, mends, show_path
from dsv4chat.core.session import ChatSession
from dsv4chat.core.settings import EFFORTS, Settings
from dsv4chat.screens.mend import MendScreen
from engine.protocol import ChatMessage, Finished, ToolCall
from tests.engine.tiny import write_model
from tests.ui.conftest import answer, sees, send, until

CALL = {"id": "c1", "name": "look_up", "arguments": '{"x": 1}'}


def write_chat(path, *turns):
    """An export whose turns follow one another."""
    rows = [
        {"id": f"t{n}", "parent": f"t{n - 1}" if n else None, "finish": "stop", **turn}
        for n, turn in enumerate(turns)
    ]
    head = {"format": "dsv4chat-conversation", "version": 1, "id": "x", "name": "imported"}
    plain = {**head, "system": "", "created": 0.0, "leaf": rows[-1]["id"], "turns": rows}
    path.write_text(json.dumps(plain))


def stray_result(path):
    write_chat(
        path,
        {"role": "user", "text": "what is x?"},
        {"role": "assistant", "text": "I will look."},
        {"role": "tool", "text": "x is 7", "tool_call_id": "gone"},
    )


async def test_a_refused_chat_says_where_and_can_be_mended(make_app, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stray_result(tmp_path / "chat.json")
    app = make_app()
    async with app.run_test(size=(100, 40), notifications=True) as pilot:
        await until(pilot, lambda: app.session.phase == "ready")
        await send(pilot, "/import chat.json")
        await until(pilot, lambda: len(app.session.conversation.turns) == 3)
        await sees(pilot, "tool result", "x is 7")
        await send(pilot, "go on")
        await until(pilot, lambda: app.session.refusal is not None)
        await sees(pilot, "no call has the id 'gone'", "the model cannot take this chat")
        assert [turn.role for turn in app.session.conversation.path][-1] == "user"
        await send(pilot, "/mend")
        await until(pilot, lambda: isinstance(app.screen, MendScreen))
        await sees(pilot, "remove this tool result", "edit its text")
        await pilot.press("enter")
        await until(pilot, lambda: app.session.conversation.path[-1].role == "assistant")
        await until(pilot, lambda: not app.session.busy)
        path = app.session.conversation.path
        assert [turn.role for turn in path] == ["user", "assistant", "user", "assistant"]
        assert path[-1].finish == "stop" and path[-1].text
        assert any(turn.role == "tool" for turn in app.session.conversation.turns.values())


async def test_the_text_of_the_turn_at_fault_can_be_edited(make_app, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stray_result(tmp_path / "chat.json")
    app = make_app()
    async with app.run_test(size=(100, 40), notifications=True) as pilot:
        await until(pilot, lambda: app.session.phase == "ready")
        await send(pilot, "/import chat.json")
        await until(pilot, lambda: len(app.session.conversation.turns) == 3)
        await send(pilot, "go on")
        await until(pilot, lambda: app.session.refusal is not None)
        await send(pilot, "/mend")
        await until(pilot, lambda: isinstance(app.screen, MendScreen))
        await pilot.press("end", "enter")
        await until(pilot, lambda: app.chat.composer.text == "x is 7")
        await sees(pilot, "mending what the model cannot take")
        await pilot.press("0", "enter")
        await until(pilot, lambda: app.session.conversation.path[2].text == "x is 70")
        await until(pilot, lambda: app.session.refusal is not None)  # its id is still wrong


async def test_effort_is_a_key_a_command_and_on_screen(make_app):
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.session.phase == "ready")
        await sees(pilot, "effort none")
        for effort in (*EFFORTS[1:], EFFORTS[0], EFFORTS[1]):
            await pilot.press("alt+t")
            await sees(pilot, f"effort {effort}")
        await answer(pilot, "hello")
        assert app.session.conversation.path[-1].reasoning
        await send(pilot, "/effort none")
        await sees(pilot, "effort none")


async def test_the_real_engine_refuses_and_answers_after_mending(tmp_path, monkeypatch):
    monkeypatch.delenv("DSV4CHAT_ENGINE")
    monkeypatch.chdir(tmp_path)
    model = write_model(tmp_path / "tiny")
    write_chat(
        tmp_path / "chat.json",
        {"role": "user", "text": "what is x?"},
        {"role": "assistant", "text": "I will look.", "tool_calls": [CALL]},
    )
    settings = Settings(device="cpu", temperature=0.0, max_tokens=4, context=512)
    app = ChatApp(ChatSession(EngineClient(), settings, str(model)))
    async with app.run_test(size=(110, 40), notifications=True) as pilot:
        await until(pilot, lambda: app.session.phase == "ready", 120.0)
        await send(pilot, "/import chat.json")
        await until(pilot, lambda: len(app.session.conversation.turns) == 2)
        await send(pilot, "go on")
        await until(pilot, lambda: app.session.refusal is not None, 60.0)
        await sees(pilot, "'look_up' (c1) has no result yet")
        await send(pilot, "/mend")
        await until(pilot, lambda: isinstance(app.screen, MendScreen))
        await sees(pilot, "answer look_up with [cancelled by user]")
        await pilot.press("enter")
        await until(pilot, lambda: len(app.session.conversation.path) == 5)
        await until(pilot, lambda: not app.session.busy, 60.0)
        path = app.session.conversation.path
        assert [turn.role for turn in path[1:4]] == ["assistant", "tool", "user"]
        assert app.session.refusal is None and path[-1].finish in ("length", "stop")
        assert path[-1].token_ids


def called() -> tuple[Conversation, list[Turn]]:
    chat = Conversation()
    asked = chat.add_user("x?", parent=None)
    calls = [ToolCall("a", "first", "{}"), ToolCall("b", "second", "{}")]
    calling = chat.add(Turn("assistant", asked.id, text="wait", tool_calls=calls))
    result = chat.add(Turn("tool", calling.id, text="1", tool_call_id="a"))
    chat.add_user("and?", parent=result.id)
    return chat, chat.path


@pytest.mark.parametrize("title", ["answer second", "leave out the call of second", "remove this"])
def test_mends_are_branches_and_the_old_one_stays(title):
    chat, path = called()
    old = [turn.id for turn in path]
    mend = next(mend for mend in mends(path, path[-1]) if mend.title.startswith(title))
    show_path(chat, mend.path)
    assert all(turn_id in chat.turns for turn_id in old)
    messages = chat.messages()
    results = [message.tool_call_id for message in messages if message.role == "tool"]
    calls = [call.id for message in messages for call in message.tool_calls]
    if title == "remove this":
        assert len(messages) == 3 and len(chat.turns) == 4
    else:
        assert results == calls and messages[-1] == ChatMessage("user", "and?")


def test_an_edited_answer_loses_its_tokens_not_its_place():
    chat, path = called()
    show_path(chat, edited(path, path[1], "other"))
    assert [turn.text for turn in chat.path] == ["x?", "other", "1", "and?"]
    assert chat.path[1].token_ids == [] and path[1].text == "wait"


async def test_a_fault_without_a_place_is_an_answer_that_failed(make_app):
    app = make_app()
    async with app.run_test(size=(90, 30)) as pilot:
        await until(pilot, lambda: app.session.phase == "ready")
        session = app.session
        asked = session.conversation.add_user("x", parent=None)
        turn = session.conversation.add_assistant(session.settings, parent=asked.id)
        session.answering = turn
        session._finished(turn, Finished(1, "fault", message="out of memory"))
        assert session.refusal is None and turn.finish == "fault"
        session.listener("path")
        await sees(pilot, "out of memory")
