"""Routed experts: the chosen experts' two linears with the clamped SwiGLU between them."""

from kernels.dispatch import Impl, OnlyOn, Op, anywhere
from kernels.moe import reference

OP = Op(
    "nvfp4_experts",
    (
        Impl("dense-fp32", reference.experts, OnlyOn("cpu"), reference.prepare_dense),
        Impl("reference", reference.experts, anywhere, reference.prepare_packed),
    ),
)
