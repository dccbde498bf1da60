"""The packets of a capture, and which requests and responses belong to one connection.

A packet has only its destination QP number, so the two directions of a connection
have to be paired. Messages of the connection manager show which queue pairs belong
together. Without them the first response does, by the PSN of a request that waits for
a response and, where several match, by the UDP source port, which many senders choose
equal in both directions.

Memory is bounded: packets are passed on at once, and with too many connections the one
without packets for the longest time is closed.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ibwire.capture import open_capture
from ibwire.capture.stream import Source
from ibwire.rc.packet import TransportPacket, decode
from ibwire.rc.path import Arrival, Arrivals, icrc_fits
from ibwire_layers import cm
from ibwire_layers.mad import MAD, MgmtClass
from ibwire_layers.opcodes import Service
from ibwire_layers.packet import IBRoute
from ibwire_layers.psn import MASK, distance
from ibwire_layers.walk import walk

Address = tuple[int, int]
"""GID and, on native InfiniBand, LID."""

Key = tuple[Address, Address, int]
"""Sender, receiver and destination QPN, which identify the flow of a packet."""


@dataclass(slots=True)
class RecordedPacket:
    """A packet of a capture that a queue pair would have processed."""

    number: int
    time_ns: int
    packet: TransportPacket
    arrival: Arrival
    frame: bytes
    """Empty unless `RecordedPackets` keeps frames."""
    link_type: int
    is_apart: bool = False
    """Whether it is from another capture than its responses, so that numbers give no order."""

    @property
    def size(self) -> int:
        """Approximate bytes of memory."""
        return len(self.packet.payload) + len(self.frame) + 1024

    @property
    def key(self) -> Key:
        """The flow it belongs to."""
        source, destination = ends(self.arrival)
        return source, destination, self.packet.dest_qp


class RecordedPackets:
    """The RC packets of a capture and the datagrams to connection managers, in order.

    Frames that a device drops before they reach a queue pair are only counted.
    """

    RECENT = 4096
    """Packets that are searched for copies on other interfaces."""

    def __init__(
        self,
        source: Source,
        *,
        apart: bool = False,
        frames: bool = False,
        interface: int | None = None,
    ) -> None:
        """frames: whether frames are kept with their packets. interface: number of the only
        interface to read, from 0."""
        self._source = source
        self._interface = interface
        self._recent: OrderedDict[bytes, int] = OrderedDict()
        self.copies = 0
        """Packets that were also on another interface."""
        self._apart = apart
        self._frames = frames
        self.skipped: Counter[str] = Counter()
        """Frames that were left out, by reason: `cut` by the snap length, `bad_icrc`,
        `malformed`, `other`."""

    def __iter__(self) -> Iterator[RecordedPacket]:
        """Raises `CaptureError` for damage, after the packets before it."""
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
                    (batch.cap_len < batch.wire_len).tolist(),
                    strict=True,
                )
                for number, (start, size, time_ns, link_type, interface, is_cut) in enumerate(
                    rows, batch.first_number
                ):
                    if self._interface is not None and interface != self._interface:
                        continue
                    frame = bytes(data[start : start + size])
                    known = arrivals.get(link_type)
                    if known is None:
                        known = arrivals[link_type] = Arrivals(link_type)
                    arrival = known.read(frame)
                    if is_cut and self._is_cut_packet(frame, link_type):
                        self.skipped["cut"] += 1
                        continue
                    packet = self._take(frame, arrival)
                    if packet is not None and arrival is not None:
                        packet.arrival = arrival
                        self._look_for_copy(frame, arrival, interface)
                        if not self._frames:
                            frame = b""
                        yield RecordedPacket(
                            number, time_ns, packet, arrival, frame, link_type, self._apart
                        )

    @staticmethod
    def _is_cut_packet(frame: bytes, link_type: int) -> bool:
        """Whether a frame that was not captured whole holds a packet that was cut as well."""
        found = walk(frame, link_type)
        return found.bth >= 0 and found.end > len(frame)

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
        """Count a packet that was recently on another interface.

        BTH and ICRC identify a packet sufficiently, and no hop changes them.
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
class ManagedFlow:
    """One direction of a connection, from messages of the connection manager."""

    src_qpn: int
    psn: int
    """PSN of the first request."""
    exchange: tuple[int, int]
    """Both communication IDs of the connection."""


class Backlog:
    """The size of all queues together."""

    __slots__ = ("size",)

    LIMIT = 64 << 20
    """Bytes above which nothing waits any longer."""

    def __init__(self) -> None:
        self.size = 0
        """Approximate bytes."""

    @property
    def is_full(self) -> bool:
        """Whether packets that wait must be processed now."""
        return self.size > self.LIMIT


