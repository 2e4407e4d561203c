"""Cases of the experts: kernel against reference."""

from torch import Tensor

from kernels.checking import FP32_LIMIT, Bench, Cases, near
from kernels.formats import quantise_nvfp4_rows
from kernels.moe import cuda as moe_cuda
from kernels.moe import reference as moe


def experts_cases(b: Bench) -> Cases:
    for experts, hidden, inner, top_k in [
        (12, 256, 256, 2),
        (9, 4096, 2048, 6),
        (7, 7168, 3072, 6),
    ]:
        for stored, shared in ((False, False), (True, False), (False, True), (True, True)):

            def check(
                experts: int = experts, hidden: int = hidden, inner: int = inner,
                top_k: int = top_k, stored: bool = stored, shared: bool = shared,
            ) -> tuple[float, float]:  # fmt: skip
                sizes = [(inner, hidden), (inner, hidden), (hidden, inner)]
                w1, w3, w2 = (b.weight(experts, *size) for size in sizes)
                weights = moe.prepare_packed(moe.stack(w1, w3), w2)
                ids, mix = b.distinct_ids(1, experts - shared, top_k), b.randn(1, top_k).abs()
                x = b.randn(1, hidden, scale=3.0)
                rows = quantise_nvfp4_rows(x)
                if stored:
                    gsa = (b.randn(1, top_k + shared, 1).abs() + 1) * 1e-3
                    rows = quantise_nvfp4_rows(x.unsqueeze(1).expand(-1, top_k + shared, -1), gsa)
                low = rows._replace(values=rows.values.bfloat16())
                middle: list[Tensor] = []

                def keep(hidden: Tensor) -> object:
                    middle.append(hidden)
                    made = quantise_nvfp4_rows(hidden)
                    return made._replace(values=made.values.bfloat16())

                arguments = (weights, ids, mix)
                found, _ = moe_cuda.experts(
                    b.library, low, *arguments, limit=10.0, quantise_mid=keep, shared=shared
                )

                def same(hidden: Tensor) -> object:
                    # The halves are compared apart: a last bit of the first may flip a code.
                    expected.append(hidden)
                    return quantise_nvfp4_rows(middle[0])

                expected: list[Tensor] = []
                whole, _ = moe.experts(
                    rows,
                    *arguments,
                    limit=10.0,
                    quantise_mid=same,
                    shared=shared,  # type: ignore[arg-type]
                )
                return near([found, middle[0]], [whole, expected[0]], FP32_LIMIT)

            yield (
                f"E {experts} H {hidden} I {inner} top-{top_k} stored gsa {stored} shared {shared}",
                check,
            )
