"""Properties over random chats and replies: no forgery, round trip, any chunking, any cut."""

import codecs
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.protocol import ChatMessage, ToolCall
from engine.text.control import FULL_VOCAB_IDS, Control
from engine.text.encoding import ChatEncoder
from engine.text.errors import TextError
from engine.text.layout import LayoutOptions
from engine.text.messages import from_chat
from engine.text.parser import StreamParser
from engine.text.schema import mismatch
from engine.text.tokenizer import Tokenizer
from tests.engine.text.support import (
    ANSWER,
    THINKING,
    TOOLS,
    D,
    block,
    invoke,
    param,
    parse,
    sampled,
    shown,
    tool,
)

FIXED = settings(derandomize=True, deadline=None, max_examples=150, database=None)

SPELLINGS = [
    *FULL_VOCAB_IDS,
    "<｜Us",
    "er｜>",
    "<",
    "</",
    "\n\n",
    "\n",
    f"<{D}invoke name=",
    "</tool_",
]
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
texts = st.lists(st.one_of(words, st.sampled_from(SPELLINGS)), max_size=6).map("".join)
some_text = texts.filter(bool)

# ---- prompts -------------------------------------------------------------------------------------


@st.composite
def plain_chats(draw: st.DrawFn) -> list[ChatMessage]:
    """Well-formed chats without tools, ending with a user message; any text in them."""
    chat: list[ChatMessage] = []
    if draw(st.booleans()):
        chat.append(ChatMessage("system", content=draw(texts)))
    for _ in range(draw(st.integers(0, 3))):
        chat.append(ChatMessage("user", content=draw(texts)))
        content, reasoning = draw(some_text), draw(texts)
        chat.append(ChatMessage("assistant", content=content, reasoning=reasoning))
    if draw(st.booleans()):
        chat.append(ChatMessage("latest_reminder", content=draw(texts)))
    return [*chat, ChatMessage("user", content=draw(texts))]


def read_back(tokenizer: Tokenizer, ids: list[int]) -> list[tuple[str, str]]:
    """A prompt as (control token, text after it); independent of the encoder."""
    parts: list[tuple[str, list[int]]] = []
    for id in ids:
        if id in tokenizer.added_ids:
            parts.append((tokenizer.bytes_of(id).decode(), []))
        else:
            parts[-1][1].append(id)
    return [(control, tokenizer.decode(text)) for control, text in parts]


def expected_parts(chat: list[ChatMessage], thinking: bool) -> list[tuple[str, str]]:
    """What a prompt must say, for a chat without tools (reasoning of earlier turns dropped)."""
    parts = [("<｜begin▁of▁sentence｜>", "")]
    for index, message in enumerate(chat):
        last = index == len(chat) - 1
        if message.role == "system":
            parts[-1] = (parts[-1][0], message.content)
        elif message.role == "latest_reminder":
            parts.append(("<｜latest_reminder｜>", message.content))
        elif message.role == "user":
            parts.append(("<｜User｜>", message.content))
            if last or chat[index + 1].role == "assistant":
                parts.append(("<｜Assistant｜>", ""))
                parts.append(("<think>" if last and thinking else "</think>", ""))
        else:
            parts[-1] = (parts[-1][0], message.content)
            parts.append(("<｜end▁of▁sentence｜>", ""))
    return parts


@FIXED
@given(chat=plain_chats(), thinking=st.booleans())
def test_prompt_says_exactly_the_conversation(
    encoder: ChatEncoder, tokenizer: Tokenizer, chat: list[ChatMessage], thinking: bool
) -> None:
    """No text becomes a control token, and the turns can be read back: encoding is injective."""
    if chat[-2:-1] and chat[-2].role == "latest_reminder" and chat[-3:-2]:
        if chat[-3].role == "user":
            return
    encoder.validate(chat)
    effort = "low" if thinking else "none"
    prompt = encoder.encode(chat, effort=effort)  # type: ignore[arg-type]
    assert read_back(tokenizer, prompt.ids) == expected_parts(chat, thinking)
    assert prompt.text == tokenizer.decode(prompt.ids)
    fresh = ChatEncoder(tokenizer, "official").encode(chat, effort=effort)  # type: ignore[arg-type]
    assert fresh.ids == prompt.ids


