"""Every compiled kernel against its plain-torch reference, on fresh random data and awkward cases.

`run` yields one row a case; `doctor` prints them and the GPU tests assert them. Integers, ids and
quantised values must be equal bit for bit. Floats: fp32 outputs within 1e-5 of the reference in
norm (sums in another order), bf16 outputs within 4e-3 (one rounding step is 3.9e-3 of a number;
most agree exactly).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.attention import cuda as attention_cuda
from kernels.attention import reference as attention
from kernels.compiled import KernelError, KernelLibrary
from kernels.compressor import cuda as compressor_cuda
from kernels.compressor import reference as compressor
from kernels.formats import Nvfp4Weight, quantise_nvfp4_rows, quantise_nvfp4_weight
from kernels.linear import cuda as linear_cuda
from kernels.linear import reference as linear
from kernels.moe import cuda as moe_cuda
from kernels.moe import reference as moe
from kernels.quantise import cuda as quantise_cuda
from kernels.residual import cuda as residual_cuda
from kernels.residual import reference as residual
from kernels.router import cuda as router_cuda
from kernels.router import reference as router

FP32_LIMIT = 1e-5
BF16_LIMIT = 5e-4


@dataclass(frozen=True, slots=True)
class Row:
    """One case. error: 0 or 1 where bits must be equal, else a relative norm."""

    op: str
    case: str
    error: float
    limit: float
    message: str = ""

    @property
    def ok(self) -> bool:
        return not self.message and self.error <= self.limit


class Bench:
    """Fresh random inputs on one device. On `meta` only shapes are made, to compile without a
    GPU."""

    def __init__(self, library: KernelLibrary, device: torch.device, seed: int) -> None:
        self.library = library
        self.device = device
        self._generator = torch.Generator().manual_seed(seed)

    def randn(self, *shape: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(shape, generator=self._generator)).to(self.device)

    def weight(self, *shape: int) -> Nvfp4Weight:
        return Nvfp4Weight(*(t.to(self.device) for t in quantise_nvfp4_weight(
            torch.randn(shape, generator=self._generator) * shape[-1] ** -0.5)))  # fmt: skip

    def distinct_ids(self, rows: int, count: int, top_k: int) -> Tensor:
        drawn = [torch.randperm(count, generator=self._generator)[:top_k] for _ in range(rows)]
        return torch.stack(drawn).to(self.device)


def run(library: KernelLibrary, device: torch.device, seed: int = 0) -> Iterator[Row]:
    """All cases. A kernel that cannot be compiled or launched is a row with its message."""
    bench = Bench(library, device, seed)
    for op, cases in CASES.items():
        for case, check in cases(bench):
            try:
                error, limit = check()
            except KernelError as failure:
                yield Row(op, case, 1.0, 0.0, str(failure))
                continue
            if device.type != "meta":
                yield Row(op, case, error, limit)


Cases = Iterator[tuple[str, Callable[[], tuple[float, float]]]]


def _bits(found: object, expected: object) -> tuple[float, float]:
    """(0 or 1, 0): nested tensors equal, NaN where the other has NaN."""
    equal = all(
        torch.equal(a.double().nan_to_num(7e77), b.double().nan_to_num(7e77))
        for a, b in zip(_flat(found), _flat(expected), strict=True)
        if a.device.type != "meta"
    )
    return (0.0 if equal else 1.0), 0.0


def _near(found: object, expected: object, limit: float) -> tuple[float, float]:
    """(largest relative norm error, limit) over nested tensors."""
    worst = 0.0
    for a, b in zip(_flat(found), _flat(expected), strict=True):
        if a.device.type == "meta":
            continue
        a, b = a.double(), b.double()
        error = float((a - b).norm() / b.norm().clamp(min=1e-30))
        worst = max(worst, error if error == error else float("inf"))
    return worst, limit


def _flat(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _flat(part)


# ---- ops -----------------------------------------------------------------------------------------


def _quantise(b: Bench) -> Cases:
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
                return _bits(found, quantise_nvfp4_rows(x))

            yield f"{shape} {dtype}".replace("torch.", ""), check

    def zero_and_nan() -> tuple[float, float]:
        x = b.randn(4, 256)
        x[1], x[2, 3], x[3, 5] = 0, float("nan"), float("inf")
        found, expected = quantise_cuda.quantise_rows(b.library, x), quantise_nvfp4_rows(x)
        if b.device.type == "meta":
            return 0.0, 0.0
        bad = bool(found.values[2].isnan().any()) and bool(found.values[3].isnan().any())
        clean = [(a[:2], e[:2]) for a, e in zip(found, expected, strict=True)]
        error, _ = _bits([a for a, _ in clean], [e for _, e in clean])
        return (error if bad else 1.0), 0.0

    yield "zero, NaN and Inf rows", zero_and_nan

    def stored() -> tuple[float, float]:
        x, gsa = b.randn(3, 512), b.randn(3, 1).abs() * 1e-4 + 1e-5
        return _bits(quantise_cuda.quantise_rows(b.library, x, gsa), quantise_nvfp4_rows(x, gsa))

    yield "gsa from the checkpoint", stored


def _linear(b: Bench) -> Cases:
    shapes = [(12, 256, 1), (128, 128, 3), (4096, 4096, 1), (2050, 7168, 8), (1024, 16384, 2)]
    for n, k, tokens in [*shapes, (512, 1536, 5), (256, 8192, 4)]:

        def check(n: int = n, k: int = k, tokens: int = tokens) -> tuple[float, float]:
            rows, weight = quantise_nvfp4_rows(b.randn(tokens, k)), b.weight(n, k)
            low = rows._replace(values=rows.values.bfloat16())
            found = linear_cuda.nvfp4_linear(b.library, low, weight)
            return _near(found, linear.nvfp4_linear(rows, weight), FP32_LIMIT)

        yield f"N {n} K {k} rows {tokens}", check


def _grouped(b: Bench) -> Cases:
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
            return _near(found, linear.nvfp4_grouped_linear(rows, weight), FP32_LIMIT)

        yield f"groups {groups} N {n} K {k} rows {tokens}", check


def _experts(b: Bench) -> Cases:
    for experts, hidden, inner, top_k in [
        (12, 256, 256, 2),
        (9, 4096, 2048, 6),
        (7, 7168, 3072, 6),
    ]:
        for stored in (False, True):

            def check(
                experts: int = experts, hidden: int = hidden, inner: int = inner,
                top_k: int = top_k, stored: bool = stored,
            ) -> tuple[float, float]:  # fmt: skip
                sizes = [(inner, hidden), (inner, hidden), (hidden, inner)]
                weights = moe.prepare_packed(*(b.weight(experts, *size) for size in sizes))
                ids, mix = b.distinct_ids(1, experts, top_k), b.randn(1, top_k).abs()
                x = b.randn(1, hidden, scale=3.0)
                rows = quantise_nvfp4_rows(x)
                if stored:
                    gsa = (b.randn(1, top_k, 1).abs() + 1) * 1e-3
                    rows = quantise_nvfp4_rows(x.unsqueeze(1).expand(-1, top_k, -1), gsa)
                low = rows._replace(values=rows.values.bfloat16())
                middle: list[Tensor] = []

                def keep(hidden: Tensor) -> object:
                    middle.append(hidden)
                    made = quantise_nvfp4_rows(hidden)
                    return made._replace(values=made.values.bfloat16())

                arguments = (weights, ids, mix)
                found, _ = moe_cuda.experts(
                    b.library, low, *arguments, limit=10.0, quantise_mid=keep
                )

                def same(hidden: Tensor) -> object:
                    # The halves are compared apart: a last bit of the first may flip a code.
                    expected.append(hidden)
                    return quantise_nvfp4_rows(middle[0])

                expected: list[Tensor] = []
                whole, _ = moe.experts(rows, *arguments, limit=10.0, quantise_mid=same)  # type: ignore[arg-type]
                return _near([found, middle[0]], [whole, expected[0]], FP32_LIMIT)

            yield f"E {experts} H {hidden} I {inner} top-{top_k} stored gsa {stored}", check


def _router(b: Bench) -> Cases:
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
            ids, _ = _bits([fused[0], split[0], again[0]], [split[0], expected[0], fused[0]])
            weights, limit = _near([fused[1], split[1]], [split[1], expected[1]], FP32_LIMIT)
            return max(ids, weights), limit

        yield f"E {experts} K {k} top-{top_k} rows {tokens}", check

    def adversarial() -> tuple[float, float]:
        nan, inf = float("nan"), float("inf")
        rows = torch.zeros(9, 64)
        rows[1], rows[2, 5], rows[3, :3] = nan, nan, torch.tensor([inf, inf, -inf])
        rows[4], rows[5], rows[6], rows[7] = -inf, -3e38, 3e38, -300.0
        rows[8, ::2] = 1.0
        logits, bias = rows.to(b.device), b.randn(64, scale=0.0)
        found = router_cuda.route(b.library, logits, bias, top_k=6, route_scale=2.5)
        expected = router.route(logits, bias, top_k=6, route_scale=2.5)
        ids, _ = _bits(found[0], expected[0])
        weights, limit = _near(found[1], expected[1], FP32_LIMIT)
        return max(ids, weights), limit

    yield "NaN, Inf, ties, underflow", adversarial


def _boundary(b: Bench) -> Cases:
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
                    return _near(found, expected, BF16_LIMIT)
                made = residual_cuda.boundary(
                    b.library, streams, y, mix, site, norm, iterations=20, **rates
                )
                whole = residual.boundary(streams, y, mix, site, norm, iterations=20, **rates)
                outs = [made[0], made[2], made[1].post, made[1].comb]
                return _near(outs, [whole[0], whole[2], whole[1].post, whole[1].comb], BF16_LIMIT)

            yield f"H {hidden} rows {tokens} first {first} head {head}", check


def _inputs(b: Bench) -> Cases:
    for heads, dim, tokens in [(4, 128, 2), (64, 512, 1), (128, 512, 3)]:

        def check(heads: int = heads, dim: int = dim, tokens: int = tokens) -> tuple[float, float]:
            q, kv = b.randn(tokens, heads * dim), b.randn(tokens, dim)
            angle = b.randn(tokens, 32, scale=100.0)
            arguments = (q, kv, b.randn(dim), angle.cos(), angle.sin())
            options = {"heads": heads, "eps": 1e-6, "kv_fp8": True, "dtype": torch.bfloat16}
            found = attention_cuda.attention_inputs(b.library, *arguments, **options)  # type: ignore[arg-type]
            expected = attention.attention_inputs(*arguments, **options)  # type: ignore[arg-type]
            return _near(found, expected, BF16_LIMIT)

        yield f"heads {heads} D {dim} rows {tokens}", check


def _attend(b: Bench) -> Cases:
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
            stored, _ = _bits(first, second)
            error, limit = _near(found[0], expected[0], BF16_LIMIT)
            taps = 0.0
            if tokens == 1:
                taps, _ = _near(found[1], expected[1], 1.0)
            return max(error, stored, taps), limit

        kind = "per query" if per_query else "shared"
        yield f"heads {heads} D {dim} rows {tokens} at {position} + {extra} {kind}", check


def _compress(b: Bench) -> Cases:
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
            stored, _ = _bits(outcomes[1][0], outcomes[0][0])
            # A last bit before the FP4 rounding can move one number by a whole step.
            limit = 2e-2 if rounding == "index" else BF16_LIMIT
            error, limit = _near(outcomes[1][1], outcomes[0][1], limit)
            return max(error, stored), limit

        yield f"D {dim} ratio {ratio} {rounding} rows {tokens} at {position}", check


CASES: dict[str, Callable[[Bench], Cases]] = {
    "quantise_rows": _quantise,
    "nvfp4_linear": _linear,
    "nvfp4_grouped_linear": _grouped,
    "nvfp4_experts": _experts,
    "router": _router,
    "hyper_boundary": _boundary,
    "attention_inputs": _inputs,
    "attend": _attend,
    "compress": _compress,
}
