"""Files out and in, and the clipboard."""

import base64
import json
import math
import os
import stat

import pytest

from dsv4chat.core.clipboard import MAX_OSC52_BYTES, copy_text, osc52
from dsv4chat.core.conversation import Conversation
from dsv4chat.core.export import export_file, import_file, to_json, to_markdown, with_new_ids
from dsv4chat.core.markdown_pieces import code_blocks
from dsv4chat.core.stored import ImportRefusedError, from_json
from tests.ui.conftest import (
    answer,
    sees,
    send,
    until,
)
from tests.ui.test_store import same, talk


def branched() -> Conversation:
    chat = talk("why [/x] \x1b[31m?", "line\nnext", "hm\n\nso")
    chat.name = "a name / with slash"
    chat.turns[chat.leaf].logprobs[0] = math.inf
    asked = chat.add_user("and?", parent=chat.leaf)
    chat.add_user("or?", parent=asked.parent)
    chat.select(asked.id)
    return chat


def test_json_round_trip_is_equal_with_all_branches():
    chat = branched()
    again = from_json(to_json(chat))
    assert same(again, chat) and len(again.leaves()) == 3
    assert to_json(again) == to_json(chat)


def test_new_ids_change_nothing_else():
    chat = branched()
    copy = with_new_ids(chat)
    assert copy.id != chat.id and not set(copy.turns) & set(chat.turns)
    assert [turn.text for turn in copy.path] == [turn.text for turn in chat.path]
    assert to_markdown(copy) == to_markdown(chat)


def test_markdown_has_every_branch_and_the_thinking():
    text = to_markdown(branched())
    for part in ("# a name / with slash", "line\nnext 0", "line\nnext 1", "and?", "or?", "> hm"):
        assert part in text
    assert text.count("branch 2 of 2") == 2 and "branch 1 of 2 after 1" in text


def edited(change) -> bytes:
    plain = json.loads(to_json(branched()))
    change(plain)
    return json.dumps(plain).encode()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not"),
        (b"[1, 2]", "not a conversation"),
        (b'{"format": "other"}', "not a conversation"),
        (edited(lambda p: p.update(version=2)), "version 2"),
        (edited(lambda p: p.pop("turns")), "turns"),
        (edited(lambda p: p["turns"][0].update(role="oracle")), "turn 0"),
        (edited(lambda p: p["turns"][1].update(token_ids=[1])), "turn 1: its lists"),
        (edited(lambda p: p["turns"][1].update(ends=[0, 10**9])), "turn 1: a token ends"),
        (edited(lambda p: p["turns"][1].update(text=7)), "turn 1"),
        (edited(lambda p: p["turns"][2].update(parent="nobody")), "'nobody'"),
        (edited(lambda p: p["turns"][0].update(parent=p["turns"][1]["id"])), "ancestor"),
        (edited(lambda p: p["turns"].append(p["turns"][0])), "twice"),
        (edited(lambda p: p.update(leaf="nobody")), "'nobody'"),
    ],
)
def test_malformed_imports_are_refused_in_one_line(data, words, tmp_path):
    path = tmp_path / "chat.json"
    path.write_bytes(data)
    with pytest.raises(ImportRefusedError, match=words) as refused:
        import_file(path)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 300


def test_export_never_writes_over_a_file(tmp_path):
    chat = branched()
    made = export_file(chat, "", tmp_path)
    assert made.suffix == ".md" and made.name.startswith("a-name-with-slash-")
    (tmp_path / "there.json").write_text("precious")
    with pytest.raises(FileExistsError):
        export_file(chat, "there.json", tmp_path)
    assert (tmp_path / "there.json").read_text() == "precious"
    with pytest.raises(ValueError, match="must end in"):
        export_file(chat, "chat.txt", tmp_path)


