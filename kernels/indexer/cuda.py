"""Launches the indexer's kernels, queries, scores and best, for up to 8 queries in bf16; other
shapes run in torch."""

import torch
from torch import Tensor

from kernels.compiled import KernelLibrary
from kernels.indexer import reference

MAX_TOKENS = 8
MOST_BLOCKS = 1 << 16  # scores of one query that `cute_best` keeps in registers
_KEYS = 64
_THREADS = 128


def choose_blocks(
    library: KernelLibrary,
    q: Tensor,
    head_weights: Tensor,
    keys: Tensor,
    position: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    ratio: int,
    top_k: int,
    fp4: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """As `reference.choose_blocks`, ids in ascending order. Capture-safe."""
    (tokens, heads), (count, dim) = head_weights.shape, keys.shape
    fits = dim == 128 and count <= MOST_BLOCKS and tokens <= MAX_TOKENS
    if not fits or dtype != torch.bfloat16 or keys.dtype != dtype:
        return reference.choose_blocks(
            q, head_weights, keys, position, cos, sin, ratio=ratio, top_k=top_k, fp4=fp4,
            dtype=dtype,
        )  # fmt: skip
    device, rope = q.device, 2 * cos.shape[-1]
    queries = torch.empty(tokens, heads, dim, dtype=dtype, device=device)
    kernel = library.get("kernels.indexer.cute_queries", heads=heads, dim=dim, rope=rope, fp4=fp4)
    kernel.launch((heads, tokens, 1), 32, 0, (q.contiguous(), cos, sin, queries))

    blocks = -(-count // _KEYS)
    scores = torch.empty(tokens, blocks * _KEYS, device=device)
    kernel = library.get(
        "kernels.indexer.cute_scores", heads=heads, dim=dim, count=count, ratio=ratio
    )
    padded = -(-heads // 16) * 16
    arguments = (queries, head_weights.contiguous(), keys, position, scores)
    kernel.launch((blocks, tokens, 1), _THREADS, padded * (dim // 2 + 17) * 4 + 32, arguments)

    ids = torch.empty(tokens, top_k, dtype=torch.int64, device=device)
    chosen = torch.empty(tokens, top_k, dtype=torch.bool, device=device)
    kernel = library.get("kernels.indexer.cute_best", count=count, top_k=top_k, ratio=ratio)
    kernel.launch((tokens, 1, 1), 1024, 528, (scores, position, ids, chosen))
    return ids, chosen
