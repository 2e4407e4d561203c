"""Cases of the attention inputs and attention: kernel against reference."""

import torch

from kernels.attention import cuda as attention_cuda
from kernels.attention import reference as attention
from kernels.checking import BF16_LIMIT, Bench, Cases, bits, near


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
        (4, 128, 1, 0, False, 0), (4, 128, 1, 500, False, 16), (4, 128, 3, 130, True, 64),
        (64, 512, 1, 5000, True, 512), (64, 512, 1, 127, False, 40), (128, 512, 2, 9000, False, 70),
    ]  # fmt: skip
    for heads, dim, tokens, position, per_query, extra in cases:

        def check(
            heads: int = heads, dim: int = dim, tokens: int = tokens, position: int = position,
            per_query: bool = per_query, extra: int = extra,
        ) -> tuple[float, float]:  # fmt: skip
            q, kv = b.randn(tokens, heads, dim).bfloat16(), b.randn(tokens, dim).bfloat16()
            ring = b.randn(136, dim).bfloat16()
            angle = b.randn(tokens, 32, scale=100.0)
            rows = visible = None
            if extra:
                shape = (tokens, extra, dim) if per_query else (extra, dim)
                rows = b.randn(*shape).bfloat16()
                visible = b.randn(tokens, extra) > -0.5
            where = torch.tensor(position).to(b.device)
            rest = (where, rows, visible, b.randn(heads), angle.cos(), angle.sin())
            options = {"window": 128, "tap": tokens == 1}
            first, second = ring.clone(), ring.clone()
            found = attention_cuda.attend_cached(b.library, q, kv, first, *rest, **options)  # type: ignore[arg-type]
            expected = attention.attend_cached(q, kv, second, *rest, **options)  # type: ignore[arg-type]
            stored, _ = bits(first, second)
            error, limit = near(found[0], expected[0], BF16_LIMIT)
            taps = 0.0
            if tokens == 1:
                taps, _ = near(found[1], expected[1], 1.0)
            return max(error, stored, taps), limit

        kind = "per query" if per_query else "shared"
        yield f"heads {heads} D {dim} rows {tokens} at {position} + {extra} {kind}", check
