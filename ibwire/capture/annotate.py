"""Copies a capture with comments added to its packets."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import groupby, islice
from operator import itemgetter

from ibwire.base.closing import Closing
from ibwire.base.errors import CaptureError
from ibwire.capture.index import Record, RecordBatch
from ibwire.capture.pcapng import PcapngWriter
from ibwire.capture.reader import CaptureReader, open_capture
from ibwire.capture.stream import Source, Target

MOST = 16
"""Most comments added to one packet; the last one gives the number left out."""

LONGEST = 0xFFFF
"""Bytes of a comment: a pcapng option has 16 bits for its length."""


class Comments(Closing):
    """Comments by packet number: added in any order, read in packet order.

    Many comments are kept on disk.
    """

    def __init__(self) -> None:
        # An empty name is a temporary file, which SQLite does not make before it needs it.
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute(f"PRAGMA cache_size = -{_CACHE_KB}")
        self._database.execute("CREATE TABLE comments (number INTEGER, text TEXT)")
        self._waiting: list[tuple[int, str]] = []

    def add(self, number: int, text: str) -> None:
        """Add a comment to a packet.

        Raises `CaptureError` when there is no room for it on disk.
        """
        self._waiting.append((number, text))
        if len(self._waiting) >= _ROWS:
            self._store()

    def __iter__(self) -> Iterator[tuple[int, list[str]]]:
        """Packet numbers in ascending order, each with its comments in order of addition."""
        self._store()
        try:
            rows = self._database.execute("SELECT number, text FROM comments ORDER BY 1, rowid")
            for number, group in groupby(rows, itemgetter(0)):
                first = [text for _, text in islice(group, MOST)]
                rest = sum(1 for _ in group)
                if rest:
                    first[-1:] = [f"{first[-1]} (and {rest} more comments)"]
                yield number, first
        except sqlite3.Error as error:
            raise _failure(error) from None

    def close(self) -> None:
        """Forget the comments."""
        self._database.close()

    def _store(self) -> None:
        try:
            self._database.execute("BEGIN")
            self._database.executemany("INSERT INTO comments VALUES (?, ?)", self._waiting)
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            raise _failure(error) from None
        self._waiting.clear()


def annotate(source: Source, target: Target, comments: Iterable[tuple[int, list[str]]]) -> int:
    """Copy a capture as pcapng with more comments; returns the number of packets.

    comments: by packet number, ascending. Packets, times, interfaces with their names
    and link types, and existing comments are kept; other pcapng blocks (name resolution,
    statistics, secrets) are not. A comment that a packet already has is not added again.

    Raises `CaptureError` where the source is damaged, after everything before the
    damage was written, and for files that cannot be opened; `EncodeError` for a time
    before 1970.
    """
    with open_capture(source, reuse=True) as reader, ExitStack() as stack:
        rest: Iterator[tuple[float, list[str]]] = iter(comments)
        number, texts = next(rest, _END)
        writer: _Writer | None = None
        count = 0
        try:
            for batch in reader.batches():
                writer = writer or stack.enter_context(_Writer(target, reader, batch))
                for record in batch.records():
                    while number < record.number:
                        number, texts = next(rest, _END)
                    writer.write(record, texts if number == record.number else ())
                    count += 1
        finally:
            if writer is None:
                PcapngWriter(target).close()
    return count


class _Writer(Closing):
    """Writes records with their original interfaces."""

    def __init__(self, target: Target, reader: CaptureReader, batch: RecordBatch) -> None:
        self._reader = reader
        link_type, name = self._interface(0, int(batch.link_type[0]))
        self._writer = PcapngWriter(target, link_type, name=name)
        self._described = 1

    def write(self, record: Record, texts: Sequence[str]) -> None:
        """Append a record with its own comments and additional ones."""
        while self._described <= record.interface:
            self._writer.add_interface(*self._interface(self._described, record.link_type))
            self._described += 1
        comments = record.comments
        if texts:
            comments += tuple(text for text in texts if text not in comments)
        self._writer.write(
            record.data,
            record.time_ns,
            record.wire_len,
            interface=record.interface,
            comments=[_cut(comment) for comment in comments],
        )

    def close(self) -> None:
        """Complete the copy."""
        self._writer.close()

    def _interface(self, number: int, link_type: int) -> tuple[int, str]:
        """Link type and name of an interface; pcap names none."""
        interface = self._reader.interfaces.get(number)
        return (interface.link_type, _cut(interface.name)) if interface else (link_type, "")


def _cut(text: str) -> str:
    """The text cut to what an option can hold: replaced bytes make it longer."""
    encoded = text.encode()
    return text if len(encoded) <= LONGEST else encoded[:LONGEST].decode("utf-8", "ignore")


def _failure(error: sqlite3.Error) -> CaptureError:
    return CaptureError("temporary file", None, f"cannot be written: {error}")


_END: tuple[float, list[str]] = (math.inf, [])
_ROWS = 4096
_CACHE_KB = 16384
