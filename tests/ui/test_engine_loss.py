"""An engine that dies, hangs or never comes up is an event.

Text stays, a card says why, F8 restarts.
"""

import os
import signal
import subprocess
import sys

import pytest

from dsv4chat.core.backend import EngineBack, EngineLost, EngineStuck
from dsv4chat.core.engine_client import EngineClient
from engine.protocol import Finished, Generate, Load, Ready, Tokens
from tests.ui.conftest import (
    ENGINE,
    answer,
    collect,
    hides,
    sees,
    send,
    until,
    use_engine,
)
from tests.ui.fake_engine import ANSWER


@pytest.mark.parametrize(
    ("message", "words"),
    [("!kill", "SIGKILL"), ("!exit 3", "exit status 3")],
)
async def test_crash_card_keeps_text_and_restart_goes_on(make_app, message, words):
    app = make_app()
    async with app.run_test(size=(100, 40), notifications=True) as pilot:
        await until(pilot, lambda: app.session.phase == "ready")
        await send(pilot, message)
        await until(pilot, lambda: app.session.phase == "dead")
        partial = app.session.conversation.path[-1]
        assert partial.finish == "fault" and partial.text and ANSWER.startswith(partial.text)
        await sees(pilot, words, "conversation is kept", "F8")
        await pilot.press("f8")
        await until(pilot, lambda: app.session.phase == "ready")
        await hides(pilot, "conversation is kept")
        await answer(pilot, "still there?")
        assert app.session.conversation.path[-1].text == ANSWER
        assert partial in app.session.conversation.path


async def test_crash_card_shows_the_engines_last_words(make_app):
    app = make_app()
    async with app.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: app.session.phase == "ready")
        await send(pilot, "!exit 1")
        await until(pilot, lambda: app.session.phase == "dead")
        await sees(pilot, "RuntimeError: out of [/memory]")


async def test_message_to_a_dead_engine_stays_in_the_composer(make_app):
    app = make_app()
    async with app.run_test(size=(100, 40), notifications=True) as pilot:
        await until(pilot, lambda: app.session.phase == "ready")
        os.kill(app.session.backend.pid, signal.SIGKILL)
        await until(pilot, lambda: app.session.phase == "dead")
        await send(pilot, "anyone?")
        await until(
            pilot,
            lambda: app.chat.composer.text == "anyone?" and not app.session.conversation.turns,
        )


async def test_load_fault_is_shown_in_the_engines_words(make_app, monkeypatch):
    use_engine(monkeypatch, "--load-fault", "'layers.3.w1.weight_scale: [/missing]'")
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: app.session.phase == "dead")
        await sees(pilot, "layers.3.w1.weight_scale: [/missing]")


async def test_hung_engine_is_noticed(make_app):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: app.session.phase == "ready")
        await send(pilot, "!hang")
        await until(pilot, lambda: app.session.stuck is not None)
        await sees(pilot, "no sign of life")
        await pilot.press("f8")
        await until(pilot, lambda: app.session.phase == "ready")
        assert app.session.conversation.path[-1].finish == "fault"


async def test_stopped_process_is_stuck_and_comes_back(model):
    client = EngineClient(silent_after_s=0.6)
    await client.start(Load(str(model)))
    await collect(client, Ready)
    os.kill(client.pid, signal.SIGSTOP)
    stuck = (await collect(client, EngineStuck))[-1]
    assert stuck.silent
    os.kill(client.pid, signal.SIGCONT)
    await collect(client, EngineBack)
    await client.close()


async def test_missing_program_is_an_error_in_words(make_app, monkeypatch):
    monkeypatch.setenv("DSV4CHAT_ENGINE", "/no/such/program")
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: app.session.phase == "dead")
        await sees(pilot, "could not be started")


async def test_other_protocol_version_is_refused_in_words(model, monkeypatch):
    use_engine(monkeypatch, "--version", "99")
    client = EngineClient()
    await client.start(Load(str(model)))
    lost = (await collect(client, EngineLost))[-1]
    assert "protocol 99" in lost.reason
    await client.close()


async def test_text_is_never_dropped_when_nobody_reads(model, monkeypatch):
    monkeypatch.setattr("dsv4chat.core.engine_client.MAX_QUEUED_EVENTS", 5)
    client = EngineClient()
    await client.start(Load(str(model)))
    await collect(client, Ready)
    from engine.protocol import ChatMessage

    client.send(Generate(1, [ChatMessage("user", "hello")]))
    events = await collect(client, Finished)
    text = "".join(d.text for e in events if isinstance(e, Tokens) for d in e.deltas)
    assert text == ANSWER
    await client.close()


def test_killed_app_takes_the_engine_with_it(model, tmp_path):
    """kill -9 of the app closes its end of the socket; the engine must see that and go."""
    marker = tmp_path / "pid"
    script = (
        "import asyncio, sys\n"
        "from dsv4chat.core.engine_client import EngineClient\n"
        "from engine.protocol import Load\n"
        "async def main():\n"
        "    client = EngineClient()\n"
        f"    await client.start(Load({str(model)!r}))\n"
        "    print(client.pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    root = str(ENGINE.parents[2])
    app = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=root,
        env={**os.environ, "PYTHONPATH": root},
    )  # fmt: skip
    assert app.stdout is not None
    pid = int(app.stdout.readline())
    app.kill()
    app.wait()
    app.stdout.close()
    assert marker.parent.exists()
    for _ in range(200):
        if not _alive(pid):
            return
        subprocess.run(["sleep", "0.05"], check=True)
    pytest.fail("the engine outlived the app")


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().split(")")[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
