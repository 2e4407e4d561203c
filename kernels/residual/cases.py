"""Cases of the hyper-connection boundary: kernel against reference."""

import torch

from kernels.checking import BF16_LIMIT, Bench, Cases, bits, near
from kernels.formats import quantise_nvfp4_rows
from kernels.residual import cuda as residual_cuda
from kernels.residual import reference as residual


def boundary_cases(b: Bench) -> Cases:
    for hidden, tokens, first in [
        (256, 1, True),
        (256, 3, False),
        (4096, 1, False),
        (7168, 2, False),
    ]:
        for head in (False, True):
            if head and first:
                continue

            def check(
                hidden: int = hidden, tokens: int = tokens, first: bool = first, head: bool = head
            ) -> tuple[float, float]:
                mixes = 4 if head else 24
                site = residual.HyperSite(
                    b.randn(mixes, 4 * hidden, scale=(4 * hidden) ** -0.5), b.randn(mixes),
                    b.randn(1 if head else 3),
                )  # fmt: skip
                streams, norm = b.randn(tokens, 4, hidden).bfloat16(), b.randn(hidden)
                y, mix = None, None
                if not first:
                    y = b.randn(tokens, hidden)
                    comb = torch.softmax(b.randn(tokens, 4, 4), -1)
                    mix = residual.HyperMix(comb[0], b.randn(tokens, 4), comb)
                rates = {"eps": 1e-6, "norm_eps": 1e-6}
                if head:
                    arguments = (streams, y, mix, site, norm)
                    found = residual_cuda.head_boundary(b.library, *arguments, **rates)  # type: ignore[arg-type]
                    expected = residual.head_boundary(*arguments, **rates)  # type: ignore[arg-type]
                    rows, _ = bits(found[2], quantise_nvfp4_rows(found[1]))
                    error, limit = near(found[:2], expected[:2], BF16_LIMIT)
                    return max(error, rows), limit
                made = residual_cuda.boundary(
                    b.library, streams, y, mix, site, norm, iterations=20, **rates
                )
                whole = residual.boundary(streams, y, mix, site, norm, iterations=20, **rates)
                outs = [made[0], made[2], made[1].post, made[1].comb]
                wanted = [whole[0], whole[2], whole[1].post, whole[1].comb]
                error, limit = near(outs, wanted, BF16_LIMIT)
                rows, _ = bits(made[3], quantise_nvfp4_rows(made[2]))
                return max(error, rows), limit

            yield f"H {hidden} rows {tokens} first {first} head {head}", check
