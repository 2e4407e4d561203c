"""Same-seed A/B: the rerun is a branch, distances cover every token, splits and swaps are found."""

import array
import math

import pytest

from dsv4chat.core.comparing import Comparison, distance, last_comparison, other_settings
from dsv4chat.core.conversation import Turn
from dsv4chat.core.probing import agreement, path_record, paths_wanted
from dsv4chat.core.settings import Settings
from dsv4chat.screens.compare import CompareScreen
from engine.telemetry import TapLayout, TapRecord
from tests.ui.conftest import answer, hides, sees, send, until, use_engine

LAYOUT = TapLayout(layers=2, top_k=2, streams=1, blocks=(1,) * 8, top_n=3)


def record(logits: dict[int, float], experts=(1, 2, 3, 4), weights=(0.6, 0.4, 0.6, 0.4)):
    """A record over a vocabulary of these logits and one other id."""
    values = {field.name: [0] * field.size for field in LAYOUT.fields()}
    logits = dict(sorted(logits.items(), key=lambda pair: -pair[1]))
    values["top_ids"] = list(logits)
    values["top_logits"] = list(logits.values())
    values["logsumexp"] = [math.log(sum(map(math.exp, logits.values())) + math.exp(0.0))]
    values["expert_ids"], values["expert_weights"] = list(experts), list(weights)
    fields = [array.array(f.kind, values[f.name]).tobytes() for f in LAYOUT.fields()]
    return TapRecord(LAYOUT, b"".join(fields))


def test_distance_is_the_kl_divergence_of_a_from_b():
    a, b = record({7: 2.0, 8: 1.0, 9: 0.5}), record({7: 1.0, 8: 2.0, 9: 0.5})
    p, q = ([math.exp(x) for x in logits] for logits in ((2, 1, 0.5, 0), (1, 2, 0.5, 0)))
    exact = sum(x / sum(p) * math.log(x / sum(p) / (y / sum(q))) for x, y in zip(p, q, strict=True))
    found = distance(a, b)
    assert found.kl == pytest.approx(exact, rel=1e-5) and not found.same_best
    assert found.largest == pytest.approx(1.0, rel=1e-5)
    same = distance(a, a)
    assert (same.kl, same.largest, same.same_best) == (0.0, 0.0, True)
    assert distance(a, record({7: math.nan, 8: 1.0, 9: 0.5})).kl == math.inf


def test_agreement_tells_set_order_and_weight_apart():
    a = record({7: 1.0, 8: 0.5, 9: 0.0})
    order = agreement(a, record({7: 1.0, 8: 0.5, 9: 0.0}, (2, 1, 3, 4), (0.5, 0.5, 0.6, 0.4)))
    assert (order.sets, order.orders, order.first) == ((True, True), (False, True), None)
    assert order.weight == pytest.approx(0.1)
    other = agreement(a, record({7: 1.0, 8: 0.5, 9: 0.0}, (1, 2, 3, 9)))
    assert (other.sets, other.first) == ((True, False), 1)
    assert other.swapped == (1, [4], [9]) and other.weight == 0.0


def test_what_to_compare_with_is_read_from_words(make_app):
    session = make_app(Settings(seed=3)).session
    source = Turn("assistant", None, settings=Settings(seed=3))
    assert other_settings("router=bf16", session, source) == Settings(seed=3, router="bf16")
    assert other_settings("gsa=checkpoint top-p=0.5", session, source).top_p == 0.5
    assert other_settings("", session, source).router == "two-kernel"  # the next path
    session.settings = Settings(gsa="checkpoint", temperature=0.1)
    assert other_settings("", session, source) == Settings(seed=3, gsa="checkpoint")  # the switches
    for text, words in (
        ("router", "router=, gsa="),
        ("seed=4", "compare with what"),
        ("router=turbo", "router must be one of"),
        ("router=fused", "the answer was made so"),
    ):
        with pytest.raises(ValueError, match=words):
            other_settings(text, session, source)


