"""The logits' part of the tap record: the best ids in order, and what the sampler found.

CTAs of 4,096 logits each leave their best; the one that finishes last takes the best of those.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, range_constexpr
from cutlass.cute.runtime import make_ptr

from kernels import cute_ptx as ptx
from kernels.cute_warp import LOWEST, block_take

THREADS = 256
WARPS = THREADS // 32
SLICE = 4096  # logits of one CTA


@cute.kernel
def logits_kernel(
    logits: cute.Pointer,
    result: cute.Pointer,
    stats: cute.Pointer,
    position: cute.Pointer,
    best_keys: cute.Pointer,
    best_ids: cute.Pointer,
    finished: cute.Pointer,
    words: tuple,
    top_ids: cute.Pointer,
    top_logits: cute.Pointer,
    vocab: cutlass.Constexpr,
    top: cutlass.Constexpr,
):
    thread, _, _ = cute.arch.thread_idx()
    part, _, _ = cute.arch.block_idx()
    parts = (vocab + SLICE - 1) // SLICE
    own = SLICE // THREADS
    smem = cutlass.utils.SmemAllocator()
    picks = smem.allocate_tensor(
        Int32, cute.make_layout((2, 2, WARPS), stride=(2 * WARPS, WARPS, 1)), 16
    )
    last = smem.allocate_tensor(Int32, cute.make_layout(1), 16)
    cute.arch.griddepcontrol_launch_dependents()
    cute.arch.griddepcontrol_wait()
    keys = cute.make_rmem_tensor((own,), Int32)
    for i in range_constexpr(own):
        at = part * SLICE + i * THREADS + thread
        keys[i] = Int32(LOWEST)
        if at < vocab:
            keys[i] = cutlass.max(ptx.ordered(ptx.load_f32(logits + at)), Int32(LOWEST + 1))
    for turn in cutlass.range(top):
        key, index = block_take(keys, picks, turn, own, WARPS)
        if thread == 0:
            ptx.store_32(best_keys + (part * top + turn), key)
            ptx.store_32(best_ids + (part * top + turn), part * SLICE + index)
    ptx.fence_device()
    cute.arch.sync_threads()
    if thread == 0:
        last[0] = ptx.atomic_inc(finished, Int32(parts - 1))
    cute.arch.sync_threads()
    if last[0] == parts - 1:
        ptx.fence_device()
        candidates = parts * top
        held = (candidates + THREADS - 1) // THREADS
        found = cute.make_rmem_tensor((held,), Int32)
        for i in range_constexpr(held):
            at = i * THREADS + thread
            found[i] = Int32(LOWEST)
            if at < candidates:
                found[i] = ptx.load_32_l2(best_keys + at)
        for turn in cutlass.range(top):
            key, index = block_take(found, picks, turn, held, WARPS)
            if thread == 0:
                ptx.store_f32(top_logits + turn, ptx.unordered(key))
                ptx.store_32(top_ids + turn, ptx.load_32_l2(best_ids + index))
        if thread == 0:
            place, chosen, kept, most, log_z, entropy, logit = words
            ptx.store_32(place, ptx.load_i64_low_at(position))
            ptx.store_32(chosen, ptx.load_i64_low_at(result))
            ptx.store_32(kept, ptx.load_i64_low_at(result + 1))
            ptx.store_f32(most, ptx.load_f32(stats))
            ptx.store_f32(log_z, ptx.load_f32(stats + 1))
            ptx.store_f32(entropy, ptx.load_f32(stats + 2))
            ptx.store_f32(logit, ptx.load_f32(stats + 3))


@cute.jit
def record(
    logits: cute.Pointer,
    result: cute.Pointer,
    stats: cute.Pointer,
    position: cute.Pointer,
    best_keys: cute.Pointer,
    best_ids: cute.Pointer,
    finished: cute.Pointer,
    words: tuple,
    top_ids: cute.Pointer,
    top_logits: cute.Pointer,
    stream: cuda.CUstream,
    vocab: cutlass.Constexpr,
    top: cutlass.Constexpr,
):
    arguments = (logits, result, stats, position, best_keys, best_ids, finished, words)
    parts = (vocab + SLICE - 1) // SLICE
    logits_kernel(*arguments, top_ids, top_logits, vocab, top).launch(
        grid=[parts, 1, 1], block=[THREADS, 1, 1], stream=stream
    )


def build(options: str, vocab: int, top: int):
    """Compile without a GPU; pointers are placeholders."""

    def pointer(kind, align):
        return make_ptr(kind, 16, cute.AddressSpace.gmem, assumed_align=align)

    f32, word, i64 = pointer(Float32, 4), pointer(Int32, 4), pointer(Int64, 8)
    return cute.compile(
        record, f32, i64, f32, i64, word, word, word, (word, word, word, f32, f32, f32, f32), word,
        f32, cuda.CUstream(0), vocab, top, options=options,
    )  # fmt: skip
