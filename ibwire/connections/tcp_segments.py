"""Which TCP segments may say something of queue pairs: the few among very many.

A segment is interesting when it begins like a line that names a queue pair, and from
then on so is every other one of its connection. Looking for such beginnings costs a
few array operations a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ibwire.base.membership import are_among
from ibwire.connections.flow import addresses, all_addresses
from ibwire.connections.tcp_handshakes import VERSION_SIZE
from ibwire.dissect import Columns
from ibwire_layers import outer
from ibwire_layers.walk import Protocol


class TcpEnd(NamedTuple):
    """One end of a TCP connection."""

    address: str
    port: int


class Segment(NamedTuple):
    """One TCP segment, or the first packet of a connection."""

    number: int
    time_ns: int
    src: TcpEnd
    dst: TcpEnd
    sequence: int
    size: int
    """Bytes on the wire."""
    data: bytes
    """As much of them as was captured."""
    hash: int
    """Of both ends, the same in both directions."""
    opens: bool
    """Whether it begins with something that is worth listening to."""
    is_first: bool


@dataclass(slots=True)
class Segments:
    """The TCP packets of a chunk that carry bytes or begin a connection, as arrays (n,)."""

    columns: Columns
    rows: npt.NDArray[np.int64]
    tcp: npt.NDArray[np.int64]
    """Where the header starts in the buffer."""
    start: npt.NDArray[np.int64]
    """Where the payload starts."""
    end: npt.NDArray[np.int64]
    """Where it ends on the wire."""
    captured: npt.NDArray[np.int64]
    """Where it ends in the buffer."""
    hash: npt.NDArray[np.uint64]
    is_first: npt.NDArray[np.bool_]

    def begun(self) -> list[int]:
        """Hashes of connections that begin here."""
        hashes: list[int] = self.hash[self.is_first].tolist()
        return hashes

    def of(self, listened: list[int]) -> Iterator[Segment]:
        """Those of the connections with these hashes, and of connections that get interesting."""
        opens = self._opens()
        wanted = {*listened, *self.hash[opens].tolist()}
        if not wanted:
            return
        frames = self.columns.frames
        data, batch = frames.data, frames.batch
        at = np.flatnonzero(are_among(self.hash, np.array(list(wanted), np.uint64)))
        rows, tcp, start = self.rows[at], self.tcp[at], self.start[at]
        for (source, destination), source_port, destination_port, begin, end, *others in zip(
            all_addresses(self.columns, rows),
            _number(data, tcp, 2).tolist(),
            _number(data, tcp + 2, 2).tolist(),
            start.tolist(),
            self.captured[at].tolist(),
            (rows + batch.first_number).tolist(),
            batch.time_ns[rows].tolist(),
            _number(data, tcp + 4, 4).tolist(),
            (self.end[at] - start).tolist(),
            self.hash[at].tolist(),
            opens[at].tolist(),
            self.is_first[at].tolist(),
            strict=True,
        ):
            number, time_ns, sequence, size, hash_, does_open, is_first = others
            yield Segment(
                number,
                time_ns,
                TcpEnd(source, source_port),
                TcpEnd(destination, destination_port),
                sequence,
                size,
                data[begin:end].tobytes(),
                hash_,
                does_open,
                is_first,
            )

    def iwarp_responders(self) -> list[TcpEnd]:
        """The ends that are asked for iWARP, or answer: an MPA frame begins a segment."""
        data, found = self.columns.frames.data, []
        held = self.captured - self.start
        may_be = (held >= _MPA_SIZE) & (
            data[np.minimum(self.start, len(data) - 1)] == _MPA_KEYS[0][0]
        )
        for place in np.flatnonzero(may_be).tolist():
            start, tcp = int(self.start[place]), int(self.tcp[place])
            key = data[start : start + len(_MPA_KEYS[0])].tobytes()
            if key in _MPA_KEYS:
                is_reply = _MPA_KEYS.index(key)
                port = tcp if is_reply else tcp + 2
                address = addresses(self.columns, int(self.rows[place]))[1 - is_reply]
                found.append(TcpEnd(address, int.from_bytes(data[port : port + 2].tobytes())))
        return found

    def _opens(self) -> npt.NDArray[np.bool_]:
        """(n,) which begin with a line that names a QPN, or with perftest's version."""
        data = self.columns.frames.data
        held = self.captured - self.start
        heads = data[np.minimum(self.start[:, None] + np.arange(12), len(data) - 1)]
        is_hex, is_digit, is_colon = _IS_HEX[heads], _IS_DIGIT[heads], heads == ord(":")
        line = (held >= 12) & is_hex[:, :4].all(axis=1) & is_colon[:, 4]
        line &= is_colon[:, 9] | is_colon[:, 11]
        version = (self.end - self.start == VERSION_SIZE) & (held >= 12) & is_digit[:, 0]
        version &= (heads[:, 1] == ord(".")) & is_digit[:, 2:4].all(axis=1) & (heads[:, 4] == 0)
        opens: npt.NDArray[np.bool_] = line | version
        for place in np.flatnonzero((held > 0) & (heads[:, 0] == ord("{"))).tolist():
            text = data[self.start[place] : self.captured[place]].tobytes()
            opens[place] = b'"qpn"' in text
        return opens


