"""What a capture says of connections: packets, and which requests and responses belong together.

A packet names only the queue pair it is for, so the two directions of a connection
have to be paired. A connection manager's exchange says which queue pairs belong
together; without one the first response does, by the PSN of a request that waits for
an answer, and where several fit by the UDP source port, which many senders choose the
same in both directions.

What is kept is bounded: packets are handed on at once, and of connections the one
that was quiet for longest is given up when there are too many.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ibwire.capture import open_capture
from ibwire.capture.stream import Target
from ibwire.rc.packet import TransportPacket, decode
from ibwire.rc.path import Arrival, Arrivals, icrc_fits
from ibwire_layers import cm
from ibwire_layers.mad import MAD, MgmtClass
from ibwire_layers.opcodes import Service
from ibwire_layers.packet import IBRoute
from ibwire_layers.psn import MASK, distance

Address = tuple[int, int]
"""GID and, on native InfiniBand, LID."""

Key = tuple[Address, Address, int]
"""Sender, receiver and destination QPN: what every packet says of its flow."""


@dataclass(slots=True)
class RecordedPacket:
    """One packet of a capture that a queue pair would have looked at."""

    number: int
    time_ns: int
    packet: TransportPacket
    arrival: Arrival
    frame: bytes
    """Empty unless `RecordedPackets` was asked for frames."""
    link_type: int
    is_apart: bool = False
    """Whether it is from another capture than its answers, so that numbers tell no order."""

    @property
    def size(self) -> int:
        """Bytes of memory, about."""
        return len(self.packet.payload) + len(self.frame) + 1024

    @property
    def key(self) -> Key:
        """The flow it belongs to."""
        source, destination = ends(self.arrival)
        return source, destination, self.packet.dest_qp


class RecordedPackets:
    """The RC packets of a capture and the datagrams to its connection managers, in order.

    What a device would drop before any queue pair saw it is only counted.
    """

    RECENT = 4096
    """Packets among which copies on other interfaces are looked for."""

    def __init__(
        self,
        source: Target,
        *,
        apart: bool = False,
        frames: bool = False,
        interface: int | None = None,
    ) -> None:
        """`frames`: whether the frames are kept beside their packets. `interface`: only its
        packets, by its number in the file, counted from 0."""
        self._source = source
        self._interface = interface
        self._recent: OrderedDict[bytes, int] = OrderedDict()
        self.copies = 0
        """Packets that another interface has shown as well."""
        self._apart = apart
        self._frames = frames
        self.skipped: Counter[str] = Counter()
        """Frames that were left out, by reason: `bad_icrc`, `malformed`, `other`."""

    def __iter__(self) -> Iterator[RecordedPacket]:
        """Raises `CaptureError` at damage, after everything before it."""
        arrivals: dict[int, Arrivals] = {}
        with open_capture(self._source) as reader:
            for batch in reader.batches():
                data = batch.data.data
                rows = zip(
                    batch.offsets.tolist(),
                    batch.cap_len.tolist(),
                    batch.time_ns.tolist(),
                    batch.link_type.tolist(),
                    batch.interface.tolist(),
                    strict=True,
                )
                for number, (start, size, time_ns, link_type, interface) in enumerate(
                    rows, batch.first_number
                ):
                    if self._interface is not None and interface != self._interface:
                        continue
                    frame = bytes(data[start : start + size])
                    known = arrivals.get(link_type)
                    if known is None:
                        known = arrivals[link_type] = Arrivals(link_type)
                    arrival = known.read(frame)
                    packet = self._take(frame, arrival)
                    if packet is not None and arrival is not None:
                        packet.arrival = arrival
                        self._look_for_copy(frame, arrival, interface)
                        if not self._frames:
                            frame = b""
                        yield RecordedPacket(
                            number, time_ns, packet, arrival, frame, link_type, self._apart
                        )

    def _take(self, frame: bytes, arrival: Arrival | None) -> TransportPacket | None:
        if arrival is None:
            self.skipped["other"] += 1
            return None
        if not icrc_fits(frame, arrival):
            self.skipped["bad_icrc"] += 1
            return None
        packet = decode(frame, arrival.size, arrival.end - 4)
        if packet is None:
            self.skipped["malformed"] += 1
        elif packet.form.service is Service.RC or (
            packet.form.service is Service.UD and packet.dest_qp == 1
        ):
            return packet
        else:
            self.skipped["other"] += 1
        return None

    def _look_for_copy(self, frame: bytes, arrival: Arrival, interface: int) -> None:
        """Count a packet that was on another interface just before.

        A BTH and an ICRC tell packets apart well enough, and no hop changes them.
        """
        recent = self._recent
        contents = frame[arrival.size : arrival.size + 12] + frame[arrival.end - 4 : arrival.end]
        if recent.setdefault(contents, interface) != interface:
            self.copies += 1
        elif len(recent) > self.RECENT:
            recent.popitem(last=False)


def ends(arrival: Arrival) -> tuple[Address, Address]:
    """Sender and receiver of a packet."""
    route = arrival.route
    if isinstance(route, IBRoute):
        return (arrival.source, route.lrh.slid), (arrival.destination, route.lrh.dlid)
    return (arrival.source, 0), (arrival.destination, 0)


@dataclass(slots=True)
class Agreed:
    """What a connection manager's exchange says of one direction."""

    src_qpn: int
    psn: int
    """Of the first request."""
    exchange: tuple[int, int]
    """Both communication IDs."""


