"""Encoder: what the vectors do not show: request fields, continuing, caches, small vocabularies."""

import hashlib
from pathlib import Path

import pytest

from engine.protocol import ChatMessage, ToolCall
from engine.text.cache import WeightedCache
from engine.text.control import Control
from engine.text.encoding import ChatEncoder
from engine.text.errors import ConversationError, TextError, TokenizerError
from engine.text.layout import LayoutOptions
from engine.text.messages import Message, flatten, from_openai
from engine.text.tokenizer import Tokenizer
from engine.text.toolmarkup import calls_block, tools_block
from tests.engine.text.conftest import TINY_CONTROLS, tiny_document, write_tokenizer
from tests.engine.text.support import TOOLS, D

USER = ChatMessage("user", content="Hi")
ANSWER = ChatMessage("assistant", content="Hello.", reasoning="Greet.")


def spelled(pieces: list) -> str:
    return "".join(p.value if isinstance(p, Control) else p for p in pieces)


def test_tools_block_is_the_published_text() -> None:
    digest = hashlib.sha256(spelled(tools_block([])).encode()).hexdigest()
    assert digest == "c7d3159308f7d076bee8974ece110fda1f92f6e577306e602ba2b466b4dcd904"


def test_tools_go_on_the_first_system_message(encoder: ChatEncoder) -> None:
    with_system = encoder.encode([ChatMessage("system", content="Be kind."), USER], tools=TOOLS)
    without = encoder.encode([USER], tools=TOOLS)
    assert with_system.text.startswith("<｜begin▁of▁sentence｜>Be kind.\n\n## Tools\n\nYou have")
    assert without.text.startswith("<｜begin▁of▁sentence｜>\n\n## Tools\n\nYou have")
    assert with_system.text.count("## Tools") == without.text.count("## Tools") == 1


def test_response_format_follows_the_tools(encoder: ChatEncoder) -> None:
    prompt = encoder.encode([USER], tools=TOOLS, response_format={"type": "object"})
    tail = 'schema to reply:\n{"type": "object"}<｜User｜>Hi<｜Assistant｜></think>'
    assert prompt.text.endswith(tail)
    assert prompt.text.index("## Tools") < prompt.text.index("## Response Format:")


def test_tools_keep_the_reasoning_of_every_turn(encoder: ChatEncoder) -> None:
    chat = [USER, ANSWER, USER]
    assert "Greet." not in encoder.encode(chat, effort="low").text
    assert "<think>Greet.</think>Hello." in encoder.encode(chat, effort="low", tools=TOOLS).text
    assert "Greet." in encoder.encode(chat, effort="low", drop_reasoning=False).text
    assert "Greet." not in encoder.encode(chat, effort="none", tools=TOOLS).text


def test_start_state_is_the_one_the_prompt_ends_in(encoder: ChatEncoder) -> None:
    for effort, start in (("none", "answer"), ("low", "thinking"), ("max", "thinking")):
        prompt = encoder.encode([USER], effort=effort)
        last = Control.THINK if start == "thinking" else Control.THINK_END
        assert prompt.starts_in == start
        assert prompt.text.endswith(last.value)
        assert not prompt.continues
        assert prompt.position == len(prompt.ids)


def test_effort_text_follows_the_profile(tokenizer: Tokenizer) -> None:
    preview, official = (ChatEncoder(tokenizer, name) for name in ("preview", "official"))
    assert preview.encode([USER], effort="high").ids == preview.encode([USER], effort="low").ids
    assert preview.encode([USER], effort="max").ids == official.encode([USER], effort="high").ids
    assert "Beyond maximum" in official.encode([USER], effort="max").text
    assert "Effort" not in official.encode([USER], effort="none").text
    with pytest.raises(TextError, match="choose preview or official"):
        ChatEncoder(tokenizer, "newest")  # type: ignore[arg-type]


