"""What is saved comes back; what goes wrong with the file is told and costs no text."""

import math
import multiprocessing
import os
import sqlite3
from dataclasses import fields, replace
from pathlib import Path

import pytest

from dsv4chat.core import database
from dsv4chat.core.conversation import Conversation, OptionMark, Turn
from dsv4chat.core.database import StoreError
from dsv4chat.core.records import TurnRecords
from dsv4chat.core.settings import Settings
from dsv4chat.core.store import MIGRATIONS, Store
from dsv4chat.core.stored import snapshot
from engine.protocol import Delta, Finished, StepOptions, Token, Tokens, ToolCall
from engine.telemetry import TapLayout

LAYOUT = TapLayout(layers=2, top_k=2, streams=4, blocks=(1,) * 8)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "chats.sqlite"


def talk(
    question: str = "what is gsa?", answer: str = "a scale", thought: str = "hm"
) -> Conversation:
    chat = Conversation("be brief")
    asked = chat.add_user(question, parent=None)
    for number in range(2):
        reply = chat.add_assistant(Settings(temperature=0.5), parent=asked.id)
        tokens = [
            Token(n, 10 + n, "x", -math.inf if n else -0.1, "fused", "runtime") for n in range(2)
        ]
        deltas = [Delta(0, "thinking", thought), Delta(1, "answer", f"{answer} {number}")]
        reply.add(Tokens(1, tokens, deltas))
        reply.marks.append(OptionMark(1, StepOptions(router="bf16")))
        reply.tool_calls = [ToolCall("1", "f", "{}")]
        reply.finish, reply.finished = "stop", Finished(1, "stop", tokens=2, seed=7)
    return chat


def save(store: Store, chat: Conversation) -> None:
    store.save(chat, [snapshot(turn) for turn in chat.turns.values()], []).result()


def same(one: Conversation, other: Conversation) -> bool:
    parts = ("id", "name", "system", "created", "leaf", "turns", "_children")
    return all(getattr(one, part) == getattr(other, part) for part in parts)


def test_a_conversation_comes_back_whole(path):
    store, chat = Store(path), talk("NUL \0, [markup], \u202e, 漢字 👩‍👩‍👧")
    chat.name = "named"
    save(store, chat)
    store.close()
    again = Store(path)
    loaded = again.load(chat.id).result()
    assert loaded is not None and same(loaded, chat) and loaded.stored
    assert again.newest().result() == chat.id and again.notices == []
    again.close()


def test_every_list_of_a_turn_is_copied_before_another_thread_reads_it():
    turn = next(turn for turn in talk().turns.values() if turn.role == "assistant")
    copy = snapshot(turn)
    for part in fields(Turn):
        value = getattr(turn, part.name)
        assert getattr(copy, part.name) == value
        assert not isinstance(value, list) or getattr(copy, part.name) is not value


def test_search_finds_parts_of_words_in_answers_and_thinking(path):
    store = Store(path)
    one, two = (
        talk("first", "The NVFP4 format", "secret thought"),
        talk("second 漢字漢", "100 % ok"),
    )
    for chat in (one, two):
        save(store, chat)

    def ids(words):
        return [entry.id for entry in store.search(words).result()]

    assert ids("") == [two.id, one.id]
    assert ids("vfp4") == ids("nvFP4 FORMAT") == ids("secret") == [one.id]
    assert ids("字漢") == ids("100 %") == ids("%") == [two.id]
    assert ids('"') == ids("no such words") == ids("first second") == [] and len(ids("th")) == 1
    entry = store.search("ret tho").result()[0]
    start, end = entry.found
    assert entry.in_thinking and entry.excerpt[start:end] == "ret" and entry.title == "first"
    one.turns[one.leaf].text = "changed"
    save(store, one)
    assert ids("vfp4") == [one.id]  # the other branch still has it
    store.rename(two.id, "about gates").result()
    assert ids("gates") == [two.id] and store.search("gates").result()[0].title == "about gates"
    assert ids("brief") == [one.id, two.id]  # the system prompt
    store.close()


def test_delete_leaves_the_list_and_restore_brings_it_back(path):
    store, chat = Store(path), talk()
    save(store, chat)
    store.delete(chat.id).result()
    assert store.search("").result() == [] and store.newest().result() is None
    store.restore(chat.id).result()
    assert [entry.id for entry in store.search("gsa").result()] == [chat.id]
    store.close()


def test_turns_taken_back_leave_the_file_and_the_index(path):
    store, chat = Store(path), talk()
    asked = chat.add_user("mistyped zebra", parent=chat.leaf)
    save(store, chat)
    chat.take_back(asked)
    store.save(chat, [], [asked.id]).result()
    assert store.search("zebra").result() == [] and same(store.load(chat.id).result(), chat)
    store.close()


def test_an_answer_cut_by_a_kill_is_closed_when_it_is_read(path):
    store, chat = Store(path), talk()
    reply = chat.turns[chat.leaf]
    reply.finish = None
    save(store, chat)
    loaded = store.load(chat.id).result().turns[reply.id]
    assert (loaded.finish, loaded.text) == ("fault", reply.text) and "interrupted" in loaded.note
    store.close()


