"""A TCP connection that sends bytes one way, sans I/O: the baseline beside RDMA.

The sender is NewReno: slow start, one segment more a round trip, half the window after three
duplicate ACKs or an ECN echo, one segment after a timeout. The receiver keeps what comes early,
acknowledges every second segment, and at once what closes or leaves a gap. Headers, handshake and
end are those of the RFCs, so other programs read the segments.

A sender is *closed*, waits for the answer to its SYN (*syn-sent*), is *established* until
everything is acknowledged, waits for the acknowledgement of its FIN (*fin-wait*), and is *done*.

Source: RFC 9293; RFC 5681 and 6582 (congestion control, NewReno); RFC 6298 (timeout); RFC 3168
(ECN); RFC 6928 (first window); RFC 7323 (window scale).
"""

from __future__ import annotations

import random
import struct
from collections import deque
from dataclasses import dataclass
from enum import IntFlag, StrEnum
from heapq import heappop, heappush

from ibwire.base.node import Frame
from ibwire.base.units import MS, S, Time

PROTOCOL = 6

FIRST_WINDOW = 10
"""Segments of the first window (RFC 6928)."""

FIRST_TIMEOUT: Time = 1 * S
"""Before a round trip was measured (RFC 6298 2)."""

MAXIMUM_TIMEOUT: Time = 60 * S

ACK_DELAY: Time = 40 * MS
"""How long a single segment may wait for its ACK (Linux; RFC 9293 3.8.6.3 allows half a second)."""

RECEIVE_WINDOW = 4 << 20
"""Bytes that the receiver takes, always the same: its application reads at once."""

_WINDOW_SHIFT = 7
_MASK = 0xFFFFFFFF
_HEADER = 20
_TCP = struct.Struct("!HHIIBBHHH")


class Flags(IntFlag):
    """Control bits of a segment (RFC 9293 3.1)."""

    FIN = 1
    SYN = 2
    RST = 4
    PSH = 8
    ACK = 16
    URG = 32
    ECE = 64
    CWR = 128


class State(StrEnum):
    """Of a sender."""

    CLOSED = "closed"
    SYN_SENT = "syn-sent"
    ESTABLISHED = "established"
    FIN_WAIT = "fin-wait"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Segment:
    """One TCP segment; numbers are those of the wire."""

    sequence: int
    acknowledgement: int
    flags: Flags
    window: int
    options: bytes = b""
    payload: bytes = b""
    is_capable: bool = False
    """Whether its IP header says ECT(0)."""
    is_marked: bool = False
    """Whether its IP header says CE."""


class Data:
    """The bytes of a connection: the same pseudo-random block again and again."""

    BLOCK = 1 << 16

    def __init__(self, seed: str, largest: int) -> None:
        block = random.Random(seed).randbytes(self.BLOCK)
        self._bytes = block + block[:largest]

    def piece(self, start: int, size: int) -> bytes:
        """Bytes from an offset on."""
        at = start % self.BLOCK
        return self._bytes[at : at + size]


