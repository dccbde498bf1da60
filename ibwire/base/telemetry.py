"""In-band telemetry: what switches write into a packet about their queues.

A record has room for five hops, 8 bytes each, and their count: 42 bytes. No standard says where
RoCEv2 carries it. Here it follows the ICRC, as bytes of the Ethernet frame after the end of the
IP packet: switches write there without changing a checksum, and a reader that does not know it
sees a trailer.

    hop, little-endian:  |63     queue    47|46    sent    27|26     time     3|2 rate 0|
    after the hops:      |15 echoed|14                    count                        0|

Source: the hops are those of alibaba-edu/High-Precision-Congestion-Control int-header.h; the place
and the bit `echoed` are choices of this emulator (docs/reference/congestion.md#telemetry).
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

from ibwire.base.units import GBPS, NS, Time

_RECORD = Struct("<5QH")
MAXIMUM_HOPS = 5
SIZE = _RECORD.size
EMPTY = bytes(SIZE)
"""The record of a packet that leaves its sender."""

RATES_BPS = tuple(rate * GBPS for rate in (25, 50, 100, 200, 400, 10, 40, 800))
"""By code; those from 5 on are choices of this emulator."""
SENT_UNIT, QUEUE_UNIT = 128, 80
"""Bytes of a unit."""

_TIME_MASK, _SENT_MASK, _QUEUE_MASK = (1 << 24) - 1, (1 << 20) - 1, (1 << 17) - 1
_ECHOED = 1 << 15
_COUNT_MASK = _ECHOED - 1


@dataclass(frozen=True, slots=True)
class Hop:
    """What one switch wrote when the packet left it; `sent` and `time` wrap around."""

    rate_bps: int
    time: int
    """Nanoseconds, of 24 bits."""
    sent: int
    """Units of `SENT_UNIT` bytes that the port has sent before, of 20 bits."""
    queue: int
    """Units of `QUEUE_UNIT` bytes that still wait at the port."""

    def time_since(self, earlier: Hop) -> int:
        """Nanoseconds since another packet left."""
        return (self.time - earlier.time) & _TIME_MASK

    def bytes_since(self, earlier: Hop) -> int:
        """Bytes that the port has sent since another packet left."""
        return ((self.sent - earlier.sent) & _SENT_MASK) * SENT_UNIT

    @property
    def queue_bytes(self) -> int:
        """Bytes that wait at the port."""
        return self.queue * QUEUE_UNIT


def write_hop(frame: bytes, *, now: Time, sent: int, queued: int, rate_bps: int) -> bytes:
    """The frame with one more hop in its record; the same frame if it carries none.

    sent: bytes that the port has sent before it. queued: bytes that wait behind it.
    """
    end = _end_of_packet(frame)
    if end is None or len(frame) - end != SIZE:
        return frame
    record = add_hop(frame[end:], now=now, sent=sent, queued=queued, rate_bps=rate_bps)
    return type(frame)(frame[:end] + record)  # a damaged frame stays one


def add_hop(record: bytes, *, now: Time, sent: int, queued: int, rate_bps: int) -> bytes:
    """The record with one more hop; the same if it is one that a receiver returns."""
    *hops, state = _RECORD.unpack(record)
    if state & _ECHOED:
        return record
    count = state & _COUNT_MASK
    hops[count % MAXIMUM_HOPS] = (
        _code(rate_bps)
        | (now // NS & _TIME_MASK) << 3
        | (sent // SENT_UNIT & _SENT_MASK) << 27
        | min(queued // QUEUE_UNIT, _QUEUE_MASK) << 47
    )
    return _RECORD.pack(*hops, min(count + 1, _COUNT_MASK))


def read_hops(record: bytes) -> tuple[Hop, ...]:
    """The hops of a record; none if it has another size or lost the first hops."""
    if len(record) != SIZE:
        return ()
    *hops, state = _RECORD.unpack(record)
    count = state & _COUNT_MASK
    if count > MAXIMUM_HOPS:
        return ()
    return tuple(
        Hop(RATES_BPS[word & 7], word >> 3 & _TIME_MASK, word >> 27 & _SENT_MASK, word >> 47)
        for word in hops[:count]
    )


def is_echoed(record: bytes) -> bool:
    """Whether a receiver returns the record to the sender of the data."""
    return len(record) == SIZE and bool(record[-1] & _ECHOED >> 8)


def echoed(record: bytes) -> bytes:
    """The record as a receiver returns it: switches no longer write to it."""
    return record[:-1] + bytes((record[-1] | _ECHOED >> 8,))


def _code(rate_bps: int) -> int:
    """The code of the nearest rate, by ratio."""
    known = _CODES.get(rate_bps)
    if known is None:
        ratios = [max(rate / rate_bps, rate_bps / rate) for rate in RATES_BPS]
        known = _CODES[rate_bps] = ratios.index(min(ratios))
    return known


_CODES: dict[int, int] = {}
"""Codes by rate, as they were asked for: a network has few rates."""


def _end_of_packet(frame: bytes) -> int | None:
    """Where the IP packet in an Ethernet frame ends."""
    at = 12
    while frame[at : at + 2] in _TAGS:
        at += 4
    kind = frame[at : at + 2]
    if kind == b"\x08\x00":
        return at + 2 + int.from_bytes(frame[at + 4 : at + 6])
    if kind == b"\x86\xdd":
        return at + 42 + int.from_bytes(frame[at + 6 : at + 8])
    return None


_TAGS = (b"\x81\x00", b"\x88\xa8", b"\x91\x00")
