"""The experts of one token, in two launches: gate and up with the clamped SwiGLU, then down.

Up: a CTA makes 8 hidden numbers of one choice; of its 16 weight rows 8 are w1's and 8 w3's, so gate
and up of one number meet in the same lane. Down: a CTA makes 16 outputs and walks over all choices,
each with its own global scales. Expert ids are read on the device; the shared expert, where there
is one, is the last of the stack and the last choice. Bytes: K * (3 H I) * 9/16.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int16, Int32, Int64, const_expr, range_constexpr
from cutlass.cute.runtime import make_ptr

from kernels import cute_fp4 as fp4
from kernels import cute_ptx as ptx

_AHEAD = 3  # choices whose weights `down` requests before it uses them


@cute.kernel
def up_kernel(
    weight: cute.Pointer,
    scale: cute.Pointer,
    scale_2: cute.Pointer,
    values: cute.Pointer,
    gsa: cute.Pointer,
    ids: cute.Pointer,
    mix: cute.Pointer,
    hidden: cute.Pointer,
    limit: Float32,
    inner: cutlass.Constexpr,
    columns: cutlass.Constexpr,
    per_choice: cutlass.Constexpr,
    warps: cutlass.Constexpr,
    experts: cutlass.Constexpr,
    routed: cutlass.Constexpr,
):
    thread, _, _ = cute.arch.thread_idx()
    tile, choice, _ = cute.arch.block_idx()
    lane, warp = thread % 32, thread // 32
    g, t = lane // 4, lane % 4
    chunks = columns // fp4.CHUNK // warps
    smem = cutlass.utils.SmemAllocator()
    staged = smem.allocate_array(Int32, columns // 2)
    partial = smem.allocate_tensor(Float32, cute.make_layout((warps, 16), stride=(16, 1)), 16)

    cute.arch.griddepcontrol_launch_dependents()
    cute.arch.griddepcontrol_wait()
    expert = Int32(experts - 1)  # the shared one, behind the routed choices
    share = Float32(1.0)
    if choice < routed:
        expert = ptx.load_i64_low(ids + choice)
        share = ptx.load_f32(mix + choice)
    unit = cutlass.min(tile * 8 + g, Int32(inner - 1))
    words, scales = [], []
    for half in range_constexpr(2):
        base = Int64(expert) * (2 * inner) + (half * inner + unit)
        for c in range_constexpr(chunks):
            k = (c * warps + warp) * fp4.CHUNK
            words.append(ptx.load_weight_128(weight + base * (columns // 8) + (k // 8 + t * 4)))
            scales.append(ptx.load_weight_16(scale + base * (columns // 32) + (k // 32 + t)))
    row = choice if const_expr(per_choice) else Int32(0)
    source = values + row * (columns // 2)
    for i in range_constexpr((columns // 8 + warps * 32 - 1) // (warps * 32)):
        part = i * (warps * 32) + thread
        if part < columns // 8:
            fp4.store_shared_128(
                staged + part * 4, fp4.interleave8(ptx.load_128(source + part * 4))
            )
    cute.arch.sync_threads()
    acc = [(Float32(0.0),) * 4, (Float32(0.0),) * 4]
    for c in range_constexpr(chunks):
        k = (c * warps + warp) * fp4.CHUNK
        acc = fp4.chunk_products(
            words[c],
            words[chunks + c],
            scales[c],
            scales[chunks + c],
            staged + (k // 2 + t * 16),
            acc,
        )
    if t == 0:
        partial[warp, g] = acc[0][0] + acc[1][0]
        partial[warp, g + 8] = acc[0][2] + acc[1][2]
    cute.arch.sync_threads()
    if thread < 8 and tile * 8 + thread < inner:
        gate, up = Float32(0.0), Float32(0.0)
        for w in range_constexpr(warps):
            gate += partial[w, thread]
            up += partial[w, thread + 8]
        factor = ptx.load_f32(gsa + row) * fp4.PRODUCT_SCALE
        gate = gate * factor * ptx.load_f32(scale_2 + expert * 2)
        up = up * factor * ptx.load_f32(scale_2 + (expert * 2 + 1))
        made = ptx.clamped_swiglu(gate, up, limit) * share
        ptx.store_f32(hidden + (choice * inner + tile * 8 + thread), made)


def _request(weight, scale, expert, own, sizes):
    """A lane's weights and scales of one expert's tile: low rows, then high ones, chunk by
    chunk."""
    (tile, warp, g, t), (rows_out, columns, warps) = own, sizes
    found = []
    for half in range(2):
        row = cutlass.min(tile * 16 + g + 8 * half, Int32(rows_out - 1))
        base = Int64(expert) * rows_out + row
        for c in range(columns // fp4.CHUNK // warps):
            k = (c * warps + warp) * fp4.CHUNK
            words = ptx.load_weight_128(weight + base * (columns // 8) + (k // 8 + t * 4))
            scales = ptx.load_weight_16(scale + base * (columns // 32) + (k // 32 + t))
            found.append((words, scales))
    return found


@cute.kernel
def down_kernel(
    weight: cute.Pointer,
    scale: cute.Pointer,
    scale_2: cute.Pointer,
    values: cute.Pointer,
    gsa: cute.Pointer,
    ids: cute.Pointer,
    out: cute.Pointer,
    rows_out: cutlass.Constexpr,
    columns: cutlass.Constexpr,
    choices: cutlass.Constexpr,
    warps: cutlass.Constexpr,
    experts: cutlass.Constexpr,
    routed: cutlass.Constexpr,
):
    thread, _, _ = cute.arch.thread_idx()
    tile, _, _ = cute.arch.block_idx()
    lane, warp = thread % 32, thread // 32
    g, t = lane // 4, lane % 4
    chunks = columns // fp4.CHUNK // warps
    smem = cutlass.utils.SmemAllocator()
    staged = smem.allocate_array(Int32, choices * columns // 2)
    partial = smem.allocate_tensor(Float32, cute.make_layout((warps, 16), stride=(16, 1)), 16)
    cute.arch.griddepcontrol_launch_dependents()
    cute.arch.griddepcontrol_wait()
    taken = [ptx.load_i64_low(ids + choice) for choice in range(routed)]
    taken += [Int32(experts - 1)] * (choices - routed)

    own = (tile, warp, g, t)
    sizes = (rows_out, columns, warps)
    ahead = []
    for choice in range_constexpr(min(_AHEAD, choices)):
        ahead.append(_request(weight, scale, taken[choice], own, sizes))
    for i in range_constexpr((choices * columns // 8 + warps * 32 - 1) // (warps * 32)):
        part = i * (warps * 32) + thread
        if part < choices * columns // 8:
            fp4.store_shared_128(
                staged + part * 4, fp4.interleave8(ptx.load_128(values + part * 4))
            )
    cute.arch.sync_threads()
    low, high = Float32(0.0), Float32(0.0)
    for choice in range_constexpr(choices):
        if const_expr(choice + _AHEAD < choices):
            ahead.append(_request(weight, scale, taken[choice + _AHEAD], own, sizes))
        found = ahead[choice]
        acc = [(Float32(0.0),) * 4, (Float32(0.0),) * 4]
        for c in range_constexpr(chunks):
            k = (c * warps + warp) * fp4.CHUNK
            acc = fp4.chunk_products(
                found[c][0],
                found[chunks + c][0],
                found[c][1],
                found[chunks + c][1],
                staged + (choice * columns // 2 + k // 2 + t * 16),
                acc,
            )
        factor = ptx.load_f32(gsa + choice) * ptx.load_f32(scale_2 + taken[choice])
        factor = factor * fp4.PRODUCT_SCALE
        low += (acc[0][0] + acc[1][0]) * factor
        high += (acc[0][2] + acc[1][2]) * factor
    if t == 0:
        partial[warp, g] = low
        partial[warp, g + 8] = high
    cute.arch.sync_threads()
    if thread < 16 and tile * 16 + thread < rows_out:
        total = Float32(0.0)
        for w in range_constexpr(warps):
            total += partial[w, thread]
        ptx.store_f32(out + (tile * 16 + thread), total)


@cute.jit
def up(
    weight: cute.Pointer,
    scale: cute.Pointer,
    scale_2: cute.Pointer,
    values: cute.Pointer,
    gsa: cute.Pointer,
    ids: cute.Pointer,
    mix: cute.Pointer,
    hidden: cute.Pointer,
    limit: Float32,
    stream: cuda.CUstream,
    inner: cutlass.Constexpr,
    columns: cutlass.Constexpr,
    choices: cutlass.Constexpr,
    per_choice: cutlass.Constexpr,
    warps: cutlass.Constexpr,
    experts: cutlass.Constexpr,
    routed: cutlass.Constexpr,
):
    up_kernel(
        weight, scale, scale_2, values, gsa, ids, mix, hidden, limit, inner, columns, per_choice,
        warps, experts, routed,
    ).launch(
        grid=[(inner + 7) // 8, choices, 1], block=[warps * 32, 1, 1], stream=stream
    )  # fmt: skip


@cute.jit
def down(
    weight: cute.Pointer,
    scale: cute.Pointer,
    scale_2: cute.Pointer,
    values: cute.Pointer,
    gsa: cute.Pointer,
    ids: cute.Pointer,
    out: cute.Pointer,
    stream: cuda.CUstream,
    rows_out: cutlass.Constexpr,
    columns: cutlass.Constexpr,
    choices: cutlass.Constexpr,
    warps: cutlass.Constexpr,
    experts: cutlass.Constexpr,
    routed: cutlass.Constexpr,
):
    down_kernel(
        weight, scale, scale_2, values, gsa, ids, out, rows_out, columns, choices, warps, experts,
        routed,
    ).launch(
        grid=[(rows_out + 15) // 16, 1, 1], block=[warps * 32, 1, 1], stream=stream
    )  # fmt: skip


def build(options: str, half: str, **static):
    """Compile one of the two halves without a GPU; pointers are placeholders."""

    def pointer(kind, align):
        return make_ptr(kind, 16, cute.AddressSpace.gmem, assumed_align=align)

    given = [pointer(Int32, 16), pointer(Int16, 2), pointer(Float32, 4), pointer(Int32, 16)]
    given += [pointer(Float32, 4), pointer(Int64, 8)]
    if half == "up":
        given += [pointer(Float32, 4), pointer(Float32, 4), Float32(1.0)]
        names = ("inner", "columns", "choices", "per_choice", "warps", "experts", "routed")
        function = up
    else:
        given += [pointer(Float32, 4)]
        names = ("rows_out", "columns", "choices", "warps", "experts", "routed")
        function = down
    constants = [static[name] for name in names]
    return cute.compile(function, *given, cuda.CUstream(0), *constants, options=options)
