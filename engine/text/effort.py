"""Reasoning effort: the two profiles and how to tell which one a checkpoint was trained with.

Chat-encoding 5. The profiles differ only in the text written after BOS in thinking mode.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.protocol import Effort
from engine.text.errors import TextError
from engine.text.tokenizer import read_config

Profile = Literal["preview", "official"]

_ABSOLUTE = (
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to"
    " resolve the root cause, rigorously stress-testing your logic against all potential paths,"
    " edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step,"
    " considered alternative, and rejected hypothesis to ensure absolutely no assumption is left"
    " unchecked.\n\n"
)
_BEYOND = (
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance:"
    " exhaustively decompose the problem into its most fundamental components, trace every causal"
    " chain to its root, and resolve the underlying cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple angles"
    " and are certain that no assumption remains unchecked and no error remains undiscovered.\n\n"
)

EFFORT_TEXTS: dict[Profile, dict[Effort, str]] = {
    "preview": {"none": "", "low": "", "high": "", "max": _ABSOLUTE},
    "official": {"none": "", "low": "", "high": _ABSOLUTE, "max": _BEYOND},
}

_ENCODERS = ("encoding/encoding_dsv4.py", "encoding_dsv4.py")
_MAX_ENCODER_BYTES = 1024 * 1024
_OFFICIAL_PROMPTS = re.compile(r"^REASONING_EFFORT_PROMPTS\b", re.MULTILINE)
_OFFICIAL_DEFAULT = re.compile(
    r"""^DEFAULT_REASONING_EFFORT\s*(?::[^=\n]*)?=\s*["']low["']""", re.MULTILINE
)
_PREVIEW = re.compile(r"^REASONING_EFFORT_MAX\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ProfileChoice:
    """A profile and, for the status view, where it comes from."""

    profile: Profile
    reason: str


def choose_profile(
    model_dir: Path | str, wanted: Literal["auto", "preview", "official"] = "auto"
) -> ProfileChoice:
    """Profile of the checkpoint in `model_dir`, or the one the user wants.

    The checkpoint's own encoder is read as text, never run. Repacks often come without it; then a
    `dspark_*` key in config.json tells the later releases.

    Raises:
        TextError: `wanted` is no profile, or config.json cannot be read.
    """
    if wanted != "auto":
        if wanted not in EFFORT_TEXTS:
            raise TextError(f"effort profile {wanted!r}: choose auto, preview or official")
        return ProfileChoice(wanted, "chosen by the user")
    folder = Path(model_dir)
    for name in _ENCODERS:
        source = _read_source(folder / name)
        if _OFFICIAL_PROMPTS.search(source) and _OFFICIAL_DEFAULT.search(source):
            return ProfileChoice(
                "official", f"{name} has the effort table of the official releases"
            )
        if _PREVIEW.search(source):
            return ProfileChoice("preview", f"{name} has the single effort text of the preview")
    key = next((key for key in read_config(folder) if key.startswith("dspark_")), None)
    if key is not None:
        return ProfileChoice("official", f"no encoder file; config.json has {key}")
    return ProfileChoice("preview", "no encoder file and no dspark_ key in config.json")


def _read_source(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_ENCODER_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
