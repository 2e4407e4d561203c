"""PTX the kernels share: vector loads and stores, exact arithmetic, format conversions.

Weights are read with `.nc` and no L1 allocation. Activations are read plainly: ptxas moves `.nc`
loads freely, and one of data that the kernel before wrote could move above the wait for it.
"""

from cutlass import Float32, Int16, Int32
from cutlass.cute.arch import inline_ptx


def load_weight_128(pointer):
    """16 streamed bytes as 4 Int32."""
    return inline_ptx(
        "ld.global.nc.L1::no_allocate.v4.b32 { {$w0}, {$w1}, {$w2}, {$w3} }, [{$r0}];",
        write_only_types=[Int32] * 4,
        read_only_args=[pointer],
    )


def load_weight_16(pointer):
    """2 streamed bytes as Int16: two E4M3 scales."""
    return inline_ptx(
        "ld.global.nc.b16 {$w0}, [{$r0}];", write_only_types=[Int16], read_only_args=[pointer]
    )


def load_128(pointer):
    """16 bytes of an activation as 4 Int32."""
    return inline_ptx(
        "ld.global.v4.b32 { {$w0}, {$w1}, {$w2}, {$w3} }, [{$r0}];",
        write_only_types=[Int32] * 4,
        read_only_args=[pointer],
    )


def store_128(pointer, a, b, c, d):
    inline_ptx(
        "st.global.v4.b32 [{$r0}], { {$r1}, {$r2}, {$r3}, {$r4} };",
        read_only_args=[pointer, a, b, c, d],
    )


def load_128_l2(pointer):
    """16 bytes that another CTA of this launch wrote: past the L1."""
    return inline_ptx(
        "ld.global.cg.v4.b32 { {$w0}, {$w1}, {$w2}, {$w3} }, [{$r0}];",
        write_only_types=[Int32] * 4,
        read_only_args=[pointer],
    )


def load_weight_f32(pointer):
    """A streamed fp32."""
    return inline_ptx(
        "ld.global.nc.f32 {$w0}, [{$r0}];", write_only_types=[Float32], read_only_args=[pointer]
    )


def store_f32x2(pointer, a, b):
    inline_ptx("st.global.v2.f32 [{$r0}], { {$r1}, {$r2} };", read_only_args=[pointer, a, b])


def store_32x2(pointer, a, b):
    inline_ptx("st.global.v2.b32 [{$r0}], { {$r1}, {$r2} };", read_only_args=[pointer, a, b])


def divide(a, b):
    """a / b, rounded to nearest: codes must equal the reference's bit for bit."""
    return inline_ptx(
        "div.rn.f32 {$w0}, {$r0}, {$r1};", write_only_types=[Float32], read_only_args=[a, b]
    )


def bf16x2_to_f32(word):
    """A packed pair -> (low, high) fp32."""
    return inline_ptx(
        "{ shl.b32 {$w0}, {$r0}, 16; and.b32 {$w1}, {$r0}, 0xFFFF0000; }",
        write_only_types=[Float32, Float32],
        read_only_args=[word],
    )


def f32_to_bf16x2(low, high):
    """(low, high) fp32 -> a packed pair, to nearest."""
    return inline_ptx(
        "cvt.rn.bf16x2.f32 {$w0}, {$r1}, {$r0};",
        write_only_types=[Int32],
        read_only_args=[low, high],
    )


def round_e4m3(x):
    """Nearest E4M3 value as fp32, saturating at 448. x finite, >= 0."""
    return inline_ptx(
        """{ .reg .b16 c; .reg .b32 p; .reg .b16 l, h; .reg .f32 z; mov.f32 z, 0f00000000;
        cvt.rn.satfinite.e4m3x2.f32 c, z, {$r0}; cvt.rn.f16x2.e4m3x2 p, c;
        mov.b32 {l, h}, p; cvt.f32.f16 {$w0}, l; }""",
        write_only_types=[Float32],
        read_only_args=[x],
    )


