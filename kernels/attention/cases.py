"""Cases of the attention inputs and attention: kernel against reference."""

import torch

from kernels.attention import cuda as attention_cuda
from kernels.attention import reference as attention
from kernels.checking import BF16_LIMIT, Bench, Cases, bits, near
from kernels.formats import quantise_nvfp4_rows


def inputs_cases(b: Bench) -> Cases:
    for heads, dim, tokens in [(4, 128, 2), (64, 512, 1), (128, 512, 3)]:

        def check(heads: int = heads, dim: int = dim, tokens: int = tokens) -> tuple[float, float]:
            q, kv = b.randn(tokens, heads * dim), b.randn(tokens, dim)
            angle = b.randn(tokens, 32, scale=100.0)
            arguments = (q, kv, b.randn(dim), angle.cos(), angle.sin())
            options = {"heads": heads, "eps": 1e-6, "kv_fp8": True, "dtype": torch.bfloat16}
            found = attention_cuda.attention_inputs(b.library, *arguments, **options)  # type: ignore[arg-type]
            expected = attention.attention_inputs(*arguments, **options)  # type: ignore[arg-type]
            return near(found, expected, BF16_LIMIT)

        yield f"heads {heads} D {dim} rows {tokens}", check


def attend_cases(b: Bench) -> Cases:
    cases = [
        (4, 128, 1, 0, 0, 0), (4, 128, 1, 500, 16, 0), (4, 128, 3, 130, 64, 64),
        (64, 512, 1, 5000, 1300, 512), (64, 512, 1, 127, 40, 0), (128, 512, 2, 9000, 70, 0),
        (64, 512, 1, 65000, 16500, 512), (64, 512, 1, 65000, 516, 0),
    ]  # fmt: skip
    for heads, dim, tokens, position, count, top_k in cases:

        def check(
            heads: int = heads, dim: int = dim, tokens: int = tokens, position: int = position,
            count: int = count, top_k: int = top_k,
        ) -> tuple[float, float]:  # fmt: skip
            q, kv = b.randn(tokens, heads, dim).bfloat16(), b.randn(tokens, dim).bfloat16()
            ring = b.randn(136, dim).bfloat16()
            angle = b.randn(tokens, 32, scale=100.0)
            blocks = b.randn(count, dim).bfloat16() if count else None
            chosen = None
            if top_k:
                ids = b.distinct_ids(tokens, count, top_k)
                chosen = ids, b.randn(tokens, top_k) > -0.5
            where = torch.tensor(position).to(b.device)
            rest = (where, blocks, chosen, b.randn(heads), angle.cos(), angle.sin())
            options = {"window": 128, "ratio": 4 if top_k else 128, "groups": heads // 2,
                       "tap": tokens == 1}  # fmt: skip
            first, second = ring.clone(), ring.clone()
            found = attention_cuda.attend_cached(b.library, q, kv, first, *rest, **options)  # type: ignore[arg-type]
            expected = attention.attend_cached(q, kv, second, *rest, **options)  # type: ignore[arg-type]
            stored, _ = bits(first, second)
            error, limit = near(found[0], expected[0], BF16_LIMIT)
            grouped = found[0].flatten(1).unflatten(-1, (heads // 2, -1))
            rows, _ = bits(found[1], quantise_nvfp4_rows(grouped))
            taps = 0.0
            if tokens == 1:
                taps, _ = near(found[2], expected[2], 1.0)
            return max(error, stored, rows, 0.0 if taps < 1e-4 else 1.0), limit

        kind = f"best {top_k} of {count}" if top_k else f"all of {count}"
        yield f"heads {heads} D {dim} rows {tokens} at {position} + {kind}", check
