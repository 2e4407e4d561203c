"""The command line: its parser and the checks that can be made before anything starts."""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from dsv4chat import __version__
from dsv4chat.core import places
from dsv4chat.core.config import Config
from dsv4chat.core.settings import SETTINGS, Settings

SUBCOMMANDS = {
    "inspect": "what a checkpoint is, which formats it has, what it needs",
    "doctor": "check machine, GPU, packages and every kernel",
    "bench": "measure the decode step",
}
REPLAY = "replay"


class UsageError(Exception):
    """A command line that cannot be obeyed; exit status 2."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asks for."""

    settings: Settings
    model: str | None
    prompt: str | None  # None: open the chat
    json: bool
    resume: bool = False
    remote: str = ""  # URL of a server, up to and including /v1


def build_parser() -> argparse.ArgumentParser:
    """The parser of everything but the subcommands, whose arguments are passed on as they are."""
    shown = {**SUBCOMMANDS, f"{REPLAY} FILE": "open a dump (/dump) without an engine"}
    lines = "\n".join(f"  dsv4chat {name:<12} {text}" for name, text in shown.items())
    parser = argparse.ArgumentParser(
        prog="dsv4chat",
        description="Chat with DeepSeek-V4, and look inside it while it answers.",
        epilog=f"other commands:\n{lines}\n\nexit: 0 done, 1 failed, 2 usage, 130 interrupted",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"dsv4chat {__version__}")
    parser.add_argument("--model", metavar="DIR", help="checkpoint folder (default: demo model)")
    parser.add_argument(
        "--remote", metavar="URL", default="",
        help="chat with an OpenAI-compatible server; --model then names one of its models",
    )  # fmt: skip
    parser.add_argument(
        "-p", "--prompt", nargs="?", const="", metavar="TEXT",
        help="print one answer and end; piped input is added below TEXT",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="with -p: one JSON object a line")
    parser.add_argument(
        "-c", "--continue", dest="resume", action="store_true", help="open the last chat again"
    )
    group = parser.add_argument_group("settings")
    for name, setting in SETTINGS.items():
        group.add_argument(
            f"--{name.replace('_', '-')}",
            metavar="|".join(setting.values) or "N",
            type=_reader(name),
            help=setting.help,
            default=argparse.SUPPRESS,
        )
    return parser


def _reader(name: str):
    def read(value: str):
        try:
            return SETTINGS[name].read(value)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def parse(arguments: list[str], config: Config) -> Request:
    """Settings from the config file, overruled by the command line.

    Raises:
        SystemExit: bad usage (2), --help and --version (0); argparse has written the message.
        UsageError: options that do not go together.
    """
    found = vars(build_parser().parse_args(arguments))
    settings = config.settings
    for name in SETTINGS:
        if name in found:
            settings = settings.with_value(name, found[name])
    if found["json"] and found["prompt"] is None:
        raise UsageError("--json needs -p TEXT")
    if found["resume"] and found["prompt"] is not None:
        raise UsageError("--continue opens the chat; it does not go with -p")
    remote = server_url(found["remote"]) if found["remote"] else ""
    model = found["model"] or (None if remote else config.model) or None
    return Request(settings, model, found["prompt"], found["json"], found["resume"], remote)


def server_url(text: str) -> str:
    """The base of a server's API: a URL without a path gets /v1.

    Raises:
        UsageError: not an http or https URL.
    """
    try:
        parts = urlsplit(text.strip())
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise UsageError(f"--remote needs a URL such as http://localhost:8000/v1, not {text!r}")
    path = parts.path.rstrip("/").removesuffix("/chat/completions") or "/v1"
    return f"{parts.scheme}://{parts.netloc}{path}"


def parse_replay(arguments: list[str]) -> Path:
    """The file of `dsv4chat replay FILE`. Raises SystemExit on bad usage and --help."""
    parser = argparse.ArgumentParser(
        prog="dsv4chat replay", description="Open a dump as it was, without an engine or a model."
    )
    parser.add_argument("file", metavar="FILE", help="what /dump wrote")
    return Path(parser.parse_args(arguments).file).expanduser()


def find_model(model: str | None) -> tuple[str, str]:
    """The model folder and, if it cannot be used, why."""
    if model is None:
        demo = places.demo_model()
        if demo is None:
            return "", (
                "no model: the demo model is not installed (assets/demo); "
                "name a checkpoint folder with --model DIR"
            )
        return str(demo), ""
    folder = Path(model).expanduser()
    return str(folder), places.model_problem(folder)


def read_prompt(text: str) -> str:
    """The prompt of -p: its text, then what is piped in.

    Raises:
        UsageError: both are empty, or one of them is not UTF-8 text.
    """
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise UsageError("TEXT is not valid UTF-8") from None
    piped = ""
    if sys.stdin is not None and not sys.stdin.isatty():
        try:
            piped = sys.stdin.buffer.read().decode("utf-8")
        except UnicodeDecodeError as error:
            raise UsageError(f"standard input is not UTF-8 text: {error}") from None
    prompt = "\n\n".join(part for part in (text, piped.rstrip("\n")) if part.strip())
    if not prompt:
        raise UsageError("-p needs TEXT, or text on standard input")
    return prompt
