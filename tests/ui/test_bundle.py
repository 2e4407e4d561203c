"""Dump bundles: what is written opens again without an engine; what is damaged says where."""

import json
import math
import subprocess
import sys
import zipfile
from pathlib import Path

import msgspec
import pytest

from dsv4chat.core import stored
from dsv4chat.core.bundle import Bundle, BundleError, Manifest, read_bundle, write_bundle
from dsv4chat.core.config import Config
from dsv4chat.core.records import TurnRecords
from dsv4chat.core.settings import Settings
from dsv4chat.replaying import replay_app
from engine.protocol import ModelInfo, Ready, Token
from engine.telemetry import TapLayout
from tests.ui.conftest import answer, sees, send, until
from tests.ui.test_store import same, talk

LAYOUT = TapLayout(layers=2, top_k=1, streams=4, blocks=(1,) * 8)
ROOT = Path(__file__).parents[2]


def small() -> Bundle:
    chat = talk("why?", "because", "hm")
    token = Token(0, 7, "b", -0.5, "bf16", "checkpoint", top=[(7, -0.5)], pieces=["b"], forced=True)
    records = TurnRecords(LAYOUT, {0: token}, {0: bytes(4 * LAYOUT.words)})
    manifest = Manifest(settings=Settings(gsa="checkpoint", seed=3), turn=chat.leaf, token=0,
                        prompt_ids=[0, 4, 9], log=["a line"])  # fmt: skip
    return Bundle(manifest, chat, {chat.leaf: records})


def test_round_trip(tmp_path):
    bundle = small()
    write_bundle(bundle, tmp_path / "a.zip")
    again = read_bundle(tmp_path / "a.zip")
    assert again.manifest == bundle.manifest and same(again.conversation, bundle.conversation)
    (turn_id,) = again.records
    assert again.records[turn_id].tokens == bundle.records[turn_id].tokens
    assert again.records[turn_id].payloads == bundle.records[turn_id].payloads
    assert again.records[turn_id].layout == LAYOUT
    with pytest.raises(FileExistsError):
        write_bundle(bundle, tmp_path / "a.zip")


def changed(tmp_path: Path, name: str, change) -> Path:
    """A bundle with one member rewritten; None leaves it out."""
    write_bundle(small(), tmp_path / "good.zip")
    path = tmp_path / "changed.zip"
    with zipfile.ZipFile(tmp_path / "good.zip") as old, zipfile.ZipFile(path, "w") as new:
        for member in old.namelist():
            data = old.read(member)
            data = change(data) if member.startswith(name) else data
            if data is not None:
                new.writestr(member, data)
    return path


def edited(**values):
    return lambda data: json.dumps({**json.loads(data), **values}).encode()


def short_record(data: bytes) -> bytes:
    chunk = stored.unpack_piece(data)
    chunk.payloads[0] = b"1234"
    return stored.zlib.compress(msgspec.msgpack.encode(chunk))


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("manifest.json", lambda data: None, "no manifest.json in it"),
        ("conversation.json", lambda data: None, "no conversation.json in it"),
        ("manifest.json", lambda data: data[:40], "manifest.json: not JSON"),
        ("manifest.json", edited(format="other"), 'no "format"'),
        ("manifest.json", edited(version=9), "version 9; this dsv4chat reads 1"),
        ("manifest.json", edited(prompt_ids="x"), r"manifest.json: Expected .* at `\$.prompt_ids`"),
        ("manifest.json", edited(turn="lost"), "its turn 'lost' is not in the conversation"),
        ("conversation.json", lambda data: data[:-9], "conversation.json: not JSON"),
        ("records/", lambda data: data[:-9], r"records/.*/0.bin: cut off"),
        ("records/", lambda data: b"junk", r"records/.*/0.bin: Error -3"),
        ("records/", short_record, r"records/.*/0.bin: token 0: a record of 4 bytes"),
    ],
)
def test_a_damaged_part_is_named(tmp_path, name, change, words):
    with pytest.raises(BundleError, match=words):
        read_bundle(changed(tmp_path, name, change))


