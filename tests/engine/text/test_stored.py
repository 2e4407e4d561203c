"""Reuse of sampled ids: repeated exactly while they say the same turn, never otherwise."""

import msgspec
import pytest

from engine.protocol import ChatMessage
from engine.text.control import Control
from engine.text.encoding import ChatEncoder, Prompt
from engine.text.parser import StreamParser
from engine.text.tokenizer import Tokenizer
from tests.engine.text.support import TOOLS, D, block, invoke, param, sampled

USER = ChatMessage("user", content="Hi")
EOS = "<｜end▁of▁sentence｜>"


def odd_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of `text` that encoding would not choose: one token per character where there is one."""
    ids: list[int] = []
    for char in text:
        ids += tokenizer.encode_text(char)
    return ids


def reply(
    encoder: ChatEncoder, prompt: Prompt, ids: list[int], tools: list, reason: str = "stop"
) -> ChatMessage:
    parser = StreamParser(encoder._tokenizer, prompt, tools)
    parser.feed(ids)
    return parser.finish(reason).message(ids)  # type: ignore[arg-type]


def turn(encoder: ChatEncoder, text: str | list[int], effort: str = "none", **more) -> tuple:
    """A first exchange: its prompt, the ids sampled, the message stored."""
    tools = more.get("tools", [])
    prompt = encoder.encode([USER], effort=effort, tools=tools)  # type: ignore[arg-type]
    ids = sampled(encoder._tokenizer, text) if isinstance(text, str) else text
    return prompt, ids, reply(encoder, prompt, ids, tools, more.get("reason", "stop"))


@pytest.mark.parametrize("end", ["", EOS])
@pytest.mark.parametrize("effort", ["none", "low"])
def test_next_prompt_repeats_the_sampled_ids(
    encoder: ChatEncoder, tokenizer: Tokenizer, effort: str, end: str
) -> None:
    lead = [] if effort == "none" else odd_ids(tokenizer, "\nhm\n") + sampled(tokenizer, "</think>")
    ids = lead + odd_ids(tokenizer, "\n\nHello there") + sampled(tokenizer, end)
    prompt, ids, message = turn(encoder, ids, effort, tools=TOOLS)
    later = encoder.encode([USER, message, USER], effort=effort, tools=TOOLS)  # type: ignore[arg-type]
    want = prompt.ids + ids + ([] if end else [tokenizer.eos_id])
    assert later.ids[: len(want)] == want
    assert later.reused_ids > 0
    assert tokenizer.decode(later.ids) == later.text


def test_calls_are_repeated_as_sampled(encoder: ChatEncoder, tokenizer: Tokenizer) -> None:
    call = invoke("set_lamp", param("lamp", "x"), param("level", " 20 ", "false"))
    prompt, ids, message = turn(encoder, "r\n</think>" + block(call), "low", tools=TOOLS)
    result = ChatMessage("tool", content="ok", tool_call_id=message.tool_calls[0].id)
    later = encoder.encode([USER, message, result], effort="low", tools=TOOLS)
    want = [*prompt.ids, *ids, tokenizer.eos_id]
    assert later.ids[: len(want)] == want


def test_edited_turn_is_rendered_from_its_text(encoder: ChatEncoder) -> None:
    _, _, message = turn(encoder, "Hello there")
    for changed in ({"content": "Hello"}, {"token_ids": [5, 6]}, {"token_ids": [-1]}):
        edited = msgspec.structs.replace(message, **changed)
        later = encoder.encode([USER, edited, USER])
        assert later.reused_ids == 0
        assert edited.content + EOS in later.text


def test_dropped_reasoning_is_not_brought_back(encoder: ChatEncoder) -> None:
    _, _, message = turn(encoder, "secret</think>Hello", "low")
    for effort in ("low", "none"):
        later = encoder.encode([USER, message, USER], effort=effort)  # type: ignore[arg-type]
        assert "secret" not in later.text
        assert later.reused_ids == 0
    kept = encoder.encode([USER, message, USER], effort="low", tools=TOOLS)
    assert "<think>secret</think>Hello" in kept.text


@pytest.mark.parametrize(
    ("text", "effort"),
    [
        ("All of it reasoning", "low"),  # unclosed: stored as the answer
        ("A</think>B</think>C", "low"),
        ("A</think>B<think>C", "low"),
        ("</think>Hello", "none"),
        (f"see <{D} tool", "none"),
    ],
)
def test_slips_of_the_model_are_not_repeated(encoder: ChatEncoder, text: str, effort: str) -> None:
    _, _, message = turn(encoder, text, effort, tools=TOOLS)
    later = encoder.encode([USER, message, USER], effort=effort, tools=TOOLS)  # type: ignore[arg-type]
    assert later.reused_ids == 0
    assert message.content + EOS in later.text


def test_cut_character_is_not_repeated(encoder: ChatEncoder, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_text("ok ") + tokenizer.encode_text("👩")[:1]
    _, _, message = turn(encoder, ids, reason="cancelled")
    assert message.content == "ok "
    assert encoder.encode([USER, message, USER]).reused_ids == 0
    open_turn = msgspec.structs.replace(message, unfinished=True)
    prompt = encoder.encode([USER, open_turn])
    assert prompt.ids[-prompt.reused_ids :] == tokenizer.encode_text("ok ")


@pytest.mark.parametrize(
    ("text", "start"),
    [("Let me", "thinking"), ("Let me</think>", "answer"), ("Let me</think>Once up", "answer")],
)
def test_continuing_repeats_the_ids_and_their_state(
    encoder: ChatEncoder, tokenizer: Tokenizer, text: str, start: str
) -> None:
    prompt, ids, message = turn(encoder, text, "low", reason="cancelled")
    open_turn = msgspec.structs.replace(message, unfinished=True)
    rest = encoder.encode([USER, open_turn], effort="low")
    assert rest.ids == prompt.ids + ids
    assert (rest.starts_in, rest.continues) == (start, True)


def test_continued_reply_equals_an_uninterrupted_one(
    encoder: ChatEncoder, tokenizer: Tokenizer
) -> None:
    ids = sampled(tokenizer, "One\n\ntwo <x </think>\n\nthree\n\nfour 👩 <")
    whole = turn(encoder, ids, "low")[2]
    for cut in range(1, len(ids)):
        _, _, part = turn(encoder, ids[:cut], "low", reason="cancelled")
        part = msgspec.structs.replace(part, unfinished=True)
        prompt = encoder.encode([USER, part], effort="low")
        parser = StreamParser(tokenizer, prompt, [])
        done = len(prompt.ids) - len(encoder.encode([USER], effort="low").ids)
        if prompt.ids[-done:] != ids[:done]:
            continue  # cut in a token that ends a word and begins a character: rendered anew
        parser.feed(ids[done:])
        rest = parser.finish("stop")
        joined = (part.reasoning + rest.thinking).rstrip("\n"), part.content + rest.answer
        assert joined == (whole.reasoning, whole.content) or leading_newlines(part, joined, whole)


def leading_newlines(part: ChatMessage, joined: tuple[str, str], whole: ChatMessage) -> bool:
    """Cut between the closing think token and the answer: its first newlines are then text."""
    cut_there = not part.content and joined[1].lstrip("\n") == whole.content
    return cut_there and joined[0] == whole.reasoning


# ---- failed calls -------------------------------------------------------------------------------


def failed(encoder: ChatEncoder, call: str) -> list[ChatMessage]:
    _, _, message = turn(encoder, "Look." + block(call), tools=TOOLS)
    assert message.tool_calls[0].error
    error = f"Error: malformed tool call: {message.tool_calls[0].error}"
    id = message.tool_calls[0].id
    return [USER, message, ChatMessage("tool", content=error, tool_call_id=id)]


BROKEN = invoke("set_lamp", param("lamp", "x"), param("level", "twenty", "false"))


def test_failed_call_is_repeated_from_its_ids(encoder: ChatEncoder, tokenizer: Tokenizer) -> None:
    chat = failed(encoder, BROKEN)
    encoder.validate(chat, TOOLS)
    prompt = encoder.encode(chat, tools=TOOLS)
    assert BROKEN in prompt.text
    assert "Error: malformed" in prompt.text
    dsml = tokenizer.id_of(Control.DSML)
    assert chat[1].token_ids.count(dsml) <= prompt.ids.count(dsml)


def test_failed_call_without_ids_is_left_out_with_its_result(encoder: ChatEncoder) -> None:
    chat = failed(encoder, BROKEN)
    chat[1] = msgspec.structs.replace(chat[1], token_ids=[])
    prompt = encoder.encode([*chat, USER], tools=TOOLS)
    assert prompt.text.endswith(f"Look.{EOS}<｜User｜>Hi<｜Assistant｜></think>")
    assert "malformed" not in prompt.text


def test_last_failed_turn_without_ids_is_asked_again(encoder: ChatEncoder) -> None:
    chat = failed(encoder, BROKEN)
    chat[1] = msgspec.structs.replace(chat[1], token_ids=[])
    assert encoder.encode(chat, tools=TOOLS).ids == encoder.encode([USER], tools=TOOLS).ids


def test_failed_call_with_whole_arguments_is_rendered(encoder: ChatEncoder) -> None:
    chat = failed(encoder, invoke("read_clock", param("place", "UTC")))
    chat[1] = msgspec.structs.replace(chat[1], token_ids=[])
    prompt = encoder.encode(chat, tools=TOOLS)
    assert param("place", "UTC") in prompt.text
    assert "zone is missing" in prompt.text


def test_reuse_depends_on_header_and_tools(encoder: ChatEncoder) -> None:
    _, _, message = turn(encoder, "hm</think>Hello", "low")
    chat = [USER, message, USER]
    assert encoder.encode(chat, effort="low", drop_reasoning=False).reused_ids > 0
    assert encoder.encode(chat, effort="none", drop_reasoning=False).reused_ids == 0
    call = block(invoke("read_clock", param("zone", "UTC")))
    _, _, message = turn(encoder, "Look." + call, tools=TOOLS)
    result = ChatMessage("tool", content="ok", tool_call_id=message.tool_calls[0].id)
    assert encoder.encode([USER, message, result], tools=TOOLS).reused_ids > 0
    assert encoder.encode([USER, message, result]).reused_ids == 0


def test_call_out_of_unclosed_reasoning_is_rendered_closed(encoder: ChatEncoder) -> None:
    call = block(invoke("read_clock", param("zone", "UTC")))
    _, _, message = turn(encoder, "Look" + call, "low", tools=TOOLS)
    result = ChatMessage("tool", content="ok", tool_call_id=message.tool_calls[0].id)
    prompt = encoder.encode([USER, message, result], effort="low", tools=TOOLS)
    assert "<think>Look</think>" + call in prompt.text


def test_reasoning_cut_in_an_earlier_turn_is_closed(encoder: ChatEncoder) -> None:
    _, _, message = turn(encoder, "Let me", "low", reason="cancelled")
    prompt = encoder.encode([USER, message, USER], effort="low", tools=TOOLS)
    assert f"<think>Let me</think>{EOS}" in prompt.text


def test_left_out_call_does_not_take_a_later_one_of_the_same_id(encoder: ChatEncoder) -> None:
    chat = failed(encoder, BROKEN)
    chat[1] = msgspec.structs.replace(chat[1], token_ids=[])
    again = msgspec.structs.replace(chat[1].tool_calls[0], arguments='{"lamp": "y"}', error="")
    whole = ChatMessage("assistant", tool_calls=[again])
    result = ChatMessage("tool", content="lit", tool_call_id=again.id)
    prompt = encoder.encode([*chat, USER, whole, result], tools=TOOLS)
    assert "<tool_result>lit</tool_result>" in prompt.text
    assert "malformed" not in prompt.text


def test_failed_call_without_tools_declared_is_left_out(encoder: ChatEncoder) -> None:
    _, _, message = turn(encoder, "hm</think>Look." + block(BROKEN), "low", tools=TOOLS)
    result = ChatMessage("tool", content="Error", tool_call_id=message.tool_calls[0].id)
    prompt = encoder.encode([USER, message, result, USER], effort="low")
    assert "Look." in prompt.text
    assert "set_lamp" not in prompt.text
    assert "Error" not in prompt.text
