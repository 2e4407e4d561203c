"""Parser: what is held back, characters over several tokens, ends of a reply (chat-encoding 8)."""

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
)

CLOCK = invoke("read_clock", param("zone", "UTC"))
CLOCK_ARGUMENTS = '{"zone": "UTC"}'


def only_call(reply):
    (call,) = reply.tool_calls
    return call


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
