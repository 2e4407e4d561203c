"""A conversation as a tree of turns. Regenerating or editing adds a sibling.

Nothing is ever overwritten.

Turns are plain data with ids of their own, so that a store can save each as it grows. `path` is the
branch on screen, from the first turn to the current leaf.
"""

import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from dsv4chat.core.settings import Settings
from engine.protocol import (
    ChatMessage,
    Finished,
    StepOptions,
    StopReason,
    Token,
    Tokens,
    ToolCall,
)

Role = Literal["system", "user", "assistant", "tool"]
NAMES = {"user": "you", "tool": "tool result", "system": "system"}


@dataclass(frozen=True, slots=True)
class OptionMark:
    """From token `index` on the step ran with `options`."""

    index: int
    options: StepOptions


@dataclass(frozen=True, slots=True)
class Forced:
    """Token `index` was taken because the user said so; `instead` is what stood there before."""

    index: int
    instead: str
    source: str  # the turn that was branched


@dataclass(slots=True)
class Turn:
    """One message. The lists of an assistant turn run in step: one entry per sampled token."""

    role: Role
    parent: str | None
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    text: str = ""
    reasoning: str = ""
    tool_text: str = ""
    created: float = field(default_factory=time.time)
    settings: Settings | None = None
    model: str = ""  # what answered
    token_ids: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    routers: list[str] = field(default_factory=list)
    gsa_modes: list[str] = field(default_factory=list)
    channels: list[str] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)  # end of the token's text in its channel's text
    marks: list[OptionMark] = field(default_factory=list)
    forced: list[Forced] = field(default_factory=list)
    bad_token: tuple[int, int] | None = None  # first one that is not finite, and its first layer
    rerun_of: str = ""  # the answer this one repeats under other settings
    finish: StopReason | None = None
    finished: Finished | None = None
    note: str = ""  # what went wrong, in words
    thinking_s: float = 0.0
    tool_calls: list[ToolCall] = field(default_factory=list)
    tool_call_id: str = ""  # of a tool result: the call that it answers

    @property
    def done(self) -> bool:
        return self.role != "assistant" or self.finish is not None

    @property
    def kept(self) -> int:
        """How many tokens at the beginning were taken over from another branch."""
        return self.forced[-1].index if self.forced else 0

    @property
    def options(self) -> StepOptions | None:
        """The step options that hold at the end of the turn so far."""
        if self.marks:
            return self.marks[-1].options
        return self.settings.options if self.settings else None

    def add(self, batch: Tokens) -> None:
        """Take a batch of tokens and their text.

        Text can belong to an earlier token than the batch's last.
        """
        for token in batch.tokens:
            self._add_token(token)
        for delta in batch.deltas:
            if delta.channel == "thinking":
                self.reasoning += delta.text
                end = len(self.reasoning)
            elif delta.channel == "tool":
                self.tool_text += delta.text
                end = len(self.tool_text)
            else:
                self.text += delta.text
                end = len(self.text)
            for index in range(delta.index, len(self.ends)):
                self.channels[index], self.ends[index] = delta.channel, end

    def _add_token(self, token: Token) -> None:
        self.token_ids.append(token.id)
        self.pieces.append(token.piece)
        self.logprobs.append(token.logprob)
        self.routers.append(token.router)
        self.gsa_modes.append(token.gsa)
        self.channels.append(self.channels[-1] if self.channels else "")
        self.ends.append(self.ends[-1] if self.ends else 0)

    def span(self, index: int) -> tuple[str, int, int]:
        """Channel, start and end of a token's text in that channel.

        Start == end if it released none.
        """
        channel, end = self.channels[index], self.ends[index]
        start = self.ends[index - 1] if index and self.channels[index - 1] == channel else 0
        return channel, min(start, end), end


