"""The published models' geometries, and sources of random weights in them made on the device.

For benchmarks and kernel checks at real sizes without a checkpoint; the numbers mean nothing, the
shapes, formats and bytes are those of NVIDIA's NVFP4 export with everything else in bf16.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.checkpoint.headers import TensorInfo
from engine.checkpoint.parameters import parameter_shapes
from engine.checkpoint.synthetic import small_config
from engine.model.config import ModelConfig

_EXPERT = re.compile(r"layers\.\d+\.ffn\.experts\.\d+\.w[123]\.weight")

_SHARED: dict[str, Any] = {
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "o_lora_rank": 1024,
    "num_experts_per_tok": 6,
    "num_hash_layers": 3,
    "sliding_window": 128,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "max_position_embeddings": 1048576,
    "vocab_size": 129280,
}


def flash(layers: int = 43, experts: int = 256) -> ModelConfig:
    """DeepSeek-V4-Flash; 160 experts fill one 141 GB GPU and read the same bytes a token."""
    ratios = ([0, 0] + [4, 128] * 20 + [4])[:layers]
    return _config(
        layers, ratios, hidden_size=4096, num_attention_heads=64, q_lora_rank=1024, o_groups=8,
        moe_intermediate_size=2048, n_routed_experts=experts, index_topk=512,
        routed_scaling_factor=1.5,
    )  # fmt: skip


def pro(layers: int = 61, experts: int = 384) -> ModelConfig:
    """DeepSeek-V4-Pro; one GPU holds a few of its layers."""
    ratios = ([128, 128] + [4, 128] * 29 + [4])[:layers]
    return _config(
        layers, ratios, hidden_size=7168, num_attention_heads=128, q_lora_rank=1536, o_groups=16,
        moe_intermediate_size=3072, n_routed_experts=experts, index_topk=1024,
        routed_scaling_factor=2.5,
    )  # fmt: skip


def _config(layers: int, ratios: list[int], **sizes: Any) -> ModelConfig:
    raw = small_config(**_SHARED, **sizes, num_hidden_layers=layers, compress_ratios=ratios)
    return ModelConfig.parse(raw)


class RandomTensors:
    """A tensor source that draws each tensor on the device when it is read."""

    where = "random weights"

    def __init__(self, config: ModelConfig, *, input_scales: bool = False) -> None:
        self._config = config
        self._infos: dict[str, TensorInfo] = {}
        for name, shape in parameter_shapes(config).items():
            if _EXPERT.fullmatch(name):
                prefix, (rows, columns) = name.removesuffix("weight"), shape
                self._add(name, "U8", (rows, columns // 2))
                self._add(f"{prefix}weight_scale", "F8_E4M3", (rows, columns // 16))
                self._add(f"{prefix}weight_scale_2", "F32", ())
                if input_scales:
                    self._add(f"{prefix}input_scale", "F32", ())
            elif name.endswith("tid2eid"):
                self._add(name, "I64", shape)
            else:
                self._add(name, "BF16" if len(shape) == 2 else "F32", shape)

    def _add(self, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        self._infos[name] = TensorInfo(name, dtype, shape, Path(self.where), 0, 0)

    def infos(self) -> dict[str, TensorInfo]:
        return self._infos

    def start(self, order: Sequence[str], device: torch.device) -> None:
        pass

    def close(self) -> None:
        pass

    def read(self, name: str, device: torch.device) -> Tensor:
        shape = self._infos[name].shape
        if name.endswith("input_scale"):
            return torch.full((), 1e-3, device=device)
        if name.endswith("weight_scale_2"):
            # Codes average 2.5 and block scales 24 in magnitude.
            return torch.full((), self._config.hidden_size**-0.5 / 60, device=device)
        if name.endswith("weight_scale"):
            raw = torch.randint(0x50, 0x60, shape, dtype=torch.uint8, device=device)
            return raw.view(torch.float8_e4m3fn)
        if _EXPERT.fullmatch(name):
            return torch.randint(0, 256, shape, dtype=torch.uint8, device=device)
        if name.endswith("tid2eid"):
            count, top_k = self._config.num_experts, self._config.top_k
            first = torch.randint(0, count, (shape[0], 1), device=device)
            return (first + torch.arange(top_k, device=device)) % count
        if name.endswith(("norm.weight", "_scale")):
            return torch.ones(shape, device=device)
        value = torch.randn(shape, device=device)
        if len(shape) == 2:
            return (value * shape[1] ** -0.5).bfloat16()
        return value * 0.3
