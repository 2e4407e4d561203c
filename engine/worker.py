"""The engine process: commands in from a socket, events out, one answer at a time.

A reader thread takes frames off the socket, so that a cancel is seen in the middle of an answer and
the end of the app ends the process at once. torch is imported only after the files have been looked
at: a broken checkpoint is refused in well under a second.
"""

import os
import queue
import socket
import threading
import traceback
from pathlib import Path

from engine.checkpoint.census import check_headers
from engine.checkpoint.index import read_infos
from engine.errors import EngineError, LoadStopped
from engine.framing import ProtocolError, decode_command, read_frame
from engine.model.config import ModelConfig
from engine.outbox import Outbox
from engine.protocol import (
    PROTOCOL_VERSION,
    Cancel,
    Command,
    Encode,
    Fault,
    Finished,
    Generate,
    Heartbeat,
    Hello,
    Load,
    OptionsApplied,
    SetOptions,
    Shutdown,
)
from engine.text.errors import TextError
from kernels.errors import KernelError

_HEARTBEAT_SECONDS = 1.0


class Worker:
    """Serves one app until it says `Shutdown` or closes the socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._outbox = Outbox(sock)
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._running: int | None = None
        self._stop = False
        self._shut_down = threading.Event()
        self._busy = ""
        self._beats = 0

    def serve(self) -> int:
        """Exit status of the process."""
        self._outbox.put(Hello(PROTOCOL_VERSION, os.getpid()))
        threading.Thread(target=self._read, name="reader", daemon=True).start()
        threading.Thread(target=self._heartbeat, name="heartbeat", daemon=True).start()
        status = self._serve()
        self._outbox.close()
        return status

    def _serve(self) -> int:
        try:
            command = self._commands.get()
            if isinstance(command, Shutdown):
                return 0
            if not isinstance(command, Load):
                raise EngineError(f"{type(command).__name__} before Load: no model is loaded")
            self._load(command)
            while True:
                command = self._commands.get()
                if isinstance(command, Shutdown):
                    return 0
                self._handle(command)
                if self._stop:
                    return 0
        except LoadStopped:
            return 0
        except (EngineError, TextError, KernelError) as error:
            self._outbox.put(Fault(str(error), fatal=True))
        except Exception as error:
            traceback.print_exc()
            self._outbox.put(
                Fault(f"internal error: {type(error).__name__}: {error}; see the log", fatal=True)
            )
        return 1

    # ---- commands --------------------------------------------------------------------------------

    def _load(self, command: Load) -> None:
        self._busy = "checking files"
        folder = Path(command.model)
        config = ModelConfig.load(folder)
        check_headers(config, read_infos(folder), str(folder))
        self._busy = "importing torch"
        from engine.loading import load_session

        self._busy = "loading"
        loaded = load_session(
            command,
            self._emit,
            self._interrupted,
            self._outbox.take_dropped,
            self._shut_down.is_set,
            self._lost_rank,
        )
        self._session = loaded.session
        self._outbox.put(loaded.ready)
        self._busy = ""

    def _handle(self, command: Command) -> None:
        if isinstance(command, Generate):
            self._running, self._busy = command.request, "answering"
            self._session.generate(command)
            self._running, self._busy = None, ""
        elif isinstance(command, SetOptions):
            self._session.options = command.options
            self._outbox.put(OptionsApplied(command.options))
        elif isinstance(command, Encode):
            self._session.encode(command)
        elif isinstance(command, Load):
            self._outbox.put(Fault("a model is loaded already; start another engine for a new one"))

    def _interrupted(self) -> bool:
        """Deal with commands that arrive during an answer; True if it is to stop."""
        while not self._commands.empty():
            command = self._commands.get()
            if isinstance(command, SetOptions):
                self._session.options = command.options
            elif isinstance(command, Encode):
                self._session.encode(command)
            elif isinstance(command, Cancel):
                if command.request == self._running:
                    return True
            elif isinstance(command, Generate):
                self._outbox.put(
                    Finished(command.request, "fault", message="another answer is still running")
                )
            elif isinstance(command, Shutdown):
                self._stop = True
                return True
        return self._stop

    def _emit(self, event: object) -> None:
        self._beats += 1
        self._outbox.put(event)  # type: ignore[arg-type]

    def _lost_rank(self, words: str) -> None:
        """A GPU's process has ended; this one may be waiting for it for ever."""
        self._outbox.put(Fault(words, fatal=True))
        self._outbox.close()
        os._exit(1)

    # ---- threads ---------------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            while (body := read_frame(self._sock)) is not None:
                command = decode_command(body)
                if isinstance(command, Shutdown):
                    self._shut_down.set()
                self._commands.put(command)
        except ProtocolError as error:
            self._outbox.put(Fault(str(error), fatal=True))
            self._outbox.close()
        except OSError:
            pass
        # Without an app there is nobody to answer, whatever the main thread is doing.
        os._exit(0)

    def _heartbeat(self) -> None:
        pause = threading.Event()
        while not pause.wait(_HEARTBEAT_SECONDS):
            self._outbox.put(Heartbeat(self._beats, self._busy))


def main(fd: int) -> int:
    """Serve on an inherited socket."""
    sock = socket.socket(fileno=fd)
    return Worker(sock).serve()