async def test_a_comparison_branches_finds_the_split_and_covers_all_tokens(make_app):
    app = make_app(Settings(temperature=0.7))
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await answer(pilot, "!split 9 please")
        source = app.session.conversation.path[-1]
        await send(pilot, "/compare gsa=checkpoint")
        await until(pilot, lambda: isinstance(app.screen, CompareScreen))
        await until(pilot, lambda: not app.session.busy)
        comparison = last_comparison(app.session)
        branch = comparison.branch
        assert branch.rerun_of == source.id and branch.parent == source.parent
        assert branch.settings.seed == source.finished.seed
        assert (branch.settings.gsa, branch.settings.temperature) == ("checkpoint", 0.7)
        assert comparison.split == 9
        distances = comparison.distances()
        assert len(distances) == len(source.token_ids) and None not in distances
        assert distances[0].kl == pytest.approx(0, abs=1e-6)  # the fake moves p by 0.01 * (n % 8)
        assert distances[7].kl > distances[1].kl > 1e-5
        await sees(pilot, "A gsa runtime", "B gsa checkpoint", "texts split at token 9", "KL max")
        await sees(pilot, "same experts in 8 of 8 layers", "B below")
        await pilot.press("m")
        worst = max(range(len(distances)), key=lambda n: distances[n].kl)
        await sees(pilot, f"token {worst}")
        await pilot.press("s", "right_square_bracket")
        await until(pilot, lambda: app.screen.token == 10)
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.chat)
        await pilot.press("f12")
        await until(pilot, lambda: isinstance(app.screen, CompareScreen))


async def test_a_comparison_comes_back_with_a_dump(make_app, tmp_path, monkeypatch):
    from dsv4chat.core.bundle import read_bundle
    from dsv4chat.core.replay import replay_session

    monkeypatch.chdir(tmp_path)
    app = make_app()
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await answer(pilot, "!split 3")
        await send(pilot, "/compare gsa=checkpoint")
        await until(pilot, lambda: isinstance(app.screen, CompareScreen))
        await until(pilot, lambda: not app.session.busy)
        before = last_comparison(app.session).distances()
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.chat)
        await send(pilot, "/dump ab.zip")
        await sees(pilot, "written:")
    session = replay_session(read_bundle(tmp_path / "ab.zip"), "ab.zip")
    comparison = last_comparison(session)
    assert isinstance(comparison, Comparison) and comparison.distances() == before


@pytest.mark.parametrize("size", [(40, 12), (80, 24), (200, 60)])
async def test_the_screen_fits_and_esc_stops_the_rerun_first(make_app, size):
    app = make_app()
    async with app.run_test(size=size, notifications=True) as pilot:
        await answer(pilot, "!hold")
        await pilot.press("f12")
        await until(pilot, lambda: isinstance(app.screen, CompareScreen))
        await sees(pilot, "A router fused", "B router two-kernel")
        await pilot.press("escape")
        await until(pilot, lambda: not app.session.busy)
        assert app.session.conversation.path[-1].finish == "cancelled" and not app.session.then
        assert isinstance(app.screen, CompareScreen)
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.chat)


async def test_router_paths_run_on_the_same_tokens(make_app):
    app = make_app()
    async with app.run_test(size=(200, 60), notifications=True) as pilot:
        await answer(pilot, "!say alpha beta gamma")
        turn = app.session.conversation.path[-1]
        await pilot.press("escape", "p")
        await until(pilot, lambda: not paths_wanted(app.session, turn))
        await until(pilot, lambda: not app.session.busy)
        assert len(app.session.conversation.turns) == 2  # no branch
        await sees(pilot, "two-kernel set 8/8  order 8/8", "bf16       set 7/8  order 6/8", " L5 ")
        records = [path_record(app.session, turn, name, 1) for name in ("fused", "bf16")]
        found = agreement(*records)
        assert found.first == 5 and [n for n, same in enumerate(found.orders) if not same] == [5, 6]
        await hides(pilot, "running the same tokens again")
        await pilot.press("p")
        await sees(pilot, "Every path has made these tokens")


async def test_a_refused_path_is_left_out_with_its_reason(make_app, monkeypatch):
    use_engine(monkeypatch, "--refuse", "bf16=needs.a.GPU")
    app = make_app()
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await answer(pilot, "!say alpha")
        await send(pilot, "/paths")
        await sees(pilot, "left out bf16: needs.a.GPU")
        await until(pilot, lambda: not app.session.busy)
        await send(pilot, "/compare router=bf16")
        await sees(pilot, "bf16 cannot run here")


async def test_precision_loads_the_model_again(make_app):
    app = make_app()
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await answer(pilot, "!say alpha beta")
        pid = app.session.backend.pid
        await send(pilot, "/compare precision=checkpoint")
        await until(pilot, lambda: isinstance(app.screen, CompareScreen))
        await until(pilot, lambda: not app.session.busy)
        assert app.session.backend.pid != pid and app.session.ready.model.precision == "checkpoint"
        await sees(pilot, "A precision nvfp4", "B precision checkpoint", "texts are the same")
