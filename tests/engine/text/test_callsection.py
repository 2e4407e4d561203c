"""Calls: which may be executed, and corners of the section reader (chat-encoding 8.3, 8.4)."""

import pytest

from engine.text.parser import ReplyStart, StreamParser
from engine.text.tokenizer import Tokenizer
from tests.engine.text.support import (
    ANSWER,
    TOOLS,
    D,
    block,
    invoke,
    param,
    parse,
    sampled,
    shown,
)

CLOCK = invoke("read_clock", param("zone", "UTC"))
CLOCK_ARGUMENTS = '{"zone": "UTC"}'


def only_call(reply):
    (call,) = reply.tool_calls
    return call


# ---- executability -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (invoke("gone", param("a", "b")), "no tool is named"),
        (invoke("read_clock"), "zone is missing"),
        (invoke("read_clock", param("zone", "1", "false")), "zone must be string"),
        (
            invoke("set_lamp", param("lamp", "x"), param("level", "1.5", "false")),
            "level must be integer",
        ),
        (
            invoke("set_lamp", param("lamp", "x"), param("level", "true", "false")),
            "level must be integer",
        ),
        (
            f'<{D}invoke name="read_clock"><{D}parameter name="zone" string="true">U</{D}invoke>',
            "not closed",
        ),
        (
            f'<{D}invoke name="read_clock">\n<{D}parameter name="zone" string="true">U\n'
            + param("b", "c")
            + f"\n</{D}invoke>",
            "not closed",
        ),
    ],
)
def test_calls_that_must_not_run(tokenizer: Tokenizer, call: str, error: str) -> None:
    reply, _ = parse(tokenizer, "</think>" + block(call))
    assert error in only_call(reply).error


def test_whole_float_is_an_integer(tokenizer: Tokenizer) -> None:
    call = invoke("set_lamp", param("lamp", "x"), param("level", "20.0", "false"))
    reply, _ = parse(tokenizer, "</think>" + block(call))
    assert only_call(reply).error == ""


def test_dsml_token_inside_a_value_is_text(tokenizer: Tokenizer) -> None:
    call = invoke("read_clock", param("zone", f"a <{D}tool {D} b"))
    reply, _ = parse(tokenizer, "</think>" + block(call))
    assert only_call(reply).arguments == f'{{"zone": "a <{D}tool {D} b"}}'
    assert only_call(reply).error == ""


def test_calls_are_named_by_position(tokenizer: Tokenizer) -> None:
    text = "</think>" + block(CLOCK, invoke("list_lamps"))
    short, _ = parse(tokenizer, text)
    later, _ = parse(tokenizer, text, start=ReplyStart("thinking", position=1000))
    ids = [call.id for call in short.tool_calls + later.tool_calls]
    assert len(set(ids)) == 4


def test_without_tools_markup_is_text(tokenizer: Tokenizer) -> None:
    text = "see" + block(CLOCK)
    reply, _ = parse(tokenizer, "</think>" + text, tools=[])
    assert reply.answer == text
    assert reply.tool_calls == []


# ---- corners of the section reader ---------------------------------------------------------------


def test_close_of_thinking_inside_a_value_is_text(tokenizer: Tokenizer) -> None:
    reply, _ = parse(tokenizer, "r" + block(invoke("read_clock", param("zone", "a</think>b"))))
    assert only_call(reply).arguments == '{"zone": "a</think>b"}'


def test_close_of_thinking_after_a_call_keeps_the_call(tokenizer: Tokenizer) -> None:
    reply, _ = parse(tokenizer, f"r<{D}tool_calls>\n{CLOCK}</think>\n</{D}tool_calls>")
    assert only_call(reply).error == ""
    assert reply.thinking == "r"


@pytest.mark.parametrize("tag", ["to", f"tool{D}", 'invoke name="x"'])
def test_broken_first_tag_does_not_swallow_the_block_after_it(
    tokenizer: Tokenizer, tag: str
) -> None:
    reply, _ = parse(tokenizer, f"</think>a <{D}{tag}{block(CLOCK)}")
    assert reply.answer == f"a <{D}{tag}"
    assert only_call(reply).error == ""


@pytest.mark.parametrize("calls", [block(CLOCK), "\n" + CLOCK])
def test_mentioned_invoke_does_not_swallow_the_call_after_it(
    tokenizer: Tokenizer, calls: str
) -> None:
    prose = f'Use <{D}invoke name="x"> like so:'
    reply, _ = parse(tokenizer, "</think>" + prose + calls)
    assert reply.answer == prose
    assert (only_call(reply).name, only_call(reply).error) == ("read_clock", "")


def test_invoke_tag_without_its_end_fails(tokenizer: Tokenizer) -> None:
    call = f'<{D}invoke name="read_clock"\n{param("zone", "UTC")}\n</{D}invoke>'
    reply, _ = parse(tokenizer, "</think>" + block(call))
    assert only_call(reply).error == "the invoke tag is not closed"


@pytest.mark.parametrize("text", [f"a <{D}tool_calls> is used", f"a </{D}inv"])
def test_prose_about_markup_survives_a_cut(tokenizer: Tokenizer, text: str) -> None:
    reply, _ = parse(tokenizer, "</think>" + text, reason="length")
    assert reply.answer == text
    assert not reply.partial_call


@pytest.mark.parametrize("cut", ["", "inv", 'invoke name="read_clock">', 'invoke name="x">'])
def test_lone_invoke_that_was_cut_is_dropped_if_it_may_be_a_call(
    tokenizer: Tokenizer, cut: str
) -> None:
    reply, _ = parse(tokenizer, f"</think>ok <{D}{cut}", reason="length")
    prose = '"x"' in cut
    assert reply.answer == (f"ok <{D}{cut}" if prose else "ok ")
    assert reply.partial_call is not prose


def test_endless_tag_is_shown_before_the_end(tokenizer: Tokenizer) -> None:
    text = f'<{D}invoke name="' + "word " * 300
    parser = StreamParser(tokenizer, ANSWER, TOOLS)
    assert shown(parser.feed(sampled(tokenizer, text)), "answer").startswith(text[:1000])


def test_free_form_arguments_are_not_unwrapped(tokenizer: Tokenizer) -> None:
    call = invoke("list_lamps", param("input", "{}", "false"))
    reply, _ = parse(tokenizer, "</think>" + block(call))
    assert only_call(reply).arguments == '{"input": {}}'
