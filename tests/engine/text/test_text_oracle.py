"""Agreement with DeepSeek's own encoder and parser (the deepseek-recipe wheel), where it is
installed.

Random chats and replies of the kinds on which the two should agree: well-formed ones. What we do
otherwise on purpose is in test_parser. In two cases this oracle leaves the reference encoder, which
we follow: an empty user message beside another one (no blank line), and earlier turns in chat mode
with tools (with think tokens). The chats here avoid both.
"""

import json
import random
from pathlib import Path

import pytest

from engine.protocol import ChatMessage, ToolCall
from engine.text.encoding import ChatEncoder
from engine.text.tokenizer import Tokenizer
from tests.engine.text.support import ANSWER, THINKING, D, invoke, param, parse, sampled

recipe = pytest.importorskip("deepseek_recipe")

TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": "It <think>s.", "parameters": {"type": "object"}},
    }
    for name in ("read_clock", "list_lamps")
]
TEXTS = [
    "Hi",
    "a\n\nb ",
    "<think>",
    "</think>x",
    "<｜User｜>",
    "東京 👩🏽‍🚀",
    "  def f():\n",
    D,
    "{1}",
    "é",
]


@pytest.fixture(scope="module")
def oracle_tokenizer(full_path: Path):
    return recipe.Tokenizer.from_file(str(full_path))


def text(rng: random.Random, low: int = 0) -> str:
    return "".join(rng.choice(TEXTS) for _ in range(rng.randint(low, 3)))


def random_chat(rng: random.Random, with_tools: bool) -> list[ChatMessage]:
    chat = [ChatMessage("system", content=text(rng))] if rng.random() < 0.7 else []
    for turn in range(rng.randint(0, 3)):
        chat.append(ChatMessage("user", content=text(rng, 1)))
        while with_tools and rng.random() < 0.4:
            names = [rng.choice(["read_clock", "list_lamps"]) for _ in range(rng.randint(1, 3))]
            calls = [
                ToolCall(f"{turn}-{len(chat)}-{i}", name, json.dumps({"zone": text(rng), "n": i}))
                for i, name in enumerate(names)
            ]
            chat.append(ChatMessage("assistant", text(rng), text(rng), tool_calls=calls))
            results = [ChatMessage("tool", text(rng), tool_call_id=call.id) for call in calls]
            rng.shuffle(results)
            chat += results
        chat.append(ChatMessage("assistant", text(rng, 1), text(rng)))
    if rng.random() < 0.2 and (not chat or chat[-1].role != "tool"):
        chat.append(ChatMessage("latest_reminder", content="Monday"))
    return [*chat, *(ChatMessage("user", content=text(rng, 1)) for _ in range(rng.randint(1, 2)))]


def theirs(chat: list[ChatMessage], thinking: bool, effort: str | None, with_tools: bool):
    messages = []
    for message in chat:
        match message.role:
            case "system":
                messages.append(recipe.SystemMessage(message.content))
            case "user":
                messages.append(recipe.UserMessage(message.content))
            case "latest_reminder":
                messages.append(recipe.LatestReminderMessage(message.content))
            case "tool":
                messages.append(recipe.ToolMessage(message.content, message.tool_call_id))
            case "assistant":
                calls = [recipe.ToolCall(c.id, c.name, c.arguments) for c in message.tool_calls]
                messages.append(
                    recipe.AssistantMessage(message.content, message.reasoning, calls or None)
                )
    declared = [
        recipe.ToolDefinition(f["name"], f["description"], f["parameters"])
        for f in (t["function"] for t in TOOLS if with_tools)
    ]
    return recipe.Conversation(
        messages, thinking_mode=thinking, tools=declared, reasoning_effort=effort
    )


def test_prompts_of_random_chats(encoder: ChatEncoder, oracle_tokenizer) -> None:
    rng = random.Random(5)
    oracle = recipe.DeepseekV4Encoding().with_tokenizer(oracle_tokenizer)
    for _ in range(400):
        effort = rng.choice(["none", "low", "high", "max"])
        thinking = effort != "none"
        with_tools = thinking and rng.random() < 0.6
        chat = random_chat(rng, with_tools)
        tools = TOOLS if with_tools else []
        encoder.validate(chat, tools, effort=effort)
        prompt = encoder.encode(chat, effort=effort, tools=tools)
        conversation = theirs(chat, thinking, effort if thinking else None, with_tools)
        assert prompt.text == oracle.render_conversation(conversation).prompt
        assert prompt.ids == oracle.encode(conversation)


