"""Attention of up to 8 queries over the window ring, themselves and compressed rows, split by rows.

A CTA takes 16 heads of one query and 32 rows: scores on the tensor cores, a softmax of its own
rows, and the weighted sum on the tensor cores again, with each weight as the sum of two bf16 so
that nothing is lost. It leaves an unnormalised output with its peak and mass; `cute_merge` joins
them. Rows that are not visible have no weight, and a CTA without a visible row writes only its
mass, 0. The first CTA also stores the new KV row: its slot is outside the window that any query of
this launch reads.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr, range_constexpr
from cutlass.cute.arch import inline_ptx
from cutlass.cute.runtime import make_ptr

from kernels import cute_fp4 as fp4
from kernels import cute_ptx as ptx

THREADS = 128
HEADS = 16
ROWS = 32
PAD = 20  # words behind each staged row, so that neither access pattern conflicts
_OWN = ROWS // (THREADS // 32)  # rows a warp scores
_HIDDEN = -1e30
_WEIGHT_STRIDE = ROWS // 2 + 4


def _load_transposed(pointer):
    """Four 8x8 bf16 tiles of shared memory, transposed: B fragments of a 16 x 16 piece."""
    return inline_ptx(
        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 { {$w0}, {$w1}, {$w2}, {$w3} }, [{$r0}];",
        write_only_types=[Int32] * 4,
        read_only_args=[pointer],
    )


@cute.jit
def _find_row(
    row: Int32,
    here: Int32,
    first: Int32,
    token: Int32,
    kv: cute.Pointer,
    ring: cute.Pointer,
    compressed: cute.Pointer,
    ids: cute.Pointer,
    chosen: cute.Pointer,
    dim: cutlass.Constexpr,
    window: cutlass.Constexpr,
    ring_rows: cutlass.Constexpr,
    extra: cutlass.Constexpr,
    ratio: cutlass.Constexpr,
    per_query: cutlass.Constexpr,
):
    """-> where row `row` of the query stands, and 1 if it is visible; a hidden one points at kv."""
    flag = Int32(0)
    source = kv
    at = here - window + 1 + row
    index = row - window
    if row < window:
        if at >= 0:
            flag = Int32(1)
            source = ring + Int64(at % ring_rows) * (dim // 2)
            if at >= first:
                source = kv + Int64(at - first) * (dim // 2)
    if const_expr(extra > 0):
        if row >= window and index < extra:
            if const_expr(per_query):
                if ptx.load_u8(chosen + (token * extra + index)) != 0:
                    flag = Int32(1)
                    block = ptx.load_i64_low(ids + (token * extra + index))
                    source = compressed + Int64(block) * (dim // 2)
            else:
                if index < (here + 1) // ratio:
                    flag = Int32(1)
                    source = compressed + Int64(index) * (dim // 2)
    return source, flag


@cute.jit
def _softmax(
    scores: cute.Tensor,
    high: cute.Pointer,
    low: cute.Pointer,
    stats: cute.Pointer,
    shares: cute.Pointer,
    first_head: Int32,
    row: Int32,
    heads: cutlass.Constexpr,
    rows: cutlass.Constexpr,
    tap: cutlass.Constexpr,
):
    """Weights of the CTA's rows relative to their own peak, eight lanes a head."""
    thread, _, _ = cute.arch.thread_idx()
    head, part = thread // 8, thread % 8
    peak = Float32(_HIDDEN)
    for k in range_constexpr(ROWS // 8):
        peak = cutlass.max(peak, scores[head, part * (ROWS // 8) + k])
    for o in range_constexpr(3):
        peak = cutlass.max(peak, cute.arch.shuffle_sync_bfly(peak, offset=1 << o))
    weights = []
    total = Float32(0.0)
    for k in range_constexpr(ROWS // 8):
        weight = ptx.exp(scores[head, part * (ROWS // 8) + k] - peak)
        weights.append(weight)
        total += weight
    for o in range_constexpr(3):
        total += cute.arch.shuffle_sync_bfly(total, offset=1 << o)
    for k in range_constexpr(ROWS // 16):
        a, b = weights[2 * k], weights[2 * k + 1]
        rest_a, rest_b = a - ptx.through_bf16(a), b - ptx.through_bf16(b)
        at = head * _WEIGHT_STRIDE + part * (ROWS // 16) + k
        ptx.store_shared_32(high + at, ptx.f32_to_bf16x2(a, b))
        ptx.store_shared_32(low + at, ptx.f32_to_bf16x2(rest_a, rest_b))
    if first_head + head < heads:
        if part == 0:
            ptx.store_f32x2(stats + (first_head + head) * 2, peak, total)
        if const_expr(tap):
            for k in range_constexpr(ROWS // 8):
                at = row + part * (ROWS // 8) + k
                if at < rows:
                    place = (first_head + head) * (rows + 1) + at
                    ptx.store_f32(shares + place, weights[k])


@cute.kernel
def attend_kernel(
    q: cute.Pointer,
    kv: cute.Pointer,
    ring: cute.Pointer,
    position: cute.Pointer,
    compressed: cute.Pointer,
    ids: cute.Pointer,
    chosen: cute.Pointer,
    partial: cute.Pointer,
    stats: cute.Pointer,
    shares: cute.Pointer,
    heads: cutlass.Constexpr,
    dim: cutlass.Constexpr,
    window: cutlass.Constexpr,
    ring_rows: cutlass.Constexpr,
    extra: cutlass.Constexpr,
    ratio: cutlass.Constexpr,
    per_query: cutlass.Constexpr,
    tap: cutlass.Constexpr,
):
    thread, _, _ = cute.arch.thread_idx()
    group, chunk, token = cute.arch.block_idx()
    lane, warp = thread % 32, thread // 32
    g, t = lane // 4, lane % 4
    rows = window + extra
    chunks = (rows + ROWS - 1) // ROWS
    words = dim // 2
    stride = words + PAD
    smem = cutlass.utils.SmemAllocator()
    queries = smem.allocate_array(Int32, HEADS * stride)
    tile = smem.allocate_array(Int32, ROWS * stride)
    high = smem.allocate_array(Int32, HEADS * _WEIGHT_STRIDE)
    low = smem.allocate_array(Int32, HEADS * _WEIGHT_STRIDE)
    scores = smem.allocate_tensor(
        Float32, cute.make_layout((HEADS, ROWS), stride=(ROWS + 1, 1)), 16
    )
    seen = smem.allocate_tensor(Int32, cute.make_layout(ROWS), 16)
    active = smem.allocate_tensor(Int32, cute.make_layout(THREADS // 32), 16)
    cute.arch.griddepcontrol_launch_dependents()
    cute.arch.griddepcontrol_wait()
    first = ptx.load_i64_low_at(position)  # of the launch's first token
    here = first + token

    passes = (words + 127) // 128
    at_word = [cutlass.min(lane * 4 + p * 128, Int32(words - 4)) for p in range(passes)]
    any_seen = Int32(0)
    held = []
    for r in range_constexpr(_OWN):
        row = chunk * ROWS + warp * _OWN + r
        source, flag = _find_row(
            row, here, first, token, kv, ring, compressed, ids, chosen, dim, window, ring_rows,
            extra, ratio, per_query,
        )  # fmt: skip
        any_seen = any_seen | flag
        seen[warp * _OWN + r] = flag
        for p in range_constexpr(passes):
            held.append(ptx.load_128(source + at_word[p]))
    for r in range_constexpr(HEADS // 4):
        head = cutlass.min(group * HEADS + warp * (HEADS // 4) + r, Int32(heads - 1))
        for p in range_constexpr(passes):
            v = ptx.load_128(q + ((token * heads + head) * words + at_word[p]))
            fp4.store_shared_128(queries + ((warp * (HEADS // 4) + r) * stride + at_word[p]), v)
    for r in range_constexpr(_OWN):
        for p in range_constexpr(passes):
            fp4.store_shared_128(
                tile + ((warp * _OWN + r) * stride + at_word[p]), held[r * passes + p]
            )
    active[warp] = any_seen
    if group == 0 and chunk == 0:
        slot = Int64(here % ring_rows) * words
        if thread * 4 < words:
            new = ptx.load_128(kv + (token * words + thread * 4))
            ptx.store_128(ring + slot + thread * 4, new[0], new[1], new[2], new[3])
    cute.arch.sync_threads()

    place = (token * chunks + chunk) * heads
    if (active[0] | active[1] | active[2] | active[3]) == 0:
        if thread < HEADS and group * HEADS + thread < heads:
            ptx.store_f32x2(
                stats + (place + group * HEADS + thread) * 2, Float32(_HIDDEN), Float32(0.0)
            )
    else:
        acc = [(Float32(0.0),) * 4, (Float32(0.0),) * 4]
        for s in range_constexpr(dim // 32):
            b = fp4.load_shared_128(tile + ((warp * _OWN + g) * stride + s * 16 + t * 4))
            u = fp4.load_shared_128(queries + (g * stride + s * 16 + t * 4))
            v = fp4.load_shared_128(queries + ((g + 8) * stride + s * 16 + t * 4))
            acc[0] = fp4.mma((u[0], v[0], u[1], v[1]), b[0], b[1], acc[0])
            acc[1] = fp4.mma((u[2], v[2], u[3], v[3]), b[2], b[3], acc[1])
        for c in range_constexpr(4):
            row = warp * _OWN + t * 2 + c % 2
            score = (acc[0][c] + acc[1][c]) * (dim**-0.5)
            if seen[row] == 0:
                score = Float32(_HIDDEN)
            scores[g + 8 * (c // 2), row] = score
        cute.arch.sync_threads()
        _softmax(
            scores, high, low, stats + place * 2, shares, group * HEADS, chunk * ROWS, heads, rows,
            tap,
        )  # fmt: skip
        cute.arch.sync_threads()
        a = []
        for weights in (high, low):
            for k in range_constexpr(ROWS // 16):
                lower = weights + (g * _WEIGHT_STRIDE + k * 8 + t)
                upper = lower + 8 * _WEIGHT_STRIDE
                quad = [lower, upper, lower + 4, upper + 4]
                a.append([ptx.load_shared_32(pointer) for pointer in quad])
        own = dim // 4  # dims a warp sums
        for piece in range_constexpr(own // 16):
            sums = [(Float32(0.0),) * 4, (Float32(0.0),) * 4]
            for k in range_constexpr(ROWS // 16):
                line = tile + ((k * 16 + lane % 16) * stride)
                at = (warp * own + piece * 16 + (lane // 16) * 8) // 2
                v = _load_transposed(line + at)
                for part in range_constexpr(2):
                    weight = a[part * (ROWS // 16) + k]
                    sums[0] = fp4.mma(weight, v[0], v[1], sums[0])
                    sums[1] = fp4.mma(weight, v[2], v[3], sums[1])
            for half in range_constexpr(2):
                head = group * HEADS + g + 8 * half
                if head < heads:
                    for n in range_constexpr(2):
                        column = warp * own + piece * 16 + n * 8 + t * 2
                        ptx.store_f32x2(
                            partial + ((place + head) * dim + column),
                            sums[n][2 * half],
                            sums[n][2 * half + 1],
                        )


@cute.jit
def attend(
    q: cute.Pointer,
    kv: cute.Pointer,
    ring: cute.Pointer,
    position: cute.Pointer,
    compressed: cute.Pointer,
    ids: cute.Pointer,
    chosen: cute.Pointer,
    partial: cute.Pointer,
    stats: cute.Pointer,
    shares: cute.Pointer,
    tokens: Int32,
    stream: cuda.CUstream,
    heads: cutlass.Constexpr,
    dim: cutlass.Constexpr,
    window: cutlass.Constexpr,
    ring_rows: cutlass.Constexpr,
    extra: cutlass.Constexpr,
    ratio: cutlass.Constexpr,
    per_query: cutlass.Constexpr,
    tap: cutlass.Constexpr,
):
    attend_kernel(
        q, kv, ring, position, compressed, ids, chosen, partial, stats, shares, heads, dim, window,
        ring_rows, extra, ratio, per_query, tap,
    ).launch(
        grid=[(heads + HEADS - 1) // HEADS, (window + extra + ROWS - 1) // ROWS, tokens],
        block=[THREADS, 1, 1],
        stream=stream,
    )  # fmt: skip


def build(options: str, **static):
    """Compile without a GPU; pointers are placeholders."""

    def pointer(kind, align):
        return make_ptr(kind, 16, cute.AddressSpace.gmem, assumed_align=align)

    word, f32, i64 = pointer(Int32, 4), pointer(Float32, 8), pointer(Int64, 8)
    names = ("heads", "dim", "window", "ring_rows", "extra", "ratio", "per_query", "tap")
    return cute.compile(
        attend, word, word, word, i64, word, i64, pointer(cutlass.Uint8, 1), f32, f32, f32,
        Int32(1), cuda.CUstream(0), *[static[name] for name in names], options=options,
    )  # fmt: skip
