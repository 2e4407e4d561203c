"""Every compiled kernel against its plain-torch reference, on fresh random data and awkward cases.

`run` yields one row a case; `doctor` prints them and the GPU tests assert them.
"""

from collections.abc import Callable, Iterator

import torch

from kernels.attention.cases import attend_cases, inputs_cases
from kernels.checking import Bench, Cases, Row
from kernels.compiled import KernelLibrary
from kernels.compressor.cases import compress_cases
from kernels.errors import KernelError
from kernels.indexer.cases import indexer_cases
from kernels.linear.cases import dense_cases, grouped_cases, linear_cases
from kernels.moe.cases import experts_cases
from kernels.quantise.cases import quantise_cases, round_cases
from kernels.residual.cases import boundary_cases
from kernels.router.cases import router_cases
from kernels.tap.cases import layer_cases, logits_cases

CASES: dict[str, Callable[[Bench], Cases]] = {
    "quantise_rows": quantise_cases,
    "round_rows": round_cases,
    "nvfp4_linear": linear_cases,
    "nvfp4_grouped_linear": grouped_cases,
    "dense_linear": dense_cases,
    "nvfp4_experts": experts_cases,
    "router": router_cases,
    "hyper_boundary": boundary_cases,
    "attention_inputs": inputs_cases,
    "attend": attend_cases,
    "compress": compress_cases,
    "choose_blocks": indexer_cases,
    "tap_layer": layer_cases,
    "tap_logits": logits_cases,
}


def run(library: KernelLibrary, device: torch.device, seed: int = 0) -> Iterator[Row]:
    """All cases. A kernel that cannot be compiled or launched is a row with its message."""
    bench = Bench(library, device, seed)
    for op, cases in CASES.items():
        for case, check in cases(bench):
            try:
                error, limit = check()
            except KernelError as failure:
                yield Row(op, case, 1.0, 0.0, str(failure))
                continue
            if device.type != "meta":
                yield Row(op, case, error, limit)
