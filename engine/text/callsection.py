"""Reads call markup from its first tag on (the states CALLS to DONE of chat-encoding 8.3).

Opened when the text holds `<` or `</` and then the DSML token. It may turn out to be no call at
all: a model that writes about the markup uses the same tokens. So everything read is kept, and the
verdict TEXT asks the parser to show it as the text it is.
"""

import enum
import re
from collections.abc import Callable

from engine.protocol import ToolCall
from engine.text.control import Control
from engine.text.toolcall import CallDraft, DeclaredTools

_MAX_TAG_CHARS = 1024
_INVOKE = re.compile(r'invoke\s+name="([^"]*)"\s*(/?)\s*')
_PARAMETER = re.compile(r'parameter\s+name="([^"]*)"\s+string="(true|false)"\s*')
_NAME = re.compile(r'name="([^"]*)"')
_WORD = re.compile(r'[^\s<>"=/]{0,64}')
_CLOSER_WORD = re.compile(r"[\w ]{0,64}")
_OPENING_IN_VALUE = re.compile(rf"<{Control.DSML.value}\s*(invoke|parameter)\b")


class Verdict(enum.Enum):
    """What a section is: still open; no markup, show it; nothing, forget it; complete calls."""

    OPEN = enum.auto()
    TEXT = enum.auto()
    SKIP = enum.auto()
    CALLS = enum.auto()
    PARTIAL = enum.auto()


class _State(enum.Enum):
    TAG = enum.auto()
    BETWEEN = enum.auto()
    BODY = enum.auto()
    VALUE = enum.auto()


