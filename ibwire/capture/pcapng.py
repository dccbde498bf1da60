"""The pcapng format: sections, interfaces, and packets in blocks.

Source: draft-ietf-opsawg-pcapng; section numbers below are its.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from struct import Struct, unpack_from
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ibwire.base.closing import Closing
from ibwire.base.errors import CaptureError, EncodeError
from ibwire.capture.gathered import GatheredFile
from ibwire.capture.index import Chunks, RecordBatch, gather
from ibwire.capture.stream import Target, open_output

SECTION_MAGIC = b"\x0a\x0d\x0d\x0a"
"""Block type of a section header: the same in both byte orders (4.1)."""

MAXIMUM_BLOCK = 16 * 2**20
"""Longest block that is read: it bounds the memory."""

MAXIMUM_INTERFACES = 65536
"""Most interfaces of one section that are read: it bounds the memory."""


@dataclass(frozen=True, slots=True)
class Interface:
    """An interface description block (4.2)."""

    link_type: int
    snaplen: int
    """0: no limit."""
    ticks_per_second: int
    offset_ns: int
    name: str = ""
    """Name in the operating system; empty where the file does not give it."""

    def time_ns(self, ticks: int) -> int:
        """Nanoseconds since the epoch, held within 64 bits."""
        time = ticks * 1_000_000_000 // self.ticks_per_second + self.offset_ns
        return max(-(2**63), min(time, 2**63 - 1))

    @property
    def scale(self) -> int:
        """Nanoseconds per tick, where that is a whole number; else 0."""
        scale, rest = divmod(1_000_000_000, self.ticks_per_second)
        return 0 if rest else scale

    @property
    def safe_ticks(self) -> int:
        """Below this the time is `ticks * scale + safe_offset`, and fits 64 bits."""
        return _HALF_RANGE // self.scale if self.scale and self.safe_offset == self.offset_ns else 0

    @property
    def safe_offset(self) -> int:
        """The offset, held within a range that leaves room for the ticks."""
        return max(-_HALF_RANGE, min(self.offset_ns, _HALF_RANGE))


class _Epoch(NamedTuple):
    """Parser state that is valid from one packet of a chunk on."""

    packet: int
    """Index of the first packet it holds for."""
    big_endian: bool
    table: int
    """Where the section's interfaces begin in the table."""
    defined: int
    """Interfaces of the section known so far."""
    numbered: int
    """Interfaces of all sections before it."""


@dataclass(slots=True)
class _Walk:
    """Result of one pass over the blocks of a chunk."""

    packets: npt.NDArray[np.int64]
    """Where each packet block begins; the last may be unfinished."""
    epochs: list[_Epoch]
    position: int
    """Where the walk stopped: the end of the last finished block, if `packets` are valid."""
    need: int
    """Bytes that the block there needs."""
    problem: str | None
    """Why the block there cannot be read."""


