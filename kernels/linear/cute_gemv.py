"""NVFP4 linear for 1 to 8 rows: the weights are read once, from the checkpoint's own layout.

A CTA makes `tiles` times 16 outputs of one group for all rows; `warps` warps share a tile, each
with 128-wide chunks of K. Every weight and scale of a warp is requested before the activations are
waited for. Activations go through shared memory in the decoder's order. fp32 accumulation, reduced
over warps in a fixed order: results repeat bit for bit.
Bytes: N * K * 9/16 + rows * (2 K + 4 N). K must be a multiple of 128; N may be anything.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int16, Int32, Int64, const_expr, range_constexpr
from cutlass.cute.runtime import make_ptr

from kernels import cute_fp4 as fp4
from kernels import cute_ptx as ptx


@cute.kernel
def gemv_kernel(
    weight: cute.Pointer,
    scale: cute.Pointer,
    scale_2: cute.Pointer,
    values: cute.Pointer,
    gsa: cute.Pointer,
    out: cute.Pointer,
    rows_out: cutlass.Constexpr,
    columns: cutlass.Constexpr,
    groups: cutlass.Constexpr,
    tokens: cutlass.Constexpr,
    warps: cutlass.Constexpr,
    tiles: cutlass.Constexpr,
    tile_scales: cutlass.Constexpr,
):
    thread, _, _ = cute.arch.thread_idx()
    block, group, _ = cute.arch.block_idx()
    lane, warp, local = thread % 32, thread // 32 % warps, thread // 32 // warps
    tile = block * tiles + local
    threads = warps * tiles * 32
    g, t = lane // 4, lane % 4
    chunks = columns // fp4.CHUNK // warps
    stride = columns // 2 + 4  # words of one staged row; the pad keeps rows off each other's banks

    smem = cutlass.utils.SmemAllocator()
    staged = smem.allocate_array(Int32, tokens * stride)
    partial = smem.allocate_tensor(
        Float32, cute.make_layout((tiles * warps, tokens * 16), stride=(tokens * 16, 1)), 16
    )

    words, scales = [], []
    for half in range_constexpr(2):
        row = cutlass.min(tile * 16 + g + 8 * half, Int32(rows_out - 1))
        base = Int64(group * rows_out + row)
        for c in range_constexpr(chunks):
            k = (c * warps + warp) * fp4.CHUNK
            words.append(ptx.load_weight_128(weight + base * (columns // 8) + (k // 8 + t * 4)))
            scales.append(ptx.load_weight_16(scale + base * (columns // 32) + (k // 32 + t)))

    cute.arch.griddepcontrol_launch_dependents()
    cute.arch.griddepcontrol_wait()
    for token in range_constexpr(tokens):
        source = values + Int64(token * groups + group) * (columns // 2)
        for i in range_constexpr((columns // 8 + threads - 1) // threads):
            part = i * threads + thread
            if part < columns // 8:
                v = ptx.load_128(source + part * 4)
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
            partial[local * warps + warp, token * 16 + g] = acc[0][column] + acc[1][column]
            partial[local * warps + warp, token * 16 + g + 8] = (
                acc[0][2 + column] + acc[1][2 + column]
            )
    cute.arch.sync_threads()
    for i in range_constexpr((tokens * 16 * tiles + threads - 1) // threads):
        index = i * threads + thread
        which, place = index // (tokens * 16), index % (tokens * 16)
        token, row = place // 16, (block * tiles + which) * 16 + place % 16
        if which < tiles and row < rows_out:
            total = Float32(0.0)
            for w in range_constexpr(warps):
                total += partial[which * warps + w, place]
            part = block * tiles + which if const_expr(tile_scales) else Int32(0)
            factor = ptx.load_f32(gsa + token * groups + group) * ptx.load_f32(scale_2 + part)
            ptx.store_f32(
                out + (token * groups + group) * rows_out + row,
                total * fp4.PRODUCT_SCALE * factor,
            )


@cute.jit
def gemv(
    weight: cute.Pointer,
    scale: cute.Pointer,
    scale_2: cute.Pointer,
    values: cute.Pointer,
    gsa: cute.Pointer,
    out: cute.Pointer,
    stream: cuda.CUstream,
    rows_out: cutlass.Constexpr,
    columns: cutlass.Constexpr,
    groups: cutlass.Constexpr,
    tokens: cutlass.Constexpr,
    warps: cutlass.Constexpr,
    tiles: cutlass.Constexpr,
    tile_scales: cutlass.Constexpr,
):
    gemv_kernel(
        weight,
        scale,
        scale_2,
        values,
        gsa,
        out,
        rows_out,
        columns,
        groups,
        tokens,
        warps,
        tiles,
        tile_scales,
    ).launch(
        grid=[(rows_out + 16 * tiles - 1) // (16 * tiles), groups, 1],
        block=[warps * tiles * 32, 1, 1],
        stream=stream,
    )


def build(options: str, **static):
    """Compile without a GPU; pointers are placeholders."""

    def pointer(kind, align):
        return make_ptr(kind, 16, cute.AddressSpace.gmem, assumed_align=align)

    names = ("rows_out", "columns", "groups", "tokens", "warps", "tiles", "tile_scales")
    return cute.compile(
        gemv, pointer(Int32, 16), pointer(Int16, 2), pointer(Float32, 4), pointer(Int32, 16),
        pointer(Float32, 4), pointer(Float32, 4), cuda.CUstream(0),
        *[static[name] for name in names], options=options,
    )  # fmt: skip