class Sender:
    """The end that opens the connection and sends. Offsets count bytes of data from 0."""

    def __init__(
        self,
        data: Data,
        total: int,
        *,
        mss: int = 1460,
        first: int = 0,
        uses_ecn: bool = False,
        min_timeout: Time = 200 * MS,
    ) -> None:
        """first: initial sequence number. min_timeout: least retransmission timeout."""
        self.state = State.CLOSED
        self.total = total
        self.sent = 0
        """Segments with data, repeated ones among them."""
        self.retransmitted = 0
        self.timeouts = 0
        self.cuts = 0
        """Halvings of the window: after a loss, or an ECN echo."""
        self.window = FIRST_WINDOW * mss
        """Congestion window in bytes."""
        self.threshold = 1 << 60
        self.una = 0
        """Offset of the oldest byte that is not acknowledged."""
        self.next = 0
        """Offset of the next byte to send."""
        self._highest = 0
        """Offset behind the last byte that was sent."""
        self._data = data
        self._mss = mss
        self._first = first
        self._uses_ecn = uses_ecn
        self._is_ecn = False
        self._acknowledgement = 0
        self._duplicates = 0
        self._recover: int | None = None
        """Offset whose acknowledgement ends a recovery from loss."""
        self._echo_until = 0
        """Offset up to which further ECN echoes are of the same round trip."""
        self._says_cut = False
        self._peer_window = 0
        self._peer_shift = 0
        self._repeat = False
        """Whether the oldest segment is to be repeated."""
        self._ack_owed = False
        self._fin_sent = False
        self._timer: Time | None = None
        self._timeout = FIRST_TIMEOUT
        self._min_timeout = min_timeout
        self._smoothed: Time | None = None
        self._variation: Time = 0
        self._timed: tuple[int, Time] | None = None
        """Offset whose acknowledgement measures a round trip, and when it was sent."""

    def open(self) -> None:
        """Begin the handshake with the next segment."""
        self.state = State.SYN_SENT
        self._repeat = True

    def poll_transmit(self, now: Time) -> Segment | None:
        """The next segment; `None` if none may leave now."""
        if self.state is State.SYN_SENT:
            return self._syn(now)
        if self._ack_owed:
            self._ack_owed = False
            return self._segment(self.next + self._fin_sent, b"", Flags.ACK)
        if self.state is State.ESTABLISHED:
            if self._repeat:
                self._repeat = False
                return self._piece(self.una, now, repeated=True)
            allowed = min(self.window, self._peer_window) - (self.next - self.una)
            rest = min(self._mss, self.total - self.next)
            if 0 < rest <= allowed:
                return self._piece(self.next, now, repeated=self.next < self._highest)
        if self.state is State.FIN_WAIT and not self._fin_sent:
            self._fin_sent = True
            self._arm(now)
            return self._segment(self.total, b"", Flags.FIN | Flags.ACK)
        return None

    def _syn(self, now: Time) -> Segment | None:
        if not self._repeat:
            return None
        self._repeat = False
        self._timer = now + self._timeout
        flags = Flags.SYN | (Flags.ECE | Flags.CWR if self._uses_ecn else Flags(0))
        return Segment(self._first, 0, flags, 0xFFFF, syn_options(self._mss))

    def _piece(self, start: int, now: Time, *, repeated: bool) -> Segment:
        size = min(self._mss, self.total - start)
        flags = Flags.ACK
        if start + size == self.total:
            flags |= Flags.PSH
        if self._says_cut and not repeated:
            self._says_cut = False
            flags |= Flags.CWR
        self.sent += 1
        if repeated:
            self.retransmitted += 1
            self._timed = None  # an ACK would not say which of them it is for (Karn)
        elif self._timed is None:
            self._timed = start + size, now
        if start == self.next:
            self.next += size
            self._highest = max(self._highest, self.next)
        if self._timer is None or repeated:
            self._arm(now)
        return self._segment(start, self._data.piece(start, size), flags, repeated=repeated)

    def _segment(
        self, start: int, payload: bytes, flags: Flags, *, repeated: bool = False
    ) -> Segment:
        return Segment(
            self._first + 1 + start & _MASK,
            self._acknowledgement,
            flags,
            RECEIVE_WINDOW >> _WINDOW_SHIFT,
            payload=payload,
            # RFC 3168 6.1.5: repeated segments and those without data are not ECN-capable.
            is_capable=self._is_ecn and bool(payload) and not repeated,
        )

    def receive(self, segment: Segment, now: Time) -> None:
        """Take a segment of the receiver."""
        if Flags.ACK not in segment.flags or Flags.RST in segment.flags:
            return
        acknowledged = segment.acknowledgement - self._first - 1 & _MASK
        # Offsets may pass the 32 bits of the wire: the nearest one at or after `una` is meant.
        offset = self.una + ((acknowledged - self.una + (1 << 31)) & _MASK) - (1 << 31)
        if self.state is State.SYN_SENT:
            if Flags.SYN in segment.flags and offset == 0:
                self._establish(segment)
            return
        if self.state in (State.CLOSED, State.DONE) or not self.una <= offset <= self._limit:
            return
        self._peer_window = segment.window << self._peer_shift
        if Flags.FIN in segment.flags:
            self._acknowledgement = segment.sequence + 1 & _MASK
            self._ack_owed = True
        if self.state is State.FIN_WAIT:
            if offset == self.total + 1:
                self.state, self._timer = State.DONE, None
            return
        if Flags.ECE in segment.flags and self._is_ecn and offset > self._echo_until:
            self._cut()
        if offset > self.una:
            self._progress(offset, now)
        elif self.next > self.una and not segment.payload:
            self._duplicate(now)

    @property
    def _limit(self) -> int:
        """The largest acknowledgement that makes sense."""
        return self._highest + (self._fin_sent and 1)

    def _establish(self, segment: Segment) -> None:
        self.state = State.ESTABLISHED
        self._repeat = False
        self._ack_owed = True
        self._timer = None
        self._acknowledgement = segment.sequence + 1 & _MASK
        self._is_ecn = self._uses_ecn and Flags.ECE in segment.flags
        self._peer_window = segment.window
        self._peer_shift = window_shift(segment.options)
        if not self.total:
            self.state = State.FIN_WAIT

    def _progress(self, offset: int, now: Time) -> None:
        if self._timed is not None and offset >= self._timed[0]:
            self._measure(now - self._timed[1])
            self._timed = None
        done = offset - self.una
        self.una = offset
        self.next = max(self.next, offset)
        self._duplicates = 0
        if self._recover is not None and offset < self._recover:
            # NewReno: a partial acknowledgement shows the next loss.
            self._repeat = True
            self.window = max(self.window - done + self._mss, self._mss)
        else:
            if self._recover is not None:
                self._recover = None
                self.window = self.threshold
            elif self.window < self.threshold:
                self.window += min(done, self._mss)
            else:
                self.window += max(self._mss * self._mss // self.window, 1)
        self._timer = None
        if self.una == self.total:
            self.state = State.FIN_WAIT
        else:
            self._arm(now)

    def _duplicate(self, now: Time) -> None:
        self._duplicates += 1
        if self._recover is not None:
            self.window += self._mss
        elif self._duplicates == 3:
            self._cut()
            self._recover = self._highest
            self.window = self.threshold + 3 * self._mss
            self._repeat = True

    def _cut(self) -> None:
        """Halve the window, once in a round trip."""
        self.cuts += 1
        self.threshold = max((self.next - self.una) // 2, 2 * self._mss)
        self.window = self.threshold
        self._echo_until = self._highest
        self._says_cut = self._is_ecn

    def _measure(self, round_trip: Time) -> None:
        """RFC 6298 2.2 and 2.3."""
        if self._smoothed is None:
            self._smoothed, self._variation = round_trip, round_trip // 2
        else:
            difference = abs(self._smoothed - round_trip)
            self._variation = (3 * self._variation + difference) // 4
            self._smoothed = (7 * self._smoothed + round_trip) // 8
        self._timeout = max(self._smoothed + 4 * self._variation, self._min_timeout)

    def _arm(self, now: Time) -> None:
        self._timer = now + self._timeout

    def poll_timeout(self) -> Time | None:
        """When to call `handle_timeout`."""
        return self._timer

    def handle_timeout(self, now: Time) -> None:
        """Send the oldest segment again, with a window of one."""
        if self._timer is None or now < self._timer:
            return
        self.timeouts += 1
        self._timeout = min(self._timeout * 2, MAXIMUM_TIMEOUT)
        self._arm(now)
        if self.state is State.SYN_SENT:
            self._repeat = True
        elif self.state is State.FIN_WAIT:
            self._fin_sent = False
        else:
            self.threshold = max((self.next - self.una) // 2, 2 * self._mss)
            self.window = self._mss
            self.next = self.una
            self._recover, self._duplicates, self._timed = None, 0, None


class Receiver:
    """The end that listens; it compares every byte."""

    def __init__(self, data: Data, *, mss: int = 1460, first: int = 0, uses_ecn: bool = False):
        self.received = 0
        """Bytes that have arrived in order."""
        self.wrong = 0
        """Segments with a byte that was not sent."""
        self.is_closed = False
        """Whether the FIN has arrived, after all data."""
        self.marked = 0
        """Segments with a CE mark."""
        self._data = data
        self._mss = mss
        self._first = first
        self._uses_ecn = uses_ecn
        self._is_ecn = False
        self._peer_first = 0
        self._is_open = False
        self._early: dict[int, int] = {}
        """End by start of the data that is ahead."""
        self._early_starts: list[int] = []
        """Their starts, as a heap."""
        self._fin_at: int | None = None
        self._echoes = False
        self._unacknowledged = 0
        self._ack_due: Time | None = None
        self._to_send: deque[Flags] = deque()

    def receive(self, segment: Segment, now: Time) -> None:
        """Take a segment of the sender."""
        if Flags.SYN in segment.flags:
            self._is_open = True
            self._peer_first = segment.sequence
            self._is_ecn = self._uses_ecn and Flags.ECE | Flags.CWR in segment.flags
            self._to_send = deque((Flags.SYN | Flags.ACK,))
            return
        if not self._is_open or Flags.RST in segment.flags:
            return
        if segment.is_marked and self._is_ecn:
            self.marked += 1
            self._echoes = True
        if Flags.CWR in segment.flags and not segment.is_marked:
            self._echoes = False
        start = self._offset(segment.sequence)
        if Flags.FIN in segment.flags:
            self._fin_at = start + len(segment.payload)
        if segment.payload:
            self._take(start, segment, now)
        self._close(segment)

    def _offset(self, sequence: int) -> int:
        distance = sequence - self._peer_first - 1 - self.received & _MASK
        return self.received + (distance if distance < 1 << 31 else distance - (1 << 32))

    def _take(self, start: int, segment: Segment, now: Time) -> None:
        end = start + len(segment.payload)
        if start < 0 or end > self.received + RECEIVE_WINDOW:
            return
        if self._data.piece(start, end - start) != segment.payload:
            self.wrong += 1
        if start > self.received:
            if start not in self._early:
                heappush(self._early_starts, start)
            self._early[start] = max(end, self._early.get(start, 0))
            self._acknowledge_now()
            return
        had_gap = bool(self._early)
        is_new = end > self.received
        self.received = max(self.received, end)
        while self._early_starts and self._early_starts[0] <= self.received:
            first = heappop(self._early_starts)
            self.received = max(self.received, self._early.pop(first))
        self._unacknowledged += 1
        if had_gap or not is_new or self._unacknowledged >= 2 or Flags.PSH in segment.flags:
            self._acknowledge_now()
        elif self._ack_due is None:
            self._ack_due = now + ACK_DELAY

    def _close(self, segment: Segment) -> None:
        """Answer a FIN that has arrived after all data with an own one."""
        if Flags.FIN in segment.flags and self._fin_at == self.received:
            self.is_closed = True
            self._to_send.append(Flags.FIN | Flags.ACK)

    def _acknowledge_now(self) -> None:
        self._unacknowledged, self._ack_due = 0, None
        self._to_send.append(Flags.ACK)

    def poll_transmit(self, now: Time) -> Segment | None:
        """The next segment."""
        if not self._to_send:
            return None
        flags = self._to_send.popleft()
        expected = self._peer_first + 1 + self.received + self.is_closed & _MASK
        if Flags.SYN in flags:
            if self._is_ecn:
                flags |= Flags.ECE
            expected = self._peer_first + 1 & _MASK
            return Segment(self._first, expected, flags, 0xFFFF, syn_options(self._mss))
        if self._echoes:
            flags |= Flags.ECE
        own = self._first + 1 & _MASK
        return Segment(own, expected, flags, RECEIVE_WINDOW >> _WINDOW_SHIFT)

    def poll_timeout(self) -> Time | None:
        """When to call `handle_timeout`."""
        return self._ack_due

    def handle_timeout(self, now: Time) -> None:
        """Acknowledge what has waited long enough."""
        if self._ack_due is not None and self._ack_due <= now:
            self._acknowledge_now()


@dataclass(frozen=True, slots=True)
class Address:
    """One end of a connection, as in the headers of its frames."""

    mac: bytes
    ip: bytes
    port: int


def pack(
    segment: Segment,
    source: Address,
    target: Address,
    *,
    dscp: int = 0,
    vlan: int | None = None,
    priority: int = 0,
    identification: int = 0,
) -> Frame:
    """The Ethernet frame of a segment over IPv4, with both checksums."""
    size = _HEADER + len(segment.options)
    ports = source.port, target.port
    numbers = segment.sequence, segment.acknowledgement
    header = _TCP.pack(*ports, *numbers, size // 4 << 4, int(segment.flags), segment.window, 0, 0)
    body = header + segment.options + segment.payload
    pseudo = source.ip + target.ip + bytes((0, PROTOCOL)) + len(body).to_bytes(2)
    body = body[:16] + checksum(pseudo + body).to_bytes(2) + body[18:]
    ecn = 2 if segment.is_capable else 0
    start = struct.pack(
        "!BBHHHBBH", 0x45, dscp << 2 | ecn, 20 + len(body), identification, 0x4000, 64, PROTOCOL, 0
    )
    ip = start[:10] + checksum(start + source.ip + target.ip).to_bytes(2) + source.ip + target.ip
    tag = b"" if vlan is None else b"\x81\x00" + (priority << 13 | vlan).to_bytes(2)
    return (target.mac + source.mac + tag + b"\x08\x00" + ip + body).ljust(60, b"\0")


def unpack(frame: Frame) -> tuple[Segment, tuple[bytes, int], tuple[bytes, int]] | None:
    """A segment with the IP address and port of its sender and its receiver.

    `None` for what is no whole TCP segment over IPv4, or has a wrong checksum.
    """
    at = 18 if frame[12:14] == b"\x81\x00" else 14
    if frame[at - 2 : at] != b"\x08\x00" or len(frame) < at + 40 or frame[at] != 0x45:
        return None
    ip = frame[at : at + 20]
    total = int.from_bytes(ip[2:4])
    body = frame[at + 20 : at + total]
    if ip[9] != PROTOCOL or len(body) != total - 20 or len(body) < _HEADER or checksum(ip):
        return None
    pseudo = ip[12:20] + bytes((0, PROTOCOL)) + len(body).to_bytes(2)
    offset = body[12] >> 4 << 2
    if checksum(pseudo + body) or not _HEADER <= offset <= len(body):
        return None
    source, target, sequence, acknowledgement, _, flags, window, _, _ = _TCP.unpack_from(body)
    segment = Segment(
        sequence,
        acknowledgement,
        Flags(flags),
        window,
        body[_HEADER:offset],
        body[offset:],
        is_capable=bool(ip[1] & 3),
        is_marked=ip[1] & 3 == 3,
    )
    return segment, (ip[12:16], source), (ip[16:20], target)


def checksum(data: bytes) -> int:
    """The internet checksum (RFC 1071); 0 of data that holds its own."""
    if len(data) % 2:
        data += b"\0"
    # In one's complement a sum of 16-bit words is the number modulo 65535.
    rest = int.from_bytes(data) % 0xFFFF
    return 0 if not rest and any(data) else 0xFFFF - rest


def syn_options(mss: int) -> bytes:
    """Maximum segment size, a filler, and window scale."""
    return b"\x02\x04" + mss.to_bytes(2) + b"\x01\x03\x03" + bytes((_WINDOW_SHIFT,))


def window_shift(options: bytes) -> int:
    """The window scale among the options of a SYN; 0 without it."""
    at = 0
    while at < len(options) and options[at]:
        if options[at] == 1:
            at += 1
            continue
        size = options[at + 1] if at + 1 < len(options) else 0
        if size < 2:
            return 0
        if options[at] == 3 and size == 3 and at + 2 < len(options):
            return min(options[at + 2], 14)
        at += size
    return 0
