"""The tap record of a step: a part for each layer, and one for the logits."""

from kernels.dispatch import Impl, Op, anywhere, on_known_gpu
from kernels.tap import cuda, reference

LAYER_OP = Op(
    "tap_layer",
    (
        Impl("cute-tap", cuda.record_layer, on_known_gpu, compiled=True),
        Impl("reference", reference.record_layer, anywhere),
    ),
)

LOGITS_OP = Op(
    "tap_logits",
    (
        Impl("cute-tap", cuda.record_logits, on_known_gpu, compiled=True),
        Impl("reference", reference.record_logits, anywhere),
    ),
)
