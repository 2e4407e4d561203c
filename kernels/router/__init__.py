"""The router: gate scores to experts and mixing weights.

FUSED_OP takes quantised rows and the NVFP4 gate; EPILOGUE_OP takes logits, from whatever made them.
"""

from kernels.dispatch import Impl, OnlyOn, Op, anywhere
from kernels.linear import dense
from kernels.linear import reference as linear_reference
from kernels.router import reference

FUSED_OP = Op(
    "router_fused",
    (
        Impl("dense-fp32", reference.fused_route, OnlyOn("cpu"), dense.prepare),
        Impl("reference", reference.fused_route, anywhere, linear_reference.prepare),
    ),
)

EPILOGUE_OP = Op("router_topk", (Impl("reference", reference.route, anywhere),))
