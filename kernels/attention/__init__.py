"""Attention over the sliding window and the compressed rows, with a sink."""

from kernels.attention import cuda, reference
from kernels.dispatch import Impl, Op, anywhere, on_known_gpu

INPUTS_OP = Op(
    "attention_inputs",
    (
        Impl("cute-inputs", cuda.attention_inputs, on_known_gpu, compiled=True),
        Impl("reference", reference.attention_inputs, anywhere),
    ),
)

ATTEND_OP = Op(
    "attend",
    (
        Impl("cute-attend", cuda.attend_cached, on_known_gpu, compiled=True),
        Impl("reference", reference.attend_cached, anywhere),
    ),
)
