"""NVFP4 quantisation of activation rows, each with its own gsa."""

from kernels.dispatch import Impl, Op, anywhere, on_known_gpu
from kernels.formats import quantise_nvfp4_rows
from kernels.quantise import cuda, reference

OP = Op(
    "quantise_rows",
    (
        Impl("cute-rows", cuda.quantise_rows, on_known_gpu, compiled=True),
        Impl("reference", quantise_nvfp4_rows, anywhere),
    ),
)

ROUND_OP = Op(
    "round_rows",
    (
        Impl("cute-rows", cuda.round_rows, on_known_gpu, compiled=True),
        Impl("reference", reference.round_rows, anywhere),
    ),
)
