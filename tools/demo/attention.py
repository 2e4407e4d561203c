"""The attention block over whole sequences, differentiable (architecture.md 3.3 to 3.6).

Window scores are banded: queries in blocks of one window meet the keys of their own block and of
the block before. Compressed rows meet every query. One softmax runs over window rows, compressed
rows and the sink. Sequences are [B, T] with T a multiple of the window and of every ratio.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tools.demo import quant
from tools.demo.config import Sizes
from tools.demo.quant import Activation, enter, linear

NEG = -1e30  # a finite minus infinity keeps empty rows free of NaN


class Phases(NamedTuple):
    """cos and sin [T, rope/2] of the two rotary bases."""

    window: tuple[Tensor, Tensor]
    compress: tuple[Tensor, Tensor]


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide if weight is None else wide * weight).to(x.dtype)


def rotate(x: Tensor, phases: tuple[Tensor, Tensor], *, inverse: bool = False) -> Tensor:
    """Rotate the last dims of x [B, T, ..., D] by interleaved pairs; cos, sin [T, r/2]."""
    cos, sin = phases
    dims = 2 * cos.shape[-1]
    shape = (cos.shape[0],) + (1,) * (x.dim() - 3) + (cos.shape[-1],)
    cos, sin = cos.view(shape), sin.view(shape)
    sin = -sin if inverse else sin
    even, odd = x[..., -dims:].float().unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)
    return torch.cat((x[..., :-dims], turned.to(x.dtype)), -1)


def hadamard(x: Tensor, matrix: Tensor) -> Tensor:
    """Normalised Walsh-Hadamard over the last axis; matrix [D, D] of plus and minus one."""
    return ((x @ matrix.to(x.dtype)).float() * x.shape[-1] ** -0.5).to(x.dtype)


def hadamard_matrix(size: int) -> Tensor:
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < size:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return matrix


class Compressor(nn.Module):
    """Pools token rows into one row per block of `ratio` tokens (architecture.md 3.4)."""

    def __init__(self, sizes: Sizes, ratio: int, width: int) -> None:
        super().__init__()
        self.ratio, self.width, self.eps = ratio, width, sizes.norm_eps
        self.overlap = ratio == 4
        rows = width * (2 if self.overlap else 1)
        self.wkv = nn.Parameter(torch.empty(rows, sizes.hidden_size))
        self.wgate = nn.Parameter(torch.empty(rows, sizes.hidden_size))
        self.ape = nn.Parameter(torch.zeros(ratio, rows))
        self.norm = nn.Parameter(torch.ones(width))

    def forward(self, h: Tensor, phases: tuple[Tensor, Tensor]) -> Tensor:
        """[B, T, H] -> [B, T/ratio, D], normed and rotated at each block's first position."""
        wide = h.float()
        kv = F.linear(wide, self.wkv).unflatten(1, (-1, self.ratio))
        score = F.linear(wide, self.wgate).unflatten(1, (-1, self.ratio)) + self.ape
        if self.overlap:
            kv, score = self._overlapped(kv, 0.0), self._overlapped(score, NEG)
        pooled = (torch.softmax(score, 2) * kv).sum(2)
        rows = rms_norm(pooled.to(h.dtype), self.norm, self.eps)
        cos, sin = phases
        return rotate(rows, (cos[:: self.ratio], sin[:: self.ratio]))

    def _overlapped(self, rows: Tensor, nothing: float) -> Tensor:
        """[B, C, m, 2D] -> [B, C, 2m, D]: first halves of the block before, second halves."""
        first, second = rows.split(self.width, -1)
        before = torch.cat((torch.full_like(first[:, :1], nothing), first[:, :-1]), 1)
        return torch.cat((before, second), 2)


