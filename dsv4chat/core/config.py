"""Reads the config file (TOML). A bad file never prevents a start.

What is wrong is reported and left out.
"""

import re
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path

from dsv4chat.core.settings import SETTINGS, Settings


@dataclass(frozen=True, slots=True)
class Config:
    """Settings from the file, and what was ignored, one line each."""

    settings: Settings = field(default_factory=Settings)
    model: str = ""
    theme: str = ""
    system: str = ""
    low_motion: bool = False
    problems: tuple[str, ...] = ()


TEXTS = ("model", "theme", "system")


def read_config(path: Path) -> Config:
    """The config at `path`; defaults where the file is missing, unreadable or wrong."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Config()
    except (OSError, UnicodeDecodeError) as error:
        return Config(problems=(f"{path}: not read, using defaults: {error}",))
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return Config(problems=(f"{path}: not valid TOML, using defaults: {error}",))
    return _from_values(values, path, text)


def _from_values(values: dict[str, object], path: Path, text: str) -> Config:
    config = Config()
    problems: list[str] = []
    for name, value in values.items():
        try:
            config = _with_value(config, name.replace("-", "_"), value)
        except ValueError as error:
            line = _line_of(name, text)
            problems.append(f"{path}:{line}: {name} = {value!r} ignored: {error}")
    return replace(config, problems=tuple(problems))


def _with_value(config: Config, name: str, value: object) -> Config:
    if name in SETTINGS:
        return replace(config, settings=config.settings.with_value(name, value))
    if name in TEXTS:
        if not isinstance(value, str):
            raise ValueError("must be text in quotes")
        return replace(config, **{name: value})  # type: ignore[arg-type]
    if name == "low_motion":
        if not isinstance(value, bool):
            raise ValueError("must be true or false")
        return replace(config, low_motion=value)
    raise ValueError("no setting has this name")


def _line_of(name: str, text: str) -> int:
    """The line that sets `name`; 1 if it cannot be told."""
    pattern = re.compile(rf"""^\s*(\[\s*)?["']?{re.escape(name)}["']?\s*[=.\]]""")
    for number, line in enumerate(text.splitlines(), 1):
        if pattern.match(line):
            return number
    return 1
