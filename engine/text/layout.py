"""Lays a conversation out as pieces: control tokens, text, and ids sampled earlier.

Pure, and equal to DeepSeek's own encoder on every input it accepts (chat-encoding 4). Text never
holds a control token: whatever came from a person, a tool or the model is a text piece, however it
is spelled.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from engine.protocol import ChatMessage, Effort
from engine.text.control import TASK_CONTROLS, Control
from engine.text.effort import EFFORT_TEXTS, Profile
from engine.text.errors import ConversationError
from engine.text.messages import Message
from engine.text.toolmarkup import calls_block, to_json, tools_block
from engine.text.turns import (
    USER_ROLES,
    carries_tools,
    drop_old_reasoning,
    last_user_index,
    merge,
    sort_results,
)

Start = Literal["thinking", "answer"]

_RESPONSE_FORMAT = (
    "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"
)


@dataclass(frozen=True, slots=True)
class Stored:
    """Ids the model sampled for a turn, without EOS, and their text."""

    ids: tuple[int, ...]
    text: str


Piece = Control | str | Stored
# Sampled ids that may stand for a turn whose header opened `Start`; None: render it anew.
Recall = Callable[[ChatMessage, Start], Stored | None]


@dataclass(frozen=True, slots=True)
class LayoutOptions:
    """How to lay out. `effort` none is chat mode; `drop_reasoning` has no effect with tools."""

    effort: Effort = "none"
    profile: Profile = "official"
    drop_reasoning: bool = True
    bos: bool = True

    @property
    def thinking(self) -> bool:
        return self.effort != "none"


@dataclass(frozen=True, slots=True)
class Laid:
    """The pieces of a prompt, the state the reply starts in, and whether it continues a reply."""

    pieces: list[Piece]
    starts_in: Start
    continues: bool


def lay_out(
    messages: Sequence[Message], options: LayoutOptions, recall: Recall | None = None
) -> Laid:
    """Lay `messages` out; tools and response format already sit on the message that carries them.

    Raises:
        ConversationError: a role or task the format does not know, or an empty developer message.
    """
    turns = sort_results(merge(messages))
    drop = options.drop_reasoning and not carries_tools(turns)
    if options.thinking and drop:
        turns = drop_old_reasoning(turns)
    layout = _Layout(turns, options, drop, recall)
    pieces: list[Piece] = [Control.BOS] if options.bos else []
    if turns and options.thinking:
        pieces.append(EFFORT_TEXTS[options.profile][options.effort])
    for index in range(len(turns)):
        pieces += layout.turn(index)
        pieces += layout.tail(index)
    starts_in, continues = layout.start()
    return Laid(pieces, starts_in, continues)


class _Layout:
    """Rules that look at a turn's neighbours."""

    def __init__(
        self, turns: list[Message], options: LayoutOptions, drop: bool, recall: Recall | None
    ) -> None:
        self._turns = turns
        self._thinking = options.thinking
        self._drop = drop
        self._last_user = last_user_index(turns)
        self._recall = recall

    def turn(self, index: int) -> list[Piece]:
        turn = self._turns[index]
        match turn.role:
            case "system":
                return [turn.content, *_attachments(turn)]
            case "user":
                return [Control.USER, *_user_parts(turn)]
            case "developer":
                if not turn.content:
                    raise ConversationError("a developer message needs text")
                return [Control.USER, turn.content, *_attachments(turn)]
            case "latest_reminder":
                return [Control.REMINDER, turn.content]
            case "assistant":
                return self._assistant(index)
        raise ConversationError(f"unknown role {turn.role!r}")

    def tail(self, index: int) -> list[Piece]:
        """What follows a turn: nothing, a task token, or the header of the reply."""
        turn = self._turns[index]
        following = self._turns[index + 1].role if index + 1 < len(self._turns) else "assistant"
        if following not in ("assistant", "latest_reminder"):
            return []
        if turn.task is not None:
            return self._task(turn)
        if turn.role not in USER_ROLES:
            return []
        kept = self._thinking and (not self._drop or index >= self._last_user)
        return [Control.ASSISTANT, Control.THINK if kept else Control.THINK_END]

    def start(self) -> tuple[Start, bool]:
        """State of the parser after this prompt, and whether it continues a reply."""
        if not self._turns:
            return "answer", False
        turn = self._turns[-1]
        if turn.role == "assistant" and not turn.ends:
            return ("thinking" if self._open(len(self._turns) - 1) else "answer"), True
        header = self.tail(len(self._turns) - 1)
        return ("thinking" if header[-1:] == [Control.THINK] else "answer"), False

    def _assistant(self, index: int) -> list[Piece]:
        turn = self._turns[index]
        kept = self._keeps_reasoning(index)
        if self._recall and turn.source:
            stored = self._recall(turn.source, "thinking" if kept else "answer")
            if stored is not None:
                return [stored, *([Control.EOS] if turn.ends else [])]
        pieces: list[Piece] = []
        if kept:
            pieces.append(turn.reasoning)
            if not self._open(index):
                pieces.append(Control.THINK_END)
        pieces.append(turn.content)
        if turn.calls:
            pieces += calls_block(turn.calls)
        if turn.ends:
            pieces.append(Control.EOS)
        return pieces

    def _keeps_reasoning(self, index: int) -> bool:
        answers_task = index > 0 and self._turns[index - 1].task is not None
        recent = not self._drop or index > self._last_user
        return self._thinking and recent and not answers_task

    def _open(self, index: int) -> bool:
        return self._turns[index].in_reasoning and self._keeps_reasoning(index)

    def _task(self, turn: Message) -> list[Piece]:
        control = TASK_CONTROLS.get(turn.task or "")
        if control is None:
            raise ConversationError(
                f"unknown task {turn.task!r}; known: {', '.join(TASK_CONTROLS)}"
            )
        if control is not Control.ACTION:
            return [control]
        return [Control.ASSISTANT, Control.THINK if self._thinking else Control.THINK_END, control]


def _user_parts(turn: Message) -> list[Piece]:
    pieces: list[Piece] = []
    for part in turn.parts:
        if pieces:
            pieces.append("\n\n")
        if part.call_id is None:
            pieces.append(part.text)
        else:
            pieces += ["<tool_result>", part.text, "</tool_result>"]
    return pieces


def _attachments(turn: Message) -> list[Piece]:
    pieces: list[Piece] = []
    if turn.tools:
        pieces += ["\n\n", *tools_block(turn.tools)]
    if turn.response_format:
        pieces += ["\n\n", _RESPONSE_FORMAT, to_json(turn.response_format)]
    return pieces