def test_what_is_no_bundle_is_refused(tmp_path):
    with pytest.raises(BundleError, match="no such file"):
        read_bundle(tmp_path / "none.zip")
    with pytest.raises(BundleError, match="not a file"):
        read_bundle(tmp_path)
    (tmp_path / "text.zip").write_text("hello")
    with pytest.raises(BundleError, match="not a whole zip file"):
        read_bundle(tmp_path / "text.zip")
    write_bundle(small(), tmp_path / "a.zip")
    data = bytearray((tmp_path / "a.zip").read_bytes())
    (tmp_path / "cut.zip").write_bytes(data[: len(data) // 2])
    with pytest.raises(BundleError, match="not a whole zip file"):
        read_bundle(tmp_path / "cut.zip")
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        at = archive.getinfo("conversation.json").header_offset + 60
    data[at] ^= 0xFF
    (tmp_path / "flipped.zip").write_bytes(data)
    with pytest.raises(BundleError):
        read_bundle(tmp_path / "flipped.zip")


async def test_a_dump_replays_without_an_engine(make_app, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    app = make_app(Settings(seed=5))
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await answer(pilot, "!saturate")
        await send(pilot, "/dump before")
        await until(pilot, (tmp_path / "before.zip").exists)
        app.set_cursor(7)
        await until(pilot, lambda: app.session.phase == "ready")
        app.layer = 4
        await pilot.press("ctrl+g")
        await until(pilot, lambda: len(list(tmp_path.glob("*dump*.zip"))) == 1)
        await sees(pilot, "dsv4chat replay dsv4chat-dump")
        chat, ready = app.session.conversation, app.session.ready
    (path,) = tmp_path.glob("*dump*.zip")
    bundle = read_bundle(path)
    assert bundle.manifest.prompt_ids == [0, len("!saturate")] and not bundle.manifest.prompt_note
    assert bundle.manifest.ready == ready and ready.machine.system == "fake system"
    assert (bundle.manifest.token, bundle.manifest.layer) == (7, 4)
    assert "fake engine: started" in bundle.manifest.log

    monkeypatch.setenv("DSV4CHAT_ENGINE", "/nonexistent")
    app = replay_app(bundle, path.name, Config(), str(tmp_path / "store"))
    (tmp_path / "store").mkdir()
    async with app.run_test(size=(200, 60), notifications=True) as pilot:
        await sees(pilot, "replay of dsv4chat-dump", "14 blocks saturate: L4 ffn_in", "▸ token 7")
        await sees(pilot, "path fused", "heaviest blocks", "nvfp4_linear", "global scale")
        assert same(app.session.conversation, chat)
        await pilot.press("f9")
        await sees(pilot, "▸ token 6")
        for key in ("ctrl+r", "f5", "f8"):
            await pilot.press(key)
            await sees(pilot, "no engine runs")
        await send(pilot, "hello?")
        assert len(app.session.conversation.turns) == len(chat.turns)
        assert app.session.settings.router == "fused"


async def test_a_dump_without_an_engine_says_that_prompt_ids_are_missing(
    make_app, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    app = make_app()
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await answer(pilot, "!kill")
        await until(pilot, lambda: app.session.phase == "dead")
        await send(pilot, "/dump dead.zip")
        await sees(pilot, "no prompt ids: no engine runs")
    manifest = read_bundle(tmp_path / "dead.zip").manifest
    assert manifest.prompt_ids == [] and manifest.prompt_note == "no engine runs"


def test_scales_that_are_not_finite_survive(tmp_path):
    bundle = small()
    bundle.manifest.ready = msgspec.structs.replace(
        _ready(), model=msgspec.structs.replace(_ready().model, gsa_stored={"w2_in": [math.inf]})
    )
    write_bundle(bundle, tmp_path / "a.zip")
    assert read_bundle(tmp_path / "a.zip").manifest.ready == bundle.manifest.ready


def _ready():

    info = ModelInfo(
        "m", "/m", False, 2, 8, 9, 4, 1, 0, (0, 4), "nvfp4", 1, 2, 3, {}, {}, "official"
    )
    return Ready(info, "cpu", 64, [], LAYOUT, [1])


def test_the_command_line_names_what_is_wrong(tmp_path):
    (tmp_path / "text.zip").write_text("hello")
    for arguments, status, words in (
        (["replay", str(tmp_path / "text.zip")], 1, "text.zip: not a whole zip file"),
        (["replay"], 2, "FILE"),
    ):
        run = subprocess.run(
            [sys.executable, "-m", "dsv4chat", *arguments], cwd=ROOT, capture_output=True, text=True
        )
        assert run.returncode == status and words in run.stderr
