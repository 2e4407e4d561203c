"""Malformed output: each row of the table of chat-encoding 8.4 is a test."""

import pytest

from engine.text.tokenizer import Tokenizer
from tests.engine.text.support import (
    D,
    block,
    invoke,
    param,
    parse,
    sampled,
    shown,
    tool,
)

CLOCK = invoke("read_clock", param("zone", "UTC"))
CLOCK_ARGUMENTS = '{"zone": "UTC"}'


def only_call(reply):
    (call,) = reply.tool_calls
    return call


# ---- the table of malformed output -------------------------------------------------------------


def test_never_closed_and_stopped_is_shown_as_the_answer(tokenizer: Tokenizer) -> None:
    reply, _ = parse(tokenizer, "Good morning!")
    assert (reply.thinking, reply.answer) == ("Good morning!", "")
    assert reply.unclosed_thinking
    message = reply.message([1, 2])
    assert (message.content, message.reasoning) == ("Good morning!", "")


def test_never_closed_and_cut_stays_reasoning(tokenizer: Tokenizer) -> None:
    reply, _ = parse(tokenizer, "Let me see", reason="length")
    assert not reply.unclosed_thinking
    assert reply.message().reasoning == "Let me see"
    assert reply.finish_reason == "length"


def test_call_before_the_closing_think_ends_reasoning(tokenizer: Tokenizer) -> None:
    reply, _ = parse(tokenizer, "Look" + block(CLOCK))
    assert (reply.thinking, reply.answer) == ("Look", "")
    assert only_call(reply).arguments == CLOCK_ARGUMENTS
    assert only_call(reply).error == ""
    assert not reply.unclosed_thinking


def test_second_close_is_swallowed_with_a_warning(tokenizer: Tokenizer) -> None:
    reply, _ = parse(tokenizer, "A</think>B</think>C")
    assert reply.answer == "BC"
    assert any("more than once" in warning for warning in reply.warnings)


def test_think_again_is_text(tokenizer: Tokenizer) -> None:
    reply, _ = parse(tokenizer, "A</think>B<think>C")
    assert reply.answer == "B<think>C"
    assert reply.warnings


def test_self_closing_invoke_is_a_call_without_arguments(tokenizer: Tokenizer) -> None:
    reply, _ = parse(tokenizer, "</think>" + block(f'<{D}invoke name="list_lamps"/>'))
    assert (only_call(reply).name, only_call(reply).arguments) == ("list_lamps", "{}")
    assert only_call(reply).error == ""


def test_missing_wrapper_is_parsed_if_closed_and_declared(tokenizer: Tokenizer) -> None:
    reply, deltas = parse(tokenizer, f"</think>ok\n\n{CLOCK}")
    assert reply.answer == "ok"
    assert only_call(reply).arguments == CLOCK_ARGUMENTS
    assert reply.finish_reason == "tool_calls"
    assert shown(deltas, "tool") == f"read_clock {CLOCK_ARGUMENTS}\n"


@pytest.mark.parametrize(
    "text",
    [
        f"ok\n\n{invoke('no_such_tool', param('a', 'b'))} and more",
        f'ok\n\n<{D}invoke name="read_clock">\n{param("zone", "UTC")}',
        f'ok\n\n<{D}invoke name="read_clock">\n{param("zone", "UTC")}\n</{D}tool_calls>',
    ],
    ids=["undeclared", "never-closed", "closed-by-the-block-only"],
)
def test_missing_wrapper_is_text_otherwise(tokenizer: Tokenizer, text: str) -> None:
    reply, deltas = parse(tokenizer, "</think>" + text)
    assert reply.tool_calls == []
    assert reply.answer == text
    assert shown(deltas, "tool") == ""


def test_invoke_close_missing_before_the_block_close(tokenizer: Tokenizer) -> None:
    reply, _ = parse(
        tokenizer, "</think>" + block(f'<{D}invoke name="read_clock">\n{param("zone", "UTC")}')
    )
    assert only_call(reply).arguments == CLOCK_ARGUMENTS
    assert only_call(reply).error == ""


def test_invoke_close_missing_before_the_next_invoke(tokenizer: Tokenizer) -> None:
    first = f'<{D}invoke name="read_clock">\n{param("zone", "UTC")}'
    reply, _ = parse(tokenizer, "</think>" + block(first, invoke("list_lamps")))
    assert [(call.name, call.arguments, call.error) for call in reply.tool_calls] == [
        ("read_clock", CLOCK_ARGUMENTS, ""),
        ("list_lamps", "{}", ""),
    ]


