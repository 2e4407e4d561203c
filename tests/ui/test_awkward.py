"""Terminals and moments that are not the usual ones: nothing is lost, and it says what to do."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from tests.ui.conftest import sees, send, until, use_engine
from tests.ui.fake_engine import ANSWER

ROOT = Path(__file__).parents[2]


async def test_resizes_during_a_stream_lose_nothing(make_app):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: app.session.phase == "ready")
        await send(pilot, "!pace 0.01")
        for size in ((40, 10), (200, 60), (60, 15), (120, 40)):
            tokens = app.session.timing.tokens
            await until(
                pilot,
                lambda tokens=tokens: not app.session.busy or app.session.timing.tokens > tokens,
            )
            await pilot.resize_terminal(*size)
        await until(pilot, lambda: bool(app.session.conversation.last("assistant")))
        await until(pilot, lambda: not app.session.busy)
        assert app.session.conversation.path[-1].text == ANSWER
        await sees(pilot, "flushes small blocks to zero")


async def test_ctrl_c_while_loading_gives_the_message_back(make_app, monkeypatch):
    use_engine(monkeypatch, "--load-s", "5")
    app = make_app()
    async with app.run_test(size=(90, 24), notifications=True) as pilot:
        await until(pilot, lambda: app.session.phase == "loading")
        await send(pilot, "too early")
        await pilot.press("ctrl+c")
        await until(pilot, lambda: app.chat.composer.text == "too early")
        assert not app.session.busy and not app.session.conversation.turns


async def test_ctrl_c_in_prefill_stops_it(make_app):
    app = make_app()
    async with app.run_test(size=(90, 24)) as pilot:
        await until(pilot, lambda: app.session.phase == "ready")
        await send(pilot, "!prefill")
        await until(pilot, lambda: app.session.prefill is not None)
        await pilot.press("ctrl+c")
        await until(pilot, lambda: not app.session.busy)
        assert app.session.conversation.path[-1].finish == "cancelled"


@pytest.mark.parametrize("extra", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["NO_COLOR", "dumb"])
def test_the_chat_runs_without_colour_and_on_a_dumb_terminal(model, extra):
    """In a real terminal: it starts, shows the model, and ends with its key."""
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", **extra}
    near, far = pty.openpty()
    fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    child = subprocess.Popen(
        [sys.executable, "-m", "dsv4chat", "--model", str(model)],
        stdin=far, stdout=far, stderr=far, env=environment, cwd=ROOT, start_new_session=True,
    )  # fmt: skip
    os.close(far)
    try:
        shown = read_until(near, b"ready")
        os.write(near, b"\x11")  # ctrl+q
        read_until(near, b"\x1b[?1049l")
        assert child.wait(30) == 0
    finally:
        child.kill()
        child.wait()
        os.close(near)
    if "NO_COLOR" in extra:
        for red, green, blue in re.findall(rb"[34]8;2;(\d+);(\d+);(\d+)", shown):
            assert red == green == blue  # shades of grey only


def read_until(terminal: int, wanted: bytes, limit_s: float = 60.0) -> bytes:
    """What the terminal shows, up to and including `wanted`."""
    shown, end = b"", time.monotonic() + limit_s
    while wanted not in shown:
        assert time.monotonic() < end, shown[-2000:]
        if select.select([terminal], [], [], 0.2)[0]:
            shown += os.read(terminal, 65536)
    return shown
