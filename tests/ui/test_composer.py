"""Writing: pastes, editor, input history, files."""

import contextlib
import os

import pytest
from textual import events

from dsv4chat.core.attachments import MAX_FILE_BYTES, AttachmentError, attach, completions
from dsv4chat.core.editor import EditorError, edit_text
from tests.ui.conftest import (
    answer,
    sees,
    send,
    until,
)


def test_named_files_go_below_the_message(tmp_path):
    (tmp_path / "a.py").write_text("x = '```'")
    (tmp_path / "with space.txt").write_text("\ufeffhello\n", encoding="utf-8")
    text, names = attach('look at @a.py, and @"with space.txt" @a.py @nobody', tmp_path)
    assert names == ["a.py", "with space.txt"]
    assert text.startswith('look at @a.py, and @"with space.txt" @a.py @nobody\n\na.py:\n````py\n')
    assert text.endswith("\n````\n\nwith space.txt:\n```txt\nhello\n```")
    assert attach("me@example.org @dataclass nothing", tmp_path)[1] == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("binary.bin", "binary"),
        ("latin.txt", "not UTF-8"),
        ("large.txt", "257 KiB"),
        ("folder", "a folder"),
        ("pipe", "not a plain file"),
        ("./missing.txt", "no such file"),
    ],
)
def test_files_that_cannot_be_sent_are_refused_by_name(tmp_path, name, words):
    (tmp_path / "binary.bin").write_bytes(b"\x7fELF\0\0")
    (tmp_path / "latin.txt").write_bytes("é".encode("latin-1"))
    (tmp_path / "large.txt").write_bytes(b"x" * (MAX_FILE_BYTES + 1024))
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(AttachmentError, match=f"@{name}.*{words}"):
        attach(f"see @{name}", tmp_path)


def test_all_files_together_have_a_limit(tmp_path):
    for number in range(5):
        (tmp_path / f"{number}.txt").write_bytes(b"x" * MAX_FILE_BYTES)
    with pytest.raises(AttachmentError, match="all files together"):
        attach(" ".join(f"@{number}.txt" for number in range(5)), tmp_path)


def test_names_complete_folder_by_folder(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "main.py").touch()
    (tmp_path / "setup one.cfg").touch()
    (tmp_path / ".hidden").touch()
    assert completions("see @s", tmp_path) == (4, ['@"setup one.cfg"', "@src/"])
    assert completions("see @src/m", tmp_path) == (4, ["@src/main.py"])
    assert completions("@.h", tmp_path) == (0, ["@.hidden"])
    for text in ("mail me@s", "@src done", "no", "@nothere/x"):
        assert completions(text, tmp_path)[1] == []


async def test_tab_completes_a_file_and_enter_sends_it(make_app, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("precious content")
    (tmp_path / "[x].bin").write_bytes(b"\0")
    app = make_app()
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        await until(pilot, lambda: app.session.phase == "ready")
        await pilot.press(*"see @no")
        await sees(pilot, "@notes.txt")
        await pilot.press("tab")
        assert app.chat.composer.text == "see @notes.txt "
        await pilot.press("enter")
        await until(pilot, lambda: bool(app.session.conversation.turns))
        assert "precious content" in app.session.conversation.path[0].text
        await until(pilot, lambda: not app.session.busy)
        await send(pilot, "@[x].bin")
        await sees(pilot, "not text but binary")
        assert app.chat.composer.text == "@[x].bin" and len(app.session.conversation.turns) == 2


async def test_a_megabyte_is_pasted_edited_and_sent_whole(make_app):
    app, pasted = make_app(), "0123456 [/x]\x1b \u202e漢\n" * 50_000
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: app.session.phase == "ready")
        app.post_message(events.Paste(pasted))
        await pilot.pause()
        assert app.chat.composer.text == "[paste 1: 50001 lines]"
        await pilot.press(*"!say ok", "enter")
        await until(pilot, lambda: bool(app.session.conversation.turns))
        await until(pilot, lambda: not app.session.busy)
        assert app.session.conversation.path[0].text == pasted + "!say ok"
        await sees(pilot, "more characters")
        await pilot.press("ctrl+e")
        assert app.chat.composer.text.startswith("[paste 1:")
        assert app.chat.composer.full_text() == pasted + "!say ok"


def test_the_editor_gets_the_text_and_gives_it_back(tmp_path):
    script = tmp_path / "ed it"
    script.write_text('#!/bin/sh\necho "$1" | grep -q "\\.md$" && printf "more 漢\\n" >> "$1"\n')
    script.chmod(0o755)
    assert edit_text("draft ", {"EDITOR": f"'{script}'"}) == "draft more 漢"
    for environment, words in (
        ({}, "set .VISUAL"),
        ({"EDITOR": "false"}, "status 1"),
        ({"VISUAL": str(tmp_path / "none"), "EDITOR": "true"}, "cannot run"),
        ({"EDITOR": "'"}, "cannot be read"),
    ):
        with pytest.raises(EditorError, match=words):
            edit_text("draft", environment)


async def test_ctrl_o_opens_the_editor(make_app, tmp_path, monkeypatch):
    monkeypatch.setenv("VISUAL", "sh -c 'echo edited > \"$0\"'")
    app = make_app()
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        await until(pilot, lambda: app.session.phase == "ready")
        app.chat.composer.insert("draft")
        await pilot.press("ctrl+o")  # this terminal cannot be lent out
        await sees(pilot, "not supported")
        assert app.chat.composer.text == "draft"
        monkeypatch.setattr(app, "suspend", contextlib.nullcontext)
        await pilot.press("ctrl+o")
        await until(pilot, lambda: app.chat.composer.text == "edited")


async def test_up_brings_back_messages_of_earlier_chats(make_app):
    app = make_app()
    async with app.run_test() as pilot:
        await answer(pilot, "!say one")
    app = make_app()
    async with app.run_test() as pilot:
        await answer(pilot, "!say two")
        await pilot.press("up", "up")
        assert app.chat.composer.text == "!say one"
        await pilot.press("down")
        assert app.chat.composer.text == "!say two"
        await pilot.press("down")
        assert app.chat.composer.text == ""
