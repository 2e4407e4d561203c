"""Index scores of all visible blocks: sum over heads of weight * relu(query . key), in one pass.

Tensor cores: 16 heads as A, 8 keys as B. A warp takes 16 keys, which it reads once, straight into
registers; the queries stay in shared memory. Which k a slot of the MMA means is free as long as A
and B agree, so a lane uses 8 neighbours. CTAs beyond the visible blocks do nothing: the cost grows
as the context does. Bytes: 2 D a visible key.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, range_constexpr
from cutlass.cute.runtime import make_ptr

from kernels import cute_fp4 as fp4
from kernels import cute_ptx as ptx

THREADS = 128
KEYS = 64  # of a CTA
PAD = 16


@cute.kernel
def scores_kernel(
    q: cute.Pointer,
    head_weights: cute.Pointer,
    keys: cute.Pointer,
    position: cute.Pointer,
    scores: cute.Pointer,
    heads: cutlass.Constexpr,
    dim: cutlass.Constexpr,
    count: cutlass.Constexpr,
    ratio: cutlass.Constexpr,
):
    thread, _, _ = cute.arch.thread_idx()
    block, token, _ = cute.arch.block_idx()
    lane, warp = thread % 32, thread // 32
    g, t = lane // 4, lane % 4
    words = dim // 2
    stride = words + PAD
    tiles = (heads + 15) // 16
    smem = cutlass.utils.SmemAllocator()
    staged = smem.allocate_array(Int32, tiles * 16 * stride)
    weights = smem.allocate_tensor(Float32, cute.make_layout(tiles * 16), 16)
    cute.arch.griddepcontrol_launch_dependents()
    cute.arch.griddepcontrol_wait()
    visible = (ptx.load_i64_low_at(position) + token + 1) // ratio
    if block * KEYS < visible:
        own = []
        for n in range_constexpr(2):
            key = cutlass.min(block * KEYS + warp * 16 + n * 8 + g, Int32(count - 1))
            line = keys + Int64(key) * words + t * 4
            own.append([ptx.load_128(line + s * 16) for s in range(dim // 32)])
        vectors = tiles * 16 * (words // 4)
        for i in range_constexpr((vectors + THREADS - 1) // THREADS):
            at = i * THREADS + thread
            if at < vectors:
                row, column = at // (words // 4), at % (words // 4)
                head = cutlass.min(row, Int32(heads - 1))
                v = ptx.load_128(q + ((token * heads + head) * words + column * 4))
                fp4.store_shared_128(staged + (row * stride + column * 4), v)
        for i in range_constexpr((tiles * 16 + THREADS - 1) // THREADS):
            head = i * THREADS + thread
            if head < tiles * 16:
                weight = Float32(0.0)
                if head < heads:
                    weight = ptx.load_f32(head_weights + (token * heads + head))
                    weight = weight * ((dim * heads) ** -0.5)
                weights[head] = weight
        cute.arch.sync_threads()
        totals = [[Float32(0.0), Float32(0.0)], [Float32(0.0), Float32(0.0)]]
        for m in range_constexpr(tiles):
            acc = [(Float32(0.0),) * 4, (Float32(0.0),) * 4]
            for s in range_constexpr(dim // 32):
                u = fp4.load_shared_128(staged + ((m * 16 + g) * stride + s * 16 + t * 4))
                v = fp4.load_shared_128(staged + ((m * 16 + g + 8) * stride + s * 16 + t * 4))
                for n in range_constexpr(2):
                    b = own[n][s]
                    acc[n] = fp4.mma((u[0], v[0], u[1], v[1]), b[0], b[1], acc[n])
                    acc[n] = fp4.mma((u[2], v[2], u[3], v[3]), b[2], b[3], acc[n])
            low, high = weights[m * 16 + g], weights[m * 16 + g + 8]
            for n in range_constexpr(2):
                for c in range_constexpr(2):
                    part = low * cutlass.max(acc[n][c], Float32(0.0))
                    part += high * cutlass.max(acc[n][2 + c], Float32(0.0))
                    totals[n][c] = totals[n][c] + part
        for n in range_constexpr(2):
            for c in range_constexpr(2):
                for o in range_constexpr(3):
                    other = cute.arch.shuffle_sync_bfly(totals[n][c], offset=4 << o)
                    totals[n][c] = totals[n][c] + other
            key = block * KEYS + warp * 16 + n * 8 + t * 2
            if g == 0:
                row = scores + Int64(token) * ((count + KEYS - 1) // KEYS * KEYS)
                ptx.store_f32x2(row + key, totals[n][0], totals[n][1])


@cute.jit
def score(
    q: cute.Pointer,
    head_weights: cute.Pointer,
    keys: cute.Pointer,
    position: cute.Pointer,
    scores: cute.Pointer,
    tokens: Int32,
    stream: cuda.CUstream,
    heads: cutlass.Constexpr,
    dim: cutlass.Constexpr,
    count: cutlass.Constexpr,
    ratio: cutlass.Constexpr,
):
    scores_kernel(q, head_weights, keys, position, scores, heads, dim, count, ratio).launch(
        grid=[(count + KEYS - 1) // KEYS, tokens, 1], block=[THREADS, 1, 1], stream=stream
    )


def build(options: str, heads: int, dim: int, count: int, ratio: int):
    """Compile without a GPU; pointers are placeholders."""

    def pointer(kind, align=4):
        return make_ptr(kind, 16, cute.AddressSpace.gmem, assumed_align=align)

    word = pointer(Int32)
    return cute.compile(
        score, word, pointer(Float32), word, pointer(Int64, 8), pointer(Float32, 8), Int32(1),
        cuda.CUstream(0), heads, dim, count, ratio, options=options,
    )  # fmt: skip