class Backlog:
    """How much waits in all queues together."""

    __slots__ = ("size",)

    LIMIT = 64 << 20
    """Bytes from which on nothing waits any longer."""

    def __init__(self) -> None:
        self.size = 0
        """Bytes, about."""

    @property
    def is_full(self) -> bool:
        """Whether what waits has to be dealt with as it is."""
        return self.size > self.LIMIT


class PacketQueue:
    """Packets that wait, counted in a backlog."""

    __slots__ = ("_backlog", "_packets")

    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog
        self._packets: deque[RecordedPacket] = deque()

    def __len__(self) -> int:
        return len(self._packets)

    def __iter__(self) -> Iterator[RecordedPacket]:
        return iter(self._packets)

    @property
    def first(self) -> RecordedPacket | None:
        """The oldest, `None` if there is none."""
        return self._packets[0] if self._packets else None

    def append(self, recorded: RecordedPacket) -> None:
        """Add one."""
        self._packets.append(recorded)
        self._backlog.size += recorded.size

    def popleft(self) -> RecordedPacket:
        """Take the oldest."""
        recorded = self._packets.popleft()
        self._backlog.size -= recorded.size
        return recorded

    def pop(self) -> RecordedPacket:
        """Take the newest."""
        recorded = self._packets.pop()
        self._backlog.size -= recorded.size
        return recorded

    def clear(self) -> None:
        """Forget all."""
        while self._packets:
            self.popleft()


@dataclass(slots=True, eq=False)
class Exchange:
    """The requests to one queue pair, and their answers."""

    key: Key
    first_number: int
    """Number of the packet that it began with."""
    backlog: Backlog
    requests: PacketQueue
    """Those that nobody has taken yet."""
    responses: PacketQueue
    src_qpn: int | None = None
    """Whom the answers go to; `None` until it is learnt."""
    first_psn: int | None = None
    """PSN of the first request, where a connection manager says so."""
    seen_requests: int = 0
    seen_responses: int = 0
    waiting: list[tuple[Address, Address, int]] = field(default_factory=list)
    """Its entries in the index by PSN."""
    last_psn: int = 0
    port: int = 0
    """UDP source port of its requests."""

    @property
    def answer_key(self) -> Key | None:
        """The flow of its answers."""
        source, destination, _ = self.key
        return None if self.src_qpn is None else (destination, source, self.src_qpn)


