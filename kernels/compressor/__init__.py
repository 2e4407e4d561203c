"""The KV compressor: one pooled row per block of tokens."""

from kernels.compressor import reference
from kernels.dispatch import Impl, Op, anywhere

OP = Op("compress", (Impl("reference", reference.compress, anywhere),))
