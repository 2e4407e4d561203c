"""Takes another token at one place of an answer: a sibling branch that keeps what stands before it.

What was kept is copied, text and records; the engine reads it like a prompt and goes on after the
forced token with the seed and the sampler of the answer that was branched.
"""

import math
from dataclasses import dataclass, replace

from dsv4chat.core.conversation import Forced, OptionMark, Turn
from dsv4chat.core.records import TurnRecords
from dsv4chat.core.session import ChatSession
from dsv4chat.core.text import quoted
from engine.protocol import Channel

LISTS = ("token_ids", "pieces", "logprobs", "routers", "gsa_modes", "channels", "ends")


class ForceError(ValueError):
    """Not a token that can be taken there. One line for people."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """A token the model could have taken. `logprob`: natural log, raw; None where not recorded."""

    id: int
    piece: str
    logprob: float | None
    rank: int = 0  # from 1; 0: not among the recorded ones
    taken: bool = False

    @property
    def probability(self) -> float:
        """0 where it was not recorded."""
        return math.exp(self.logprob) if self.logprob is not None else 0.0


def alternatives(turn: Turn, records: TurnRecords | None, index: int) -> list[Alternative]:
    """The best tokens at `index`, best first; none where taps were off."""
    token = records.tokens.get(index) if records else None
    if token is None:
        return []
    return [
        Alternative(token_id, piece, logprob, rank, token_id == turn.token_ids[index])
        for rank, ((token_id, logprob), piece) in enumerate(
            zip(token.top, token.pieces, strict=False), start=1
        )
    ]


def find_alternative(text: str, choices: list[Alternative], vocab_size: int) -> Alternative:
    """What `/force` was told: a rank, `id N`, or the text of one of the choices.

    Raises:
        ForceError: no such choice.
    """
    word, _, rest = text.strip().partition(" ")
    if word.lower() == "id" and rest.strip().isdigit():
        token_id = int(rest)
        if token_id >= vocab_size:
            raise ForceError(f"id {token_id}: the vocabulary ends at {vocab_size - 1}")
        known = next((choice for choice in choices if choice.id == token_id), None)
        return known or Alternative(token_id, f"id {token_id}", None)
    if not choices:
        raise ForceError("no alternatives were recorded here (taps were off): /force id N works")
    exact = [choice for choice in choices if choice.piece == text]
    loose = [choice for choice in choices if choice.piece.strip() == text.strip()]
    if found := exact or loose:
        return found[0]
    if text.strip().isdigit() and 1 <= int(text) <= len(choices):
        return choices[int(text) - 1]
    raise ForceError(
        f"{quoted(text)} is not among the {len(choices)} recorded tokens: "
        f"give a rank from 1 to {len(choices)}, the text of one of them, or id N"
    )


def keep_tokens(source: Turn, count: int) -> Turn:
    """A new sibling of `source` with its first `count` tokens and the text that was certain then.

    Raises:
        ValueError: `source` has fewer tokens.
    """
    if not 0 <= count <= len(source.token_ids):
        raise ValueError(f"{count} of {len(source.token_ids)} tokens cannot be kept")
    turn = Turn("assistant", source.parent, settings=source.settings, model=source.model)
    for name in LISTS:
        setattr(turn, name, getattr(source, name)[:count])
    lengths: dict[Channel | str, int] = {}
    for channel, end in zip(turn.channels, turn.ends, strict=True):
        lengths[channel] = end
    turn.reasoning = source.reasoning[: lengths.get("thinking", 0)]
    turn.text = source.text[: lengths.get("answer", 0)]
    turn.tool_text = source.tool_text[: lengths.get("tool", 0)]
    turn.marks = [mark for mark in source.marks if mark.index < count]
    turn.forced = [forced for forced in source.forced if forced.index < count]
    turn.thinking_s = source.thinking_s if turn.text else 0.0
    return turn


def force_token(session: ChatSession, source: Turn, index: int, choice: Alternative) -> Turn:
    """Branch `source` at token `index` and let the engine go on from there; returns the branch.

    The step's switches are those of now; sampler, effort and seed those of `source`.

    Raises:
        ForceError: the ids are another model's, or the token stands there already.
    """
    ready, user = session.ready, session.conversation.turns.get(source.parent or "")
    if ready is None or user is None or (source.model and source.model != ready.model.name):
        raise ForceError(f"this answer is by {source.model or 'no model'}, which does not run now")
    if choice.id == source.token_ids[index]:
        raise ForceError(f"{quoted(choice.piece)} stands there already")
    turn = keep_tokens(source, index)
    turn.forced.append(Forced(index, source.pieces[index], source.id))
    seed = source.finished.seed if source.finished else None
    turn.settings = replace(source.settings or session.settings, seed=seed)
    if turn.options != session.settings.options:
        turn.marks.append(OptionMark(index, session.settings.options))
    session.conversation.add(turn)
    session.records.open(turn.id, ready.layout)
    session.records.take_over(source.id, turn.id, index)
    session.request(
        turn, session.conversation.messages(user), [*source.token_ids[:index], choice.id], index
    )
    return turn
