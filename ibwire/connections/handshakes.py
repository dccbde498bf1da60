"""What two ends told each other before RDMA traffic began: their queue pairs and first PSNs.

Two kinds of exchange are read. A connection manager sends REQ and REP as
datagrams to queue pair 1 (IBA 12). Test programs send a line of text each over a
TCP connection of their own: `ibv_*_pingpong` of rdma-core, perftest
(`ib_send_bw` and its like), and programs that send JSON objects with `qpn` and
`psn`.

An exchange has two halves, and both make an agreement, whichever is seen first. A
half that is sent again says nothing new. Halves of text belong together by their
order: the n-th line of one end and the n-th of the other, which is why nothing is
believed of a TCP connection any more once a piece of it is missing.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar, cast

import numpy as np

from ibwire.connections.flow import addresses
from ibwire.connections.packets import BAD
from ibwire.connections.tcp_handshakes import MTU_LINE, SHORTEST_LINE, Line, read_line
from ibwire.connections.tcp_segments import End, Segment, segments
from ibwire.dissect import Columns
from ibwire_layers import cm
from ibwire_layers.mad import MAD, MAD_SIZE, MgmtClass
from ibwire_layers.opcodes import OpCode, Service
from ibwire_layers.schema import Header

HOW = {
    "cm": "REQ and REP of a connection manager",
    "pingpong": "the lines that the programs of the kind of ibv_rc_pingpong send over TCP",
    "perftest": "the lines that ib_send_bw and its like send over TCP",
    "json": "JSON objects with qpn and psn, sent over TCP",
}
"""Where an agreement was found."""

EXCHANGES = 1 << 14
"""Exchanges that are remembered; the one that was quiet for longest is forgotten first."""
CONVERSATIONS = 1 << 10
"""TCP connections that are listened to."""
LONGEST_LINE = 1 << 12
"""Bytes of a line that is waited for; no program sends longer ones."""
QUIET = 1 << 16
"""Bytes of a TCP connection without a line of the kind, after which nobody listens to it."""
FAR = 1 << 20
"""A sequence number that is so far away belongs to another connection with the same ports."""
HALF = 1 << 31
"""Half of all sequence numbers (RFC 9293, 3.4)."""


@dataclass(frozen=True, slots=True)
class Side:
    """One end of an agreement."""

    address: str
    """As `ibwire.connections.flow.addresses` has it."""
    qpn: int
    psn: int | None = None
    """Of its first request."""
    max_reads: int | None = None
    """READs and atomics that it may have outstanding."""
    rnr_retries: int | None = None
    """How often it tries again after an RNR NAK; 7 for ever."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Two queue pairs that belong together, and what else was said."""

    one: Side
    """The end that asked: the active side, the client."""
    other: Side
    how: str
    """One of `HOW`."""
    number: int
    """Of the packet that made it complete."""
    time_ns: int
    service: Service | None = None
    """What a connection manager asked for; `None` where it was not said."""
    mtu: int | None = None
    """Path MTU in bytes."""
    timeout: int | None = None
    """Local ACK timeout, as a code: 4.096 us x 2^n."""
    retries: int | None = None
    """How often both sides try again after a timeout."""
    flow_control: bool | None = None
    """Whether both sides said that they do end-to-end flow control."""


@dataclass(frozen=True, slots=True)
class Closing:
    """A connection manager's word that a connection is over, or comes to nothing."""

    number: int
    time_ns: int
    src: str
    """Address of the one who says so."""
    dst: str
    src_qpn: int | None
    """`None` where it has no queue pair yet, or it was not seen to say which."""
    dst_qpn: int | None
    reason: str
    """In words."""


@dataclass(frozen=True, slots=True)
class _Said:
    """One half of an exchange. Where it stands in the capture makes no difference to it."""

    how: str
    address: str
    qpn: int
    psn: int | None
    number: int = field(compare=False)
    time_ns: int = field(compare=False)
    comm_id: int | None = None
    service: Service | None = None
    mtu: int | None = None
    depth: int | None = None
    """READs and atomics that it will have outstanding at most."""
    resources: int | None = None
    """READs and atomics that it serves at once."""
    timeout: int | None = None
    retries: int | None = None
    rnr_retries: int | None = None
    flow_control: int | None = None

    @property
    def place(self) -> tuple[int, int]:
        """What is greater for the later of two."""
        return self.time_ns, self.number


_Ends = tuple[End, End]
"""Both, the smaller first."""

_Key = tuple[str, str, int] | tuple[_Ends, int]
"""Active side, passive side, the active side's communication ID; or ends, number of the line."""


