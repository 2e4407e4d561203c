"""Ways to break a checkpoint folder, each with the words its refusal must hold.

A mutation takes a good folder and breaks it; `names` must stand in the message: the tensor, or the
file where no tensor is meant.
"""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engine.checkpoint.files import CheckpointFiles
from engine.checkpoint.index import INDEX
from engine.checkpoint.synthetic import write_checkpoint

CPU = torch.device("cpu")
NORM = "layers.1.attn_norm.weight"
WQ_A = "layers.0.attn.wq_a"
EXPERT = "layers.2.ffn.experts.3.w2"
GATE = "layers.0.ffn.gate.tid2eid"
SHARDS = 3

Break = Callable[[Path], object]


class Mutation(NamedTuple):
    breaks: Break
    names: str
    words: str
    layout: str = "nvidia"


# ---- tools ---------------------------------------------------------------------------------------


def shard_of(folder: Path, name: str) -> Path:
    return folder / json.loads((folder / INDEX).read_text())["weight_map"][name]


def edit_tensors(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    """Rewrite the folder with changed tensors."""
    files = CheckpointFiles(folder)
    tensors = {name: files.read(name, CPU) for name in files.infos()}
    change(tensors)
    for shard in folder.glob("*.safetensors"):
        shard.unlink()
    raw = json.loads((folder / "config.json").read_text())
    write_checkpoint(folder, raw, tensors, shards=SHARDS)


def split(path: Path) -> tuple[bytes, bytes]:
    """Header JSON and data."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    return raw[8 : 8 + length], raw[8 + length :]


def join(path: Path, header: bytes, data: bytes) -> None:
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)


def edit_header(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Rewrite a shard's header, the data untouched."""
    body, data = split(path)
    header = json.loads(body)
    change(header)
    join(path, json.dumps(header).encode(), data)


def edit_index(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    index = json.loads((folder / INDEX).read_text())
    change(index["weight_map"])
    (folder / INDEX).write_text(json.dumps(index))


def edit_config(folder: Path, **changes: Any) -> None:
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**raw, **changes}))


# ---- kinds of damage -----------------------------------------------------------------------------


def raw_header(body: bytes) -> Break:
    def breaks(folder: Path) -> None:
        shard = shard_of(folder, NORM)
        join(shard, body, split(shard)[1])

    return breaks


def entry(**fields: Any) -> Break:
    """Other values in NORM's header entry."""
    return lambda folder: edit_header(
        shard_of(folder, NORM), lambda header: header[NORM].update(fields)
    )


def whole_entry(value: Any) -> Break:
    return lambda folder: edit_header(
        shard_of(folder, NORM), lambda header: header.update({NORM: value})
    )


def drop(name: str) -> Break:
    return lambda folder: edit_tensors(folder, lambda tensors: tensors.pop(name))


def put(name: str, tensor: Tensor) -> Break:
    return lambda folder: edit_tensors(folder, lambda tensors: tensors.update({name: tensor}))


def rename(old: str, new: str) -> Break:
    return lambda folder: edit_tensors(folder, lambda t: t.update({new: t.pop(old)}))


def recast(name: str, dtype: torch.dtype) -> Break:
    return lambda folder: edit_tensors(folder, lambda t: t.update({name: t[name].to(dtype)}))


def set_value(name: str, value: float, at: int = 0) -> Break:
    return lambda folder: edit_tensors(folder, lambda t: t[name].view(-1)[at].fill_(value))


def set_byte(name: str, value: int, at: int = 3) -> Break:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors[name].view(torch.uint8).view(-1)[at] = value

    return lambda folder: edit_tensors(folder, change)


def point_at(where: str) -> Break:
    return lambda folder: edit_index(folder, lambda weight_map: weight_map.update({NORM: where}))


def cut(amount: int) -> Break:
    def breaks(folder: Path) -> None:
        shard = shard_of(folder, NORM)
        shard.write_bytes(shard.read_bytes()[:-amount])

    return breaks


def swap_shards(folder: Path) -> None:
    first, second = sorted(folder.glob("*.safetensors"))[:2]
    held = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(held)


