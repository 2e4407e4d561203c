"""The sampler: logits to one token id, on the device."""

from kernels.dispatch import Impl, Op, anywhere
from kernels.sample import reference

OP = Op("sample", (Impl("reference", reference.sample, anywhere),))