@dataclass(slots=True)
class _Exchange:
    halves: list[_Said | None] = field(default_factory=lambda: [None, None])
    """REQ and REP; or the lines of the smaller end and of the greater."""
    over: bool = False


@dataclass(slots=True)
class _Stream:
    """One direction of a TCP connection."""

    expected: int | None = None
    """Sequence number of the next byte."""
    tail: bytes = b""
    """The beginning of a line whose end has not come yet."""
    lines: int = 0
    """Lines that count."""
    mtu: int | None = None
    broken: bool = False
    """A piece is missing, so that nobody knows which lines its further lines answer."""


@dataclass(slots=True)
class _Conversation:
    """A TCP connection that is listened to."""

    hash: int
    streams: tuple[_Stream, _Stream] = field(default_factory=lambda: (_Stream(), _Stream()))
    quiet: int = 0
    """Bytes since the last line that counts."""
    late: tuple[int, _Said] | None = None
    """Direction and contents of a line that answers one from before the capture."""


class Agreements:
    """Listens to a capture, which goes in a chunk at a time, for what connections agree on."""

    def __init__(self) -> None:
        self.closings: list[Closing] = []
        """Those in the chunk that was taken last."""
        self._exchanges: OrderedDict[_Key, _Exchange] = OrderedDict()
        self._conversations: OrderedDict[_Ends, _Conversation] = OrderedDict()
        self._heard: OrderedDict[tuple[_Ends, int, int, int | None], None] = OrderedDict()
        """Direction, QPN and PSN of lines: perftest sends the same ones many times."""
        self._begun: OrderedDict[int, None] = OrderedDict()
        """Hashes of TCP connections that were seen from their beginning."""

    def take(self, columns: Columns) -> list[Agreement]:
        """The agreements that the next chunk of the capture makes complete."""
        self.closings = []
        found = [*self._listen_to_managers(columns), *self._listen_to_programs(columns)]
        return sorted(found, key=lambda each: each.number)

    def merge(self, later: Agreements) -> list[Agreement]:
        """Take what was learnt of the following part of the same traffic.

        Returns the agreements of which each part has one half.
        """
        found: list[Agreement | None] = []
        for ends, conversation in later._conversations.items():
            if conversation.late and ends in self._conversations:
                role, late = conversation.late
                found.append(self._put_after((ends, 0), role, late) if late.qpn else None)
                self._conversations[ends].streams[role].lines += 1
        for key, exchange in later._exchanges.items():
            both = None not in exchange.halves
            for role, said in enumerate(exchange.halves):
                agreement = self._put_after(key, role, said) if said else None
                found.append(None if both else agreement)
            if exchange.over:
                self._exchanges.setdefault(key, _Exchange()).over = True
                _bound(self._exchanges, key, EXCHANGES)
        for ends, conversation in later._conversations.items():
            self._continue(ends, conversation)
        for begun in later._begun:
            self._begun[begun] = None
            _bound(self._begun, begun, EXCHANGES)
        for heard in later._heard:
            self._heard[heard] = None
            _bound(self._heard, heard, EXCHANGES)
        return [agreement for agreement in found if agreement]

    def _put(self, key: _Key, role: int, said: _Said) -> Agreement | None:
        """Note a half; returns the agreement if it is the second one."""
        exchange = self._exchanges.setdefault(key, _Exchange())
        known = exchange.halves[role]
        if known == said:
            return None
        if known is not None or exchange.over:
            # The ID or the TCP port is in use again, so the other half is not of this exchange.
            exchange = self._exchanges[key] = _Exchange()
        exchange.halves[role] = said
        _bound(self._exchanges, key, EXCHANGES)
        one, other = exchange.halves
        if one is None or other is None:
            return None
        return _managed(one, other) if said.how == "cm" else _told(one, other)

    # Connection managers.

    def _listen_to_managers(self, columns: Columns) -> Iterator[Agreement]:
        for row, at, end in _mads(columns):
            mad = columns.frames.data[at:end].tobytes()
            kind, listen = _MESSAGES.get(int.from_bytes(mad[16:18]), (None, None))
            if kind is not None and listen is not None:
                heard = _Heard(columns, row, _Message(kind, mad))
                agreement = listen(self, heard)
                if agreement is not None:
                    yield agreement

    def _request(self, heard: _Heard) -> Agreement | None:
        message = heard.message
        comm_id, qpn = message["local_comm_id"], message["local_qpn"]
        if comm_id is None or qpn is None:
            return None
        transport = message["transport_service_type"]
        if transport == cm.TransportType.EXTENDED:
            extended = message["extended_transport_type"] == cm.EXTENDED_XRC
            service = Service.XRC if extended else None
        else:
            service = _SERVICES.get(transport)
        said = _Said(
            *("cm", heard.src, qpn, message["starting_psn"], heard.number, heard.time_ns),
            comm_id=comm_id,
            service=service,
            mtu=_MTUS.get(message["path_packet_payload_mtu"]),
            depth=message["initiator_depth"],
            resources=message["responder_resources"],
            timeout=message["primary_local_ack_timeout"],
            retries=message["retry_count"],
            rnr_retries=message["rnr_retry_count"],
            flow_control=message["end_to_end_flow_control"],
        )
        return self._put((heard.src, heard.dst, comm_id), 0, said)

    def _reply(self, heard: _Heard) -> Agreement | None:
        message = heard.message
        asked, qpn = message["remote_comm_id"], message["local_qpn"]
        if asked is None or qpn is None:
            return None
        said = _Said(
            # The target of an XRC connection stands where the EE context of RD does.
            *("cm", heard.src, qpn or message["local_eecn"] or 0, message["starting_psn"]),
            *(heard.number, heard.time_ns),
            comm_id=message["local_comm_id"],
            depth=message["initiator_depth"],
            resources=message["responder_resources"],
            rnr_retries=message["rnr_retry_count"],
            flow_control=message["end_to_end_flow_control"],
        )
        return self._put((heard.dst, heard.src, asked), 1, said)

    def _reject(self, heard: _Heard) -> None:
        code = heard.message["reason"]
        known = code in cm.RejectReason.__members__.values()
        name = cm.RejectReason(cast(int, code)).name if known else f"reason {code}"
        self._close(heard, f"rejected: {name.lower().replace('_', ' ')}")

    def _disconnect(self, heard: _Heard) -> None:
        self._close(heard, "disconnected", heard.message["remote_qpn"])

    def _disconnected(self, heard: _Heard) -> None:
        self._close(heard, "disconnected")

    def _close(self, heard: _Heard, reason: str, dst_qpn: int | None = None) -> None:
        """Say once of an exchange that it is over."""
        local, remote = heard.message["local_comm_id"], heard.message["remote_comm_id"]
        if local is None or remote is None:
            return
        key, role = self._exchange_of(heard.src, heard.dst, local, remote)
        exchange = self._exchanges.setdefault(key, _Exchange())
        if not exchange.over:
            src, dst = exchange.halves[role], exchange.halves[1 - role]
            src_qpn = src.qpn if src else None
            dst_qpn = dst.qpn if dst else dst_qpn
            self.closings.append(
                Closing(
                    *(heard.number, heard.time_ns, heard.src, heard.dst),
                    *(src_qpn, dst_qpn, reason),
                )
            )
        exchange.over = True
        _bound(self._exchanges, key, EXCHANGES)

    def _exchange_of(self, src: str, dst: str, local: int, remote: int) -> tuple[_Key, int]:
        """The exchange with these communication IDs, and the sender's part in it."""
        for role, (active, passive, asked, answered) in enumerate(
            ((src, dst, local, remote), (dst, src, remote, local))
        ):
            key: _Key = active, passive, asked
            exchange = self._exchanges.get(key)
            if exchange is not None:
                reply = exchange.halves[1]
                if reply is None or reply.comm_id in (answered, None):
                    return key, role
        return (dst, src, remote), 1

    # Programs that send text over TCP.

    def _listen_to_programs(self, columns: Columns) -> Iterator[Agreement]:
        found = segments(columns)
        if found is None:
            return
        for begun in found.begun():
            self._begun[begun] = None
            _bound(self._begun, begun, EXCHANGES)
        listened = [each.hash for each in self._conversations.values()]
        for segment in found.of(listened):
            src, dst = segment.src, segment.dst
            ends = (src, dst) if src < dst else (dst, src)
            conversation = self._conversations.get(ends)
            if segment.is_first:
                self._conversations.pop(ends, None)
                continue
            if conversation is None:
                if not segment.opens:
                    continue
                conversation = self._conversations[ends] = _Conversation(segment.hash)
            _bound(self._conversations, ends, CONVERSATIONS)
            yield from self._hear(ends, conversation, int(src != ends[0]), segment)

    def _hear(
        self, ends: _Ends, conversation: _Conversation, role: int, segment: Segment
    ) -> Iterator[Agreement]:
        """Take what one end says in one segment."""
        stream = conversation.streams[role]
        data = segment.data
        if stream.expected is not None:
            ahead = (segment.sequence - stream.expected + HALF) % (2 * HALF) - HALF
            if abs(ahead) > FAR:
                del self._conversations[ends]
                if segment.opens:
                    fresh = self._conversations[ends] = _Conversation(segment.hash)
                    yield from self._hear(ends, fresh, role, segment)
                return
            if ahead + segment.size <= 0:
                return
            if ahead > 0:
                stream.broken = True
                stream.tail = b""
            elif ahead < 0:
                data = data[-ahead:]
        stream.expected = (segment.sequence + segment.size) % (2 * HALF)
        *lines, tail = re.split(rb"[\0\n]", stream.tail + data)
        hidden = segment.size - len(segment.data)
        if hidden > 0:
            lines.append(tail)
            tail = b""
        stream.tail = tail if len(tail) <= LONGEST_LINE else b""
        conversation.quiet += segment.size
        for left, line in enumerate(lines, 1 - len(lines)):
            for said in read_line(line, cut=hidden > 0 and left == 0):
                agreement = self._count(ends, conversation, role, segment, said)
                if agreement is not None:
                    yield agreement
            if stream.lines == 0 and MTU_LINE.fullmatch(line):
                stream.mtu = _MTUS[int(line[-1:])]
        if hidden >= SHORTEST_LINE:
            stream.broken = True
        if conversation.quiet > QUIET:
            self._conversations.pop(ends, None)

    def _count(
        self, ends: _Ends, conversation: _Conversation, role: int, segment: Segment, line: Line
    ) -> Agreement | None:
        """Note a line; returns the agreement if it answers one."""
        conversation.quiet = 0
        stream = conversation.streams[role]
        said = _Said(
            *(line.how, line.address or segment.src.address, line.qpn, line.psn),
            *(segment.number, segment.time_ns),
            mtu=stream.mtu,
            # Its value becomes `max_rd_atomic` of the other end (perftest ctx_modify_qp_to_rts).
            resources=line.reads,
        )
        if self._is_late(conversation, segment):
            conversation.late = role, said
            return None
        heard = ends, role, line.qpn, line.psn
        again = heard in self._heard and line.qpn > 0
        self._heard[heard] = None
        _bound(self._heard, heard, EXCHANGES)
        if stream.broken or (again and stream.lines):
            return None
        stream.lines += 1
        agreement = self._put((ends, stream.lines - 1), role, said) if line.qpn else None
        if segment.hash not in self._begun:
            self._check_turns(ends, conversation)
        return agreement

    def _check_turns(self, ends: _Ends, conversation: _Conversation) -> None:
        """Believe no more of a conversation of unknown beginning where the ends take no turns.

        The first line seen of an end that sends many at once may be any of them.
        """
        first, last = sorted(stream.lines for stream in conversation.streams)
        if last - first > 1:
            for line in range(first, last):
                self._exchanges.pop((ends, line), None)
            for stream in conversation.streams:
                stream.broken = True

    def _is_late(self, conversation: _Conversation, segment: Segment) -> bool:
        """Whether its line, the first one seen, may well answer one from before the capture.

        The client speaks first, and has the greater port: it did not choose it.
        """
        if conversation.late or any(stream.lines for stream in conversation.streams):
            return False
        return segment.hash not in self._begun and segment.src.port < segment.dst.port

    def _put_after(self, key: _Key, role: int, said: _Said) -> Agreement | None:
        """Note a half that the following part has under this key."""
        if len(key) == 2:
            ends, line = key
            before = self._conversations.get(ends)
            if before is not None:
                stream = before.streams[role]
                if stream.broken or stream.tail:
                    return None  # nobody knows how many lines were before it
                key = ends, line + stream.lines
        return self._put(key, role, said)

    def _continue(self, ends: _Ends, later: _Conversation) -> None:
        """Go on with a conversation where the following part has left it."""
        before = self._conversations.get(ends)
        if before is not None:
            for ours, theirs in zip(before.streams, later.streams, strict=True):
                theirs.lines += ours.lines
                theirs.mtu = ours.mtu or theirs.mtu
                if theirs.expected is None:
                    theirs.expected, theirs.tail = ours.expected, ours.tail
                elif ours.tail:
                    theirs.broken = True
                theirs.broken |= ours.broken
        self._conversations[ends] = later
        _bound(self._conversations, ends, CONVERSATIONS)


