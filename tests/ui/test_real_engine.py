"""The instrument on the real engine and the demo model: branch, compare, and read the panels."""

from pathlib import Path

import pytest

from dsv4chat.app import ChatApp
from dsv4chat.core.branching import alternatives
from dsv4chat.core.comparing import last_comparison
from dsv4chat.core.engine_client import EngineClient
from dsv4chat.core.probing import agreement, path_record, paths_wanted
from dsv4chat.core.session import ChatSession
from dsv4chat.core.settings import Settings
from tests.ui.conftest import answer, sees, send, until

DEMO = Path(__file__).parents[2] / "assets" / "demo"
LONG_S = 120.0


@pytest.fixture
def demo_app(monkeypatch: pytest.MonkeyPatch) -> ChatApp:
    monkeypatch.delenv("DSV4CHAT_ENGINE")
    settings = Settings(device="cpu", temperature=0.0, seed=1, max_tokens=24)
    return ChatApp(ChatSession(EngineClient(), settings, str(DEMO)))


async def test_force_compare_and_paths_on_the_demo_model(demo_app):
    app = demo_app
    async with app.run_test(size=(200, 60), notifications=True) as pilot:
        session = app.session
        await until(pilot, lambda: session.phase == "ready", LONG_S)
        await answer(pilot, "What is 12 plus 30?")
        first = session.conversation.path[-1]

        await send(pilot, "/paths")
        await until(pilot, lambda: not paths_wanted(session, first) and not session.busy, LONG_S)
        here = [path_record(session, first, name, 2) for name in ("fused", "two-kernel", "bf16")]
        assert all(agreement(here[0], here[1]).orders)  # the same NVFP4 gate, in one kernel or two
        wide = agreement(here[0], here[2])  # a gate that is not quantised
        assert 0 < wide.weight and sum(wide.sets) >= len(wide.sets) // 2
        await sees(pilot, "two-kernel set ")

        await send(pilot, "/compare gsa=checkpoint")
        await until(pilot, lambda: len(session.conversation.turns) == 3, LONG_S)
        await until(pilot, lambda: not session.busy, LONG_S)
        comparison = last_comparison(session)
        assert comparison.split is not None and comparison.branch.text != first.text
        apart = comparison.distances()
        assert None not in apart and max(d.kl for d in apart) > 0.5
        clipped = [sum(comparison.record_b(n)["saturated"]) for n in range(len(apart))]
        assert min(clipped) > 0 and not sum(comparison.record_a(0)["saturated"])

        session.conversation.select(first.id)
        choice = alternatives(first, session.records.get(first.id), 1)[1]
        app.pop_screen()
        app.set_cursor(1)
        await send(pilot, f"/force id {choice.id}")
        await until(pilot, lambda: len(session.conversation.turns) == 4, LONG_S)
        await until(pilot, lambda: not session.busy, LONG_S)
        branch = session.conversation.path[-1]
        assert branch.token_ids[:2] == [first.token_ids[0], choice.id]
        assert session.records.get(branch.id).tokens[1].forced
        assert branch.finished.reused_tokens >= branch.finished.prompt_tokens - 1
