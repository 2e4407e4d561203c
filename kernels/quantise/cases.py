"""Cases of the row quantiser: kernel against reference."""

import torch

from kernels.checking import BF16_LIMIT, Bench, Cases, bits, near
from kernels.formats import quantise_nvfp4_rows
from kernels.quantise import cuda as quantise_cuda
from kernels.quantise import reference


def quantise_cases(b: Bench) -> Cases:
    for shape in [(1, 128), (5, 256), (1, 4096), (3, 7168), (2, 8, 4096), (1, 16384)]:
        for dtype in (torch.bfloat16, torch.float32):

            def check(
                shape: tuple[int, ...] = shape, dtype: torch.dtype = dtype
            ) -> tuple[float, float]:
                x = b.randn(*shape)
                x.view(-1, shape[-1])[-1, :16] = 0
                x.view(-1, shape[-1])[0, 16:32] *= 1e-6  # flushes
                x.view(-1, shape[-1])[0, 40] = 300.0
                x = x.to(dtype)
                found = quantise_cuda.quantise_rows(b.library, x)
                return bits(found, quantise_nvfp4_rows(x))

            yield f"{shape} {dtype}".replace("torch.", ""), check

    def zero_and_nan() -> tuple[float, float]:
        x = b.randn(4, 256)
        x[1], x[2, 3], x[3, 5] = 0, float("nan"), float("inf")
        found, expected = quantise_cuda.quantise_rows(b.library, x), quantise_nvfp4_rows(x)
        if b.device.type == "meta":
            return 0.0, 0.0
        bad = bool(found.values[2].isnan().any()) and bool(found.values[3].isnan().any())
        clean = [(a[:2], e[:2]) for a, e in zip(found, expected, strict=True)]
        error, _ = bits([a for a, _ in clean], [e for _, e in clean])
        return (error if bad else 1.0), 0.0

    yield "zero, NaN and Inf rows", zero_and_nan

    def stored() -> tuple[float, float]:
        x, gsa = b.randn(3, 512), b.randn(3, 1).abs() * 1e-4 + 1e-5
        return bits(quantise_cuda.quantise_rows(b.library, x, gsa), quantise_nvfp4_rows(x, gsa))

    yield "gsa from the checkpoint", stored


def round_cases(b: Bench) -> Cases:
    for tokens, columns, normed in [
        (1, 1024, True),
        (3, 128, True),
        (1, 8192, False),
        (8, 256, False),
    ]:

        def check(
            tokens: int = tokens, columns: int = columns, normed: bool = normed
        ) -> tuple[float, float]:
            x, norm = b.randn(tokens, columns), b.randn(columns) if normed else None
            options = {"eps": 1e-6, "dtype": torch.bfloat16}
            plain, rows = quantise_cuda.round_rows(b.library, x, norm, **options)  # type: ignore[arg-type]
            expected, _ = reference.round_rows(x, norm, **options)  # type: ignore[arg-type]
            same, _ = bits(rows, quantise_nvfp4_rows(plain))
            error, limit = near(plain, expected, BF16_LIMIT)
            return max(error, same), limit

        yield f"rows {tokens} K {columns} normed {normed}", check
