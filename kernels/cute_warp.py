"""Reductions over a warp or a block: every thread ends with the result, in the same order every
time."""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, range_constexpr
from cutlass.cute.arch import inline_ptx

from kernels import cute_ptx as ptx

LOWEST = -(1 << 31)


def warp_sum(value):
    for o in range(5):
        value = value + cute.arch.shuffle_sync_bfly(value, offset=16 >> o)
    return value


def warp_peak(value):
    """Largest magnitude; NaN if any lane's is."""
    for o in range(5):
        value = ptx.max_magnitude(value, cute.arch.shuffle_sync_bfly(value, offset=16 >> o))
    return value


def warp_max_int(value):
    return inline_ptx(
        "redux.sync.max.s32 {$w0}, {$r0}, 0xFFFFFFFF;",
        write_only_types=[Int32],
        read_only_args=[value],
    )


def warp_min_int(value):
    return inline_ptx(
        "redux.sync.min.s32 {$w0}, {$r0}, 0xFFFFFFFF;",
        write_only_types=[Int32],
        read_only_args=[value],
    )


def warp_add_int(value):
    return inline_ptx(
        "redux.sync.add.s32 {$w0}, {$r0}, 0xFFFFFFFF;",
        write_only_types=[Int32],
        read_only_args=[value],
    )


@cute.jit
def block_sum(value: cutlass.Float32, scratch: cute.Tensor, warps: cutlass.Constexpr):
    """Sum over the block. scratch: shared fp32 [warps], free before and after."""
    thread, _, _ = cute.arch.thread_idx()
    value = warp_sum(value)
    if thread % 32 == 0:
        scratch[thread // 32] = value
    cute.arch.sync_threads()
    total = cutlass.Float32(0.0)
    for w in range_constexpr(warps):
        total += scratch[w]
    cute.arch.sync_threads()
    return total


@cute.jit
def block_take(
    keys: cute.Tensor,
    scratch: cute.Tensor,
    turn: Int32,
    own: cutlass.Constexpr,
    warps: cutlass.Constexpr,
):
    """Take the largest key of the block, the lowest index among equals; -> (key, index).

    keys: the thread's [own] int32 registers, of the indices i * threads + thread; the taken one
    becomes LOWEST. scratch: shared int32 [2, 2, warps]; turn alternates between calls.
    """
    thread, _, _ = cute.arch.thread_idx()
    lane, warp = thread % 32, thread // 32
    best = Int32(LOWEST)
    index = Int32((1 << 31) - 1)
    for i in range_constexpr(own):
        if keys[i] > best:
            best = keys[i]
            index = Int32(i * warps * 32) + thread
    most = warp_max_int(best)
    if best != most:
        index = Int32((1 << 31) - 1)
    index = warp_min_int(index)
    if lane == 0:
        scratch[turn % 2, 0, warp] = most
        scratch[turn % 2, 1, warp] = index
    cute.arch.sync_threads()
    key = Int32(LOWEST)
    winner = Int32((1 << 31) - 1)
    for w in range_constexpr(warps):
        other = scratch[turn % 2, 0, w]
        other_index = scratch[turn % 2, 1, w]
        if other > key or (other == key and other_index < winner):
            key = other
            winner = other_index
    for i in range_constexpr(own):
        if winner == Int32(i * warps * 32) + thread:
            keys[i] = Int32(LOWEST)
    return key, winner
