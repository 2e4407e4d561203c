"""The KV compressor: one pooled row per block of tokens."""

from kernels.compressor import cuda, reference
from kernels.dispatch import Impl, Op, anywhere, on_known_gpu

OP = Op(
    "compress",
    (
        Impl("cute-compress", cuda.compress, on_known_gpu, compiled=True),
        Impl("reference", reference.compress, anywhere),
    ),
)
