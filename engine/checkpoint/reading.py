"""Bytes of tensors from disk to the device: on several threads, a bounded number of bytes ahead.

On CPU a tensor is read straight into its own memory. On CUDA it passes through a small pinned
buffer of the reading thread, so that the copy to the device runs while the next bytes are read;
there is never a second copy of the model in host memory.
"""

import os
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from engine.checkpoint.headers import TensorInfo
from engine.errors import CheckpointError

_BATCH_BYTES = 4 << 20
_STAGING_BYTES = 16 << 20
_LEAST_WINDOW = 8 << 20
_MOST_WINDOW = 1 << 30
_WINDOW_SHARE = 32  # read at most this fraction of the whole ahead


class FileReader:
    """Reads byte ranges of files into new tensors; one per thread.

    Raises (read):
        CheckpointError: the file cannot be read, or has become shorter than its header says.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._files: dict[Path, int] = {}
        self._staging = _Staging() if device.type == "cuda" else None

    def read(self, info: TensorInfo) -> Tensor:
        """[n] uint8 on the device: the tensor's bytes."""
        made = torch.empty(info.size_bytes, dtype=torch.uint8, device=self.device)
        if not info.size_bytes or self.device.type == "meta":
            return made
        if self._staging is None:
            self._fill(info, memoryview(made.numpy()), info.start)
            return made
        for start in range(0, info.size_bytes, _STAGING_BYTES):
            part = made[start : start + _STAGING_BYTES]
            room = self._staging.room(part.numel())
            self._fill(info, memoryview(room.numpy()), info.start + start)
            part.copy_(room, non_blocking=True)
        return made

    def _fill(self, info: TensorInfo, target: memoryview, offset: int) -> None:
        try:
            fd = self._files.get(info.file)
            if fd is None:
                fd = self._files[info.file] = os.open(info.file, os.O_RDONLY | os.O_CLOEXEC)
            done = 0
            while done < len(target):
                count = os.preadv(fd, [target[done:]], offset + done)
                if not count:
                    raise CheckpointError(
                        f"{info.file}: {info.name!r}: the file has become shorter while it was read"
                    )
                done += count
        except OSError as error:
            raise CheckpointError(
                f"{info.file}: {info.name!r}: cannot be read: {error.strerror or error}"
            ) from None

    def close(self) -> None:
        for fd in self._files.values():
            os.close(fd)
        self._files.clear()


class _Staging:
    """Two pinned buffers, filled in turn; one is filled again only when its copies have ended."""

    def __init__(self) -> None:
        self._buffers = [
            torch.empty(_STAGING_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)
        ]
        self._events = [torch.cuda.Event() for _ in range(2)]
        self._at = 0

    def room(self, size: int) -> Tensor:
        """`size` free pinned bytes, at most _STAGING_BYTES."""
        if self._at + size > _STAGING_BYTES:
            self._events[0].record()
            self._buffers.reverse()
            self._events.reverse()
            self._events[0].synchronize()
            self._at = 0
        start, self._at = self._at, self._at + size
        return self._buffers[0][start : start + size]


class ReadAhead:
    """Reads tensors in a given order before they are asked for.

    A tensor asked for out of order is read by the caller, so that no order can block. An error of a
    thread is raised where its tensor is taken.
    """

    def __init__(self, order: Sequence[TensorInfo], device: torch.device) -> None:
        total = sum(info.size_bytes for info in order)
        self._window = min(max(total // _WINDOW_SHARE, _LEAST_WINDOW), _MOST_WINDOW)
        self._device = device
        self._waiting = deque(order)
        self._taken: set[str] = set()  # by the caller, out of order
        self._started: set[str] = set()
        self._ready: dict[str, Tensor | CheckpointError] = {}
        self._held = 0
        self._closed = False
        self._changed = threading.Condition()
        self._own = FileReader(device)
        count = max(2, min(8, os.cpu_count() or 2))
        self._threads = [
            threading.Thread(target=self._work, name=f"weights-{index}", daemon=True)
            for index in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def take(self, info: TensorInfo) -> Tensor:
        """The tensor's bytes. Each can be taken once."""
        with self._changed:
            started = info.name in self._started
            if started:
                while info.name not in self._ready:
                    self._changed.wait()
                found = self._ready.pop(info.name)
                self._held -= info.size_bytes
                self._changed.notify_all()
            else:
                self._taken.add(info.name)
        if not started:
            return self._own.read(info)
        if isinstance(found, CheckpointError):
            raise found
        return found

    def close(self) -> None:
        """End the threads and let go of what was not taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._own.close()
        self._ready.clear()

    def _work(self) -> None:
        reader = FileReader(self._device)
        while batch := self._next_batch():
            for info in batch:
                made: Tensor | CheckpointError
                try:
                    made = reader.read(info)
                except CheckpointError as error:
                    made = error
                except RuntimeError as error:  # out of memory
                    made = CheckpointError(f"{info.file}: {info.name!r}: {error}")
                with self._changed:
                    self._ready[info.name] = made
                    self._changed.notify_all()
        reader.close()

    def _next_batch(self) -> list[TensorInfo]:
        """Tensors to read next, marked as started; empty when there is nothing more to do."""
        with self._changed:
            while self._waiting and self._held and self._held >= self._window and not self._closed:
                self._changed.wait()
            batch: list[TensorInfo] = []
            size = 0
            while self._waiting and not self._closed and size < _BATCH_BYTES:
                info = self._waiting.popleft()
                if info.name not in self._taken:
                    self._started.add(info.name)
                    batch.append(info)
                    size += info.size_bytes
            self._held += size
            return batch
