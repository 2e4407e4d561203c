"""Every kernel compiles for every architecture it is made for, without a GPU."""

from pathlib import Path

import pytest
import torch

from engine.checkpoint.synthetic import small_config
from engine.model.config import ModelConfig
from engine.precompile import precompile
from kernels import compiled, conformance
from kernels.compiled import CollectingLibrary, KernelLibrary, Spec
from kernels.errors import KernelError

pytest.importorskip("cutlass")
ROWS = Spec(
    "kernels.quantise.cute_rows",
    tuple(
        {
            "columns": 256,
            "from_checkpoint": False,
            "is_bf16": True,
            "normed": False,
            "rounds_first": False,
        }.items()
    ),
)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_a_whole_step_compiles(arch: str, tmp_path: Path) -> None:
    config = ModelConfig.parse(
        small_config(hidden_size=256, head_dim=128, qk_rope_head_dim=64, q_lora_rank=128,
                     o_lora_rank=128, moe_intermediate_size=128, index_head_dim=128)
    )  # fmt: skip
    library = CollectingLibrary(tmp_path, arch)
    made = precompile(config, 512, library)
    modules = {spec.module for spec in library.wanted}
    asked = {spec.module for spec in everything().wanted}
    assert modules == asked, "a kernel that no step uses, or a step's kernel that no case checks"
    assert made == len(library.wanted) == len(list(tmp_path.glob("*.cubin")))

    again = CollectingLibrary(tmp_path, arch)
    assert precompile(config, 512, again) == 0, "a warm start compiles nothing"


def everything() -> CollectingLibrary:
    """What the conformance cases ask for."""
    library = CollectingLibrary(Path("nowhere"), "sm_90a")
    assert list(conformance.run(library, torch.device("meta"))) == []
    return library


def test_a_kernel_that_does_not_compile_is_named(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match=r"quantise\.cute_rows.*sm_12.*failed"):
        KernelLibrary(tmp_path, "sm_12a").cubin(ROWS)


def test_a_compiler_that_dies_is_an_error_naming_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho 0\nkill -SEGV $$\n")
    script.chmod(0o755)
    monkeypatch.setattr(compiled.sys, "executable", str(script))
    with pytest.raises(KernelError, match=r"quantise\.cute_rows.*signal 11"):
        KernelLibrary(tmp_path, "sm_90a").cubin(ROWS)


def test_a_damaged_cache_entry_counts_as_missing(tmp_path: Path) -> None:
    library = KernelLibrary(tmp_path, "sm_90a")
    good = library.cubin(ROWS)
    (entry,) = tmp_path.glob("*.cubin")
    entry.write_bytes(b"not machine code")
    assert library.cubin(ROWS) == good and library.compiled == 2
    assert KernelLibrary(tmp_path, "sm_90a").cubin(ROWS) == good


def test_a_cache_that_cannot_be_written_costs_only_the_cache(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    library = KernelLibrary(tmp_path / "file" / "below", "sm_90a")
    assert library.cubin(ROWS).startswith(b"\x7fELF")