@pytest.mark.parametrize("wrapper", ["", f"<{D}tool_calls>\n"])
def test_prose_that_mentions_an_invoke_is_shown(tokenizer: Tokenizer, wrapper: str) -> None:
    text = f'Write\n{wrapper}<{D}invoke name="list_lamps"> to call it.\nDone.'
    reply, _ = parse(tokenizer, "</think>" + text)
    assert reply.tool_calls == []
    assert reply.answer == text
    assert reply.finish_reason == "stop"


def test_block_opener_in_reasoning_prose_is_shown_again(tokenizer: Tokenizer) -> None:
    text = f"I could open <{D}tool_calls> here, or not."
    reply, _ = parse(tokenizer, f"{text}</think>Hello")
    assert (reply.thinking, reply.answer) == (text, "Hello")
    assert reply.tool_calls == []


def test_call_after_prose_about_the_markup_is_found(tokenizer: Tokenizer) -> None:
    prose = f'Say <{D}tool_calls> or <{D}invoke name="x">.'
    reply, _ = parse(tokenizer, f"{prose}</think>Now{block(CLOCK)}")
    assert (reply.thinking, reply.answer) == (prose, "Now")
    assert only_call(reply).arguments == CLOCK_ARGUMENTS


def test_open_parameter_in_reasoning_prose_does_not_hide_the_answer(tokenizer: Tokenizer) -> None:
    prose = f'Say <{D}invoke name="x"><{D}parameter name="k" string="true"> first.'
    reply, _ = parse(tokenizer, f"{prose}</think>Answer")
    assert (reply.thinking, reply.answer) == (prose, "Answer")


def test_opener_followed_by_text_to_the_end_is_shown(tokenizer: Tokenizer) -> None:
    text = f"A <{D}tool_calls> block.\n"
    reply, _ = parse(tokenizer, "</think>" + text)
    assert reply.answer == text


def test_empty_block_is_skipped(tokenizer: Tokenizer) -> None:
    reply, _ = parse(tokenizer, f"</think>A\n\n<{D}tool_calls>\n</{D}tool_calls>B")
    assert reply.answer == "A\n\nB"
    assert reply.finish_reason == "stop"
    assert reply.warnings


def test_stray_closer_is_swallowed(tokenizer: Tokenizer) -> None:
    reply, _ = parse(tokenizer, f"</think>a </{D}invoke> b")
    assert reply.answer == "a  b"
    assert reply.warnings


def test_value_that_is_not_json_fails_the_call(tokenizer: Tokenizer) -> None:
    call = invoke("set_lamp", param("lamp", "desk"), param("level", "twenty", "false"))
    reply, _ = parse(tokenizer, "</think>" + block(call))
    assert "not JSON" in only_call(reply).error
    assert reply.finish_reason == "tool_calls"


@pytest.mark.parametrize(
    "value", ["NaN", "", "{'a': 1}", "[1,", '{"a": 1, "a": 2}', "[" * 100_000], ids=range(6)
)
def test_values_json_does_not_allow_fail_the_call(tokenizer: Tokenizer, value: str) -> None:
    call = invoke("set_lamp", param("lamp", "desk"), param("level", value, "false"))
    reply, _ = parse(tokenizer, "</think>" + block(call))
    assert "not JSON" in only_call(reply).error


@pytest.mark.parametrize(
    "attributes",
    ['name="zone"', 'name="zone" string="maybe"', 'string="true" name="zone"', 'string="true"'],
)
def test_malformed_attributes_fail_the_call(tokenizer: Tokenizer, attributes: str) -> None:
    call = f'<{D}invoke name="read_clock">\n<{D}parameter {attributes}>UTC</{D}parameter>\n'
    reply, _ = parse(tokenizer, "</think>" + block(call + f"</{D}invoke>"))
    assert "malformed" in only_call(reply).error


def test_duplicate_parameter_fails_the_call(tokenizer: Tokenizer) -> None:
    call = invoke("read_clock", param("zone", "UTC"), param("zone", "CET"))
    reply, _ = parse(tokenizer, "</think>" + block(call))
    assert "twice" in only_call(reply).error