def test_a_turn_that_cannot_be_decoded_still_gives_its_text(path):
    store, chat = Store(path), talk()
    save(store, chat)
    store.write(lambda c: c.execute("UPDATE turns SET body = x'c1'") and None).result()
    loaded = store.load(chat.id).result()
    assert [turn.text for turn in loaded.path] == [turn.text for turn in chat.path]
    assert [turn.reasoning for turn in loaded.path] == ["", "hm"]
    store.close()


def test_records_come_back_and_the_oldest_go_first(path, monkeypatch):
    records = TurnRecords(LAYOUT)
    for n in range(150):
        records.tokens[n] = Token(n, n, "x", -0.5, "fused", "runtime", top=[(1, -0.1)])
        if n % 3:
            records.payloads[n] = bytes([n]) * 4 * LAYOUT.words
    store = Store(path)
    store.save_records("a", records).result()
    assert store.load_records("a").result() == replace(records, size=0)
    monkeypatch.setattr("dsv4chat.core.store.RECORDS_BYTES", 1)
    store.save_records("b", records).result()
    assert store.load_records("a").result().tokens == {}
    store.close()


def test_drafts_of_a_dead_app_come_back_once(path, monkeypatch):
    store = Store(path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", os.getppid)
        store.save_draft("never begun", "half a message").result()
    assert store.take_lost_draft().result() == ""  # its app is alive
    monkeypatch.setattr("dsv4chat.core.store._alive", lambda process: False)
    assert store.take_lost_draft().result() == "half a message"
    assert store.take_lost_draft().result() == ""
    store.close()


# ---- what goes wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["not a database", "torn"])
def test_a_corrupt_file_is_set_aside_and_a_fresh_one_begun(path, damage):
    if damage == "torn":
        store = Store(path)
        for number in range(40):
            save(store, talk(f"question {number} " * 50))
        store.close()
        data = bytearray(path.read_bytes())
        data[4096:] = b"\xff" * (len(data) - 4096)
        path.write_bytes(data)
    else:
        path.parent.mkdir()
        path.write_bytes(b"this is no database at all" * 100)
    store, chat = Store(path), talk()
    save(store, chat)
    assert same(store.load(chat.id).result(), chat)
    assert (
        len(store.notices) == 1 and "damaged" in store.notices[0] and "kept as" in store.notices[0]
    )
    assert store.generation == 1 and len(list(path.parent.glob("*.corrupt-*"))) >= 1
    store.close()
    assert not Store(path).load(chat.id).exception()


@pytest.mark.parametrize("where", ["no/such", "file/in/the/way"])
def test_without_a_folder_the_chat_goes_on_in_memory_and_says_so_once(tmp_path, where):
    (tmp_path / "file").write_text("x")
    root = Path("/proc") if where == "no/such" else tmp_path
    store, chat = Store(root / where / "chats.sqlite"), talk()
    save(store, chat)
    save(store, chat)
    assert same(store.load(chat.id).result(), chat) and store.search("gsa").result()
    assert len(store.notices) == 1 and "cannot be saved" in store.notices[0]
    store.close()


def test_a_read_only_file_is_told_once(path):
    store = Store(path)
    save(store, talk())
    store.write(lambda c: c.execute("PRAGMA query_only=ON") and None).result()
    for _ in range(2):
        with pytest.raises(StoreError, match="read-only"):
            save(store, talk("second"))
    assert len(store.notices) == 1 and "read-only" in store.notices[0]
    store.close()


def test_a_full_disk_is_told_once_and_saving_recovers(path):
    store = Store(path)
    save(store, talk())

    def limit(pages: int):
        return lambda c: c.execute(f"PRAGMA max_page_count={pages}") and None

    store.read(limit(1)).result()
    for _ in range(2):
        with pytest.raises(StoreError, match="the disk is full"):
            save(store, talk("long " * 20_000))
    assert len(store.notices) == 1 and "in memory" in store.notices[0]
    store.read(limit(100_000)).result()
    save(store, talk("long " * 20_000))
    assert "works again" in store.notices[1]
    store.close()


def test_a_file_of_a_newer_app_is_left_alone(path):
    Store(path).search("").result()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version=99")
    before = path.read_bytes()
    store = Store(path)
    save(store, talk())
    assert "newer dsv4chat" in store.notices[0] and path.read_bytes() == before
    store.close()


def test_an_older_file_is_brought_forward_with_what_it_holds(path):
    store, chat = Store(path), talk()
    save(store, chat)
    store.close()
    newer = database.Database(path, (*MIGRATIONS, ("ALTER TABLE turns ADD COLUMN extra TEXT",)))
    count = newer.read(lambda c: c.execute("SELECT COUNT(extra IS NULL) FROM turns").fetchone())
    assert count.result() == (3,)
    newer.close()


def write_many(path: Path, name: str, go) -> None:
    store = Store(path)
    go.wait()
    for number in range(30):
        save(store, talk(f"{name} {number}"))
    store.close()


def test_two_instances_share_one_file(path):
    context = multiprocessing.get_context("spawn")
    go = context.Event()
    others = [context.Process(target=write_many, args=(path, name, go)) for name in "ab"]
    for process in others:
        process.start()
    go.set()
    for process in others:
        process.join(60)
        assert process.exitcode == 0
    store = Store(path)
    assert len(store.search("").result()) == 60 and store.notices == []
    assert len(store.search("a 2").result()) >= 10
    store.close()