K = TypeVar("K")
V = TypeVar("V")


def _bound(table: OrderedDict[K, V], key: K, limit: int) -> None:
    """Make this entry the youngest, and forget the oldest if there are too many."""
    table.move_to_end(key)
    if len(table) > limit:
        table.popitem(last=False)


def _managed(req: _Said, rep: _Said) -> Agreement:
    """What a REQ and its REP agree on.

    A starting PSN, a number of RNR retries, and a limit on READs are what the sender of
    the message asks of the other side (Linux cm_req_handler, cm_rep_handler; the PSNs as
    cm-rping.pcap has them). Retries and timeout stand in the REQ for both.
    """
    last = max(req, rep, key=lambda said: said.place)
    controlled = (req.flow_control, rep.flow_control)
    return Agreement(
        Side(req.address, req.qpn, rep.psn, _least(req.depth, rep.resources), rep.rnr_retries),
        Side(rep.address, rep.qpn, req.psn, _least(rep.depth, req.resources), req.rnr_retries),
        *("cm", last.number, last.time_ns),
        service=req.service,
        mtu=req.mtu,
        timeout=req.timeout,
        retries=req.retries,
        flow_control=None if None in controlled else all(controlled),
    )


def _told(one: _Said, other: _Said) -> Agreement:
    """What two lines of text agree on."""
    one, other = sorted((one, other), key=lambda said: said.place)
    both = one.mtu is not None and other.mtu is not None
    return Agreement(
        Side(one.address, one.qpn, one.psn, other.resources),
        Side(other.address, other.qpn, other.psn, one.resources),
        *(one.how, other.number, other.time_ns),
        # Each names the greatest that it can (perftest check_mtu).
        mtu=_least(one.mtu, other.mtu) if both else None,
    )