class CallSection:
    """State machine of one block of calls.

    Attributes:
        raw: everything read, for showing it as text; control tokens apart.
        calls: the calls that were closed, executable or not.
        position: of the current token in the whole sequence; set by the parser, names the calls.
        notes: warnings for the user.
        restart: index in `raw` of the mark after which to read afresh if the verdict is TEXT.
    """

    def __init__(self, tools: DeclaredTools, emit: Callable[[str], None], *, closing: bool) -> None:
        self.raw: list[str | Control] = ["</" if closing else "<", Control.DSML]
        self.calls: list[ToolCall] = []
        self.position = 0
        self.notes: list[str] = []
        self.restart = -1
        self._tools = tools
        self._show = emit
        self._state = _State.TAG
        self._closing = closing
        self._first = True
        self._wrapped = False  # inside a block; a lone invoke counts as such once it has closed
        self._junk = False
        self._tag = ""
        self._held = ""
        self._draft: CallDraft | None = None
        self._in_value = False  # the tag being read ended a value
        self._has_marks = False  # the value holds a DSML token
        self._mark_place = 1

    @property
    def in_value(self) -> bool:
        return self._state is _State.VALUE

    def feed(self, text: str) -> tuple[Verdict, str]:
        """Read text. A verdict other than OPEN comes with the rest of `text`, which is outside."""
        while text:
            if self._state is not _State.TAG:
                self.raw.append(text)
                self._hold(text)
                return Verdict.OPEN, ""
            used, ended = self._read_tag(text)
            self.raw.append(text[:used])
            text = text[used:]
            if self._first and not self._plausible():
                return Verdict.TEXT, text
            if ended:
                verdict = self._end_tag(self._tag)
                if verdict is not Verdict.OPEN:
                    return verdict, text
        return Verdict.OPEN, ""

    def feed_mark(self) -> Verdict:
        """Read a DSML token. After TEXT, the token itself is still to be read, after `raw`."""
        if self._state is _State.TAG:
            if self._first:
                return Verdict.TEXT
            self._held = _trailing_bracket(self._tag)
            verdict = self._end_tag(self._tag[: len(self._tag) - len(self._held)], whole=False)
            if verdict is not Verdict.OPEN:
                return verdict
        bracket, self._held = self._held, ""
        if bracket == "<" and self._state is _State.VALUE or not bracket:
            self.raw.append(Control.DSML)
            self._has_marks = True
            self._sink(bracket + Control.DSML.value)
            return Verdict.OPEN
        if bracket == "</" and self._state is _State.VALUE:
            self._close_value()
        self._mark_place = len(self.raw)
        self.raw.append(Control.DSML)
        self._state, self._tag, self._closing = _State.TAG, "", bracket == "</"
        return Verdict.OPEN

    def feed_control(self, control: Control) -> None:
        """Read a think token: text of a value, nothing elsewhere."""
        self.raw.append(control)
        held, self._held = self._held, ""
        self._sink(held + (control.value if self.in_value else ""))

    def end(self, *, stopped: bool) -> Verdict:
        """Judge the section at the end of the stream. `stopped`: by the model itself, not cut."""
        unfinished = self._draft is not None or self._state is _State.TAG
        if self.calls:
            if self._draft is not None and stopped:
                self._draft.faults.insert(0, "the call is not closed")
                self._complete()
            elif unfinished and not stopped:
                return Verdict.PARTIAL
            return Verdict.CALLS
        if stopped or (self._closing and self._first) or (self._junk and self._draft is None):
            return Verdict.TEXT
        expected = self._wrapped or self._first
        declared = self._draft is not None and self._draft.name in self._tools
        return Verdict.PARTIAL if expected or declared else Verdict.TEXT

    # ---- text ------------------------------------------------------------------------------------

    def _hold(self, text: str) -> None:
        """Pass text on, except for a bracket at its end that may open a tag."""
        text = self._held + text
        self._held = _trailing_bracket(text)
        text = text[: len(text) - len(self._held)]
        if text:
            self._sink(text)

    def _sink(self, text: str) -> None:
        if self._state is _State.VALUE and self._draft:
            self._emit(self._draft.value(text))
        elif self._state is _State.BODY and self._draft:
            self._draft.body.append(text)
        elif text.strip():
            self._junk = True

    def _emit(self, text: str) -> None:
        if self._wrapped and text:
            self._show(text)

    # ---- tags ------------------------------------------------------------------------------------

    def _read_tag(self, text: str) -> tuple[int, bool]:
        """Take text up to the `>` that ends the tag (not one inside quotes).

        Returns the number of characters taken and whether the tag ended.
        """
        quotes = self._tag.count('"')
        for index, char in enumerate(text):
            quotes += char == '"'
            full = len(self._tag) + index >= _MAX_TAG_CHARS
            if (char == ">" and quotes % 2 == 0) or full:
                self._tag += text[:index]
                return index + 1, True
        self._tag += text
        return len(text), False

    def _plausible(self) -> bool:
        """Whether the first tag can still be markup rather than prose about it."""
        if self._closing:
            return bool(_CLOSER_WORD.fullmatch(self._tag))
        known = _WORD.fullmatch(self._tag) or _starts_invoke(self._tag)
        return bool(known) and len(self._tag) < _MAX_TAG_CHARS

    def _end_tag(self, tag: str, *, whole: bool = True) -> Verdict:
        first, self._first = self._first, False
        self._tag = ""
        words = tag.split(None, 1)
        word = words[0].rstrip("/") if words else ""
        if self._closing:
            return Verdict.SKIP if first else self._end_closing(word)
        if word == "invoke":
            return self._open_call(tag, first, whole)
        if word == "parameter" and self._draft is not None:
            self._open_parameter(tag)
            return Verdict.OPEN
        if first:
            self._wrapped = bool(word) and word != "parameter"
            self._state = _State.BETWEEN
            return Verdict.OPEN if self._wrapped else Verdict.TEXT
        return self._misplaced(f"<{word}>") if self._wrapped else self._opened_inside()

    def _opened_inside(self) -> Verdict:
        """A lone invoke was prose: another tag opened before it closed. Read that one anew."""
        self.restart = self._mark_place
        return Verdict.TEXT

    def _misplaced(self, tag: str) -> Verdict:
        if not self._wrapped:
            return Verdict.TEXT
        self.notes.append(f"ignored a misplaced call tag {tag}")
        self._state = _State.BODY if self._draft else _State.BETWEEN
        return Verdict.OPEN

    def _open_call(self, tag: str, first: bool, whole: bool) -> Verdict:
        match = _INVOKE.fullmatch(tag)
        if not first and not self._wrapped:
            return self._opened_inside()
        if match is None:
            return Verdict.TEXT if first else self._misplaced("<invoke> without a name")
        if self._draft is not None:
            self._complete()
        name, self_closing = match.groups()
        self._draft = CallDraft(f"call_{self.position}", name)
        if not whole:
            self._draft.faults.append("the invoke tag is not closed")
        self._state = _State.BODY
        self._emit(f"{name} ")
        return self._close_call() if self_closing else Verdict.OPEN

    def _open_parameter(self, tag: str) -> None:
        assert self._draft is not None
        match = _PARAMETER.fullmatch(tag)
        if match:
            name, kind = match.groups()
        else:
            found = _NAME.search(tag)
            name, kind = (found[1] if found else ""), "true"
            self._draft.faults.append(f"the tag of parameter {name!r} is malformed")
        self._emit(self._draft.open_parameter(name, kind == "true"))
        self._has_marks = False
        self._state = _State.VALUE

    def _close_value(self) -> None:
        assert self._draft is not None
        value = self._draft.parameters[-1]
        if self._has_marks and _OPENING_IN_VALUE.search(value.text):
            self._draft.faults.append(f"parameter {value.name!r} is not closed")
        self._emit(self._draft.close_parameter())
        self._in_value = True

    def _end_closing(self, word: str) -> Verdict:
        ended_value, self._in_value = self._in_value, False
        if self._draft is None:
            if word in ("invoke", "parameter"):
                return self._misplaced(f"</{word}>")
            if self.calls:
                return Verdict.CALLS
            return Verdict.TEXT if self._junk or self.notes else Verdict.SKIP
        if word == "parameter":
            self._state = _State.BODY
            return Verdict.OPEN if ended_value else self._misplaced("</parameter>")
        if ended_value:
            self._draft.faults.append(
                f"parameter {self._draft.parameters[-1].name!r} is not closed"
            )
        if word == "invoke":
            return self._close_call()
        if not self._wrapped:
            return Verdict.TEXT
        self._complete()
        return Verdict.CALLS

    def _close_call(self) -> Verdict:
        """The invoke closed. A lone one counts from here on, if a tool of its name is declared."""
        assert self._draft is not None
        if not self._wrapped:
            if self._draft.name not in self._tools:
                return Verdict.TEXT
            self._wrapped = True
            self._emit(f"{self._draft.name} {''.join(self._draft.pieces)}")
        self._complete()
        return Verdict.OPEN

    def _complete(self) -> None:
        assert self._draft is not None
        self._emit(self._draft.close() + "\n")
        self.calls.append(self._draft.finished(self._tools))
        self._draft = None
        self._state = _State.BETWEEN


def _starts_invoke(tag: str) -> bool:
    """Whether `tag` is the beginning of an invoke tag, or a whole one."""
    word, rest = tag[:6], tag[6:]
    if word != "invoke" or (rest and not rest[0].isspace()):
        return False
    lead, rest = 'name="', rest.lstrip()
    if len(rest) <= len(lead):
        return lead.startswith(rest)
    _, _, after_name = rest[len(lead) :].partition('"')
    return rest.startswith(lead) and after_name.strip() in ("", "/")


def _trailing_bracket(text: str) -> str:
    return "</" if text.endswith("</") else "<" if text.endswith("<") else ""
