"""Attention over the sliding window and the compressed rows, with a sink."""

from kernels.attention import reference
from kernels.dispatch import Impl, Op, anywhere

INPUTS_OP = Op("attention_inputs", (Impl("reference", reference.attention_inputs, anywhere),))
ATTEND_OP = Op("attend", (Impl("reference", reference.attend_cached, anywhere),))
