"""The chat on a server: streaming, thinking, logprobs, and every way a server can fail."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dsv4chat import cli
from dsv4chat.app import ChatApp
from dsv4chat.core.session import ChatSession
from dsv4chat.core.settings import Settings
from dsv4chat.remote.client import RemoteClient
from tests.ui.conftest import answer, sees, send, until
from tests.ui.openai_server import Server

ROOT = Path(__file__).parents[2]
TEXT = "one [/two] 漢字"


@pytest.fixture
def server():
    made = Server()
    yield made
    made.close()


def remote_app(url: str, settings: Settings | None = None, model: str = "", key: str = ""):
    session = ChatSession(RemoteClient(url, key), settings or Settings(), model)
    session.remote = url
    return ChatApp(session)


async def test_an_answer_streams_with_its_thinking_and_logprobs(server):
    app = remote_app(server.url, Settings(effort="high", seed=3))
    async with app.run_test(size=(160, 50), notifications=True) as pilot:
        await until(pilot, lambda: app.session.phase == "ready")
        await sees(pilot, "served on http://127.0.0.1", "A server answers here")
        await answer(pilot, "hello")
        turn = app.session.conversation.path[-1]
        assert (turn.text, turn.reasoning, turn.finish) == (TEXT, "let me see", "stop")
        assert (turn.finished.prompt_tokens, turn.finished.tokens) == (9, 3)
        await sees(pilot, "75.0%", "'no'", "needs the local engine", "context 12 of 4.1k")
        body = server.bodies[0]
        assert body["model"] == "served" and body["seed"] == 3 and body["stream"]
        await answer(pilot, "and then?")
        roles = [message["role"] for message in server.bodies[1]["messages"]]
        assert roles == ["user", "assistant", "user"]
        await pilot.press("f5")
        await sees(pilot, "a server decides by itself")
        await pilot.press("f2", "f2", "right_curly_bracket", "ctrl+b")
        await sees(pilot, "branches")


@pytest.mark.parametrize(
    ("ask", "words", "kept"),
    [
        ("!error", "out of [/memory]", "one [/two]"),
        ("!junk", "not JSON", "one [/two]"),
        ("!odd", "cannot be read", "one [/two]"),
        ("!cut", "in the middle of the answer", "one [/two]"),
        ("!gone", "has been unloaded", ""),
        ("!full", "status 503: no room", ""),
    ],
)
async def test_failures_are_said_and_the_half_answer_stays(server, ask, words, kept):
    app = remote_app(server.url)
    async with app.run_test(size=(100, 40)) as pilot:
        await answer(pilot, ask)
        turn = app.session.conversation.path[-1]
        assert turn.finish == "fault" and turn.text == kept
        await sees(pilot, words)
        await answer(pilot, "fine?")
        assert app.session.conversation.path[-1].text == TEXT


async def test_a_server_without_logprobs_is_asked_plainly_and_it_is_said(server):
    app = remote_app(server.url)
    async with app.run_test(size=(110, 40), notifications=True) as pilot:
        await answer(pilot, "!old")
        assert app.session.conversation.path[-1].text == TEXT
        await sees(pilot, "unknown field logprobs")


async def test_stop_keeps_what_came(server):
    app = remote_app(server.url)
    async with app.run_test(size=(90, 30)) as pilot:
        await until(pilot, lambda: app.session.phase == "ready")
        await send(pilot, "!wait")
        await until(
            pilot, lambda: bool(app.session.answering and "two" in app.session.answering.text)
        )
        await pilot.press("escape")
        await until(pilot, lambda: not app.session.busy)
        turn = app.session.conversation.path[-1]
        assert (turn.finish, turn.text) == ("cancelled", "one [/two]")


@pytest.mark.parametrize("case", ["refused", "key", "model", "path"])
async def test_a_server_that_cannot_be_used_is_a_card_with_the_way_out(server, case):
    url, model = server.url, ""
    if case == "refused":
        server.close()
    elif case == "key":
        server.key = "secret"
    elif case == "model":
        model = "absent"
    else:
        url = url.removesuffix("/v1") + "/api"
    app = remote_app(url, model=model)
    async with app.run_test(size=(130, 30)) as pilot:
        await until(pilot, lambda: app.session.phase == "dead")
        words = {
            "refused": "is the server running?",
            "key": "set DSV4CHAT_API_KEY",
            "model": "has no model absent; it has served, other",
            "path": "check URL and model",
        }
        await sees(pilot, words[case], "F8")


async def test_the_key_opens_the_server(server):
    server.key = "secret"
    app = remote_app(server.url, model="other", key="secret")
    async with app.run_test(size=(90, 30)) as pilot:
        await answer(pilot, "hello")
        assert server.bodies[0]["model"] == "other"


def test_one_answer_from_a_server(server, tmp_path):
    command = [sys.executable, "-m", "dsv4chat", "--remote", server.url, "-p", "hi", "--json"]
    run = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, stdin=subprocess.DEVNULL, timeout=60
    )
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    assert run.returncode == 0, run.stderr
    assert [line["type"] for line in lines] == ["start", "token", "token", "token", "done"]
    assert "".join(line["text"] for line in lines[1:-1]) == TEXT


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://host:8000", "http://host:8000/v1"),
        ("https://host/v1/", "https://host/v1"),
        ("http://host/x/v1/chat/completions", "http://host/x/v1"),
    ],
)
def test_urls_are_completed(text, url):
    assert cli.server_url(text) == url


@pytest.mark.parametrize("text", ["host:8000", "ftp://host", "http://", "http://host:x"])
def test_other_urls_are_usage_errors(text):
    with pytest.raises(cli.UsageError, match="--remote needs a URL"):
        cli.server_url(text)
