"""Launches `cute_rows`."""

import torch
from torch import Tensor

from kernels.compiled import KernelLibrary
from kernels.formats import NVFP4_BLOCK, Nvfp4Rows

THREADS = 256

_SHARED_BYTES = 128  # 8 partial maxima and 16 counts


def quantise_rows(library: KernelLibrary, x: Tensor, gsa: Tensor | None = None) -> Nvfp4Rows:
    """As `quantise_nvfp4_rows`, values in bf16. Capture-safe."""
    columns = x.shape[-1]
    if columns % NVFP4_BLOCK or columns > 8 * THREADS * NVFP4_BLOCK:
        raise ValueError(f"rows of {columns}: expected a multiple of 16, at most 32768")
    x = x.contiguous()
    lead = x.shape[:-1]
    rows = x.numel() // columns
    values = torch.empty(*lead, columns, dtype=torch.bfloat16, device=x.device)
    live = torch.empty(*lead, 1, device=x.device)
    used = torch.empty_like(live)
    saturated = torch.empty(lead, dtype=torch.int32, device=x.device)
    flushed = torch.empty_like(saturated)
    stored = live if gsa is None else gsa.expand_as(live).contiguous()
    kernel = library.get(
        "kernels.quantise.cute_rows",
        columns=columns,
        is_bf16=x.dtype == torch.bfloat16,
        from_checkpoint=gsa is not None,
    )
    arguments = (x, stored, values, used, live, saturated, flushed)
    kernel.launch((rows, 1, 1), THREADS, _SHARED_BYTES, arguments)
    return Nvfp4Rows(values, used, live, saturated, flushed)