class PcapngParser:
    """Reads the first section header, then batches of records.

    Enhanced, simple and obsolete packet blocks are records; the other blocks are
    skipped, but for those that describe sections and interfaces.
    """

    format = "pcapng"

    def __init__(self, chunks: Chunks) -> None:
        self._chunks = chunks
        self._path = chunks.source.path
        self._big_endian = False
        self._header = _BLOCK_HEADERS[False]
        self._interfaces: list[Interface] = []
        """Of this section and, within a chunk, of those before it."""
        self._section = 0
        """Where this section's begin."""
        self._numbered = 0
        self.interfaces: dict[int, Interface] = {}
        """Those described so far by number over all sections, the first `MAXIMUM_INTERFACES`."""
        self.nanosecond = False
        """Whether an interface seen so far has times finer than microseconds."""

    def batches(self) -> Iterator[RecordBatch]:
        """All records up to the end or the damage, then `CaptureError` if there is damage."""
        chunks = self._chunks
        number = 1
        while True:
            walk = self._walk()
            batch, used, need, damage = self._read_packets(walk, number)
            batch.data = chunks.take(used)
            count = len(batch)
            if count:
                yield batch
            del batch
            number += count
            if damage:
                raise damage
            if not chunks.fill(need):
                break
        self._check_end(number, need)

    def _walk(self) -> _Walk:
        """Find the packet blocks and read the others.

        Packet blocks are skipped by their claimed length; `_read_packets` checks them all at
        once. If one has a wrong length, the walk after it and the parser's state are
        invalid: reading ends there.
        """
        view = self._chunks.view
        end = len(view)
        del self._interfaces[: self._section]
        self._section = 0
        starts: list[int] = []
        append = starts.append
        epochs = [self._epoch(0)]
        header = self._header
        last = end - _BLOCK_OVERHEAD
        position, need, problem = 0, _BLOCK_OVERHEAD, None
        while position <= last:
            kind, size = header(view, position)
            if kind == _ENHANCED_PACKET and size >= _PACKET_OVERHEAD:
                append(position)
                position += size
                continue
            if kind == _SECTION_HEADER:
                size, problem = self._section_size(view, position)
            problem = problem or _size_problem(kind, size)
            if problem:
                break
            if kind in _PACKET_BLOCKS:
                append(position)
                position += size
                continue
            if position + size > end:
                need = size
                break
            problem = self._take_in(kind, view[position : position + size])
            if problem:
                break
            if kind in (_SECTION_HEADER, _INTERFACE):
                header = self._header
                epochs.append(self._epoch(len(starts)))
            position += size
        return _Walk(np.array(starts, np.int64), epochs, position, need, problem)

    def _epoch(self, packet: int) -> _Epoch:
        defined = len(self._interfaces) - self._section
        return _Epoch(packet, self._big_endian, self._section, defined, self._numbered)

    def _section_size(self, view: memoryview, position: int) -> tuple[int, str | None]:
        """Length of a section header, which comes before the sign of its byte order."""
        magic = bytes(view[position + 8 : position + 12])
        if magic not in _BYTE_ORDERS:
            return 0, f"byte-order magic {magic.hex()}, expected 1a2b3c4d or 4d3c2b1a"
        order = "<>"[_BYTE_ORDERS[magic]]
        return unpack_from(f"{order}I", view, position + 4)[0], None

    def _take_in(self, kind: int, block: memoryview) -> str | None:
        """Read a block that is not a packet; returns the reason when it is damaged."""
        if kind == _SECTION_HEADER:
            big_endian = _BYTE_ORDERS[bytes(block[8:12])]
        else:
            big_endian = self._big_endian
        order = "<>"[big_endian]
        (trailer,) = unpack_from(f"{order}I", block, len(block) - 4)
        if trailer != len(block):
            return _trailer_problem(kind, len(block), trailer)
        if kind == _SECTION_HEADER:
            major, minor = unpack_from(f"{order}HH", block, 12)
            if (major, minor) not in ((1, 0), (1, 2)):
                return f"pcapng version {major}.{minor}, expected 1.0"
            self._numbered += len(self._interfaces) - self._section
            self._section = len(self._interfaces)
            self._big_endian, self._header = big_endian, _BLOCK_HEADERS[big_endian]
        elif kind == _INTERFACE:
            if len(self._interfaces) - self._section >= MAXIMUM_INTERFACES:
                return f"more than {MAXIMUM_INTERFACES} interfaces in a section"
            interface = _read_interface(block, order)
            if len(self.interfaces) < MAXIMUM_INTERFACES:
                self.interfaces[self._numbered + len(self._interfaces) - self._section] = interface
            self._interfaces.append(interface)
            self.nanosecond |= interface.ticks_per_second > 1_000_000
        return None

    def _read_packets(
        self, walk: _Walk, number: int
    ) -> tuple[RecordBatch, int, int, CaptureError | None]:
        """The sound packets; the bytes used by them and by the blocks up to where reading
        stopped; the bytes that the block there needs; what is wrong with it."""
        chunks = self._chunks
        packets = self._gather(walk)
        sound = packets.whole & (packets.trailer == packets.size) & packets.known
        sound &= packets.cap_len <= packets.room
        used, need, problem = walk.position, walk.need, walk.problem
        count = len(sound)
        if not sound.all():
            count = int(np.argmin(sound))
            used, need = int(packets.start[count]), int(packets.size[count])
            problem = packets.problem(count, number + count)
        damage = CaptureError(self._path, chunks.base + used, problem) if problem else None

        kept = slice(count)
        batch = RecordBatch(
            data=chunks.data,
            offsets=packets.offset[kept],
            cap_len=packets.cap_len[kept],
            wire_len=packets.wire_len[kept],
            time_ns=_times(packets, kept, self._interfaces),
            link_type=packets.link_type[kept],
            interface=packets.number[kept].astype(np.uint32),
            first_number=number,
        )
        view = chunks.view
        options = packets.offset + (packets.cap_len + 3 & ~3)
        options_end = packets.start + packets.size - 4
        # Simple packet blocks have no options; what follows their data is padding.
        has_options = (options_end - options >= 4) & (packets.kind != _SIMPLE_PACKET)
        for row in np.flatnonzero(has_options[kept]).tolist():
            order = "<>"[packets.big_endian[row]]
            comments = _comments(view[options[row] : options_end[row]], order)
            if comments:
                batch.comments[row] = comments
        return batch, used, need, damage

    def _gather(self, walk: _Walk) -> _Packets:
        """The fields of all packet blocks, in the byte order of this machine."""
        data, start, table = self._chunks.data, walk.packets, self._interfaces
        epochs = np.array(walk.epochs, np.int64)
        spans = np.diff(np.append(epochs[:, 0], len(start)))
        _, big_endian, section, defined, numbered = np.repeat(epochs, spans, axis=0).T
        swapped = big_endian.astype(np.bool_) if big_endian.any() else None
        words = _swap(gather(data, start, "<", 7), swapped)
        kind, size = words[:, 0], words[:, 1].astype(np.int64)
        interface, wire_len = words[:, 2].astype(np.int64), words[:, 6].astype(np.int64)
        cap_len = words[:, 5].astype(np.int64)
        room, offset = size - _PACKET_OVERHEAD, start + 28
        link_types = np.array([each.link_type for each in table] or [0], np.uint16)

        obsolete = np.flatnonzero(kind == _OBSOLETE_PACKET)
        if len(obsolete):
            # A 16-bit interface and a 16-bit count of drops share the word (appendix A).
            word = interface[obsolete]
            interface[obsolete] = np.where(big_endian[obsolete], word >> 16, word & 0xFFFF)
        simple = np.flatnonzero(kind == _SIMPLE_PACKET)
        if len(simple):
            wire_len[simple] = interface[simple]
            interface[simple] = 0
            room[simple], offset[simple] = size[simple] - _SIMPLE_OVERHEAD, start[simple] + 12
        known = interface < defined
        row = np.where(known, section + interface, 0)
        if len(simple):
            # 4.4: the snap length of the first interface, or else the whole packet.
            snaplens = np.array([each.snaplen or 2**32 for each in table] or [0], np.int64)
            cap_len[simple] = np.minimum(snaplens[row[simple]], wire_len[simple])

        whole = (size % 4 == 0) & (size <= MAXIMUM_BLOCK) & (start + size <= self._chunks.length)
        trailer_at = np.where(whole, start + size - 4, 0)
        return _Packets(
            start=start,
            size=size,
            kind=kind,
            big_endian=big_endian,
            interface=interface,
            row=row,
            known=known,
            defined=defined,
            number=numbered + interface,
            link_type=link_types[row],
            ticks=words[:, 3].astype(np.uint64) << np.uint64(32) | words[:, 4],
            offset=offset,
            cap_len=cap_len,
            wire_len=wire_len,
            room=room,
            whole=whole,
            trailer=_swap(gather(data, trailer_at, "<", 1), swapped)[:, 0],
        )

    def _check_end(self, number: int, need: int) -> None:
        chunks = self._chunks
        length, damage = chunks.length, chunks.source.damage
        if damage:
            raise CaptureError(self._path, chunks.base + length, damage)
        if not length:
            return
        what = "a block"
        if length >= _BLOCK_OVERHEAD:
            kind, _ = self._header(chunks.view, 0)
            what = f"record {number}" if kind in _PACKET_BLOCKS else _name(kind)
        size = need if length >= _BLOCK_OVERHEAD else f"at least {_BLOCK_OVERHEAD}"
        reason = (
            f"the file ends inside {what} (cut short, or still being written): "
            f"{length} of {size} bytes"
        )
        raise CaptureError(self._path, chunks.base, reason)