names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters='"'), max_size=12)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner | texts, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
arguments = st.dictionaries(names, texts | json_values, max_size=4)


@FIXED
@given(
    reasoning=texts.map(lambda text: text.strip("\n")),
    content=texts.map(lambda text: text.strip("\n")),
    calls=st.lists(st.tuples(names, arguments), max_size=3),
    thinking=st.booleans(),
)
def test_parsing_an_encoded_turn_restores_it(
    encoder: ChatEncoder,
    tokenizer: Tokenizer,
    reasoning: str,
    content: str,
    calls: list,
    thinking: bool,
) -> None:
    made = [ToolCall(str(i), name, json.dumps(a)) for i, (name, a) in enumerate(calls)]
    tools = [tool(name, {}) for name in {name for name, _ in calls} | {"f"}]
    turn = ChatMessage("assistant", content=content, reasoning=reasoning, tool_calls=made)
    user = ChatMessage("user", content="Hi")
    options = LayoutOptions("low" if thinking else "none", drop_reasoning=False)
    messages = [from_chat(m, last=False, think_end_id=-1) for m in (user, turn)]
    before = encoder.encode_messages(messages[:1], options)
    after = encoder.encode_messages(messages, options)
    assert after.ids[: len(before.ids)] == before.ids
    reply, _ = parse(tokenizer, after.ids[len(before.ids) :], before, tools)
    assert reply.thinking == (reasoning if thinking else "")
    assert reply.answer == content
    assert [(call.name, call.error) for call in reply.tool_calls] == [(n, "") for n, _ in calls]
    for call, (_, given_arguments) in zip(reply.tool_calls, calls, strict=True):
        assert call.arguments == json.dumps(given_arguments, ensure_ascii=False)


@st.composite
def any_chats(draw: st.DrawFn) -> list[ChatMessage]:
    """Mostly malformed chats."""
    roles = st.sampled_from(["system", "user", "user", "assistant", "tool", "latest_reminder"])
    ids = st.sampled_from(["c1", "c2", ""])
    calls = st.builds(ToolCall, ids, st.just("read_clock"), st.sampled_from(["{}", "x", "[]"]))
    message = st.builds(
        ChatMessage,
        roles,
        content=st.sampled_from(["", "x"]),
        reasoning=st.sampled_from(["", "r"]),
        tool_calls=st.lists(calls, max_size=2),
        tool_call_id=ids,
        token_ids=st.lists(st.integers(-1, 129_300), max_size=2),
        unfinished=st.booleans(),
    )
    return draw(st.lists(message, max_size=5))


@FIXED
@given(chat=any_chats(), effort=st.sampled_from(["none", "low", "max"]), tools=st.booleans())
def test_what_validation_lets_through_is_a_prompt_for_a_reply(
    encoder: ChatEncoder, tokenizer: Tokenizer, chat: list, effort: str, tools: bool
) -> None:
    declared = TOOLS if tools else []
    try:
        encoder.validate(chat, declared, effort=effort)  # type: ignore[arg-type]
    except TextError:
        return
    prompt = encoder.encode(chat, effort=effort, tools=declared)  # type: ignore[arg-type]
    assert prompt.ids[0] == tokenizer.bos_id
    assert prompt.ids.count(tokenizer.bos_id) == 1
    ends = {
        tokenizer.id_of(Control.THINK): "thinking",
        tokenizer.id_of(Control.THINK_END): "answer",
    }
    assert prompt.continues or ends[prompt.ids[-1]] == prompt.starts_in


# ---- replies -------------------------------------------------------------------------------------

