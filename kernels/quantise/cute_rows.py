"""NVFP4 quantisation of activation rows in one launch, gsa on the device.

One CTA of 256 threads takes a row: every thread owns whole 16-blocks, the row's largest magnitude
is reduced through shared memory, then scales and codes are made in registers. Values leave as bf16,
where code times block scale is exact. Reads the row once, writes it once; bit-equal to
`kernels.formats.quantise_nvfp4_rows`.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, const_expr, range_constexpr
from cutlass.cute.runtime import make_ptr

from kernels import cute_ptx as ptx

THREADS = 256
BLOCK = 16


@cute.kernel
def quantise_rows_kernel(
    x: cute.Pointer,
    stored: cute.Pointer,
    values: cute.Pointer,
    used: cute.Pointer,
    live: cute.Pointer,
    saturated: cute.Pointer,
    flushed: cute.Pointer,
    columns: cutlass.Constexpr,
    is_bf16: cutlass.Constexpr,
    from_checkpoint: cutlass.Constexpr,
):
    thread, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    lane, warp = thread % 32, thread // 32
    smem = cutlass.utils.SmemAllocator()
    partial = smem.allocate_tensor(Float32, cute.make_layout(8), byte_alignment=16)
    counts = smem.allocate_tensor(Int32, cute.make_layout((2, 8)), byte_alignment=16)
    rounds = (columns // BLOCK + THREADS - 1) // THREADS
    words = BLOCK // 2 if const_expr(is_bf16) else BLOCK

    held = []
    amax = []
    for i in range_constexpr(rounds):
        # A thread past the end repeats the last block: it changes no maximum and stores nothing.
        block = cutlass.min(Int32(i * THREADS) + thread, Int32(columns // BLOCK - 1))
        base = x + (cutlass.Int64(row) * (columns // BLOCK) + block) * words
        numbers = []
        for part in range_constexpr(words // 4):
            raw = ptx.load_128(base + part * 4)
            for j in range_constexpr(4):
                if const_expr(is_bf16):
                    numbers.extend(ptx.bf16x2_to_f32(raw[j]))
                else:
                    numbers.append(ptx.as_f32(raw[j]))
        largest = Float32(0.0)
        for j in range_constexpr(BLOCK):
            largest = ptx.max_magnitude(largest, numbers[j])
        held.append(numbers)
        amax.append(largest)

    peak = Float32(0.0)
    for i in range_constexpr(rounds):
        peak = ptx.max_magnitude(peak, amax[i])
    for o in range_constexpr(5):
        peak = ptx.max_magnitude(peak, cute.arch.shuffle_sync_bfly(peak, offset=16 >> o))
    if lane == 0:
        partial[warp] = peak
    cute.arch.sync_threads()
    for i in range_constexpr(8):
        peak = ptx.max_magnitude(peak, partial[i])
    gsa_live = ptx.divide(peak, Float32(2688.0))
    gsa = gsa_live
    if const_expr(from_checkpoint):
        gsa = ptx.load_f32(stored + row)

    over = Int32(0)
    under = Int32(0)
    for i in range_constexpr(rounds):
        block = Int32(i * THREADS) + thread
        raw_scale = ptx.divide(amax[i], gsa * 6.0)
        if amax[i] == 0.0:
            raw_scale = Float32(0.0)
        scale = ptx.round_e4m3(raw_scale)
        if block < columns // BLOCK:
            if raw_scale > 464.0:
                over += 1
            if scale == 0.0 and amax[i] > 0.0:
                under += 1
        step = scale * gsa
        packed = []
        for j in range_constexpr(BLOCK // 2):
            pair = []
            for k in range_constexpr(2):
                number = ptx.round_e2m1(ptx.divide(held[i][2 * j + k], step)) * scale
                if step == 0.0:
                    number = Float32(0.0) * scale
                pair.append(number)
            packed.append(ptx.f32_to_bf16x2(pair[0], pair[1]))
        if block < columns // BLOCK:
            target = values + (cutlass.Int64(row) * (columns // BLOCK) + block) * (BLOCK // 2)
            ptx.store_128(target, packed[0], packed[1], packed[2], packed[3])
            ptx.store_128(target + 4, packed[4], packed[5], packed[6], packed[7])
    for o in range_constexpr(5):
        over += cute.arch.shuffle_sync_bfly(over, offset=16 >> o)
        under += cute.arch.shuffle_sync_bfly(under, offset=16 >> o)
    if lane == 0:
        counts[0, warp] = over
        counts[1, warp] = under
    cute.arch.sync_threads()
    if thread == 0:
        over = Int32(0)
        under = Int32(0)
        for i in range_constexpr(8):
            over += counts[0, i]
            under += counts[1, i]
        ptx.store_f32(used + row, gsa)
        ptx.store_f32(live + row, gsa_live)
        ptx.store_32(saturated + row, over)
        ptx.store_32(flushed + row, under)


@cute.jit
def quantise_rows(
    x: cute.Pointer,
    stored: cute.Pointer,
    values: cute.Pointer,
    used: cute.Pointer,
    live: cute.Pointer,
    saturated: cute.Pointer,
    flushed: cute.Pointer,
    rows: Int32,
    stream: cuda.CUstream,
    columns: cutlass.Constexpr,
    is_bf16: cutlass.Constexpr,
    from_checkpoint: cutlass.Constexpr,
):
    quantise_rows_kernel(
        x, stored, values, used, live, saturated, flushed, columns, is_bf16, from_checkpoint
    ).launch(grid=[rows, 1, 1], block=[THREADS, 1, 1], stream=stream)


def build(options: str, columns: int, is_bf16: bool, from_checkpoint: bool):
    """Compile without a GPU; pointers are placeholders."""

    def pointer(kind, align=16):
        return make_ptr(kind, 16, cute.AddressSpace.gmem, assumed_align=align)

    small = [pointer(Float32, 4), pointer(Float32, 4), pointer(Int32, 4), pointer(Int32, 4)]
    return cute.compile(
        quantise_rows,
        pointer(Int32),
        pointer(Float32, 4),
        pointer(Int32),
        *small,
        Int32(1),
        cuda.CUstream(0),
        columns,
        is_bf16,
        from_checkpoint,
        options=options,
    )
