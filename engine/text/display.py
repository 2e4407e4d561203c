"""Text made safe to show: control characters as visible symbols. Stored text is never changed."""

import re

# C0, DEL, C1, what reorders or hides text (bidi marks, embeddings and isolates, line separators,
# BOM), and the bytes that were no UTF-8.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\udc80-\udcff]"
)


def visible(text: str, keep: str = "") -> str:
    """`text` with each control character as a symbol: ESC is ␛, U+202E is <U+202E>, a stray byte
    <F0>.

    Characters in `keep` (such as newline and tab) stay as they are.
    """
    return _UNSAFE.sub(lambda match: _symbol(match[0], keep), text)


def visible_bytes(data: bytes, keep: str = "") -> str:
    """As `visible`, for bytes that need not be UTF-8: a token may be a part of a character."""
    return visible(data.decode("utf-8", "surrogateescape"), keep)


def _symbol(char: str, keep: str) -> str:
    if char in keep:
        return char
    code = ord(char)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    if 0xDC80 <= code <= 0xDCFF:
        return f"<{code - 0xDC00:02X}>"
    return f"<U+{code:04X}>"