async def test_export_and_import_in_the_app(make_app, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    app = make_app()
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        await answer(pilot, "first")
        before = app.session.conversation
        await send(pilot, "/export out.json")
        await until(pilot, lambda: (tmp_path / "out.json").exists())
        await send(pilot, "/export out.json")
        await sees(pilot, "there already")
        (tmp_path / "bad.json").write_text("{")
        await send(pilot, "/import bad.json")
        await sees(pilot, "not imported: not JSON")
        assert app.session.conversation is before
        await send(pilot, "/import out.json")
        await until(pilot, lambda: app.session.conversation is not before)
        after = app.session.conversation
        assert [turn.text for turn in after.path] == [turn.text for turn in before.path]
        await pilot.press("ctrl+l")
        await until(pilot, lambda: len(getattr(app.screen, "entries", [])) == 2)


# ---- clipboard -----------------------------------------------------------------------------------

XTERM = {"TERM": "xterm-256color"}


def sent(text: str, environment: dict[str, str]) -> tuple[bool, str, str]:
    written: list[str] = []
    copied = copy_text(text, environment, "linux", written.append)
    return copied.done, copied.how, "".join(written)


def tool(folder, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_osc52_carries_the_text_also_through_tmux():
    data = base64.b64encode("漢\n".encode()).decode()
    assert osc52("漢\n", XTERM) == (f"\x1b]52;c;{data}\x07", "")
    wrapped, _ = osc52("漢\n", {**XTERM, "TMUX": "/tmp/x,1,0"})
    assert wrapped.endswith(f"\x1bPtmux;\x1b\x1b]52;c;{data}\x07\x1b\\")


def test_a_terminal_without_a_clipboard_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert sent("x", {"TERM": "linux"}) == (False, "this terminal has no clipboard", "")
    done, how, written = sent("x" * (MAX_OSC52_BYTES + 1), XTERM)
    assert not done and "too many" in how and written == ""


def test_a_desktop_tool_goes_first_but_not_over_ssh(monkeypatch, tmp_path):
    tool(tmp_path, "wl-copy", f"cat > {tmp_path}/got")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    desktop = {**XTERM, "WAYLAND_DISPLAY": "wayland-0"}
    assert sent("a\x1b漢", desktop) == (True, "wl-copy", "")
    assert (tmp_path / "got").read_text() == "a\x1b漢"
    done, how, written = sent("x", {**desktop, "SSH_CONNECTION": "1 2 3 4"})
    assert done and "terminal" in how and written
    tool(tmp_path, "wl-copy", "exit 3")
    done, how, written = sent("x", {"TERM": "dumb", "WAYLAND_DISPLAY": "w"})
    assert not done and "wl-copy failed with status 3" in how


def test_code_blocks_are_source():
    text = "1. a\n\n   ```py\n   x = 1\n     y\n   ```\n\n~~~~\n```\n~~~\n~~~~\n\n```\nopen\n"
    assert code_blocks(text) == ["x = 1\n  y\n", "```\n~~~\n", "open\n"]


async def test_copy_says_how_or_why_not(make_app, monkeypatch, tmp_path):
    tool(tmp_path, "wl-copy", f"cat > {tmp_path}/got")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    monkeypatch.setenv("WAYLAND_DISPLAY", "w")
    app = make_app()
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        await answer(pilot, "!say two\n```\ncode\n```\n")
        for command, text in (("/copy 2", "!say two\n"), ("/code 1", "code\n")):
            await send(pilot, command)
            await until(
                pilot,
                lambda text=text: (
                    (tmp_path / "got").exists() and (tmp_path / "got").read_text().startswith(text)
                ),
            )
        await sees(pilot, "code block 1 of 1")
        monkeypatch.delenv("WAYLAND_DISPLAY")
        monkeypatch.delenv("DISPLAY", raising=False)
        monkeypatch.setenv("TERM", "linux")
        await pilot.press("ctrl+y")
        await sees(pilot, "Not copied: this terminal has no")
