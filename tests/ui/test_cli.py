"""The command line as a script sees it: output, exit status, signals, and no torch."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ui.conftest import (
    use_engine,
)
from tests.ui.fake_engine import ANSWER, THOUGHT

ROOT = Path(__file__).resolve().parents[2]


def run(
    *arguments: str, stdin: bytes | None = None, **extra: str
) -> subprocess.CompletedProcess[bytes]:
    options = {"input": stdin} if stdin is not None else {"stdin": subprocess.DEVNULL}
    return subprocess.run(
        [sys.executable, "-m", "dsv4chat", *arguments], cwd=ROOT, capture_output=True, timeout=30,
        env={**os.environ, "PYTHONPATH": str(ROOT), **extra}, **options,
    )  # fmt: skip


def test_answer_and_nothing_else(model):
    done = run("--model", str(model), "-p", "hello", "--effort", "high")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == ANSWER


def test_piped_text_is_added_to_the_prompt(model):
    done = run("--model", str(model), "-p", "!say", stdin=b"x !say from the pipe\n")
    assert done.stdout.decode() == "from the pipe\n"
    done = run("--model", str(model), "-p", stdin=b"!say alone")
    assert done.stdout.decode() == "alone\n"


def test_json_lines_have_the_documented_keys(model):
    done = run("--model", str(model), "-p", "hi", "--json", "--effort", "low", "--seed", "5")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    start, tokens, end = lines[0], lines[1:-1], lines[-1]
    assert done.returncode == 0 and start["type"] == "start" and end["type"] == "done"
    assert {"model", "device", "plan"} <= start.keys() and {"op", "impl"} <= start["plan"][0].keys()
    keys = {"index", "id", "text", "channel", "logprob", "top", "gsa_max", "router"}
    assert all(line["type"] == "token" and keys <= line.keys() for line in tokens)
    assert [line["index"] for line in tokens] == list(range(len(tokens)))
    for channel, text in (("answer", ANSWER), ("thinking", THOUGHT)):
        assert "".join(line["text"] for line in tokens if line["channel"] == channel) == text
    assert {"reason", "prompt_tokens", "tokens", "ttft_ms", "tok_s"} <= end.keys()
    assert (end["reason"], end["tokens"], end["seed"]) == ("stop", len(tokens), 5)


def test_token_limit_is_done_not_failed(model):
    done = run("--model", str(model), "-p", "hi", "--json", "--max-tokens", "3")
    assert done.returncode == 0
    assert json.loads(done.stdout.splitlines()[-1])["reason"] == "length"


def test_escape_sequences_do_not_reach_the_output(model):
    done = run("--model", str(model), "-p", "!nasty")
    assert done.returncode == 0 and b"\x1b" not in done.stdout and b"\xc2\x9b" not in done.stdout
    done = run("--model", str(model), "-p", "!nasty", "--json")
    assert b"\x1b" not in done.stdout and b"\xc2\x9b" not in done.stdout


def test_narrow_encoding_does_not_break_output(model):
    done = run("--model", str(model), "-p", "!say caf\u00e9 \u6f22", PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and done.stdout == b"caf? ?\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--temperature", "nan"], ["--temperature", "-1"], ["--temperature", "inf"],
        ["--top-p", "0"], ["--top-p", "1.5"], ["--min-p", "-0.1"], ["--max-tokens", "0"],
        ["--max-tokens", "1.5"],
        ["--seed", "-3"], ["--seed", "99999999999999999999999"], ["--context", "0"],
        ["--router", "magic"], ["--gsa", "x"], ["--taps", "maybe"], ["--device", "tpu"],
        ["--effort", "much"], ["--precision", "fp4"], ["--no-such"],
    ],
)  # fmt: skip
def test_bad_values_are_usage_errors(model, arguments):
    done = run("--model", str(model), "-p", "hi", *arguments)
    assert done.returncode == 2 and done.stdout == b""
    assert arguments[0].encode() in done.stderr


def test_usage_errors_without_a_prompt(model):
    assert run("--model", str(model), "--json").returncode == 2
    assert run("--model", str(model), "-p", "").returncode == 2
    assert run("--model", str(model)).returncode == 2  # no terminal
    assert run("--model", str(model), "-p", stdin=b"\xff\xfe").returncode == 2


def test_model_problems_are_one_line_and_fast(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    file = tmp_path / "file"
    file.touch()
    half = tmp_path / "half"
    half.mkdir()
    (half / "config.json").write_text("{}")
    for path, word in (
        (tmp_path / "no", "no such"),
        (empty, "config.json"),
        (file, "not a folder"),
        (half, "weights"),
    ):
        done = run("--model", str(path), "-p", "hi")
        lines = done.stderr.decode().splitlines()
        assert (
            done.returncode == 1 and len(lines) == 1 and word in lines[0] and str(path) in lines[0]
        )


def test_load_fault_and_crash_are_status_1_with_words(model, monkeypatch):
    done = run("--model", str(model), "-p", "!exit 4")
    assert done.returncode == 1 and b"exit status 4" in done.stderr
    done = run("--model", str(model), "-p", "!kill", "--json")
    assert done.returncode == 1 and b"SIGKILL" in done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["reason"] == "fault"
    use_engine(monkeypatch, "--load-fault", "'layer 3: scale is missing'")
    done = run("--model", str(model), "-p", "hi")
    assert (done.returncode, done.stderr) == (1, b"dsv4chat: layer 3: scale is missing\n")


def test_refused_router_is_status_1(model, monkeypatch):
    use_engine(monkeypatch, "--refuse", "bf16=no.GPU")
    done = run("--model", str(model), "-p", "hi", "--router", "bf16")
    assert done.returncode == 1 and b"bf16 cannot run here: no.GPU" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_is_130_and_keeps_what_was_printed(model, number):
    child = subprocess.Popen(
        [sys.executable, "-m", "dsv4chat", "--model", str(model), "-p", "!slow"], cwd=ROOT,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    first = os.read(child.stdout.fileno(), 5)
    child.send_signal(number)
    rest = child.communicate(timeout=10)[0]
    assert child.returncode == 130
    text = (first + rest).decode()
    assert text.endswith("\n") and ANSWER.startswith(text.rstrip("\n"))


def test_reader_that_goes_away_is_not_an_error(model):
    command = f"{sys.executable} -m dsv4chat --model {model} -p '!slow' | head -c 5"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], cwd=ROOT, capture_output=True, timeout=20,
        stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout == ANSWER.encode()[:5] and done.stderr == b""


def test_version_and_help():
    assert run("--version").stdout == b"dsv4chat 0.1.0\n"
    text = run("--help").stdout.decode()
    assert "--router" in text and "doctor" in text and "130" in text


def test_subcommand_passes_arguments_and_status_on(tmp_path):
    package = tmp_path / "shadow" / "engine"
    package.mkdir(parents=True)
    done = run("inspect", "--help")
    assert done.returncode in (0, 1, 2)  # the engine's own parser answers, or its module is missing
    assert b"Traceback" not in done.stdout


def test_users_own_engine_folder_is_not_run(model, tmp_path, monkeypatch):
    """`python -m engine` must be ours even when started in a folder that has an `engine` of its
    own.
    """
    from dsv4chat.core import places

    monkeypatch.delenv("DSV4CHAT_ENGINE")
    command = places.engine_command()
    assert "-P" in command and command[-2:] == ["-m", "engine"]
    assert places.child_environment()["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)


def test_config_file_with_errors_is_reported_and_used(model, home):
    folder = home / "config" / "dsv4chat"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(
        'temperature = 0.5\nrouter = "magic"\nwhat = 1\nmax_tokens = 2\n'
    )
    done = run("--model", str(model), "-p", "hi", "--json")
    errors = done.stderr.decode()
    assert (
        done.returncode == 0
        and "config.toml:2: router" in errors
        and "config.toml:3: what" in errors
    )
    assert json.loads(done.stdout.splitlines()[-1])["tokens"] == 2
    (folder / "config.toml").write_text("temperature = = 1\n")
    done = run("--model", str(model), "-p", "hi")
    assert done.returncode == 0 and b"line 1" in done.stderr


def test_app_imports_without_torch():
    code = (
        "import sys\n"
        "for name in ('torch', 'numpy', 'cutlass', 'transformers'): sys.modules[name] = None\n"
        "import dsv4chat.__main__, dsv4chat.app, dsv4chat.oneshot, dsv4chat.screens.debug\n"
        "print(sorted(n for n in sys.modules if n.startswith('engine.')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=20, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['engine.framing', 'engine.protocol', 'engine.telemetry']"
