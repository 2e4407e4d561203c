"""Ways to mend a conversation that the engine refuses.

Each is another branch; the old one stays.
"""

import uuid
from dataclasses import dataclass, replace

from dsv4chat.core.conversation import Conversation, Turn
from dsv4chat.core.stored import STEPPED, snapshot
from engine.protocol import Finished, ToolCall

NO_RESULT = "[cancelled by user]"


@dataclass(frozen=True, slots=True)
class Refusal:
    """The turn at fault and what is wrong with it, in the engine's words."""

    turn_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Mend:
    """What it does, and the turns of the branch that it leads to."""

    title: str
    path: list[Turn]


def take_refusal(conversation: Conversation, answer: Turn, event: Finished) -> Refusal | None:
    """If the conversation was refused: why, and where. The answer that never began is removed."""
    if event.at is None or answer.id not in conversation.turns or answer.token_ids:
        return None
    asked = conversation.turns[answer.parent] if answer.parent else None
    at = event.at - bool(conversation.system)
    spoken = conversation.spoken(asked)
    if asked is None or not 0 <= at < len(spoken) or conversation.children(answer.id):
        return None
    conversation.take_back(answer)
    return Refusal(spoken[at].id, event.message)


def mends(path: list[Turn], turn: Turn) -> list[Mend]:
    """What can be done about `turn`, which the engine has refused."""
    found = [Mend(f"remove this {_noun(turn)}", [other for other in path if other is not turn])]
    if turn.role in ("system", "tool"):
        mine = replace(snapshot(turn), role="user", tool_call_id="")
        found.append(Mend("make it a message of yours", _with(path, turn, mine)))
    if turn.tool_calls:
        found.append(Mend("leave out its calls", _with(path, turn, _without_calls(turn, []))))
    caller, missing, end = _open_calls(path, path.index(turn))
    if caller is not None and missing:
        names = ", ".join(call.name for call in missing)
        results = [
            Turn("tool", None, text=NO_RESULT, tool_call_id=call.id) for call in missing if call.id
        ]
        found.insert(0, Mend(f"answer {names} with {NO_RESULT}", path[:end] + results + path[end:]))
        kept = [call for call in caller.tool_calls if call not in missing]
        less = _with(path, caller, _without_calls(caller, kept))
        found.append(Mend(f"leave out the call of {names}", less))
    return found


def edited(path: list[Turn], turn: Turn, text: str) -> list[Turn]:
    """The path with another text for `turn`. Tokens of an answer would no longer fit its text."""
    new = replace(snapshot(turn), text=text)
    for name in (*STEPPED, "marks", "forced"):
        setattr(new, name, [])
    return _with(path, turn, new)


def show_path(conversation: Conversation, path: list[Turn]) -> None:
    """Make `path` the branch on screen: from its first new turn on as a branch of its own."""
    parent: str | None = None
    grown = False
    for turn in path:
        same = not grown and conversation.turns.get(turn.id) is turn and turn.parent == parent
        if not same:
            grown = True
            turn = conversation.add(replace(snapshot(turn), id=uuid.uuid4().hex, parent=parent))
        parent = turn.id
    conversation.leaf = parent


def _noun(turn: Turn) -> str:
    return {"assistant": "answer", "tool": "tool result"}.get(turn.role, "message")


def _with(path: list[Turn], old: Turn, new: Turn) -> list[Turn]:
    return [new if turn is old else turn for turn in path]


def _without_calls(turn: Turn, kept: list[ToolCall]) -> Turn:
    return replace(snapshot(turn), tool_calls=kept)


def _open_calls(path: list[Turn], at: int) -> tuple[Turn | None, list[ToolCall], int]:
    """The last answer with calls up to `at`, its calls without a result, and where one belongs."""
    first = next((n for n in range(at, -1, -1) if path[n].tool_calls), None)
    if first is None:
        return None, [], at
    end = first + 1
    while end < len(path) and path[end].role == "tool":
        end += 1
    answered = {turn.tool_call_id for turn in path[first + 1 : end]}
    missing = [call for call in path[first].tool_calls if call.id not in answered]
    return path[first], missing, end