def swap_entries(folder: Path) -> None:
    """The header's names of two tensors of different shape, exchanged."""

    def change(header: dict[str, Any]) -> None:
        other = next(n for n in header if n.endswith("w1.weight"))
        header[NORM], header[other] = header[other], header[NORM]

    edit_header(shard_of(folder, NORM), change)


def overlap(folder: Path) -> None:
    """Two tensors share their bytes; another's bytes belong to none."""

    def change(header: dict[str, Any]) -> None:
        same = [n for n in header if n.endswith("ffn_norm.weight")]
        header[NORM]["data_offsets"] = header[same[0]]["data_offsets"]

    edit_header(shard_of(folder, NORM), change)


def twice_in_header(folder: Path) -> None:
    shard = shard_of(folder, NORM)
    body, data = split(shard)
    again = json.dumps({NORM: {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}})[1:-1]
    join(shard, body.rstrip()[:-1] + b"," + again.encode() + b"}", data)


def field_twice(folder: Path) -> None:
    shard = shard_of(folder, NORM)
    body, data = split(shard)
    at = body.index(b'"dtype"', body.index(NORM.encode()))
    join(shard, body[:at] + b'"dtype":"F32",' + body[at:], data)


def twice_in_index(folder: Path) -> None:
    text = (folder / INDEX).read_text()
    at = text.index('"weight_map"') + len('"weight_map": {')
    (folder / INDEX).write_text(text[:at] + f'"{NORM}": "other.safetensors", ' + text[at:])


def pipe_for_shard(folder: Path) -> None:
    shard = shard_of(folder, NORM)
    shard.unlink()
    os.mkfifo(shard)


def folder_for_shard(folder: Path) -> None:
    shard = shard_of(folder, NORM)
    shard.unlink()
    shard.mkdir()


def looping_link(folder: Path) -> None:
    shard = shard_of(folder, NORM)
    shard.unlink()
    shard.symlink_to(shard.name)


def sparse(size: int) -> Break:
    """A shard that is one huge header of nothing."""

    def breaks(folder: Path) -> None:
        with open(shard_of(folder, NORM), "wb") as file:
            file.write(struct.pack("<Q", size - 8))
            file.truncate(size)

    return breaks


def both_scales(folder: Path) -> None:
    edit_tensors(
        folder,
        lambda t: t.update({f"{WQ_A}.weight_scale_inv": torch.ones(t[f"{WQ_A}.scale"].shape)}),
    )


def write_shard(content: bytes) -> Break:
    return lambda folder: shard_of(folder, NORM).write_bytes(content)


def unscaled_expert(folder: Path) -> None:
    edit_tensors(folder, lambda t: t.pop(f"{EXPERT}.input_scale"))


def other_expert_count(folder: Path) -> None:
    edit_config(folder, n_routed_experts=9)


