"""NVFP4 linears over weights expanded to fp32 once at load: 7 times the bytes, no unpacking per
token.

For CPU models that fit; the numbers are those of the reference.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from kernels.formats import Nvfp4Rows, Nvfp4Weight, nvfp4_values
from kernels.linear.reference import scale_by_row


class DenseWeight(NamedTuple):
    """values: [..., N, K] fp32 code * block scale. scale_2: [...] fp32, or [N] for joined ones."""

    values: Tensor
    scale_2: Tensor


def prepare(weight: Nvfp4Weight) -> DenseWeight:
    plain = weight.packed.dim() == 2
    scale_2 = scale_by_row(weight.scale_2) if plain else weight.scale_2
    return DenseWeight(nvfp4_values(weight.packed, weight.scale), scale_2)


def nvfp4_linear(rows: Nvfp4Rows, weight: DenseWeight) -> Tensor:
    """[T, K] rows and [N, K] weight -> [T, N] fp32."""
    return (rows.values @ weight.values.T) * (rows.gsa * weight.scale_2)


def nvfp4_grouped_linear(rows: Nvfp4Rows, weight: DenseWeight) -> Tensor:
    """[T, G, K] rows and [G, N, K] weight -> [T, G, N] fp32."""
    product = torch.bmm(rows.values.transpose(0, 1), weight.values.mT).transpose(0, 1)
    return product * rows.gsa * weight.scale_2.reshape(-1, 1)