@pytest.mark.parametrize("reason", ["length", "cancelled"])
def test_value_that_was_cut_is_no_call(tokenizer: Tokenizer, reason) -> None:
    text = (
        f'<{D}tool_calls>\n<{D}invoke name="read_clock">\n<{D}parameter name="zone" string="true">U'
    )
    reply, _ = parse(tokenizer, "</think>One moment\n\n" + text, reason=reason)
    assert reply.tool_calls == []
    assert reply.partial_call
    assert reply.answer == "One moment"
    assert reply.finish_reason == reason


def test_first_call_of_a_cut_block_is_kept(tokenizer: Tokenizer) -> None:
    text = block(CLOCK).removesuffix(f"</{D}tool_calls>") + f'<{D}invoke name="list_lamps">'
    reply, _ = parse(tokenizer, "</think>" + text, reason="length")
    assert only_call(reply).name == "read_clock"
    assert reply.partial_call


def test_unclosed_second_call_fails_when_the_model_stopped(tokenizer: Tokenizer) -> None:
    text = block(CLOCK).removesuffix(f"</{D}tool_calls>") + f'<{D}invoke name="list_lamps">'
    reply, _ = parse(tokenizer, "</think>" + text)
    assert [call.error for call in reply.tool_calls] == ["", "the call is not closed"]


def test_json_body_is_used_as_arguments(tokenizer: Tokenizer) -> None:
    reply, _ = parse(tokenizer, "</think>" + block(invoke("read_clock", '{"zone": "UTC"}')))
    assert (only_call(reply).arguments, only_call(reply).error) == (CLOCK_ARGUMENTS, "")


@pytest.mark.parametrize("body", ["zone=UTC", '{"zone": ', '["UTC"]'])
def test_other_body_fails_the_call(tokenizer: Tokenizer, body: str) -> None:
    reply, _ = parse(tokenizer, "</think>" + block(invoke("read_clock", body)))
    assert only_call(reply).error


def test_text_between_parameters_fails_the_call(tokenizer: Tokenizer) -> None:
    call = invoke("read_clock", param("zone", "UTC"), "fade=true")
    reply, _ = parse(tokenizer, "</think>" + block(call))
    assert "between the parameters" in only_call(reply).error


@pytest.mark.parametrize("name", ["arguments", "input"])
@pytest.mark.parametrize("string", ["true", "false"])
def test_wrapped_arguments_are_unwrapped(tokenizer: Tokenizer, name: str, string: str) -> None:
    call = invoke("read_clock", param(name, '{"zone": "UTC"}', string))
    reply, _ = parse(tokenizer, "</think>" + block(call))
    assert (only_call(reply).arguments, only_call(reply).error) == (CLOCK_ARGUMENTS, "")


def test_wrapped_arguments_that_do_not_match_are_not_unwrapped(tokenizer: Tokenizer) -> None:
    call = invoke("read_clock", param("input", '{"place": "UTC"}', "false"))
    reply, _ = parse(tokenizer, "</think>" + block(call))
    assert only_call(reply).error == "zone is missing"


def test_a_declared_parameter_named_input_is_not_unwrapped(tokenizer: Tokenizer) -> None:
    tools = [tool("f", {"input": {"type": "string"}, "zone": {"type": "string"}})]
    call = invoke("f", param("input", '{"zone": "UTC"}'))
    reply, _ = parse(tokenizer, "</think>" + block(call), tools=tools)
    assert only_call(reply).arguments == '{"input": "{\\"zone\\": \\"UTC\\"}"}'


@pytest.mark.parametrize("bars", ["|DSML|", "｜｜DSML｜｜", "||DSML||"])
def test_wrong_bars_are_text_with_a_hint(tokenizer: Tokenizer, bars: str) -> None:
    text = CLOCK.replace(D, bars)
    ids = sampled(tokenizer, "</think>") + tokenizer.encode_text(text)
    reply, _ = parse(tokenizer, ids)
    assert reply.answer == text
    assert reply.tool_calls == []
    assert any("broken tool call" in warning for warning in reply.warnings)


def test_text_after_the_calls_is_dropped(tokenizer: Tokenizer) -> None:
    reply, deltas = parse(tokenizer, f"</think>{block(CLOCK)}and more</think>x<{D}tool_calls>")
    assert reply.answer == ""
    assert shown(deltas, "answer") == ""
    assert only_call(reply).error == ""
