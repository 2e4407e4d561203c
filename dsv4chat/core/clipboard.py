"""Puts text on the clipboard: by a tool of the desktop, or through the terminal (OSC 52).

The terminal does not answer, so the words for the user say which way was taken. Over ssh a tool
would fill the clipboard of the wrong machine: there only the terminal is asked.
"""

import base64
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass

MAX_OSC52_BYTES = 74_994  # of text; more is cut or refused by common terminals
TOOL_TIMEOUT_S = 3.0
_TOOLS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("WAYLAND_DISPLAY", ("wl-copy",)),
    ("DISPLAY", ("xclip", "-selection", "clipboard")),
    ("DISPLAY", ("xsel", "--input", "--clipboard")),
    ("WSL_DISTRO_NAME", ("clip.exe",)),
)


@dataclass(frozen=True, slots=True)
class Copied:
    """Whether the text went anywhere, and how or why not, for people."""

    done: bool
    how: str


def copy_text(
    text: str, environment: Mapping[str, str], platform: str, write: Callable[[str], None]
) -> Copied:
    """Copy `text`; `write` sends a sequence to the terminal. May take up to `TOOL_TIMEOUT_S`."""
    failed = ""
    if not environment.get("SSH_CONNECTION"):
        for command in _tools(environment, platform):
            failed = _run(command, text)
            if not failed:
                return Copied(True, command[0])
    sequence, why_not = osc52(text, environment)
    if sequence:
        write(sequence)
        return Copied(True, "through the terminal, if it allows OSC 52")
    return Copied(False, "; ".join(part for part in (failed, why_not) if part))


def osc52(text: str, environment: Mapping[str, str]) -> tuple[str, str]:
    """The sequence for this terminal; or "" and the reason.

    tmux takes the plain sequence with `set-clipboard on` and hands the wrapped one through with
    `allow-passthrough on`, so it gets both.
    """
    if environment.get("TERM", "") in ("", "dumb", "linux"):
        return "", "this terminal has no clipboard"
    data = text.encode("utf-8", "replace")
    if len(data) > MAX_OSC52_BYTES:
        return "", f"{len(data)} bytes are too many for the terminal's clipboard"
    plain = f"\x1b]52;c;{base64.b64encode(data).decode()}\x07"
    if environment.get("TMUX"):
        inner = plain.replace("\x1b", "\x1b\x1b")
        return f"{plain}\x1bPtmux;{inner}\x1b\\", ""
    return plain, ""


def _tools(environment: Mapping[str, str], platform: str) -> list[tuple[str, ...]]:
    if platform == "darwin":
        wanted: list[tuple[str, ...]] = [("pbcopy",)]
    else:
        wanted = [command for name, command in _TOOLS if environment.get(name)]
    return [command for command in wanted if shutil.which(command[0])]


def _run(command: tuple[str, ...], text: str) -> str:
    """Why it failed, or "". Its output is not read: some of these tools stay and hold the pipe."""
    quiet = subprocess.DEVNULL
    try:
        done = subprocess.run(
            command,
            input=text.encode("utf-8", "replace"),
            stdout=quiet,
            stderr=quiet,
            timeout=TOOL_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]} failed: {error}"
    return "" if done.returncode == 0 else f"{command[0]} failed with status {done.returncode}"
