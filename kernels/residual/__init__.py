"""The residual streams: hyper-connections (mHC) with the norms between two sublayers."""

from kernels.dispatch import Impl, Op, anywhere
from kernels.residual import reference

BOUNDARY_OP = Op("hyper_boundary", (Impl("reference", reference.boundary, anywhere),))
HEAD_OP = Op("hyper_head", (Impl("reference", reference.head_boundary, anywhere),))