@dataclass(slots=True)
class _Packets:
    """The packet blocks of a chunk, one row each, not yet checked."""

    start: npt.NDArray[np.int64]
    size: npt.NDArray[np.int64]
    kind: npt.NDArray[np.uint32]
    big_endian: npt.NDArray[np.int64]
    interface: npt.NDArray[np.int64]
    """As given in the block."""
    row: npt.NDArray[np.int64]
    """Of the interface in the parser's table; 0 for an unknown one."""
    known: npt.NDArray[np.bool_]
    defined: npt.NDArray[np.int64]
    number: npt.NDArray[np.int64]
    """Of the interface, over all sections."""
    link_type: npt.NDArray[np.uint16]
    ticks: npt.NDArray[np.uint64]
    offset: npt.NDArray[np.int64]
    cap_len: npt.NDArray[np.int64]
    wire_len: npt.NDArray[np.int64]
    room: npt.NDArray[np.int64]
    """Bytes of the block for the packet, its padding and options."""
    whole: npt.NDArray[np.bool_]
    """The length is a possible one and the block lies within the buffer."""
    trailer: npt.NDArray[np.uint32]
    """The length as repeated at the end; meaningless where not `whole`."""

    def problem(self, row: int, number: int) -> str | None:
        """Why the packet block of a row cannot be read; None if it only is unfinished."""
        kind, size = int(self.kind[row]), int(self.size[row])
        if not self.whole[row]:
            return _size_problem(kind, size)
        if self.trailer[row] != size:
            return _trailer_problem(kind, size, int(self.trailer[row]))
        if not self.known[row]:
            return (
                f"record {number} names interface {self.interface[row]}, "
                f"but its section has described {self.defined[row]} so far"
            )
        return (
            f"record {number} claims {self.cap_len[row]} captured bytes, "
            f"but its block has room for {self.room[row]}"
        )


