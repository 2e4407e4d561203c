"""The lightning indexer: which compressed rows a query attends to."""

from kernels.dispatch import Impl, Op, anywhere, on_known_gpu
from kernels.indexer import cuda, reference

OP = Op(
    "choose_blocks",
    (
        Impl("cute-index", cuda.choose_blocks, on_known_gpu, compiled=True),
        Impl("reference", reference.choose_blocks, anywhere),
    ),
)
