"""The settings of a chat and how their values are read from text.

One table serves the command line, the config file and the slash commands, so that all three accept
the same values and refuse the same ones in the same words.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

from engine.protocol import Effort, GsaMode, Precision, RouterPath, Sampling, StepOptions

ROUTERS: tuple[str, ...] = get_args(RouterPath)
GSA_MODES: tuple[str, ...] = get_args(GsaMode)
PRECISIONS: tuple[str, ...] = get_args(Precision)
EFFORTS: tuple[str, ...] = get_args(Effort)
DEVICES = ("auto", "cpu", "cuda")
MAX_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a request or a load is made from. None: the engine decides."""

    router: RouterPath = "fused"
    gsa: GsaMode = "runtime"
    taps: bool = True
    precision: Precision = "nvfp4"
    device: Any = "auto"
    context: int | None = None
    gpus: int = 1
    seed: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    max_tokens: int | None = None
    effort: Effort = "none"

    @property
    def options(self) -> StepOptions:
        return StepOptions(router=self.router, gsa=self.gsa, taps=self.taps)

    @property
    def sampling(self) -> Sampling:
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            min_p=self.min_p,
            seed=self.seed,
            max_tokens=self.max_tokens,
        )

    def with_value(self, name: str, value: object) -> "Settings":
        """A copy with one setting read from `value`.

        Raises:
            ValueError: no such setting, or not a value for it. The message is fit to show.
        """
        if name not in SETTINGS:
            raise ValueError(f"no setting named {name}")
        return replace(self, **{name: SETTINGS[name].read(value)})


def next_router(now: str, refused: Mapping[str, str]) -> tuple[str, list[str]]:
    """The next path that runs here, and the reasons of those skipped on the way."""
    at = ROUTERS.index(now)
    skipped: list[str] = []
    for step in range(1, len(ROUTERS) + 1):
        name = ROUTERS[(at + step) % len(ROUTERS)]
        if name not in refused:
            return name, skipped
        skipped.append(f"{name}: {refused[name]}")
    return now, skipped


@dataclass(frozen=True, slots=True)
class Setting:
    """How one setting is read, and what it says about itself."""

    read: Callable[[object], Any]
    help: str
    values: tuple[str, ...] = ()
    at_load: bool = False


def _choice(values: tuple[str, ...]) -> Callable[[object], str]:
    def read(value: object) -> str:
        text = str(value).strip().lower()
        if text not in values:
            raise ValueError(f"must be one of {', '.join(values)}, not {_shown(value)}")
        return text

    return read


def _switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text not in ("on", "off", "true", "false"):
        raise ValueError(f"must be on or off, not {_shown(value)}")
    return text in ("on", "true")


def _number(low: float, high: float, *, open_low: bool = False) -> Callable[[object], float]:
    limits = f"a number {'above' if open_low else 'from'} {low:g} to {high:g}"

    def read(value: object) -> float:
        if isinstance(value, bool):
            raise ValueError(f"must be {limits}, not {_shown(value)}")
        try:
            number = float(str(value))
        except ValueError:
            raise ValueError(f"must be {limits}, not {_shown(value)}") from None
        if (
            not math.isfinite(number)
            or number < low
            or number > high
            or (open_low and number == low)
        ):
            raise ValueError(f"must be {limits}, not {_shown(value)}")
        return number

    return read


def _whole(low: int, high: int, *, none: bool = True) -> Callable[[object], int | None]:
    limits = f"a whole number from {low} to {high}"

    def read(value: object) -> int | None:
        text = str(value).strip()
        if none and text.lower() in ("auto", "none", "random"):
            return None
        digits = text.removeprefix("-")
        if isinstance(value, bool) or not (digits.isascii() and digits.isdigit()):
            raise ValueError(f"must be {limits}, not {_shown(value)}")
        if len(digits) > 20 or not low <= int(text) <= high:
            raise ValueError(f"must be {limits}, not {_shown(value)}")
        return int(text)

    return read


def _shown(value: object) -> str:
    text = str(value)
    return repr(text if len(text) <= 40 else text[:39] + "…")


SETTINGS: dict[str, Setting] = {
    "router": Setting(_choice(ROUTERS), "router path of the decode step", ROUTERS),
    "gsa": Setting(_choice(GSA_MODES), "where activation global scales come from", GSA_MODES),
    "taps": Setting(_switch, "record what every token did, for the panels", ("on", "off")),
    "precision": Setting(
        _choice(PRECISIONS), "NVFP4 everywhere, or each tensor as stored", PRECISIONS, at_load=True
    ),
    "device": Setting(_choice(DEVICES), "where the model runs", DEVICES, at_load=True),
    "context": Setting(_whole(1, 2**31 - 1), "room for prompt and answer, in tokens", at_load=True),
    "gpus": Setting(
        _whole(1, 64, none=False), "GPUs of this machine to split the model over", at_load=True
    ),
    "seed": Setting(_whole(0, MAX_SEED), "seed of the sampler; random when not given"),
    "temperature": Setting(_number(0.0, 100.0), "0 takes the best token; 1 leaves the model as is"),
    "top_p": Setting(_number(0.0, 1.0, open_low=True), "keep the best tokens up to this mass"),
    "min_p": Setting(_number(0.0, 1.0), "drop tokens below this share of the best one"),
    "max_tokens": Setting(_whole(1, 2**31 - 1), "longest answer, in tokens"),
    "effort": Setting(_choice(EFFORTS), "how long to think first", EFFORTS),
}
