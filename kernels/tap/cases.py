"""Cases of the tap writers: kernel against reference."""

import torch

from kernels.attention.reference import AttentionTap
from kernels.checking import FP32_LIMIT, Bench, Cases, bits, near
from kernels.formats import Nvfp4Rows
from kernels.tap import cuda, reference
from kernels.tap.reference import LayerFields, LayerTap, LogitsFields

_SITES, _CHOICES, _TOP = 8, 6, 16


def _fields(b: Bench) -> LayerFields:
    """Places full of something else."""
    floats = b.randn(2 * _SITES + _CHOICES + 4 + 4)
    words = torch.full((2 * _SITES + _CHOICES + 2 + _TOP,), 77, dtype=torch.int32).to(b.device)
    f, i = [2 * _SITES, _CHOICES, 1, 1, 1, 1, 4], [2 * _SITES, _CHOICES, 1, 1, _TOP]
    gsa, weights, *four, norms = floats.split(f)
    counts, ids, visible, bad, blocks = words.split(i)
    margin, sink, window, compressed = (part[0] for part in four)
    return LayerFields(
        *gsa.split(_SITES), *counts.split(_SITES), ids, weights, margin, sink, window, compressed,
        visible[0], blocks, norms, bad[0],
    )  # fmt: skip


def _rows(b: Bench, count: int, shared_zero: bool) -> Nvfp4Rows:
    live = b.randn(1, count, 1).abs()
    counts = (b.randn(2, 1, count).abs() * 40).int()
    none = torch.zeros(1, dtype=torch.int32).to(b.device).expand(1, count)
    saturated = none if shared_zero else counts[0]
    return Nvfp4Rows(live, b.randn(1, count, 1), live, saturated, counts[1])


def layer_cases(b: Bench) -> Cases:
    cases = [
        (64, 128, 512, 4, True, 4096, 3, False), (64, 128, 64, 128, False, 4096, 0, False),
        (8, 128, 0, 0, False, 256, 2, True), (128, 128, 4, 4, False, 7168, 5, True),
    ]  # fmt: skip
    for heads, window, extra, ratio, has_ids, hidden, layer, broken in cases:

        def check(
            heads: int = heads, window: int = window, extra: int = extra, ratio: int = ratio,
            has_ids: bool = has_ids, hidden: int = hidden, layer: int = layer,
            broken: bool = broken,
        ) -> tuple[float, float]:  # fmt: skip
            streams = b.randn(4, hidden).bfloat16()
            sites = {0: _rows(b, 1, True), 2: _rows(b, 16, True), 5: _rows(b, 7, False)}
            shares = torch.softmax(b.randn(heads, window + extra + 1, scale=3.0), -1)
            if broken:
                streams[2, 5] = float("inf")
                sites[5].live[0, 3] = float("nan")
                shares[:, window + extra // 2 : -1] = 0
            made = LayerTap(
                sites,
                (b.distinct_ids(1, 60, _CHOICES)[0], b.randn(_CHOICES), b.randn(1)[0]),
                AttentionTap(shares, window),
                b.distinct_ids(1, 9000, extra)[0] if has_ids else None,
                ratio,
                torch.tensor([36_003]).to(b.device),
                streams,
            )
            found = _fields(b)
            found.first_bad_layer.fill_(1 if layer == 3 else -1)
            expected = LayerFields(*(part.clone() for part in found))
            cuda.record_layer(b.library, found, made, layer)
            reference.record_layer(expected, made, layer)
            exact = [*range(7), 10, 11, 13]
            whole, _ = bits([found[i] for i in exact], [expected[i] for i in exact])
            masses, limit = near(found[7:10], expected[7:10], FP32_LIMIT)
            norms, _ = near(found.stream_norms.nan_to_num(), expected.stream_norms.nan_to_num(), 1)
            return max(whole, masses, norms), limit

        yield f"heads {heads} rows {window}+{extra} H {hidden} layer {layer}", check


def logits_cases(b: Bench) -> Cases:
    for vocab, kind in [(129_280, "random"), (4096, "ties"), (300, "random")]:

        def check(vocab: int = vocab, kind: str = kind) -> tuple[float, float]:
            logits = b.randn(vocab, scale=4.0)
            if kind == "ties":
                logits = logits.round()
            result = torch.tensor([vocab - 1, 17, 1, 0]).to(b.device)
            stats, position = b.randn(4), torch.tensor(70_000).to(b.device)

            def places() -> LogitsFields:
                words = torch.zeros(3, dtype=torch.int32).to(b.device)
                floats = b.randn(4)
                ids = torch.zeros(20, dtype=torch.int32).to(b.device)
                return LogitsFields(*words, *floats, ids, b.randn(20))

            found, expected = places(), places()
            cuda.record_logits(b.library, found, logits, result, stats, position)
            reference.record_logits(expected, logits, result, stats, position)
            return bits(found, expected)

        yield f"V {vocab} {kind}", check
