"""Which part of a model each GPU of a box holds (no torch).

Routed experts are split by expert, attention by output group (a group's heads, its o_a block), o_b
and lm_head by output row. The shared expert is the first rank's; all else is on every rank.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

from engine.checkpoint.parameters import Parameter
from engine.model.config import ModelConfig

_TILE = 128  # rows of an FP8 tile, and a multiple of what every kernel wants
_EXPERT = re.compile(r"\.ffn\.experts\.(\d+)\.")
_SHARED = ".ffn.shared_experts."


class Share(NamedTuple):
    """A rank's part of `count` rows.

    own: the rows it answers for. held: the rows it holds and computes: the same, but for a rank
    that owns none, which holds some that others answer for, so that every rank runs the same step.
    """

    own: range
    held: range
    count: int

    def times(self, factor: int) -> "Share":
        """The same share where each row stands for `factor` rows."""
        own, held = (range(r.start * factor, r.stop * factor) for r in (self.own, self.held))
        return Share(own, held, self.count * factor)


@dataclass(frozen=True, slots=True)
class Split:
    """Rank `rank` of `size`."""

    rank: int = 0
    size: int = 1

    def share(self, count: int, unit: int = 1) -> Share:
        """Of `count` rows, in whole units but for the last."""
        units = -(-count // unit)
        first, last = (units * rank // self.size for rank in (self.rank, self.rank + 1))
        own = range(first * unit, min(last * unit, count))
        return Share(own, own or range(min(unit, count)), count)

    def rows(self, count: int) -> Share:
        """Of a projection's output rows: whole tiles where every rank can have one."""
        return self.share(count, _TILE if count >= _TILE * self.size else 1)

    def experts(self, config: ModelConfig) -> Share:
        return self.share(config.num_experts)

    def groups(self, config: ModelConfig) -> Share:
        return self.share(config.o_groups)

    @property
    def holds_shared(self) -> bool:
        return self.rank == 0

    def reads(self, config: ModelConfig, parameter: Parameter) -> bool:
        """Whether this rank takes anything of a parameter."""
        if parameter.kind == "experts":
            found = _EXPERT.search(parameter.name)
            return found is None or int(found[1]) in self.experts(config).held
        return self.holds_shared or _SHARED not in parameter.name

    def held_rows(self, config: ModelConfig, parameter: Parameter) -> int:
        """How many of a parameter's rows this rank keeps."""
        rows = parameter.shape[0]
        if not self.reads(config, parameter):
            return 0
        part = parameter.prefix.rpartition(".")[2]
        if parameter.kind == "lm_head" or (parameter.kind == "attention" and part == "wo_b"):
            return len(self.rows(rows).held)
        if parameter.kind == "attention" and part in ("wq_b", "wo_a"):
            return rows * len(self.groups(config).held) // config.o_groups
        return rows
