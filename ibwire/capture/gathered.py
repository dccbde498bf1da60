"""Records of a file, written many at a time: that copies each byte once."""

from __future__ import annotations

from io import BufferedWriter
from typing import BinaryIO, Final

from ibwire.capture.stream import Target

LIMIT: Final = 256 * 1024
"""Bytes that wait at most."""


class GatheredFile:
    """Keeps what is to be written until there is much of it, or until it is asked to go on.

    A file object that the caller has opened gets each record at once.
    """

    def __init__(self, file: BinaryIO, target: Target) -> None:
        """file: what `open_output` has opened for `target`."""
        self._file = file
        self._limit = 0 if file is target else LIMIT
        self._pieces: list[bytes] = []
        self._size = 0

    def add(self, pieces: tuple[bytes, ...], size: int) -> None:
        """Write a record; size: bytes of its pieces."""
        # All or none of it: an interrupt would otherwise leave a header without its data.
        self._pieces += pieces
        self._size += size
        if self._size > self._limit:
            self.drain()

    def drain(self) -> None:
        """Give the file what waits."""
        if self._pieces:
            pieces, self._pieces, self._size = self._pieces, [], 0
            self._file.write(b"".join(pieces))

    def flush(self) -> None:
        """Give the operating system what waits, unless the file is compressed."""
        if isinstance(self._file, BufferedWriter):
            self.drain()
            self._file.flush()

    def __del__(self) -> None:
        # As the files of Python do, for a writer that nobody has closed.
        if self._pieces and not self._file.closed:
            self.drain()
