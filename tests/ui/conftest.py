"""Fixtures: a model folder, the fake engine's command, and an app that can be driven."""

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot

from dsv4chat.app import ChatApp
from dsv4chat.core.config import Config
from dsv4chat.core.engine_client import EngineClient
from dsv4chat.core.session import ChatSession
from dsv4chat.core.settings import Settings

ENGINE = Path(__file__).with_name("fake_engine.py")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").touch()
    return folder


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the user's own config and state out of the tests."""
    for name in ("CONFIG", "STATE", "DATA", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    use_engine(monkeypatch)
    return tmp_path


def use_engine(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setenv("DSV4CHAT_ENGINE", " ".join([sys.executable, str(ENGINE), *arguments]))


@pytest.fixture
def make_app(model: Path) -> Callable[..., ChatApp]:
    def make(settings: Settings | None = None, config: Config | None = None) -> ChatApp:
        client = EngineClient(silent_after_s=1.0)
        return ChatApp(ChatSession(client, settings or Settings(), str(model)), config)

    return make


async def until(pilot: Pilot, condition: Callable[[], bool], limit_s: float = 15.0) -> None:
    """Let the app run until `condition` holds."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, f"did not happen within {limit_s} s"
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.08)  # one frame of the app
    await pilot.pause()


async def send(pilot: Pilot, text: str) -> None:
    """Write a message and press enter."""
    app = pilot.app
    assert isinstance(app, ChatApp)
    app.chat.composer.insert(text)
    await pilot.press("enter")


async def answer(pilot: Pilot, text: str) -> None:
    """Send a message and wait for the end of its answer."""
    app = pilot.app
    await until(pilot, lambda: app.session.phase == "ready")
    before = len(app.session.conversation.turns)
    await send(pilot, text)
    await until(pilot, lambda: len(app.session.conversation.turns) > before)
    await until(pilot, lambda: not app.session.busy)


def screen_text(app: ChatApp) -> str:
    """What is on screen, as lines of text."""
    width, height = app.size
    lines = app.screen._compositor.render_strips()
    return "\n".join(strip.text for strip in lines)


async def sees(pilot: Pilot, *words: str) -> str:
    """Wait until all the words are on screen; the screen. State changes before it is painted."""
    app = pilot.app
    assert isinstance(app, ChatApp)
    end = time.monotonic() + 15
    while missing := [word for word in words if word not in screen_text(app)]:
        assert time.monotonic() < end, f"{missing} not on this screen:\n{screen_text(app)}"
        await asyncio.sleep(0.01)
    return screen_text(app)


async def hides(pilot: Pilot, word: str) -> None:
    """Wait until a word is no longer on screen."""
    app = pilot.app
    assert isinstance(app, ChatApp)
    await until(pilot, lambda: word not in screen_text(app))


async def collect(client: EngineClient, wanted: type, limit_s: float = 10.0) -> list[object]:
    """Events up to and including the first of a kind."""
    found: list[object] = []

    async def run() -> None:
        async for event in client.events():
            found.append(event)
            if isinstance(event, wanted):
                return

    await asyncio.wait_for(run(), limit_s)
    return found
