"""NVFP4 quantisation of numbers that sit in registers, one 16-block at a time.

Shared by the kernels that end in a quantised row; bit-equal to `kernels.formats`. Plain functions
without branches, inlined where they are called.
"""

from cutlass import Float32, Int32
from cutlass.cute.arch import inline_ptx

from kernels import cute_ptx as ptx

BLOCK = 16
GSA_DIVISOR = 2688.0


def block_peak(numbers):
    """Largest magnitude of a block; NaN if any number is."""
    largest = Float32(0.0)
    for number in numbers:
        largest = ptx.max_magnitude(largest, number)
    return largest


def block_scale(amax, gsa):
    """-> the block's E4M3 scale as fp32, and 0 or 1 each: it saturated, it was flushed to zero."""
    raw = inline_ptx(
        """{ .reg .f32 d; .reg .pred z; mul.rn.f32 d, {$r1}, 0f40C00000; div.rn.f32 d, {$r0}, d;
        setp.eq.f32 z, {$r0}, 0f00000000; @z mov.f32 d, 0f00000000; mov.f32 {$w0}, d; }""",
        write_only_types=[Float32],
        read_only_args=[amax, gsa],
    )
    scale = ptx.round_e4m3(raw)
    over, under = inline_ptx(
        """{ .reg .pred p; setp.gt.f32 p, {$r0}, 0f43E80000; selp.b32 {$w0}, 1, 0, p;
        setp.eq.f32 p, {$r1}, 0f00000000; setp.gt.and.f32 p, {$r2}, 0f00000000, p;
        selp.b32 {$w1}, 1, 0, p; }""",
        write_only_types=[Int32, Int32],
        read_only_args=[raw, scale, amax],
    )
    return scale, over, under


def quantised_words(numbers, scale, gsa):
    """16 numbers -> 8 words of bf16 pairs, code times block scale; 0 where scale * gsa is 0."""
    step = scale * gsa
    made = [_quantised(number, step, scale) for number in numbers]
    return [ptx.f32_to_bf16x2(made[2 * j], made[2 * j + 1]) for j in range(BLOCK // 2)]


def _quantised(number, step, scale):
    code = ptx.round_e2m1(ptx.divide(number, step))
    return inline_ptx(
        """{ .reg .f32 v; .reg .pred z; setp.eq.f32 z, {$r1}, 0f00000000; mov.f32 v, {$r0};
        @z mov.f32 v, 0f00000000; mul.rn.f32 {$w0}, v, {$r2}; }""",
        write_only_types=[Float32],
        read_only_args=[code, step, scale],
    )


def block_numbers_bf16(low, high):
    """Two 16-byte loads of bf16 -> 16 fp32."""
    numbers = []
    for word in (*low, *high):
        numbers.extend(ptx.bf16x2_to_f32(word))
    return numbers
