"""Which implementation an op gets on a device: one explicit table per op, one function to choose.

A wanted implementation is that one or a refusal with the reason, never a quiet substitute. `auto`
takes the first row of the table that supports the device; the reference stands last.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from kernels.compiled import KernelLibrary, architecture

# The implementations that hold NVFP4 weights as fp32: fast on a CPU, at 7 times the bytes.
EXPANDED = "dense-fp32"


@dataclass(frozen=True, slots=True)
class Impl:
    """One implementation of an op.

    run: the op's public signature, with `prepared` in place of the stored weights; where `compiled`
    is
        set, a KernelLibrary comes before it.
    supports: device -> "" if it runs there, else the reason it does not.
    prepare: stored weights -> the layout `run` reads; None for ops without weights.
    """

    name: str
    run: Callable[..., Any]
    supports: Callable[[torch.device], str]
    prepare: Callable[..., Any] | None = None
    compiled: bool = False

    def bind(self, library: "KernelLibrary | None") -> Callable[..., Any]:
        """`run` with the kernels it launches."""
        return functools.partial(self.run, library) if self.compiled else self.run


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


def on_known_gpu(device: torch.device) -> str:
    """`supports` of our kernels: architectures they are made for, a list and never a range.

    The meta device counts as one, to compile without a GPU.
    """
    if device.type == "meta":
        return ""
    if device.type != "cuda":
        return f"needs a cuda device, this is {device.type}"
    if not architecture(device):
        major, minor = torch.cuda.get_device_capability(device)
        return f"is made for sm_90a, sm_100a and sm_103a; this GPU is sm_{major}{minor}"
    return ""


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
