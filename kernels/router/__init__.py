"""The router: gate scores to experts and mixing weights.

FUSED_OP takes quantised rows and the NVFP4 gate; EPILOGUE_OP takes logits, from whatever made
them; HASH_OP also takes the choice from a table.
"""

from kernels.dispatch import EXPANDED, Impl, OnlyOn, Op, anywhere, on_known_gpu
from kernels.linear import dense
from kernels.linear import reference as linear_reference
from kernels.router import cuda, reference

FUSED_OP = Op(
    "router_fused",
    (
        Impl("cute-fused", cuda.fused_route, on_known_gpu, linear_reference.prepare, compiled=True),
        Impl(EXPANDED, reference.fused_route, OnlyOn("cpu"), dense.prepare),
        Impl("reference", reference.fused_route, anywhere, linear_reference.prepare),
    ),
)

EPILOGUE_OP = Op(
    "router_topk",
    (
        Impl("cute-topk", cuda.route, on_known_gpu, compiled=True),
        Impl("reference", reference.route, anywhere),
    ),
)

HASH_OP = Op(
    "router_hash",
    (
        Impl("cute-hash", cuda.hash_route, on_known_gpu, compiled=True),
        Impl("reference", reference.hash_route, anywhere),
    ),
)