def _least(*values: int | None) -> int | None:
    return min((value for value in values if value is not None), default=None)


# Datagrams to queue pair 1.


class _Message:
    """A message of the connection manager, of which the end may not have been captured."""

    def __init__(self, kind: type[Header], mad: bytes) -> None:
        self._message = kind.unpack(mad.ljust(MAD_SIZE, b"\0"), MAD.SIZE)
        self._bits = 8 * (len(mad) - MAD.SIZE)

    def __getitem__(self, name: str) -> int | None:
        """The value of a field that is a number, `None` if it was cut off."""
        place = next(each for each in self._message.FIELDS if each.name == name)
        if place.offset + place.size > self._bits:
            return None
        return cast(int, getattr(self._message, name))


class _Heard:
    """A message, and where it was."""

    def __init__(self, columns: Columns, row: int, message: _Message) -> None:
        batch = columns.frames.batch
        self.src, self.dst = addresses(columns, row)
        self.number = row + batch.first_number
        self.time_ns = int(batch.time_ns[row])
        self.message = message


_MESSAGES: dict[int, tuple[type[Header], Callable[[Agreements, _Heard], Agreement | None]]] = {
    cm.CMAttribute.REQ: (cm.REQ, Agreements._request),
    cm.CMAttribute.REP: (cm.REP, Agreements._reply),
    cm.CMAttribute.REJ: (cm.REJ, Agreements._reject),
    cm.CMAttribute.DREQ: (cm.DREQ, Agreements._disconnect),
    cm.CMAttribute.DREP: (cm.DREP, Agreements._disconnected),
}

_SERVICES: dict[int | None, Service] = {
    cm.TransportType.RC: Service.RC,
    cm.TransportType.UC: Service.UC,
    cm.TransportType.RD: Service.RD,
}

_MTUS: dict[int | None, int] = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}
"""Path MTU in bytes by its code (`ibwire_layers.attributes.MTUCode`)."""


def _mads(columns: Columns) -> Iterator[tuple[int, int, int]]:
    """Rows with a message of the connection manager, and where it begins and ends."""
    frames = columns.frames
    rows = np.flatnonzero(frames.opcode == OpCode.UD_SEND_ONLY)
    if not len(rows):
        return
    rows = rows[columns["bth.destqp"][rows] == 1]
    if not len(rows):
        return
    at = frames.payload[rows]
    rows, at = rows[at >= 0], at[at >= 0]
    end = np.minimum(np.minimum(frames.payload_end, frames.limit)[rows], at + MAD_SIZE)
    good = end - at > MAD.SIZE
    good &= frames.data[np.where(good, at + 1, 0)] == MgmtClass.COMM_MGT
    if good.any():
        good &= columns["icrc.status"][rows] != BAD
    yield from zip(rows[good].tolist(), at[good].tolist(), end[good].tolist(), strict=True)
