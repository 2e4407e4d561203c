"""The residual streams: hyper-connections (mHC) with the norms between two sublayers."""

from kernels.dispatch import Impl, Op, anywhere, on_known_gpu
from kernels.residual import cuda, reference

BOUNDARY_OP = Op(
    "hyper_boundary",
    (
        Impl("cute-boundary", cuda.boundary, on_known_gpu, compiled=True),
        Impl("reference", reference.boundary, anywhere),
    ),
)

HEAD_OP = Op(
    "hyper_head",
    (
        Impl("cute-boundary", cuda.head_boundary, on_known_gpu, compiled=True),
        Impl("reference", reference.head_boundary, anywhere),
    ),
)
