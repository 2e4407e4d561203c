"""JSON objects from untrusted files: bounded in size, no key twice, nothing but an object at the
top.

Needs no torch.
"""

import json
import os
import stat
from pathlib import Path
from typing import Any

from engine.errors import CheckpointError

_SHOWN = 200  # characters of a name in a message


def shown(name: object) -> str:
    """A name from a file, short enough and escaped for a one-line message."""
    text = str(name)
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")


def regular_size(path: Path) -> int:
    """Size of a plain file, through links.

    Raises:
        CheckpointError: not there, not readable, or a folder, pipe or device.
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(f"{path}: cannot be read: {reason}") from None
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(f"{path}: not a plain file")
    return status.st_size


def read_object(path: Path, limit: int) -> dict[str, Any]:
    """The JSON object a file holds.

    Raises:
        CheckpointError: not readable, over `limit` bytes, not JSON, not an object, or a key that
            stands twice. One line, naming the file.
    """
    size = regular_size(path)
    if size > limit:
        raise CheckpointError(f"{path}: {size} bytes, far more than such a file needs")
    try:
        body = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from None
    return parse_object(body, str(path), "the file")


def parse_object(body: bytes, where: str, what: str) -> dict[str, Any]:
    """The JSON object in `body`; `where` and `what` name it in errors (as `read_object`)."""

    try:
        value = json.loads(body.decode("utf-8"), object_pairs_hook=_members)
    except (ValueError, RecursionError):
        raise CheckpointError(f"{where}: {what} cannot be read as JSON") from None
    if isinstance(value, _Twice):
        raise CheckpointError(f"{where}: {shown(value.key)} stands twice in {what}")
    if not isinstance(value, dict):
        raise CheckpointError(f"{where}: {what} is not a JSON object")
    for name, member in value.items():
        if isinstance(member, _Twice):
            raise CheckpointError(f"{where}: {shown(name)}: {shown(member.key)} stands twice")
    return value


class _Twice:
    """Stands for an object in which a key stands twice."""

    def __init__(self, key: str) -> None:
        self.key = key


def _members(pairs: list[tuple[str, Any]]) -> "dict[str, Any] | _Twice":
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            return _Twice(name)
        seen.add(name)
    raise AssertionError("fewer keys than pairs, and none twice")