def test_checkpoints_are_prefixes_a_later_prompt_shares(encoder: ChatEncoder) -> None:
    first = encoder.encode([USER], effort="low")
    second = encoder.encode([USER, ANSWER, USER], effort="low")
    (place,) = first.checkpoints
    assert first.ids[:place] == second.ids[:place]
    assert first.ids[place] != second.ids[place]
    assert second.checkpoints[0] == place
    assistant = encoder._tokenizer.id_of(Control.ASSISTANT)
    assert all(second.ids[at - 1] == assistant for at in second.checkpoints)


# ---- continuing an interrupted reply ------------------------------------------------------------


def test_continue_in_the_answer(encoder: ChatEncoder) -> None:
    cut = ChatMessage("assistant", content="Once upon", reasoning="A tale.", unfinished=True)
    prompt = encoder.encode([USER, cut], effort="low")
    assert prompt.text.endswith("<｜Assistant｜><think>A tale.</think>Once upon")
    assert (prompt.starts_in, prompt.continues) == ("answer", True)
    chat = encoder.encode([USER, cut], effort="none")
    assert chat.text.endswith("<｜Assistant｜></think>Once upon")
    assert (chat.starts_in, chat.continues) == ("answer", True)


def test_continue_in_the_reasoning(encoder: ChatEncoder) -> None:
    cut = ChatMessage("assistant", reasoning="A ta", unfinished=True)
    prompt = encoder.encode([USER, cut], effort="low")
    assert prompt.text.endswith("<｜Assistant｜><think>A ta")
    assert (prompt.starts_in, prompt.continues) == ("thinking", True)


def test_only_the_last_turn_can_be_open(encoder: ChatEncoder) -> None:
    cut = ChatMessage("assistant", content="Once upon", unfinished=True)
    prompt = encoder.encode([USER, cut, USER])
    assert "Once upon<｜end▁of▁sentence｜><｜User｜>" in prompt.text


# ---- caches -------------------------------------------------------------------------------------


def test_ids_do_not_depend_on_what_was_encoded_before(tokenizer: Tokenizer) -> None:
    warm = ChatEncoder(tokenizer, "official")
    chat = [USER]
    for turn in range(5):
        for effort in ("none", "low"):
            fresh = ChatEncoder(tokenizer, "official").encode(chat, effort=effort)
            assert warm.encode(chat, effort=effort).ids == fresh.ids
        chat += [ChatMessage("assistant", content=f"Answer {turn}"), USER]


def test_prompt_ids_are_not_shared_with_the_cache(encoder: ChatEncoder) -> None:
    first = encoder.encode([USER])
    expected = list(first.ids)
    first.ids.clear()
    assert encoder.encode([USER]).ids == expected


def test_cache_forgets_the_oldest_and_refuses_the_oversized() -> None:
    cache: WeightedCache[str, int] = WeightedCache(10)
    for name in "abc":
        cache.put(name, 1, 4)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (None, 1, 1)
    cache.get("b")
    cache.put("d", 1, 4)
    assert (cache.get("b"), cache.get("c")) == (1, None)
    cache.put("e", 1, 11)
    assert cache.get("e") is None
    cache.put("b", 2, 6)
    assert cache.get("b") == 2
    assert len(cache) == 2


# ---- odd messages -------------------------------------------------------------------------------


