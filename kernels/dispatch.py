"""Which implementation an op gets on a device: one explicit table per op, one function to choose.

A wanted implementation is that one or a refusal with the reason, never a quiet substitute. `auto`
takes the first row of the table that supports the device; the reference stands last.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Impl:
    """One implementation of an op.

    run: the op's public signature, with `prepared` in place of the stored weights.
    supports: device -> "" if it runs there, else the reason it does not.
    prepare: stored weights -> the layout `run` reads; None for ops without weights.
    """

    name: str
    run: Callable[..., Any]
    supports: Callable[[torch.device], str]
    prepare: Callable[..., Any] | None = None


@dataclass(frozen=True, slots=True)
class Op:
    """An op and its implementations, best first."""

    name: str
    impls: tuple[Impl, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why no implementation was chosen; fit to show."""

    reason: str


def anywhere(device: torch.device) -> str:
    """`supports` of a plain torch implementation."""
    return ""


@dataclass(frozen=True, slots=True)
class OnlyOn:
    """`supports` of an implementation for one device type."""

    kind: str

    def __call__(self, device: torch.device) -> str:
        if device.type == self.kind:
            return ""
        return f"needs a {self.kind} device, this is {device.type}"


def select(op: Op, device: torch.device, wanted: str = "auto") -> Impl | Refusal:
    """The implementation of `op` to use on `device`.

    Args:
        wanted: a name from the op's table, or "auto".
    """
    if wanted == "auto":
        for impl in op.impls:
            if not impl.supports(device):
                return impl
        return Refusal(f"{op.name}: no implementation for {device.type}")
    for impl in op.impls:
        if impl.name == wanted:
            reason = impl.supports(device)
            return Refusal(f"{op.name}: {wanted} {reason}") if reason else impl
    known = ", ".join(impl.name for impl in op.impls)
    return Refusal(f"{op.name}: no implementation named {wanted!r} (known: {known})")
