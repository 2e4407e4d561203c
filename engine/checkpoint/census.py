"""A checkpoint's headers held against a configuration: every tensor has one use, every parameter
one source.

Needs no torch: this runs before anything is read or allocated.
"""

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.checkpoint.formats import FLOATS, INTEGERS, Infos, Layout, expect, find_layout
from engine.checkpoint.parameters import Parameter, parameters
from engine.errors import CheckpointError
from engine.model.config import ModelConfig

# Parts of a checkpoint that the chat does not run, dropped by name.
IGNORED_PREFIXES = {
    "mtp.": "MTP draft stage",
    "vision.": "vision tower",
    "vision_model.": "vision tower",
    "vision_tower.": "vision tower",
    "visual.": "vision tower",
    "vit.": "vision tower",
    "projector.": "vision projector",
    "mm_projector.": "vision projector",
    "multi_modal_projector.": "vision projector",
}
_ENGRAM = re.compile(r"\bengram\b|\.engram", re.IGNORECASE)
_HF_NAMES = ("model.embed_tokens.weight", "lm_head.weight")
_MAX_PROBLEMS = 20


class Placed(NamedTuple):
    """A parameter and the tensors it is stored in; `layout` for linears."""

    parameter: Parameter
    layout: Layout | None
    size_bytes: int

    def names(self) -> list[str]:
        """The tensors' names."""
        if self.layout is None:
            return [self.parameter.name]
        return [info.name for info in self.layout.tensors()]


@dataclass(slots=True)
class Census:
    """What the headers of a checkpoint say.

    placed: parameters found, in loading order. ignored: what -> names of the tensors left out.
    problems: one line each; empty for a checkpoint that can be loaded.
    """

    placed: list[Placed] = field(default_factory=list)
    ignored: dict[str, list[str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def ignored_as(name: str) -> str | None:
    """What part left out on purpose a tensor belongs to, or None."""
    for prefix, what in IGNORED_PREFIXES.items():
        if name.startswith(prefix):
            return what
    return None


def take_census(config: ModelConfig, infos: Infos, where: str) -> Census:
    """Place every parameter and account for every tensor; `where` names the checkpoint."""
    census = Census()
    used: set[str] = set()
    for parameter in parameters(config):
        try:
            placed = _place(infos, where, parameter)
        except CheckpointError as error:
            census.problems.append(str(error))
            if len(census.problems) == _MAX_PROBLEMS:
                break
            continue
        census.placed.append(placed)
        used.update(placed.names())
    census.problems += _half_scaled(census.placed)
    left = []
    for name in infos:
        if name not in used:
            what = ignored_as(name)
            if what is None:
                left.append(name)
            else:
                census.ignored.setdefault(what, []).append(name)
    _name_draft_stages(census.ignored)
    foreign = _foreign(infos, left)
    if foreign:
        census.problems.insert(0, f"{where}: {foreign}")
    elif left and not census.problems:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        census.problems.append(
            f"{infos[left[0]].file}: {left[0]!r}{more}: not part of this architecture; "
            "the checkpoint is of another model or in a layout dsv4chat does not know"
        )
    return census


def check_headers(config: ModelConfig, infos: Infos, where: str) -> None:
    """Raises CheckpointError: the first of the census' problems."""
    problems = take_census(config, infos, where).problems
    if problems:
        raise CheckpointError(problems[0])


def _place(infos: Infos, where: str, parameter: Parameter) -> Placed:
    name, shape, _, role = parameter
    if role == "linear":
        layout = find_layout(infos, where, parameter.prefix, (shape[0], shape[1]))
        return Placed(parameter, layout, layout.size_bytes)
    info = expect(infos, where, name, shape, INTEGERS if role == "table" else FLOATS)
    return Placed(parameter, None, info.size_bytes)


def _half_scaled(placed: list[Placed]) -> list[str]:
    """Layers some of whose NVFP4 experts have an activation scale, and some have none."""
    first: dict[str, Layout] = {}
    problems = {}
    for parameter, layout, _ in placed:
        if parameter.kind != "experts" or layout is None or layout.format != "nvfp4":
            continue
        group = parameter.name.partition(".experts.")[0] + parameter.prefix[-3:]
        other = first.setdefault(group, layout)
        if (other.input_scale is None) != (layout.input_scale is None):
            lacking = layout if layout.input_scale is None else other
            problems.setdefault(
                group,
                f"{lacking.weight.file}: {lacking.weight.name!r} has no input scale; "
                "other experts of its layer have one",
            )
    return list(problems.values())


def _name_draft_stages(ignored: dict[str, list[str]]) -> None:
    """Later checkpoints have several stages of a block draft under the names of the one MTP."""
    names = ignored.get(IGNORED_PREFIXES["mtp."], [])
    stages = {name.split(".")[1] for name in names}
    if len(stages) > 1 or any(".markov_head." in name for name in names):
        del ignored[IGNORED_PREFIXES["mtp."]]
        ignored[f"{len(stages)} DSpark draft stages"] = names


def _foreign(infos: Infos, left: list[str]) -> str:
    """In plain words, what other model or naming the tensors show; left: those without a use."""
    if any(name in infos for name in _HF_NAMES):
        return (
            "these are transformers' tensor names; dsv4chat reads DeepSeek's own "
            "(embed.weight, layers.0.attn.wq_a.weight, ...), as every published V4 folder has them"
        )
    engram = next((name for name in left if _ENGRAM.search(name)), None)
    if engram:
        return f"{engram!r}: Engram tables belong to DeepSeek-V4.1, another architecture"
    return ""
