"""Routed experts: the chosen experts' two linears with the clamped SwiGLU between them."""

from kernels.dispatch import EXPANDED, Impl, OnlyOn, Op, anywhere, on_known_gpu
from kernels.moe import cuda, reference

OP = Op(
    "nvfp4_experts",
    (
        Impl("cute-pair", cuda.experts, on_known_gpu, reference.prepare_packed, compiled=True),
        Impl(EXPANDED, reference.experts, OnlyOn("cpu"), reference.prepare_dense),
        Impl("reference", reference.experts, anywhere, reference.prepare_packed),
    ),
)
