"""NVFP4 quantisation of activation rows, each with its own gsa."""

from kernels.dispatch import Impl, Op, anywhere
from kernels.formats import quantise_nvfp4_rows

OP = Op("quantise_rows", (Impl("reference", quantise_nvfp4_rows, anywhere),))
