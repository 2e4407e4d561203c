"""What stands between two sublayers as one launch: expand, mix, collapse, norm.

A CTA owns 64 channels of all streams of one token: it puts the last output into them, writes them,
and takes its part of the site's dot products. The CTA that finishes last adds the parts in order,
makes the mixes (Sinkhorn on S*S lanes of one warp), collapses the streams and norms. Sums run in a
fixed order, so results repeat. Bytes: (2S + S*S) * S * H * 4 + 2 * S * H * 2 + 6 H a token.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, const_expr, range_constexpr
from cutlass.cute.runtime import make_ptr

from kernels import cute_ptx as ptx

CHANNELS = 64


@cute.jit
def _sinkhorn(
    logit: Float32, iterations: cutlass.Constexpr, eps: Float32, count: cutlass.Constexpr
):
    """One entry a lane of a [count, count] matrix, row-major; -> nearly doubly stochastic."""
    peak = logit
    for o in range_constexpr(count.bit_length() - 1):
        peak = cutlass.max(peak, cute.arch.shuffle_sync_bfly(peak, offset=1 << o))
    entry = ptx.exp(logit - peak)
    entry = ptx.divide(entry, _line_sum(entry, 1, count)) + eps
    entry = ptx.divide(entry, _line_sum(entry, count, count) + eps)
    for _ in cutlass.range(iterations - 1):
        entry = ptx.divide(entry, _line_sum(entry, 1, count) + eps)
        entry = ptx.divide(entry, _line_sum(entry, count, count) + eps)
    return entry


def _line_sum(entry, first, count):
    """Sum over a row (first = 1) or a column (first = count) of the lanes' matrix."""
    for o in range(count.bit_length() - 1):
        entry = entry + cute.arch.shuffle_sync_bfly(entry, offset=first << o)
    return entry


def _warp_sum(value):
    for o in range(5):
        value = value + cute.arch.shuffle_sync_bfly(value, offset=16 >> o)
    return value


@cute.kernel
def boundary_kernel(
    streams: cute.Pointer,
    y: cute.Pointer,
    post_in: cute.Pointer,
    comb_in: cute.Pointer,
    fn: cute.Pointer,
    base: cute.Pointer,
    site_scale: cute.Pointer,
    norm: cute.Pointer,
    new_streams: cute.Pointer,
    post: cute.Pointer,
    comb: cute.Pointer,
    h: cute.Pointer,
    parts: cute.Pointer,
    finished: cute.Pointer,
    eps: Float32,
    norm_eps: Float32,
    hidden: cutlass.Constexpr,
    count: cutlass.Constexpr,
    iterations: cutlass.Constexpr,
    expand: cutlass.Constexpr,
    is_head: cutlass.Constexpr,
):
    thread, _, _ = cute.arch.thread_idx()
    slice_id, token, _ = cute.arch.block_idx()
    threads = CHANNELS * count
    warps = threads // 32
    lane, warp = thread % 32, thread // 32
    mixes = count if const_expr(is_head) else count * (count + 2)
    slices = hidden // CHANNELS
    smem = cutlass.utils.SmemAllocator()
    sums = smem.allocate_tensor(Float32, cute.make_layout((mixes + 1, warps)), 16)
    mixed = smem.allocate_tensor(Float32, cute.make_layout(mixes + 1), 16)
    pre = smem.allocate_tensor(Float32, cute.make_layout(count), 16)
    squares = smem.allocate_tensor(Float32, cute.make_layout(warps), 16)
    last = smem.allocate_tensor(Int32, cute.make_layout(1), 16)

    stream, channel = thread // CHANNELS, slice_id * CHANNELS + thread % CHANNELS
    row = token * (count * hidden)
    value = Float32(0.0)
    if const_expr(expand):
        for j in range_constexpr(count):
            old = ptx.load_bf16(streams + (row + j * hidden + channel))
            factor = ptx.load_f32(comb_in + (token * count * count + j * count + stream))
            value += factor * old
        made = ptx.through_bf16(ptx.load_f32(y + token * hidden + channel))
        value += ptx.load_f32(post_in + token * count + stream) * made
        value = ptx.through_bf16(value)
    else:
        value = ptx.load_bf16(streams + (row + stream * hidden + channel))
    ptx.store_bf16(new_streams + (row + stream * hidden + channel), value)

    flat = stream * hidden + channel
    for r in range_constexpr(mixes):
        part = _warp_sum(value * ptx.load_f32(fn + r * (count * hidden) + flat))
        if lane == 0:
            sums[r, warp] = part
    part = _warp_sum(value * value)
    if lane == 0:
        sums[mixes, warp] = part
    cute.arch.sync_threads()
    if thread < mixes + 1:
        total = Float32(0.0)
        for w in range_constexpr(warps):
            total += sums[thread, w]
        ptx.store_f32(parts + ((token * slices + slice_id) * (mixes + 1) + thread), total)
    ptx.fence_device()
    cute.arch.sync_threads()
    if thread == 0:
        last[0] = ptx.atomic_inc(finished + token, Int32(slices - 1))
    cute.arch.sync_threads()

    if last[0] == slices - 1:
        ptx.fence_device()
        if thread < mixes + 1:
            total = Float32(0.0)
            for s in cutlass.range(slices):
                total += ptx.load_f32_l2(parts + ((token * slices + s) * (mixes + 1) + thread))
            mixed[thread] = total
        cute.arch.sync_threads()
        if warp == 0:
            rho = ptx.rsqrt(mixed[mixes] * (1.0 / (count * hidden)) + norm_eps)
            if lane < count:
                z = mixed[lane] * rho * ptx.load_f32(site_scale) + ptx.load_f32(base + lane)
                pre[lane] = ptx.sigmoid(z) + eps
            if const_expr(not is_head):
                if lane < count:
                    z = mixed[count + lane] * rho * ptx.load_f32(site_scale + 1)
                    z = ptx.sigmoid(z + ptx.load_f32(base + count + lane)) * 2.0
                    ptx.store_f32(post + token * count + lane, z)
                cell = 2 * count + lane % (count * count)
                logit = mixed[cell] * rho * ptx.load_f32(site_scale + 2)
                logit += ptx.load_f32(base + cell)
                entry = _sinkhorn(logit, iterations, eps, count)
                if lane < count * count:
                    ptx.store_f32(comb + (token * count * count + lane), entry)
        cute.arch.sync_threads()
        rounds = hidden // threads
        collapsed = cute.make_rmem_tensor((rounds,), Float32)
        total = Float32(0.0)
        for i in cutlass.range(rounds, unroll=4):
            at = i * threads + thread
            u = Float32(0.0)
            for j in range_constexpr(count):
                u += pre[j] * ptx.load_bf16_l2(new_streams + (row + j * hidden + at))
            u = ptx.through_bf16(u)
            collapsed[i] = u
            total += u * u
        part = _warp_sum(total)
        if lane == 0:
            squares[warp] = part
        cute.arch.sync_threads()
        total = Float32(0.0)
        for w in range_constexpr(warps):
            total += squares[w]
        rho = ptx.rsqrt(total * (1.0 / hidden) + norm_eps)
        for i in cutlass.range(rounds, unroll=4):
            at = i * threads + thread
            ptx.store_bf16(h + token * hidden + at, collapsed[i] * rho * ptx.load_f32(norm + at))


