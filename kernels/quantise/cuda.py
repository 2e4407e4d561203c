"""Launches `cute_rows`."""

import torch
from torch import Tensor

from kernels.compiled import KernelLibrary
from kernels.formats import NVFP4_BLOCK, Nvfp4Rows
from kernels.quantise import reference

THREADS = 256
MAX_ROWS = 8

_SHARED_BYTES = 160  # 8 partial maxima, 8 sums, 16 counts
_WIDEST = 8 * THREADS * NVFP4_BLOCK


def quantise_rows(library: KernelLibrary, x: Tensor, gsa: Tensor | None = None) -> Nvfp4Rows:
    """As `quantise_nvfp4_rows`, values in bf16. Capture-safe."""
    columns = x.shape[-1]
    if columns % NVFP4_BLOCK or columns > _WIDEST:
        raise ValueError(f"rows of {columns}: expected a multiple of 16, at most {_WIDEST}")
    return _launch(library, x.contiguous(), gsa, None, None, 0.0)


def round_rows(
    library: KernelLibrary, x: Tensor, norm: Tensor | None, *, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Nvfp4Rows | None]:
    """As `reference.round_rows`, with the quantised rows. Capture-safe for up to 8 rows."""
    tokens, columns = x.shape
    fits = columns % NVFP4_BLOCK == 0 and columns <= _WIDEST and dtype == torch.bfloat16
    if tokens > MAX_ROWS or not fits or x.dtype != torch.float32:
        return reference.round_rows(x, norm, eps=eps, dtype=dtype)
    plain = torch.empty(tokens, columns, dtype=dtype, device=x.device)
    return plain, _launch(library, x.contiguous(), None, norm, plain, eps)


def _launch(
    library: KernelLibrary,
    x: Tensor,
    gsa: Tensor | None,
    norm: Tensor | None,
    plain: Tensor | None,
    eps: float,
) -> Nvfp4Rows:
    lead, columns = x.shape[:-1], x.shape[-1]
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
        rounds_first=plain is not None,
        normed=norm is not None,
    )
    there = values if plain is None else plain
    weight = live if norm is None else norm
    arguments = (x, stored, weight, there, values, used, live, saturated, flushed, float(eps))
    kernel.launch((rows, 1, 1), THREADS, _SHARED_BYTES, arguments)
    return Nvfp4Rows(values, used, live, saturated, flushed)
