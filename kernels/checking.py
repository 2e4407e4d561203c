"""How a kernel is compared with its reference.

Integers, ids and quantised values must be equal bit for bit. Floats: fp32 outputs within 1e-5 of
the reference in norm (sums in another order), bf16 outputs within 5e-4: a sum in another order
moves few numbers, each by one step of 2^-8.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.compiled import KernelLibrary
from kernels.formats import Nvfp4Weight, quantise_nvfp4_weight

FP32_LIMIT = 1e-5
BF16_LIMIT = 5e-4


@dataclass(frozen=True, slots=True)
class Row:
    """One case. error: 0 or 1 where bits must be equal, else a relative norm."""

    op: str
    case: str
    error: float
    limit: float
    message: str = ""

    @property
    def ok(self) -> bool:
        return not self.message and self.error <= self.limit


class Bench:
    """Fresh random inputs on one device. On `meta` only shapes are made, to compile without a
    GPU."""

    def __init__(self, library: KernelLibrary, device: torch.device, seed: int) -> None:
        self.library = library
        self.device = device
        self._generator = torch.Generator().manual_seed(seed)

    def randn(self, *shape: int, scale: float = 1.0) -> Tensor:
        if self.device.type == "meta":
            return torch.empty(shape, device=self.device)
        return (scale * torch.randn(shape, generator=self._generator)).to(self.device)

    def weight(self, *shape: int) -> Nvfp4Weight:
        return quantise_nvfp4_weight(self.randn(*shape, scale=shape[-1] ** -0.5))

    def distinct_ids(self, rows: int, count: int, top_k: int) -> Tensor:
        drawn = [torch.randperm(count, generator=self._generator)[:top_k] for _ in range(rows)]
        return torch.stack(drawn).to(self.device)


Cases = Iterator[tuple[str, Callable[[], tuple[float, float]]]]


def bits(found: object, expected: object) -> tuple[float, float]:
    """(0 or 1, 0): nested tensors equal, NaN where the other has NaN."""
    equal = all(
        torch.equal(a.double().nan_to_num(7e77), b.double().nan_to_num(7e77))
        for a, b in zip(_flat(found), _flat(expected), strict=True)
        if a.device.type != "meta"
    )
    return (0.0 if equal else 1.0), 0.0


def near(found: object, expected: object, limit: float) -> tuple[float, float]:
    """(largest relative norm error, limit) over nested tensors."""
    worst = 0.0
    for a, b in zip(_flat(found), _flat(expected), strict=True):
        if a.device.type == "meta":
            continue
        a, b = a.double(), b.double()
        error = float((a - b).norm() / b.norm().clamp(min=1e-30))
        worst = max(worst, error if error == error else float("inf"))
    return worst, limit


def _flat(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _flat(part)
