"""The classic pcap format: microseconds or nanoseconds, either byte order.

Sources: draft-ietf-opsawg-pcap; for magic numbers, the modified format, old
versions and the largest record, `sf-pcap.c` and `pcap-int.h` of libpcap.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from struct import Struct, unpack_from
from typing import Final

import numpy as np
import numpy.typing as npt

from ibwire.base.closing import Closing
from ibwire.base.errors import CaptureError, EncodeError
from ibwire.base.native import native
from ibwire.capture.gathered import GatheredFile
from ibwire.capture.index import Chunks, RecordBatch, gather
from ibwire.capture.stream import Target, open_output

MAXIMUM_SNAPLEN = 262144
"""Longest record that libpcap accepts; a file with a larger snap length may go beyond."""

MAXIMUM_RECORD = 16 * 2**20
"""Longest record that is read for any snap length: it bounds the memory."""


class PcapParser:
    """Reads the file header, then batches of records."""

    format = "pcap"

    def __init__(self, chunks: Chunks) -> None:
        self._chunks = chunks
        self._path = chunks.source.path
        if chunks.length < FILE_HEADER_SIZE:
            reason = f"the file ends inside its header: {chunks.length} of {FILE_HEADER_SIZE} bytes"
            raise CaptureError(self._path, chunks.length, chunks.source.damage or reason)
        head = chunks.view
        self._order, self._unit_ns, self._header_size = MAGICS[bytes(head[:4])]
        major, minor = unpack_from(f"{self._order}HH", head, 4)
        snaplen, link_type = unpack_from(f"{self._order}II", head, 16)
        if (major, minor) not in _VERSIONS:
            raise CaptureError(self._path, 4, f"pcap version {major}.{minor}, expected 2.4")
        # Before 2.4 files were written with the two lengths in either order, so the
        # smaller one is the captured one (libpcap: pcap_check_header).
        self._ordered = (major, minor) == (2, 4)
        # The upper half holds the FCS length and reserved bits.
        self._link_type = link_type & 0xFFFF
        self._limit = min(max(snaplen, MAXIMUM_SNAPLEN), MAXIMUM_RECORD)

    @property
    def nanosecond(self) -> bool:
        """Whether the file's times are finer than microseconds."""
        return self._unit_ns == 1

    def batches(self) -> Iterator[RecordBatch]:
        """All records up to the end or the damage, then `CaptureError` if there is damage."""
        chunks, header_size = self._chunks, self._header_size
        number = 1
        first = FILE_HEADER_SIZE
        need = header_size
        while True:
            starts = self._walk(first)
            words = gather(chunks.data, starts, self._order, 4)
            cap_len, wire_len = words[:, 2].astype(np.int64), words[:, 3].astype(np.int64)
            if not self._ordered:
                cap_len, wire_len = np.minimum(cap_len, wire_len), np.maximum(cap_len, wire_len)
            absurd = np.flatnonzero(cap_len > self._limit)
            ends = starts + header_size + cap_len
            if len(absurd):
                count = int(absurd[0])
            else:
                # Only the last record can reach beyond the buffer: the walk stopped there.
                count = len(starts) - int(len(starts) > 0 and ends[-1] > chunks.length)
            used = int(ends[count - 1]) if count else first
            damage = None
            if len(absurd):
                reason = (
                    f"record {number + count} claims {cap_len[count]} captured bytes, "
                    f"at most {self._limit} are possible"
                )
                damage = CaptureError(self._path, chunks.base + int(starts[count]), reason)
            need = int(ends[count] - starts[count]) if count < len(starts) else header_size
            data = chunks.take(used)
            if count:
                seconds, fraction = words[:count, 0], words[:count, 1]
                yield RecordBatch(
                    data=data,
                    offsets=starts[:count] + header_size,
                    cap_len=cap_len[:count],
                    wire_len=wire_len[:count],
                    # At most 2**32 * 1e9 + 2**32 * 1000, which fits 63 bits.
                    time_ns=seconds.astype(np.int64) * 1_000_000_000
                    + fraction.astype(np.int64) * self._unit_ns,
                    link_type=np.full(count, self._link_type, np.uint16),
                    interface=np.zeros(count, np.uint32),
                    first_number=number,
                )
            del data
            number += count
            if damage:
                raise damage
            if not chunks.fill(need):
                break
            first = 0
        self._check_end(number, need)

    def _walk(self, first: int) -> npt.NDArray[np.int64]:
        """Where each record header begins, also that of a last, unfinished record.

        Lengths are taken as they come: the walk ends at the end of the buffer at the
        latest, and the caller cuts it at the first absurd length.
        """
        view = self._chunks.view
        last = len(view) - self._header_size
        if native is not None:
            found = np.empty(max(last - first, -1) // self._header_size + 1, np.int64)
            is_big = self._order == ">"
            count = native.record_starts(
                view, first, self._header_size, is_big, self._ordered, found
            )
            return found[:count]
        starts: list[int] = []
        append = starts.append
        position = first
        if self._ordered:
            length_at = Struct(f"{self._order}8xI").unpack_from
            step = self._header_size
            while position <= last:
                append(position)
                position += length_at(view, position)[0] + step
        else:
            lengths_at = Struct(f"{self._order}8xII").unpack_from
            while position <= last:
                append(position)
                position += min(lengths_at(view, position)) + self._header_size
        return np.array(starts, np.int64)

    def _check_end(self, number: int, need: int) -> None:
        chunks = self._chunks
        length, damage = chunks.length, chunks.source.damage
        if damage:
            raise CaptureError(self._path, chunks.base + length, damage)
        if length >= self._header_size:
            have, want = length - self._header_size, need - self._header_size
            what = f"{have} of {want} bytes"
        elif length:
            what = f"{length} of the {self._header_size} bytes of its header"
        else:
            return
        reason = f"the file ends inside record {number} (cut short, or still being written): {what}"
        raise CaptureError(self._path, chunks.base, reason)


class PcapWriter(Closing):
    """Writes little-endian pcap; nanoseconds by default, microseconds round down.

    A path is compressed as its suffix says. Raises `EncodeError` for values the
    format cannot hold, `CaptureError` when the file cannot be opened.
    """

    def __init__(
        self,
        target: Target,
        link_type: int = 1,
        *,
        nanosecond: bool = True,
        snaplen: int = MAXIMUM_SNAPLEN,
    ) -> None:
        if not 0 <= link_type <= 0xFFFF:
            raise EncodeError("link_type", link_type, "a 16-bit number")
        if not 0 < snaplen <= MAXIMUM_RECORD:
            raise EncodeError("snaplen", snaplen, f"from 1 to {MAXIMUM_RECORD}")
        self.link_type = link_type
        self.nanosecond = nanosecond
        self._snaplen = snaplen
        self._closing = ExitStack()
        self._file = GatheredFile(open_output(target, self._closing), target)
        self._closing.callback(self._file.drain)
        magic = 0xA1B23C4D if nanosecond else 0xA1B2C3D4
        head = _FILE_HEADER.pack(magic, 2, 4, 0, 0, snaplen, link_type)
        self._file.add((head,), len(head))

    def write(self, data: bytes | memoryview, time_ns: int, wire_len: int | None = None) -> None:
        """Append one record; `wire_len` is the length of `data` unless it was cut."""
        length = len(data)
        seconds = time_ns // 1_000_000_000
        fraction = time_ns - seconds * 1_000_000_000
        if length > self._snaplen:
            raise EncodeError("data", f"{length} bytes", f"at most {self._snaplen} bytes")
        if not 0 <= seconds < 2**32:
            raise EncodeError("time_ns", time_ns, "within 32 bits of seconds since 1970")
        wire_len = length if wire_len is None else wire_len
        if not 0 <= wire_len < 2**32:
            raise EncodeError("wire_len", wire_len, "a 32-bit number")
        if not self.nanosecond:
            fraction //= 1000
        header = _PACK_RECORD(seconds, fraction, length, wire_len)
        held = data if isinstance(data, bytes) else bytes(data)
        self._file.add((header, held), _RECORD_SIZE + length)

    def flush(self) -> None:
        """Give the operating system all that was written, unless it is compressed."""
        self._file.flush()

    def close(self) -> None:
        """Write what is buffered and close a file that was opened here."""
        self._closing.close()


FILE_HEADER_SIZE = 24

MAGICS: dict[bytes, tuple[str, int, int]] = {
    magic.to_bytes(4, "little" if order == "<" else "big"): (order, unit_ns, header_size)
    for magic, unit_ns, header_size in (
        (0xA1B2C3D4, 1000, 16),
        (0xA1B23C4D, 1, 16),
        # Kuznetsov's modified format: interface index, protocol and packet type follow
        # the usual record header.
        (0xA1B2CD34, 1000, 24),
    )
    for order in "<>"
}
"""First bytes of the file -> byte order, nanoseconds a unit of the fraction, record header size."""

_VERSIONS = frozenset({(2, 0), (2, 1), (2, 2), (2, 3), (2, 4), (543, 0)})

_FILE_HEADER = Struct("<IHHiIII")
_RECORD: Final = Struct("<IIII")
_PACK_RECORD: Final = _RECORD.pack
_RECORD_SIZE: Final = _RECORD.size
