"""One layer's part of the tap record in one launch of three CTAs: what each site quantised and
where the router sent the token; where the attention went; the residual streams.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr, range_constexpr
from cutlass.cute.arch import inline_ptx
from cutlass.cute.runtime import make_ptr

from kernels import cute_ptx as ptx
from kernels.cute_warp import (
    LOWEST,
    block_sum,
    block_take,
    warp_add_int,
    warp_max_int,
    warp_min_int,
)

THREADS = 256
WARPS = THREADS // 32
MOST_ROWS = 32  # of one site
_NAN = 0x7FC00000


def _magnitude(value):
    """An int32 that orders magnitudes, NaN last."""
    return inline_ptx(
        "and.b32 {$w0}, {$r0}, 0x7FFFFFFF;", write_only_types=[Int32], read_only_args=[value]
    )


@cute.jit
def _site(
    site: Int32,
    count: Int32,
    live: cute.Pointer,
    gsa: cute.Pointer,
    saturated: cute.Pointer,
    saturated_stride: Int32,
    flushed: cute.Pointer,
    gsa_used: cute.Pointer,
    gsa_live: cute.Pointer,
    saturated_out: cute.Pointer,
    flushed_out: cute.Pointer,
):
    """One warp: the row with the largest gsa, the first of equals, and the counts of all."""
    lane = cute.arch.lane_idx()
    key = Int32(-1)
    over = Int32(0)
    under = Int32(0)
    if lane < count:
        key = _magnitude(ptx.load_f32(live + lane))
        over = ptx.load_32(saturated + lane * saturated_stride)
        under = ptx.load_32(flushed + lane)
    most = warp_max_int(key)
    winner = Int32(32)
    if key == most:
        winner = lane
    winner = warp_min_int(winner)
    over = warp_add_int(over)
    under = warp_add_int(under)
    if lane == 0 and count > 0:
        ptx.store_32(gsa_live + site, most)
        ptx.store_f32(gsa_used + site, ptx.load_f32(gsa + winner))
        ptx.store_32(saturated_out + site, over)
        ptx.store_32(flushed_out + site, under)


@cute.jit
def _attention(
    shares: cute.Pointer,
    ids: cute.Pointer,
    position: cute.Pointer,
    sink_mass: cute.Pointer,
    window_mass: cute.Pointer,
    compressed_mass: cute.Pointer,
    visible_blocks: cute.Pointer,
    block_ids: cute.Pointer,
    scratch: cute.Tensor,
    picks: cute.Tensor,
    heads: cutlass.Constexpr,
    window: cutlass.Constexpr,
    extra: cutlass.Constexpr,
    ratio: cutlass.Constexpr,
    has_ids: cutlass.Constexpr,
    top: cutlass.Constexpr,
):
    """The block: means over the heads, and the heaviest compressed rows."""
    thread, _, _ = cute.arch.thread_idx()
    width = window + extra + 1
    own = (extra + THREADS - 1) // THREADS
    near = Float32(0.0)
    for i in range_constexpr((window + THREADS - 1) // THREADS):
        row = i * THREADS + thread
        if row < window:
            for head in cutlass.range(heads, unroll=8):
                near += ptx.load_f32(shares + head * width + row)
    far = Float32(0.0)
    keys = cute.make_rmem_tensor((max(own, 1),), Int32)
    keys[0] = Int32(LOWEST)
    for i in range_constexpr(own):
        row = i * THREADS + thread
        total = Float32(0.0)
        keys[i] = Int32(LOWEST)
        if row < extra:
            for head in cutlass.range(heads, unroll=8):
                total += ptx.load_f32(shares + head * width + window + row)
            mean = total / Float32(heads)
            keys[i] = _magnitude(mean)
        far += total
    sink = Float32(0.0)
    for i in range_constexpr((heads + THREADS - 1) // THREADS):
        head = i * THREADS + thread
        if head < heads:
            sink += ptx.load_f32(shares + head * width + width - 1)
    near = block_sum(near, scratch, WARPS) / Float32(heads)
    far = block_sum(far, scratch, WARPS) / Float32(heads)
    sink = block_sum(sink, scratch, WARPS) / Float32(heads)
    if thread == 0:
        ptx.store_f32(sink_mass, sink)
        ptx.store_f32(window_mass, near)
        ptx.store_f32(compressed_mass, far)
        ended = Int32(0)
        if const_expr(ratio > 0):
            ended = (ptx.load_i64_low_at(position) + 1) // ratio
        ptx.store_32(visible_blocks, ended)
    for turn in cutlass.range(top):
        key, row = block_take(keys, picks, turn, max(own, 1), WARPS)
        if thread == 0:
            block = Int32(-1)
            if key > 0:
                block = row
                if const_expr(has_ids):
                    block = ptx.load_i64_low_at(ids + row)
            ptx.store_32(block_ids + turn, block)


@cute.jit
def _streams(
    streams: cute.Pointer,
    layer: Int32,
    norms: cute.Pointer,
    first_bad: cute.Pointer,
    scratch: cute.Tensor,
    count: cutlass.Constexpr,
    hidden: cutlass.Constexpr,
):
    """The block: RMS of each stream; the first layer with a bad one stays in place."""
    thread, _, _ = cute.arch.thread_idx()
    bad = Int32(0)
    for stream in range_constexpr(count):
        total = Float32(0.0)
        for i in cutlass.range((hidden // 8 + THREADS - 1) // THREADS):
            part = i * THREADS + thread
            if part < hidden // 8:
                v = ptx.load_128(streams + (stream * (hidden // 2) + part * 4))
                for j in range_constexpr(4):
                    low, high = ptx.bf16x2_to_f32(v[j])
                    total += low * low + high * high
        norm = cute.math.sqrt(block_sum(total, scratch, WARPS) / Float32(hidden))
        if not norm <= 3e38:
            bad = Int32(1)
        if thread == 0:
            ptx.store_f32(norms + stream, norm)
    if thread == 0:
        before = Int32(-1)
        if layer > 0:
            before = ptx.load_32(first_bad)
        if before < 0 and bad == 1:
            before = layer
        ptx.store_32(first_bad, before)


@cute.kernel
def layer_kernel(
    sites: tuple,
    outputs: tuple,
    routing: tuple,
    attention: tuple,
    streams: cute.Pointer,
    norms: cute.Pointer,
    first_bad: cute.Pointer,
    layer: Int32,
    choices: cutlass.Constexpr,
    heads: cutlass.Constexpr,
    window: cutlass.Constexpr,
    extra: cutlass.Constexpr,
    ratio: cutlass.Constexpr,
    has_ids: cutlass.Constexpr,
    top: cutlass.Constexpr,
    count: cutlass.Constexpr,
    hidden: cutlass.Constexpr,
):
    thread, _, _ = cute.arch.thread_idx()
    role, _, _ = cute.arch.block_idx()
    smem = cutlass.utils.SmemAllocator()
    scratch = smem.allocate_tensor(Float32, cute.make_layout(WARPS), 16)
    picks = smem.allocate_tensor(
        Int32, cute.make_layout((2, 2, WARPS), stride=(2 * WARPS, WARPS, 1)), 16
    )
    cute.arch.griddepcontrol_launch_dependents()
    cute.arch.griddepcontrol_wait()
    if role == 0:
        for site in range_constexpr(len(sites)):
            if thread // 32 == site % WARPS:
                _site(Int32(site), *sites[site], *outputs)
        expert_ids, weights, margin, ids_out, weights_out, margin_out = routing
        if thread < choices:
            ptx.store_32(ids_out + thread, ptx.load_i64_low_at(expert_ids + thread))
            ptx.store_f32(weights_out + thread, ptx.load_f32(weights + thread))
        if thread == 0:
            ptx.store_f32(margin_out, ptx.load_f32(margin))
    if role == 1:
        _attention(*attention, scratch, picks, heads, window, extra, ratio, has_ids, top)
    if role == 2:
        _streams(streams, layer, norms, first_bad, scratch, count, hidden)


@cute.jit
def record(
    sites: tuple,
    outputs: tuple,
    routing: tuple,
    attention: tuple,
    streams: cute.Pointer,
    norms: cute.Pointer,
    first_bad: cute.Pointer,
    layer: Int32,
    stream: cuda.CUstream,
    choices: cutlass.Constexpr,
    heads: cutlass.Constexpr,
    window: cutlass.Constexpr,
    extra: cutlass.Constexpr,
    ratio: cutlass.Constexpr,
    has_ids: cutlass.Constexpr,
    top: cutlass.Constexpr,
    count: cutlass.Constexpr,
    hidden: cutlass.Constexpr,
):
    layer_kernel(
        sites, outputs, routing, attention, streams, norms, first_bad, layer, choices, heads,
        window, extra, ratio, has_ids, top, count, hidden,
    ).launch(grid=[3, 1, 1], block=[THREADS, 1, 1], stream=stream)  # fmt: skip


def build(options: str, sites: int, **static):
    """Compile without a GPU; pointers are placeholders."""

    def pointer(kind, align):
        return make_ptr(kind, 16, cute.AddressSpace.gmem, assumed_align=align)

    f32, word, i64 = pointer(Float32, 4), pointer(Int32, 4), pointer(Int64, 8)
    a_site = (Int32(1), f32, f32, word, Int32(1), word)
    names = ("choices", "heads", "window", "extra", "ratio", "has_ids", "top", "count", "hidden")
    return cute.compile(
        record, (a_site,) * sites, (f32, word, word, word), (i64, f32, f32, word, f32, f32),
        (f32, i64, i64, f32, f32, f32, word, word), pointer(Int32, 16), f32, word, Int32(0),
        cuda.CUstream(0), *[static[name] for name in names], options=options,
    )  # fmt: skip
