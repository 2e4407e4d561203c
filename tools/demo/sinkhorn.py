"""Sinkhorn normalisation with an exact, reversible gradient (architecture.md 3.2).

Every step is y = x / (sum + eps). Keeping the sums is enough to walk back from the result:
x = y * (sum + eps). On CUDA one Triton kernel does all rounds of a token in registers; elsewhere
the same loop runs in plain torch.
"""

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # CPU builds of torch come without Triton
    triton = None

_ROW, _COLUMN = -1, -2


def sinkhorn(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """[N, S, S] fp32 -> nearly doubly stochastic [N, S, S] fp32, differentiable."""
    start = torch.softmax(logits, -1) + eps
    if triton is not None and logits.is_cuda:
        return _normalise(start, iterations, eps)
    return _Plain.apply(start, iterations, eps)


class _Plain(torch.autograd.Function):
    @staticmethod
    def forward(ctx, comb, iterations, eps):
        sums = []
        for axis in _axes(iterations):
            sums.append(comb.sum(axis, keepdim=True) + eps)
            comb = comb / sums[-1]
        ctx.axes = _axes(iterations)
        ctx.save_for_backward(comb, *sums)
        return comb

    @staticmethod
    def backward(ctx, grad):
        comb, *sums = ctx.saved_tensors
        for axis, total in zip(reversed(ctx.axes), reversed(sums), strict=True):
            grad = (grad - (grad * comb).sum(axis, keepdim=True)) / total
            comb = comb * total
        return grad, None, None


def _axes(iterations: int) -> list[int]:
    """Columns once after the softmax, then rows and columns."""
    return [_COLUMN] + [_ROW, _COLUMN] * (iterations - 1)


if triton is not None:

    @triton.jit
    def _forward_kernel(
        start, out, sums, count, eps, ITERATIONS: tl.constexpr, BLOCK: tl.constexpr
    ):
        token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        lane = tl.arange(0, 4)
        at = token[:, None, None] * 16 + lane[None, :, None] * 4 + lane[None, None, :]
        live = token[:, None, None] < count
        kept = token[:, None] * 4 + lane[None, :]
        live_row = token[:, None] < count
        comb = tl.load(start + at, mask=live, other=0.25)
        total = tl.sum(comb, 1) + eps
        tl.store(sums + kept, total, mask=live_row)
        comb = comb / total[:, None, :]
        for step in range(1, ITERATIONS):
            plane = sums + (2 * step - 1) * count * 4
            total = tl.sum(comb, 2) + eps
            tl.store(plane + kept, total, mask=live_row)
            comb = comb / total[:, :, None]
            total = tl.sum(comb, 1) + eps
            tl.store(plane + count * 4 + kept, total, mask=live_row)
            comb = comb / total[:, None, :]
        tl.store(out + at, comb, mask=live)

    @triton.jit
    def _backward_kernel(
        grad_out, out, sums, grad_in, count, ITERATIONS: tl.constexpr, BLOCK: tl.constexpr
    ):
        token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        lane = tl.arange(0, 4)
        at = token[:, None, None] * 16 + lane[None, :, None] * 4 + lane[None, None, :]
        live = token[:, None, None] < count
        kept = token[:, None] * 4 + lane[None, :]
        live_row = token[:, None] < count
        grad = tl.load(grad_out + at, mask=live, other=0.0)
        comb = tl.load(out + at, mask=live, other=0.25)
        for back in range(1, ITERATIONS):
            step = ITERATIONS - back
            plane = sums + (2 * step - 1) * count * 4
            total = tl.load(plane + count * 4 + kept, mask=live_row, other=1.0)
            dot = tl.sum(grad * comb, 1)
            grad = (grad - dot[:, None, :]) / total[:, None, :]
            comb = comb * total[:, None, :]
            total = tl.load(plane + kept, mask=live_row, other=1.0)
            dot = tl.sum(grad * comb, 2)
            grad = (grad - dot[:, :, None]) / total[:, :, None]
            comb = comb * total[:, :, None]
        total = tl.load(sums + kept, mask=live_row, other=1.0)
        dot = tl.sum(grad * comb, 1)
        grad = (grad - dot[:, None, :]) / total[:, None, :]
        tl.store(grad_in + at, grad, mask=live)

    _BLOCK = 128

    @torch.library.custom_op("dsv4demo::sinkhorn", mutates_args=())
    def _normalise_op(start: Tensor, iterations: int, eps: float) -> tuple[Tensor, Tensor]:
        start = start.contiguous()
        count = start.shape[0]
        out = torch.empty_like(start)
        sums = start.new_empty(2 * iterations - 1, count, 4)
        grid = (triton.cdiv(count, _BLOCK),)
        _forward_kernel[grid](start, out, sums, count, eps, ITERATIONS=iterations, BLOCK=_BLOCK)
        return out, sums

    @_normalise_op.register_fake
    def _(start, iterations, eps):
        sums = start.new_empty(2 * iterations - 1, start.shape[0], 4)
        return torch.empty_like(start, memory_format=torch.contiguous_format), sums

    @torch.library.custom_op("dsv4demo::sinkhorn_backward", mutates_args=())
    def _normalise_backward_op(grad: Tensor, out: Tensor, sums: Tensor, iterations: int) -> Tensor:
        grad = grad.contiguous()
        count = out.shape[0]
        made = torch.empty_like(out)
        grid = (triton.cdiv(count, _BLOCK),)
        _backward_kernel[grid](grad, out, sums, made, count, ITERATIONS=iterations, BLOCK=_BLOCK)
        return made

    @_normalise_backward_op.register_fake
    def _(grad, out, sums, iterations):
        return torch.empty_like(out)

    def _setup(ctx, inputs, output):
        ctx.save_for_backward(*output)
        ctx.iterations = inputs[1]

    def _backward(ctx, grad, _grad_sums):
        out, sums = ctx.saved_tensors
        return _normalise_backward_op(grad, out, sums, ctx.iterations), None, None

    _normalise_op.register_autograd(_backward, setup_context=_setup)

    def _normalise(start: Tensor, iterations: int, eps: float) -> Tensor:
        return _normalise_op(start, iterations, eps)[0]
