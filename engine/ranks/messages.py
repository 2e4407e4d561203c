"""Messages between the first rank and a follower, over a private socket.

The first rank tells every follower what it is about to do with its runner, in order; the two then
meet in the sums of the step. Needs no torch.
"""

import socket

import msgspec

from engine.framing import frame_bytes, read_frame
from engine.protocol import Load, Sampling, StepOptions


class Join(msgspec.Struct, tag=True):
    """Load your part. store: the file where the ranks meet. device: cpu or cuda."""

    load: Load
    rank: int
    context: int
    device: str
    store: str


class Prefill(msgspec.Struct, tag=True):
    """One chunk of prompt tokens."""

    ids: list[int]
    options: StepOptions


class Begin(msgspec.Struct, tag=True):
    token_id: int
    sampling: Sampling
    seed: int


class Start(msgspec.Struct, tag=True):
    options: StepOptions
    forced: int


class Collect(msgspec.Struct, tag=True):
    pass


class Discard(msgspec.Struct, tag=True):
    always: bool


class Rewind(msgspec.Struct, tag=True):
    """Go back to `length`; of the snapshots only those at `kept` positions are of use still."""

    length: int
    kept: list[int]


class Snapshot(msgspec.Struct, tag=True):
    pass


class Joined(msgspec.Struct, tag=True):
    """A follower's part is loaded."""

    resident_bytes: int


class Failed(msgspec.Struct, tag=True):
    """A follower ends. The message is fit to show."""

    message: str


Order = Join | Prefill | Begin | Start | Collect | Discard | Rewind | Snapshot
Reply = Joined | Failed
_orders: msgspec.msgpack.Decoder[Order] = msgspec.msgpack.Decoder(Order)
_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def send(sock: socket.socket, message: Order | Reply) -> None:
    sock.sendall(frame_bytes(message))


def receive_order(sock: socket.socket) -> Order | None:
    """The next order; None when the first rank has ended."""
    body = read_frame(sock)
    return None if body is None else _orders.decode(body)


def receive_reply(sock: socket.socket) -> Reply | None:
    """The next reply; None when the follower has ended."""
    body = read_frame(sock)
    return None if body is None else _replies.decode(body)
