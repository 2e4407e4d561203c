"""Streaming parser of the model's output: ids to thinking, answer and calls (chat-encoding 8).

Structural events are recognised by id, never by spelling. Ids are read one at a time, so the result
does not depend on how they arrive. Text is given out only when it is certain: never half a
character, never a bracket or blank line that may still belong to markup.
"""

import codecs
import enum
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from engine.protocol import Channel, ChatMessage, Delta, StopReason, ToolCall
from engine.text.callsection import CallSection, Verdict
from engine.text.control import Control
from engine.text.messages import JsonObject
from engine.text.tokenizer import Tokenizer
from engine.text.toolcall import DeclaredTools

FinishReason = Literal["stop", "tool_calls", "length", "cancelled", "fault", "context"]

_BROKEN_MARKUP = re.compile(r"</?(?:\||｜){1,2}\s*DSML\s*(?:\||｜){1,2}")


class PromptEnd(Protocol):
    """What the parser needs to know of the prompt that was built; `encoding.Prompt` is one."""

    @property
    def starts_in(self) -> Literal["thinking", "answer"]: ...
    @property
    def continues(self) -> bool: ...
    @property
    def position(self) -> int: ...


@dataclass(frozen=True, slots=True)
class ReplyStart:
    """A `PromptEnd` without a prompt, for parsing stored ids."""

    starts_in: Literal["thinking", "answer"]
    continues: bool = False
    position: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply.

    Attributes:
        deltas: what the end of the stream released; the last deltas of the reply.
        thinking, answer: all text of the two channels.
        tool_calls: closed calls in order. One with an `error` must not be executed.
        finish_reason: as given, or tool_calls if the model stopped after calls.
        warnings: what was odd, in words for the user.
        unclosed_thinking: the model stopped without closing its reasoning: show it as the answer.
        partial_call: a call was cut off; it is in no list.
        thinking_tokens: ids read while reasoning.
    """

    deltas: list[Delta]
    thinking: str
    answer: str
    tool_calls: list[ToolCall]
    finish_reason: FinishReason
    warnings: list[str]
    unclosed_thinking: bool
    partial_call: bool
    thinking_tokens: int

    def message(self, token_ids: Sequence[int] = ()) -> ChatMessage:
        """The turn for the history. Reasoning that was never closed counts as the answer."""
        reasoning, content = self.thinking, self.answer
        if self.unclosed_thinking:
            reasoning, content = "", self.thinking
        return ChatMessage(
            "assistant",
            content=content,
            reasoning=reasoning,
            tool_calls=list(self.tool_calls),
            token_ids=list(token_ids),
        )


class _State(enum.Enum):
    THINKING = "thinking"
    ANSWER = "answer"
    DONE = "done"


class StreamParser:
    """Parses one reply. Feed ids as they come, then call `finish` once.

    Args:
        prompt: the prompt the reply was sampled after; decides the first state.
        tools: as declared in that prompt. Without any, call markup is ordinary text.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt: PromptEnd, tools: Sequence[JsonObject] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._tools = DeclaredTools(tools)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._state = _State(prompt.starts_in)
        self._leading = not prompt.continues  # newlines at the start of a part are dropped
        self._held = ""
        self._section: CallSection | None = None
        self._section_newlines = ""
        self._position = prompt.position
        self._read = 0
        self._out: list[Delta] = []
        self._texts: dict[Channel, list[str]] = {"thinking": [], "answer": [], "tool": []}
        self._calls: list[ToolCall] = []
        self._warnings: list[str] = []
        self._partial = False
        self._finished = False
        self.thinking_tokens = 0
        self.stopped = False
        """The reply is over: the model gave EOS, or a token that has no place in a reply."""

    def feed(self, ids: Iterable[int]) -> list[Delta]:
        """Read ids; deltas that became certain, at most one per token and channel in a row.

        Ids after the end of the reply are ignored.
        """
        if self._finished:
            raise RuntimeError("feed after finish")
        for id in ids:
            if self.stopped:
                break
            self._token(id)
            self._read += 1
        return self._take()

    def finish(self, reason: StopReason) -> Reply:
        """End the stream and release what was held. Call once."""
        if self._finished:
            raise RuntimeError("finish called twice")
        self._finished = True
        self._read = max(self._read - 1, 0)
        stopped = reason == "stop"
        if self._section is not None:
            self._close_section(self._section, self._section.end(stopped=stopped), "")
        self._release()
        thinking, answer = "".join(self._texts["thinking"]), "".join(self._texts["answer"])
        unclosed = stopped and self._state is _State.THINKING and bool(thinking)
        if unclosed:
            self._warn("the model did not close its reasoning; it is shown as the answer")
        if self._partial:
            self._warn("a tool call was cut off and is left out")
        if self._tools and _BROKEN_MARKUP.search(thinking + answer):
            self._warn("the text holds what looks like a broken tool call; it was not executed")
        finish_reason: FinishReason = reason
        if stopped and self._calls:
            finish_reason = "tool_calls"
        return Reply(
            deltas=self._take(),
            thinking=thinking,
            answer=answer,
            tool_calls=self._calls,
            finish_reason=finish_reason,
            warnings=self._warnings,
            unclosed_thinking=unclosed,
            partial_call=self._partial,
            thinking_tokens=self.thinking_tokens,
        )

    # ---- tokens ----------------------------------------------------------------------------------

    def _token(self, id: int) -> None:
        data = self._tokenizer.bytes_of(id)
        if id in self._tokenizer.stop_ids or not data:
            self._stop(id)
            return
        if self._state is _State.THINKING and self._section is None:
            self.thinking_tokens += 1
        control = self._tokenizer.control_of(id)
        if control not in (Control.THINK, Control.THINK_END, Control.DSML):
            self._text(self._decoder.decode(data))
            return
        self._text(self._decoder.decode(b"", True))
        if control is Control.DSML:
            self._mark()
        else:
            self._think(control)

    def _stop(self, id: int) -> None:
        self.stopped = True
        if id != self._tokenizer.eos_id:
            piece = self._tokenizer.piece(id)
            self._warn(f"the model wrote {piece}, which has no place in a reply; it ends there")

    def _text(self, text: str) -> None:
        if self._section is not None:
            self._section.position = self._position + self._read
            verdict, rest = self._section.feed(text)
            if verdict is not Verdict.OPEN:
                self._close_section(self._section, verdict, rest)
            return
        if self._leading:
            text = text.lstrip("\n")
        if self._state is _State.DONE or not text:
            return
        self._leading = False
        text = self._held + text
        certain = len(_without_bracket(text).rstrip("\n"))
        self._held = text[certain:]
        self._emit(self._channel(), text[:certain])

    def _think(self, control: Control) -> None:
        section = self._section
        if section is not None:
            prose = self._state is _State.THINKING and not section.calls and not section.in_value
            if control is Control.THINK or not prose:
                section.feed_control(control)
                return
            # Reasoning that only mentions the markup goes on to its end.
            self._close_section(section, Verdict.TEXT, "")
        if self._state is _State.DONE:
            return
        if control is Control.THINK:
            self._warn("the model wrote <think> inside its reply")
            self._text(control.value)
        elif self._state is _State.THINKING:
            if self._held.strip("\n"):
                self._release()
            self._held = ""
            self._state, self._leading = _State.ANSWER, True
        else:
            self._warn("the model closed its reasoning more than once")
            self._release()

    def _mark(self) -> None:
        section = self._section
        if section is not None:
            section.position = self._position + self._read
            verdict = section.feed_mark()
            if verdict is Verdict.OPEN:
                return
            self._close_section(section, verdict, "")
        if self._state is _State.DONE:
            return
        newlines = self._held.rstrip("</")
        bracket = self._held[len(newlines) :]
        if not self._tools or not bracket:
            self._text(Control.DSML.value)
            return
        self._held, self._section_newlines = "", newlines
        self._section = CallSection(self._tools, self._show_call, closing=bracket == "</")

    # ---- end of a section ------------------------------------------------------------------------

    def _close_section(self, section: CallSection, verdict: Verdict, rest: str) -> None:
        """Act on the verdict; `rest` is text after the section."""
        self._section = None
        for note in section.notes:
            self._warn(note)
        if verdict in (Verdict.CALLS, Verdict.PARTIAL):
            self._calls += section.calls
            self._partial = verdict is Verdict.PARTIAL
            self._state = _State.DONE
            return
        self._held = self._section_newlines
        if verdict is Verdict.SKIP:
            self._warn("the model wrote call markup without a call; it is left out")
        else:
            self._replay(section)
        self._text(rest)

    def _replay(self, section: CallSection) -> None:
        """Read a section again as text, up to a tag that may start a section of its own."""
        for place, item in enumerate(section.raw):
            if isinstance(item, str):
                self._text(item)
            elif item is not Control.DSML:
                self._think(item)
            elif place == section.restart:
                self._mark()
            else:
                self._text(item.value)

    # ---- output ----------------------------------------------------------------------------------

    def _release(self) -> None:
        """Give out held text: what follows is no markup."""
        held, self._held = self._held, ""
        if held:
            self._emit(self._channel(), held)

    def _channel(self) -> Channel:
        return "thinking" if self._state is _State.THINKING else "answer"

    def _show_call(self, text: str) -> None:
        self._emit("tool", text)

    def _emit(self, channel: Channel, text: str) -> None:
        if not text:
            return
        self._texts[channel].append(text)
        last = self._out[-1] if self._out else None
        if last is not None and last.channel == channel and last.index == self._read:
            text = last.text + text
            self._out.pop()
        self._out.append(Delta(self._read, channel, text))

    def _take(self) -> list[Delta]:
        out, self._out = self._out, []
        return out

    def _warn(self, text: str) -> None:
        if text not in self._warnings:
            self._warnings.append(text)


def _without_bracket(text: str) -> str:
    return text[:-2] if text.endswith("</") else text[:-1] if text.endswith("<") else text