def _swap(
    words: npt.NDArray[np.uint32], rows: npt.NDArray[np.bool_] | None
) -> npt.NDArray[np.uint32]:
    if rows is not None:
        words[rows] = words[rows].byteswap()
    return words


def _times(packets: _Packets, kept: slice, table: Sequence[Interface]) -> npt.NDArray[np.int64]:
    """Nanoseconds since the epoch of each packet; simple packet blocks have none and get 0."""
    ticks, row, kind = packets.ticks[kept], packets.row[kept], packets.kind[kept]
    scales = np.array([each.scale for each in table] or [0], np.uint64)
    offsets = np.array([each.safe_offset for each in table] or [0], np.int64)
    safe_ticks = np.array([each.safe_ticks for each in table] or [0], np.uint64)
    simple = kind == _SIMPLE_PACKET
    times = (ticks * scales[row]).view(np.int64) + offsets[row]
    # Binary fractions, sub-nanoseconds and times out of range: exactly, one at a time.
    for index in np.flatnonzero((ticks >= safe_ticks[row]) & ~simple).tolist():
        times[index] = table[row[index]].time_ns(int(ticks[index]))
    times[simple] = 0
    return times


def _read_interface(block: memoryview, order: str) -> Interface:
    link_type, snaplen = unpack_from(f"{order}HxxI", block, 8)
    ticks_per_second, offset, name = 1_000_000, 0, ""
    for code, value in _options(block[16:-4], order):
        if code == _IF_NAME:
            name = bytes(value).split(b"\0", 1)[0].decode("utf-8", "replace")
        elif code == _IF_TSRESOL and len(value) == 1:
            resolution = value[0]
            base = 2 if resolution & 0x80 else 10
            ticks_per_second = base ** (resolution & 0x7F)
        elif code == _IF_TSOFFSET and len(value) == 8:
            (offset,) = unpack_from(f"{order}q", value)
    return Interface(link_type, snaplen, ticks_per_second, offset * 1_000_000_000, name)


