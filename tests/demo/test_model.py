"""The trainer's model against the engine that will run its export."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from engine.checkpoint.files import CheckpointFiles
from engine.checkpoint.layouts import to_nvidia
from engine.checkpoint.parameters import parameter_shapes
from engine.model.build import build_model
from engine.model.config import ModelConfig
from engine.protocol import StepOptions
from engine.state import SequenceState
from kernels.residual import reference
from tools.demo import export, master
from tools.demo.config import Sizes
from tools.demo.model import DemoModel
from tools.demo.sinkhorn import sinkhorn

SMALL = Sizes(
    vocab_size=64, hidden_size=128, num_heads=2, o_groups=2, q_lora_rank=128, o_lora_rank=128,
    num_experts=4, expert_size=128, num_hash_layers=1, compress_ratios=(0, 4, 128),
    index_top_k=16, index_heads=2, max_context=512,
)  # fmt: skip


def exported_model(sizes: Sizes, folder: Path) -> tuple[DemoModel, Path, torch.Tensor]:
    """A random model after a trip through its master, its export, and token ids."""
    torch.manual_seed(3)
    model = DemoModel(sizes)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("sink", "ape")):
                parameter.normal_()
        for layer in model.layers:
            if not layer.ffn.hashed:
                layer.ffn.bias.normal_(0, 0.2)
    ids = torch.randint(3, 64, (1, 256))
    master.fill_hash_tables(model, ids[0].numpy(), 1)
    master.save(model, folder / "master")
    master.load(model, folder / "master")
    tensors = to_nvidia(export.native_parameters(master.read(folder / "master")))
    tensors |= export.calibrate(model, ids, 5.0)
    export.write(folder / "model", sizes, tensors)
    return model, folder / "model", ids


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> tuple[DemoModel, Path, torch.Tensor]:
    return exported_model(SMALL, tmp_path_factory.mktemp("demo"))


def test_sinkhorn_and_its_gradient_equal_the_reference():
    torch.manual_seed(0)
    logits = (2 * torch.randn(50, 4, 4)).requires_grad_()
    pull = torch.randn(50, 4, 4)
    made, expected = sinkhorn(logits, 20, 1e-6), reference.sinkhorn(logits, 20, 1e-6)
    (grad,) = torch.autograd.grad(made, logits, pull, retain_graph=True)
    (wanted,) = torch.autograd.grad(expected, logits, pull)
    assert torch.equal(made, expected)
    torch.testing.assert_close(grad, wanted, atol=1e-6, rtol=1e-5)


def test_export_has_every_tensor_of_the_architecture(exported):
    _, folder, _ = exported
    config = ModelConfig.load(folder)
    with safe_open(folder / "model.safetensors", "pt") as file:
        names = set(file.keys())
        dtypes = {name: file.get_slice(name).get_dtype() for name in names}
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == names
    assert set(parameter_shapes(config)) <= names
    expert = "layers.1.ffn.experts.3.w2"
    assert dtypes[f"{expert}.weight"] == "U8"
    assert dtypes[f"{expert}.weight_scale"] == "F8_E4M3"
    assert dtypes[f"{expert}.weight_scale_2"] == dtypes[f"{expert}.input_scale"] == "F32"
    assert dtypes["layers.1.attn.wq_a.weight"] == "F8_E4M3"
    assert dtypes["layers.1.attn.wq_a.scale"] == "F8_E8M0"
    assert dtypes["layers.0.ffn.gate.tid2eid"] == "I64"
    assert dtypes["layers.2.ffn.gate.bias"] == dtypes["hc_head_fn"] == "F32"
    assert dtypes["embed.weight"] == dtypes["head.weight"] == "BF16"


@pytest.mark.parametrize("ratio", [0, 4, 128])
@pytest.mark.parametrize("hashed", [0, 1])
def test_engine_gives_the_logits_training_saw(ratio: int, hashed: int, tmp_path: Path):
    """One layer of each kind, from its files, in the engine's default precision.

    A rounding tie that falls the other way changes all of a token's logits, and with more layers
    those of all later tokens: so one layer, and nearly all tokens, not all.
    """
    sizes = replace(SMALL, compress_ratios=(ratio,), num_hash_layers=hashed)
    model, folder, ids = exported_model(sizes, tmp_path)
    config, device = ModelConfig.load(folder), torch.device("cpu")
    built = build_model(config, CheckpointFiles(folder), precision="nvfp4", device=device)
    state = SequenceState(config, 512, device, torch.float32)
    with torch.no_grad():
        engine = built.model(ids[0], state, StepOptions())
        streams, _, _ = model.trunk(ids, torch.float32, torch.tensor(False), True)
        training = model.logits(streams, True)
    error = (engine - training).abs().amax(-1)
    assert (error < 1e-5).float().mean() > 0.9


def test_a_token_does_not_see_what_follows(exported):
    model, _, ids = exported
    changed = ids.clone()
    changed[0, 200:] = 5
    with torch.no_grad():
        rows = [
            model.trunk(x, torch.float32, torch.tensor(False), False)[0] for x in (ids, changed)
        ]
    assert torch.equal(rows[0][:200], rows[1][:200])
    assert not torch.equal(rows[0][200:], rows[1][200:])


def test_every_parameter_learns(exported):
    model, _, ids = exported
    streams, index_loss, loads = model.trunk(ids, torch.float32, torch.tensor(False), True)
    loss = torch.nn.functional.cross_entropy(model.logits(streams[:-1], True), ids[0, 1:])
    (loss + index_loss).backward()
    still = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().max() > 0]
    assert not still
    assert all(load.sum() == ids.numel() * SMALL.top_k for load in loads)
    model.zero_grad()
