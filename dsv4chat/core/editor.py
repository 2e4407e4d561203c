"""Edits a text in the user's own editor."""

import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path


class EditorError(Exception):
    """No editor, or it failed. The message says which, and the text is as it was."""


def edit_text(text: str, environment: Mapping[str, str]) -> str:
    """Run $VISUAL or $EDITOR on `text` and return what was saved. Blocks; the terminal is theirs.

    Raises:
        EditorError: none is set, it cannot run, it failed, or the file is not text any more.
    """
    wanted = environment.get("VISUAL") or environment.get("EDITOR")
    if not wanted:
        raise EditorError("no editor: set $VISUAL or $EDITOR, for example EDITOR=nano")
    try:
        command = shlex.split(wanted)
    except ValueError as error:
        raise EditorError(f"$EDITOR cannot be read: {error}") from None
    with tempfile.TemporaryDirectory(prefix="dsv4chat-") as folder:
        path = Path(folder) / "message.md"
        path.write_text(text, encoding="utf-8")
        try:
            code = subprocess.run([*command, str(path)]).returncode
        except OSError as error:
            raise EditorError(f"{command[0]} cannot run: {error.strerror}") from None
        if code:
            raise EditorError(f"{command[0]} ended with status {code}; the message is as it was")
        try:
            return path.read_text(encoding="utf-8").removesuffix("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise EditorError(f"{command[0]} left no readable text: {error}") from None
