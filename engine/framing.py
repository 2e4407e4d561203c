"""Messages on a socket: a 4-byte big-endian length and a MessagePack map.

Nothing here needs torch or Textual.
"""

import socket
import struct

import msgspec

from engine.protocol import Command, Event

MAX_FRAME_BYTES = 64 * 1024 * 1024


class ProtocolError(Exception):
    """A frame that is too long, malformed, or of another version. The message is fit to show."""


_encoder = msgspec.msgpack.Encoder()
_command_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_event_decoder: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)
_header = struct.Struct(">I")
HEADER_BYTES = _header.size


def encode_frame(message: Command | Event) -> bytes:
    """Length prefix and body.

    Raises:
        ProtocolError: the body is longer than MAX_FRAME_BYTES.
    """
    return frame_bytes(message)


def frame_bytes(message: msgspec.Struct) -> bytes:
    """The same for a message of any other channel."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise ProtocolError(f"message of {len(body)} bytes is over the limit of {MAX_FRAME_BYTES}")
    return _header.pack(len(body)) + body


def frame_length(header: bytes) -> int:
    """Body length announced by a header.

    Raises:
        ProtocolError: it is over MAX_FRAME_BYTES.
    """
    (length,) = _header.unpack(header)
    if length > MAX_FRAME_BYTES:
        raise ProtocolError(f"frame of {length} bytes is over the limit of {MAX_FRAME_BYTES}")
    return int(length)


def decode_command(body: bytes) -> Command:
    """Raises ProtocolError: unknown kind, missing or mistyped field."""
    try:
        return _command_decoder.decode(body)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"bad command: {error}") from error


def decode_event(body: bytes) -> Event:
    """Raises ProtocolError: unknown kind, missing or mistyped field."""
    try:
        return _event_decoder.decode(body)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"bad event: {error}") from error


def read_frame(sock: socket.socket) -> bytes | None:
    """One body from a blocking socket; None when the peer has closed it between frames."""
    header = _read_exactly(sock, HEADER_BYTES)
    if header is None:
        return None
    body = _read_exactly(sock, frame_length(header))
    if body is None:
        raise ProtocolError("the connection ended inside a frame")
    return body


def _read_exactly(sock: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = sock.recv(size - len(parts))
        if not part:
            if parts:
                raise ProtocolError("the connection ended inside a frame")
            return None
        parts += part
    return bytes(parts)
