"""Handshakes before RDMA traffic: the queue pairs and first PSNs that two ends negotiate.

Two kinds of handshake are read. A connection manager sends REQ and REP as datagrams to
queue pair 1 (IBA 12). Test programs send one line of text each over a TCP connection:
`ibv_*_pingpong` of rdma-core, perftest (`ib_send_bw` and similar programs), and programs
that send JSON objects with `qpn` and `psn`.

A handshake has two parts, one from each end, in either order. A retransmitted part
changes nothing. Lines of text belong together by their order: the n-th line of one end
and the n-th of the other. So a TCP connection is ignored once a piece of it is missing.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar, cast

from ibwire.connections.cm_messages import Received
from ibwire.connections.tcp_handshakes import MTU_LINE, SHORTEST_LINE, Line, read_line
from ibwire.connections.tcp_segments import Segment, TcpEnd, segments
from ibwire.dissect import Columns
from ibwire_layers import cm
from ibwire_layers.opcodes import Service

PROTOCOLS = {
    "cm": "REQ and REP of a connection manager",
    "pingpong": "the lines that ibv_rc_pingpong and similar programs send over TCP",
    "perftest": "the lines that ib_send_bw and similar programs send over TCP",
    "json": "JSON objects with qpn and psn, sent over TCP",
}
"""Kinds of handshakes."""

HANDSHAKES = 1 << 14
"""Handshakes that are remembered; the one that was silent for longest is forgotten first."""
IWARP_ENDS = 4
"""Responders of iWARP connections that are named, or a few more."""
TCP_CONNECTIONS = 1 << 10
"""TCP connections that are followed."""
LONGEST_LINE = 1 << 12
"""Bytes of an incomplete line that are kept; no program sends longer lines."""
QUIET = 1 << 16
"""A TCP connection is ignored after this many bytes without a handshake line."""
FAR = 1 << 20
"""A sequence number that is so far away belongs to another connection with the same ports."""
HALF = 1 << 31
"""Half of all sequence numbers (RFC 9293, 3.4)."""


@dataclass(frozen=True, slots=True)
class Party:
    """One end of a handshake."""

    address: str
    """As from `ibwire.connections.flow.addresses`."""
    qpn: int
    psn: int | None = None
    """Of its first request."""
    max_reads: int | None = None
    """READs and atomics that it may have outstanding."""
    rnr_retries: int | None = None
    """Retries after an RNR NAK; 7 is unlimited."""


@dataclass(frozen=True, slots=True)
class Handshake:
    """A complete handshake: two queue pairs that belong together, and negotiated parameters."""

    one: Party
    """The active side, the client."""
    other: Party
    protocol: str
    """One of `PROTOCOLS`."""
    number: int
    """Of the packet that completed it."""
    time_ns: int
    service: Service | None = None
    """Requested by a connection manager; `None` if not captured."""
    mtu: int | None = None
    """Path MTU in bytes."""
    timeout: int | None = None
    """Local ACK timeout, as a code: 4.096 us x 2^n."""
    retries: int | None = None
    """Retries of both sides after a timeout."""
    flow_control: bool | None = None
    """Whether both sides have end-to-end flow control."""


@dataclass(frozen=True, slots=True)
class Disconnection:
    """A connection manager's message that ends or rejects a connection."""

    number: int
    time_ns: int
    src: str
    """Address of its sender."""
    dst: str
    src_qpn: int | None
    """`None` if it has no queue pair yet, or none was captured."""
    dst_qpn: int | None
    reason: str
    """As text."""


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of one end. Two are equal whatever their place in the capture."""

    protocol: str
    address: str
    qpn: int
    psn: int | None
    number: int = field(compare=False)
    time_ns: int = field(compare=False)
    comm_id: int | None = None
    transaction: int | None = None
    service: Service | None = None
    mtu: int | None = None
    depth: int | None = None
    """READs and atomics that it has outstanding at most."""
    resources: int | None = None
    """READs and atomics that it serves at once."""
    timeout: int | None = None
    retries: int | None = None
    rnr_retries: int | None = None
    flow_control: int | None = None

    @property
    def place(self) -> tuple[int, int]:
        """Greater for the later of two."""
        return self.time_ns, self.number


_Ends = tuple[TcpEnd, TcpEnd]
"""Both ends, the smaller first."""

_LineKey = tuple[_Ends, int, int, int | None]
"""Ends of a TCP connection, which of them sent a line, and its QPN and PSN."""

_Key = tuple[str, str, int] | tuple[_Ends, int]
"""Active side, passive side, the active side's communication ID; or ends, number of the line."""


