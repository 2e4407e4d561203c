"""safetensors headers, read as untrusted input: every size is checked before anything is read.

A file is 8 bytes of little-endian header length N, N bytes of JSON, then the data the header points
into. Nothing here needs torch, so that a broken checkpoint is refused before torch is imported.
"""

import json
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec

from engine.checkpoint.strict_json import parse_object, regular_size, shown
from engine.errors import CheckpointError

# A header of 300,000 tensors has 40 MB; real shards hold a few thousand tensors.
MAX_HEADER_BYTES = 64 << 20
MAX_TENSORS = 1 << 19
_COMMAS_PER_TENSOR = 6
_MAX_DIMENSIONS = 8
_MAX_NAME = 512
_MAX_SIZE = 1 << 62
_NOT_SIZES = "shape is not a list of sizes"
_NOT_OFFSETS = "data_offsets are not [begin, end]"

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


class TensorInfo(msgspec.Struct, frozen=True, gc=False):
    """Where a tensor lies: bytes [start, end) of `file`, from the file's first byte. `dtype` is the
    header's name of it, a key of ITEM_BYTES."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    end: int

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


class _Entry(msgspec.Struct, gc=False):
    """A header entry as the safetensors library writes it."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def read_header(path: Path) -> dict[str, TensorInfo]:
    """All tensors of one file.

    Raises:
        CheckpointError: not a safetensors file, truncated, overlapping or impossible entries. One
            line, naming file and tensor.
    """
    size = regular_size(path)
    try:
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
    # Bounds the memory that decoding takes, whatever the header nests in what.
    if body.count(b"{") > MAX_TENSORS or body.count(b",") > _COMMAS_PER_TENSOR * MAX_TENSORS:
        raise CheckpointError(f"{path}: the header has more than {MAX_TENSORS} entries")
    entries = _fast_entries(body)
    if entries is None:
        entries = parse_object(body, str(path), "the header")
        entries.pop("__metadata__", None)
    del body
    data = 8 + length
    tensors = {name: _tensor(path, name, entry, data, size) for name, entry in entries.items()}
    _check_layout(path, list(tensors.values()), data, size)
    return tensors


def _guess(prefix: bytes) -> str:
    """Say what a file with the wrong content looks like."""
    kinds = {b"version ": "a Git LFS pointer: fetch the real file", b"<!DOCTYP": "an HTML page"}
    kinds |= {b"PK\x03\x04": "a zip or torch file", b"GGUF": "a GGUF file"}
    for start, kind in kinds.items():
        if prefix.startswith(start):
            return f" (it looks like {kind})"
    return ""


_decode_entries = msgspec.json.Decoder(dict[str, _Entry]).decode
_decode_text = json.JSONDecoder().raw_decode
_encode = msgspec.json.Encoder().encode
_METADATA = '{"__metadata__":'


def _fast_entries(body: bytes) -> dict[str, Any] | None:
    """The entries of a header in the exact form the safetensors library writes, else None.

    The exact form is proved by writing it again: a key that stands twice, or anything beyond the
    three fields, would come out otherwise.
    """
    try:
        body = body.rstrip(b" ")
        if body.startswith(_METADATA.encode()):
            text = body.decode()
            metadata, end = _decode_text(text, len(_METADATA))
            msgspec.convert(metadata, dict[str, str])
            body = b"{" + text[end:].removeprefix(",").encode()
        entries = _decode_entries(body)
        return entries if entries and _encode(entries) == body else None
    except (msgspec.DecodeError, msgspec.ValidationError, ValueError, RecursionError):
        return None


def _tensor(path: Path, name: str, entry: Any, data_start: int, size: int) -> TensorInfo:
    """A checked entry; called once for each of hundreds of thousands, so it does little."""
    if not name or len(name) > _MAX_NAME or not name.isprintable():
        raise _bad(path, name, "not a usable tensor name")
    if type(entry) is _Entry:
        dtype, shape, (begin, end) = entry.dtype, entry.shape, entry.data_offsets
    else:
        dtype, shape, begin, end = _loose_entry(path, name, entry)
    needed = ITEM_BYTES.get(dtype)
    if needed is None:
        raise _bad(path, name, f"unknown dtype {shown(dtype)}")
    if len(shape) > _MAX_DIMENSIONS:
        raise _bad(path, name, _NOT_SIZES)
    for length in shape:
        if not 0 <= length < _MAX_SIZE:
            raise _bad(path, name, _NOT_SIZES)
        needed *= length
    if not 0 <= begin <= end < _MAX_SIZE:
        raise _bad(path, name, _NOT_OFFSETS)
    if end - begin != needed:
        what = f"shape {shape} of {dtype} needs {needed} bytes, data_offsets give {end - begin}"
        raise _bad(path, name, what)
    if data_start + end > size:
        raise _bad(path, name, f"truncated: ends at byte {data_start + end}, the file has {size}")
    return TensorInfo(name, dtype, tuple(shape), path, data_start + begin, data_start + end)


def _bad(path: Path, name: str, what: str) -> CheckpointError:
    return CheckpointError(f"{path}: {shown(name)}: {what}")


def _loose_entry(path: Path, name: str, entry: Any) -> tuple[str, list[int], int, int]:
    """Fields of an entry that is written in another form: spaces, another order, more keys."""
    if not isinstance(entry, dict):
        raise _bad(path, name, "the header entry is not an object")
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str):
        raise _bad(path, name, f"unknown dtype {shown(dtype)}")
    if not _is_integers(shape):
        raise _bad(path, name, _NOT_SIZES)
    if not _is_integers(offsets) or len(offsets) != 2:
        raise _bad(path, name, _NOT_OFFSETS)
    return dtype, shape, *offsets


def _is_integers(value: Any) -> bool:
    return isinstance(value, list) and all(type(v) is int for v in value)


def _check_layout(path: Path, tensors: list[TensorInfo], data_start: int, size: int) -> None:
    """The tensors fill the data section without overlap, to its last byte."""
    end, before = data_start, "the header"
    for tensor in sorted(tensors, key=attrgetter("start", "end")):
        if tensor.start < end:
            raise CheckpointError(f"{path}: {tensor.name!r} overlaps {before!r}")
        if tensor.start > end:
            raise CheckpointError(f"{path}: a gap of unnamed bytes before {tensor.name!r}")
        end, before = tensor.end, tensor.name
    if end != size:
        raise CheckpointError(f"{path}: {size - end} bytes after the last tensor")
