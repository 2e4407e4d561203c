"""Optimisers: Muon for the hidden matrices, fused AdamW for everything else.

Muon orthogonalises each matrix's momentum by five Newton-Schulz steps; matrices of equal shape go
through them in one batch. Its step has the same size per element as AdamW's at the same rate.
"""

import torch
from torch import Tensor, nn

MATRICES = (
    "wq_a", "wq_b", "wkv", "wgate", "wo_a", "wo_b", "w1", "w2", "w3",
    "shared_w1", "shared_w2", "shared_w3",
)  # fmt: skip
_UPDATE_RMS = 0.2  # of AdamW's steps, roughly


def newton_schulz(matrices: Tensor) -> Tensor:
    """[M, R, C] -> the nearest orthogonal matrices, roughly, in bf16 on CUDA."""
    x = matrices.to(torch.bfloat16 if matrices.is_cuda else torch.float32)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) * 1.02 + 1e-7)
    for a, b, c in ((3.4445, -4.7750, 2.0315),) * 5:
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if tall else x


class Muon:
    """Momentum and update for matrices grouped by shape; experts [E, R, C] count as E matrices."""

    def __init__(self, parameters: list[Tensor], decay: float, momentum: float = 0.95) -> None:
        groups: dict[torch.Size, list[Tensor]] = {}
        for parameter in parameters:
            groups.setdefault(parameter.shape[-2:], []).append(parameter)
        self.groups = list(groups.values())
        self.decay, self.momentum = decay, momentum
        self.buffers = [torch.zeros_like(self._stack(group)) for group in self.groups]

    @staticmethod
    def _stack(tensors: list[Tensor]) -> Tensor:
        return torch.cat([t.detach().reshape(-1, *t.shape[-2:]) for t in tensors])

    @torch.no_grad()
    def step(self, rate: float) -> None:
        for group, buffer in zip(self.groups, self.buffers, strict=True):
            grad = self._stack([parameter.grad for parameter in group])
            buffer.lerp_(grad, 1 - self.momentum)
            update = newton_schulz(torch.lerp(grad, buffer, self.momentum)).float()
            update *= _UPDATE_RMS * max(buffer.shape[-2:]) ** 0.5
            pieces = update.split([parameter.numel() // buffer[0].numel() for parameter in group])
            for parameter, piece in zip(group, pieces, strict=True):
                parameter.mul_(1 - rate * self.decay).sub_(piece.view_as(parameter), alpha=rate)


class Optimiser:
    """`kind` is "muon" (hidden matrices by Muon, the rest by AdamW) or "adamw" (all of it)."""

    def __init__(self, model: nn.Module, kind: str, decay: float = 0.1) -> None:
        hidden, tables, vectors = [], [], []
        for name, parameter in model.named_parameters():
            leaf = name.rsplit(".", 1)[-1]
            if leaf in MATRICES:
                hidden.append(parameter)
            elif parameter.dim() > 1 and leaf not in ("fn", "ape"):
                tables.append(parameter)
            else:
                vectors.append(parameter)
        self.muon = Muon(hidden, decay) if kind == "muon" else None
        groups = [{"params": tables, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0}]
        if self.muon is None:
            groups.append({"params": hidden, "weight_decay": decay})
        fused = next(model.parameters()).is_cuda
        self.adam = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95), eps=1e-10, fused=fused)
        self.parameters = [*hidden, *tables, *vectors]

    def step(self, rate: float, clip: float = 1.0) -> Tensor:
        """One update at peak rate `rate`; returns the gradient norm (0-d, on the device)."""
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, clip, foreach=True)
        for group in self.adam.param_groups:
            group["lr"] = rate
        self.adam.step()
        if self.muon is not None:
            self.muon.step(rate)
        for parameter in self.parameters:
            parameter.grad = None
        return norm
