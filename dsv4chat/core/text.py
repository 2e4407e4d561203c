"""Makes text from a model, a user, a file or the engine safe to show.

Everything that reaches the terminal passes `clean` (many lines) or `one_line`. Neither can end up
as an escape sequence, move the cursor, change the writing direction, or break an encoder.
"""

import re

MARK_START, MARK_END, MARK_POINT, CURSOR_POINT = "\u2061", "\u2062", "\u2063", "\u2064"
"""Signs without width that the transcript uses to find a place again after Markdown.

`clean` never lets them in.
"""

_LINE_ENDS = dict.fromkeys([0x0B, 0x0C, 0x85, 0x2028, 0x2029], "\n")
_PICTURES = {
    code: chr(0x2400 + code) for code in range(0x20) if code not in (0x09, 0x0A, 0x0B, 0x0C)
}
_HIDDEN = dict.fromkeys(
    [
        *range(0x80, 0x85),
        *range(0x86, 0xA0),  # C1: 0x9B alone starts a sequence on some terminals
        *range(0x202A, 0x202F),  # bidi embeddings and overrides
        *range(0x2066, 0x206A),  # bidi isolates
        *range(0x2061, 0x2065),
        0xFFFE,
        0xFFFF,
    ],
    "\ufffd",
)
_TABLE = str.maketrans({**_LINE_ENDS, **_PICTURES, **_HIDDEN, 0x7F: "\u2421"})
_SURROGATES = re.compile("[\ud800-\udfff]")


def clean(text: str) -> str:
    """Text with LF as the only line end and no character that a terminal could obey. Tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _SURROGATES.sub("\ufffd", text).translate(_TABLE)


def one_line(text: str, limit: int = 200) -> str:
    """`clean` on one line, cut to `limit` characters with an ellipsis."""
    flat = " ".join(clean(text[: 4 * limit + 8]).replace("\t", " ").split("\n")).strip()
    return flat if len(flat) <= limit else flat[: max(limit - 1, 0)] + "…"


def quoted(piece: str, limit: int = 24) -> str:
    """A token's text between quotes, with line ends and tabs as signs."""
    flat = clean(piece).replace("\n", "⏎").replace("\t", "⇥")
    return f"'{flat if len(flat) <= limit else flat[: limit - 1] + '…'}'"


def count(number: float) -> str:
    """A quantity for people: 812, 3.1k, 128k, 2.4M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            value = number / size
            return (
                f"{value:.0f}{unit}"
                if value >= 99.5 or value == int(value)
                else f"{value:.1f}{unit}"
            )
    return f"{number:.0f}"


def size(number: float) -> str:
    """Bytes for people, in GiB, MiB or KiB."""
    for step, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if number >= step:
            return f"{number / step:.1f} {unit}"
    return f"{number:.0f} B"


def seconds(duration: float) -> str:
    """A duration for people: 840 ms, 6.7 s, 3 min 12 s."""
    if duration < 1:
        return f"{duration * 1000:.0f} ms"
    if duration < 60:
        return f"{duration:.1f} s"
    minutes, rest = divmod(round(duration), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
