"""NVFP4 quantisation of activation rows in one launch, gsa on the device.

One CTA of 256 threads takes a row: every thread owns whole 16-blocks, the row's largest magnitude
is reduced through shared memory, then scales and codes are made in registers. With `rounds_first` a
row is rounded to bf16 before, normed where `normed` is set, and leaves in that form too. Values
leave as bf16, where code times block scale is exact. Reads the row once, writes it once; bit-equal
to `kernels.formats.quantise_nvfp4_rows`.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, const_expr, range_constexpr
from cutlass.cute.runtime import make_ptr

from kernels import cute_nvfp4 as nvfp4
from kernels import cute_ptx as ptx
from kernels.cute_warp import warp_peak, warp_sum

THREADS = 256
BLOCK = nvfp4.BLOCK


@cute.kernel
def quantise_rows_kernel(
    x: cute.Pointer,
    stored: cute.Pointer,
    norm: cute.Pointer,
    plain: cute.Pointer,
    values: cute.Pointer,
    used: cute.Pointer,
    live: cute.Pointer,
    saturated: cute.Pointer,
    flushed: cute.Pointer,
    eps: Float32,
    columns: cutlass.Constexpr,
    is_bf16: cutlass.Constexpr,
    from_checkpoint: cutlass.Constexpr,
    rounds_first: cutlass.Constexpr,
    normed: cutlass.Constexpr,
):
    thread, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    lane, warp = thread % 32, thread // 32
    smem = cutlass.utils.SmemAllocator()
    partial = smem.allocate_tensor(Float32, cute.make_layout(8), byte_alignment=16)
    squares = smem.allocate_tensor(Float32, cute.make_layout(8), byte_alignment=16)
    counts = smem.allocate_tensor(Int32, cute.make_layout((2, 8)), byte_alignment=16)
    rounds = (columns // BLOCK + THREADS - 1) // THREADS
    cute.arch.griddepcontrol_launch_dependents()
    cute.arch.griddepcontrol_wait()
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
        if const_expr(rounds_first and not is_bf16):
            numbers = [ptx.through_bf16(number) for number in numbers]
        held.append(numbers)

    if const_expr(normed):
        total = Float32(0.0)
        for i in range_constexpr(rounds):
            part = Float32(0.0)
            for number in held[i]:
                part += number * number
            if Int32(i * THREADS) + thread < columns // BLOCK:
                total += part
        total = warp_sum(total)
        if lane == 0:
            squares[warp] = total
        cute.arch.sync_threads()
        total = Float32(0.0)
        for i in range_constexpr(8):
            total += squares[i]
        rho = ptx.rsqrt(total * (1.0 / columns) + eps)
        for i in range_constexpr(rounds):
            block = cutlass.min(Int32(i * THREADS) + thread, Int32(columns // BLOCK - 1))
            for j in range_constexpr(BLOCK):
                weight = ptx.load_weight_f32(norm + (block * BLOCK + j))
                held[i][j] = ptx.through_bf16(held[i][j] * rho * weight)

    for i in range_constexpr(rounds):
        amax.append(nvfp4.block_peak(held[i]))

    peak = Float32(0.0)
    for i in range_constexpr(rounds):
        peak = ptx.max_magnitude(peak, amax[i])
    peak = warp_peak(peak)
    if lane == 0:
        partial[warp] = peak
    cute.arch.sync_threads()
    for i in range_constexpr(8):
        peak = ptx.max_magnitude(peak, partial[i])
    gsa_live = ptx.divide(peak, Float32(nvfp4.GSA_DIVISOR))
    gsa = gsa_live
    if const_expr(from_checkpoint):
        gsa = ptx.load_f32(stored + row)

    over = Int32(0)
    under = Int32(0)
    for i in range_constexpr(rounds):
        block = Int32(i * THREADS) + thread
        scale, saturates, flushes = nvfp4.block_scale(amax[i], gsa)
        packed = nvfp4.quantised_words(held[i], scale, gsa)
        if block < columns // BLOCK:
            target = values + (cutlass.Int64(row) * (columns // BLOCK) + block) * (BLOCK // 2)
            ptx.store_128(target, packed[0], packed[1], packed[2], packed[3])
            ptx.store_128(target + 4, packed[4], packed[5], packed[6], packed[7])
            if const_expr(rounds_first):
                words_out = []
                for j in range_constexpr(BLOCK // 2):
                    words_out.append(ptx.f32_to_bf16x2(held[i][2 * j], held[i][2 * j + 1]))
                there = plain + (cutlass.Int64(row) * (columns // BLOCK) + block) * (BLOCK // 2)
                ptx.store_128(there, words_out[0], words_out[1], words_out[2], words_out[3])
                ptx.store_128(there + 4, words_out[4], words_out[5], words_out[6], words_out[7])
            over += saturates
            under += flushes
    over = warp_sum(over)
    under = warp_sum(under)
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
    norm: cute.Pointer,
    plain: cute.Pointer,
    values: cute.Pointer,
    used: cute.Pointer,
    live: cute.Pointer,
    saturated: cute.Pointer,
    flushed: cute.Pointer,
    eps: Float32,
    rows: Int32,
    stream: cuda.CUstream,
    columns: cutlass.Constexpr,
    is_bf16: cutlass.Constexpr,
    from_checkpoint: cutlass.Constexpr,
    rounds_first: cutlass.Constexpr,
    normed: cutlass.Constexpr,
):
    quantise_rows_kernel(
        x, stored, norm, plain, values, used, live, saturated, flushed, eps, columns, is_bf16,
        from_checkpoint, rounds_first, normed,
    ).launch(grid=[rows, 1, 1], block=[THREADS, 1, 1], stream=stream)  # fmt: skip


def build(options: str, **static):
    """Compile without a GPU; pointers are placeholders."""

    def pointer(kind, align=4):
        return make_ptr(kind, 16, cute.AddressSpace.gmem, assumed_align=align)

    f32, i32, row = pointer(Float32), pointer(Int32), pointer(Int32, 16)
    names = ("columns", "is_bf16", "from_checkpoint", "rounds_first", "normed")
    return cute.compile(
        quantise_rows, row, f32, f32, row, row, f32, f32, i32, i32, Float32(0.0), Int32(1),
        cuda.CUstream(0), *[static[name] for name in names], options=options,
    )  # fmt: skip
