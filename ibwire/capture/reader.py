"""Opens a capture of any format by its first bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ibwire.base.closing import Closing
from ibwire.base.errors import CaptureError
from ibwire.capture.index import Chunks, Record, RecordBatch
from ibwire.capture.pcap import FILE_HEADER_SIZE, MAGICS, PcapParser
from ibwire.capture.pcapng import SECTION_MAGIC, Interface, PcapngParser
from ibwire.capture.stream import ByteSource, Source, open_source

CHUNK_SIZE = 6 * 2**20
"""Bytes per batch by default: small enough for the caches, large enough for the arrays."""


MAXIMUM_ROWS = 16384
"""Records of one batch: what is made of a record may be far larger than the record."""


def open_capture(
    source: Source, chunk_size: int = CHUNK_SIZE, *, reuse: bool = False
) -> CaptureReader:
    """Open a capture; `-` is standard input, and a file object that is passed in stays open.

    reuse: each batch overwrites the memory of the one before. Format and compression
    are recognised by the first bytes. Raises `CaptureError` for a file that cannot be
    opened or is not a capture.
    """
    stream = open_source(source)
    try:
        return CaptureReader(stream, chunk_size, reuse)
    except CaptureError:
        stream.close()
        raise


class CaptureReader(Closing):
    """One pass over the records of a capture file; a context manager.

    `batches()` and `records()` share the pass: each continues where reading stopped.
    Both raise `CaptureError` at damage, after all records before it.
    """

    def __init__(self, stream: ByteSource, chunk_size: int, reuse: bool) -> None:
        self._stream = stream
        chunks = Chunks(stream, chunk_size, reuse)
        chunks.fill(FILE_HEADER_SIZE)
        self._parser = _parser(chunks)
        self._batches = (
            part
            for batch in _with_start(self._parser.batches())
            for part in batch.split(MAXIMUM_ROWS)
        )

    @property
    def path(self) -> str:
        """The path as given, or the name of a stream in messages."""
        return self._stream.path

    @property
    def format(self) -> str:
        """`pcap` or `pcapng`."""
        return self._parser.format

    @property
    def compression(self) -> str | None:
        """`gzip`, `xz`, `zstd`, or None."""
        return self._stream.compression

    @property
    def nanosecond(self) -> bool:
        """Whether times are finer than microseconds; in pcapng, of an interface seen so far."""
        return self._parser.nanosecond

    @property
    def interfaces(self) -> Mapping[int, Interface]:
        """Of pcapng: the interfaces described so far, by the numbers that records have."""
        return self._parser.interfaces if isinstance(self._parser, PcapngParser) else {}

    @property
    def size(self) -> int | None:
        """Bytes of the file as it is stored; None for a pipe."""
        return self._stream.size

    @property
    def position(self) -> int:
        """Bytes of the stored file consumed so far."""
        return self._stream.position

    def batches(self) -> Iterator[RecordBatch]:
        """The records, some megabytes at a time."""
        return self._batches

    def records(self) -> Iterator[Record]:
        """The records one by one."""
        for batch in self._batches:
            yield from batch.records()

    def close(self) -> None:
        """Close the file, if it was opened here."""
        self._stream.close()


def _with_start(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
    """The batches, each with the time of the first record of all."""
    start_ns = None
    for batch in batches:
        if start_ns is None and len(batch):
            start_ns = int(batch.time_ns[0])
        batch.start_ns = start_ns or 0
        yield batch


def _parser(chunks: Chunks) -> PcapParser | PcapngParser:
    head = bytes(chunks.view[:4])
    if head in MAGICS:
        return PcapParser(chunks)
    if head == SECTION_MAGIC:
        return PcapngParser(chunks)
    stream = chunks.source
    if stream.damage:
        raise CaptureError(stream.path, chunks.length, stream.damage)
    if not head:
        raise CaptureError(stream.path, 0, "the file is empty")
    begin = head.hex(" ")
    reason = f"not a capture: it begins with {begin}, which is not a magic number of pcap or pcapng"
    raise CaptureError(stream.path, 0, reason)
