"""NVFP4 weights times bf16 activations on the tensor cores, for a handful of rows.

A weight is decoded with integer instructions that exist on every architecture: the sign at bit 15
and the three other bits at bits 8:6 of a bf16 are the number times 2^-126. Times the block scale
times 2^118 it is code * scale * 2^-8, exact in bf16; the caller multiplies the sum by 2^8.
`mma.m16n8k16` takes 16 weight rows as A and up to 8 activation rows as B, and accumulates in fp32.

Of a 128-wide chunk of K lane t of four owns 32 neighbours, 16 bytes: which k a slot of the MMA
means is free as long as A and B agree, so both use the lane's own numbers, and B is stored with the
pairs in the order the decoder makes them: (0,4) (1,5) (2,6) (3,7) of each 8.
"""

from cutlass import Float32, Int32
from cutlass.cute.arch import inline_ptx

CHUNK = 128
PRODUCT_SCALE = 256.0  # undoes the 2^-8 of the decoder


def scale_pair(bytes16):
    """Two E4M3 scales -> (s0, s0) and (s1, s1) as bf16 pairs, times 2^118."""
    return inline_ptx(
        """{ .reg .b32 p; .reg .b16 l, h; .reg .f32 a, b;
        cvt.rn.f16x2.e4m3x2 p, {$r0}; mov.b32 {l, h}, p; cvt.f32.f16 a, l; cvt.f32.f16 b, h;
        mul.f32 a, a, 0f7A800000; mul.f32 b, b, 0f7A800000;
        cvt.rn.bf16x2.f32 {$w0}, a, a; cvt.rn.bf16x2.f32 {$w1}, b, b; }""",
        write_only_types=[Int32, Int32],
        read_only_args=[bytes16],
    )


def decode8(word, scale):
    """8 E2M1 codes -> 4 bf16 pairs (0,4) (1,5) (2,6) (3,7), times the scale pair."""
    lines = []
    for q in range(4):
        shift = 8 - (4 * q + 2)  # brings the three magnitude bits of nibbles q and q+4 to 8:6
        move = f"shl.b32 a, {{$r0}}, {shift};" if shift >= 0 else f"shr.u32 a, {{$r0}}, {-shift};"
        lines.append(
            f"{move} and.b32 a, a, 0x01C001C0; shl.b32 b, {{$r0}}, {12 - 4 * q}; "
            f"lop3.b32 a, b, 0x80008000, a, 0xEA; mul.rn.bf16x2 {{$w{q}}}, a, {{$r1}};"
        )
    return inline_ptx(
        "{ .reg .b32 a, b;\n" + "\n".join(lines) + "}",
        write_only_types=[Int32] * 4,
        read_only_args=[word, scale],
    )


def mma(a, b0, b1, c):
    """c + A B of one m16n8k16 tile, bf16 in, fp32 out; a is 4 words, c 4 floats."""
    return inline_ptx(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 { {$w0}, {$w1}, {$w2}, {$w3} }, "
        "{ {$r0}, {$r1}, {$r2}, {$r3} }, { {$r4}, {$r5} }, { {$r6}, {$r7}, {$r8}, {$r9} };",
        write_only_types=[Float32] * 4,
        read_only_args=[*a, b0, b1, *c],
    )


def interleave8(v):
    """8 bf16 in 4 words (0,1) (2,3) (4,5) (6,7) -> the decoder's pair order."""
    low = [_permute(v[0], v[2], "0x5410"), _permute(v[0], v[2], "0x7632")]
    return [*low, _permute(v[1], v[3], "0x5410"), _permute(v[1], v[3], "0x7632")]


def _permute(a, b, selector):
    return inline_ptx(
        f"prmt.b32 {{$w0}}, {{$r0}}, {{$r1}}, {selector};",
        write_only_types=[Int32],
        read_only_args=[a, b],
    )


def load_shared_128(pointer):
    return inline_ptx(
        "ld.shared.v4.b32 { {$w0}, {$w1}, {$w2}, {$w3} }, [{$r0}];",
        write_only_types=[Int32] * 4,
        read_only_args=[pointer],
    )


def store_shared_128(pointer, v):
    inline_ptx(
        "st.shared.v4.b32 [{$r0}], { {$r1}, {$r2}, {$r3}, {$r4} };",
        read_only_args=[pointer, *v],
    )


def chunk_products(low_words, high_words, low_scales, high_scales, x_words, acc):
    """Add one 128-wide chunk of 16 weight rows times the activation rows.

    low_words, high_words: 4 words each, the lane's 32 codes of weight rows g and g+8; *_scales:
    their two scales as 16 bits. x_words: shared-memory pointer to the lane's 16 words. acc: two
    4-float tiles.
    """
    low_pairs, high_pairs = scale_pair(low_scales), scale_pair(high_scales)
    for j in range(4):
        x = load_shared_128(x_words + j * 4)
        a = decode8(low_words[j], low_pairs[j // 2])
        b = decode8(high_words[j], high_pairs[j // 2])
        acc[0] = mma((a[0], b[0], a[1], b[1]), x[0], x[1], acc[0])
        acc[1] = mma((a[2], b[2], a[3], b[3]), x[2], x[3], acc[1])
    return acc
