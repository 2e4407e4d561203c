"""The compressor of up to 8 tokens in one launch: store, pool, norm, rotate, round, write.

One CTA, a thread per channel of the pooled row. Tokens are taken in order: the thread stores its
channels of the token in the rings, and where the token ends a block it pools the block from them.
Rows of positions before 0 count as absent. The last block row takes nothing here: a block that is
not complete is not written.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int64, const_expr, range_constexpr
from cutlass.cute.runtime import make_ptr

from kernels import cute_ptx as ptx
from kernels.cute_warp import warp_peak, warp_sum

_ABSENT = -1e30
_KV_BLOCK = 64
_FP4_BLOCK = 32


@cute.kernel
def compress_kernel(
    kv: cute.Pointer,
    gate: cute.Pointer,
    ape: cute.Pointer,
    norm: cute.Pointer,
    ring_kv: cute.Pointer,
    ring_score: cute.Pointer,
    blocks: cute.Pointer,
    position: cute.Pointer,
    frequencies: cute.Pointer,
    eps: Float32,
    tokens: cutlass.Constexpr,
    dim: cutlass.Constexpr,
    rope: cutlass.Constexpr,
    ratio: cutlass.Constexpr,
    overlap: cutlass.Constexpr,
    rounding: cutlass.Constexpr,
    ring_rows: cutlass.Constexpr,
):
    channel, _, _ = cute.arch.thread_idx()
    lane, warp = channel % 32, channel // 32
    warps = dim // 32
    halves = 2 if const_expr(overlap) else 1
    width = halves * dim
    plain = dim - rope
    smem = cutlass.utils.SmemAllocator()
    parts = smem.allocate_tensor(Float32, cute.make_layout(warps), 16)
    mixed = smem.allocate_tensor(Float32, cute.make_layout(dim), 16)
    cute.arch.griddepcontrol_launch_dependents()
    cute.arch.griddepcontrol_wait()
    first = ptx.load_i64_low_at(position)
    for token in range_constexpr(tokens):
        here = first + token
        slot = here % ring_rows
        for half in range_constexpr(halves):
            at = half * dim + channel
            score = ptx.load_f32(gate + (token * width + at))
            score += ptx.load_f32(ape + ((here % ratio) * width + at))
            ptx.store_f32(ring_kv + (slot * width + at), ptx.load_f32(kv + token * width + at))
            ptx.store_f32(ring_score + (slot * width + at), score)
        if here % ratio == ratio - 1:
            start = here - (ratio - 1)
            peak = Float32(_ABSENT)
            total = Float32(0.0)
            pooled = Float32(0.0)
            # An online softmax over the rows; a thread reads only channels that it wrote itself.
            for i in cutlass.range(halves * ratio):
                row = start + i - (halves - 1) * ratio
                at = channel
                if const_expr(overlap):
                    if i >= ratio:
                        at = dim + channel
                if row >= 0:
                    source = (row % ring_rows) * width + at
                    score = ptx.load_f32(ring_score + source)
                    new_peak = cutlass.max(peak, score)
                    keep = ptx.exp(peak - new_peak)
                    weight = ptx.exp(score - new_peak)
                    pooled = pooled * keep + weight * ptx.load_f32(ring_kv + source)
                    total = total * keep + weight
                    peak = new_peak
            value = ptx.through_bf16(ptx.divide(pooled, total))
            part = value * value
            part = warp_sum(part)
            if lane == 0:
                parts[warp] = part
            cute.arch.sync_threads()
            square = Float32(0.0)
            for w in range_constexpr(warps):
                square += parts[w]
            value *= ptx.rsqrt(square * (1.0 / dim) + eps)
            value = ptx.through_bf16(value * ptx.load_f32(norm + channel))

            other = cute.arch.shuffle_sync_bfly(value, offset=1)
            if channel >= plain:
                angle = Float32(start) * ptx.load_f32(frequencies + (channel - plain) // 2)
                c, s = cute.math.cos(angle), cute.math.sin(angle)
                turned = value * c + other * s
                if channel % 2 == 0:
                    turned = value * c - other * s
                value = ptx.through_bf16(turned)
            if const_expr(rounding == "kv"):
                amax = ptx.max_magnitude(value, Float32(0.0))
                amax = warp_peak(amax)
                cute.arch.sync_threads()
                if lane == 0:
                    parts[warp] = amax
                cute.arch.sync_threads()
                amax = ptx.max_magnitude(parts[warp], parts[warp ^ 1])
                scale = ptx.fp8_scale(amax)
                if channel < plain:
                    value = ptx.round_e4m3(ptx.divide(value, scale)) * scale
            if const_expr(rounding == "index"):
                for level in range_constexpr((dim - 1).bit_length()):
                    mixed[channel] = value
                    cute.arch.sync_threads()
                    other = mixed[channel ^ (1 << level)]
                    if channel & (1 << level) == 0:
                        value = value + other
                    else:
                        value = other - value
                    cute.arch.sync_threads()
                value = ptx.through_bf16(value * (dim**-0.5))
                amax = ptx.max_magnitude(value, Float32(0.0))
                amax = warp_peak(amax)
                scale = ptx.fp4_scale(amax)
                value = ptx.round_e2m1(ptx.divide(value, scale)) * scale
            block = Int64(here // ratio) * dim + channel
            ptx.store_bf16(blocks + block, value)
        cute.arch.sync_threads()


@cute.jit
def compress(
    kv: cute.Pointer,
    gate: cute.Pointer,
    ape: cute.Pointer,
    norm: cute.Pointer,
    ring_kv: cute.Pointer,
    ring_score: cute.Pointer,
    blocks: cute.Pointer,
    position: cute.Pointer,
    frequencies: cute.Pointer,
    eps: Float32,
    stream: cuda.CUstream,
    tokens: cutlass.Constexpr,
    dim: cutlass.Constexpr,
    rope: cutlass.Constexpr,
    ratio: cutlass.Constexpr,
    overlap: cutlass.Constexpr,
    rounding: cutlass.Constexpr,
    ring_rows: cutlass.Constexpr,
):
    compress_kernel(
        kv,
        gate,
        ape,
        norm,
        ring_kv,
        ring_score,
        blocks,
        position,
        frequencies,
        eps,
        tokens,
        dim,
        rope,
        ratio,
        overlap,
        rounding,
        ring_rows,
    ).launch(grid=[1, 1, 1], block=[dim, 1, 1], stream=stream)


def build(options: str, **static):
    """Compile without a GPU; pointers are placeholders."""

    def pointer(kind, align):
        return make_ptr(kind, 16, cute.AddressSpace.gmem, assumed_align=align)

    bf16, f32 = pointer(cutlass.BFloat16, 2), pointer(Float32, 4)
    names = ("tokens", "dim", "rope", "ratio", "overlap", "rounding", "ring_rows")
    return cute.compile(
        compress,
        f32,
        f32,
        f32,
        f32,
        f32,
        f32,
        bf16,
        pointer(Int64, 8),
        f32,
        Float32(0.0),
        cuda.CUstream(0),
        *[static[name] for name in names],
        options=options,
    )
