"""The K best scored blocks of a query, one CTA: the K-th largest score by bisection on its bits,
then the winners in order of their index.

A thread keeps the scores of neighbouring blocks in registers as integers that order as the floats
do, so one round of the 32 is a count and a block-wide sum. Equal scores at the cut go to the lowest
index: the result is the same every time. Blocks that have not ended rank below all and are marked.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, range_constexpr
from cutlass.cute.runtime import make_ptr

from kernels import cute_ptx as ptx
from kernels.cute_warp import LOWEST, warp_add_int

THREADS = 1024
KEYS = 64  # scores are padded to a multiple


@cute.jit
def _scan(value: Int32, sums: cute.Tensor):
    """-> sum of `value` over the threads before this one, and over all. sums: shared [32]."""
    thread, _, _ = cute.arch.thread_idx()
    lane, warp = thread % 32, thread // 32
    running = value
    for o in range_constexpr(5):
        before = cute.arch.shuffle_sync_up(running, offset=1 << o, mask_and_clamp=0)
        if lane >= 1 << o:
            running = running + before
    if lane == 31:
        sums[warp] = running
    cute.arch.sync_threads()
    earlier = Int32(0)
    other = sums[lane]
    if lane < warp:
        earlier = other
    earlier = warp_add_int(earlier)
    total = warp_add_int(other)
    return earlier + running - value, total


@cute.kernel
def best_kernel(
    scores: cute.Pointer,
    position: cute.Pointer,
    ids: cute.Pointer,
    chosen: cute.Pointer,
    count: cutlass.Constexpr,
    top_k: cutlass.Constexpr,
    ratio: cutlass.Constexpr,
):
    thread, _, _ = cute.arch.thread_idx()
    token, _, _ = cute.arch.block_idx()
    lane, warp = thread % 32, thread // 32
    own = (count + THREADS - 1) // THREADS
    smem = cutlass.utils.SmemAllocator()
    sums = smem.allocate_tensor(Int32, cute.make_layout((4, 32), stride=(32, 1)), 16)
    cute.arch.griddepcontrol_launch_dependents()
    cute.arch.griddepcontrol_wait()
    visible = (ptx.load_i64_low_at(position) + token + 1) // ratio
    row = scores + Int64(token) * ((count + KEYS - 1) // KEYS * KEYS)
    keys = []
    for i in range_constexpr(own):
        at = thread * own + i
        key = Int32(LOWEST)
        if at < visible and at < count:
            key = cutlass.max(ptx.ordered(ptx.load_f32(row + at)), Int32(LOWEST + 1))
        keys.append(key)

    cut = Int32(LOWEST)
    for step in cutlass.range(32):
        tried = cut + (Int32(1) << (Int32(31) - step))
        larger = Int32(0)
        for i in range_constexpr(own):
            if keys[i] >= tried:
                larger += 1
        larger = warp_add_int(larger)
        if lane == 0:
            sums[step % 2, warp] = larger
        cute.arch.sync_threads()
        if warp_add_int(sums[step % 2, lane]) >= top_k:
            cut = tried

    above = Int32(0)
    level = Int32(0)
    for i in range_constexpr(own):
        if keys[i] > cut:
            above += 1
        if keys[i] == cut and thread * own + i < count:
            level += 1
    above_before, above_all = _scan(above, sums[2, None])
    level_before, _ = _scan(level, sums[3, None])
    room = top_k - above_all  # for scores equal to the cut
    for i in range_constexpr(own):
        at = thread * own + i
        wins = keys[i] > cut
        ties = keys[i] == cut and at < count
        if wins or (ties and level_before < room):
            place = token * top_k + above_before + cutlass.min(level_before, room)
            ptx.store_i64(ids + place, at)
            flag = Int32(0)
            if at < visible:
                flag = Int32(1)
            ptx.store_u8(chosen + place, flag)
        if wins:
            above_before += 1
        if ties:
            level_before += 1


@cute.jit
def best(
    scores: cute.Pointer,
    position: cute.Pointer,
    ids: cute.Pointer,
    chosen: cute.Pointer,
    tokens: Int32,
    stream: cuda.CUstream,
    count: cutlass.Constexpr,
    top_k: cutlass.Constexpr,
    ratio: cutlass.Constexpr,
):
    best_kernel(scores, position, ids, chosen, count, top_k, ratio).launch(
        grid=[tokens, 1, 1], block=[THREADS, 1, 1], stream=stream
    )


def build(options: str, count: int, top_k: int, ratio: int):
    """Compile without a GPU; pointers are placeholders."""

    def pointer(kind, align):
        return make_ptr(kind, 16, cute.AddressSpace.gmem, assumed_align=align)

    return cute.compile(
        best, pointer(Float32, 4), pointer(Int64, 8), pointer(Int64, 8), pointer(cutlass.Uint8, 1),
        Int32(1), cuda.CUstream(0), count, top_k, ratio, options=options,
    )  # fmt: skip