def _options(area: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """Code and value of each option; ends at the first that does not fit (3.5)."""
    position = 0
    while position + 4 <= len(area):
        code, length = unpack_from(f"{order}HH", area, position)
        position += 4
        if code == _OPT_END or position + length > len(area):
            return
        yield code, area[position : position + length]
        position += length + 3 & ~3


def _comments(area: memoryview, order: str) -> tuple[str, ...]:
    """A zero byte ends a string, and it need not be valid UTF-8 (3.5, 3.6.3)."""
    return tuple(
        bytes(value).split(b"\0", 1)[0].decode("utf-8", "replace")
        for code, value in _options(area, order)
        if code == _OPT_COMMENT
    )


def _size_problem(kind: int, size: int) -> str | None:
    least = _LEAST_SIZES.get(kind, _BLOCK_OVERHEAD)
    if size % 4 == 0 and least <= size <= MAXIMUM_BLOCK:
        return None
    return (
        f"{_name(kind)} claims {size} bytes, "
        f"expected a multiple of 4 from {least} to {MAXIMUM_BLOCK}"
    )


def _trailer_problem(kind: int, size: int, trailer: int) -> str:
    return f"{_name(kind)} of {size} bytes says {trailer} at its end"


def _name(kind: int) -> str:
    return _NAMES.get(kind, f"a block of type 0x{kind:08x}")


class PcapngWriter(Closing):
    """Writes one little-endian section with nanosecond times.

    Interface 0 has the link type given here; `add_interface` makes more. A path is
    compressed as its suffix says. Raises `EncodeError` for values the format cannot
    hold, `CaptureError` when the file cannot be opened.
    """

    nanosecond = True

    def __init__(
        self, target: Target, link_type: int = 1, *, name: str = "", description: str = ""
    ) -> None:
        self.link_type = link_type
        self._interfaces = 0
        self._last_ns = 0
        self._closing = ExitStack()
        self._file = GatheredFile(open_output(target, self._closing), target)
        self._closing.callback(self._file.drain)
        application = _option(_SHB_USERAPPL, b"ibwire") + _option(_OPT_END, b"")
        section = _SECTION_BODY.pack(0x1A2B3C4D, 1, 0, -1) + application
        self._write_block(_SECTION_HEADER, section)
        self.add_interface(link_type, name, description)

    def add_interface(self, link_type: int, name: str = "", description: str = "") -> int:
        """Describe one more interface; returns its number for `write`."""
        if not 0 <= link_type <= 0xFFFF:
            raise EncodeError("link_type", link_type, "a 16-bit number")
        body = _INTERFACE_BODY.pack(link_type, 0, 0)
        if name:
            body += _option(_IF_NAME, name.encode())
        if description:
            body += _option(_IF_DESCRIPTION, description.encode())
        body += _option(_IF_TSRESOL, b"\x09") + _option(_OPT_END, b"")
        self._write_block(_INTERFACE, body)
        self._interfaces += 1
        return self._interfaces - 1

    def write(
        self,
        data: bytes | memoryview,
        time_ns: int,
        wire_len: int | None = None,
        *,
        interface: int = 0,
        comments: Sequence[str] = (),
    ) -> None:
        """Append one record; `wire_len` is the length of `data` unless it was cut."""
        length = len(data)
        wire_len = length if wire_len is None else wire_len
        if not 0 <= interface < self._interfaces:
            raise EncodeError("interface", interface, f"below {self._interfaces}")
        if not 0 <= time_ns < 2**64:
            raise EncodeError("time_ns", time_ns, "a 64-bit number")
        if not 0 <= wire_len < 2**32:
            raise EncodeError("wire_len", wire_len, "a 32-bit number")
        self._last_ns = time_ns
        head = _PACKET_BODY.pack(interface, time_ns >> 32, time_ns & 0xFFFFFFFF, length, wire_len)
        held = data if isinstance(data, bytes) else bytes(data)
        end = bytes(-length % 4)
        if comments:
            end += b"".join(_option(_OPT_COMMENT, comment.encode()) for comment in comments)
            end += _option(_OPT_END, b"")
        self._write_block(_ENHANCED_PACKET, head, held, end)

    def flush(self) -> None:
        """Give the operating system all that was written, unless it is compressed."""
        self._file.flush()

    def end_incomplete(self, comment: str) -> None:
        """Say in the file that it is not whole: a statistics block with this comment (4.6)."""
        body = _STATISTICS_BODY.pack(0, self._last_ns >> 32, self._last_ns & 0xFFFFFFFF)
        options = _option(_OPT_COMMENT, comment.encode()) + _option(_OPT_END, b"")
        self._write_block(_INTERFACE_STATISTICS, body + options)

    def close(self) -> None:
        """Write what is buffered and close a file that was opened here."""
        self._closing.close()

    def _write_block(self, kind: int, head: bytes, data: bytes = b"", end: bytes = b"") -> None:
        size = len(head) + len(data) + len(end) + _BLOCK_OVERHEAD
        if size > MAXIMUM_BLOCK:
            raise EncodeError("block", f"{size} bytes", f"at most {MAXIMUM_BLOCK} bytes")
        first = _BLOCK_HEADER.pack(kind, size) + head
        self._file.add((first, data, end + size.to_bytes(4, "little")), size)


def _option(code: int, value: bytes) -> bytes:
    if len(value) > 0xFFFF:
        raise EncodeError("option", f"{len(value)} bytes", "at most 65535 bytes")
    return _OPTION_HEADER.pack(code, len(value)) + value + bytes(-len(value) % 4)


_SECTION_HEADER = 0x0A0D0D0A
_INTERFACE = 1
_OBSOLETE_PACKET = 2
_SIMPLE_PACKET = 3
_INTERFACE_STATISTICS = 5
_ENHANCED_PACKET = 6
_PACKET_BLOCKS = frozenset({_OBSOLETE_PACKET, _SIMPLE_PACKET, _ENHANCED_PACKET})

_NAMES = {
    _SECTION_HEADER: "a section header",
    _INTERFACE: "an interface description",
    _OBSOLETE_PACKET: "an obsolete packet block",
    _SIMPLE_PACKET: "a simple packet block",
    _ENHANCED_PACKET: "an enhanced packet block",
}

_BLOCK_OVERHEAD = 12
"""Type, length, and the length again at the end (3.1)."""
_PACKET_OVERHEAD = 32
_SIMPLE_OVERHEAD = 16

_LEAST_SIZES = {
    _SECTION_HEADER: 28,
    _INTERFACE: 20,
    _OBSOLETE_PACKET: _PACKET_OVERHEAD,
    _SIMPLE_PACKET: _SIMPLE_OVERHEAD,
    _ENHANCED_PACKET: _PACKET_OVERHEAD,
}

_OPT_END = 0
_OPT_COMMENT = 1
_SHB_USERAPPL = 4
_IF_NAME = 2
_IF_DESCRIPTION = 3
_IF_TSRESOL = 9
_IF_TSOFFSET = 14

_BYTE_ORDERS = {b"\x4d\x3c\x2b\x1a": False, b"\x1a\x2b\x3c\x4d": True}
"""Byte-order magic of a section header -> whether the section is big-endian."""
_BLOCK_HEADERS = {False: Struct("<II").unpack_from, True: Struct(">II").unpack_from}

_BLOCK_HEADER = Struct("<II")
_SECTION_BODY = Struct("<IHHq")
_INTERFACE_BODY = Struct("<HHI")
_PACKET_BODY = Struct("<IIIII")
_STATISTICS_BODY = Struct("<III")
_OPTION_HEADER = Struct("<HH")

_HALF_RANGE = 2**62
