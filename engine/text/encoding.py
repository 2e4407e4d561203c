"""Prompt encoder: a conversation to token ids (chat-encoding 3, 4, 7.3).

Ids of text are kept per run between control tokens, so that appending a turn re-uses the ids of
what stands before it: the same list objects, found by their text. The result never depends on the
cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from engine.protocol import ChatMessage, Effort
from engine.text.cache import WeightedCache
from engine.text.control import Control, Task
from engine.text.effort import EFFORT_TEXTS, Profile
from engine.text.errors import ConversationError, TextError
from engine.text.layout import Laid, LayoutOptions, Piece, Start, Stored, lay_out
from engine.text.messages import JsonObject, Message, from_chat, with_request
from engine.text.stored import StoredTurns, without_broken_calls
from engine.text.tokenizer import Tokenizer, repair
from engine.text.validation import validate

_RUN_CACHE_CHARS = 16 * 1024 * 1024


@dataclass(frozen=True)
class Prompt:
    """A prompt ready for the model.

    Attributes:
        ids: token ids; BOS first and nowhere else.
        starts_in: what the reply begins with; take it from here, not from a setting.
        continues: the prompt ends inside a reply, so its leading newlines are text.
        checkpoints: lengths of the prefixes that end with an Assistant token, rising. A later
            prompt of the same chat can differ from the token after the last one on (think token,
            dropped reasoning), so a state saved there stays useful.
        reused_ids: how many ids are repetitions of sampled ones.
    """

    ids: list[int]
    starts_in: Start
    continues: bool
    checkpoints: list[int]
    reused_ids: int
    pieces: list[Piece]

    @property
    def position(self) -> int:
        """Position of the first token of the reply."""
        return len(self.ids)

    @cached_property
    def text(self) -> str:
        """The prompt spelled out, for people. Encoding it again is not the same (chat-encoding
        2.2).
        """
        return "".join(map(spelling, self.pieces))


def spelling(piece: Piece) -> str:
    if isinstance(piece, Control):
        return piece.value
    return repair(piece) if isinstance(piece, str) else piece.text


class ChatEncoder:
    """Encodes conversations for one tokenizer and effort profile. Not for use by two threads at
    once.
    """

    def __init__(self, tokenizer: Tokenizer, profile: Profile) -> None:
        if profile not in EFFORT_TEXTS:
            raise TextError(f"effort profile {profile!r}: choose preview or official")
        self._tokenizer = tokenizer
        self.profile = profile
        self._runs: WeightedCache[str, list[int]] = WeightedCache(_RUN_CACHE_CHARS)
        self._stored = StoredTurns(tokenizer)

    def validate(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[JsonObject] = (),
        *,
        effort: Effort = "none",
        task: Task | None = None,
        response_format: JsonObject | None = None,
    ) -> None:
        """Refuse what must not be sent to the model.

        Raises:
            ConversationError: a malformed conversation; the message names the place and the way
            out.
            TokenizerError: a feature whose control token this vocabulary does not have.
        """
        validate(
            self._tokenizer,
            messages,
            tools,
            effort=effort,
            task=task,
            response_format=response_format,
        )

    def encode(
        self,
        messages: Sequence[ChatMessage],
        *,
        effort: Effort = "none",
        tools: Sequence[JsonObject] = (),
        response_format: JsonObject | None = None,
        task: Task | None = None,
        drop_reasoning: bool = True,
    ) -> Prompt:
        """Prompt for the next reply, or for the rest of an `unfinished` last assistant turn.

        Sampled ids stored on assistant turns are repeated where they still say the same turn.
        Failed calls that can be written neither from their ids nor from their arguments are left
        out together with their results.

        Args:
            effort: none is chat mode (no reasoning).
            tools: OpenAI tool objects; declare the same ones for the whole conversation.
            task: quick instruction on the last message, such as title.
            drop_reasoning: leave out the reasoning of earlier turns; without effect with tools.

        Raises:
            TokenizerError: a control token is needed that this vocabulary does not have.
        """

        def recall(message: ChatMessage, starts_in: Start) -> Stored | None:
            return self._stored.find(message, starts_in, tools)

        think_end = self._tokenizer.id_of(Control.THINK_END)
        starts_in: Start = "answer" if effort == "none" else "thinking"
        kept = without_broken_calls(messages, self._stored, tools, starts_in)
        turns = [
            from_chat(message, last=index == len(kept) - 1, think_end_id=think_end)
            for index, message in enumerate(kept)
        ]
        if task is not None and turns:
            turns[-1] = replace(turns[-1], task=task)
        options = LayoutOptions(effort, self.profile, drop_reasoning)
        laid = lay_out(with_request(turns, tools, response_format), options, recall)
        prompt = self._assemble(laid)
        if prompt.ids[0] != self._tokenizer.bos_id or prompt.ids.count(self._tokenizer.bos_id) != 1:
            raise ConversationError(
                "internal: a prompt must hold BOS once, first; please report the conversation"
            )
        return prompt

    def encode_messages(self, messages: Sequence[Message], options: LayoutOptions) -> Prompt:
        """Encode messages exactly as the reference encoder does, odd ones included."""
        return self._assemble(lay_out(messages, options))

    def _assemble(self, laid: Laid) -> Prompt:
        ids: list[int] = []
        texts: list[str] = []
        checkpoints: list[int] = []
        reused = 0
        for piece in laid.pieces:
            if isinstance(piece, str):
                texts.append(repair(piece))
                continue
            ids += self._run("".join(texts))
            texts.clear()
            if isinstance(piece, Stored):
                ids += piece.ids
                reused += len(piece.ids)
                continue
            ids.append(self._tokenizer.id_of(piece))
            if piece is Control.ASSISTANT:
                checkpoints.append(len(ids))
        ids += self._run("".join(texts))
        return Prompt(ids, laid.starts_in, laid.continues, checkpoints, reused, laid.pieces)

    def _run(self, text: str) -> list[int]:
        """Ids of one run of text. Neighbouring texts are joined before, as the reference joins
        them.
        """
        if not text:
            return []
        ids = self._runs.get(text)
        if ids is None:
            ids = self._tokenizer.encode_text(text)
            self._runs.put(text, ids, len(text))
        return ids
