"""Linears. NVFP4: rows quantised once, weights streamed once.

OP is the plain projection, GROUPED_OP the block-diagonal one of o_a; DENSE_OP is for weights that
are never quantised.
"""

from kernels.dispatch import EXPANDED, Impl, OnlyOn, Op, anywhere, on_known_gpu
from kernels.linear import cuda, dense, reference

OP = Op(
    "nvfp4_linear",
    (
        Impl("cute-gemv", cuda.nvfp4_linear, on_known_gpu, reference.prepare, compiled=True),
        Impl(EXPANDED, dense.nvfp4_linear, OnlyOn("cpu"), dense.prepare),
        Impl("reference", reference.nvfp4_linear, anywhere, reference.prepare),
    ),
)

GROUPED_OP = Op(
    "nvfp4_grouped_linear",
    (
        Impl(
            "cute-gemv", cuda.nvfp4_grouped_linear, on_known_gpu, reference.prepare, compiled=True
        ),
        Impl(EXPANDED, dense.nvfp4_grouped_linear, OnlyOn("cpu"), dense.prepare),
        Impl("reference", reference.nvfp4_grouped_linear, anywhere, reference.prepare),
    ),
)

DENSE_OP = Op(
    "dense_linear",
    (
        Impl("cute-bf16", cuda.dense_linear, on_known_gpu, compiled=True),
        Impl("reference", reference.dense_linear, anywhere),
    ),
)
