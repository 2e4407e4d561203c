"""What the transcript says beside an answer: switches changed, tokens forced, numbers gone bad."""

from dataclasses import dataclass

from dsv4chat.core.conversation import Turn
from dsv4chat.core.text import quoted


@dataclass(frozen=True, slots=True)
class Note:
    """A line that stands at token `index`."""

    index: int
    text: str


def turn_notes(turn: Turn) -> list[Note]:
    """All notes of a turn, in the order of its tokens."""
    notes = _marks(turn)
    for forced in turn.forced:
        if forced.index < len(turn.pieces):
            taken = quoted(turn.pieces[forced.index])
            text = f"token {forced.index} forced: {taken} instead of {quoted(forced.instead)}"
            notes.append(Note(forced.index, text))
    if turn.bad_token is not None:
        index, layer = turn.bad_token
        notes.append(Note(index, f"token {index} is not finite from layer {layer} on"))
    return sorted(notes, key=lambda note: note.index)


def _marks(turn: Turn) -> list[Note]:
    before = turn.settings.options if turn.settings else None
    notes = []
    for mark in turn.marks:
        now, parts = mark.options, []
        before = before or now
        if now.router != before.router:
            parts.append(f"router {before.router} → {now.router}")
        if now.gsa != before.gsa:
            parts.append(f"gsa {before.gsa} → {now.gsa}")
        if now.taps != before.taps:
            parts.append(f"taps {'on' if now.taps else 'off'}")
        text = f"{', '.join(parts) or 'same options'} from token {mark.index} on"
        notes.append(Note(mark.index, text))
        before = now
    return notes
