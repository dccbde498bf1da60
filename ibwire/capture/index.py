"""The records of a chunk: one buffer of bytes and arrays of positions in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from ibwire.capture.stream import ByteSource

PADDING = 512
"""Zero bytes after the last record's data in every batch buffer, so that vector
gathers may run past a record's end."""


@dataclass(frozen=True, slots=True)
class Record:
    """One packet of a capture."""

    number: int
    """Counts from 1 over the whole file."""
    time_ns: int
    """Since the epoch; 0 where the file has no time."""
    data: bytes
    wire_len: int
    """Bytes the packet had before the capture cut it."""
    link_type: int
    """LINKTYPE_ number, see `ibwire_layers.outer.LinkType`."""
    interface: int = 0
    comments: tuple[str, ...] = ()


@dataclass(slots=True)
class RecordBatch:
    """Consecutive records of a file; all arrays have one row per record.

    A batch owns its buffer, unless the capture was opened with `reuse`: it may be
    kept, and its bytes may be overwritten.
    """

    data: npt.NDArray[np.uint8]
    """Contiguous and writable; `PADDING` zero bytes follow the last record."""
    offsets: npt.NDArray[np.int64]
    """Where each record's bytes start in `data`."""
    cap_len: npt.NDArray[np.int64]
    wire_len: npt.NDArray[np.int64]
    """The length in the file; in a damaged file it may be less than `cap_len`."""
    time_ns: npt.NDArray[np.int64]
    """Since the epoch; 0 where the file has no time (pcapng simple packet blocks)."""
    link_type: npt.NDArray[np.uint16]
    interface: npt.NDArray[np.uint32]
    """0 in pcap; in pcapng counted over all sections, so that each is unique."""
    first_number: int
    """Number of the first record; the first of a file is 1."""
    comments: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """By row; rows without a comment are absent."""
    start_ns: int = 0
    """Time of the first record of the capture."""

    def __len__(self) -> int:
        return len(self.offsets)

    def record(self, row: int) -> Record:
        """The record of one row, with its own copy of the bytes."""
        start = int(self.offsets[row])
        return Record(
            number=self.first_number + row,
            time_ns=int(self.time_ns[row]),
            data=self.data[start : start + int(self.cap_len[row])].tobytes(),
            wire_len=int(self.wire_len[row]),
            link_type=int(self.link_type[row]),
            interface=int(self.interface[row]),
            comments=self.comments.get(row, ()),
        )

    def split(self, rows: int) -> Iterator[RecordBatch]:
        """The batch in parts of at most this many records, which share its buffer."""
        if len(self) <= rows:
            yield self
            return
        for start in range(0, len(self), rows):
            part = slice(start, start + rows)
            yield RecordBatch(
                data=self.data,
                offsets=self.offsets[part],
                cap_len=self.cap_len[part],
                wire_len=self.wire_len[part],
                time_ns=self.time_ns[part],
                link_type=self.link_type[part],
                interface=self.interface[part],
                first_number=self.first_number + start,
                comments={
                    row - start: comments
                    for row, comments in self.comments.items()
                    if start <= row < start + rows
                },
                start_ns=self.start_ns,
            )

    def records(self) -> Iterator[Record]:
        """All records in the order of the file."""
        return (self.record(row) for row in range(len(self)))


_SLACK = 65536
"""Room in a buffer that is used again, for kept ends of any usual length."""


class Chunks:
    """A file as consecutive buffers, each beginning with what the last left unread.

    `fill()` makes a buffer, `take()` hands it out and keeps the unread end. The
    kept end is copied before the buffer goes out, because its new owner may
    overwrite it. With `reuse` all buffers are the same memory, which spares the
    page faults of a fresh one.
    """

    def __init__(self, source: ByteSource, chunk_size: int, reuse: bool = False) -> None:
        self.source = source
        self._reuse = reuse
        self.base = 0
        """File offset, after decompression, of the buffer's first byte."""
        self.data: npt.NDArray[np.uint8] = np.zeros(PADDING, np.uint8)
        self.length = 0
        """Bytes of the file in the buffer; `PADDING` zero bytes follow."""
        self._chunk_size = max(1, chunk_size)
        self._kept = self.data[:0]
        self._buffer = self.data

    @property
    def view(self) -> memoryview:
        """The bytes of the file in the buffer, without the padding."""
        return self.data.data[: self.length]

    def fill(self, need: int) -> bool:
        """Make a fresh buffer of at least `need` bytes; False when the file has no more.

        At the end of the file the buffer may stay shorter than `need`.
        """
        kept = len(self._kept)
        size = kept + max(self._chunk_size, need - kept)
        data = self._buffer if self._reuse else self.data[:0]
        if len(data) < size + PADDING:
            slack = _SLACK if self._reuse else 0
            data = self._buffer = np.empty(size + PADDING + slack, np.uint8)
        data[:kept] = self._kept
        view = data.data
        length = kept
        while True:
            got = self.source.readinto(view[length:size])
            length += got
            if not got or length >= need:
                break
        data[length : length + PADDING] = 0
        self.data, self.length = data, length
        self._kept = data[:0]
        return length > kept

    def take(self, used: int) -> npt.NDArray[np.uint8]:
        """The first `used` bytes and `PADDING` zero bytes; the rest is kept for `fill()`."""
        self._kept = self.data[used : self.length].copy()
        self.base += used
        taken = self.data[: used + PADDING]
        taken[used:] = 0
        return taken


def gather(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], order: str, words: int
) -> npt.NDArray[np.uint32]:
    """32-bit words at each start: (n, words), `order` is `<` or `>`.

    The starts need no alignment, but `4 * words` bytes must follow each.
    """
    size = 4 * words
    # A window of `size` bytes at every byte of the buffer; indexing copies only the selected ones.
    windows: npt.NDArray[np.void] = np.ndarray(
        (len(data) - size + 1,), dtype=f"V{size}", buffer=data, strides=(1,)
    )
    return windows[starts].view(f"{order}u4").reshape(-1, words)
