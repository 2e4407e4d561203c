"""The parts without a screen: tree, pieces of Markdown, records, commands."""

import random

import pytest

from dsv4chat.core.commands import COMMANDS, SLASH, parse_slash
from dsv4chat.core.conversation import Conversation
from dsv4chat.core.markdown_pieces import MAX_PIECE, Splitter
from dsv4chat.core.records import RecordStore
from dsv4chat.core.settings import Settings
from engine.protocol import Delta, Token, Tokens
from engine.telemetry import TapLayout
from tests.ui.fake_engine import ANSWER

LONG_LIST = "\n".join(f"- item {n} with *some* text" for n in range(300))
LONG_CODE = "```python\n" + "\n".join(f"x{n} = {n}" for n in range(500)) + "\n```\nafter\n"
MIXED = "# Title\ntext\n\n1. one\n\n   ```sh\n   ls\n   ```\n\n2. two\n\nend " + "word " * 3000


@pytest.mark.parametrize(
    "text", [ANSWER, LONG_LIST, LONG_CODE, MIXED, "", "\n\n\n", "```", "a\n```b\n```\n"]
)
def test_pieces_cover_the_text_once_and_do_not_depend_on_the_cuts(text):
    whole = Splitter()
    whole.feed(text)
    cut, rng, at = Splitter(), random.Random(1), 0
    while at < len(text):
        at = min(len(text), at + rng.randint(1, 40))
        cut.feed(text[:at])
    if len(text) < MAX_PIECE:
        assert cut.closed == whole.closed
    for splitter in (whole, cut):
        ends = [0, *(piece.end for piece in splitter.closed)]
        assert [piece.start for piece in splitter.closed] == ends[:-1]
        tail = splitter.tail(text)
        assert tail is None or (tail.start, tail.end) == (ends[-1], len(text))
        assert all(piece.end - piece.start <= 2 * MAX_PIECE for piece in splitter.closed)


def test_long_list_and_fence_are_many_small_pieces():
    for text in (LONG_LIST, LONG_CODE):
        splitter = Splitter()
        splitter.feed(text)
        assert len(splitter.closed) >= 8
        assert max(piece.end - piece.start for piece in splitter.closed) < 2000


def test_tree_regenerate_edit_and_select():
    chat = Conversation("be brief")
    first = chat.add_user("q", parent=None)
    one = chat.add_assistant(Settings(), parent=first.id)
    two = chat.add_assistant(Settings(), parent=first.id)
    edited = chat.add_user("q!", parent=None)
    assert chat.siblings(one) == [one, two] and chat.children(None) == [first, edited]
    assert chat.path == [edited] and len(chat.leaves()) == 3
    chat.select(first.id)
    assert chat.path == [first, two]
    assert chat.step_branch(1) and chat.path == [first, one]


def test_messages_carry_the_sampled_ids_and_skip_empty_answers():
    chat = Conversation("be brief")
    first = chat.add_user("q", parent=None)
    reply = chat.add_assistant(Settings(), parent=first.id)
    chat.add_user("again", parent=reply.id)
    assert [message.role for message in chat.messages()] == ["system", "user", "user"]
    reply.add(
        Tokens(1, [token(0), token(1)], [Delta(0, "thinking", "hm"), Delta(1, "answer", "yes")])
    )
    message = chat.messages()[2]
    assert (message.content, message.reasoning, message.token_ids) == ("yes", "hm", [10, 11])


def test_spans_give_every_character_to_one_token():
    reply = Conversation().add_assistant(Settings(), parent=None)
    reply.add(
        Tokens(
            1, [token(0), token(1), token(2)], [Delta(1, "answer", "漢"), Delta(2, "answer", "x")]
        )
    )
    assert [reply.span(n)[1:] for n in range(3)] == [(0, 0), (0, 1), (1, 2)]


def test_records_stay_within_their_budget():
    layout = TapLayout(layers=2, top_k=2, streams=4, blocks=(1,) * 8)
    store = RecordStore(budget_bytes=50_000)
    for turn in "abc":
        store.open(turn, layout)
        for index in range(40):
            store.add_payload(turn, index, bytes(4 * layout.words))
    assert store.get("a") is None and "a" in store.evicted_turns
    kept = store.get("c")
    assert kept is not None and 39 in kept.payloads
    assert sum(map(len, kept.payloads.values())) <= 50_000


def test_commands_do_not_clash():
    keys = [key for command in COMMANDS for key in command.keys]
    assert len(keys) == len(set(keys)) and len(SLASH) == len([c for c in COMMANDS if c.slash])


@pytest.mark.parametrize("text", ["hello", "//literal", "/usr/lib is full", "/", "/ x", "a /stop"])
def test_ordinary_text_is_not_a_command(text):
    assert parse_slash(text) is None


def test_slash_commands_are_found_by_name_and_alias():
    found = parse_slash("/temp 0.3")
    assert found is not None and not isinstance(found, str)
    assert (found[0].slash, found[1]) == ("temperature", "0.3")
    assert "Did you mean /router" in str(parse_slash("/routr"))


def token(index: int) -> Token:
    return Token(index, 10 + index, "x", -0.1, "fused", "runtime")
