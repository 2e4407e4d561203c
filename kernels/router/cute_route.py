"""Routing on the device: scores, top-k and mixing weights of a row in one warp, and the fused
router.

`topk` routes logits that another kernel made. `fused` makes them too: CTAs of 16 experts each
compute their logits, and the CTA that finishes last routes the rows, so that one launch does both.
The choice follows `reference.route`: rank by score + bias, equal ranks to the lowest id, a NaN
logit last, weights from the scores alone.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int16, Int32, Int64, range_constexpr
from cutlass.cute.runtime import make_ptr

from kernels import cute_fp4 as fp4
from kernels import cute_ptx as ptx

_UNRANKED = 1e30
_TAKEN = -3e38


@cute.jit
def _route_row(
    logits: cute.Pointer,
    bias: cute.Pointer,
    ids: cute.Pointer,
    weights: cute.Pointer,
    margin: cute.Pointer,
    scores: cute.Tensor,
    picked: cute.Tensor,
    route_scale: Float32,
    experts: cutlass.Constexpr,
    choices: cutlass.Constexpr,
):
    """Route one row with the calling warp.

    logits: global pointer to [E]. scores: shared [E] scratch; picked: shared [3, K + 1] scratch for
    id, score and rank of each round.
    """
    lane = cute.arch.lane_idx()
    per_lane = (experts + 31) // 32
    ranks = cute.make_rmem_tensor((per_lane,), Float32)
    for j in range_constexpr(per_lane):
        expert = Int32(j * 32) + lane
        ranks[j] = Float32(_TAKEN)
        if expert < experts:
            logit = ptx.load_f32(logits + expert)
            score = ptx.router_score(logit)
            scores[expert] = score
            ranks[j] = ptx.rank(logit, score + ptx.load_f32(bias + expert))
    for choice in cutlass.range(choices + 1):
        best = Float32(_TAKEN)
        winner = Int32(1 << 30)
        for j in range_constexpr(per_lane):
            if ranks[j] > best:
                best = ranks[j]
                winner = Int32(j * 32) + lane
        for o in range_constexpr(5):
            other = cute.arch.shuffle_sync_bfly(best, offset=16 >> o)
            other_id = cute.arch.shuffle_sync_bfly(winner, offset=16 >> o)
            if other > best or (other == best and other_id < winner):
                best = other
                winner = other_id
        for j in range_constexpr(per_lane):
            if winner == Int32(j * 32) + lane:
                ranks[j] = Float32(_TAKEN)
        if lane == 0:
            picked[0, choice] = Float32(winner)  # exact: ids are small
            picked[1, choice] = best
    cute.arch.sync_warp()
    total = Float32(0.0)
    for choice in range_constexpr(choices):
        total += scores[Int32(picked[0, choice])]
    if lane < choices:
        expert = Int32(picked[0, lane])
        weight = ptx.divide(scores[expert], total) * route_scale
        if total <= 0.0:
            weight = Float32(1.0 / choices) * route_scale
        ptx.store_i64(ids + lane, expert)
        ptx.store_f32(weights + lane, weight)
    if lane == 0:
        ptx.store_f32(margin, picked[1, choices - 1] - picked[1, choices])


@cute.kernel
def topk_kernel(
    logits: cute.Pointer,
    bias: cute.Pointer,
    ids: cute.Pointer,
    weights: cute.Pointer,
    margin: cute.Pointer,
    route_scale: Float32,
    experts: cutlass.Constexpr,
    choices: cutlass.Constexpr,
):
    row, _, _ = cute.arch.block_idx()
    cute.arch.griddepcontrol_launch_dependents()
    cute.arch.griddepcontrol_wait()
    smem = cutlass.utils.SmemAllocator()
    scores = smem.allocate_tensor(Float32, cute.make_layout(experts), 16)
    picked = smem.allocate_tensor(Float32, cute.make_layout((2, choices + 1)), 16)
    _route_row(
        logits + row * experts,
        bias,
        ids + row * choices,
        weights + row * choices,
        margin + row,
        scores,
        picked,
        route_scale,
        experts,
        choices,
    )


@cute.kernel
def fused_kernel(
    weight: cute.Pointer,
    scale: cute.Pointer,
    scale_2: cute.Pointer,
    values: cute.Pointer,
    gsa: cute.Pointer,
    bias: cute.Pointer,
    logits: cute.Pointer,
    finished: cute.Pointer,
    ids: cute.Pointer,
    weights: cute.Pointer,
    margin: cute.Pointer,
    route_scale: Float32,
    experts: cutlass.Constexpr,
    columns: cutlass.Constexpr,
    choices: cutlass.Constexpr,
    tokens: cutlass.Constexpr,
    warps: cutlass.Constexpr,
):
    thread, _, _ = cute.arch.thread_idx()
    tile, _, _ = cute.arch.block_idx()
    lane, warp = thread % 32, thread // 32
    g, t = lane // 4, lane % 4
    chunks = columns // fp4.CHUNK // warps
    stride = columns // 2 + 4
    smem = cutlass.utils.SmemAllocator()
    staged = smem.allocate_array(Int32, tokens * stride)
    partial = smem.allocate_tensor(
        Float32, cute.make_layout((warps, tokens, 16), stride=(tokens * 16, 16, 1)), 16
    )
    scores = smem.allocate_tensor(Float32, cute.make_layout(experts), 16)
    picked = smem.allocate_tensor(Float32, cute.make_layout((2, choices + 1)), 16)
    last = smem.allocate_tensor(Int32, cute.make_layout(1), 16)

    words, scales = [], []
    for half in range_constexpr(2):
        row = cutlass.min(tile * 16 + g + 8 * half, Int32(experts - 1))
        for c in range_constexpr(chunks):
            k = (c * warps + warp) * fp4.CHUNK
            base = Int64(row)
            words.append(ptx.load_weight_128(weight + base * (columns // 8) + (k // 8 + t * 4)))
            scales.append(ptx.load_weight_16(scale + base * (columns // 32) + (k // 32 + t)))
    cute.arch.griddepcontrol_launch_dependents()
    cute.arch.griddepcontrol_wait()
    for token in range_constexpr(tokens):
        for i in range_constexpr((columns // 8 + warps * 32 - 1) // (warps * 32)):
            part = i * (warps * 32) + thread
            if part < columns // 8:
                v = ptx.load_128(values + (token * (columns // 2) + part * 4))
                fp4.store_shared_128(staged + (token * stride + part * 4), fp4.interleave8(v))
    cute.arch.sync_threads()
    mine = cutlass.min(g, Int32(tokens - 1)) * stride
    acc = [(Float32(0.0),) * 4, (Float32(0.0),) * 4]
    for c in range_constexpr(chunks):
        k = (c * warps + warp) * fp4.CHUNK
        acc = fp4.chunk_products(
            words[c],
            words[chunks + c],
            scales[c],
            scales[chunks + c],
            staged + (mine + k // 2 + t * 16),
            acc,
        )
    for column in range_constexpr(2):
        token = t * 2 + column
        if token < tokens:
            partial[warp, token, g] = acc[0][column] + acc[1][column]
            partial[warp, token, g + 8] = acc[0][2 + column] + acc[1][2 + column]
    cute.arch.sync_threads()
    for i in range_constexpr((tokens * 16 + warps * 32 - 1) // (warps * 32)):
        index = i * (warps * 32) + thread
        token, row = index // 16, tile * 16 + index % 16
        if token < tokens and row < experts:
            total = Float32(0.0)
            for w in range_constexpr(warps):
                total += partial[w, token, index % 16]
            factor = ptx.load_f32(gsa + token) * ptx.load_f32(scale_2)
            ptx.store_f32(logits + (token * experts + row), total * fp4.PRODUCT_SCALE * factor)
    ptx.fence_device()
    cute.arch.sync_threads()
    if thread == 0:
        # The counter wraps to 0 with the last CTA: ready for the next launch.
        last[0] = ptx.atomic_inc(finished, Int32((experts + 15) // 16 - 1))
    cute.arch.sync_threads()
    if last[0] == (experts + 15) // 16 - 1 and warp == 0:
        ptx.fence_device()
        for token in range_constexpr(tokens):
            _route_row(
                logits + token * experts,
                bias,
                ids + token * choices,
                weights + token * choices,
                margin + token,
                scores,
                picked,
                route_scale,
                experts,
                choices,
            )


@cute.jit
def topk(
    logits: cute.Pointer,
    bias: cute.Pointer,
    ids: cute.Pointer,
    weights: cute.Pointer,
    margin: cute.Pointer,
    route_scale: Float32,
    rows: Int32,
    stream: cuda.CUstream,
    experts: cutlass.Constexpr,
    choices: cutlass.Constexpr,
):
    topk_kernel(logits, bias, ids, weights, margin, route_scale, experts, choices).launch(
        grid=[rows, 1, 1], block=[32, 1, 1], stream=stream
    )


@cute.jit
def fused(
    weight: cute.Pointer,
    scale: cute.Pointer,
    scale_2: cute.Pointer,
    values: cute.Pointer,
    gsa: cute.Pointer,
    bias: cute.Pointer,
    logits: cute.Pointer,
    finished: cute.Pointer,
    ids: cute.Pointer,
    weights: cute.Pointer,
    margin: cute.Pointer,
    route_scale: Float32,
    stream: cuda.CUstream,
    experts: cutlass.Constexpr,
    columns: cutlass.Constexpr,
    choices: cutlass.Constexpr,
    tokens: cutlass.Constexpr,
    warps: cutlass.Constexpr,
):
    fused_kernel(
        weight,
        scale,
        scale_2,
        values,
        gsa,
        bias,
        logits,
        finished,
        ids,
        weights,
        margin,
        route_scale,
        experts,
        columns,
        choices,
        tokens,
        warps,
    ).launch(grid=[(experts + 15) // 16, 1, 1], block=[warps * 32, 1, 1], stream=stream)


def build(options: str, kind: str, **static):
    """Compile `topk` or `fused` without a GPU; pointers are placeholders."""

    def pointer(kind, align=4):
        return make_ptr(kind, 16, cute.AddressSpace.gmem, assumed_align=align)

    f32 = pointer(Float32)
    outputs = [pointer(Int64, 8), f32, f32, Float32(1.0)]
    stream = cuda.CUstream(0)
    if kind == "topk":
        constants = [static[name] for name in ("experts", "choices")]
        return cute.compile(topk, f32, f32, *outputs, Int32(1), stream, *constants, options=options)
    names = ("experts", "columns", "choices", "tokens", "warps")
    constants = [static[name] for name in names]
    inputs = [pointer(Int32, 16), pointer(Int16, 2), f32, pointer(Int32, 16), f32, f32, f32]
    return cute.compile(
        fused, *inputs, pointer(Int32), *outputs, stream, *constants, options=options
    )
