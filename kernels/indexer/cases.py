"""Cases of the indexer: kernels against reference.

Scores that differ by less than the rounding of their sums may change places at the cut, so the
choice is judged by the reference's scores: nothing left out may beat anything taken.
"""

import torch
from torch import Tensor

from kernels.checking import Bench, Cases
from kernels.indexer import cuda as indexer_cuda
from kernels.indexer import reference as indexer

_SLACK = 1e-5


def indexer_cases(b: Bench) -> Cases:
    cases = [
        (4, 100, 8, 3, 130), (64, 1300, 512, 1, 5000), (64, 16512, 512, 1, 65000),
        (64, 16512, 512, 1, 300), (64, 16512, 1024, 2, 40000),
    ]  # fmt: skip
    for heads, count, top_k, tokens, at in cases:
        for fp4 in (True, False):

            def check(
                heads: int = heads, count: int = count, top_k: int = top_k, tokens: int = tokens,
                at: int = at, fp4: bool = fp4,
            ) -> tuple[float, float]:  # fmt: skip
                q, weights = b.randn(tokens, heads * 128), b.randn(tokens, heads)
                keys = b.randn(count, 128).bfloat16()
                angle = b.randn(tokens, 32, scale=100.0)
                position = torch.tensor(at).to(b.device)
                phases = angle.cos(), angle.sin()
                ids, chosen = indexer_cuda.choose_blocks(
                    b.library, q, weights, keys, position, *phases,
                    ratio=4, top_k=top_k, fp4=fp4, dtype=torch.bfloat16,
                )  # fmt: skip
                if b.device.type == "meta":
                    return 0.0, 0.0
                scores = indexer.choice_scores(
                    q, weights, keys, *phases, fp4=fp4, dtype=torch.bfloat16
                )
                wrong = max(
                    _regret(scores[t], ids[t], chosen[t], min((at + t + 1) // 4, count))
                    for t in range(tokens)
                )
                return wrong, _SLACK

            yield f"heads {heads} top-{top_k} of {count} rows {tokens} at {at} fp4 {fp4}", check


def _regret(scores: Tensor, ids: Tensor, chosen: Tensor, visible: int) -> float:
    """By how much a block left out beats one taken, relative to the spread; 1 if the count or an
    id is wrong."""
    taken = ids[chosen]
    count = min(visible, len(ids))
    if len(taken) != count or len(taken.unique()) != count or bool((taken >= visible).any()):
        return 1.0
    left = torch.ones(visible, dtype=torch.bool, device=scores.device)
    left[taken] = False
    if not bool(left.any()):
        return 0.0
    seen = scores[:visible]
    gap = seen[left].max() - seen[taken].min()
    return max(float(gap / seen.abs().max()), 0.0)
