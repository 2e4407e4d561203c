"""safetensors headers, read as untrusted input: every size is checked before anything is mapped.

A file is 8 bytes of little-endian header length N, N bytes of JSON, then the data the header points
into. Nothing here needs torch, so that a broken checkpoint is refused before torch is imported.
"""

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import CheckpointError

MAX_HEADER_BYTES = 100_000_000
_MAX_DIMENSIONS = 8
_MAX_NAME = 512

# Bytes of one element, by the header's name of the dtype.
ITEM_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "I16": 2,
    "I32": 4,
    "I64": 8,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "F16": 2,
    "BF16": 2,
    "F32": 4,
    "F64": 8,
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies: bytes [start, end) of `file`, from the file's first byte. `dtype` is the
    header's name of it, a key of ITEM_BYTES."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    end: int


def read_header(path: Path) -> dict[str, TensorInfo]:
    """All tensors of one file.

    Raises:
        CheckpointError: not a safetensors file, truncated, overlapping or impossible entries. One
        line,
            naming file and tensor.
    """
    try:
        size = os.stat(path).st_size
        with open(path, "rb") as file:
            prefix = file.read(8)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < 8 or length < 2 or length > MAX_HEADER_BYTES:
                raise CheckpointError(f"{path}: not a safetensors file{_guess(prefix)}")
            if 8 + length > size:
                raise CheckpointError(
                    f"{path}: truncated: the header alone needs {8 + length} bytes, "
                    f"the file has {size}"
                )
            body = file.read(length)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from None
    entries = _parse(path, body)
    entries.pop("__metadata__", None)
    tensors = {
        name: _tensor(path, name, entry, 8 + length, size) for name, entry in entries.items()
    }
    _check_layout(path, list(tensors.values()), 8 + length, size)
    return tensors


def _guess(prefix: bytes) -> str:
    """Say what a file with the wrong content looks like."""
    kinds = {b"version ": "a Git LFS pointer: fetch the real file", b"<!DOCTYP": "an HTML page"}
    kinds |= {b"PK\x03\x04": "a zip or torch file", b"GGUF": "a GGUF file"}
    for start, kind in kinds.items():
        if prefix.startswith(start):
            return f" (it looks like {kind})"
    return ""


def _parse(path: Path, body: bytes) -> dict[str, Any]:
    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise CheckpointError(f"{path}: {twice[:_MAX_NAME]!r} stands twice in the header")
        return found

    try:
        entries = json.loads(body.decode("utf-8"), object_pairs_hook=no_duplicates)
    except (ValueError, RecursionError):
        raise CheckpointError(f"{path}: the header is not valid JSON") from None
    if not isinstance(entries, dict):
        raise CheckpointError(f"{path}: the header is not a JSON object")
    return entries


def _tensor(path: Path, name: str, entry: Any, data_start: int, size: int) -> TensorInfo:
    def bad(what: str) -> CheckpointError:
        return CheckpointError(f"{path}: {name[:_MAX_NAME]!r}: {what}")

    if not name or len(name) > _MAX_NAME or not name.isprintable():
        raise bad("not a usable tensor name")
    if not isinstance(entry, dict):
        raise bad("the header entry is not an object")
    dtype = entry.get("dtype")
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise bad(f"unknown dtype {str(dtype)[:40]!r}")
    shape, offsets = entry.get("shape"), entry.get("data_offsets")
    if not _is_sizes(shape) or len(shape) > _MAX_DIMENSIONS:
        raise bad("shape is not a list of sizes")
    if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise bad("data_offsets are not [begin, end]")
    needed = math.prod(shape) * ITEM_BYTES[dtype]
    if offsets[1] - offsets[0] != needed:
        raise bad(
            f"shape {shape} of {dtype} needs {needed} bytes, "
            f"data_offsets give {offsets[1] - offsets[0]}"
        )
    if data_start + offsets[1] > size:
        raise bad(f"truncated: ends at byte {data_start + offsets[1]}, the file has {size}")
    return TensorInfo(
        name, dtype, tuple(shape), path, data_start + offsets[0], data_start + offsets[1]
    )


def _is_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(v, int) and not isinstance(v, bool) and 0 <= v < 1 << 62 for v in value
    )


def _check_layout(path: Path, tensors: list[TensorInfo], data_start: int, size: int) -> None:
    """The tensors fill the data section without overlap, to its last byte."""
    end, before = data_start, "the header"
    for tensor in sorted(tensors, key=lambda t: (t.start, t.end)):
        if tensor.start < end:
            raise CheckpointError(f"{path}: {tensor.name!r} overlaps {before!r}")
        if tensor.start > end:
            raise CheckpointError(f"{path}: a gap of unnamed bytes before {tensor.name!r}")
        end, before = tensor.end, tensor.name
    if end != size:
        raise CheckpointError(f"{path}: {size - end} bytes after the last tensor")
