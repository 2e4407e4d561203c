"""Validation: every refusal of chat-encoding 4.7, in words that name the place and the way out."""

import pytest

from engine.protocol import ChatMessage, ToolCall
from engine.text.encoding import ChatEncoder
from engine.text.errors import ConversationError
from tests.engine.text.support import TOOLS, tool


def user(text: str = "Hi") -> ChatMessage:
    return ChatMessage("user", content=text)


def answer(text: str = "Hello.", *ids: str, **more) -> ChatMessage:
    calls = [ToolCall(id, "read_clock", '{"zone": "UTC"}') for id in ids]
    return ChatMessage("assistant", content=text, tool_calls=calls, **more)


def result(id: str) -> ChatMessage:
    return ChatMessage("tool", content="09:41", tool_call_id=id)


def system(text: str = "Be brief.") -> ChatMessage:
    return ChatMessage("system", content=text)


def reminder() -> ChatMessage:
    return ChatMessage("latest_reminder", content="2026-05-04")


@pytest.mark.parametrize(
    "messages",
    [
        [user()],
        [user("")],
        [system(), user()],
        [user("a"), user("b")],
        [user(), answer(), user()],
        [system(), reminder(), user(), answer(), reminder(), user()],
        [user(), answer("", "c1"), result("c1")],
        [user(), answer("", "c1", "c2"), result("c2"), result("c1"), user("Thanks")],
        [user(), answer("", "c1"), result("c1"), answer("", "c1"), result("c1"), answer(), user()],
        [user(), answer("Half", unfinished=True)],
        [user(), answer("", unfinished=True)],
        [user(), answer("", reasoning="cut off"), user()],
    ],
)
def test_well_formed_conversations_pass(encoder: ChatEncoder, messages: list) -> None:
    encoder.validate(messages, TOOLS)
    encoder.encode(messages, tools=TOOLS)


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "conversation is empty"),
        ([system()], "must end with a user message"),
        ([user(), answer()], r"message 2 \(assistant\): the answer is complete"),
        ([reminder()], "must end with a user message"),
        ([user(), system(), user()], r"message 2 \(system\): a system message must be first"),
        ([user(), reminder(), user()], "must stand before the user message"),
        ([reminder(), answer(), user()], "must be followed by a user message"),
        ([answer(), user()], "must follow a user message"),
        ([system(), answer(), user()], "must follow a user message"),
        ([user(), answer(), answer(), user()], "must follow a user message"),
        ([user(), answer(""), user()], "the answer is empty"),
        ([user(), result("c1")], "no call of the answer before it has the id 'c1'"),
        ([user(), answer("", "c1"), result("c9")], "has the id 'c9'"),
        ([user(), answer("", "c1"), result("c1"), result("c1")], "second result"),
        ([user(), answer("", "c1"), user()], "has no result yet.*cancelled by user"),
        ([user(), answer("", "c1", "c2"), result("c1")], "has no result yet"),
        ([user(), answer("", "c1", "c2"), result("c1"), user(), result("c2")], "no result yet"),
        ([user(), answer("", "c1", "c1"), result("c1")], "needs an id of its own"),
        ([user(), answer("", ""), result("")], "needs an id of its own"),
        ([user(), answer("", "c1")], "the answer is complete"),
        ([user(), answer("x", "c1", unfinished=True)], "cannot be continued inside a call"),
        ([ChatMessage("developer", content="x")], "unknown role"),  # type: ignore[arg-type]
        ([ChatMessage("user", content=None)], "content is not text but NoneType"),  # type: ignore[arg-type]
        ([ChatMessage("user", content=[])], "content is not text but list"),  # type: ignore[arg-type]
        ([ChatMessage("user", tool_calls=[ToolCall("a", "b", "{}")])], "only an assistant"),
    ],
)
def test_malformed_conversations_are_refused(
    encoder: ChatEncoder, messages: list, words: str
) -> None:
    with pytest.raises(ConversationError, match=words):
        encoder.validate(messages, TOOLS)


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        ([{"name": "f"}], "needs the form"),
        (["f"], "needs the form"),
        ([tool("", {})], "needs the form"),
        ([tool('a"b', {})], "cannot be written in a call"),
        ([tool("f", {}), tool("f", {})], "second tool is named"),
        ([{"function": {"name": "f", "parameters": []}}], "JSON Schema object"),
        ([{"function": {"name": "f", "x": object()}}], "cannot be written as JSON"),
    ],
)
def test_malformed_tools_are_refused(encoder: ChatEncoder, tools: list, words: str) -> None:
    with pytest.raises(ConversationError, match=words):
        encoder.validate([user()], tools)


@pytest.mark.parametrize(
    ("request_fields", "words"),
    [
        ({"effort": "huge"}, "choose none, low, high or max"),
        ({"task": "poem"}, "choose one of title"),
        ({"task": "title"}, "a title needs the answer"),
        ({"response_format": []}, "must be a JSON object"),
        ({"response_format": {"x": {1}}}, "cannot be written as JSON"),
    ],
)
def test_malformed_requests_are_refused(
    encoder: ChatEncoder, request_fields: dict, words: str
) -> None:
    with pytest.raises(ConversationError, match=words):
        encoder.validate([user()], **request_fields)


def test_tasks_need_their_place(encoder: ChatEncoder) -> None:
    encoder.validate([user(), answer()], task="title")
    encoder.validate([user()], task="query")
    assert encoder.encode([user(), answer()], task="title").text.endswith("｜><｜title｜>")
    with pytest.raises(ConversationError, match="goes on a user message"):
        encoder.validate([user(), answer()], task="query")
