"""The sending side of the engine's socket: one writer thread, text never dropped, telemetry
droppable."""

import queue
import socket
import threading

from engine.framing import encode_frame
from engine.protocol import Event, Telemetry

# Telemetry waiting to be sent beyond this is dropped; text always waits its turn.
_MAX_WAITING = 512


class Outbox:
    """Queues events; `put` never blocks the decode loop on the socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._dropped = 0
        self._thread = threading.Thread(target=self._send, name="outbox", daemon=True)
        self._thread.start()

    def put(self, event: Event) -> None:
        if isinstance(event, Telemetry) and self._queue.qsize() > _MAX_WAITING:
            self._dropped += 1
            return
        self._queue.put(encode_frame(event))

    def take_dropped(self) -> int:
        """Telemetry records dropped since the last call."""
        dropped, self._dropped = self._dropped, 0
        return dropped

    def close(self) -> None:
        """Send what is queued, then stop."""
        self._queue.put(None)
        self._thread.join(timeout=2.0)

    def _send(self) -> None:
        while (frame := self._queue.get()) is not None:
            try:
                self._sock.sendall(frame)
            except OSError:
                return  # the app is gone; the reading side ends the process
