"""Norms, rotations and hyper-connections: published goldens and properties."""

import torch

from kernels.residual import reference as residual


def test_window_frequencies_golden() -> None:
    found = residual.rope_frequencies(64, 10000.0)
    expected = torch.tensor([1, 0.749894209, 0.0133352143, 1.33352143e-4])
    torch.testing.assert_close(found[[0, 1, 15, 31]], expected, rtol=1e-6, atol=0)


def yarn() -> torch.Tensor:
    return residual.yarn_frequencies(
        64, 160000.0, factor=16, beta_fast=32, beta_slow=1, original_context=65536
    )


def test_compress_frequencies_golden() -> None:
    expected = [1, 0.687656022, 3.63553858e-3, 2.265625e-3, 2.96977778e-4, 5.37231267e-6]
    found = yarn()[[0, 1, 15, 16, 20, 25, 31]]
    expected = torch.tensor([*expected, 5.68052904e-7])
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


def test_sinkhorn_golden() -> None:
    logits = torch.tensor([[0, 1, 2, 3], [1, -1, 0.5, 2], [2, 0, -2, 1], [0.3, 0.7, -0.4, 1.5]])
    comb = residual.sinkhorn(logits[None], 20, 1e-6)
    expected = torch.tensor(
        [
            [0.026637, 0.194498, 0.481353, 0.297511],
            [0.229431, 0.083412, 0.340341, 0.346816],
            [0.619989, 0.225398, 0.027775, 0.126837],
            [0.123942, 0.496691, 0.15053, 0.228836],
        ]
    )
    torch.testing.assert_close(comb[0], expected, rtol=0, atol=1e-6)
    mix = residual.HyperMix(torch.ones(1, 4), torch.zeros(1, 4), comb)
    streams = torch.tensor([1.0, 2, 3, 4]).view(1, 4, 1)
    out = residual.hyper_expand(streams, torch.zeros(1, 1), mix).flatten()
    golden = torch.tensor([2.841235, 3.024280, 1.847480, 2.286995])
    torch.testing.assert_close(out, golden, rtol=0, atol=2e-6)


def test_expand_sums_over_the_first_index() -> None:
    """A permutation is doubly stochastic and not symmetric: a transpose would show."""
    comb = torch.tensor([[0.0, 1, 0], [0, 0, 1], [1, 0, 0]])[None]
    streams = torch.tensor([10.0, 20, 30]).view(1, 3, 1)
    mix = residual.HyperMix(torch.ones(1, 3), torch.zeros(1, 3), comb)
    assert residual.hyper_expand(streams, torch.zeros(1, 1), mix).flatten().tolist() == [30, 10, 20]


def test_mix_agrees_with_fp64() -> None:
    generator = torch.Generator().manual_seed(0)
    streams = torch.randn(3, 4, 32, generator=generator)
    fn = torch.randn(24, 128, generator=generator) * 0.1
    base, scale = torch.randn(24, generator=generator), torch.tensor([0.7, 1.3, 0.9])
    site = residual.HyperSite(fn, base, scale)
    found = residual.hyper_mix(streams, site, iterations=20, eps=1e-6, norm_eps=1e-6)
    x = streams.double().flatten(1)
    z = (x @ fn.double().T) / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(
        found.pre.double(), torch.sigmoid(z[:, :4] * 0.7 + base[:4]) + 1e-6, rtol=1e-5, atol=1e-6
    )
    torch.testing.assert_close(
        found.post.double(), 2 * torch.sigmoid(z[:, 4:8] * 1.3 + base[4:8]), rtol=1e-5, atol=1e-6
    )
    comb = torch.softmax((z[:, 8:] * 0.9 + base[8:]).view(-1, 4, 4), -1) + 1e-6
    comb = comb / (comb.sum(-2, keepdim=True) + 1e-6)
    for _ in range(19):
        comb = comb / (comb.sum(-1, keepdim=True) + 1e-6)
        comb = comb / (comb.sum(-2, keepdim=True) + 1e-6)
    torch.testing.assert_close(found.comb.double(), comb, rtol=1e-4, atol=1e-5)


def test_rotation_turns_interleaved_pairs_of_the_last_dims() -> None:
    x = torch.zeros(1, 8)
    x[0, 0], x[0, 4], x[0, 6] = 5.0, 1.0, 1.0  # a plain dim, and the first of two rotary pairs
    cos, sin = residual.rope_phases(torch.tensor([3]), torch.tensor([0.5, 0.25]))
    out = residual.rotate(x, cos, sin)[0]
    expected = torch.tensor([1.5, 0.75])
    assert out[0] == 5.0 and (out[1:4] == 0).all()
    torch.testing.assert_close(out[[4, 6]], expected.cos())
    torch.testing.assert_close(out[[5, 7]], expected.sin())


def test_rotation_undoes_itself_far_out() -> None:
    positions = torch.tensor([0, 1, 1000, 900_000])
    phases = residual.rope_phases(positions, yarn())
    x = torch.randn(4, 3, 128)
    there = residual.rotate(x, *phases)
    torch.testing.assert_close(residual.rotate(there, *phases, inverse=True), x)
    assert not torch.allclose(there[3], x[3])


def test_rms_norm_multiplies_before_the_cast() -> None:
    x = torch.randn(4, 64).to(torch.bfloat16)
    weight = torch.randn(64)
    wide = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight
    assert torch.equal(residual.rms_norm(x, weight, 1e-6), wide.float().to(torch.bfloat16))
