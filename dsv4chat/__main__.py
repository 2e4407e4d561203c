"""Entry point: `dsv4chat` opens the chat, `-p` answers once, subcommands run in a child process."""

import os
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

from dsv4chat import cli
from dsv4chat.core import places
from dsv4chat.core.config import Config, read_config
from dsv4chat.core.text import clean

if TYPE_CHECKING:
    from dsv4chat.core.backend import Backend


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        if arguments and arguments[0] in cli.SUBCOMMANDS:
            return _run_child(arguments[0], arguments[1:])
        if arguments and arguments[0] == cli.REPLAY:
            return _replay(arguments[1:])
        return _chat_or_answer(arguments)
    except cli.UsageError as error:
        _say(f"{error}\nTry dsv4chat --help.")
        return 2
    except KeyboardInterrupt:
        return 130


def _chat_or_answer(arguments: list[str]) -> int:
    config = read_config(places.config_file())
    request = cli.parse(arguments, config)
    if request.prompt is None and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise cli.UsageError("the chat needs a terminal; use -p TEXT in scripts and pipes")
    model, problem = (request.model or "", "")
    if not request.remote:
        model, problem = cli.find_model(request.model)
    if problem:
        _say(problem)
        return 1
    if request.prompt is None:
        return _open_chat(request, model, config)
    for line in config.problems:
        _say(line)
    from dsv4chat.oneshot import answer_once

    prompt = cli.read_prompt(request.prompt)
    return answer_once(_backend(request), prompt, request, model, system=config.system)


def _backend(request: cli.Request) -> "Backend":
    """The engine, or the server that the command line names."""
    if request.remote:
        from dsv4chat.remote.client import RemoteClient

        return RemoteClient(request.remote, places.api_key())
    from dsv4chat.core.engine_client import EngineClient

    return EngineClient()


def _open_chat(request: cli.Request, model: str, config: Config) -> int:
    from dsv4chat.app import ChatApp
    from dsv4chat.core.session import ChatSession

    session = ChatSession(_backend(request), request.settings, model, system=config.system)
    session.remote = request.remote
    app = ChatApp(session, config, resume=request.resume)
    return app.run() or 0


def _replay(arguments: list[str]) -> int:
    path = cli.parse_replay(arguments)
    from dsv4chat.core.bundle import BundleError, read_bundle

    try:
        bundle = read_bundle(path)
    except (BundleError, OSError) as error:
        _say(f"{path}: {error}")
        return 1
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise cli.UsageError("a replay needs a terminal")
    from dsv4chat.replaying import replay_app

    with tempfile.TemporaryDirectory() as folder:
        return replay_app(bundle, path.name, read_config(places.config_file()), folder).run() or 0


def _run_child(name: str, arguments: list[str]) -> int:
    """Run `python -m engine.NAME` with our streams and pass its exit status on."""
    command = [sys.executable, "-P", "-m", f"engine.{name}", *arguments]
    child = subprocess.Popen(command, env=places.child_environment())
    while True:
        try:
            code = child.wait()
        except KeyboardInterrupt:
            continue  # the child has received it too and decides
        return code if code >= 0 else 128 - code


def _say(message: str) -> None:
    print(f"dsv4chat: {clean(message)}", file=sys.stderr)


if __name__ == "__main__":
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    sys.exit(status)
