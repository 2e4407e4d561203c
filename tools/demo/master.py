"""The trained weights between training and export: safetensors files below 16 MiB each.

Matrices are bf16 (every export format is coarser); what the export keeps in fp32 stays fp32.
"""

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tools.demo.model import DemoModel

PART_BYTES = 15_500_000
_FP32 = ("fn", "base", "scale", "sink", "ape", "bias", "norm")


def save(model: DemoModel, folder: Path) -> None:
    """Write folder/part-N.safetensors, replacing what was there."""
    folder.mkdir(parents=True, exist_ok=True)
    parts: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, value in model.state_dict().items():
        value = value.detach().cpu()
        if value.is_floating_point() and not name.endswith(_FP32):
            value = value.bfloat16()
        if name.endswith("tid2eid"):
            value = value.to(torch.uint8)
        if size + value.nbytes > PART_BYTES:
            parts.append({})
            size = 0
        size += value.nbytes
        parts[-1][name] = value.contiguous()
    for old in folder.glob("part-*.safetensors"):
        old.unlink()
    for index, part in enumerate(parts):
        save_file(part, folder / f"part-{index}.safetensors")


def read(folder: Path) -> dict[str, Tensor]:
    files = sorted(folder.glob("part-*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{folder}: no part-*.safetensors")
    merged: dict[str, Tensor] = {}
    for file in files:
        merged |= load_file(file)
    return merged


def load(model: DemoModel, folder: Path) -> None:
    model.load_state_dict(read(folder))


@torch.no_grad()
def fill_hash_tables(model: DemoModel, tokens: np.ndarray, seed: int) -> None:
    """tid2eid of the hash layers: two distinct experts a token, loads even by token frequency."""
    sizes = model.sizes
    rng = np.random.default_rng(seed)
    counts = np.bincount(tokens, minlength=sizes.vocab_size).astype(np.float64) + 1.0
    for layer in model.layers:
        if not layer.ffn.hashed:
            continue
        load = np.zeros(sizes.num_experts)
        for token in np.argsort(-counts, kind="stable"):
            jitter = rng.random(sizes.num_experts) * counts[token]
            picked = np.argsort(load + jitter)[: sizes.top_k]
            load[picked] += counts[token]
            layer.ffn.tid2eid[token] = torch.from_numpy(picked.copy())