def segments(columns: Columns) -> Segments | None:
    """The TCP packets of a chunk that may matter, `None` if there are none."""
    frames = columns.frames
    rows = np.flatnonzero(frames.protocol == Protocol.TCP)
    if not len(rows):
        return None
    data, limit, end = frames.data, frames.limit[rows], frames.end[rows]
    four, six = frames.position(outer.IPv4)[rows], frames.position(outer.IPv6)[rows]
    is_four = four >= 0
    tcp = np.where(is_four, four + 4 * (data[four] & 0xF).astype(np.int64), six + outer.IPv6.SIZE)
    # Extension headers are not followed: these programs send none.
    good = (tcp + _TCP_SIZE <= limit) & (is_four | (data[six + 6] == outer.IPProto.TCP))
    rows, limit, end, four, six, is_four, tcp = (
        each[good] for each in (rows, limit, end, four, six, is_four, tcp)
    )
    start = tcp + 4 * (data[tcp + 12] >> 4).astype(np.int64)
    flags = data[tcp + 13]
    is_first = flags & (_SYN | _ACK) == _SYN
    good = (start >= tcp + _TCP_SIZE) & ((end > start) | is_first)
    rows, limit, end, four, six, is_four, tcp, start, is_first = (
        each[good] for each in (rows, limit, end, four, six, is_four, tcp, start, is_first)
    )
    if not len(rows):
        return None
    captured = np.maximum(np.minimum(end, limit), start)
    hashes = np.zeros(len(rows), np.uint64)
    for nth in (0, 1):
        narrow = _number(data, np.where(is_four, four + 12 + 4 * nth, 0), 4)
        wide = np.where(is_four, 0, six + 8 + 16 * nth)
        address = _number(data, wide, 8) * _FACTORS[0] ^ _number(data, wide + 8, 8)
        address = np.where(is_four, narrow, address)
        port = _number(data, tcp + 2 * nth, 2)
        mixed = (address ^ port << np.uint64(48)) * _FACTORS[1]
        hashes += (mixed ^ mixed >> np.uint64(31)) * _FACTORS[2]
    return Segments(columns, rows, tcp, start, end, captured, hashes, is_first)


def _number(
    data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64], size: int
) -> npt.NDArray[np.uint64]:
    """(n,) big-endian numbers of this many bytes."""
    words = np.ndarray((len(data) - size + 1,), f">u{size}", data, strides=(1,))
    return words[at].astype(np.uint64)


_SYN, _ACK = 0x02, 0x10
"""Flags of a TCP header (RFC 9293, 3.1)."""


_TCP_SIZE = 20
"""Bytes of a TCP header without options (RFC 9293, 3.1)."""

_MPA_KEYS = b"MPA ID Req Frame", b"MPA ID Rep Frame"
_MPA_SIZE = 20
"""What the request and the reply of MPA begin with, and their size (RFC 5044, 7.1)."""

_FACTORS = np.array([0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93, 0xFF51AFD7ED558CCD], np.uint64)
"""Any odd numbers: connections with the same hash only cost a second look."""

_IS_HEX, _IS_DIGIT = np.zeros(256, np.bool_), np.zeros(256, np.bool_)
_IS_HEX[list(b"0123456789abcdef")] = True
_IS_DIGIT[list(b"0123456789")] = True
