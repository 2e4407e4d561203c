"""Joins the partial outputs of `cute_attend`: sink, normalisation, inverse rotation, quantisation.

A CTA takes one head of one query. Four warps walk over the chunks, then the head's numbers are
added in a fixed order, rounded, and their rotary dims turned back. The last head of an output group
to finish quantises the group's row to NVFP4 with its own gsa.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, const_expr, range_constexpr
from cutlass.cute.runtime import make_ptr

from kernels import cute_nvfp4 as nvfp4
from kernels import cute_ptx as ptx
from kernels.cute_warp import warp_peak, warp_sum

THREADS = 128
WARPS = THREADS // 32
ROWS = 32  # of a chunk
_HIDDEN = -1e30


@cute.jit
def _chunk_weights(
    stats: cute.Pointer,
    sink_logit: Float32,
    weights: cute.Tensor,
    heads: cutlass.Constexpr,
    chunks: cutlass.Constexpr,
):
    """What each chunk counts in the one softmax, into shared memory; -> the sink's share."""
    lane = cute.arch.lane_idx()
    peak = sink_logit
    for i in cutlass.range((chunks + 31) // 32):
        if i * 32 + lane < chunks:
            peak = cutlass.max(peak, ptx.load_f32(stats + (i * 32 + lane) * heads * 2))
    for o in range_constexpr(5):
        peak = cutlass.max(peak, cute.arch.shuffle_sync_bfly(peak, offset=16 >> o))
    total = Float32(0.0)
    for i in cutlass.range((chunks + 31) // 32):
        if i * 32 + lane < chunks:
            at = stats + (i * 32 + lane) * heads * 2
            scale = ptx.exp(ptx.load_f32(at) - peak)
            mass = ptx.load_f32(at + 1)
            if mass == 0.0:
                scale = Float32(0.0)
            weights[i * 32 + lane] = scale
            total += scale * mass
    total = warp_sum(total)
    sink_weight = ptx.exp(sink_logit - peak)
    share = ptx.divide(Float32(1.0), total + sink_weight)
    for i in cutlass.range((chunks + 31) // 32):
        if i * 32 + lane < chunks:
            weights[i * 32 + lane] = weights[i * 32 + lane] * share
    return sink_weight * share


@cute.jit
def _quantise_group(
    row: cute.Pointer,
    values: cute.Pointer,
    gsa_out: cute.Pointer,
    flushed: cute.Pointer,
    scratch: cute.Tensor,
    width: cutlass.Constexpr,
):
    """NVFP4 of one group's row, which CTAs of this launch wrote. scratch: shared [2, WARPS]."""
    thread, _, _ = cute.arch.thread_idx()
    lane, warp = thread % 32, thread // 32
    blocks = width // nvfp4.BLOCK
    rounds = (blocks + THREADS - 1) // THREADS
    rows, amax = [], []
    peak = Float32(0.0)
    for i in range_constexpr(rounds):
        block = cutlass.min(Int32(i * THREADS) + thread, Int32(blocks - 1))
        at = row + block * (nvfp4.BLOCK // 2)
        rows.append(nvfp4.block_numbers_bf16(ptx.load_128_l2(at), ptx.load_128_l2(at + 4)))
        amax.append(nvfp4.block_peak(rows[i]))
        peak = ptx.max_magnitude(peak, amax[i])
    peak = warp_peak(peak)
    if lane == 0:
        scratch[0, warp] = peak
    cute.arch.sync_threads()
    for w in range_constexpr(WARPS):
        peak = ptx.max_magnitude(peak, scratch[0, w])
    gsa = ptx.divide(peak, Float32(nvfp4.GSA_DIVISOR))
    under = Int32(0)
    for i in range_constexpr(rounds):
        block = Int32(i * THREADS) + thread
        scale, _, flushes = nvfp4.block_scale(amax[i], gsa)
        packed = nvfp4.quantised_words(rows[i], scale, gsa)
        if block < blocks:
            at = values + block * (nvfp4.BLOCK // 2)
            ptx.store_128(at, packed[0], packed[1], packed[2], packed[3])
            ptx.store_128(at + 4, packed[4], packed[5], packed[6], packed[7])
            under += flushes
    under = warp_sum(under)
    if lane == 0:
        scratch[1, warp] = Float32(under)
    cute.arch.sync_threads()
    if thread == 0:
        count = Float32(0.0)
        for w in range_constexpr(WARPS):
            count += scratch[1, w]
        ptx.store_f32(gsa_out, gsa)
        ptx.store_32(flushed, Int32(count))


@cute.kernel
def merge_kernel(
    partial: cute.Pointer,
    stats: cute.Pointer,
    sink: cute.Pointer,
    cos: cute.Pointer,
    sin: cute.Pointer,
    out: cute.Pointer,
    values: cute.Pointer,
    gsa: cute.Pointer,
    flushed: cute.Pointer,
    finished: cute.Pointer,
    shares: cute.Pointer,
    heads: cutlass.Constexpr,
    dim: cutlass.Constexpr,
    rope: cutlass.Constexpr,
    groups: cutlass.Constexpr,
    window: cutlass.Constexpr,
    extra: cutlass.Constexpr,
    tap: cutlass.Constexpr,
):
    thread, _, _ = cute.arch.thread_idx()
    head, token, _ = cute.arch.block_idx()
    lane, warp = thread % 32, thread // 32
    rows = window + extra
    chunks = (rows + ROWS - 1) // ROWS
    smem = cutlass.utils.SmemAllocator()
    weights = smem.allocate_tensor(Float32, cute.make_layout(chunks), 16)
    parts = smem.allocate_tensor(Float32, cute.make_layout((WARPS, dim), stride=(dim, 1)), 16)
    scratch = smem.allocate_tensor(Float32, cute.make_layout((2, WARPS)), 16)
    last = smem.allocate_tensor(Int32, cute.make_layout(1), 16)
    cute.arch.griddepcontrol_launch_dependents()
    cute.arch.griddepcontrol_wait()
    place = token * chunks * heads + head
    sink_share = Float32(0.0)  # in warp 0
    if warp == 0:
        sink_share = _chunk_weights(
            stats + place * 2, ptx.load_f32(sink + head), weights, heads, chunks
        )
    cute.arch.sync_threads()

    quads = dim // 128
    sums = cute.make_rmem_tensor((quads * 4,), Float32)
    sums.fill(0.0)
    own_row = (window - 1) // ROWS  # the chunk of the query's own row: always visible
    for i in cutlass.range((chunks + WARPS - 1) // WARPS, unroll=4):
        chunk = i * WARPS + warp
        weight = Float32(0.0)
        if chunk < chunks:
            weight = weights[chunk]
        if weight == 0.0:
            chunk = Int32(own_row)  # its numbers are finite; nobody wrote the hidden one's
        for k in range_constexpr(quads):
            at = (place + chunk * heads) * dim + k * 128 + lane * 4
            v = ptx.load_128(partial + at)
            for j in range_constexpr(4):
                sums[k * 4 + j] = sums[k * 4 + j] + weight * ptx.as_f32(v[j])
    for k in range_constexpr(quads):
        for j in range_constexpr(4):
            parts[warp, k * 128 + lane * 4 + j] = sums[k * 4 + j]
    cute.arch.sync_threads()
    if thread * 4 < dim:
        made = []
        for j in range_constexpr(4):
            total = Float32(0.0)
            for w in range_constexpr(WARPS):
                total += parts[w, thread * 4 + j]
            made.append(ptx.through_bf16(total))
        turn = thread * 2 - (dim - rope) // 2
        even, odd, even_2, odd_2 = made[0], made[1], made[2], made[3]
        if turn >= 0:
            angle = token * (rope // 2) + turn
            c, s = ptx.load_f32(cos + angle), ptx.load_f32(sin + angle)
            even, odd = even * c + odd * s, odd * c - even * s
            c, s = ptx.load_f32(cos + angle + 1), ptx.load_f32(sin + angle + 1)
            even_2, odd_2 = even_2 * c + odd_2 * s, odd_2 * c - even_2 * s
        at = (token * heads + head) * (dim // 2) + thread * 2
        ptx.store_32x2(out + at, ptx.f32_to_bf16x2(even, odd), ptx.f32_to_bf16x2(even_2, odd_2))
    if const_expr(tap):
        for i in cutlass.range((rows + THREADS - 1) // THREADS):
            row = i * THREADS + thread
            if row < rows:
                at = shares + (head * (rows + 1) + row)
                weight = weights[row // ROWS]
                share = Float32(0.0)
                if weight > 0.0:
                    share = ptx.load_f32(at) * weight
                ptx.store_f32(at, share)
        if thread == 0:
            ptx.store_f32(shares + (head * (rows + 1) + rows), sink_share)
    ptx.fence_device()
    cute.arch.sync_threads()
    per_group = heads // groups
    group = token * groups + head // per_group
    if thread == 0:
        last[0] = ptx.atomic_inc(finished + group, Int32(per_group - 1))
    cute.arch.sync_threads()
    if last[0] == per_group - 1:
        ptx.fence_device()
        width = per_group * dim
        _quantise_group(
            out + group * (width // 2),
            values + group * (width // 2),
            gsa + group,
            flushed + group,
            scratch,
            width,
        )


@cute.jit
def merge(
    partial: cute.Pointer,
    stats: cute.Pointer,
    sink: cute.Pointer,
    cos: cute.Pointer,
    sin: cute.Pointer,
    out: cute.Pointer,
    values: cute.Pointer,
    gsa: cute.Pointer,
    flushed: cute.Pointer,
    finished: cute.Pointer,
    shares: cute.Pointer,
    tokens: Int32,
    stream: cuda.CUstream,
    heads: cutlass.Constexpr,
    dim: cutlass.Constexpr,
    rope: cutlass.Constexpr,
    groups: cutlass.Constexpr,
    window: cutlass.Constexpr,
    extra: cutlass.Constexpr,
    tap: cutlass.Constexpr,
):
    merge_kernel(
        partial, stats, sink, cos, sin, out, values, gsa, flushed, finished, shares, heads, dim,
        rope, groups, window, extra, tap,
    ).launch(grid=[heads, tokens, 1], block=[THREADS, 1, 1], stream=stream)  # fmt: skip


def build(options: str, **static):
    """Compile without a GPU; pointers are placeholders."""

    def pointer(kind, align):
        return make_ptr(kind, 16, cute.AddressSpace.gmem, assumed_align=align)

    f32, word = pointer(Float32, 16), pointer(Int32, 16)
    names = ("heads", "dim", "rope", "groups", "window", "extra", "tap")
    return cute.compile(
        merge, f32, f32, f32, f32, f32, word, word, f32, word, word, f32, Int32(1),
        cuda.CUstream(0), *[static[name] for name in names], options=options,
    )  # fmt: skip