class Conversation:
    """The tree and the branch on screen."""

    def __init__(self, system: str = "") -> None:
        self.id = uuid.uuid4().hex
        self.name = ""  # given by the user; the title follows the first message without one
        self.created = time.time()
        self.stored = False  # came from the store
        self.system = system
        self.turns: dict[str, Turn] = {}
        self._children: dict[str | None, list[str]] = {None: []}
        self.leaf: str | None = None

    @property
    def path(self) -> list[Turn]:
        """The turns on screen, oldest first."""
        turns: list[Turn] = []
        at = self.leaf
        while at is not None:
            turn = self.turns[at]
            turns.append(turn)
            at = turn.parent
        return turns[::-1]

    def add_user(self, text: str, *, parent: str | None) -> Turn:
        return self.add(Turn("user", parent, text=text))

    def add_assistant(self, settings: Settings, *, parent: str | None) -> Turn:
        return self.add(Turn("assistant", parent, settings=settings))

    def add(self, turn: Turn) -> Turn:
        """Hang a turn below its parent; it is the leaf now."""
        self.turns[turn.id] = turn
        self._children.setdefault(turn.parent, []).append(turn.id)
        self._children[turn.id] = []
        self.leaf = turn.id
        return turn

    def adopt(self, turns: Iterable[Turn], leaf: str | None) -> str:
        """Take stored turns, in any order, into an empty tree.

        Returns what did not fit, in words, or "". Nothing is left out: a turn without a parent
        begins a branch of its own.
        """
        problem = ""
        for turn in turns:
            if turn.id in self.turns:
                problem = f"turn {turn.id!r} is there twice"
            self.turns[turn.id] = turn
        self._children = {None: [], **{turn_id: [] for turn_id in self.turns}}
        for turn in self.turns.values():
            if turn.parent not in self._children:
                problem = f"turn {turn.id!r} hangs on {turn.parent!r}, which is not there"
                turn.parent = None
            self._children[turn.parent].append(turn.id)
        reached = self._below(None)
        for turn in self.turns.values():
            if turn.id not in reached:  # a ring: cut it here
                problem = f"turn {turn.id!r} is its own ancestor"
                self._children[turn.parent].remove(turn.id)
                turn.parent = None
                self._children[None].append(turn.id)
                reached |= self._below(turn.id)
        if leaf in self.turns:
            self.leaf = leaf
        elif self.turns:
            problem = problem or f"the turn on screen, {leaf!r}, is not there"
            self.select(list(self.turns)[-1])
        return problem

    def _below(self, start: str | None) -> set[str | None]:
        """A turn and all that hang on it."""
        found: set[str | None] = set()
        stack = [start]
        while stack:
            found.add(at := stack.pop())
            stack += self._children[at]
        return found

    @property
    def title(self) -> str:
        """Its name, or the first message."""
        first = next(iter(self.children(None)), None)
        return self.name or (first.text if first else "")

    def take_back(self, turn: Turn) -> None:
        """Remove a turn that nothing has answered; its parent is the leaf again."""
        if self._children[turn.id]:
            raise ValueError("a turn with answers cannot be taken back")
        del self.turns[turn.id], self._children[turn.id]
        self._children[turn.parent].remove(turn.id)
        self.leaf = turn.parent

    def children(self, turn_id: str | None) -> list[Turn]:
        return [self.turns[child] for child in self._children.get(turn_id, [])]

    def siblings(self, turn: Turn) -> list[Turn]:
        """The turn and its alternatives, oldest first."""
        return self.children(turn.parent)

    def last(self, role: Role) -> Turn | None:
        return next((turn for turn in reversed(self.path) if turn.role == role), None)

    def select(self, turn_id: str) -> None:
        """Show the branch through this turn, down to its newest leaf."""
        while self._children[turn_id]:
            turn_id = self._children[turn_id][-1]
        self.leaf = turn_id

    def fork_point(self) -> Turn | None:
        """The deepest turn on the path that has alternatives."""
        return next((turn for turn in reversed(self.path) if len(self.siblings(turn)) > 1), None)

    def step_branch(self, step: int) -> bool:
        """Show the next (or previous) alternative at the deepest fork; False if there is none."""
        turn = self.fork_point()
        if turn is None:
            return False
        siblings = self.siblings(turn)
        self.select(siblings[(siblings.index(turn) + step) % len(siblings)].id)
        return True

    def branch_position(self) -> tuple[int, int]:
        """Which leaf is on screen, of how many: (1, 1) without branches."""
        leaves = [turn.id for turn in self.leaves()]
        return (leaves.index(self.leaf) + 1 if self.leaf in leaves else 1, max(len(leaves), 1))

    def leaves(self) -> list[Turn]:
        """All ends of branches in tree order."""
        found: list[Turn] = []
        stack = list(reversed(self._children[None]))
        while stack:
            at = stack.pop()
            if not self._children[at]:
                found.append(self.turns[at])
            stack.extend(reversed(self._children[at]))
        return found

    def last_asked(self) -> Turn | None:
        """The last turn on the path that an answer can follow."""
        asked = ("user", "tool")
        return next((turn for turn in reversed(self.path) if turn.role in asked), None)

    def spoken(self, until: Turn | None = None) -> list[Turn]:
        """The turns that the encoder reads, up to and including `until` (its parent chain if off
        the path).

        An assistant turn that produced nothing is left out.
        """
        at = until.id if until else self.leaf
        chain: list[Turn] = []
        while at is not None:
            turn = self.turns[at]
            if turn.role != "assistant" or turn.text or turn.reasoning or turn.tool_calls:
                chain.append(turn)
            at = turn.parent
        return chain[::-1]

    def messages(self, until: Turn | None = None) -> list[ChatMessage]:
        """`spoken` as messages, after the system prompt."""
        messages = [ChatMessage(role="system", content=self.system)] if self.system else []
        for turn in self.spoken(until):
            messages.append(
                ChatMessage(
                    role=turn.role,
                    content=turn.text,
                    reasoning=turn.reasoning,
                    tool_calls=list(turn.tool_calls),
                    tool_call_id=turn.tool_call_id,
                    token_ids=list(turn.token_ids),
                )
            )
        return messages
