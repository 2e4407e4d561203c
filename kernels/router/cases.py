"""Cases of the router: kernel against reference."""

import torch

from kernels.checking import FP32_LIMIT, Bench, Cases, bits, near
from kernels.formats import quantise_nvfp4_rows
from kernels.linear import cuda as linear_cuda
from kernels.router import cuda as router_cuda
from kernels.router import reference as router


def router_cases(b: Bench) -> Cases:
    for experts, k, top_k, tokens in [(12, 256, 2, 3), (256, 4096, 6, 1), (384, 7168, 6, 8)]:

        def check(
            experts: int = experts, k: int = k, top_k: int = top_k, tokens: int = tokens
        ) -> tuple[float, float]:
            rows, gate = quantise_nvfp4_rows(b.randn(tokens, k)), b.weight(experts, k)
            low = rows._replace(values=rows.values.bfloat16())
            bias = b.randn(experts, scale=0.3)
            options = {"top_k": top_k, "route_scale": 1.5}
            fused = router_cuda.fused_route(b.library, low, gate, bias, **options)  # type: ignore[arg-type]
            again = router_cuda.fused_route(b.library, low, gate, bias, **options)  # type: ignore[arg-type]
            logits = linear_cuda.nvfp4_linear(b.library, low, gate)
            split = router_cuda.route(b.library, logits, bias, **options)  # type: ignore[arg-type]
            expected = router.route(logits, bias, **options)  # type: ignore[arg-type]
            ids, _ = bits([fused[0], split[0], again[0]], [split[0], expected[0], fused[0]])
            weights, limit = near([fused[1], split[1]], [split[1], expected[1]], FP32_LIMIT)
            return max(ids, weights), limit

        yield f"E {experts} K {k} top-{top_k} rows {tokens}", check

    for experts, top_k, tokens in [(12, 2, 3), (256, 6, 1), (384, 6, 8)]:

        def hashed(
            experts: int = experts, top_k: int = top_k, tokens: int = tokens
        ) -> tuple[float, float]:
            logits = b.randn(tokens, experts, scale=9.0)
            logits[0] = float("nan")
            table = b.distinct_ids(50, experts, top_k).int()
            arguments = (logits, table, b.distinct_ids(1, 50, tokens)[0])
            found = router_cuda.hash_route(b.library, *arguments, route_scale=2.5)
            expected = router.hash_route(*arguments, route_scale=2.5)
            ids, _ = bits([found[0], found[2]], [expected[0], expected[2]])
            weights, limit = near(found[1], expected[1], FP32_LIMIT)
            return max(ids, weights), limit

        yield f"hash, E {experts} top-{top_k} rows {tokens}", hashed

    def adversarial() -> tuple[float, float]:
        nan, inf = float("nan"), float("inf")
        rows = torch.zeros(9, 64)
        rows[1], rows[2, 5], rows[3, :3] = nan, nan, torch.tensor([inf, inf, -inf])
        rows[4], rows[5], rows[6], rows[7] = -inf, -3e38, 3e38, -300.0
        rows[8, ::2] = 1.0
        logits, bias = rows.to(b.device), b.randn(64, scale=0.0)
        found = router_cuda.route(b.library, logits, bias, top_k=6, route_scale=2.5)
        expected = router.route(logits, bias, top_k=6, route_scale=2.5)
        ids, _ = bits(found[0], expected[0])
        weights, limit = near(found[1], expected[1], FP32_LIMIT)
        return max(ids, weights), limit

    yield "NaN, Inf, ties, underflow", adversarial
