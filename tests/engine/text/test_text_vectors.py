"""Golden vectors made with DeepSeek's encoder and parser: text, ids, parses (chat-encoding 11)."""

import json
from pathlib import Path

import pytest

from engine.protocol import ToolCall
from engine.text.encoding import ChatEncoder
from engine.text.layout import LayoutOptions
from engine.text.messages import from_openai
from engine.text.parser import ReplyStart, StreamParser
from engine.text.tokenizer import Tokenizer

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text(encoding="utf-8"))
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("read_clock", "set_lamp", "list_lamps", "run")
]


def options_of(vector: dict) -> LayoutOptions:
    options = vector["options"]
    effort = options["reasoning_effort"] or "low"
    return LayoutOptions(
        effort=effort if options["thinking_mode"] == "thinking" else "none",
        profile=vector["profile"],
        drop_reasoning=options["drop_thinking"],
        bos=options["add_bos"],
    )


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=lambda vector: vector["id"])
def test_prompt_matches_reference(vector: dict, encoder: ChatEncoder) -> None:
    messages = [from_openai(message) for message in vector["messages"]]
    prompt = encoder.encode_messages(messages, options_of(vector))
    assert prompt.text == vector["prompt"]
    assert prompt.ids == vector["ids"]
    assert prompt.ids != vector.get("ids_must_not_be")


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 10_000])
@pytest.mark.parametrize("vector", VECTORS["parse_vectors"], ids=lambda vector: vector["id"])
def test_parse_matches_reference(vector: dict, chunk: int, tokenizer: Tokenizer) -> None:
    options, expect, ids = vector["options"], vector["expect"], vector["ids"]
    start = ReplyStart("thinking" if options["start"] == "reasoning" else "answer")
    parser = StreamParser(tokenizer, start, TOOLS if options["parse_tool_calls"] else [])
    deltas = []
    for at in range(0, len(ids), chunk):
        deltas += parser.feed(ids[at : at + chunk])
    reply = parser.finish(options["end"])
    deltas += reply.deltas
    assert reply.thinking == expect["reasoning"]
    assert reply.answer == expect["content"]
    assert [pair(call) for call in reply.tool_calls] == [
        (call["name"], call["arguments"]) for call in expect["tool_calls"]
    ]
    assert all(not call.error for call in reply.tool_calls)
    assert reply.finish_reason == expect["finish_reason"]
    for channel, text in (("thinking", reply.thinking), ("answer", reply.answer)):
        assert "".join(delta.text for delta in deltas if delta.channel == channel) == text
    shown = "".join(f"{call.name} {call.arguments}\n" for call in reply.tool_calls)
    assert "".join(delta.text for delta in deltas if delta.channel == "tool") == shown


def pair(call: ToolCall) -> tuple[str, str]:
    return call.name, call.arguments
