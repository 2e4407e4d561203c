"""Whether NVFP4 experts are NVIDIA's lossless cast of MXFP4 ones (architecture.md 8.2).

The cast copies the codes and turns each 32-block's power of two into two equal E4M3 scales under a
global scale that is a power of two: such experts hold exactly DeepSeek's own numbers. Needs no
torch: one expert's block scales are read, a megabyte at real sizes.
"""

import math
import struct

from engine.checkpoint.formats import Layout
from engine.checkpoint.headers import TensorInfo
from engine.errors import CheckpointError

# E4M3 codes of 2^-9 to 2^8: the three subnormals, then mantissa 0 in every binade; and zero.
_POWERS = bytes([0, 1, 2, 4, *range(8, 0x79, 8)])


def is_lossless_cast(layout: Layout) -> bool:
    """Raises CheckpointError where the files cannot be read."""
    if layout.format != "nvfp4" or layout.scale is None or layout.global_scale is None:
        return False
    (scale,) = struct.unpack("<f", _read(layout.global_scale))
    if not (scale > 0 and math.isfinite(scale)) or math.frexp(scale)[0] != 0.5:
        return False
    blocks = _read(layout.scale)
    return not blocks.translate(None, _POWERS) and blocks[0::2] == blocks[1::2]


def _read(info: TensorInfo) -> bytes:
    try:
        with open(info.file, "rb") as file:
            file.seek(info.start)
            found = file.read(info.size_bytes)
    except OSError as error:
        raise CheckpointError(f"{info.file}: cannot be read: {error.strerror or error}") from None
    if len(found) < info.size_bytes:
        raise CheckpointError(f"{info.file}: {info.name!r}: the file has become shorter")
    return found
