"""Runs an answer's own tokens once more under other switches: same context, other numbers.

A probe is an answer that is not in the conversation. Its tokens are forced, so that its records
stand beside those of the answer, token by token. They are kept under an id of their own.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from dsv4chat.core.conversation import Turn
from dsv4chat.core.records import TurnRecords
from dsv4chat.core.session import ChatSession
from dsv4chat.core.settings import ROUTERS, Settings
from engine.telemetry import TapRecord


class ProbeError(ValueError):
    """An answer that cannot be run again. One line for people."""


def probe_id(turn: Turn, settings: Settings) -> str:
    """Where the records of `turn`'s tokens under `settings` are kept."""
    return f"{turn.id}@{settings.router}+{settings.gsa}+{settings.precision}"


def settings_of(turn: Turn, session: ChatSession) -> Settings:
    """What the answer was made with, its seed filled in."""
    settings = turn.settings or session.settings
    return replace(settings, seed=turn.finished.seed if turn.finished else settings.seed)


def check_known(session: ChatSession, turn: Turn) -> Turn:
    """The user turn that `turn` answers.

    Raises:
        ProbeError: nothing was said yet, or the ids are another model's.
    """
    user = session.conversation.turns.get(turn.parent or "")
    if not turn.token_ids or user is None:
        raise ProbeError("there is no answer to run again")
    if session.ready is None:
        raise ProbeError("no model runs")
    if turn.model and turn.model != session.ready.model.name:
        raise ProbeError(f"this answer is by {turn.model}, which does not run now")
    return user


def start_probe(
    session: ChatSession, turn: Turn, settings: Settings, *, kept: int, then: Callable[[], None]
) -> None:
    """Run `turn`'s tokens from `kept` on under `settings`; `then` follows unless it is stopped.

    Raises:
        ProbeError: it cannot be run.
    """
    user = check_known(session, turn)
    assert session.ready is not None
    if settings.precision != session.settings.precision:
        raise ProbeError(
            f"this answer is of precision {settings.precision}, "
            f"and the engine has loaded {session.settings.precision}"
        )
    settings = replace(settings, taps=True, max_tokens=len(turn.token_ids))
    probe = Turn("assistant", turn.parent, id=probe_id(turn, settings), settings=settings)
    session.records.open(probe.id, session.ready.layout)
    session.then = then
    session.request(probe, session.conversation.messages(user), turn.token_ids, kept)


# ---- the three router paths ----------------------------------------------------------------------


def paths_wanted(session: ChatSession, turn: Turn) -> list[str]:
    """Router paths that run here and have not made all of `turn`'s tokens yet."""
    refused = session.ready.refused if session.ready else {}
    return [
        router
        for router in ROUTERS
        if router not in refused
        and any(path_record(session, turn, router, n) is None for n in range(len(turn.token_ids)))
    ]


def path_record(session: ChatSession, turn: Turn, router: str, index: int) -> TapRecord | None:
    """The record of a token by one router path: the answer's own, or the probe's."""
    if index < len(turn.routers) and turn.routers[index] == router:
        own = _record(session.records.get(turn.id), index)
        if own is not None:
            return own
    settings = replace(settings_of(turn, session), router=router)  # type: ignore[arg-type]
    return _record(session.records.get(probe_id(turn, settings)), index)


def start_paths(session: ChatSession, turn: Turn) -> int:
    """Probe every path that is missing, one after the other; returns how many there are.

    Raises:
        ProbeError: the answer cannot be run again.
    """
    check_known(session, turn)
    wanted = paths_wanted(session, turn)

    def step() -> None:
        if wanted:
            settings = replace(settings_of(turn, session), router=wanted.pop(0))  # type: ignore[arg-type]
            start_probe(session, turn, settings, kept=0, then=step)

    missing = len(wanted)
    step()
    return missing


def _record(records: TurnRecords | None, index: int) -> TapRecord | None:
    return records.record(index) if records else None


# ---- agreement -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Agreement:
    """Two paths' routing of one token. `sets`, `orders`: per layer, whether they are the same."""

    sets: tuple[bool, ...]
    orders: tuple[bool, ...]
    weight: float  # largest difference of one expert's weight, where both chose it
    swapped: tuple[int, list[int], list[int]] | None  # first layer with another set: only a, only b

    @property
    def first(self) -> int | None:
        """The first layer whose set differs."""
        return self.swapped[0] if self.swapped else None


def agreement(a: TapRecord, b: TapRecord) -> Agreement:
    """Compare the experts of every layer: set, order, weights."""
    sets, orders, weight = [], [], 0.0
    swapped = None
    for layer in range(a.layout.layers):
        ids_a, ids_b = list(a.row("expert_ids", layer)), list(b.row("expert_ids", layer))
        by_a = dict(zip(ids_a, a.row("expert_weights", layer), strict=True))
        by_b = dict(zip(ids_b, b.row("expert_weights", layer), strict=True))
        same = by_a.keys() == by_b.keys()
        sets.append(same)
        orders.append(ids_a == ids_b)
        shared = by_a.keys() & by_b.keys()
        weight = max([weight, *(abs(by_a[i] - by_b[i]) for i in shared)])
        if not same and swapped is None:
            only_a = [int(i) for i in ids_a if i not in by_b]
            swapped = layer, only_a, [int(i) for i in ids_b if i not in by_a]
    return Agreement(tuple(sets), tuple(orders), weight, swapped)
