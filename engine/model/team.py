"""The ranks a model runs on together, and what passes between them in a step.

Activations that follow are the same on every rank, bit for bit: sums are all-reduced, never
recomputed. A part is put in its place among zeros and added, which changes no bit of it and takes
parts of any size.
"""

from torch import Tensor
from torch import distributed as dist

from engine.model.split import Share, Split


class Team:
    """Args:
    split: this rank and how many there are. group: the process group; None for a rank alone, or
        where only shapes are run.
    """

    def __init__(self, split: Split | None = None, group: dist.ProcessGroup | None = None) -> None:
        self.split = split or Split()
        self._group = group

    @property
    def size(self) -> int:
        return self.split.size

    def sum(self, x: Tensor) -> Tensor:
        """`x`, in place, added over the ranks."""
        if self._group is not None:
            dist.all_reduce(x, group=self._group)
        return x

    def gather(self, x: Tensor, share: Share) -> Tensor:
        """[..., held] of each rank -> [..., count]."""
        if self.size == 1:
            return x
        whole = x.new_zeros(*x.shape[:-1], share.count)
        own = share.own
        whole[..., own.start : own.stop] = x[..., : len(own)]
        return self.sum(whole)

    def agree(self, x: Tensor) -> None:
        """Take the first rank's `x`."""
        if self._group is not None:
            dist.broadcast(x, src=0, group=self._group)