def oracle_parse(oracle_tokenizer, ids: list[int], thinking: bool, reason: str) -> tuple:
    request = recipe.ChatCompletionRequest(
        {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}
    )
    version = recipe.ConversionOptions().with_model_alias("m", recipe.ModelVersion.DeepseekV4Pro)
    generator = recipe.ChatCompletionRequest.chunk_generator(request.convert(version), "i", "m")
    stage = recipe.ThinkingInitialStage.ReasoningStart if thinking else None
    options = recipe.ParsingOptions(parse_tool_calls=True, thinking_initial_stage=stage)
    stream = recipe.StreamProcessor(generator, options, oracle_tokenizer)
    finish = recipe.InferenceFinishReason
    chunks = stream.push(recipe.InferenceChunk.ready())
    for id in ids:
        chunks += stream.push(recipe.InferenceChunk.tokens([id]))
    end = finish.Stop if reason == "stop" else finish.Length
    chunks += stream.push(recipe.InferenceChunk.finish(end))
    chunks += stream.finish()
    reasoning, content, calls, reasons = "", "", [], []
    for choice in (c for chunk in chunks for c in json.loads(chunk.to_json()).get("choices", [])):
        delta = choice.get("delta", {})
        reasoning += delta.get("reasoning_content") or ""
        content += delta.get("content") or ""
        for call in delta.get("tool_calls") or []:
            function = call.get("function", {})
            if function.get("name"):
                calls.append([function["name"], ""])
            if function.get("arguments"):
                calls[-1][1] += function["arguments"]
        reasons += [choice["finish_reason"]] if choice.get("finish_reason") else []
    return reasoning, content, calls, reasons


def random_reply(rng: random.Random) -> tuple[str, bool]:
    """A well-formed reply and whether it starts with reasoning."""
    odd = ["\n", "\n\n", " <", "</", "<b", "x", "👩", "𝔘 ", D + "y", "> ", "\t"]

    def prose() -> str:
        return "".join(rng.choice(odd) for _ in range(rng.randint(0, 6)))

    thinking = rng.random() < 0.5
    reply = prose() + "</think>" if thinking else ""
    reply += prose().replace("<" + D, D)
    if rng.random() < 0.6:
        calls = []
        for _ in range(rng.randint(1, 3)):
            values = [(key, prose().replace(D, "")) for key in "ab"[: rng.randint(0, 2)]]
            parameters = [param(key, value) for key, value in values]
            parameters += [param("c", '[1, {"d": null}]', "false")] * rng.randint(0, 1)
            calls.append(invoke(rng.choice(["read_clock", "list_lamps"]), *parameters))
        reply += "x" + f"\n\n<{D}tool_calls>\n" + "\n".join(calls) + f"\n</{D}tool_calls>"
        reply += rng.choice(["", "", "more"])
    return reply, thinking


def test_parses_of_random_replies(tokenizer: Tokenizer, oracle_tokenizer) -> None:
    rng = random.Random(6)
    compared = 0
    for _ in range(600):
        text, thinking = random_reply(rng)
        if (
            "<" + D in text.partition(f"<{D}tool_calls>")[0]
            or "</" + D in text.partition("\n\n<")[0]
        ):
            continue  # markup in prose: ours shows it, theirs loses text
        compared += 1
        reason = rng.choice(["stop", "length"])
        ids = sampled(tokenizer, text)
        reply, _ = parse(tokenizer, ids, THINKING if thinking else ANSWER, TOOLS, reason=reason)
        calls = [[call.name, call.arguments] for call in reply.tool_calls]
        assert (reply.thinking, reply.answer, calls, [reply.finish_reason]) == oracle_parse(
            oracle_tokenizer, ids, thinking, reason
        )
    assert compared > 400