class Exchanges:
    """Sorts packets into exchanges.

    closed: called with an exchange that is over because too many others are open, or
    because a connection manager has set up another one with its queue pairs.
    """

    LIMIT = 4096
    """Exchanges that are open at a time."""
    PARKED = 64
    """Responses of a flow that wait until it is known what they answer."""
    INDEXED = 128
    """Requests of an exchange by which its answers may be recognised."""
    NEAR = 4096
    """How far a PSN may be from that of a request to be an answer to its connection."""

    def __init__(self, closed: Callable[[Exchange], None]) -> None:
        self._closed = closed
        self._open: OrderedDict[Key, Exchange] = OrderedDict()
        self._answers: dict[Key, Exchange] = {}
        self._unpaired: dict[tuple[Address, Address], dict[int, Exchange]] = {}
        self._by_psn: dict[tuple[Address, Address, int], list[Exchange]] = {}
        self._parked: OrderedDict[Key, PacketQueue] = OrderedDict()
        self._backlog = Backlog()
        self._asked: OrderedDict[tuple[Address, int], tuple[int, int]] = OrderedDict()
        """QPN and PSN by the communication ID of a CM request."""
        self._agreed: OrderedDict[Key, Agreed] = OrderedDict()
        self.unclaimed = 0
        """Responses to requests that the capture does not have."""

    def take(self, recorded: RecordedPacket) -> Exchange | None:
        """Put a packet where it belongs; returns the exchange that has got it, if any."""
        packet = recorded.packet
        if packet.form.service is Service.UD:
            self._read_management(recorded)
            return None
        if packet.form.is_response:
            return self._take_response(recorded)
        return self._take_request(recorded)

    def finish(self) -> Iterator[Exchange]:
        """All exchanges that are still open, in the order in which they began."""
        for exchange in sorted(self._open.values(), key=lambda each: each.first_number):
            self._forget(exchange)
            yield exchange
        self.unclaimed += sum(len(parked) for parked in self._parked.values())
        self._parked.clear()

    def _take_request(self, recorded: RecordedPacket) -> Exchange:
        key = recorded.key
        exchange = self._open.get(key)
        if exchange is None:
            exchange = self._begin(key, recorded.number)
        else:
            self._open.move_to_end(key)
        exchange.requests.append(recorded)
        exchange.seen_requests += 1
        exchange.last_psn = recorded.packet.psn
        exchange.port = recorded.arrival.source_port
        if exchange.src_qpn is None and len(exchange.waiting) < self.INDEXED:
            entry = (key[0], key[1], recorded.packet.psn)
            exchange.waiting.append(entry)
            self._by_psn.setdefault(entry, []).append(exchange)
        return exchange

    def _take_response(self, recorded: RecordedPacket) -> Exchange | None:
        key = recorded.key
        exchange = self._answers.get(key)
        if exchange is None:
            exchange = self._recognise(recorded)
            if exchange is None:
                self._park(key, recorded)
                return None
            self._pair(exchange, key[2])
        self._open.move_to_end(exchange.key)
        exchange.responses.append(recorded)
        exchange.seen_responses += 1
        return exchange

    def _begin(self, key: Key, number: int) -> Exchange:
        if len(self._open) >= self.LIMIT:
            oldest = next(iter(self._open.values()))
            self._forget(oldest)
            self._closed(oldest)
        exchange = self._open[key] = Exchange(
            key=key,
            first_number=number,
            backlog=self._backlog,
            requests=PacketQueue(self._backlog),
            responses=PacketQueue(self._backlog),
        )
        source, destination, qpn = key
        self._unpaired.setdefault((source, destination), {})[qpn] = exchange
        agreed = self._agreed.get(key)
        if agreed is not None:
            exchange.first_psn = agreed.psn
            self._pair(exchange, agreed.src_qpn)
        return exchange

    def _recognise(self, recorded: RecordedPacket) -> Exchange | None:
        """The exchange that the first response of a flow belongs to."""
        destination, source, _ = recorded.key
        port = recorded.arrival.source_port
        psn = recorded.packet.psn
        fitting = [e for e in self._by_psn.get((source, destination, psn), ()) if e.src_qpn is None]
        # rxe has one port for both directions, hns that of the sender's QPN.
        same_port = [e for e in fitting if port in (e.port, e.key[2] & 0xFFFF)]
        if fitting:
            return (same_port or fitting)[0]
        unpaired = self._unpaired.get((source, destination), {})
        if len(unpaired) > self.PARKED:
            return None
        # An answer that names no request: a NAK for a lost one, the middle of a READ,
        # or 0xffffff, with which rxe answers a duplicate before anything else.
        near = [
            exchange
            for exchange in unpaired.values()
            if psn == MASK or abs(distance(exchange.last_psn, psn)) <= self.NEAR
        ]
        same_port = [exchange for exchange in near if exchange.port == port]
        chosen = same_port or near
        return chosen[0] if len(chosen) == 1 else None

    def _pair(self, exchange: Exchange, src_qpn: int) -> None:
        source, destination, qpn = exchange.key
        exchange.src_qpn = src_qpn
        answer_key = destination, source, src_qpn
        self._answers[answer_key] = exchange
        self._drop_from_index(exchange)
        parked = self._parked.pop(answer_key, None)
        while parked:
            exchange.responses.append(parked.popleft())
            exchange.seen_responses += 1
        # The requests in the other direction are answered by our sender's peer.
        other = self._open.get(answer_key)
        if other is not None and other.src_qpn is None:
            self._pair(other, qpn)

    def _park(self, key: Key, recorded: RecordedPacket) -> None:
        while self._parked and (
            self._backlog.is_full or (len(self._parked) >= self.LIMIT and key not in self._parked)
        ):
            _, forgotten = self._parked.popitem(last=False)
            self.unclaimed += len(forgotten)
            forgotten.clear()
        parked = self._parked.get(key)
        if parked is None:
            parked = self._parked[key] = PacketQueue(self._backlog)
        if len(parked) == self.PARKED:
            parked.popleft()
            self.unclaimed += 1
        parked.append(recorded)

    def _drop_from_index(self, exchange: Exchange) -> None:
        source, destination, qpn = exchange.key
        for entry in exchange.waiting:
            exchanges = self._by_psn.get(entry)
            if exchanges is not None:
                exchanges[:] = [each for each in exchanges if each is not exchange]
                if not exchanges:
                    del self._by_psn[entry]
        exchange.waiting.clear()
        unpaired = self._unpaired.get((source, destination))
        if unpaired is not None:
            if unpaired.get(qpn) is exchange:
                del unpaired[qpn]
            if not unpaired:
                del self._unpaired[source, destination]

    def _forget(self, exchange: Exchange) -> None:
        del self._open[exchange.key]
        self._drop_from_index(exchange)
        answer_key = exchange.answer_key
        if answer_key is not None and self._answers.get(answer_key) is exchange:
            del self._answers[answer_key]

    def _read_management(self, recorded: RecordedPacket) -> None:
        """Learn from a CM REQ and the REP to it which queue pairs belong together."""
        payload = recorded.packet.payload
        if len(payload) < _MAD_SIZE:
            return
        mad = MAD.unpack(payload)
        if mad.mgmt_class != MgmtClass.COMM_MGT:
            return
        source, destination = ends(recorded.arrival)
        if mad.attribute_id == cm.CMAttribute.REQ:
            req = cm.REQ.unpack(payload, MAD.SIZE)
            self._asked[source, req.local_comm_id] = req.local_qpn, req.starting_psn
            if len(self._asked) > self.LIMIT:
                self._asked.popitem(last=False)
        elif mad.attribute_id == cm.CMAttribute.REP:
            rep = cm.REP.unpack(payload, MAD.SIZE)
            asked = self._asked.get((destination, rep.remote_comm_id))
            if asked is not None:
                ids = rep.remote_comm_id, rep.local_comm_id
                # The PSN that the other side shall begin with (cm-rping; Linux cm_req_handler).
                active = Agreed(asked[0], rep.starting_psn, ids)
                passive = Agreed(rep.local_qpn, asked[1], ids)
                self._agree((destination, source, rep.local_qpn), active)
                self._agree((source, destination, asked[0]), passive)

    def _agree(self, key: Key, agreed: Agreed) -> None:
        if self._agreed.get(key) == agreed:
            return  # the REP has been sent again
        self._agreed[key] = agreed
        if len(self._agreed) > self.LIMIT:
            self._agreed.popitem(last=False)
        exchange = self._open.get(key)
        if exchange is not None:
            self._forget(exchange)
            self._closed(exchange)


_MAD_SIZE = 256
"""Bytes of every MAD (IBA 13.4.2)."""