@cute.jit
def boundary(
    streams: cute.Pointer,
    y: cute.Pointer,
    post_in: cute.Pointer,
    comb_in: cute.Pointer,
    fn: cute.Pointer,
    base: cute.Pointer,
    site_scale: cute.Pointer,
    norm: cute.Pointer,
    new_streams: cute.Pointer,
    post: cute.Pointer,
    comb: cute.Pointer,
    h: cute.Pointer,
    parts: cute.Pointer,
    finished: cute.Pointer,
    eps: Float32,
    norm_eps: Float32,
    tokens: Int32,
    stream: cuda.CUstream,
    hidden: cutlass.Constexpr,
    count: cutlass.Constexpr,
    iterations: cutlass.Constexpr,
    expand: cutlass.Constexpr,
    is_head: cutlass.Constexpr,
):
    boundary_kernel(
        streams,
        y,
        post_in,
        comb_in,
        fn,
        base,
        site_scale,
        norm,
        new_streams,
        post,
        comb,
        h,
        parts,
        finished,
        eps,
        norm_eps,
        hidden,
        count,
        iterations,
        expand,
        is_head,
    ).launch(grid=[hidden // CHANNELS, tokens, 1], block=[CHANNELS * count, 1, 1], stream=stream)


def build(options: str, hidden: int, count: int, iterations: int, expand: bool, is_head: bool):
    """Compile without a GPU; pointers are placeholders."""

    def pointer(kind, align):
        return make_ptr(kind, 16, cute.AddressSpace.gmem, assumed_align=align)

    bf16, f32 = pointer(cutlass.BFloat16, 2), pointer(Float32, 4)
    return cute.compile(
        boundary,
        bf16,
        f32,
        f32,
        f32,
        f32,
        f32,
        f32,
        f32,
        bf16,
        f32,
        f32,
        bf16,
        f32,
        pointer(Int32, 4),
        Float32(0.0),
        Float32(0.0),
        Int32(1),
        cuda.CUstream(0),
        hidden,
        count,
        iterations,
        expand,
        is_head,
        options=options,
    )