def round_e2m1(x):
    """Nearest E2M1 value as fp32, ties to even, saturating at 6; a sign of zero is kept.

    The grid step is 1/2 below 2, 1 below 4, then 2; adding 1.5 * 2^23 steps rounds to it.
    """
    return inline_ptx(
        """{ .reg .f32 m, s; .reg .pred p, q;
        abs.f32 m, {$r0}; min.f32 m, m, 0f40C00000;
        setp.ge.f32 p, m, 0f40000000; setp.ge.f32 q, m, 0f40800000;
        mov.f32 s, 0f4AC00000; @p mov.f32 s, 0f4B400000; @q mov.f32 s, 0f4BC00000;
        add.rn.f32 m, m, s; sub.rn.f32 m, m, s; copysign.f32 {$w0}, {$r0}, m; }""",
        write_only_types=[Float32],
        read_only_args=[x],
    )


def max_magnitude(a, b):
    """max(|a|, |b|), NaN if either is: a bad row must not come out clean."""
    return inline_ptx(
        "{ .reg .f32 x, y; abs.f32 x, {$r0}; abs.f32 y, {$r1}; max.NaN.f32 {$w0}, x, y; }",
        write_only_types=[Float32],
        read_only_args=[a, b],
    )


def as_f32(word):
    """The bits of a word as fp32."""
    return inline_ptx("mov.b32 {$w0}, {$r0};", write_only_types=[Float32], read_only_args=[word])


def load_f32(pointer):
    return inline_ptx(
        "ld.global.f32 {$w0}, [{$r0}];", write_only_types=[Float32], read_only_args=[pointer]
    )


def store_f32(pointer, value):
    inline_ptx("st.global.f32 [{$r0}], {$r1};", read_only_args=[pointer, value])


def store_32(pointer, value):
    inline_ptx("st.global.b32 [{$r0}], {$r1};", read_only_args=[pointer, value])


def store_shared_32(pointer, value):
    inline_ptx("st.shared.b32 [{$r0}], {$r1};", read_only_args=[pointer, value])


def load_shared_32(pointer):
    return inline_ptx(
        "ld.shared.b32 {$w0}, [{$r0}];", write_only_types=[Int32], read_only_args=[pointer]
    )


def load_i64_low(pointer):
    """The low half of an int64 below 2^31."""
    return inline_ptx(
        "{ .reg .b64 v; ld.global.b64 v, [{$r0}]; cvt.u32.u64 {$w0}, v; }",
        write_only_types=[Int32],
        read_only_args=[pointer],
    )


def clamped_swiglu(gate, up, limit):
    """silu(min(gate, limit)) * clamp(up, -limit, limit), with full-precision exp and division."""
    return inline_ptx(
        """{ .reg .f32 a, b, e, n; min.NaN.f32 a, {$r0}, {$r2}; neg.f32 n, {$r2};
        min.NaN.f32 b, {$r1}, {$r2}; max.NaN.f32 b, b, n;
        mul.f32 e, a, 0fBFB8AA3B; ex2.approx.f32 e, e; add.f32 e, e, 0f3F800000;
        div.rn.f32 e, a, e; mul.f32 {$w0}, e, b; }""",
        write_only_types=[Float32],
        read_only_args=[gate, up, limit],
    )


def store_u8(pointer, value):
    inline_ptx(
        "{ .reg .b16 b; cvt.u16.u32 b, {$r1}; st.global.u8 [{$r0}], b; }",
        read_only_args=[pointer, value],
    )


def store_i64(pointer, value):
    """A non-negative Int32 as int64."""
    inline_ptx(
        "{ .reg .b64 v; cvt.s64.s32 v, {$r1}; st.global.b64 [{$r0}], v; }",
        read_only_args=[pointer, value],
    )


def fence_device():
    """Order this thread's memory accesses before and after it, for the whole device."""
    inline_ptx("fence.acq_rel.gpu;", read_only_args=[])


def atomic_inc(pointer, limit):
    """Old value; the counter becomes old + 1, or 0 after `limit`."""
    return inline_ptx(
        "atom.global.inc.u32 {$w0}, [{$r0}], {$r1};",
        write_only_types=[Int32],
        read_only_args=[pointer, limit],
    )