@dataclass(slots=True)
class _OpenHandshake:
    parts: list[_Part | None] = field(default_factory=lambda: [None, None])
    """REQ and REP; or the lines of the smaller end and of the greater."""
    over: bool = False


@dataclass(slots=True)
class _Stream:
    """One direction of a TCP connection."""

    expected: int | None = None
    """Sequence number of the next byte."""
    tail: bytes = b""
    """The beginning of a line whose end has not arrived yet."""
    lines: int = 0
    """Handshake lines."""
    mtu: int | None = None
    broken: bool = False
    """A piece is missing, so that its further lines cannot be matched to lines of the other end."""


@dataclass(slots=True)
class _TcpConnection:
    """A TCP connection that is followed."""

    hash: int
    streams: tuple[_Stream, _Stream] = field(default_factory=lambda: (_Stream(), _Stream()))
    quiet: int = 0
    """Bytes since the last handshake line."""
    late: tuple[int, _Part] | None = None
    """Direction and contents of a line that answers one from before the capture."""


class Handshakes:
    """Finds the handshakes of a capture, a chunk at a time."""

    def __init__(self) -> None:
        self.disconnections: list[Disconnection] = []
        """In the newest chunk."""
        self.iwarp: dict[TcpEnd, None] = {}
        """The first responders of iWARP connections."""
        self._handshakes: OrderedDict[_Key, _OpenHandshake] = OrderedDict()
        self._tcp_connections: OrderedDict[_Ends, _TcpConnection] = OrderedDict()
        self._received_lines: OrderedDict[_LineKey, None] = OrderedDict()
        """Direction, QPN and PSN of lines: perftest sends the same ones many times."""
        self._begun: OrderedDict[int, None] = OrderedDict()
        """Hashes of TCP connections that were seen from their beginning."""

    def take(self, columns: Columns, received: Iterable[Received]) -> list[Handshake]:
        """The handshakes that the next chunk of the capture completes.

        received: its messages of connection managers.
        """
        self.disconnections = []
        found = [*self._read_cm(received), *self._read_tcp(columns)]
        return sorted(found, key=lambda each: each.number)

    def merge(self, later: Handshakes) -> list[Handshake]:
        """Continue with what was found in the following part of the same traffic.

        Returns the handshakes of which each part of the traffic has one end.
        """
        found: list[Handshake | None] = []
        for ends, connection in later._tcp_connections.items():
            if connection.late and ends in self._tcp_connections:
                role, late = connection.late
                found.append(self._put_after((ends, 0), role, late) if late.qpn else None)
                self._tcp_connections[ends].streams[role].lines += 1
        for key, pending in later._handshakes.items():
            both = None not in pending.parts
            for role, part in enumerate(pending.parts):
                handshake = self._put_after(key, role, part) if part else None
                found.append(None if both else handshake)
            if pending.over:
                self._handshakes.setdefault(key, _OpenHandshake()).over = True
                _bound(self._handshakes, key, HANDSHAKES)
        for ends, connection in later._tcp_connections.items():
            self._continue(ends, connection)
        for begun in later._begun:
            self._begun[begun] = None
            _bound(self._begun, begun, HANDSHAKES)
        for received in later._received_lines:
            self._received_lines[received] = None
            _bound(self._received_lines, received, HANDSHAKES)
        return [handshake for handshake in found if handshake]

    def _put(self, key: _Key, role: int, part: _Part) -> Handshake | None:
        """Note the part of one end; returns the handshake if it is the second part."""
        pending = self._handshakes.setdefault(key, _OpenHandshake())
        known = pending.parts[role]
        if known == part:
            return None
        if known is not None or pending.over:
            # The ID or the TCP port is reused, so the other part is not of this pending.
            pending = self._handshakes[key] = _OpenHandshake()
        pending.parts[role] = part
        _bound(self._handshakes, key, HANDSHAKES)
        one, other = pending.parts
        if one is None or other is None:
            return None
        return _from_cm(one, other) if part.protocol == "cm" else _from_lines(one, other)

    # Connection managers.

    def _read_cm(self, received: Iterable[Received]) -> Iterator[Handshake]:
        for each in received:
            read = _READERS.get(each.name)
            handshake = None if read is None else read(self, each)
            if handshake is not None:
                yield handshake

    def _request(self, received: Received) -> Handshake | None:
        message = received.message
        comm_id, qpn = message["local_comm_id"], message["local_qpn"]
        if comm_id is None or qpn is None:
            return None
        transport = message["transport_service_type"]
        if transport == cm.TransportType.EXTENDED:
            extended = message["extended_transport_type"] == cm.EXTENDED_XRC
            service = Service.XRC if extended else None
        else:
            service = _SERVICES.get(transport)
        part = _Part(
            protocol="cm",
            address=received.src,
            qpn=qpn,
            psn=message["starting_psn"],
            number=received.number,
            time_ns=received.time_ns,
            comm_id=comm_id,
            transaction=message.transaction,
            service=service,
            mtu=_MTUS.get(message["path_packet_payload_mtu"]),
            depth=message["initiator_depth"],
            resources=message["responder_resources"],
            timeout=message["primary_local_ack_timeout"],
            retries=message["retry_count"],
            rnr_retries=message["rnr_retry_count"],
            flow_control=message["end_to_end_flow_control"],
        )
        return self._put((received.src, received.dst, comm_id), 0, part)

    def _reply(self, received: Received) -> Handshake | None:
        message = received.message
        asked, qpn = message["remote_comm_id"], message["local_qpn"]
        if asked is None or qpn is None:
            return None
        part = _Part(
            protocol="cm",
            address=received.src,
            # The field of the RD EE context holds the target of an XRC connection.
            qpn=qpn or message["local_eecn"] or 0,
            psn=message["starting_psn"],
            number=received.number,
            time_ns=received.time_ns,
            comm_id=message["local_comm_id"],
            transaction=message.transaction,
            depth=message["initiator_depth"],
            resources=message["responder_resources"],
            rnr_retries=message["rnr_retry_count"],
            flow_control=message["end_to_end_flow_control"],
        )
        return self._put((received.dst, received.src, asked), 1, part)

    def _reject(self, received: Received) -> None:
        code = received.message["reason"]
        known = code in cm.RejectReason.__members__.values()
        name = cm.RejectReason(cast(int, code)).name if known else f"reason {code}"
        self._close(received, f"rejected: {name.lower().replace('_', ' ')}")

    def _disconnect(self, received: Received) -> None:
        self._close(received, "disconnected", received.message["remote_qpn"])

    def _disconnected(self, received: Received) -> None:
        self._close(received, "disconnected")

    def _close(self, received: Received, reason: str, dst_qpn: int | None = None) -> None:
        """Report once that a connection is over."""
        local, remote = received.message["local_comm_id"], received.message["remote_comm_id"]
        if local is None or remote is None:
            return
        key, role = self._handshake_of(received.src, received.dst, local, remote)
        pending = self._handshakes.setdefault(key, _OpenHandshake())
        if not pending.over:
            src, dst = pending.parts[role], pending.parts[1 - role]
            src_qpn = src.qpn if src else None
            dst_qpn = dst.qpn if dst else dst_qpn
            self.disconnections.append(
                Disconnection(
                    number=received.number,
                    time_ns=received.time_ns,
                    src=received.src,
                    dst=received.dst,
                    src_qpn=src_qpn,
                    dst_qpn=dst_qpn,
                    reason=reason,
                )
            )
        pending.over = True
        _bound(self._handshakes, key, HANDSHAKES)

    def _handshake_of(self, src: str, dst: str, local: int, remote: int) -> tuple[_Key, int]:
        """The handshake with these communication IDs, and which end the sender is."""
        for role, (active, passive, asked, answered) in enumerate(
            ((src, dst, local, remote), (dst, src, remote, local))
        ):
            key: _Key = active, passive, asked
            pending = self._handshakes.get(key)
            if pending is not None:
                reply = pending.parts[1]
                if reply is None or reply.comm_id in (answered, None):
                    return key, role
        return (dst, src, remote), 1

    # Programs that send text over TCP.

    def _read_tcp(self, columns: Columns) -> Iterator[Handshake]:
        found = segments(columns)
        if found is None:
            return
        if len(self.iwarp) < IWARP_ENDS:
            self.iwarp |= dict.fromkeys(found.iwarp_responders()[:IWARP_ENDS])
        for begun in found.begun():
            self._begun[begun] = None
            _bound(self._begun, begun, HANDSHAKES)
        followed = [each.hash for each in self._tcp_connections.values()]
        for segment in found.of(followed):
            src, dst = segment.src, segment.dst
            ends = (src, dst) if src < dst else (dst, src)
            connection = self._tcp_connections.get(ends)
            if segment.is_first:
                self._tcp_connections.pop(ends, None)
                continue
            if connection is None:
                if not segment.opens:
                    continue
                connection = self._tcp_connections[ends] = _TcpConnection(segment.hash)
            _bound(self._tcp_connections, ends, TCP_CONNECTIONS)
            yield from self._read_segment(ends, connection, int(src != ends[0]), segment)

    def _read_segment(
        self, ends: _Ends, connection: _TcpConnection, role: int, segment: Segment
    ) -> Iterator[Handshake]:
        """Take one segment of one end."""
        stream = connection.streams[role]
        data = segment.data
        if stream.expected is not None:
            ahead = (segment.sequence - stream.expected + HALF) % (2 * HALF) - HALF
            if abs(ahead) > FAR:
                del self._tcp_connections[ends]
                if segment.opens:
                    fresh = self._tcp_connections[ends] = _TcpConnection(segment.hash)
                    yield from self._read_segment(ends, fresh, role, segment)
                return
            if ahead + segment.size <= 0:
                return
            if ahead > 0:
                stream.broken = True
                stream.tail = b""
            elif ahead < 0:
                data = data[-ahead:]
        stream.expected = (segment.sequence + segment.size) % (2 * HALF)
        *lines, tail = (stream.tail + data).replace(b"\0", b"\n").split(b"\n")
        hidden = segment.size - len(segment.data)
        if hidden > 0:
            lines.append(tail)
            tail = b""
        stream.tail = tail if len(tail) <= LONGEST_LINE else b""
        connection.quiet += segment.size
        for left, line in enumerate(lines, 1 - len(lines)):
            for part in read_line(line, hidden > 0 and left == 0):
                handshake = self._count(ends, connection, role, segment, part)
                if handshake is not None:
                    yield handshake
            if stream.lines == 0 and re.fullmatch(MTU_LINE, line):
                stream.mtu = _MTUS[int(line[-1:])]
        if hidden >= SHORTEST_LINE:
            stream.broken = True
        if connection.quiet > QUIET:
            self._tcp_connections.pop(ends, None)

    def _count(
        self, ends: _Ends, connection: _TcpConnection, role: int, segment: Segment, line: Line
    ) -> Handshake | None:
        """Note a line; returns the handshake if it completes one."""
        connection.quiet = 0
        stream = connection.streams[role]
        if self._is_late(connection, segment):
            connection.late = role, _part_of(line, segment, stream)
            return None
        again = line.qpn > 0 and self._is_again((ends, role, line.qpn, line.psn))
        if stream.broken or (again and stream.lines):
            return None
        stream.lines += 1
        handshake = None
        if line.qpn:
            part = _part_of(line, segment, stream)
            handshake = self._put((ends, stream.lines - 1), role, part)
        if segment.hash not in self._begun:
            self._check_turns(ends, connection)
        return handshake

    def _is_again(self, line: _LineKey) -> bool:
        """Whether a line was received before; it is remembered."""
        is_again = line in self._received_lines
        if not is_again:
            self._received_lines[line] = None
        _bound(self._received_lines, line, HANDSHAKES)
        return is_again

    def _check_turns(self, ends: _Ends, connection: _TcpConnection) -> None:
        """Ignore a TCP connection of unknown beginning whose ends do not take turns.

        The first captured line of an end that sends many at once may be any of them.
        """
        first, last = sorted(stream.lines for stream in connection.streams)
        if last - first > 1:
            for line in range(first, last):
                self._handshakes.pop((ends, line), None)
            for stream in connection.streams:
                stream.broken = True

    def _is_late(self, connection: _TcpConnection, segment: Segment) -> bool:
        """Whether its line, the first captured, may answer one from before the capture.

        The client sends first, and has the greater port, because the system chose it.
        """
        one, other = connection.streams
        if connection.late or one.lines or other.lines:
            return False
        return segment.hash not in self._begun and segment.src.port < segment.dst.port

    def _put_after(self, key: _Key, role: int, part: _Part) -> Handshake | None:
        """Note the part of one end that the following part of the traffic has under this key."""
        if len(key) == 2:
            ends, line = key
            before = self._tcp_connections.get(ends)
            if before is not None:
                stream = before.streams[role]
                if stream.broken or stream.tail:
                    return None  # the number of lines before it is not known
                key = ends, line + stream.lines
        return self._put(key, role, part)

    def _continue(self, ends: _Ends, later: _TcpConnection) -> None:
        """Continue a TCP connection from its state at the end of the following part."""
        before = self._tcp_connections.get(ends)
        if before is not None:
            for ours, theirs in zip(before.streams, later.streams, strict=True):
                theirs.lines += ours.lines
                theirs.mtu = ours.mtu or theirs.mtu
                if theirs.expected is None:
                    theirs.expected, theirs.tail = ours.expected, ours.tail
                elif ours.tail:
                    theirs.broken = True
                theirs.broken |= ours.broken
        self._tcp_connections[ends] = later
        _bound(self._tcp_connections, ends, TCP_CONNECTIONS)