def test_content_blocks_are_flattened() -> None:
    blocks = [{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": "b"}]
    assert flatten(blocks) == "a\n\n[Unsupported image_url]\n\nb"
    assert flatten(None) == ""
    tool = from_openai({"role": "tool", "tool_call_id": "x", "content": blocks})
    assert (tool.content, tool.call_id) == (flatten(blocks), "x")


def test_arguments_that_are_no_object_become_one_parameter() -> None:
    for text in ("not json", "[1]", "3", '"x"', "", "[" * 100_000):
        message = from_openai(
            {
                "role": "assistant",
                "tool_calls": [{"function": {"name": "f", "arguments": text}}],
            }
        )
        markup = spelled(calls_block(message.calls))
        assert f'<{D}parameter name="arguments" string="true">{text}</{D}parameter>' in markup


def test_surrogates_and_controls_are_encodable(encoder: ChatEncoder) -> None:
    odd = ChatMessage("user", content="a\ud800\x00\x1b")
    prompt = encoder.encode([odd])
    assert prompt.text.encode()
    assert "a\ufffd\x00\x1b" in prompt.text
    call = ToolCall("c", "read_clock", '{"zone": "\\ud83d"}')
    chat = [USER, ChatMessage("assistant", tool_calls=[call])]
    chat.append(ChatMessage("tool", content="x", tool_call_id="c"))
    assert encoder.encode(chat, tools=TOOLS).text.encode()


def test_halves_of_a_control_token_in_neighbouring_fields_stay_text(encoder: ChatEncoder) -> None:
    chat = [ChatMessage("user", content="<｜Us"), ChatMessage("user", content="er｜>")]
    tokenizer = encoder._tokenizer
    assert encoder.encode(chat).ids.count(tokenizer.id_of(Control.USER)) == 1
    joined = [ChatMessage("system", content="x<｜User"), ChatMessage("user", content="｜>")]
    assert encoder.encode(joined).ids.count(tokenizer.id_of(Control.USER)) == 1


def test_layout_refuses_what_the_format_has_no_form_for(encoder: ChatEncoder) -> None:
    for message, words in (
        (Message("function", "x"), "unknown role"),
        (Message("developer"), "needs text"),
        (Message("user", "x", task="poem"), "unknown task"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConversationError, match=words):
            encoder.encode_messages([message], LayoutOptions())


def test_second_bos_is_never_sent(encoder: ChatEncoder) -> None:
    class Forger(Tokenizer):
        def __init__(self, real: Tokenizer) -> None:
            self.__dict__.update(real.__dict__)

        def encode_text(self, text: str) -> list[int]:
            return [self.bos_id]

    with pytest.raises(ConversationError, match="BOS once"):
        ChatEncoder(Forger(encoder._tokenizer), "official").encode([USER])


# ---- a small vocabulary -------------------------------------------------------------------------


def test_tiny_vocabulary_encodes_with_its_own_ids(tiny: Tokenizer) -> None:
    prompt = ChatEncoder(tiny, "preview").encode([USER], effort="low", tools=TOOLS)
    assert prompt.ids[0] == 0
    assert prompt.ids[-1] == tiny.id_of(Control.THINK) == 5
    assert tiny.decode(prompt.ids) == prompt.text


def test_tiny_vocabulary_refuses_what_it_has_no_token_for(tiny: Tokenizer) -> None:
    encoder = ChatEncoder(tiny, "preview")
    reminder = [ChatMessage("latest_reminder", content="Monday"), USER]
    for call in (encoder.encode, encoder.validate):
        with pytest.raises(TokenizerError, match="latest_reminder"):
            call(reminder)
    with pytest.raises(TokenizerError, match="title"):
        encoder.validate([USER, ANSWER], task="title")


def test_features_without_their_token_are_refused_before_encoding(tmp_path: Path) -> None:
    document = tiny_document(tuple(c for c in TINY_CONTROLS if c not in (D, "<think>")))
    encoder = ChatEncoder(Tokenizer.load(write_tokenizer(tmp_path, document)), "preview")
    encoder.validate([USER])
    with pytest.raises(TokenizerError, match="<think>"):
        encoder.validate([USER], effort="low")
    with pytest.raises(TokenizerError, match="DSML"):
        encoder.validate([USER], TOOLS)
    called = ChatMessage("assistant", tool_calls=[ToolCall("c", "f", "{}")])
    with pytest.raises(TokenizerError, match="DSML"):
        encoder.validate([USER, called, ChatMessage("tool", tool_call_id="c")])


def test_user_turn_with_a_task_is_not_continued(encoder: ChatEncoder) -> None:
    messages = [Message("user", "a", task="query"), Message("user", "b")]
    prompt = encoder.encode_messages(messages, LayoutOptions())
    assert prompt.text == "<｜begin▁of▁sentence｜><｜User｜>a<｜User｜>b<｜Assistant｜></think>"
