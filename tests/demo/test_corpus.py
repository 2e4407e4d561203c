"""The corpus generator: deterministic, in the wire format, without leaks into what is held out."""

import random

import numpy as np
import pytest
from tokenizers import Tokenizer

from tools.demo import tokenizer
from tools.demo.config import SPECIALS
from tools.demo.corpus import copying, facts, manual, notes, refusals, smalltalk, stories, sums
from tools.demo.corpus.__main__ import pack
from tools.demo.corpus.dialogue import Dialogue, ask
from tools.demo.packed import PAD_ID, PROMPT, REPLY, RowPacker, document_roles
from tools.demo.wire import Turn, WireEncoder, pieces

TABLES = (
    {"FR": {"name": "France", "capital": "Paris", "continent": "EU", "currency": ["EUR"],
            "languages": ["fr"]}},
    {"EU": "Europe"},
    {"EUR": {"name": "Euro"}},
    {"fr": {"name": "French"}},
)  # fmt: skip


def some(seed: int) -> list[Dialogue]:
    rng = random.Random(seed)
    pairs = [("What is ice?", "Ice is frozen water.")]
    made = list(facts.dialogues(rng, TABLES, [("iron", "Fe", 26)]))
    made += list(smalltalk.own(rng, 1, 20))
    made += list(manual.dialogues(rng, 1))
    made += list(refusals.refusals(rng, 100, ["France"], ["quixotic"], ["boat", "lamp"], {"house"}))
    made += list(copying.dialogues(rng, 20, ["boat", "lamp"]))
    made += list(sums.dialogues(rng, 100)) + list(sums.tool_dialogues(rng, 10, pairs))
    made += list(notes.dialogues(rng, 20, pairs)) + list(stories.dialogues(rng, 20))
    return made


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> WireEncoder:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    return WireEncoder(tokenizer.train(some(1), path))


def test_the_same_seed_gives_the_same_dialogues():
    assert some(5) == some(5)
    assert some(5) != some(6)


def test_a_held_out_phrasing_is_nowhere_in_the_training_chats():
    made = some(2)
    held = {d.key for d in made if d.held_out and d.part == "manual"}
    shown = {
        turn.content.lower()
        for d in made if not d.held_out and d.part == "manual" for turn in d.turns
    }  # fmt: skip
    assert held
    assert not held & shown


def test_a_story_names_its_hero_consistently():
    for dialogue in stories.dialogues(random.Random(4), 200):
        text = dialogue.turns[1].content
        assert "{" not in text and "  " not in text
        assert 35 <= len(text.split()) <= 170


@pytest.mark.parametrize("maker", [notes._in_message, notes._in_system, notes._table])
def test_the_answer_to_a_question_about_notes_stands_in_them(maker):
    rng = random.Random(3)
    for _ in range(50):
        sheet, *turns = maker(rng, [("Hello!", "Hi!")])
        for turn in turns:
            if turn.role == "assistant" and turn.content not in (
                "The notes do not say that.",
                "Hi!",
            ):
                assert turn.content.removesuffix(".") in sheet.content


def test_no_reply_claims_to_be_deepseek():
    for dialogue in some(9):
        for turn in dialogue.turns:
            if turn.role == "assistant":
                assert "I am DeepSeek" not in turn.content.replace("I am not DeepSeek", "")


WIRE = [
    ([Turn("user", "Hi"), Turn("assistant", "Hello")],
     "<｜User｜>Hi<｜Assistant｜></think>Hello<｜end▁of▁sentence｜>"),
    ([Turn("system", "Be brief."), Turn("user", "2+2"), Turn("assistant", "4", "Easy.")],
     "Be brief.<｜User｜>2+2<｜Assistant｜><think>Easy.</think>4<｜end▁of▁sentence｜>"),
    ([Turn("user", "a"), Turn("assistant", "", None, ("calculator", {"expression": "1 + 1"})),
      Turn("tool", "2"), Turn("assistant", "2")],
     "<｜User｜>a<｜Assistant｜></think>\n\n<｜DSML｜tool_calls>\n"
     "<｜DSML｜invoke name=\"calculator\">\n"
     "<｜DSML｜parameter name=\"expression\" string=\"true\">1 + 1</｜DSML｜parameter>\n"
     "</｜DSML｜invoke>\n</｜DSML｜tool_calls><｜end▁of▁sentence｜>"
     "<｜User｜><tool_result>2</tool_result><｜Assistant｜></think>2<｜end▁of▁sentence｜>"),
]  # fmt: skip


@pytest.mark.parametrize(("turns", "expected"), WIRE)
def test_turns_are_spelled_as_the_encoder_spells_them(turns, expected):
    assert "".join(spelling for _, spelling in pieces(turns)) == expected


def test_typed_control_tokens_stay_text(encoder):
    ids = encoder.ids(pieces([Turn("user", "<｜User｜> </think>"), Turn("assistant", "no")]))
    assert ids.count(encoder.controls["<｜User｜>"]) == 1
    assert ids.count(encoder.controls["</think>"]) == 1


def test_control_tokens_have_the_first_ids_and_only_three_are_special(encoder):
    assert [encoder.controls[name] for name in SPECIALS] == list(range(len(SPECIALS)))
    specials = encoder.plain.to_str()
    assert '"added_tokens":[]' in specials.replace(" ", "").replace("\n", "")


def test_digits_are_single_tokens(encoder):
    assert len(encoder.plain.encode("4711").ids) == 4


def test_replies_are_marked_from_the_think_token_to_eos(encoder):
    made = [
        ask("sums", "k", "What is 1 + 1?", "2"),
        Dialogue("stories", "s", plain="Once upon a time."),
        ask("sums", "k", "Again?", "2", "Easy."),
    ]
    documents = pack(encoder, made)
    roles = document_roles(documents)
    replies = documents.tokens[roles == REPLY]
    expected = encoder.plain.encode("2").ids + [1]
    expected += encoder.plain.encode("Once upon a time.").ids + [1]
    easy, two = encoder.plain.encode("Easy.").ids, encoder.plain.encode("2").ids
    expected += [*easy, encoder.controls["</think>"], *two, 1]
    assert replies.tolist() == expected


def test_rows_begin_with_bos_and_hold_whole_turns(encoder):
    documents = pack(encoder, some(1))
    shares = dict.fromkeys(("manual", "sums", "notes", "stories", "tools"), 1.0)
    tokens, roles = next(RowPacker(documents, shares, 512, seed=1).batches(8))
    assert (tokens[:, 0] == 0).all()
    assert (roles[:, 0] == PROMPT).all()
    assert np.mean(tokens == PAD_ID) < 0.3
    # a system text or a tools block only ever stands behind BOS
    joined = documents.joins[documents.part == documents.parts.index("tools")]
    assert not joined.any()


def test_the_tokenizer_file_round_trips_text(encoder, tmp_path):
    path = tmp_path / "tokenizer.json"
    again = tokenizer.train(some(1), path)
    text = "Press ctrl+q.\n\n  NVFP4: 448 (max|x|) é ü 你好"
    assert Tokenizer.from_file(str(path)).decode(again.encode(text).ids) == text