class Indexer(nn.Module):
    """Scores compressed blocks for each query; trained by its own loss only."""

    def __init__(self, sizes: Sizes, ratio: int) -> None:
        super().__init__()
        self.heads, self.width = sizes.index_heads, sizes.index_head_dim
        self.wq_b = nn.Parameter(torch.empty(self.heads * self.width, sizes.q_lora_rank))
        self.weights_proj = nn.Parameter(torch.empty(self.heads, sizes.hidden_size))
        self.compressor = Compressor(sizes, ratio, self.width)
        self.register_buffer("hadamard", hadamard_matrix(self.width), persistent=False)

    def forward(
        self, latent: Activation, h: Tensor, phases: tuple[Tensor, Tensor], quantised: bool
    ) -> Tensor:
        """-> [B, T, C] fp32 scores, causality not yet applied."""
        keys = self.compressor(h, phases)
        q = linear(latent, self.wq_b).unflatten(-1, (self.heads, -1))
        q = rotate(q, phases)
        if quantised:
            q, keys = self._fp4(q), self._fp4(keys)
        scale = (self.heads * self.width) ** -0.5
        weights = F.linear(h.float(), self.weights_proj) * scale
        dots = torch.relu(q.flatten(1, 2) @ keys.mT).unflatten(1, (-1, self.heads))
        return (dots.float() * weights.unsqueeze(-1)).sum(2)

    def _fp4(self, rows: Tensor) -> Tensor:
        rows = hadamard(rows, self.hadamard)
        return quant.straight_through(quant.fp4_round_trip(rows), rows)