K = TypeVar("K")
V = TypeVar("V")


def _bound(table: OrderedDict[K, V], key: K, limit: int) -> None:
    """Make this entry the newest, and forget the oldest if there are too many."""
    table.move_to_end(key)
    if len(table) > limit:
        table.popitem(last=False)


def _from_cm(req: _Part, rep: _Part) -> Handshake:
    """The handshake of a REQ and its REP.

    The starting PSN, the RNR retries and the limit on READs in a message apply to the
    other side (Linux cm_req_handler, cm_rep_handler; the PSNs as in cm-rping.pcap).
    Retries and timeout are in the REQ for both.
    """
    last = max(req, rep, key=lambda part: part.place)
    controlled = (req.flow_control, rep.flow_control)
    return Handshake(
        one=_party(req, rep),
        other=_party(rep, req),
        protocol="cm",
        number=last.number,
        time_ns=last.time_ns,
        service=req.service,
        mtu=req.mtu,
        timeout=req.timeout,
        retries=req.retries,
        flow_control=None if None in controlled else all(controlled),
    )


def _party(own: _Part, peer: _Part) -> Party:
    """One end of a handshake of connection managers, from its message and its peer's."""
    return Party(
        own.address,
        own.qpn,
        psn=peer.psn,
        max_reads=_least(own.depth, peer.resources),
        rnr_retries=peer.rnr_retries,
    )