SHARD = "model-0000"
BIG = 1 << 60
MUTATIONS: dict[str, Mutation] = {
    # files
    "missing shard": Mutation(lambda f: shard_of(f, NORM).unlink(), SHARD, "is missing"),
    "truncated by 100 bytes": Mutation(cut(100), SHARD, "truncated"),
    "truncated by one byte": Mutation(cut(1), SHARD, "truncated"),
    "trailing bytes": Mutation(
        lambda f: shard_of(f, NORM).open("ab").write(b"more"), SHARD, "4 bytes after the last"),
    "swapped shards": Mutation(swap_shards, SHARD, "not listed for this shard"),
    "git lfs pointer": Mutation(write_shard(b"version https://git-lfs.github.com"), SHARD, "LFS"),
    "html page": Mutation(write_shard(b"<!DOCTYPE html><html></html>"), SHARD, "HTML"),
    "torch file": Mutation(write_shard(b"PK\x03\x04" + bytes(100)), SHARD, "not a safetensors"),
    "gguf file": Mutation(write_shard(b"GGUF" + bytes(100)), SHARD, "not a safetensors"),
    "empty shard": Mutation(write_shard(b""), SHARD, "not a safetensors file"),
    "seven bytes": Mutation(write_shard(b"\x02" + bytes(6)), SHARD, "not a safetensors file"),
    "pipe": Mutation(pipe_for_shard, SHARD, "not a plain file"),
    "folder": Mutation(folder_for_shard, SHARD, "not a plain file"),
    "looping link": Mutation(looping_link, SHARD, "is missing|cannot be read"),
    # headers
    "header of 2^60 bytes": Mutation(write_shard(struct.pack("<Q", BIG)), SHARD, "not a safe"),
    "header of 2^64 - 1 bytes": Mutation(write_shard(b"\xff" * 8), SHARD, "not a safetensors"),
    "header past the end": Mutation(write_shard(struct.pack("<Q", 9999)), SHARD, "truncated"),
    "header of zeros": Mutation(sparse(60 << 20), SHARD, "cannot be read as JSON"),
    "header over the limit": Mutation(sparse(1 << 36), SHARD, "not a safetensors"),
    "header is no JSON": Mutation(raw_header(b"{]"), SHARD, "cannot be read as JSON"),
    "header is no UTF-8": Mutation(raw_header(b'{"\xff": 1}'), SHARD, "cannot be read as JSON"),
    "header is a list": Mutation(raw_header(b"[]"), SHARD, "not a JSON object"),
    "header is empty": Mutation(raw_header(b"{}"), SHARD, "after the last tensor"),
    "deep header": Mutation(raw_header(b'{"a":' + b"[" * 100_000), SHARD, "cannot be read as JSON"),
    "deep objects": Mutation(raw_header(b'{"a":' * 100_000), SHARD, "cannot be read as JSON"),
    "number of 9000 digits": Mutation(
        raw_header(b'{"a":{"shape":[' + b"9" * 9000 + b"]}}"), SHARD, "cannot be read as JSON"),
    "a million entries": Mutation(
        raw_header(b"{" + b",".join(b'"%d":{}' % i for i in range(1_000_000)) + b"}"),
        SHARD, "more than"),
    "tensor twice": Mutation(twice_in_header, NORM, "stands twice"),
    "a shape of ten million sizes": Mutation(
        raw_header(b'{"a":{"shape":[' + b"1," * 10_000_000 + b"1]}}"), SHARD, "more than"),
    "field twice": Mutation(field_twice, NORM, "'dtype' stands twice"),
    "name with a newline": Mutation(
        lambda f: edit_header(shard_of(f, NORM), lambda h: h.update({"a\nb": h.pop(NORM)})),
        "a\\nb", "not a usable"),
    "name of 600 letters": Mutation(
        lambda f: edit_header(shard_of(f, NORM), lambda h: h.update({"a" * 600: h.pop(NORM)})),
        "aaa", "not a usable"),
    "empty name": Mutation(
        lambda f: edit_header(shard_of(f, NORM), lambda h: h.update({"": h.pop(NORM)})),
        "''", "not a usable"),
    "entry is a number": Mutation(whole_entry(7), NORM, "not an object"),
    "entry is null": Mutation(whole_entry(None), NORM, "not an object"),
    "entry is empty": Mutation(whole_entry({}), NORM, "unknown dtype"),
    "unknown dtype": Mutation(entry(dtype="F4"), NORM, "unknown dtype"),
    "dtype is a list": Mutation(entry(dtype=["BF16"]), NORM, "unknown dtype"),
    "dtype of another width": Mutation(entry(dtype="F32"), NORM, "needs 256 bytes"),
    "dtype of the same width": Mutation(entry(dtype="I16"), NORM, "is I16, expected BF16"),
    "shape of 2^60": Mutation(entry(shape=[BIG]), NORM, "needs"),
    "shape of 2^60 squared": Mutation(entry(shape=[BIG, BIG]), NORM, "needs"),
    "shape that wraps to the right size": Mutation(
        entry(shape=[BIG, 16, 64]), NORM, "needs"),
    "shape past 64 bits": Mutation(entry(shape=[1 << 70]), NORM, "not a list of sizes"),
    "negative shape": Mutation(entry(shape=[-64]), NORM, "list of sizes"),
    "two negative sizes": Mutation(entry(shape=[-8, -8]), NORM, "list of sizes"),
    "fractional shape": Mutation(entry(shape=[64.0]), NORM, "list of sizes"),
    "true for a size": Mutation(entry(shape=[True, 64]), NORM, "list of sizes"),
    "shape is text": Mutation(entry(shape="64"), NORM, "list of sizes"),
    "nine dimensions": Mutation(entry(shape=[1] * 8 + [64]), NORM, "list of sizes"),
    "another shape of the same size": Mutation(entry(shape=[8, 8]), NORM, r"has shape \[8, 8\]"),
    "offsets past the end": Mutation(
        entry(data_offsets=[1 << 40, (1 << 40) + 128]), NORM, "truncated"),
    "offsets of 2^60": Mutation(entry(data_offsets=[BIG, BIG + 128]), NORM, "truncated"),
    "offsets past 64 bits": Mutation(entry(data_offsets=[0, 1 << 70]), NORM, "not .begin, end"),
    "offsets reversed": Mutation(entry(data_offsets=[128, 0]), NORM, "not .begin, end"),
    "negative offsets": Mutation(entry(data_offsets=[-128, 0]), NORM, "not .begin, end"),
    "three offsets": Mutation(entry(data_offsets=[0, 64, 128]), NORM, "not .begin, end"),
    "overlap": Mutation(overlap, SHARD, "overlaps|a gap"),
    "entries exchanged": Mutation(swap_entries, SHARD, "has shape|is U8|is BF16"),
    # the index
    "index is not JSON": Mutation(lambda f: (f / INDEX).write_text("{"), INDEX, "as JSON"),
    "index is not UTF-8": Mutation(lambda f: (f / INDEX).write_bytes(b"\xff{}"), INDEX, "as JSON"),
    "index is deep": Mutation(
        lambda f: (f / INDEX).write_text("[" * 100_000), INDEX, "as JSON"),
    "index without a map": Mutation(lambda f: (f / INDEX).write_text("{}"), INDEX, "no weight_map"),
    "index with an empty map": Mutation(
        lambda f: (f / INDEX).write_text('{"weight_map": {}}'), INDEX, "no weight_map"),
    "index is a folder": Mutation(
        lambda f: ((f / INDEX).unlink(), (f / INDEX).mkdir()), INDEX, "not a plain file"),
    "index names a tensor twice": Mutation(twice_in_index, NORM, "stands twice"),
    "index points up": Mutation(point_at("../evil.safetensors"), NORM, "not a shard beside it"),
    "index points at root": Mutation(point_at("/etc/passwd"), NORM, "not a shard beside it"),
    "index points at a file of root": Mutation(
        point_at("/tmp/x.safetensors"), NORM, "not a shard beside it"),
    "index points into a folder": Mutation(point_at("a/b.safetensors"), NORM, "not a shard beside"),
    "index points at a drive": Mutation(point_at("C:\\x.safetensors"), NORM, "not a shard beside"),
    "index points at a nul": Mutation(point_at("a\0.safetensors"), NORM, "not a shard beside it"),
    "index points at a number": Mutation(point_at(3), NORM, "not a shard"),  # type: ignore[arg-type]
    "index points at a list": Mutation(point_at([]), NORM, "not a shard"),  # type: ignore[arg-type]
    "index points at another type": Mutation(point_at("model.bin"), NORM, "not a shard beside it"),
    "index names another shard": Mutation(
        lambda f: edit_index(f, lambda m: m.update({NORM: sorted(set(m.values()) - {m[NORM]})[0]})),
        NORM, "not listed for this shard"),
    "index names a ghost": Mutation(
        lambda f: edit_index(f, lambda m: m.update({"ghost": m[NORM]})),
        "ghost", "not in the shard"),
    "index lacks a tensor": Mutation(
        lambda f: edit_index(f, lambda m: m.pop(NORM)), NORM, "not listed"),
    # names
    "missing norm": Mutation(drop(NORM), NORM, "is missing"),
    "missing expert": Mutation(drop(f"{EXPERT}.weight"), f"{EXPERT}.weight", "is missing"),
    "missing block scale": Mutation(
        drop(f"{EXPERT}.weight_scale"), f"{EXPERT}.weight_scale", "is missing"),
    "missing global scale": Mutation(
        drop(f"{EXPERT}.weight_scale_2"), f"{EXPERT}.weight_scale_2", "is missing"),
    "missing input scale": Mutation(unscaled_expert, f"{EXPERT}.weight", "no input scale"),
    "missing tile scale": Mutation(drop(f"{WQ_A}.scale"), f"{WQ_A}.scale", "is missing"),
    "renamed norm": Mutation(rename(NORM, "layers.1.attn_norm.wieght"), NORM, "is missing"),
    "renamed scale": Mutation(
        rename(f"{EXPERT}.weight_scale_2", f"{EXPERT}.weight_scale2"), f"{EXPERT}.weight_scale_2",
        "is missing"),
    "stray tensor": Mutation(
        put("layers.1.attn.extra", torch.ones(3)), "layers.1.attn.extra", "not part of this"),
    "stray layer": Mutation(
        put("layers.4.attn_norm.weight", torch.ones(64)), "layers.4.attn_norm", "not part of this"),
    "transformers' names": Mutation(
        rename("embed.weight", "model.embed_tokens.weight"), "model", "transformers' tensor names"),
    "engram table": Mutation(
        put("layers.1.engram.table.weight", torch.ones(3)), "engram", "DeepSeek-V4.1"),
    "both spellings of a weight": Mutation(
        put(f"{EXPERT}.weight_packed", torch.ones(3)), EXPERT, "two formats at once"),
    "both spellings of a tile scale": Mutation(both_scales, f"{WQ_A}.scale", "two scales for one"),
    "reciprocal spelling of a global": Mutation(
        rename(f"{EXPERT}.weight_scale_2", f"{EXPERT}.weight_global_scale"),
        f"{EXPERT}.weight_scale_2", "is missing"),
    # shapes and dtypes
    "wrong shape": Mutation(put(NORM, torch.ones(3)), NORM, r"has shape \[3\], expected \[64\]"),
    "wrong dtype": Mutation(put(NORM, torch.ones(64, dtype=torch.int64)), NORM, "is I64, expected"),
    "codes as floats": Mutation(
        recast(f"{EXPERT}.weight", torch.bfloat16), f"{EXPERT}.weight", "has shape"),
    "block scales as bytes": Mutation(
        recast(f"{EXPERT}.weight_scale", torch.uint8), f"{EXPERT}.weight_scale", "is U8, expected"),
    "global scale in bf16": Mutation(
        recast(f"{EXPERT}.weight_scale_2", torch.bfloat16), f"{EXPERT}.weight_scale_2", "is BF16"),
    "a global scale per row": Mutation(
        put(f"{EXPERT}.weight_scale_2", torch.ones(64)), f"{EXPERT}.weight_scale_2",
        r"has shape \[64\], expected \[\]"),
    "too few block scales": Mutation(
        put(f"{EXPERT}.weight_scale", torch.ones(64, 1).to(torch.float8_e4m3fn)),
        f"{EXPERT}.weight_scale", r"has shape \[64, 1\], expected \[64, 2\]"),
    "a tile scale per tensor": Mutation(
        put(f"{WQ_A}.scale", torch.ones(())), f"{WQ_A}.scale", r"expected \[1, 1\]"),
    "config of another size": Mutation(other_expert_count, "layers.0.ffn.experts.8.w1", "missing"),
    "config of a million experts": Mutation(
        lambda f: edit_config(f, n_routed_experts=1 << 20), "layers.0.ffn.experts.8.w1", "missing"),
    # values
    "zero global scale": Mutation(
        set_value(f"{EXPERT}.weight_scale_2", 0.0), f"{EXPERT}.weight_scale_2", "above zero"),
    "nan global scale": Mutation(
        set_value(f"{EXPERT}.weight_scale_2", float("nan")), f"{EXPERT}.weight_scale_2", "finite"),
    "negative global scale": Mutation(
        set_value(f"{EXPERT}.weight_scale_2", -1.0), f"{EXPERT}.weight_scale_2", "above zero"),
    "inf input scale": Mutation(
        set_value(f"{EXPERT}.input_scale", float("inf")), f"{EXPERT}.input_scale", "finite"),
    "zero input scale": Mutation(
        set_value(f"{EXPERT}.input_scale", 0.0), f"{EXPERT}.input_scale", "above zero"),
    "nan block scale": Mutation(
        set_byte(f"{EXPERT}.weight_scale", 0x7F), f"{EXPERT}.weight_scale", "finite"),
    "negative block scale": Mutation(
        set_byte(f"{EXPERT}.weight_scale", 0xB8), f"{EXPERT}.weight_scale", "above zero"),
    "zero block scale": Mutation(
        set_byte(f"{EXPERT}.weight_scale", 0), f"{EXPERT}.weight_scale", "above zero"),
    "nan tile scale": Mutation(set_byte(f"{WQ_A}.scale", 255, 0), f"{WQ_A}.scale", "finite"),
    "tile scale never written": Mutation(set_byte(f"{WQ_A}.scale", 0, 0), f"{WQ_A}.scale", "above"),
    "nan in a projection": Mutation(
        set_byte(f"{WQ_A}.weight", 0x7F), f"{WQ_A}.weight", "NaN or Inf"),
    "nan in the head": Mutation(
        set_value("head.weight", float("nan")), "head.weight", "NaN or Inf"),
    "nan norm": Mutation(set_value(NORM, float("nan")), NORM, "NaN or Inf"),
    "inf mixing scale": Mutation(
        set_value("layers.1.hc_attn_scale", float("inf")), "layers.1.hc_attn_scale", "NaN or Inf"),
    "expert id out of range": Mutation(set_value(GATE, 99), GATE, "does not exist"),
    "negative expert id": Mutation(set_value(GATE, -1), GATE, "does not exist"),
    # other layouts
    "native: nan block scale": Mutation(
        set_byte(f"{EXPERT}.scale", 255), f"{EXPERT}.scale", "finite", "native"),
    "native: scale never written": Mutation(
        set_byte(f"{EXPERT}.scale", 0), f"{EXPERT}.scale", "above zero", "native"),
    "native: missing scale": Mutation(
        drop(f"{EXPERT}.scale"), f"{EXPERT}.scale", "is missing", "native"),
    "native: scales as E4M3": Mutation(
        put(f"{EXPERT}.scale", torch.ones(64, 1).to(torch.float8_e4m3fn)),
        f"{EXPERT}.scale", r"has shape \[64, 1\], expected \[64, 2\]", "native"),
    "compressed: zero global scale": Mutation(
        set_value(f"{EXPERT}.weight_global_scale", 0.0), f"{EXPERT}.weight_global_scale",
        "above zero", "compressed-tensors"),
    "compressed: inf global scale": Mutation(
        set_value(f"{EXPERT}.weight_global_scale", float("inf")), f"{EXPERT}.weight_global_scale",
        "above zero", "compressed-tensors"),
    "compressed: missing global scale": Mutation(
        drop(f"{EXPERT}.weight_global_scale"), f"{EXPERT}.weight_global_scale", "is missing",
        "compressed-tensors"),
    "compressed: nan tile scale": Mutation(
        set_value(f"{WQ_A}.weight_scale_inv", float("nan")), f"{WQ_A}.weight_scale_inv", "finite",
        "compressed-tensors"),
    "old names: missing global scale": Mutation(
        drop(f"{EXPERT}.weight_scale_2"), f"{EXPERT}.weight_scale_2", "is missing", "native-nvfp4"),
    "old names: two block scales": Mutation(
        put(f"{EXPERT}.weight_scale", torch.ones(3)), f"{EXPERT}.weight_scale", "not part of this",
        "native-nvfp4"),
    "base: negative tile scale": Mutation(
        set_value(f"{EXPERT}.scale", -1.0), f"{EXPERT}.scale", "above zero", "base"),
    "base: zero tile scale": Mutation(
        set_value(f"{EXPERT}.scale", 0.0), f"{EXPERT}.scale", "above zero", "base"),
}  # fmt: skip