class PacketQueue:
    """A queue of packets, counted in a backlog."""

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
        """The oldest packet; `None` if there is none."""
        return self._packets[0] if self._packets else None

    def append(self, recorded: RecordedPacket) -> None:
        """Add a packet."""
        self._packets.append(recorded)
        self._backlog.size += recorded.size

    def popleft(self) -> RecordedPacket:
        """Remove the oldest packet."""
        recorded = self._packets.popleft()
        self._backlog.size -= recorded.size
        return recorded

    def pop(self) -> RecordedPacket:
        """Remove the newest packet."""
        recorded = self._packets.pop()
        self._backlog.size -= recorded.size
        return recorded

    def clear(self) -> None:
        """Remove all packets."""
        while self._packets:
            self.popleft()


@dataclass(slots=True, eq=False)
class Exchange:
    """The requests to one queue pair and their responses."""

    key: Key
    first_number: int
    """Number of its first packet."""
    backlog: Backlog
    requests: PacketQueue
    """Requests not processed yet."""
    responses: PacketQueue
    src_qpn: int | None = None
    """QP number of the requester; `None` until it is known."""
    first_psn: int | None = None
    """PSN of the first request, from the connection manager."""
    seen_requests: int = 0
    seen_responses: int = 0
    waiting: list[tuple[Address, Address, int]] = field(default_factory=list)
    """Its entries in the index by PSN."""
    last_psn: int = 0
    port: int = 0
    """UDP source port of its requests."""

    @property
    def answer_key(self) -> Key | None:
        """The flow of its responses."""
        source, destination, _ = self.key
        return None if self.src_qpn is None else (destination, source, self.src_qpn)


class Exchanges:
    """Assigns packets to exchanges.

    closed: called with an exchange that ends because too many others are open, or
    because the connection manager made another connection with its queue pairs.
    """

    LIMIT = 4096
    """Open exchanges."""
    PARKED = 64
    """Responses of a flow that wait until their requests are known."""
    INDEXED = 128
    """Requests of an exchange that are indexed to recognise its responses."""
    NEAR = 4096
    """Largest distance of the PSN of a response from that of a request of its connection."""

    def __init__(self, closed: Callable[[Exchange], None]) -> None:
        self._closed = closed
        self._open: OrderedDict[Key, Exchange] = OrderedDict()
        self._answers: dict[Key, Exchange] = {}
        self._unpaired: dict[tuple[Address, Address], dict[int, Exchange]] = {}
        self._by_psn: dict[tuple[Address, Address, int], list[Exchange]] = {}
        self._parked: OrderedDict[Key, PacketQueue] = OrderedDict()
        self._backlog = Backlog()
        self._asked: OrderedDict[tuple[Address, int], tuple[int, int]] = OrderedDict()
        """QPN and PSN of a REQ, by communication ID."""
        self._agreed: OrderedDict[Key, ManagedFlow] = OrderedDict()
        self.unclaimed = 0
        """Responses whose requests are not in the capture."""

    def take(self, recorded: RecordedPacket) -> Exchange | None:
        """Assign a packet; returns the exchange that it belongs to, if any."""
        packet = recorded.packet
        if packet.form.service is Service.UD:
            self._read_management(recorded)
            return None
        if packet.form.is_response:
            return self._take_response(recorded)
        return self._take_request(recorded)

    def finish(self) -> Iterator[Exchange]:
        """The exchanges that are still open, in the order of their first packets."""
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
        # A response with the PSN of no request: a NAK for a lost one, the middle of a READ,
        # or 0xffffff, with which rxe answers a duplicate before any other request.
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
        # Pair the requests in the other direction as well.
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
        """Learn from a REQ and its REP which queue pairs belong together."""
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
                active = ManagedFlow(asked[0], rep.starting_psn, ids)
                passive = ManagedFlow(rep.local_qpn, asked[1], ids)
                self._agree((destination, source, rep.local_qpn), active)
                self._agree((source, destination, asked[0]), passive)

    def _agree(self, key: Key, agreed: ManagedFlow) -> None:
        if self._agreed.get(key) == agreed:
            return  # a repeated REP
        self._agreed[key] = agreed
        if len(self._agreed) > self.LIMIT:
            self._agreed.popitem(last=False)
        exchange = self._open.get(key)
        if exchange is not None:
            self._forget(exchange)
            self._closed(exchange)


_MAD_SIZE = 256
"""Bytes of every MAD (IBA 13.4.2)."""
