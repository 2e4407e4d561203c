"""The first rank's side: starts the followers, tells them what to do, and notices when one ends.

Every rank but the first is a process that does what the first one's runner does. A follower that
ends, for whatever reason, leaves the others waiting in a sum: a thread sees its socket close and
calls `lost`, which ends the engine with words.
"""

import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.errors import LoadStopped
from engine.protocol import Load
from engine.ranks.messages import Failed, Join, Joined, Order, receive_reply, send

Lost = Callable[[str], None]
_POLL_SECONDS = 0.1


class Followers:
    """The processes of ranks 1 to size - 1.

    Args:
        lost: called once, on a thread, with words on the follower that ended.

    Attributes:
        store: file where the ranks meet.
    """

    def __init__(self, load: Load, context: int, device: str, lost: Lost) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="dsv4chat-ranks-")
        self.store = str(Path(self._folder.name) / "store")
        self.size = load.gpus
        self._lost = lost
        self._lock = threading.Condition()
        self._resident: dict[int, int] = {}
        self._links: list[tuple[socket.socket, subprocess.Popen[Any]]] = []
        for rank in range(1, load.gpus):
            ours, theirs = socket.socketpair()
            command = [sys.executable, "-m", "engine.ranks.follower", "--fd", str(theirs.fileno())]
            root = str(Path(__file__).parents[2])
            process = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=root)
            theirs.close()
            self._links.append((ours, process))
            send(ours, Join(load, rank, context, device, self.store))
            name = f"rank-{rank}"
            threading.Thread(target=self._watch, args=(rank,), name=name, daemon=True).start()

    def tell(self, order: Order) -> None:
        """What the first rank does next."""
        for sock, _ in self._links:
            try:
                send(sock, order)
            except OSError:
                pass  # it has ended: the watching thread says so

    def wait(self, stopped: Callable[[], bool]) -> int:
        """Until all have loaded; returns the bytes they hold.

        Raises:
            LoadStopped: `stopped` said so.
        """
        with self._lock:
            while len(self._resident) < len(self._links):
                self._lock.wait(_POLL_SECONDS)
                if stopped():
                    raise LoadStopped("loading was stopped")
            return sum(self._resident.values())

    def _watch(self, rank: int) -> None:
        sock, process = self._links[rank - 1]
        words = ""
        try:
            while (reply := receive_reply(sock)) is not None:
                if isinstance(reply, Joined):
                    with self._lock:
                        self._resident[rank] = reply.resident_bytes
                        self._lock.notify_all()
                elif isinstance(reply, Failed):
                    words = reply.message
                    break
        except Exception as error:
            words = f"{type(error).__name__}: {error}"
        status = "" if words else _describe(process.wait())
        self._lost(f"GPU {rank + 1} of {self.size}: {words or status}")


def _describe(status: int) -> str:
    how = f"signal {-status}" if status < 0 else f"status {status}"
    return f"its process ended ({how}); the log may say why. Start the engine again"
