"""Which format a tensor is stored in, told from names, dtypes and shapes alone (architecture.md 8).

Config text is never asked: `.scale` means one thing in DeepSeek's own files and another in files
that kept the name for NVFP4 block scales. Needs no torch.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from engine.checkpoint.headers import TensorInfo
from engine.errors import CheckpointError

Format = Literal["nvfp4", "mxfp4", "fp8", "float"]
NVFP4_BLOCK = 16
MXFP4_BLOCK = 32
FP8_TILE = 128

FLOATS = ("BF16", "F16", "F32")
BYTES = ("U8", "I8")
INTEGERS = ("I64", "I32")
_E4M3 = ("F8_E4M3",)
_E8M0 = ("F8_E8M0", "U8")
_FP8_SCALES = (*_E8M0, "F32", "BF16", "F16")
_F32 = ("F32",)
_PARTS = {"weight", "weight_packed", "scale", "input_scale", "input_global_scale"}

Infos = Mapping[str, TensorInfo]


class Layout(msgspec.Struct, frozen=True, gc=False):
    """The tensors one linear [N, K] is stored in.

    scale: block or tile scales. global_scale, input_scale: NVFP4 only. reciprocal: these two are
    stored as 1/x (compressed-tensors). spelling: whose names these are, for reports.
    """

    format: Format
    spelling: str
    weight: TensorInfo
    scale: TensorInfo | None = None
    global_scale: TensorInfo | None = None
    input_scale: TensorInfo | None = None
    reciprocal: bool = False

    def tensors(self) -> list[TensorInfo]:
        found = [self.weight]
        for info in (self.scale, self.global_scale, self.input_scale):
            if info is not None:
                found.append(info)
        return found

    @property
    def size_bytes(self) -> int:
        """Bytes of all of them."""
        return sum([info.end - info.start for info in self.tensors()])


def expect(
    infos: Infos, where: str, name: str, shape: tuple[int, ...], dtypes: tuple[str, ...]
) -> TensorInfo:
    """The named tensor, if it is of this shape and one of these dtypes; shape [] also takes [1].

    Raises:
        CheckpointError: missing or other. `where` stands for the file of a missing tensor.
    """
    info = infos.get(name)
    if info is None:
        raise CheckpointError(f"{where}: tensor {name!r} is missing")
    if info.shape != shape and not (shape == () and info.shape == (1,)):
        raise CheckpointError(
            f"{info.file}: {name!r} has shape {list(info.shape)}, expected {list(shape)}"
        )
    if info.dtype not in dtypes:
        raise CheckpointError(
            f"{info.file}: {name!r} is {info.dtype}, expected " + " or ".join(dtypes)
        )
    return info


def find_layout(infos: Infos, where: str, prefix: str, shape: tuple[int, int]) -> Layout:
    """How the linear `prefix` [N, K] is stored.

    Raises:
        CheckpointError: a tensor of it is missing, of another shape or dtype, or the names mix two
            formats.
    """
    info = infos.get(f"{prefix}.weight")
    packed = infos.get(f"{prefix}.weight_packed")
    if packed is not None:
        where = str(packed.file)
        if info is not None:
            raise CheckpointError(
                f"{where}: {prefix!r} has both weight and weight_packed: two formats at once"
            )
        return _compressed_tensors(infos, where, prefix, shape)
    if info is None:
        raise CheckpointError(f"{where}: tensor '{prefix}.weight' is missing")
    where = str(info.file)  # a scale that is missing is missed beside its weight
    if info.dtype in BYTES:
        old_name = infos.get(f"{prefix}.scale")
        if old_name is not None and old_name.dtype in _E4M3:
            return _modelopt(infos, where, prefix, shape, "scale")
        if f"{prefix}.weight_scale" in infos or f"{prefix}.weight_scale_2" in infos:
            return _modelopt(infos, where, prefix, shape, "weight_scale")
        return _mxfp4(infos, where, prefix, shape)
    if info.dtype in _E4M3:
        return _fp8(infos, where, prefix, shape)
    return Layout("float", info.dtype, expect(infos, where, info.name, shape, FLOATS))


def _packed(
    infos: Infos, where: str, name: str, shape: tuple[int, int], block: int
) -> tuple[TensorInfo, tuple[int, int]]:
    """The 4-bit codes, and the shape their block scales must have."""
    rows, columns = shape
    if columns % block:
        raise CheckpointError(f"{where}: {name!r}: {columns} columns are no multiple of {block}")
    return expect(infos, where, name, (rows, columns // 2), BYTES), (rows, columns // block)


def _modelopt(
    infos: Infos, where: str, prefix: str, shape: tuple[int, int], scale_name: str
) -> Layout:
    """NVIDIA's names; block scales under `weight_scale`, or under the old name `scale`."""
    weight, blocks = _packed(infos, where, f"{prefix}.weight", shape, NVFP4_BLOCK)
    input_name = f"{prefix}.input_scale"
    return Layout(
        "nvfp4",
        "ModelOpt" if scale_name == "weight_scale" else "native names",
        weight,
        expect(infos, where, f"{prefix}.{scale_name}", blocks, _E4M3),
        expect(infos, where, f"{prefix}.weight_scale_2", (), _F32),
        expect(infos, where, input_name, (), _F32) if input_name in infos else None,
    )


def _compressed_tensors(infos: Infos, where: str, prefix: str, shape: tuple[int, int]) -> Layout:
    weight, blocks = _packed(infos, where, f"{prefix}.weight_packed", shape, NVFP4_BLOCK)
    input_name = f"{prefix}.input_global_scale"
    return Layout(
        "nvfp4",
        "compressed-tensors",
        weight,
        expect(infos, where, f"{prefix}.weight_scale", blocks, _E4M3),
        expect(infos, where, f"{prefix}.weight_global_scale", (), _F32),
        expect(infos, where, input_name, (), _F32) if input_name in infos else None,
        reciprocal=True,
    )


def _mxfp4(infos: Infos, where: str, prefix: str, shape: tuple[int, int]) -> Layout:
    weight, blocks = _packed(infos, where, f"{prefix}.weight", shape, MXFP4_BLOCK)
    scale = expect(infos, where, f"{prefix}.scale", blocks, _E8M0)
    return Layout("mxfp4", "DeepSeek", weight, scale)


def _fp8(infos: Infos, where: str, prefix: str, shape: tuple[int, int]) -> Layout:
    weight = expect(infos, where, f"{prefix}.weight", shape, _E4M3)
    tiles = (-(-shape[0] // FP8_TILE), -(-shape[1] // FP8_TILE))
    names = [f"{prefix}.{name}" for name in ("scale", "weight_scale_inv", "weight_scale")]
    found = [name for name in names if name in infos]
    if len(found) > 1:
        raise CheckpointError(f"{weight.file}: {found[0]!r} and {found[1]!r}: two scales for one")
    scale = expect(infos, where, found[0] if found else names[0], tiles, _FP8_SCALES)
    spelling = "E8M0 scales" if scale.dtype in _E8M0 else f"{scale.dtype} scales"
    return Layout("fp8", spelling, weight, scale)
