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
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kernels.errors import KernelError

DSL_VERSION = "4.8.1"  # the pin of pyproject.toml; a kernel of another compiler is another kernel
_SHARED_SOURCES = tuple(f"kernels.cute_{part}" for part in ("ptx", "warp", "fp4", "nvfp4"))
_COUNTERS = 256
_COMPILE_TIMEOUT_S = 180
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_ARCHITECTURES = {(9, 0): "sm_90a", (10, 0): "sm_100a", (10, 3): "sm_103a"}


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
        self._zero: torch.Tensor | None = None

    def get(self, module: str, **static: Any) -> "Kernel":
        """The loaded kernel. Raises KernelError."""
        spec = Spec(module, tuple(sorted(static.items())))
        if spec not in self._kernels:
            self._kernels[spec] = Kernel(spec.name, self.cubin(spec))
        return self._kernels[spec]

    def counters(self, device: torch.device) -> torch.Tensor:
        """[256] int32 zeros for kernels whose last CTA goes on: each leaves them zero, and launches
        that share them follow one another on a stream."""
        if self._counters is None:
            self._counters = torch.zeros(_COUNTERS, dtype=torch.int32, device=device)
        return self._counters

    def zero(self, device: torch.device) -> torch.Tensor:
        """[1] int32 that stays 0."""
        if self._zero is None:
            self._zero = torch.zeros(1, dtype=torch.int32, device=device)
        return self._zero

    def cubin(self, spec: Spec) -> bytes:
        """The machine code, from the cache or compiled now."""
        return self._cached(spec) or self.compile([spec])[spec]

    def compile(self, specs: Sequence[Spec]) -> dict[Spec, bytes]:
        """Compile what the cache lacks of these, and keep it."""
        missing = [spec for spec in specs if self._cached(spec) is None]
        if not missing:
            return {}
        made = compile_in_child(missing, self.arch, self._on_compile)
        self.compiled += len(made)
        for spec, data in made.items():
            _write_atomically(self._path(spec), data)
        return made

    def _path(self, spec: Spec) -> Path:
        return self.folder / f"{_key(spec, self.arch)}.cubin"

    def _cached(self, spec: Spec) -> bytes | None:
        """A damaged entry counts as missing."""
        try:
            data = self._path(spec).read_bytes()
        except OSError:
            return None
        return data if data.startswith(b"\x7fELF") else None


def compile_in_child(
    specs: Sequence[Spec], arch: str, on_compile: Callable[[str], None]
) -> dict[Spec, bytes]:
    """Compile kernels in one process of their own.

    Raises:
        KernelError: with the name of the kernel that was being compiled and the compiler's last
        words.
    """
    with tempfile.TemporaryDirectory(prefix="dsv4chat-") as scratch:
        outs = {spec: Path(scratch) / f"{number}.cubin" for number, spec in enumerate(specs)}
        jobs = [
            {"module": spec.module, "arch": arch, "static": dict(spec.static), "out": str(out)}
            for spec, out in outs.items()
        ]
        environment = os.environ | {"CUTE_DSL_KEEP": "cubin", "CUTE_DSL_DUMP_DIR": scratch}
        with (Path(scratch) / "errors").open("w+") as errors:
            child = subprocess.Popen(
                [sys.executable, "-m", "kernels.compile_child", json.dumps(jobs)],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
            )
            timer = threading.Timer(_COMPILE_TIMEOUT_S * len(specs), child.kill)
            timer.start()
            at = 0
            assert child.stdout is not None
            for line in child.stdout:  # the number of the job it begins
                if line.strip().isdigit():
                    at = int(line)
                    on_compile(specs[at].name)
            status = child.wait()
            timer.cancel()
            errors.seek(0)
            if status or not all(out.exists() for out in outs.values()):
                words = _last_words(status, errors.read())
                raise KernelError(f"compiling {specs[at].name} for {arch} failed: {words}")
        return {spec: out.read_bytes() for spec, out in outs.items()}


def _last_words(status: int, stderr: str) -> str:
    """The line of the child's output that says what went wrong."""
    if status < 0:
        return f"the compiler was ended by signal {-status}"
    lines = [_COLOUR.sub("", line).strip() for line in stderr.splitlines() if line.strip()]
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


class CollectingLibrary(KernelLibrary):
    """Notes which kernels are asked for and launches nothing: with tensors on the meta device it
    finds every kernel of a step without a GPU, for `compile`."""

    def get(self, module: str, **static: Any) -> "Kernel":
        self.wanted[Spec(module, tuple(sorted(static.items())))] = None
        return _NoKernel()

    def __init__(
        self, folder: Path, arch: str, on_compile: Callable[[str], None] = lambda name: None
    ) -> None:
        super().__init__(folder, arch, on_compile)
        self.wanted: dict[Spec, None] = {}


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
        self._early = driver.CUlaunchAttribute()
        ids = driver.CUlaunchAttributeID
        self._early.id = ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        self._early.value.programmaticStreamSerializationAllowed = 1

    def launch(
        self,
        grid: tuple[int, int, int],
        threads: int,
        shared_bytes: int,
        arguments: Sequence[Argument],
    ) -> None:
        """Launch on the current stream; capture-safe. Raises KernelError.

        Every kernel is a programmatic dependent launch: it may start while the one before still
        runs, reads weights, and executes `griddepcontrol.wait` before it touches anything else.
        """
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
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.sharedMemBytes = shared_bytes
        config.hStream = driver.CUstream(torch.cuda.current_stream().cuda_stream)
        config.attrs, config.numAttrs = [self._early], 1
        arguments_and_kinds = (tuple(values), tuple(kinds))
        self._check(driver.cuLaunchKernelEx(config, self._function, arguments_and_kinds, 0))

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
