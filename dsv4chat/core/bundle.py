"""Dump bundles: one zip with all that is needed to study or repeat an answer without its engine.

`manifest.json`: settings, prompt ids, model, plan, machine, versions, and which token was in view.
`conversation.json`: every branch. `records/TURN/START.bin`: tokens with their tap records.
"""

import json
import math
import time
import zipfile
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from dsv4chat import __version__
from dsv4chat.core.conversation import Conversation
from dsv4chat.core.records import TurnRecords
from dsv4chat.core.settings import Settings
from dsv4chat.core.stored import (
    ImportRefusedError,
    from_json,
    join_records,
    pack_records,
    to_plain,
    unpack_piece,
)
from engine.protocol import Ready

FORMAT, VERSION = "dsv4chat-dump", 1
MAX_BYTES = 2 * 1024**3
_README = """A dump of dsv4chat. Open it with: dsv4chat replay THIS.zip

manifest.json      settings, prompt ids, model, plan, machine and versions; the token in view
conversation.json  every branch, as /export FILE.json writes it
records/TURN/N.bin zlib of msgpack: layout, tokens from N on, tap record of each token by index;
                   the record's fields are those of TapLayout in engine/telemetry.py
"""


class BundleError(ValueError):
    """Not a bundle that can be opened. One line that says what is wrong with it."""


class Manifest(msgspec.Struct):
    """What a bundle says of itself. `turn`, `token`, `layer`: what was in view.

    `prompt_ids` are those that `turn` started from; `prompt_note` says why there are none.
    """

    format: str = FORMAT
    version: int = VERSION
    app: str = __version__
    created: float = 0.0
    settings: Settings = Settings()
    ready: Ready | None = None
    system: str = ""
    python: str = ""
    turn: str = ""
    token: int | None = None
    layer: int = 0
    prompt_ids: list[int] = []
    prompt_note: str = ""
    notices: list[str] = []
    log: list[str] = []


@dataclass(slots=True)
class Bundle:
    """A conversation with its records, by turn."""

    manifest: Manifest
    conversation: Conversation
    records: dict[str, TurnRecords] = field(default_factory=dict)


def write_bundle(bundle: Bundle, path: Path) -> None:
    """Write a new file; one that could not be finished is removed.

    Raises:
        OSError: it cannot be written, or is there already.
    """
    manifest = _finite(msgspec.to_builtins(bundle.manifest))
    with path.open("xb") as file:
        try:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr("README.txt", _README)
                archive.writestr("manifest.json", json.dumps(manifest, indent=1))
                plain = msgspec.json.encode(to_plain(bundle.conversation))
                archive.writestr("conversation.json", plain)
                for turn_id, records in bundle.records.items():
                    for start, piece in pack_records(records):
                        name = f"records/{turn_id}/{start}.bin"
                        archive.writestr(name, piece, zipfile.ZIP_STORED)
        except OSError:
            path.unlink(missing_ok=True)
            raise


def _finite(value: Any) -> Any:
    """Figures that are not finite as text: a checkpoint's scales may well be."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def read_bundle(path: Path) -> Bundle:
    """Read a bundle back.

    Raises:
        BundleError: it is not one, or damaged; the message names the part. OSError: not readable.
    """
    if not path.is_file():
        raise BundleError("no such file" if not path.exists() else "not a file")
    try:
        with zipfile.ZipFile(path) as archive:
            return _read(archive)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise BundleError(f"not a whole zip file: {error}") from None
    except (RuntimeError, NotImplementedError) as error:  # encrypted, or packed in other ways
        raise BundleError(f"not a dump of dsv4chat: {error}") from None


def _read(archive: zipfile.ZipFile) -> Bundle:
    names = {info.filename: info.file_size for info in archive.infolist()}
    for name in ("manifest.json", "conversation.json"):
        if name not in names:
            raise BundleError(f"no {name} in it: not a dump of dsv4chat")
    if sum(names.values()) > MAX_BYTES:
        raise BundleError(f"more than {MAX_BYTES >> 30} GiB when unpacked")
    manifest = _manifest(archive.read("manifest.json"))
    try:
        conversation = from_json(archive.read("conversation.json"))
    except ImportRefusedError as error:
        raise BundleError(f"conversation.json: {error}") from None
    if manifest.turn and manifest.turn not in conversation.turns:
        raise BundleError(f"manifest.json: its turn {manifest.turn!r} is not in the conversation")
    return Bundle(manifest, conversation, _records(archive, conversation))


def _manifest(data: bytes) -> Manifest:
    try:
        plain = msgspec.json.decode(data)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"manifest.json: not JSON: {error}") from None
    if not isinstance(plain, dict) or plain.get("format") != FORMAT:
        raise BundleError(f'manifest.json: no "format": "{FORMAT}"')
    if plain.get("version") != VERSION:
        raise BundleError(f"version {plain.get('version')!r}; this dsv4chat reads {VERSION}")
    try:
        return msgspec.convert(plain, Manifest, strict=False)  # "inf" is a figure
    except ValueError as error:
        raise BundleError(f"manifest.json: {error}") from None


def _records(archive: zipfile.ZipFile, conversation: Conversation) -> dict[str, TurnRecords]:
    parts: dict[str, list[Any]] = {}
    for name in archive.namelist():
        folder, _, rest = name.partition("/")
        if folder != "records":
            continue
        turn_id = rest.partition("/")[0]
        try:
            chunk = unpack_piece(archive.read(name))
        except ValueError as error:
            raise BundleError(f"{name}: {error}") from None
        if turn_id.partition("@")[0] not in conversation.turns:
            raise BundleError(f"{name}: no such turn in the conversation")
        parts.setdefault(turn_id, []).append(chunk)
    return {turn_id: join_records(chunks) for turn_id, chunks in parts.items()}


def bundle_path(target: str, folder: Path) -> Path:
    """Where to write: the file named, with .zip at its end, or a name made from the time."""
    name = target.strip() or f"dsv4chat-dump-{time.strftime('%Y%m%d-%H%M%S')}"
    path = folder / Path(name).expanduser()
    return path if path.suffix.lower() == ".zip" else path.with_name(path.name + ".zip")


def copy_records(records: TurnRecords) -> TurnRecords:
    """A copy that another thread may write while the answer grows."""
    return replace(records, tokens=dict(records.tokens), payloads=dict(records.payloads))
