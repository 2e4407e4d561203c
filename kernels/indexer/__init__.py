"""The lightning indexer: which compressed rows a query attends to."""

from kernels.dispatch import Impl, Op, anywhere
from kernels.indexer import reference

OP = Op("choose_blocks", (Impl("reference", reference.choose_blocks, anywhere),))