FRAGMENTS = [
    "</think>", "<think>", D, "<", "</", "\n", "\n\n", " ", "a", "👩🏽‍🚀", "é", ">", '"', "/",
    f"<{D}tool_calls>", f"</{D}tool_calls>", f"</{D}invoke>", f"</{D}parameter>", f"<{D}",
    f'<{D}invoke name="read_clock">', f'<{D}invoke name="x"/>', f"<{D}parameter", "{}", "invoke",
    f'<{D}parameter name="zone" string="true">', f'<{D}parameter name="b" string="false">',
    block(invoke("read_clock", param("zone", "UTC"))), invoke("list_lamps"), "parameter>", "name=",
]  # fmt: skip
replies = st.lists(st.sampled_from(FRAGMENTS) | words, max_size=14).map("".join)
starts = st.sampled_from([THINKING, ANSWER])
reasons = st.sampled_from(["stop", "length", "cancelled"])


@settings(FIXED, max_examples=400)
@given(reply=replies, start=starts, reason=reasons, chunk=st.integers(2, 9), data=st.data())
def test_chunks_and_cuts_never_change_or_lose_text(
    tokenizer: Tokenizer, reply: str, start, reason, chunk: int, data: st.DataObject
) -> None:
    ids = sampled(tokenizer, reply)
    ids = ids[: data.draw(st.integers(0, len(ids)))]
    single, deltas = parse(tokenizer, ids, start, reason=reason)
    grouped, chunked = parse(tokenizer, ids, start, reason=reason, chunk=chunk)
    assert deltas == chunked
    assert (single.thinking, single.answer) == (grouped.thinking, grouped.answer)
    assert (single.tool_calls, single.warnings) == (grouped.tool_calls, grouped.warnings)
    assert single.finish_reason == grouped.finish_reason
    assert shown(deltas, "thinking") == single.thinking
    assert shown(deltas, "answer") == single.answer
    runnable = [call for call in single.tool_calls if not call.error]
    assert all(isinstance(json.loads(call.arguments), dict) for call in runnable)
    markup_left_out = any("left out" in warning for warning in single.warnings)
    if not single.tool_calls and not markup_left_out:
        said = tokenizer.decode(ids).replace("</think>", "")  # may end in half a character
        assert without_newlines(single.thinking + single.answer) == without_newlines(said)


def without_newlines(text: str) -> str:
    return text.replace("\n", "").rstrip("\ufffd")


@settings(FIXED, max_examples=300)
@given(ids=st.lists(st.integers(0, 129_279) | st.integers(128_800, 128_850), max_size=40))
def test_any_ids_parse(tokenizer: Tokenizer, ids: list[int]) -> None:
    whole = StreamParser(tokenizer, THINKING, TOOLS)
    deltas = whole.feed(ids)
    reply = whole.finish("stop")
    assert shown(deltas + reply.deltas, "answer") == reply.answer


@FIXED
@given(data=st.binary(max_size=30))
def test_bytes_become_text_as_a_whole_decoder_reads_them(tiny: Tokenizer, data: bytes) -> None:
    by_byte = {tiny.bytes_of(id): id for id in range(tiny.vocab_size)}
    ids = [by_byte[bytes([byte])] for byte in data]
    reply, _ = parse(tiny, ids, ANSWER)
    whole = codecs.getincrementaldecoder("utf-8")("replace").decode(data)
    assert reply.answer == whole.lstrip("\n")


@FIXED
@given(
    schema=json_values
    | st.dictionaries(
        st.sampled_from(
            ["type", "required", "properties", "items", "enum", "additionalProperties"]
        ),
        json_values | st.sampled_from(["object", "string", False, ["object", "null"]]),
    ),
    value=json_values,
)
def test_odd_schemas_never_raise(schema: object, value: object) -> None:
    assert mismatch(value, schema) is None or isinstance(mismatch(value, schema), str)
