"""Cases of the compressor: kernel against reference."""

import torch

from kernels.checking import BF16_LIMIT, Bench, Cases, bits, near
from kernels.compressor import cuda as compressor_cuda
from kernels.compressor import reference as compressor


def compress_cases(b: Bench) -> Cases:
    cases = [
        (128, 4, True, "index", 1, 3), (128, 4, True, "kv", 1, 103), (512, 4, True, "kv", 8, 1001),
        (512, 128, False, "kv", 1, 1023), (128, 128, False, "kv", 3, 126),
        (128, 4, True, "index", 6, 9),
    ]  # fmt: skip
    for dim, ratio, overlap, rounding, tokens, position in cases:

        def check(
            dim: int = dim, ratio: int = ratio, overlap: bool = overlap, rounding: str = rounding,
            tokens: int = tokens, position: int = position,
        ) -> tuple[float, float]:  # fmt: skip
            width = dim * (1 + overlap)
            ring_rows = compressor.history_length(ratio, overlap) + 9
            kv, gate = b.randn(tokens, width), b.randn(tokens, width)
            ape, norm = b.randn(ratio, width), b.randn(dim)
            frequencies = b.randn(32).abs()
            rings = b.randn(2, ring_rows, width)
            blocks = b.randn(400, dim).bfloat16()
            where = torch.tensor(position).to(b.device)
            options = {"ratio": ratio, "overlap": overlap, "rounding": rounding, "eps": 1e-6}
            outcomes = []
            for function in (compressor.compress, compressor_cuda.compress):
                mine, out = rings.clone(), blocks.clone()
                arguments = (kv, gate, ape, norm, mine[0], mine[1], out, where, frequencies)
                if function is compressor_cuda.compress:
                    compressor_cuda.compress(b.library, *arguments, **options)  # type: ignore[arg-type]
                else:
                    compressor.compress(*arguments, **options)  # type: ignore[arg-type]
                outcomes.append((mine, out[:-1]))
            stored, _ = bits(outcomes[1][0], outcomes[0][0])
            # A last bit before the FP4 rounding can move one number by a whole step.
            limit = 2e-2 if rounding == "index" else BF16_LIMIT
            error, limit = near(outcomes[1][1], outcomes[0][1], limit)
            return max(error, stored), limit

        yield f"D {dim} ratio {ratio} {rounding} rows {tokens} at {position}", check
