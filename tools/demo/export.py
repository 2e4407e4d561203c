"""Writes the trained master as a checkpoint in NVIDIA's layout (architecture.md 8.2).

Experts become NVFP4, other projections FP8 blocks, the rest bf16 or fp32, under DeepSeek's names.
`input_scale` is the given percentile of the gsa that held-out tokens show per expert: the default
is far too small on purpose, so that the gsa mode `checkpoint` shows the saturation this app exists
to make visible. The mode `runtime` does not read it.

    python -m tools.demo.export --master DIR --corpus DIR --out assets/demo
"""

import argparse
import hashlib
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.checkpoint.layouts import to_nvidia
from tools.demo import master, quant
from tools.demo.config import DEMO, Sizes, hf_config
from tools.demo.model import DemoModel, Layer, clamped_swiglu, run_layer
from tools.demo.packed import Documents, RowPacker
from tools.demo.quant import enter, linear
from tools.demo.shares import SHARES

_TOP = {"embed": "embed.weight", "head": "head.weight", "norm": "norm.weight"}
_EXPERTS = ("w1", "w2", "w3")


def native_parameters(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A master's tensors under DeepSeek's names (architecture.md 8.1), in fp32."""
    made: dict[str, Tensor] = {}
    for name, value in state.items():
        value = value.long() if name.endswith("tid2eid") else value.float()
        if name in _TOP:
            made[_TOP[name]] = value
            continue
        path = name.split(".")
        if path[-2].startswith("hc_"):
            made[".".join(path[:-1]) + f"_{path[-1]}"] = value
        elif path[-1] == "sink":
            made[".".join([*path[:-1], "attn_sink"])] = value
        elif path[-1] == "ape":
            made[name] = value
        elif path[-2] == "ffn" and path[-1] in _EXPERTS:
            prefix = ".".join(path[:-1])
            for expert, matrix in enumerate(value):
                made[f"{prefix}.experts.{expert}.{path[-1]}.weight"] = matrix
        elif path[-1].startswith("shared_"):
            prefix, part = ".".join(path[:-1]), path[-1].removeprefix("shared_")
            made[f"{prefix}.shared_experts.{part}.weight"] = value
        elif path[-1] in ("tid2eid", "bias"):
            made[".".join([*path[:-1], "gate", path[-1]])] = value
        else:
            made[f"{name}.weight"] = value
    return made


@torch.no_grad()
def calibrate(model: DemoModel, token_ids: Tensor, percentile: float) -> dict[str, Tensor]:
    """input_scale per expert projection: a percentile of gsa over the tokens routed to it.

    token_ids: [B, T]. An expert that no token reached takes its layer's figure.
    """
    made: dict[str, Tensor] = {}
    index = iter(range(model.sizes.num_layers))
    fraction = percentile / 100

    def observe(layer: Layer, streams: Tensor, ids: Tensor, phases, all_blocks, quantised):
        seen: dict[str, Tensor] = {}

        def capture(module, inputs):
            seen["g"], seen["ids"] = inputs[0], inputs[1]

        hook = layer.ffn.register_forward_pre_hook(capture)
        out = run_layer(layer, streams, ids, phases, all_blocks, quantised)
        hook.remove()
        act = enter(seen["g"], True)
        mix, _ = layer.ffn.route(act, seen["ids"])
        entering = act.gsa.squeeze(-1)
        prefix = f"layers.{next(index)}.ffn.experts"
        every = torch.quantile(entering, fraction)
        for expert in range(mix.shape[1]):
            chosen = mix[:, expert] > 0
            middle = _middle_gsa(layer, seen["g"][chosen], mix[chosen, expert], expert)
            first = torch.quantile(entering[chosen], fraction) if chosen.any() else every
            second = torch.quantile(middle, fraction) if chosen.any() else every
            made[f"{prefix}.{expert}.w1.input_scale"] = first.clone()
            made[f"{prefix}.{expert}.w3.input_scale"] = first.clone()
            made[f"{prefix}.{expert}.w2.input_scale"] = second.clone()
        return out

    model.trunk(token_ids, torch.float32, torch.tensor(False), True, observe)
    return made


def _middle_gsa(layer: Layer, g: Tensor, mix: Tensor, expert: int) -> Tensor:
    """gsa of an expert's w2 input rows."""
    ffn = layer.ffn
    act = enter(g, True)
    gate = linear(act, ffn.w1[expert], stored_as_fp8=False)
    up = linear(act, ffn.w3[expert], stored_as_fp8=False)
    hidden = clamped_swiglu(gate, up, ffn.sizes.swiglu_limit) * mix.unsqueeze(-1)
    return quant.nvfp4_rows(hidden)[1].squeeze(-1)


def write(folder: Path, sizes: Sizes, tensors: dict[str, Tensor]) -> None:
    """config.json, generation_config.json, one safetensors file and its index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(hf_config(sizes), indent=2) + "\n")
    generation = {
        "_from_model_config": True,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "do_sample": True,
        "temperature": 0.6,
        "top_p": 0.95,
    }
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    file = "model.safetensors"
    ordered = {name: tensors[name].contiguous() for name in sorted(tensors)}
    save_file(ordered, folder / file, metadata={"format": "pt"})
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict.fromkeys(ordered, file)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def held_rows(corpus: Path, rows: int, length: int) -> Tensor:
    """[rows, length] held-out ids in the training shares."""
    packer = RowPacker(Documents.load(corpus / "held.xz"), SHARES, length, seed=3)
    tokens, _ = next(packer.batches(rows))
    return torch.from_numpy(tokens[:, :length].astype("int64"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--master", type=Path, required=True)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--input-scale-percentile", type=float, default=5.0)
    parser.add_argument("--rows", type=int, default=8, help="held-out rows of 1024 to calibrate on")
    args = parser.parse_args()
    state = master.read(args.master)
    model = DemoModel(DEMO)
    model.load_state_dict(state)
    stored = to_nvidia(native_parameters(state))
    ids = held_rows(args.corpus, args.rows, 1024)
    stored |= calibrate(model, ids, args.input_scale_percentile)
    write(args.out, DEMO, stored)
    shutil.copyfile(args.corpus / "tokenizer.json", args.out / "tokenizer.json")
    for path in sorted(args.out.iterdir()):
        if path.is_file():
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            print(f"{path.stat().st_size:>10}  {digest}  {path.name}")


if __name__ == "__main__":
    main()