def router_score(logit):
    """sqrt(softplus(logit)), finite for every input, NaN -> 0.

    softplus = max(x, 0) + log1p(e^-|x|), the logarithm as 2 atanh(y / (2 + y)): a series that keeps
    its relative precision where y is tiny. Below -16 the root is e^(x/2).
    """
    terms = [0x3F800000, 0x3EAAAAAB, 0x3E4CCCCD, 0x3E124925, 0x3DE38E39, 0x3DBA2E8C, 0x3D9D89D9]
    series = f"mov.f32 p, 0f{terms[-1]:08X}; "
    series += " ".join(f"fma.rn.f32 p, p, z, 0f{term:08X};" for term in reversed(terms[:-1]))
    return inline_ptx(
        f"""{{ .reg .f32 x, a, y, s, z, p, r; .reg .pred low, bad;
        testp.notanumber.f32 bad, {{$r0}}; mov.f32 x, {{$r0}}; @bad mov.f32 x, 0fFF800000;
        abs.f32 a, x; mul.f32 y, a, 0fBFB8AA3B; ex2.approx.f32 y, y;
        add.f32 s, y, 0f40000000; div.rn.f32 s, y, s; mul.f32 z, s, s;
        {series}
        mul.f32 p, p, s; add.f32 p, p, p; max.f32 r, x, 0f00000000; add.f32 r, r, p;
        sqrt.rn.f32 r, r;
        setp.lt.f32 low, x, 0fC1800000; mul.f32 y, x, 0f3F38AA3B; ex2.approx.f32 y, y;
        @low mov.f32 r, y; min.f32 {{$w0}}, r, 0f5D5E0B6B; }}""",
        write_only_types=[Float32],
        read_only_args=[logit],
    )


def rank(logit, ranked):
    """score + bias clamped to +-1e30; a NaN logit ranks at -1e30."""
    return inline_ptx(
        """{ .reg .pred bad; .reg .f32 r; testp.notanumber.f32 bad, {$r0};
        min.f32 r, {$r1}, 0f7149F2CA; max.f32 r, r, 0fF149F2CA; @bad mov.f32 r, 0fF149F2CA;
        mov.f32 {$w0}, r; }""",
        write_only_types=[Float32],
        read_only_args=[logit, ranked],
    )


def load_f32_l2(pointer):
    """An fp32 that another CTA of this launch wrote: past the L1."""
    return inline_ptx(
        "ld.global.cg.f32 {$w0}, [{$r0}];", write_only_types=[Float32], read_only_args=[pointer]
    )


def load_32_l2(pointer):
    """A word that another CTA of this launch wrote: past the L1."""
    return inline_ptx(
        "ld.global.cg.b32 {$w0}, [{$r0}];", write_only_types=[Int32], read_only_args=[pointer]
    )


def load_bf16(pointer):
    return inline_ptx(
        "{ .reg .b16 h; ld.global.b16 h, [{$r0}]; mov.b32 {$w0}, {0, h}; }",
        write_only_types=[Float32],
        read_only_args=[pointer],
    )


def load_bf16_l2(pointer):
    """A bf16 that another CTA of this launch wrote: past the L1."""
    return inline_ptx(
        "{ .reg .b16 h; ld.global.cg.b16 h, [{$r0}]; mov.b32 {$w0}, {0, h}; }",
        write_only_types=[Float32],
        read_only_args=[pointer],
    )


def store_bf16(pointer, value):
    inline_ptx(
        "{ .reg .b16 h; cvt.rn.bf16.f32 h, {$r1}; st.global.b16 [{$r0}], h; }",
        read_only_args=[pointer, value],
    )


def through_bf16(value):
    """value rounded to bf16, as fp32."""
    return inline_ptx(
        "{ .reg .b16 h; cvt.rn.bf16.f32 h, {$r0}; mov.b32 {$w0}, {0, h}; }",
        write_only_types=[Float32],
        read_only_args=[value],
    )


