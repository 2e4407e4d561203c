"""The house rules a machine can check: who may import whom, and how large a file may grow."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("dsv4chat", "engine", "kernels", "tools", "bench")
MAX_FILE_LINES = 350
MAX_KERNEL_LINES = 600
MAX_FUNCTION_LINES = 60
MAX_DEVICE_LINES = 150  # a kernel body: its stages share registers and cannot be calls

# Longer functions, each with its reason.
EXCEPTIONS = {
    "hf_config": "one literal: the keys of the published config.json",
    "_fact": "one table of sentence frames",
}


def sources() -> list[Path]:
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_stay_small(path: Path) -> None:
    text = path.read_text()
    is_kernel = path.name.startswith("cute_")
    limit = MAX_KERNEL_LINES if is_kernel else MAX_FILE_LINES
    longest = MAX_DEVICE_LINES if is_kernel else MAX_FUNCTION_LINES
    assert len(text.splitlines()) <= limit
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            length = node.end_lineno - node.lineno + 1
            assert length <= longest or node.name in EXCEPTIONS, f"{node.name} has {length} lines"


def imports_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(' '.join(sys.modules))"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    return set(run.stdout.split())


def test_the_app_starts_without_torch() -> None:
    loaded = imports_after("import dsv4chat.__main__, engine.protocol, engine.telemetry")
    assert not loaded & {"torch", "transformers", "cutlass", "kernels", "safetensors"}


def test_the_engine_looks_at_files_without_torch() -> None:
    loaded = imports_after("import engine.worker")
    assert not loaded & {"torch", "textual", "cutlass"}


def test_the_cpu_path_does_not_import_cutlass() -> None:
    assert "cutlass" not in imports_after("import engine.loading")


def test_the_app_imports_no_torch_even_late() -> None:
    """Every module of the app, imported with torch blocked."""
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in sources()
        if path.parts[len(ROOT.parts)] == "dsv4chat"
    ]
    code = "import sys; sys.modules['torch'] = None\n" + "\n".join(f"import {m}" for m in modules)
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_transformers_imports_with_our_packages_on_the_path() -> None:
    """It probes a package named `kernels`; ours must not be taken for it."""
    pytest.importorskip("transformers")
    code = "import kernels, engine; import transformers.models.deepseek_v4.modeling_deepseek_v4"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
