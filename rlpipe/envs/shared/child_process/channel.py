"""Channel between a worker and the process of a simulator: messages over a socket, large arrays in shared memory.

The two sides take turns, and each copies the arrays of a message before it sends one itself. So one piece of memory for
each direction is enough, and nothing that was received changes afterwards. NumPy may have another version on either
side. Both sides import this file, so it must run with what ``start`` demands of the other Python.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import socket
import struct
import tempfile
from typing import Any

import numpy as np

LARGE = 4096
"""Bytes from which an array goes through shared memory."""
METRIC = "\x1fmetric\x1f"
"""Begins the name of a declared metric, and of nothing else that a simulator observes."""
_HEAD = struct.Struct("<QQ")  # bytes of the message, and number of arrays in shared memory
_LINE = 64  # bytes to whose multiples arrays are aligned
_READ = 1 << 16


class ClosedError(ConnectionError):
    """The other side has closed the channel, or is gone."""


def shared_file() -> int:
    """Returns the descriptor of a file in memory without a name, so that it ends with the last process that has it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("rlpipe-simulator")
    with tempfile.TemporaryFile() as file:  # removed already
        return os.dup(file.fileno())


class _Memory:
    """Memory that one side writes and the other reads."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._map: mmap.mmap | None = None

    def grow(self, size: int) -> None:
        """Makes room for the next message; called by the side that writes."""
        if self._map is None or len(self._map) < size:
            os.ftruncate(self._file, 2 * size)
            self.view(2 * size)

    def view(self, size: int) -> memoryview:
        """Returns the memory, which has at least some size."""
        if self._map is None or len(self._map) < size:
            self._map = mmap.mmap(self._file, os.fstat(self._file).st_size)
        return memoryview(self._map)

    def close(self) -> None:
        self._map = None
        os.close(self._file)


class _Encoder(pickle.Pickler):
    """Pickles arrays so that any version of NumPy can read them, and leaves large ones out."""

    def __init__(self, stream: io.BytesIO) -> None:
        self.left_out: list[memoryview] = []
        super().__init__(stream, protocol=5, buffer_callback=self._is_small)

    def _is_small(self, buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < LARGE:
            return True
        self.left_out.append(raw)
        return False

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is np.ndarray and obj.dtype.kind in "?biufcSU":
            flat: Any = np.ascontiguousarray(obj)  # a buffer, which NumPy's types do not say for older Pythons
            return _array, (pickle.PickleBuffer(flat), obj.dtype.str, obj.shape)
        if isinstance(obj, np.generic) and obj.dtype.kind in "?biufc":
            return _scalar, (obj.tobytes(), obj.dtype.str)
        return NotImplemented


def _array(buffer: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    return np.ndarray(shape, dtype, buffer).copy()


def _scalar(data: bytes, dtype: str) -> Any:
    return np.frombuffer(data, dtype)[0]


class Channel:
    """One side of the channel."""

    def __init__(self, connection: socket.socket, written: int, read: int) -> None:
        """Takes over a connected socket and two files from ``shared_file``.

        Args:
            connection: stream socket.
            written: descriptor of the file that this side writes.
            read: descriptor of the file that the other side writes.
        """
        self._connection = connection
        self._written, self._read = _Memory(written), _Memory(read)

    def send(self, message: Any) -> None:
        """Sends a message.

        Raises:
            TimeoutError: nobody has read the messages before.
            ClosedError: nobody will read it.
        """
        stream = io.BytesIO()
        encoder = _Encoder(stream)
        encoder.dump(message)
        sizes = [part.nbytes for part in encoder.left_out]
        if sizes:
            places, total = _places(sizes)
            self._written.grow(total)
            memory = self._written.view(total)
            for place, part in zip(places, encoder.left_out, strict=True):
                memory[place : place + part.nbytes] = part
        head = _HEAD.pack(stream.tell(), len(sizes)) + struct.pack(f"<{len(sizes)}Q", *sizes)
        try:
            self._connection.sendall(head + stream.getvalue())
        except TimeoutError:
            raise
        except OSError as error:
            raise ClosedError(str(error)) from error

    def receive(self, seconds: float | None = None) -> Any:
        """Waits for a message and returns it.

        Args:
            seconds: longest wait; None waits for ever.
        Raises:
            TimeoutError: there was none.
            ClosedError: there will be none.
        """
        self._connection.settimeout(seconds)
        data = bytearray()
        self._fill(data, _HEAD.size)
        length, count = _HEAD.unpack_from(data)
        begin = _HEAD.size + 8 * count
        self._fill(data, begin + length)
        sizes = struct.unpack_from(f"<{count}Q", data, _HEAD.size)
        places, total = _places(sizes)
        memory = self._read.view(total) if count else memoryview(b"")
        parts = [memory[place : place + size] for place, size in zip(places, sizes, strict=True)]
        return pickle.loads(memoryview(data)[begin:], buffers=parts)

    def line(self, seconds: float) -> bytes:
        """Waits for a line of text, which comes before any message; an empty one if the other side is gone."""
        self._connection.settimeout(seconds)
        data = bytearray()
        while not data.endswith(b"\n"):
            try:
                self._fill(data, len(data) + 1)
            except ClosedError:
                return b""
        return bytes(data)

    def _fill(self, data: bytearray, size: int) -> None:
        """Reads until there are so many bytes. There are never more than those of one message."""
        while len(data) < size:
            try:
                part = self._connection.recv(_READ)
            except TimeoutError:
                raise
            except OSError as error:
                raise ClosedError(str(error)) from error
            if not part:
                raise ClosedError("the other side is gone")
            data += part

    def close(self) -> None:
        """Closes this side; the other one is told."""
        self._connection.close()
        self._written.close()
        self._read.close()


def _places(sizes: Any) -> tuple[list[int], int]:
    """Offsets of arrays of some sizes in shared memory, and the size of all."""
    places, end = [], 0
    for size in sizes:
        places.append(end)
        end = -(-(end + size) // _LINE) * _LINE
    return places, end
