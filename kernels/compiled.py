"""Compiled kernels: built once in a child process, kept on disk, launched through the CUDA driver.

A kernel is a `cute_*.py` module with a function `build(arch, **static)`; its cubin is cached under
a key of sources, compiler version, architecture and static parameters. The child keeps a crash of
the compiler from taking the engine with it. Nothing here imports the DSL, so a warm start never
loads it.
"""

import ctypes
import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

DSL_VERSION = "4.8.1"  # the pin of pyproject.toml; a kernel of another compiler is another kernel
_SHARED_SOURCES = ("kernels.cute_ptx", "kernels.cute_fp4")
_COMPILE_TIMEOUT_S = 180
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_ARCHITECTURES = {(9, 0): "sm_90a", (10, 0): "sm_100a", (10, 3): "sm_103a"}


class KernelError(Exception):
    """A kernel that cannot be compiled, loaded or launched. Names the kernel; fit to show."""


def architecture(device: torch.device) -> str:
    """The name of the device's architecture, or "" where no kernels are made for it."""
    if device.type != "cuda":
        return ""
    return _ARCHITECTURES.get(torch.cuda.get_device_capability(device), "")


@dataclass(frozen=True, slots=True)
class Spec:
    """One kernel: its module and the parameters it is compiled for."""

    module: str
    static: tuple[tuple[str, Any], ...]

    @property
    def name(self) -> str:
        values = ",".join(f"{key}={value}" for key, value in self.static)
        return f"{self.module.removeprefix('kernels.')}({values})"


class KernelLibrary:
    """Kernels of one device.

    Args:
        folder: the disk cache. on_compile: called with a kernel's name before it is compiled.

    Attributes:
        compiled: how many kernels were compiled by this process; a warm start leaves it 0.
    """

    def __init__(
        self, folder: Path, arch: str, on_compile: Callable[[str], None] = lambda name: None
    ) -> None:
        self.folder = folder
        self.arch = arch
        self.compiled = 0
        self._on_compile = on_compile
        self._kernels: dict[Spec, Kernel] = {}
        self._counters: torch.Tensor | None = None

    def get(self, module: str, **static: Any) -> "Kernel":
        """The loaded kernel. Raises KernelError."""
        spec = Spec(module, tuple(sorted(static.items())))
        if spec not in self._kernels:
            self._kernels[spec] = Kernel(spec.name, self.cubin(spec))
        return self._kernels[spec]

    def counters(self, device: torch.device) -> torch.Tensor:
        """[8] int32 zeros, one a token, for kernels whose last CTA goes on: each leaves them zero,
        and launches that share them follow one another on a stream."""
        if self._counters is None:
            self._counters = torch.zeros(8, dtype=torch.int32, device=device)
        return self._counters

    def cubin(self, spec: Spec) -> bytes:
        """The machine code, from the cache or compiled now. A damaged entry counts as missing."""
        path = self.folder / f"{_key(spec, self.arch)}.cubin"
        try:
            data = path.read_bytes()
            if data.startswith(b"\x7fELF"):
                return data
        except OSError:
            pass
        self._on_compile(spec.name)
        data = compile_in_child(spec, self.arch)
        self.compiled += 1
        _write_atomically(path, data)
        return data


def compile_in_child(spec: Spec, arch: str) -> bytes:
    """Compile a kernel in a process of its own. Raises KernelError with the compiler's last
    words."""
    with tempfile.TemporaryDirectory(prefix="dsv4chat-") as scratch:
        out = Path(scratch) / "kernel.cubin"
        job = {"module": spec.module, "arch": arch, "static": dict(spec.static), "out": str(out)}
        environment = os.environ | {"CUTE_DSL_KEEP": "cubin", "CUTE_DSL_DUMP_DIR": scratch}
        try:
            run = subprocess.run(
                [sys.executable, "-m", "kernels.compile_child", json.dumps(job)],
                capture_output=True,
                text=True,
                env=environment,
                timeout=_COMPILE_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise KernelError(
                f"compiling {spec.name} for {arch} took over {_COMPILE_TIMEOUT_S} s"
            ) from None
        if run.returncode or not out.exists():
            raise KernelError(f"compiling {spec.name} for {arch} failed: {_last_words(run)}")
        return out.read_bytes()


def _last_words(run: subprocess.CompletedProcess[str]) -> str:
    """The line of the child's output that says what went wrong."""
    if run.returncode < 0:
        return f"the compiler was killed by signal {-run.returncode}"
    lines = [_COLOUR.sub("", line).strip() for line in run.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["no message"])[-1]


def _key(spec: Spec, arch: str) -> str:
    """Digest of all that decides the machine code."""
    digest = hashlib.sha256()
    for name in (spec.module, *_SHARED_SOURCES):
        module = importlib.util.find_spec(name)
        if module is None or module.origin is None:
            raise KernelError(f"no module {spec.module}")
        digest.update(Path(module.origin).read_bytes())
    digest.update(json.dumps([DSL_VERSION, arch, spec.module, spec.static]).encode())
    return digest.hexdigest()[:32]


def _write_atomically(path: Path, data: bytes) -> None:
    """A reader sees the old file, the new one, or none. A full disk only costs the cache."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError:
        pass


class CompilingLibrary(KernelLibrary):
    """Compiles what is asked for and launches nothing: with tensors on the meta device it finds and
    fills the cache for every kernel of a step, without a GPU."""

    def get(self, module: str, **static: Any) -> "Kernel":
        self.cubin(Spec(module, tuple(sorted(static.items()))))
        return _NoKernel()


Argument = torch.Tensor | int | float


class Kernel:
    """A loaded kernel. Tensors are passed as addresses, ints as int32, floats as fp32."""

    def __init__(self, name: str, cubin: bytes) -> None:
        from cuda.bindings import driver

        self.name = name
        self._driver = driver
        self._module = self._check(driver.cuModuleLoadData(cubin))
        functions = self._check(driver.cuModuleEnumerateFunctions(1, self._module))
        self._function = functions[0]
        self._shared = 0

    def launch(
        self,
        grid: tuple[int, int, int],
        threads: int,
        shared_bytes: int,
        arguments: Sequence[Argument],
    ) -> None:
        """Launch on the current stream; capture-safe. Raises KernelError."""
        driver = self._driver
        if shared_bytes > 48 * 1024 and shared_bytes > self._shared:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._check(driver.cuFuncSetAttribute(self._function, attribute, shared_bytes))
            self._shared = shared_bytes
        values, kinds = [], []
        for argument in arguments:
            if isinstance(argument, torch.Tensor):
                values.append(argument.data_ptr())
                kinds.append(ctypes.c_void_p)
            else:
                values.append(argument)
                kinds.append(ctypes.c_float if isinstance(argument, float) else ctypes.c_int)
        stream = torch.cuda.current_stream().cuda_stream
        self._check(
            driver.cuLaunchKernel(
                self._function,
                *grid,
                threads,
                1,
                1,
                shared_bytes,
                stream,
                (tuple(values), tuple(kinds)),
                0,
            )
        )

    def _check(self, result: tuple[Any, ...]) -> Any:
        status, *values = result
        if int(status) != 0:
            raise KernelError(f"{self.name}: {status.name}")
        return values[0] if values else None


class _NoKernel(Kernel):
    def __init__(self) -> None:
        self.name = "none"

    def launch(self, *arguments: Any) -> None:
        pass
