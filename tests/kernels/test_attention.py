"""Attention, compressor and indexer against brute force, one query and one row at a time."""

import math

import pytest
import torch
from torch import Tensor

from kernels.attention.reference import attend, window_visible
from kernels.cache import hadamard
from kernels.compressor.reference import history_length, pool_blocks
from kernels.indexer.reference import index_scores, select_blocks


def test_attend_agrees_with_a_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(3, 2, 8, generator=generator)
    window, compressed = torch.randn(5, 8, generator=generator), torch.randn(4, 8)
    seen_window, seen = torch.rand(3, 5) < 0.6, torch.rand(3, 4) < 0.5
    seen_window[:, 0] = True
    sink = torch.tensor([0.5, -1.0])
    out, tap = attend(q, window, seen_window, compressed, seen, sink, tap=True)
    assert tap is not None
    rows, visible = torch.cat((window, compressed)), torch.cat((seen_window, seen), 1)
    for t in range(3):
        for head in range(2):
            weights = [
                math.exp(float(q[t, head] @ row) / math.sqrt(8)) if ok else 0.0
                for row, ok in zip(rows, visible[t].tolist(), strict=True)
            ]
            total = sum(weights) + math.exp(float(sink[head]))
            expected = sum((w / total) * row for w, row in zip(weights, rows, strict=True))
            torch.testing.assert_close(out[t, head], expected, rtol=1e-5, atol=1e-6)
    assert tap.window == window.shape[0] and tap.shares.shape == (2, len(rows) + 1)
    torch.testing.assert_close(tap.shares.sum(-1), torch.ones(2))
    torch.testing.assert_close(tap.shares[:, :-1] @ rows, out[-1])


def test_attend_takes_rows_per_query() -> None:
    q, window = torch.randn(2, 2, 8), torch.randn(3, 8)
    shared = torch.randn(6, 8)
    ids = torch.tensor([[5, 1], [0, 3]])
    seen_window, sink = torch.ones(2, 3, dtype=torch.bool), torch.zeros(2)
    found, _ = attend(q, window, seen_window, shared[ids], torch.ones(2, 2) > 0, sink)
    mask = torch.zeros(2, 6, dtype=torch.bool).scatter_(1, ids, True)
    expected, _ = attend(q, window, seen_window, shared, mask, sink)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("position", [0, 1, 6, 7, 8, 100])
def test_window_shows_exactly_the_last_rows(position: int) -> None:
    window = 8
    for count in (1, 3, 20):
        seen = window_visible(count, window, torch.tensor(position))
        for t in range(count):
            p = position + t
            positions = [position - window + 1 + row for row in range(window - 1 + count)]
            assert [q for q, ok in zip(positions, seen[t].tolist(), strict=True) if ok] == list(
                range(max(0, p - window + 1), p + 1)
            )


def pooled_by_hand(kv: Tensor, score: Tensor, ratio: int, overlap: bool, block: int) -> Tensor:
    """One block from the whole sequence, in fp64."""
    kv, score = kv.double(), score.double()
    now = slice(block * ratio, (block + 1) * ratio)
    if not overlap:
        return (torch.softmax(score[now], 0) * kv[now]).sum(0)
    half = kv.shape[1] // 2
    values, scores = kv[now, half:], score[now, half:]
    if block:
        before = slice((block - 1) * ratio, block * ratio)
        values = torch.cat((kv[before, :half], values))
        scores = torch.cat((score[before, :half], scores))
    return (torch.softmax(scores, 0) * values).sum(0)


@pytest.mark.parametrize(("ratio", "overlap"), [(4, True), (4, False), (128, False)])
@pytest.mark.parametrize("sizes", [[300], [1] * 300, [3, 5, 130, 1, 161], [127, 1, 172]])
def test_pooling_in_chunks_agrees_with_whole_blocks(
    ratio: int, overlap: bool, sizes: list[int]
) -> None:
    generator = torch.Generator().manual_seed(ratio)
    kv = torch.randn(300, 12, generator=generator)
    score = torch.randn(300, 12, generator=generator)
    ring = history_length(ratio, overlap) + 1 + 8
    ring_kv, ring_score = torch.full((2, ring, 12), 1e4)  # stale rows of another sequence
    found: dict[int, Tensor] = {}
    position = 0
    for k, s in zip(kv.split(sizes), score.split(sizes), strict=True):
        pooled, block, complete = pool_blocks(
            k, s, ring_kv, ring_score, torch.tensor(position), ratio=ratio, overlap=overlap
        )
        for row, w, done in zip(pooled, block.tolist(), complete.tolist(), strict=True):
            if done:
                assert w not in found
                found[w] = row
        position += len(k)
    assert sorted(found) == list(range(300 // ratio))
    for w, row in found.items():
        expected = pooled_by_hand(kv, score, ratio, overlap, w)
        torch.testing.assert_close(row.double(), expected, rtol=1e-5, atol=1e-5)


def test_hadamard_is_sylvester_s_and_its_own_inverse() -> None:
    matrix = torch.ones(1, 1)
    for _ in range(7):
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    x = torch.randn(3, 128)
    torch.testing.assert_close(hadamard(x), x @ matrix * 128**-0.5, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(hadamard(hadamard(x)), x, rtol=1e-5, atol=1e-5)


def test_index_score_applies_relu_before_a_negative_weight() -> None:
    q, keys = torch.tensor([[[1.0, 0], [0, 1]]]), torch.tensor([[2.0, -3], [-1, 5]])
    weights = torch.tensor([[1.0, -2.0]])
    assert index_scores(q, keys, weights).tolist() == [[2.0, -10.0]]


def test_selection_sees_no_block_that_has_not_ended() -> None:
    scores = torch.tensor([[9.0, 1, 5, 7], [9, 1, 5, 7], [9, 1, 5, 7]])
    ids, chosen = select_blocks(scores, torch.tensor([0, 1, 3]), 2)
    visible = [sorted(i for i, ok in zip(r, c, strict=True) if ok)
               for r, c in zip(ids.tolist(), chosen.tolist(), strict=True)]  # fmt: skip
    assert visible == [[], [0], [0, 2]]
    assert 0 <= int(ids.min()) and int(ids.max()) < 4
