"""Index queries as the cache keeps keys: rotated, through Hadamard and FP4, one warp a head.

A lane owns D/32 neighbouring numbers: rotary pairs and the first Hadamard levels stay in it, the
other levels are shuffles. Every step rounds to bf16 where the reference does.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, const_expr, range_constexpr
from cutlass.cute.runtime import make_ptr

from kernels import cute_ptx as ptx

FP4_BLOCK = 32


@cute.kernel
def queries_kernel(
    q: cute.Pointer,
    cos: cute.Pointer,
    sin: cute.Pointer,
    out: cute.Pointer,
    heads: cutlass.Constexpr,
    dim: cutlass.Constexpr,
    rope: cutlass.Constexpr,
    fp4: cutlass.Constexpr,
):
    lane, _, _ = cute.arch.thread_idx()
    head, token, _ = cute.arch.block_idx()
    own = dim // 32
    plain = dim - rope
    first = lane * own
    cute.arch.griddepcontrol_launch_dependents()
    cute.arch.griddepcontrol_wait()
    numbers = []
    for part in range_constexpr(own // 4):
        raw = ptx.load_128(q + ((token * heads + head) * dim + first + part * 4))
        for j in range_constexpr(4):
            numbers.append(ptx.through_bf16(ptx.as_f32(raw[j])))
    for j in range_constexpr(own // 2):
        even, odd = numbers[2 * j], numbers[2 * j + 1]
        pair = (first - plain) // 2 + j
        if first + 2 * j >= plain:
            c = ptx.load_f32(cos + (token * (rope // 2) + pair))
            s = ptx.load_f32(sin + (token * (rope // 2) + pair))
            even, odd = even * c - odd * s, even * s + odd * c
        numbers[2 * j], numbers[2 * j + 1] = ptx.through_bf16(even), ptx.through_bf16(odd)
    if const_expr(fp4):
        for level in range_constexpr(own.bit_length() - 1):
            span = 1 << level
            turned = []
            for j in range_constexpr(own):
                low, high = numbers[j & ~span], numbers[j | span]
                turned.append(low + high if const_expr(j & span == 0) else low - high)
            numbers = turned
        for level in range_constexpr(5):
            sign = Float32(1.0)
            if lane & (1 << level) != 0:
                sign = Float32(-1.0)
            for j in range_constexpr(own):
                other = cute.arch.shuffle_sync_bfly(numbers[j], offset=1 << level)
                numbers[j] = other + sign * numbers[j]
        amax = Float32(0.0)
        for j in range_constexpr(own):
            numbers[j] = ptx.through_bf16(numbers[j] * (dim**-0.5))
            amax = ptx.max_magnitude(amax, numbers[j])
        for o in range_constexpr((FP4_BLOCK // own).bit_length() - 1):
            amax = ptx.max_magnitude(amax, cute.arch.shuffle_sync_bfly(amax, offset=1 << o))
        scale = ptx.fp4_scale(amax)
        for j in range_constexpr(own):
            numbers[j] = ptx.round_e2m1(ptx.divide(numbers[j], scale)) * scale
    for part in range_constexpr(own // 4):
        a = ptx.f32_to_bf16x2(numbers[4 * part], numbers[4 * part + 1])
        b = ptx.f32_to_bf16x2(numbers[4 * part + 2], numbers[4 * part + 3])
        ptx.store_32x2(out + ((token * heads + head) * dim + first + part * 4) // 2, a, b)


@cute.jit
def queries(
    q: cute.Pointer,
    cos: cute.Pointer,
    sin: cute.Pointer,
    out: cute.Pointer,
    tokens: Int32,
    stream: cuda.CUstream,
    heads: cutlass.Constexpr,
    dim: cutlass.Constexpr,
    rope: cutlass.Constexpr,
    fp4: cutlass.Constexpr,
):
    queries_kernel(q, cos, sin, out, heads, dim, rope, fp4).launch(
        grid=[heads, tokens, 1], block=[32, 1, 1], stream=stream
    )


def build(options: str, heads: int, dim: int, rope: int, fp4: bool):
    """Compile without a GPU; pointers are placeholders."""

    def pointer(kind, align=4):
        return make_ptr(kind, 16, cute.AddressSpace.gmem, assumed_align=align)

    f32 = pointer(Float32)
    return cute.compile(
        queries, pointer(Float32, 16), f32, f32, pointer(Int32, 8), Int32(1), cuda.CUstream(0),
        heads, dim, rope, fp4, options=options,
    )  # fmt: skip
