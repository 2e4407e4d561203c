"""Linear over bf16 weights for 1 to 8 rows, fp32 out: the projections that are never quantised.

A warp makes one output for all rows: its lanes walk over K in 16-byte steps, two in flight, and add
in registers, then across the warp, in a fixed order. Bytes: 2 N K + rows * (2 K + 4 N). K must be a
multiple of 256.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, range_constexpr
from cutlass.cute.runtime import make_ptr

from kernels import cute_ptx as ptx
from kernels.cute_warp import warp_sum

WARPS = 8
STEP = 256  # numbers a warp takes at once


@cute.kernel
def bf16_kernel(
    x: cute.Pointer,
    weight: cute.Pointer,
    out: cute.Pointer,
    rows_out: cutlass.Constexpr,
    columns: cutlass.Constexpr,
    tokens: cutlass.Constexpr,
):
    thread, _, _ = cute.arch.thread_idx()
    tile, _, _ = cute.arch.block_idx()
    lane, warp = thread % 32, thread // 32
    row = tile * WARPS + warp
    cute.arch.griddepcontrol_launch_dependents()
    cute.arch.griddepcontrol_wait()
    sums = cute.make_rmem_tensor((tokens,), Float32)
    sums.fill(0.0)
    source = weight + Int64(cutlass.min(row, Int32(rows_out - 1))) * (columns // 2) + lane * 4
    for step in cutlass.range(columns // STEP, unroll=4):
        words = ptx.load_weight_128(source + step * (STEP // 2))
        for token in range_constexpr(tokens):
            at = token * (columns // 2) + step * (STEP // 2) + lane * 4
            numbers = ptx.load_128(x + at)
            total = sums[token]
            for j in range_constexpr(4):
                a, b = ptx.bf16x2_to_f32(words[j])
                c, d = ptx.bf16x2_to_f32(numbers[j])
                total = total + a * c + b * d
            sums[token] = total
    for token in range_constexpr(tokens):
        total = sums[token]
        total = warp_sum(total)
        if lane == 0 and row < rows_out:
            ptx.store_f32(out + (token * rows_out + row), total)


@cute.jit
def bf16(
    x: cute.Pointer,
    weight: cute.Pointer,
    out: cute.Pointer,
    stream: cuda.CUstream,
    rows_out: cutlass.Constexpr,
    columns: cutlass.Constexpr,
    tokens: cutlass.Constexpr,
):
    bf16_kernel(x, weight, out, rows_out, columns, tokens).launch(
        grid=[(rows_out + WARPS - 1) // WARPS, 1, 1], block=[WARPS * 32, 1, 1], stream=stream
    )


def build(options: str, rows_out: int, columns: int, tokens: int):
    """Compile without a GPU; pointers are placeholders."""

    def pointer(kind, align):
        return make_ptr(kind, 16, cute.AddressSpace.gmem, assumed_align=align)

    word = pointer(Int32, 16)
    return cute.compile(
        bf16,
        word,
        word,
        pointer(Float32, 4),
        cuda.CUstream(0),
        rows_out,
        columns,
        tokens,
        options=options,
    )