def exp(x):
    return inline_ptx(
        "{ .reg .f32 e; mul.f32 e, {$r0}, 0f3FB8AA3B; ex2.approx.f32 {$w0}, e; }",
        write_only_types=[Float32],
        read_only_args=[x],
    )


def sigmoid(x):
    return inline_ptx(
        """{ .reg .f32 e; mul.f32 e, {$r0}, 0fBFB8AA3B; ex2.approx.f32 e, e;
        add.f32 e, e, 0f3F800000; rcp.rn.f32 {$w0}, e; }""",
        write_only_types=[Float32],
        read_only_args=[x],
    )


def reciprocal(x):
    """1 / x within one unit in the last place."""
    return inline_ptx(
        "rcp.approx.ftz.f32 {$w0}, {$r0};", write_only_types=[Float32], read_only_args=[x]
    )


def rsqrt(x):
    """1 / sqrt(x) with the root and the division rounded to nearest."""
    return inline_ptx(
        "{ .reg .f32 r; sqrt.rn.f32 r, {$r0}; rcp.rn.f32 {$w0}, r; }",
        write_only_types=[Float32],
        read_only_args=[x],
    )


def fp8_scale(amax):
    """Smallest power of two >= max(amax, 1e-4) / 448, by the exponent bits."""
    return inline_ptx(
        """{ .reg .f32 v; .reg .b32 b, m; .reg .pred p; max.f32 v, {$r0}, 0f38D1B717;
        mul.rn.f32 v, v, 0f3B124925; mov.b32 b, v; and.b32 m, b, 0x007FFFFF;
        and.b32 b, b, 0x7F800000; setp.ne.u32 p, m, 0; @p add.u32 b, b, 0x00800000;
        mov.b32 {$w0}, b; }""",
        write_only_types=[Float32],
        read_only_args=[amax],
    )


def load_i64_low_at(pointer):
    """As `load_i64_low`, for a value that may be any int64: its low 32 bits."""
    return inline_ptx(
        "{ .reg .b32 h; ld.global.v2.b32 { {$w0}, h }, [{$r0}]; }",
        write_only_types=[Int32],
        read_only_args=[pointer],
    )


def load_32(pointer):
    return inline_ptx(
        "ld.global.b32 {$w0}, [{$r0}];", write_only_types=[Int32], read_only_args=[pointer]
    )


def load_u8(pointer):
    return inline_ptx(
        "{ .reg .b16 b; ld.global.u8 b, [{$r0}]; cvt.u32.u16 {$w0}, b; }",
        write_only_types=[Int32],
        read_only_args=[pointer],
    )


def fp4_scale(amax):
    """Smallest power of two >= max(amax, 6 * 2^-126) / 6, by the exponent bits."""
    return inline_ptx(
        """{ .reg .f32 v; .reg .b32 b, m; .reg .pred p; max.f32 v, {$r0}, 0f01C00000;
        mul.rn.f32 v, v, 0f3E2AAAAB; mov.b32 b, v; and.b32 m, b, 0x007FFFFF;
        and.b32 b, b, 0x7F800000; setp.ne.u32 p, m, 0; @p add.u32 b, b, 0x00800000;
        mov.b32 {$w0}, b; }""",
        write_only_types=[Float32],
        read_only_args=[amax],
    )


def ordered(value):
    """An int32 that compares as the float does."""
    return inline_ptx(
        """{ .reg .b32 v, m; .reg .pred p; mov.b32 v, {$r0}; xor.b32 m, v, 0x7FFFFFFF;
        setp.lt.s32 p, v, 0; selp.b32 {$w0}, m, v, p; }""",
        write_only_types=[Int32],
        read_only_args=[value],
    )


def unordered(key):
    """The float of an `ordered` key."""
    return inline_ptx(
        """{ .reg .b32 m; .reg .pred p; xor.b32 m, {$r0}, 0x7FFFFFFF;
        setp.lt.s32 p, {$r0}, 0; selp.b32 {$w0}, m, {$r0}, p; }""",
        write_only_types=[Float32],
        read_only_args=[key],
    )
