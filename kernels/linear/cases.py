"""Cases of the NVFP4 linears: kernel against reference."""

from kernels.checking import FP32_LIMIT, Bench, Cases, near
from kernels.formats import Nvfp4Weight, quantise_nvfp4_rows
from kernels.linear import cuda as linear_cuda
from kernels.linear import reference as linear


def linear_cases(b: Bench) -> Cases:
    shapes = [(12, 256, 1), (128, 128, 3), (4096, 4096, 1), (2050, 7168, 8), (1024, 16384, 2)]
    for n, k, tokens in [*shapes, (512, 1536, 5), (256, 8192, 4)]:

        def check(n: int = n, k: int = k, tokens: int = tokens) -> tuple[float, float]:
            rows, weight = quantise_nvfp4_rows(b.randn(tokens, k)), b.weight(n, k)
            low = rows._replace(values=rows.values.bfloat16())
            found = linear_cuda.nvfp4_linear(b.library, low, weight)
            return near(found, linear.nvfp4_linear(rows, weight), FP32_LIMIT)

        yield f"N {n} K {k} rows {tokens}", check

    def joined() -> tuple[float, float]:
        rows = quantise_nvfp4_rows(b.randn(1, 1024))
        weight = linear.join([b.weight(n, 1024) for n in (96, 16, 512)])
        low = rows._replace(values=rows.values.bfloat16())
        found = linear_cuda.nvfp4_linear(b.library, low, weight)
        return near(found, linear.nvfp4_linear(rows, weight), FP32_LIMIT)

    yield "three joined projections", joined


def grouped_cases(b: Bench) -> Cases:
    for groups, n, k, tokens in [(8, 1024, 4096, 1), (2, 128, 256, 3), (16, 64, 4096, 2)]:

        def check(
            groups: int = groups, n: int = n, k: int = k, tokens: int = tokens
        ) -> tuple[float, float]:
            rows, flat = quantise_nvfp4_rows(b.randn(tokens, groups, k)), b.weight(groups * n, k)
            weight = Nvfp4Weight(
                flat.packed.unflatten(0, (groups, n)), flat.scale.unflatten(0, (groups, n)),
                flat.scale_2,
            )  # fmt: skip
            low = rows._replace(values=rows.values.bfloat16())
            found = linear_cuda.nvfp4_grouped_linear(b.library, low, weight)
            return near(found, linear.nvfp4_grouped_linear(rows, weight), FP32_LIMIT)

        yield f"groups {groups} N {n} K {k} rows {tokens}", check


def dense_cases(b: Bench) -> Cases:
    for n, k, tokens in [(24, 256, 1), (1024, 4096, 1), (513, 7168, 8), (64, 4096, 2)]:

        def check(n: int = n, k: int = k, tokens: int = tokens) -> tuple[float, float]:
            x, weight = b.randn(tokens, k).bfloat16(), b.randn(n, k).bfloat16()
            found = linear_cuda.dense_linear(b.library, x, weight)
            return near(found, linear.dense_linear(x, weight), FP32_LIMIT)

        yield f"N {n} K {k} rows {tokens}", check
