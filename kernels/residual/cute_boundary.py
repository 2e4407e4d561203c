"""What stands between two sublayers as one launch: expand, mix, collapse, norm, quantise.

A CTA owns 64 channels of all streams of one token: it puts the last output into them, writes them,
and takes its part of the site's dot products. The CTA that finishes last adds the parts in order;
then one warp makes the mixes of the next boundary (Sinkhorn) while the others collapse the streams,
norm the row and quantise it to NVFP4. Sums run in a fixed order, so results repeat.
Bytes: (2S + S*S) * S * H * 4 + 2 * S * H * 2 + 8 H a token.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, const_expr, range_constexpr
from cutlass.cute.runtime import make_ptr

from kernels import cute_nvfp4 as nvfp4
from kernels import cute_ptx as ptx
from kernels.cute_warp import warp_peak, warp_sum

CHANNELS = 64


@cute.jit
def _mixes(
    mixed: cute.Tensor,
    rho: Float32,
    base: cute.Pointer,
    site_scale: cute.Pointer,
    post: cute.Pointer,
    comb: cute.Pointer,
    eps: Float32,
    count: cutlass.Constexpr,
    iterations: cutlass.Constexpr,
):
    """post and the Sinkhorn-balanced comb of one token, by one warp; every lane holds the whole
    [count, count] matrix, so that no sum needs a shuffle."""
    lane = cute.arch.lane_idx()
    if lane < count:
        z = mixed[count + lane] * rho * ptx.load_f32(site_scale + 1)
        z = ptx.sigmoid(z + ptx.load_f32(base + count + lane)) * 2.0
        ptx.store_f32(post + lane, z)
    scale = ptx.load_f32(site_scale + 2)
    entries = cute.make_rmem_tensor((count * count,), Float32)
    for j in range_constexpr(count):
        row = []
        for k in range_constexpr(count):
            cell = 2 * count + j * count + k
            row.append(mixed[cell] * rho * scale + ptx.load_f32(base + cell))
        peak = row[0]
        for k in range_constexpr(count - 1):
            peak = cutlass.max(peak, row[k + 1])
        for k in range_constexpr(count):
            entries[j * count + k] = ptx.exp(row[k] - peak)
    _balance(entries, 0, count, Float32(0.0))
    for i in range_constexpr(count * count):
        entries[i] = entries[i] + eps
    _balance(entries, 1, count, eps)
    for _ in cutlass.range(iterations - 1):
        _balance(entries, 0, count, eps)
        _balance(entries, 1, count, eps)
    if lane == 0:
        for i in range_constexpr(count * count):
            ptx.store_f32(comb + i, entries[i])


def _balance(entries, axis, count, eps):
    """Divide every row (axis 0) or column (axis 1) by its sum plus eps."""
    for line in range(count):
        at = [line * count + i if axis == 0 else i * count + line for i in range(count)]
        total = entries[at[0]]
        for i in at[1:]:
            total = total + entries[i]
        inverse = ptx.reciprocal(total + eps)
        for i in at:
            entries[i] = entries[i] * inverse


@cute.jit
def _row(
    streams: cute.Pointer,
    pre: cute.Tensor,
    norm: cute.Pointer,
    h: cute.Pointer,
    values: cute.Pointer,
    gsa_out: cute.Pointer,
    flushed: cute.Pointer,
    scratch: cute.Tensor,
    norm_eps: Float32,
    hidden: cutlass.Constexpr,
    count: cutlass.Constexpr,
    threads: cutlass.Constexpr,
):
    """Collapse, norm and quantise one token with `threads` threads; they meet at barrier 1.

    streams: bf16 [count, hidden], written by this launch. scratch: shared [3, threads / 32].
    """
    thread, _, _ = cute.arch.thread_idx()
    lane, warp = thread % 32, thread // 32
    blocks = hidden // nvfp4.BLOCK
    rounds = (blocks + threads - 1) // threads
    rows = []
    total = Float32(0.0)
    for i in range_constexpr(rounds):
        # A thread past the end repeats the last block: it adds nothing and stores nothing.
        block = cutlass.min(Int32(i * threads) + thread, Int32(blocks - 1))
        raw = []
        for j in range_constexpr(count):
            at = streams + (j * hidden + block * nvfp4.BLOCK)
            raw.append((ptx.load_128_l2(at), ptx.load_128_l2(at + 8)))
        sums = [Float32(0.0)] * nvfp4.BLOCK
        for j in range_constexpr(count):
            numbers = nvfp4.block_numbers_bf16(*raw[j])
            sums = [sums[k] + pre[j] * numbers[k] for k in range(nvfp4.BLOCK)]
        part = Float32(0.0)
        for k in range_constexpr(nvfp4.BLOCK):
            sums[k] = ptx.through_bf16(sums[k])
            part += sums[k] * sums[k]
        if Int32(i * threads) + thread < blocks:
            total += part
        rows.append(sums)
    total = warp_sum(total)
    if lane == 0:
        scratch[0, warp] = total
    cute.arch.barrier(barrier_id=1, number_of_threads=threads)
    total = Float32(0.0)
    for w in range_constexpr(threads // 32):
        total += scratch[0, w]
    rho = ptx.rsqrt(total * (1.0 / hidden) + norm_eps)

    peak = Float32(0.0)
    amax = []
    for i in range_constexpr(rounds):
        block = cutlass.min(Int32(i * threads) + thread, Int32(blocks - 1))
        for k in range_constexpr(nvfp4.BLOCK):
            weight = ptx.load_weight_f32(norm + (block * nvfp4.BLOCK + k))
            rows[i][k] = ptx.through_bf16(rows[i][k] * rho * weight)
        amax.append(nvfp4.block_peak(rows[i]))
        peak = ptx.max_magnitude(peak, amax[i])
    peak = warp_peak(peak)
    if lane == 0:
        scratch[1, warp] = peak
    cute.arch.barrier(barrier_id=1, number_of_threads=threads)
    for w in range_constexpr(threads // 32):
        peak = ptx.max_magnitude(peak, scratch[1, w])
    gsa = ptx.divide(peak, Float32(nvfp4.GSA_DIVISOR))

    under = Int32(0)
    for i in range_constexpr(rounds):
        block = Int32(i * threads) + thread
        scale, _, flushes = nvfp4.block_scale(amax[i], gsa)
        packed = nvfp4.quantised_words(rows[i], scale, gsa)
        plain = []
        for k in range_constexpr(nvfp4.BLOCK // 2):
            plain.append(ptx.f32_to_bf16x2(rows[i][2 * k], rows[i][2 * k + 1]))
        if block < blocks:
            first = block * nvfp4.BLOCK
            ptx.store_128(h + first, plain[0], plain[1], plain[2], plain[3])
            ptx.store_128(h + first + 8, plain[4], plain[5], plain[6], plain[7])
            ptx.store_128(values + first, packed[0], packed[1], packed[2], packed[3])
            ptx.store_128(values + first + 8, packed[4], packed[5], packed[6], packed[7])
            under += flushes
    under = warp_sum(under)
    if lane == 0:
        scratch[2, warp] = Float32(under)
    cute.arch.barrier(barrier_id=1, number_of_threads=threads)
    if thread == 0:
        count_under = Float32(0.0)
        for w in range_constexpr(threads // 32):
            count_under += scratch[2, w]
        ptx.store_f32(gsa_out, gsa)
        ptx.store_32(flushed, Int32(count_under))


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
    values: cute.Pointer,
    gsa: cute.Pointer,
    flushed: cute.Pointer,
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
    threads = CHANNELS * count  # and one more warp, for the mixes
    warps = threads // 32
    lane, warp = thread % 32, thread // 32
    mixes = count if const_expr(is_head) else count * (count + 2)
    slices = hidden // CHANNELS
    smem = cutlass.utils.SmemAllocator()
    sums = smem.allocate_tensor(Float32, cute.make_layout((mixes + 1, warps + 1)), 16)
    mixed = smem.allocate_tensor(Float32, cute.make_layout(mixes + 1), 16)
    pre = smem.allocate_tensor(Float32, cute.make_layout(count), 16)
    scratch = smem.allocate_tensor(Float32, cute.make_layout((3, warps)), 16)
    last = smem.allocate_tensor(Int32, cute.make_layout(1), 16)

    # The extra warp repeats the last stream's channels here: the same values to the same places.
    stream = cutlass.min(thread // CHANNELS, Int32(count - 1))
    channel = slice_id * CHANNELS + thread % CHANNELS
    row = token * (count * hidden)
    flat = stream * hidden + channel
    weights = []
    for r in range_constexpr(mixes):
        weights.append(ptx.load_weight_f32(fn + r * (count * hidden) + flat))
    cute.arch.griddepcontrol_launch_dependents()
    cute.arch.griddepcontrol_wait()
    value = Float32(0.0)
    if const_expr(expand):
        olds, factors = [], []
        for j in range_constexpr(count):
            olds.append(ptx.load_bf16(streams + (row + j * hidden + channel)))
            at = token * count * count + j * count + stream
            factors.append(ptx.load_f32(comb_in + at))
        made = ptx.through_bf16(ptx.load_f32(y + token * hidden + channel))
        factor = ptx.load_f32(post_in + token * count + stream)
        for j in range_constexpr(count):
            value += factors[j] * olds[j]
        value = ptx.through_bf16(value + factor * made)
    else:
        value = ptx.load_bf16(streams + (row + flat))
    ptx.store_bf16(new_streams + (row + flat), value)

    products = [value * weights[r] for r in range(mixes)] + [value * value]
    for o in range_constexpr(5):
        for r in range_constexpr(mixes + 1):
            other = cute.arch.shuffle_sync_bfly(products[r], offset=16 >> o)
            products[r] = products[r] + other
    if lane == 0:
        for r in range_constexpr(mixes + 1):
            sums[r, warp] = products[r]
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
        adders = 8 if const_expr(slices % 8 == 0) else count
        column = cutlass.min(thread // adders, Int32(mixes))
        loaded = []
        for i in range_constexpr(slices // adders):
            part = token * slices + i * adders + thread % adders
            loaded.append(ptx.load_f32_l2(parts + (part * (mixes + 1) + column)))
        total = Float32(0.0)
        for i in range_constexpr(slices // adders):
            total += loaded[i]
        for o in range_constexpr(adders.bit_length() - 1):
            total += cute.arch.shuffle_sync_bfly(total, offset=1 << o)
        if thread < (mixes + 1) * adders and thread % adders == 0:
            mixed[column] = total
        cute.arch.sync_threads()
        rho = ptx.rsqrt(mixed[mixes] * (1.0 / (count * hidden)) + norm_eps)
        if warp < warps:
            if lane < count:
                z = mixed[lane] * rho * ptx.load_f32(site_scale) + ptx.load_f32(base + lane)
                pre[lane] = ptx.sigmoid(z) + eps
            cute.arch.barrier(barrier_id=1, number_of_threads=threads)
            _row(
                new_streams + row,
                pre,
                norm,
                h + token * hidden,
                values + token * hidden,
                gsa + token,
                flushed + token,
                scratch,
                norm_eps,
                hidden,
                count,
                threads,
            )
        if const_expr(not is_head):
            if warp == warps:
                _mixes(
                    mixed,
                    rho,
                    base,
                    site_scale,
                    post + token * count,
                    comb + token * count * count,
                    eps,
                    count,
                    iterations,
                )


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
    values: cute.Pointer,
    gsa: cute.Pointer,
    flushed: cute.Pointer,
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
        streams, y, post_in, comb_in, fn, base, site_scale, norm, new_streams, post, comb, h,
        values, gsa, flushed, parts, finished, eps, norm_eps, hidden, count, iterations, expand,
        is_head,
    ).launch(
        grid=[hidden // CHANNELS, tokens, 1], block=[CHANNELS * count + 32, 1, 1], stream=stream
    )  # fmt: skip


def build(options: str, **static):
    """Compile without a GPU; pointers are placeholders."""

    def pointer(kind, align=4):
        return make_ptr(kind, 16, cute.AddressSpace.gmem, assumed_align=align)

    f32, bf16 = pointer(Float32), pointer(cutlass.BFloat16, 2)
    row = pointer(cutlass.BFloat16, 16)
    names = ("hidden", "count", "iterations", "expand", "is_head")
    return cute.compile(
        boundary, bf16, f32, f32, f32, f32, f32, f32, f32, row, f32, f32, row, row, f32,
        pointer(Int32), f32, pointer(Int32), Float32(0.0), Float32(0.0), Int32(1),
        cuda.CUstream(0), *[static[name] for name in names], options=options,
    )  # fmt: skip
