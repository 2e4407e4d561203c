"""Parser: each row of the malformed-output table, hold-back, ends of stream (chat-encoding 8)."""

import pytest

from engine.protocol import ChatMessage
from engine.text.control import Control
from engine.text.encoding import ChatEncoder
from engine.text.parser import ReplyStart, StreamParser
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


# ---- hold-back, characters, ends -----------------------------------------------------------------


@pytest.mark.parametrize("text", ["2 <", "a\n", "a\n\n<", "x </", "<", "</", "a\n\n</b", "\r\n\na"])
def test_held_text_survives_the_end(tokenizer: Tokenizer, text: str) -> None:
    for reason in ("stop", "length", "cancelled"):
        reply, deltas = parse(tokenizer, "</think>" + text, reason=reason)
        assert reply.answer == text
        assert shown(deltas, "answer") == text


def test_newlines_are_dropped_only_next_to_markers(tokenizer: Tokenizer) -> None:
    reply, _ = parse(tokenizer, "\n\n \nr\n\n<</think>\n \na\n")
    assert reply.thinking == " \nr\n\n<"
    assert reply.answer == " \na\n"


def test_continued_reply_keeps_its_leading_newlines(tokenizer: Tokenizer) -> None:
    for starts_in in ("thinking", "answer"):
        start = ReplyStart(starts_in, continues=True)
        reply, _ = parse(tokenizer, "\n\nmore", start=start, reason="length")
        assert "\n\nmore" in (reply.thinking, reply.answer)


def test_markup_prose_is_shown_as_soon_as_it_cannot_be_a_tag(tokenizer: Tokenizer) -> None:
    parser = StreamParser(tokenizer, ANSWER, TOOLS)
    deltas = parser.feed(sampled(tokenizer, f"the <{D} token is"))
    assert shown(deltas, "answer") == f"the <{D} token is"


def test_character_split_over_tokens_is_never_shown_in_part(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_text("ok 👨‍👩‍👧 done")
    assert len(ids) > 8
    parser = StreamParser(tokenizer, ANSWER)
    texts = [delta.text for id in ids for delta in parser.feed([id])]
    assert "".join(texts) + parser.finish("stop").answer[len("".join(texts)) :] == "ok 👨‍👩‍👧 done"
    assert not any("\ufffd" in text for text in texts)


def test_incomplete_character_is_dropped_at_the_end_only(tokenizer: Tokenizer) -> None:
    part = tokenizer.encode_text("👩")[:1]
    word = tokenizer.encode_text("ok")
    for chunk in (1, 10):
        reply, _ = parse(tokenizer, word + part, start=ANSWER, chunk=chunk)
        assert reply.answer == "ok"
    reply, _ = parse(tokenizer, word + part + word, start=ANSWER)
    assert reply.answer == "ok\ufffdok"
    reply, _ = parse(tokenizer, word + part + sampled(tokenizer, "</think>ok"))
    assert (reply.thinking, reply.answer) == ("ok\ufffd", "ok")


@pytest.mark.parametrize(
    "control", [Control.BOS, Control.PAD, Control.USER, Control.ASSISTANT, Control.REMINDER]
)
def test_token_without_place_ends_the_reply(tokenizer: Tokenizer, control: Control) -> None:
    ids = tokenizer.encode_text("ok") + [tokenizer.id_of(control)] + tokenizer.encode_text("lost")
    parser = StreamParser(tokenizer, ANSWER)
    parser.feed(ids)
    assert parser.stopped
    reply = parser.finish("stop")
    assert reply.answer == "ok"
    assert any("no place in a reply" in warning for warning in reply.warnings)


@pytest.mark.parametrize("id", [128000, 128823, 128847, 129280, -1, 10**9])
def test_placeholder_and_unknown_ids_end_the_reply(tokenizer: Tokenizer, id: int) -> None:
    parser = StreamParser(tokenizer, ANSWER)
    deltas = parser.feed([*tokenizer.encode_text("ok"), id])
    assert parser.stopped
    assert shown(deltas, "answer") == "ok"
    assert parser.finish("stop").warnings


def test_eos_ends_quietly_and_is_no_text(tokenizer: Tokenizer) -> None:
    reply, _ = parse(tokenizer, "</think>ok<｜end▁of▁sentence｜>ignored")
    assert reply.answer == "ok"
    assert reply.warnings == []


def test_finish_is_final(tokenizer: Tokenizer) -> None:
    parser = StreamParser(tokenizer, ANSWER)
    parser.finish("cancelled")
    with pytest.raises(RuntimeError):
        parser.finish("stop")
    with pytest.raises(RuntimeError):
        parser.feed([5])


def test_thinking_tokens_are_counted(tokenizer: Tokenizer) -> None:
    thought = tokenizer.encode_text("one two three")
    reply, _ = parse(tokenizer, thought + sampled(tokenizer, "</think>four"))
    assert reply.thinking_tokens == len(thought) + 1


def test_delta_index_is_the_token_that_made_it_certain(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_text("a\n") + tokenizer.encode_text("b")
    _, deltas = parse(tokenizer, ids, start=ANSWER)
    assert [(delta.index, delta.text) for delta in deltas] == [(0, "a"), (2, "\nb")]


def test_start_comes_from_the_prompt(encoder: ChatEncoder, tokenizer: Tokenizer) -> None:
    user = [ChatMessage("user", content="Hi")]
    for effort, channel in (("none", "answer"), ("low", "thinking")):
        prompt = encoder.encode(user, effort=effort)
        deltas = StreamParser(tokenizer, prompt, []).feed(tokenizer.encode_text("yes"))
        assert [delta.channel for delta in deltas] == [channel]
    task = encoder.encode(user, effort="low", task="action")
    assert task.starts_in == "answer"


def test_tiny_vocabulary_parses_calls(tiny: Tokenizer) -> None:
    for start, lead in ((THINKING, "r</think>"), (ANSWER, "")):
        reply, _ = parse(tiny, f"{lead}ok é{block(CLOCK)}", start=start)
        assert reply.answer == "ok é"
        assert only_call(reply).arguments == CLOCK_ARGUMENTS


def test_block_that_holds_only_text_is_shown(tokenizer: Tokenizer) -> None:
    text = f"A <{D}tool_calls> goes here </{D}tool_calls> pair."
    reply, _ = parse(tokenizer, "</think>" + text)
    assert reply.answer == text
