"""Attention of up to 8 queries over the window ring, themselves and compressed rows, with a sink.

A CTA takes 4 heads of one query. Pass one: warps walk over the rows, each lane holding its part of
the four queries, and leave scores in shared memory. Then one softmax with the sink. Pass two: a
thread owns some channels and adds the rows by weight. Rows that are not visible are skipped. The
output's rotary dims turn back by the query's own phases. CTAs of head group 0 also store the new KV
row: its slot is outside the window that any query of this launch reads.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr, range_constexpr
from cutlass.cute.runtime import make_ptr

from kernels import cute_ptx as ptx

THREADS = 256
HEADS = 4
_HIDDEN = -1e30


@cute.kernel
def attend_kernel(
    q: cute.Pointer,
    kv: cute.Pointer,
    ring: cute.Pointer,
    position: cute.Pointer,
    compressed: cute.Pointer,
    visible: cute.Pointer,
    sink: cute.Pointer,
    cos: cute.Pointer,
    sin: cute.Pointer,
    out: cute.Pointer,
    shares: cute.Pointer,
    heads: cutlass.Constexpr,
    dim: cutlass.Constexpr,
    rope: cutlass.Constexpr,
    window: cutlass.Constexpr,
    ring_rows: cutlass.Constexpr,
    extra: cutlass.Constexpr,
    per_query: cutlass.Constexpr,
    tap: cutlass.Constexpr,
):
    thread, _, _ = cute.arch.thread_idx()
    group, token, _ = cute.arch.block_idx()
    lane, warp = thread % 32, thread // 32
    warps = THREADS // 32
    rows = window + extra
    words = dim // 64  # 32-bit words of a row in one lane
    smem = cutlass.utils.SmemAllocator()
    scores = smem.allocate_tensor(Float32, cute.make_layout((HEADS, rows), stride=(rows, 1)), 16)
    first = ptx.load_i64_low_at(position)  # of the launch's first token
    here = first + token

    query = []
    for head in range_constexpr(HEADS):
        source = q + ((token * heads + group * HEADS + head) * (dim // 2) + lane * words)
        for w in range_constexpr(words):
            query.extend(ptx.bf16x2_to_f32(ptx.load_32(source + w)))

    for i in cutlass.range((rows + warps - 1) // warps):
        row = i * warps + warp
        if row < rows:
            at = here - window + 1 + row
            seen = at >= 0 and row < window
            source = ring + Int64(at % ring_rows) * (dim // 2)
            if at >= first:
                source = kv + Int64(at - first) * (dim // 2)
            if const_expr(extra > 0):
                if row >= window:
                    index = row - window
                    seen = ptx.load_u8(visible + (token * extra + index)) != 0
                    if const_expr(per_query):
                        index = token * extra + index
                    source = compressed + Int64(index) * (dim // 2)
            sums = cute.make_rmem_tensor((HEADS,), Float32)
            sums.fill(_HIDDEN)
            if seen:
                dots = [Float32(0.0) for _ in range(HEADS)]
                for w in range_constexpr(words):
                    low, high = ptx.bf16x2_to_f32(ptx.load_32(source + lane * words + w))
                    for head in range_constexpr(HEADS):
                        at_q = (head * words + w) * 2
                        dots[head] = dots[head] + query[at_q] * low + query[at_q + 1] * high
                for head in range_constexpr(HEADS):
                    total = dots[head]
                    for o in range_constexpr(5):
                        total = total + cute.arch.shuffle_sync_bfly(total, offset=16 >> o)
                    sums[head] = total * (dim**-0.5)
            if lane == 0:
                for head in range_constexpr(HEADS):
                    scores[head, row] = sums[head]
    cute.arch.sync_threads()

    if warp < HEADS:
        sink_logit = ptx.load_f32(sink + group * HEADS + warp)
        peak = Float32(_HIDDEN)
        for i in cutlass.range((rows + 31) // 32):
            if i * 32 + lane < rows:
                peak = cutlass.max(peak, scores[warp, i * 32 + lane])
        for o in range_constexpr(5):
            peak = cutlass.max(peak, cute.arch.shuffle_sync_bfly(peak, offset=16 >> o))
        total = Float32(0.0)
        for i in cutlass.range((rows + 31) // 32):
            if i * 32 + lane < rows:
                weight = ptx.exp(scores[warp, i * 32 + lane] - peak)
                scores[warp, i * 32 + lane] = weight
                total += weight
        for o in range_constexpr(5):
            total += cute.arch.shuffle_sync_bfly(total, offset=16 >> o)
        sink_weight = ptx.exp(sink_logit - peak)
        share = ptx.divide(Float32(1.0), total + sink_weight)
        for i in cutlass.range((rows + 31) // 32):
            if i * 32 + lane < rows:
                weight = scores[warp, i * 32 + lane] * share
                scores[warp, i * 32 + lane] = weight
                if const_expr(tap):
                    at_share = (group * HEADS + warp) * (rows + 1) + i * 32 + lane
                    ptx.store_f32(shares + at_share, weight)
        if const_expr(tap):
            if lane == 0:
                at_share = (group * HEADS + warp) * (rows + 1) + rows
                ptx.store_f32(shares + at_share, sink_weight * share)
    cute.arch.sync_threads()

    for pair in range_constexpr((dim // 2 + THREADS - 1) // THREADS):
        word = pair * THREADS + thread
        if word < dim // 2:
            low_sum = cute.make_rmem_tensor((HEADS,), Float32)
            high_sum = cute.make_rmem_tensor((HEADS,), Float32)
            low_sum.fill(0.0)
            high_sum.fill(0.0)
            for row in cutlass.range(window, unroll=4):
                at = here - window + 1 + row
                if at >= 0:
                    source = ring + Int64(at % ring_rows) * (dim // 2)
                    if at >= first:
                        source = kv + Int64(at - first) * (dim // 2)
                    low, high = ptx.bf16x2_to_f32(ptx.load_32(source + word))
                    for head in range_constexpr(HEADS):
                        weight = scores[head, row]
                        low_sum[head] = low_sum[head] + weight * low
                        high_sum[head] = high_sum[head] + weight * high
            for index in cutlass.range(extra, unroll=4):
                if ptx.load_u8(visible + (token * extra + index)) != 0:
                    at_row = index
                    if const_expr(per_query):
                        at_row = token * extra + index
                    source = compressed + Int64(at_row) * (dim // 2)
                    low, high = ptx.bf16x2_to_f32(ptx.load_32(source + word))
                    for head in range_constexpr(HEADS):
                        weight = scores[head, window + index]
                        low_sum[head] = low_sum[head] + weight * low
                        high_sum[head] = high_sum[head] + weight * high
            turn = word - (dim - rope) // 2
            for head in range_constexpr(HEADS):
                even, odd = ptx.through_bf16(low_sum[head]), ptx.through_bf16(high_sum[head])
                if turn >= 0:
                    c = ptx.load_f32(cos + (token * (rope // 2) + turn))
                    s = ptx.load_f32(sin + (token * (rope // 2) + turn))
                    even, odd = even * c + odd * s, odd * c - even * s
                target = (token * heads + group * HEADS + head) * (dim // 2) + word
                ptx.store_32(out + target, ptx.f32_to_bf16x2(even, odd))
            if group == 0:
                slot = Int64(here % ring_rows) * (dim // 2)
                ptx.store_32(ring + slot + word, ptx.load_32(kv + (token * (dim // 2) + word)))


@cute.jit
def attend(
    q: cute.Pointer,
    kv: cute.Pointer,
    ring: cute.Pointer,
    position: cute.Pointer,
    compressed: cute.Pointer,
    visible: cute.Pointer,
    sink: cute.Pointer,
    cos: cute.Pointer,
    sin: cute.Pointer,
    out: cute.Pointer,
    shares: cute.Pointer,
    tokens: Int32,
    stream: cuda.CUstream,
    heads: cutlass.Constexpr,
    dim: cutlass.Constexpr,
    rope: cutlass.Constexpr,
    window: cutlass.Constexpr,
    ring_rows: cutlass.Constexpr,
    extra: cutlass.Constexpr,
    per_query: cutlass.Constexpr,
    tap: cutlass.Constexpr,
):
    attend_kernel(
        q,
        kv,
        ring,
        position,
        compressed,
        visible,
        sink,
        cos,
        sin,
        out,
        shares,
        heads,
        dim,
        rope,
        window,
        ring_rows,
        extra,
        per_query,
        tap,
    ).launch(grid=[heads // HEADS, tokens, 1], block=[THREADS, 1, 1], stream=stream)


def build(options: str, **static):
    """Compile without a GPU; pointers are placeholders."""

    def pointer(kind, align):
        return make_ptr(kind, 16, cute.AddressSpace.gmem, assumed_align=align)

    word, f32 = pointer(Int32, 4), pointer(Float32, 4)
    position, mask = pointer(cutlass.Int64, 8), pointer(cutlass.Uint8, 1)
    names = ("heads", "dim", "rope", "window", "ring_rows", "extra", "per_query", "tap")
    return cute.compile(
        attend,
        word,
        word,
        word,
        position,
        word,
        mask,
        f32,
        f32,
        f32,
        word,
        f32,
        Int32(1),
        cuda.CUstream(0),
        *[static[name] for name in names],
        options=options,
    )
