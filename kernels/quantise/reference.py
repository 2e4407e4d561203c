"""Rounding a projection's output to the model's dtype, in plain torch.

The quantiser itself has its reference in `kernels.formats`: it is the format.
"""

import torch
from torch import Tensor

from kernels.residual.reference import rms_norm


def round_rows(
    x: Tensor, norm: Tensor | None, *, eps: float, dtype: torch.dtype
) -> tuple[Tensor, None]:
    """x [T, K] fp32 in `dtype`, then RMS-normed with weight `norm` [K] where there is one.

    Returns:
        [T, K] in dtype; and that as NVFP4 rows where an implementation makes them on the way, else
        None.
    """
    low = x.to(dtype)
    return (low if norm is None else rms_norm(low, norm, eps)), None