class Attention(nn.Module):
    def __init__(self, sizes: Sizes, ratio: int) -> None:
        super().__init__()
        self.sizes, self.ratio = sizes, ratio
        wide = sizes.num_heads * sizes.head_dim
        z = sizes.o_groups * sizes.o_lora_rank
        self.wq_a = nn.Parameter(torch.empty(sizes.q_lora_rank, sizes.hidden_size))
        self.q_norm = nn.Parameter(torch.ones(sizes.q_lora_rank))
        self.wq_b = nn.Parameter(torch.empty(wide, sizes.q_lora_rank))
        self.wkv = nn.Parameter(torch.empty(sizes.head_dim, sizes.hidden_size))
        self.kv_norm = nn.Parameter(torch.ones(sizes.head_dim))
        self.wo_a = nn.Parameter(torch.empty(z, wide // sizes.o_groups))
        self.wo_b = nn.Parameter(torch.empty(sizes.hidden_size, z))
        self.sink = nn.Parameter(torch.zeros(sizes.num_heads))
        self.compressor = Compressor(sizes, ratio, sizes.head_dim) if ratio else None
        self.indexer = Indexer(sizes, ratio) if ratio == 4 else None

    def forward(
        self, h: Tensor, phases: Phases, all_blocks: Tensor, quantised: bool
    ) -> tuple[Tensor, Tensor]:
        """h [B, T, H], already normed -> output [B, T, H] and the indexer's loss (0-d).

        all_blocks: 0-d bool on the device; True attends to every visible block, not the top k.
        """
        sizes = self.sizes
        turn = phases.compress if self.ratio else phases.window
        act = enter(h, quantised)
        latent = rms_norm(linear(act, self.wq_a), self.q_norm, sizes.norm_eps)
        latent = enter(latent, quantised)
        q = linear(latent, self.wq_b).unflatten(-1, (sizes.num_heads, -1))
        q = rotate(rms_norm(q, None, sizes.norm_eps), turn)
        kv = rotate(rms_norm(linear(act, self.wkv), self.kv_norm, sizes.norm_eps), turn)
        if quantised:
            kv = quant.kv_round_trip(kv, sizes.rope_dims)

        near = _with_block_before(kv, sizes.window)
        scores = [self._window_scores(q, near)]
        rows, loss = None, h.new_zeros((), dtype=torch.float32)
        if self.compressor is not None:
            rows = self.compressor(h, turn)
            if quantised:
                rows = quant.kv_round_trip(rows, sizes.rope_dims)
            far, visible = self._compressed_scores(q, rows)
            if self.indexer is not None:
                apart = latent._replace(x=latent.x.detach())
                index = self.indexer(apart, h.detach(), turn, quantised)
                loss = _index_loss(index, visible, scores[0], far, self.sink)
                visible = visible & self._chosen(index, visible, all_blocks)
            scores.append(far.masked_fill(~visible.unsqueeze(2), NEG))
        out = _mix(scores, near, rows, self.sink, q.dtype)

        out = rotate(out, turn, inverse=True)
        grouped = out.flatten(2).unflatten(-1, (sizes.o_groups, -1))
        z = self._grouped(enter(grouped, quantised))
        return linear(enter(z, quantised), self.wo_b), loss

    def _window_scores(self, q: Tensor, near: Tensor) -> Tensor:
        """[B, T, A, 2W] fp32: a query sees itself and the window-1 rows before it."""
        window = self.sizes.window
        blocks = q.unflatten(1, (-1, window)).flatten(2, 3)  # [B, T/W, W*A, D]
        scores = (blocks @ near.mT).float() * q.shape[-1] ** -0.5
        scores = scores.unflatten(2, (window, -1))
        query = torch.arange(window, device=q.device)[:, None]
        key = torch.arange(2 * window, device=q.device)
        seen = (key > query) & (key <= query + window)
        block = torch.arange(scores.shape[1], device=q.device)[:, None, None]
        seen = seen & ((block > 0) | (key >= window))
        return scores.masked_fill(~seen[None, :, :, None, :], NEG).flatten(1, 2)

    def _compressed_scores(self, q: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """[B, T, A, C] fp32 scores and [1, T, C] whether block w has ended at query t."""
        scores = (q.flatten(1, 2) @ rows.mT).unflatten(1, (q.shape[1], -1))
        time = torch.arange(q.shape[1], device=q.device)[:, None]
        block = torch.arange(rows.shape[1], device=q.device)
        visible = (block < (time + 1) // self.ratio)[None]
        return scores.float() * q.shape[-1] ** -0.5, visible

    def _chosen(self, index: Tensor, visible: Tensor, all_blocks: Tensor) -> Tensor:
        top_k = min(self.sizes.index_top_k, index.shape[-1])
        ids = index.detach().masked_fill(~visible, NEG).topk(top_k, -1, sorted=False).indices
        chosen = torch.zeros_like(index, dtype=torch.bool).scatter(-1, ids, True)
        return chosen | all_blocks

    def _grouped(self, act: Activation) -> Tensor:
        """o_a: [B, T, G, K] by [G, N, K] -> [B, T, G*N]; one gsa per row and group."""
        x, weight = quant.fake_rows(act), self.wo_a
        if act.values is not None:
            weight = quant.fake_weight(weight, stored_as_fp8=True)
        weight = weight.to(x.dtype).unflatten(0, (self.sizes.o_groups, -1))
        return torch.einsum("btgk,gnk->btgn", x, weight).flatten(2)


def _with_block_before(kv: Tensor, window: int) -> Tensor:
    """[B, T, D] -> [B, T/W, 2W, D]: each block of keys behind the one before it."""
    blocks = kv.unflatten(1, (-1, window))
    before = torch.cat((torch.zeros_like(blocks[:, :1]), blocks[:, :-1]), 1)
    return torch.cat((before, blocks), 2)


def _mix(
    scores: list[Tensor], near: Tensor, rows: Tensor | None, sink: Tensor, dtype: torch.dtype
) -> Tensor:
    """Joint softmax with the sink, then the values: [B, T, A, D]."""
    sink_column = sink[None, None, :, None].expand(*scores[0].shape[:-1], 1)
    weights = torch.softmax(torch.cat((*scores, sink_column), -1), -1).to(dtype)
    width, window = scores[0].shape[-1], near.shape[2] // 2
    banded = weights[..., :width].unflatten(1, (-1, window)).flatten(2, 3)
    out = (banded @ near).unflatten(2, (window, -1)).flatten(1, 2)
    if rows is None:
        return out
    far = weights[..., width : width + rows.shape[1]].flatten(1, 2) @ rows
    return out + far.unflatten(1, (out.shape[1], -1))


def _index_loss(
    index: Tensor, visible: Tensor, window: Tensor, far: Tensor, sink: Tensor
) -> Tensor:
    """KL(attention mass over blocks, summed over heads || softmax of the index score)."""
    with torch.no_grad():
        hidden = ~visible.unsqueeze(2)
        far = far.masked_fill(hidden, NEG)
        rest = torch.logaddexp(window.logsumexp(-1), sink)
        total = torch.logaddexp(rest, far.logsumexp(-1))
        mass = torch.exp(far - total.unsqueeze(-1)).sum(2)
        target = mass / mass.sum(-1, keepdim=True).clamp(min=1e-9)
    log_index = torch.log_softmax(index.masked_fill(~visible, NEG), -1)
    kl = (torch.xlogy(target, target) - target * log_index).masked_fill(~visible, 0.0).sum(-1)
    some = visible.any(-1)
    return (kl * some).sum() / (some.sum() * index.shape[0])
