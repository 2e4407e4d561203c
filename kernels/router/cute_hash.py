"""Mixing weights of experts that a table names by token id: one warp a row."""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.cute.runtime import make_ptr

from kernels import cute_ptx as ptx
from kernels.cute_warp import warp_sum


@cute.kernel
def hash_kernel(
    logits: cute.Pointer,
    table: cute.Pointer,
    token_ids: cute.Pointer,
    ids: cute.Pointer,
    weights: cute.Pointer,
    margin: cute.Pointer,
    route_scale: Float32,
    experts: cutlass.Constexpr,
    choices: cutlass.Constexpr,
):
    row, _, _ = cute.arch.block_idx()
    lane = cute.arch.lane_idx()
    cute.arch.griddepcontrol_launch_dependents()
    cute.arch.griddepcontrol_wait()
    token = ptx.load_i64_low_at(token_ids + row)
    expert = Int32(0)
    score = Float32(0.0)
    if lane < choices:
        expert = ptx.load_32(table + Int64(token) * choices + lane)
        score = ptx.router_score(ptx.load_f32(logits + row * experts + expert))
    total = warp_sum(score)
    if lane < choices:
        weight = ptx.divide(score, total) * route_scale
        if total <= 0.0:
            weight = Float32(1.0 / choices) * route_scale
        ptx.store_i64(ids + row * choices + lane, expert)
        ptx.store_f32(weights + row * choices + lane, weight)
    if lane == 0:
        ptx.store_f32(margin + row, Float32(float("inf")))


@cute.jit
def route(
    logits: cute.Pointer,
    table: cute.Pointer,
    token_ids: cute.Pointer,
    ids: cute.Pointer,
    weights: cute.Pointer,
    margin: cute.Pointer,
    route_scale: Float32,
    rows: Int32,
    stream: cuda.CUstream,
    experts: cutlass.Constexpr,
    choices: cutlass.Constexpr,
):
    hash_kernel(
        logits, table, token_ids, ids, weights, margin, route_scale, experts, choices
    ).launch(grid=[rows, 1, 1], block=[32, 1, 1], stream=stream)


def build(options: str, experts: int, choices: int):
    """Compile without a GPU; pointers are placeholders."""

    def pointer(kind, align=4):
        return make_ptr(kind, 16, cute.AddressSpace.gmem, assumed_align=align)

    f32, i64 = pointer(Float32), pointer(Int64, 8)
    return cute.compile(
        route, f32, pointer(Int32), i64, i64, f32, f32, Float32(1.0), Int32(1), cuda.CUstream(0),
        experts, choices, options=options,
    )  # fmt: skip
