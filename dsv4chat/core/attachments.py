"""Files named in a message with `@path` are put below it as fenced text."""

import os
import re
import stat
from pathlib import Path

MAX_FILE_BYTES = 256 * 1024
MAX_TOTAL_BYTES = 1024 * 1024
MAX_NAMES = 2000  # looked at in one folder, for completion
_NAMED = re.compile(r'(?<!\S)@(?:"([^"\n]+)"|([^\s"@]\S*))')
_OPEN = re.compile(r'(?<!\S)@("?)([^"\n]*)$')


class AttachmentError(ValueError):
    """A file that cannot be sent. The message names it and says why."""


def attach(text: str, folder: Path) -> tuple[str, list[str]]:
    """The message with its files below it, and their names.

    `@word` that is no file stays text; something that looks like a path must exist.

    Raises:
        AttachmentError: a named file is missing, too large, no text, or not a plain file.
    """
    names: list[str] = []
    parts = [text]
    room = MAX_TOTAL_BYTES
    for match in _NAMED.finditer(text):
        name = _name(match, folder)
        if name is None or name in names:
            continue
        content = _read(name, folder, room)
        room -= len(content.encode())
        names.append(name)
        parts.append(_fenced(name, content))
    return "\n\n".join(parts), names


def _name(match: re.Match[str], folder: Path) -> str | None:
    """The file that is meant; a comma or full stop behind a name is not part of it."""
    quoted, plain = match[1], match[2]
    name = quoted or plain
    for candidate in (name, plain.rstrip(",.;:!?)") if plain else ""):
        if candidate and _path(candidate, folder).exists():
            return candidate
    if quoted or name.startswith(("~/", "./", "../", "/")):
        raise AttachmentError(f"@{name}: no such file")
    return None


def _path(name: str, folder: Path) -> Path:
    try:
        return folder / Path(name).expanduser()
    except RuntimeError:  # ~nobody
        return folder / name


def _read(name: str, folder: Path, room: int) -> str:
    path = _path(name, folder)
    try:
        mode, size = path.stat().st_mode, path.stat().st_size
        if stat.S_ISDIR(mode):
            raise AttachmentError(f"@{name}: a folder; name a file in it")
        if not stat.S_ISREG(mode):
            raise AttachmentError(f"@{name}: not a plain file")
        if size > MAX_FILE_BYTES:
            raise AttachmentError(
                f"@{name}: {size >> 10} KiB; a file may have {MAX_FILE_BYTES >> 10} KiB"
            )
        if size > room:
            raise AttachmentError(
                f"@{name}: all files together may have {MAX_TOTAL_BYTES >> 10} KiB"
            )
        data = path.read_bytes()
    except OSError as error:
        raise AttachmentError(f"@{name}: {error.strerror or error}") from None
    if b"\0" in data:
        raise AttachmentError(f"@{name}: not text but binary data; only text can be sent")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise AttachmentError(
            f"@{name}: not UTF-8 text (byte {error.start}); only text can be sent"
        ) from None


def _fenced(name: str, content: str) -> str:
    longest = max((len(run) for run in re.findall("`+", content)), default=0)
    fence = "`" * max(3, longest + 1)
    language = Path(name).suffix.lstrip(".")
    end = "" if content.endswith("\n") or not content else "\n"
    return f"{name}:\n{fence}{language}\n{content}{end}{fence}"


def completions(before: str, folder: Path, limit: int = 6) -> tuple[int, list[str]]:
    """Files that the `@word` at the end of `before` may become, folders with a slash.

    Returns where the word begins and what may stand there instead.
    """
    match = _OPEN.search(before)
    if match is None or (not match[1] and " " in match[2]):
        return len(before), []
    head, _, part = match[2].rpartition("/")
    head = f"{head}/" if "/" in match[2] else ""
    found: list[str] = []
    try:
        with os.scandir(_path(head or ".", folder)) as entries:
            for entry, _ in zip(entries, range(MAX_NAMES), strict=False):
                if entry.name.lower().startswith(part.lower()) and (
                    part.startswith(".") or not entry.name.startswith(".")
                ):
                    found.append(head + entry.name + "/" * entry.is_dir())
    except OSError:
        return len(before), []
    found.sort(key=lambda name: (name.endswith("/"), name.lower()))
    return match.start(), [f'@"{name}"' if " " in name else f"@{name}" for name in found[:limit]]
