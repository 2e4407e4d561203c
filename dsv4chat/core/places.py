"""Where the app keeps things, and the one place where it reads its environment variables."""

import os
import shlex
import sys
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import platformdirs

APP = "dsv4chat"


def config_file() -> Path:
    return Path(platformdirs.user_config_dir(APP)) / "config.toml"


def store_file() -> Path:
    return Path(platformdirs.user_data_dir(APP)) / "chats.sqlite"


def log_folder() -> Path:
    return Path(platformdirs.user_state_dir(APP)) / "logs"


def engine_command() -> list[str]:
    """The command that starts the engine, without `--fd`. `DSV4CHAT_ENGINE` replaces it in tests.

    -P keeps the current folder out of the module path: a user's own `engine` folder must not run.
    """
    other = os.environ.get("DSV4CHAT_ENGINE")
    return shlex.split(other) if other else [sys.executable, "-P", "-m", "engine"]


def environment() -> Mapping[str, str]:
    """What the terminal says about itself, for the clipboard and the editor."""
    return os.environ


def api_key() -> str:
    """The key for a server, or ""."""
    return os.environ.get("DSV4CHAT_API_KEY") or os.environ.get("OPENAI_API_KEY") or ""


def child_environment() -> dict[str, str]:
    """The environment of child processes.

    Ours, with the folder this package was loaded from importable.
    """
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH", "")) if part)
    return {**os.environ, "PYTHONPATH": path}


def demo_model() -> Path | None:
    """The folder of the demo model that ships with the app, if it is installed."""
    try:
        folder = Path(str(resources.files("assets"))) / "demo"
    except (ModuleNotFoundError, TypeError):
        folder = Path(__file__).resolve().parents[2] / "assets" / "demo"
    return folder if (folder / "config.json").is_file() else None


def model_problem(folder: Path) -> str:
    """Why `folder` cannot be a model, as one line for people; empty if it may be one."""
    try:
        if not folder.exists():
            return f"{folder}: no such folder"
        if not folder.is_dir():
            return f"{folder}: not a folder; --model takes the folder of a checkpoint"
        if not (folder / "config.json").is_file():
            return f"{folder}: no config.json there; --model takes the folder of a checkpoint"
        if not any(folder.glob("*.safetensors.index.json")) and not any(
            folder.glob("*.safetensors")
        ):
            return f"{folder}: config.json is there, but no .safetensors weights and no index"
    except (OSError, ValueError) as error:
        return f"{folder}: cannot be read: {error}"
    return ""
