"""Same-seed A/B: an answer once more under other switches, and how far apart the two are.

The rerun is a sibling branch. Up to where the texts split its records have the context of the first
answer; behind it a probe runs the first answer's tokens, so that every token can be compared.
"""

import math
from dataclasses import dataclass, replace

from dsv4chat.core.conversation import Turn
from dsv4chat.core.probing import check_known, probe_id, settings_of, start_probe
from dsv4chat.core.session import ChatSession
from dsv4chat.core.settings import Settings, next_router
from engine.telemetry import TapRecord

COMPARED = ("router", "gsa", "precision", "temperature", "top_p", "min_p")
NOTICEABLE = 0.1  # nats of one token's log probability


def other_settings(text: str, session: ChatSession, source: Turn) -> Settings:
    """The settings of B: `name=value ...`, or what the switches are now, or the next router path.

    Raises:
        ValueError: not such a setting, or A has it already. The message is fit to show.
    """
    ours = settings_of(source, session)
    if text.strip():
        theirs = ours
        for part in text.split():
            name, _, value = part.partition("=")
            name = name.replace("-", "_")
            if name not in COMPARED or not value:
                known = ", ".join(f"{known.replace('_', '-')}=" for known in COMPARED)
                raise ValueError(f"compare with what? {known}")
            try:
                theirs = theirs.with_value(name, value)
            except ValueError as error:
                raise ValueError(f"{name} {error}") from None
    else:
        now = session.settings
        theirs = replace(ours, router=now.router, gsa=now.gsa)
        if theirs == ours:
            refused = session.ready.refused if session.ready else {}
            theirs = replace(ours, router=next_router(ours.router, refused)[0])  # type: ignore[arg-type]
    refused = session.ready.refused if session.ready else {}
    if theirs.router in refused:
        raise ValueError(f"{theirs.router} cannot run here: {refused[theirs.router]}")
    if theirs == ours:
        raise ValueError("the answer was made so: name another setting, like gsa=checkpoint")
    return theirs


def differences(a: Settings, b: Settings) -> list[tuple[str, str, str]]:
    """Name, A's value, B's value of every compared setting that differs."""
    names = [name for name in COMPARED if getattr(a, name) != getattr(b, name)]
    return [(name, str(getattr(a, name)), str(getattr(b, name))) for name in names]


def start_comparison(session: ChatSession, source: Turn, theirs: Settings) -> Turn:
    """Answer once more under `theirs`, then run what is missing to compare; returns the branch.

    What was forced in `source` is forced again.

    Raises:
        ProbeError: the answer cannot be run again.
    """
    user = check_known(session, source)
    assert session.ready is not None
    branch = Turn("assistant", source.parent, settings=replace(theirs, taps=True))
    branch.model, branch.rerun_of = session.ready.model.name, source.id
    session.conversation.add(branch)
    session.records.open(branch.id, session.ready.layout)
    session.then = lambda: _probe_rest(session, source, branch)
    forced = source.token_ids[: source.kept + 1] if source.forced else []
    session.request(branch, session.conversation.messages(user), forced)
    return branch


def _probe_rest(session: ChatSession, source: Turn, branch: Turn) -> None:
    """What the branch cannot say of A's tokens; and A's own records, where taps were off."""
    comparison = Comparison(session, source, branch)
    ours, theirs = comparison.settings

    def probe_source() -> None:
        missing = any(comparison.record_a(n) is None for n in range(len(source.token_ids)))
        if missing and ours.precision == session.settings.precision:
            start_probe(session, source, ours, kept=0, then=lambda: None)

    if comparison.split is not None and comparison.split + 1 < len(source.token_ids):
        start_probe(session, source, theirs, kept=comparison.split, then=probe_source)
    else:
        probe_source()


@dataclass(frozen=True, slots=True)
class Distance:
    """How far B's logits are from A's on one token, over the ids that both recorded.

    kl: of A from B in nats, all other ids taken as one: a lower bound of the true one.
    largest: the largest difference of one id's log probability, nats.
    """

    kl: float
    largest: float
    same_best: bool


def distance(a: TapRecord, b: TapRecord) -> Distance:
    log_a, log_b = _log_probabilities(a), _log_probabilities(b)
    shared = log_a.keys() & log_b.keys()
    kl = sum(math.exp(log_a[i]) * (log_a[i] - log_b[i]) for i in shared)
    rest_a, rest_b = (
        max(1e-9, 1 - sum(math.exp(logs[i]) for i in shared)) for logs in (log_a, log_b)
    )
    kl += rest_a * math.log(rest_a / rest_b)
    largest = max((abs(log_a[i] - log_b[i]) for i in shared), default=math.inf)
    finite = math.isfinite(kl) and math.isfinite(largest)
    best = next(iter(log_a), None) == next(iter(log_b), None)
    return Distance(max(kl, 0.0), largest, best) if finite else Distance(math.inf, math.inf, best)


def _log_probabilities(record: TapRecord) -> dict[int, float]:
    """The recorded ids with their raw log probabilities, best first."""
    log_z = record.scalar("logsumexp")
    pairs = zip(record["top_ids"], record["top_logits"], strict=True)
    return {int(i): logit - log_z for i, logit in pairs if i >= 0}


class Comparison:
    """An answer and its rerun. Reads the records that are there; more may come."""

    def __init__(self, session: ChatSession, source: Turn, branch: Turn) -> None:
        self.session = session
        self.source = source
        self.branch = branch
        self.settings = settings_of(source, session), settings_of(branch, session)
        self._distances: dict[int, Distance] = {}

    @property
    def split(self) -> int | None:
        """The first token that is not the same in both; None while there is none."""
        a, b = self.source.token_ids, self.branch.token_ids
        for index, (ours, theirs) in enumerate(zip(a, b, strict=False)):
            if ours != theirs:
                return index
        return min(len(a), len(b)) if self.branch.done and len(a) != len(b) else None

    def record_a(self, index: int) -> TapRecord | None:
        records = self.session.records
        own = records.get(self.source.id)
        record = own.record(index) if own else None
        if record is None:
            probe = records.get(probe_id(self.source, self.settings[0]))
            record = probe.record(index) if probe else None
        return record

    def record_b(self, index: int) -> TapRecord | None:
        """B's record of A's token: the branch's up to the split, the probe's behind it."""
        records, split = self.session.records, self.split
        found = records.get(self.branch.id)
        if split is not None and index > split:
            found = records.get(probe_id(self.source, self.settings[1]))
        return found.record(index) if found else None

    def pieces(self, index: int) -> dict[int, str]:
        """The text of ids that either of them considered at `index`."""
        known: dict[int, str] = {}
        ours, theirs = (probe_id(self.source, settings) for settings in self.settings)
        for turn_id in (self.source.id, self.branch.id, ours, theirs):
            records = self.session.records.get(turn_id)
            token = records.tokens.get(index) if records else None
            if token is not None:
                known |= {i: piece for (i, _), piece in zip(token.top, token.pieces, strict=False)}
        return known

    def distance(self, index: int) -> Distance | None:
        if index not in self._distances:
            a, b = self.record_a(index), self.record_b(index)
            if a is None or b is None:
                return None
            self._distances[index] = distance(a, b)
        return self._distances[index]

    def distances(self) -> list[Distance | None]:
        """One entry for each token of A."""
        return [self.distance(index) for index in range(len(self.source.token_ids))]


def last_comparison(session: ChatSession) -> Comparison | None:
    """The rerun on screen and what it repeats."""
    branch = session.conversation.last("assistant")
    source = session.conversation.turns.get(branch.rerun_of) if branch else None
    return Comparison(session, source, branch) if branch and source else None
