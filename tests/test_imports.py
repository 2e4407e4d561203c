"""Every module can be imported: a name that moved shows here and not on a user's machine."""

import importlib
import pkgutil

import pytest

PACKAGES = ("engine", "kernels", "dsv4chat", "tools", "bench")


def modules() -> list[str]:
    """All but the kernels' sources, which need the DSL and are compiled in tests/kernels."""
    found = []
    for package in PACKAGES:
        path = importlib.import_module(package).__path__
        found += [m.name for m in pkgutil.walk_packages(path, f"{package}.")]
    return [name for name in found if ".cute_" not in name and not name.endswith("_triton")]


@pytest.mark.parametrize("name", modules())
def test_module_imports(name: str) -> None:
    if name.endswith("__main__"):
        pytest.skip("runs when imported")
    importlib.import_module(name)