def _part_of(line: Line, segment: Segment, stream: _Stream) -> _Part:
    """What a line says of its sender."""
    return _Part(
        protocol=line.protocol,
        address=line.address or segment.src.address,
        qpn=line.qpn,
        psn=line.psn,
        number=segment.number,
        time_ns=segment.time_ns,
        mtu=stream.mtu,
        # Its value becomes `max_rd_atomic` of the other end (perftest ctx_modify_qp_to_rts).
        resources=line.reads,
    )


def _from_lines(one: _Part, other: _Part) -> Handshake:
    """The handshake of two lines of text."""
    one, other = sorted((one, other), key=lambda part: part.place)
    both = one.mtu is not None and other.mtu is not None
    return Handshake(
        one=Party(one.address, one.qpn, psn=one.psn, max_reads=other.resources),
        other=Party(other.address, other.qpn, psn=other.psn, max_reads=one.resources),
        protocol=one.protocol,
        number=other.number,
        time_ns=other.time_ns,
        # Each names its largest MTU (perftest check_mtu).
        mtu=_least(one.mtu, other.mtu) if both else None,
    )


def _least(*values: int | None) -> int | None:
    return min((value for value in values if value is not None), default=None)


_READERS: dict[str, Callable[[Handshakes, Received], Handshake | None]] = {
    "REQ": Handshakes._request,
    "REP": Handshakes._reply,
    "REJ": Handshakes._reject,
    "DREQ": Handshakes._disconnect,
    "DREP": Handshakes._disconnected,
}

_SERVICES: dict[int | None, Service] = {
    cm.TransportType.RC: Service.RC,
    cm.TransportType.UC: Service.UC,
    cm.TransportType.RD: Service.RD,
}

_MTUS: dict[int | None, int] = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}
"""Path MTU in bytes by its code (`ibwire_layers.attributes.MTUCode`)."""
