"""Queries and the new KV row from their projections: norms, rotation, cache rounding, one launch.

One warp takes one head of one token, or the KV row. A lane owns D/32 neighbouring numbers, so a
rotary pair never leaves it; every step rounds to bf16 where the reference does.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, const_expr, range_constexpr
from cutlass.cute.runtime import make_ptr

from kernels import cute_ptx as ptx
from kernels.cute_warp import warp_sum

KV_BLOCK = 64


@cute.kernel
def inputs_kernel(
    q: cute.Pointer,
    kv: cute.Pointer,
    kv_norm: cute.Pointer,
    cos: cute.Pointer,
    sin: cute.Pointer,
    queries: cute.Pointer,
    row: cute.Pointer,
    eps: Float32,
    heads: cutlass.Constexpr,
    dim: cutlass.Constexpr,
    rope: cutlass.Constexpr,
    kv_fp8: cutlass.Constexpr,
):
    lane, _, _ = cute.arch.thread_idx()
    head, token, _ = cute.arch.block_idx()
    own = dim // 32
    plain = dim - rope
    first = lane * own
    is_kv = head == heads

    cute.arch.griddepcontrol_launch_dependents()
    cute.arch.griddepcontrol_wait()
    numbers = []
    total = Float32(0.0)
    for j in range_constexpr(own):
        x = Float32(0.0)
        if is_kv:
            x = ptx.load_f32(kv + (token * dim + first + j))
        else:
            x = ptx.load_f32(q + ((token * heads + head) * dim + first + j))
        x = ptx.through_bf16(x)
        total += x * x
        numbers.append(x)
    total = warp_sum(total)
    rho = ptx.rsqrt(total * (1.0 / dim) + eps)
    for j in range_constexpr(own):
        weight = Float32(1.0)
        if is_kv:
            weight = ptx.load_f32(kv_norm + (first + j))
        numbers[j] = ptx.through_bf16(numbers[j] * rho * weight)

    for j in range_constexpr(own // 2):
        even, odd = numbers[2 * j], numbers[2 * j + 1]
        pair = (first - plain) // 2 + j
        if first + 2 * j >= plain:
            c = ptx.load_f32(cos + (token * (rope // 2) + pair))
            s = ptx.load_f32(sin + (token * (rope // 2) + pair))
            even, odd = even * c - odd * s, even * s + odd * c
        numbers[2 * j], numbers[2 * j + 1] = ptx.through_bf16(even), ptx.through_bf16(odd)

    if const_expr(kv_fp8):
        amax = Float32(0.0)
        for j in range_constexpr(own):
            amax = ptx.max_magnitude(amax, numbers[j])
        for o in range_constexpr((KV_BLOCK // own).bit_length() - 1):
            amax = ptx.max_magnitude(amax, cute.arch.shuffle_sync_bfly(amax, offset=1 << o))
        scale = ptx.fp8_scale(amax)
        for j in range_constexpr(own):
            rounded = numbers[j]
            if is_kv and first + j < plain:
                rounded = ptx.round_e4m3(ptx.divide(rounded, scale)) * scale
            numbers[j] = rounded

    for j in range_constexpr(own):
        if is_kv:
            ptx.store_bf16(row + (token * dim + first + j), numbers[j])
        else:
            ptx.store_bf16(queries + ((token * heads + head) * dim + first + j), numbers[j])


@cute.jit
def inputs(
    q: cute.Pointer,
    kv: cute.Pointer,
    kv_norm: cute.Pointer,
    cos: cute.Pointer,
    sin: cute.Pointer,
    queries: cute.Pointer,
    row: cute.Pointer,
    eps: Float32,
    tokens: Int32,
    stream: cuda.CUstream,
    heads: cutlass.Constexpr,
    dim: cutlass.Constexpr,
    rope: cutlass.Constexpr,
    kv_fp8: cutlass.Constexpr,
):
    inputs_kernel(q, kv, kv_norm, cos, sin, queries, row, eps, heads, dim, rope, kv_fp8).launch(
        grid=[heads + 1, tokens, 1], block=[32, 1, 1], stream=stream
    )


def build(options: str, heads: int, dim: int, rope: int, kv_fp8: bool):
    """Compile without a GPU; pointers are placeholders."""

    def pointer(kind, align):
        return make_ptr(kind, 16, cute.AddressSpace.gmem, assumed_align=align)

    bf16, f32 = pointer(cutlass.BFloat16, 2), pointer(Float32, 4)
    return cute.compile(
        inputs,
        f32,
        f32,
        f32,
        f32,
        f32,
        bf16,
        bf16,
        Float32(0.0),
        Int32(1),
        cuda.CUstream(0),
        heads,
        dim,
        rope,
        kv_fp8,
        options=options,
    )
