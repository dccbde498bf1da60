"""The reliable multi-packet transaction protocol: messages longer than a MAD (IBA 13.6).

A message is cut into segments of DATA; the receiver acknowledges when its window is full and at
the end. The program sees whole messages only.
"""

from __future__ import annotations

from ibwire.base.units import S, Time
from ibwire.sm.mads import METHOD, RESPONSE
from ibwire_layers.mad import (
    MAD_SIZE,
    RMPP_ACTIVE,
    RMPP_FIRST,
    RMPP_LAST,
    VENDOR_RANGE_2,
    MgmtClass,
    RMPPType,
)

VERSION = 1
TYPE_AT, FLAGS_AT, STATUS_AT = 25, 26, 27
SEGMENT = slice(28, 32)
LENGTH = slice(32, 36)
"""PayloadLength of DATA, NewWindowLast of ACK."""

FIRST_WINDOW = 1
WINDOW = 64
"""Segments that a receiver accepts beyond the last one it acknowledges (Linux, mad_rmpp.c)."""
ACK_TIMEOUT: Time = 2 * S
MESSAGE_TIMEOUT: Time = 40 * S
DONE_TIMEOUT: Time = 10 * S
"""How long a receiver answers repeated segments of a message that is whole."""
RETRIES = 3
MAXIMUM_SEGMENTS = 100_000
"""Of a message that is received: 20 MB."""
MOST_RECEIVING = 1000
"""Messages that are received at the same time; the oldest make room."""


def header_size(mgmt_class: int) -> int:
    """Bytes of each segment that are headers: up to the end of the SA or vendor header."""
    return 56 if mgmt_class == MgmtClass.SUBN_ADM else 40 if mgmt_class in VENDOR_RANGE_2 else 36


def is_active(mad: bytes | bytearray) -> bool:
    """Whether the MAD belongs to a transaction."""
    return bool(mad[FLAGS_AT] & RMPP_ACTIVE)


def uses(mgmt_class: int) -> bool:
    """Whether MADs of a class have an RMPP header."""
    return mgmt_class == MgmtClass.SUBN_ADM or mgmt_class in VENDOR_RANGE_2


class Sending:
    """A message on its way out.

    message: headers and data as a program writes them; retries, timeout: of the request.
    """

    __slots__ = ("acknowledged", "due", "last", "limit", "message", "retries", "sent", "size")

    def __init__(self, message: bytes, now: Time) -> None:
        self.message = message
        self.size = header_size(message[1])
        room = MAD_SIZE - self.size
        self.last = max(1, -(-(len(message) - self.size) // room))
        self.sent = 0
        self.acknowledged = 0
        self.limit = FIRST_WINDOW
        """Highest segment that may be sent."""
        self.retries = RETRIES
        self.due: Time = now + ACK_TIMEOUT

    @property
    def is_done(self) -> bool:
        """Whether all of it is acknowledged."""
        return self.acknowledged >= self.last

    def take(self, now: Time) -> list[bytearray]:
        """The segments that may be sent now."""
        segments = []
        while self.sent < min(self.limit, self.last):
            self.sent += 1
            segments.append(self._segment(self.sent))
        self.due = now + ACK_TIMEOUT
        return segments

    def acknowledge(self, mad: bytes | bytearray) -> None:
        """Take an ACK."""
        segment = int.from_bytes(mad[SEGMENT], "big")
        if segment <= self.sent:
            self.acknowledged = max(self.acknowledged, segment)
            self.limit = max(self.limit, int.from_bytes(mad[LENGTH], "big"))

    def repeat(self) -> bool:
        """Go back to what is not acknowledged; `False` if that was done too often."""
        self.retries -= 1
        self.sent = self.acknowledged
        return self.retries >= 0

    def _segment(self, number: int) -> bytearray:
        room = MAD_SIZE - self.size
        start = self.size + (number - 1) * room
        data = self.message[start : start + room]
        mad = bytearray(self.message[: self.size] + data.ljust(room, b"\0"))
        flags = RMPP_ACTIVE
        length = 0
        # What counts in PayloadLength begins behind the RMPP header, at byte 36.
        extra = self.size - 36
        if number == 1:
            flags |= RMPP_FIRST
            length = len(self.message) - self.size + extra * self.last
        if number == self.last:
            flags |= RMPP_LAST
            length = len(data) + extra if number > 1 else length
        mad[24] = VERSION
        mad[TYPE_AT] = RMPPType.DATA
        mad[FLAGS_AT] = mad[FLAGS_AT] & 0xF8 | flags
        mad[STATUS_AT] = 0
        mad[SEGMENT] = number.to_bytes(4, "big")
        mad[LENGTH] = length.to_bytes(4, "big")
        return mad


class Receiving:
    """A message that is coming in. most: segments that it may have."""

    __slots__ = ("data", "due", "header", "is_done", "most", "next", "size", "window")

    def __init__(self, now: Time, most: int = MAXIMUM_SEGMENTS) -> None:
        self.most = most
        self.header = b""
        self.data: list[bytes] = []
        self.next = 1
        """Segment that is expected."""
        self.size = 0
        self.window = FIRST_WINDOW
        self.is_done = False
        """Whether the message is whole; then only ACKs are left to send."""
        self.due: Time = now + MESSAGE_TIMEOUT

    def receive(self, mad: bytes | bytearray) -> tuple[bytes | None, bytearray | None]:
        """Take a segment: the message if it is whole, and the ACK to send if one is due."""
        number = int.from_bytes(mad[SEGMENT], "big")
        flags = mad[FLAGS_AT]
        self.size = header_size(mad[1])
        if number != self.next or number > self.most:
            # A duplicate, or one after a loss: what is in order is said again.
            return None, self._ack(mad)
        if number == 1:
            self.header = bytes(mad[: self.size])
        self.next += 1
        room = MAD_SIZE - self.size
        if flags & RMPP_LAST:
            length = int.from_bytes(mad[LENGTH], "big")
            extra = self.size - 36
            if number == 1:
                length = min(length, room + extra)
            self.data.append(bytes(mad[self.size : self.size + max(0, min(length - extra, room))]))
            self.is_done = True
            whole, self.data = self.header + b"".join(self.data), []
            return whole, self._ack(mad)
        self.data.append(bytes(mad[self.size :]))
        if number >= self.window:
            self.window = number + WINDOW
            return None, self._ack(mad)
        return None, None

    def _ack(self, mad: bytes | bytearray) -> bytearray:
        ack = bytearray(mad[: self.size].ljust(MAD_SIZE, b"\0"))
        ack[METHOD] ^= RESPONSE
        ack[24] = VERSION
        ack[TYPE_AT] = RMPPType.ACK
        ack[FLAGS_AT] = ack[FLAGS_AT] & 0xF8 | RMPP_ACTIVE
        ack[STATUS_AT] = 0
        ack[SEGMENT] = (self.next - 1).to_bytes(4, "big")
        ack[LENGTH] = max(self.window, self.next - 1).to_bytes(4, "big")
        return ack
