"""Exchanges of connection managers: which host asked for a connection, and the outcome.

An exchange begins with a REQ, or with a SIDR_REQ for a datagram service, and has all messages
with its communication IDs. A message whose beginning is not in the capture begins one as well.
Retransmitted messages are counted. Duplicates are not: queue pair 1 sends a retransmission with
the next PSN (rxe does), a network or a mirror repeats a packet with the same one.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ibwire.base.quantities import duration_text
from ibwire.base.units import NS
from ibwire.connections.cm_messages import Message, Received
from ibwire.connections.status import ConnectionStatus, Status
from ibwire_layers import cm
from ibwire_layers.opcodes import Service

EXCHANGES = 1 << 14
"""Exchanges that are remembered; the one that was silent for longest is forgotten first."""
KEEP = 32
"""Messages of an exchange that are kept; others are counted."""
TIMEOUT_NS = 4_300_000_000
"""Wait for a response where no message names one: 4.096 us x 2^20, the value of Linux."""
DUPLICATE_NS = 1_000_000_000
"""A network holds no packet for longer: the same one after this time was sent by a manager whose
PSNs do not count."""

_HINTS = {
    "invalid-service-id": "no program listens there",
    "consumer-defined": "the program itself refused it",
    "timeout": "its sender gave up waiting for a response",
    "stale-connection": "one of the queue pairs still belongs to an older connection",
    "no-qp": "no queue pair was free",
    "no-resources": "the host lacks memory or queue pairs",
    "insufficient-responder-resources": "more READs and atomics were asked for than it can serve",
    "invalid-mtu": "it does not accept the path MTU",
    "sidr-unsupported": "no program listens there",
    "sidr-no-qp": "no queue pair is ready for it",
}

ACTIVE, PASSIVE = 0, 1

SENDERS = {"REQ": ACTIVE, "REP": PASSIVE, "RTU": ACTIVE, "SIDR_REQ": ACTIVE, "SIDR_REP": PASSIVE}
"""Which side sends a message, where that is fixed."""


OTHER_SIDE = "the other side"
"""The side that a message is sent to, in what it says."""


class CMMessage(NamedTuple):
    """One message of an exchange."""

    name: str
    """`REQ`, `REJ` and so on."""
    sender: int
    """`ACTIVE` or `PASSIVE`."""
    number: int
    time_ns: int
    about: str
    """What it says, in words; empty for nothing of interest."""
    again: bool
    """The same message was sent before."""
    packet: tuple[int, int] = (0, 0)
    """PSN of its packet, and checksum of the message."""

    def is_duplicate_of(self, other: CMMessage) -> bool:
        """Whether both are the same packet, seen twice."""
        same = (self.packet, self.name, self.sender) == (other.packet, other.name, other.sender)
        return same and abs(self.time_ns - other.time_ns) < DUPLICATE_NS


@dataclass(slots=True)
class CMExchange:
    """The messages of one attempt to connect two ends."""

    addresses: tuple[str, str]
    """Of the active side, which sends the REQ, and of the passive side."""
    first: tuple[int, int]
    """File and number of its first message."""
    service: Service
    comm_ids: list[int | None] = field(default_factory=lambda: [None, None])
    qpns: list[int | None] = field(default_factory=lambda: [None, None])
    service_id: int | None = None
    messages: list[CMMessage] = field(default_factory=list)
    counts: Counter[tuple[str, int]] = field(default_factory=Counter)
    """By name and sender."""
    reason: str = ""
    """Why it was rejected."""
    rejected_by: int = PASSIVE
    timeout_ns: int = TIMEOUT_NS
    """How long the sender of the last message waits for the next one."""
    last_ns: int = 0
    identity: tuple[object, ...] = ()
    """What distinguishes its REQ from another one with the same communication ID."""

    def has(self, message: CMMessage) -> bool:
        """Whether this is a duplicate of a message that is kept."""
        return any(map(message.is_duplicate_of, self.messages))

    @property
    def is_established(self) -> bool:
        """Whether both sides have what they need."""
        return bool(self.counts["RTU", ACTIVE] or self._disconnects)

    @property
    def _disconnects(self) -> int:
        return sum(self.counts[name, side] for name in ("DREQ", "DREP") for side in (0, 1))

    @property
    def _lacks_drep(self) -> bool:
        """Whether a side sent its DREQ again, and no DREP came."""
        return any(
            self.counts["DREQ", side] > 1 and not self.counts["DREP", 1 - side]
            for side in (ACTIVE, PASSIVE)
        )

    @property
    def requests(self) -> int:
        """How often the connection was asked for."""
        return self.counts["REQ", ACTIVE] + self.counts["SIDR_REQ", ACTIVE]

    @property
    def is_answered(self) -> bool:
        """Whether the passive side has sent anything."""
        return any(side == PASSIVE for _, side in self.counts)

    @property
    def are_sides_known(self) -> bool:
        """Whether a message shows which side is the active one; either may send a DREQ."""
        return any(name in SENDERS for name, _ in self.counts)

    def turn(self) -> None:
        """Take the active side for the passive one."""
        self.addresses = self.addresses[PASSIVE], self.addresses[ACTIVE]
        self.comm_ids.reverse()
        self.qpns.reverse()
        self.messages = [each._replace(sender=1 - each.sender) for each in self.messages]
        self.counts = Counter(
            {(name, 1 - side): each for (name, side), each in self.counts.items()}
        )
        self.rejected_by = 1 - self.rejected_by

    def status(self, end_ns: int) -> ConnectionStatus:
        """What became of it; `end_ns` is the time of the last frame of the capture."""
        if self.reason:
            return ConnectionStatus(Status.CM_REJECTED, self.reason)
        is_overdue = end_ns - self.last_ns > self.timeout_ns
        if self.requests and not self.is_answered and not self.is_established:
            is_silent = self.requests > 1 or is_overdue
            return ConnectionStatus(Status.UNANSWERED if is_silent else Status.OK)
        replies = self.counts["REP", PASSIVE]
        if replies:
            is_open = not self.is_established and (replies > 1 or is_overdue)
        else:
            is_open = is_overdue and any(name == "MRA" for name, _ in self.counts)
        if is_open or self._lacks_drep:
            return ConnectionStatus(Status.UNRESOLVED)
        repeated = any(count > 1 for (name, _), count in self.counts.items() if name != "MRA")
        return ConnectionStatus(Status.RECOVERED if repeated else Status.OK)

    @property
    def port(self) -> int | None:
        """Port of the RDMA connection manager, if the service ID is one of its."""
        known = None if self.service_id is None else cm.rdma_cm_port(self.service_id)
        return None if known is None else known[1]

    @property
    def hint(self) -> str:
        """What its reason usually means; empty for reasons that say it themselves."""
        return _HINTS.get(self.reason, "")

    def target(self) -> str:
        """What the active side wants to reach."""
        if self.port is not None:
            return f"port {self.port}"
        return f"service 0x{self.service_id:x}" if self.service_id else ""

    def names(self) -> str:
        """Its messages in order, each with how often it was sent in a row."""
        runs: list[list[Any]] = []
        for message in self.messages:
            if runs and runs[-1][0] == message.name:
                runs[-1][1] += 1
            else:
                runs.append([message.name, 1])
        return " ".join(f"{count} {name}" if count > 1 else name for name, count in runs)

    def to_json(self) -> dict[str, Any]:
        """As `ibwire flows --json` shows it."""
        return {
            "active": self.addresses[ACTIVE],
            "passive": self.addresses[PASSIVE],
            "comm_ids": list(self.comm_ids),
            "qpns": list(self.qpns),
            "service_id": self.service_id,
            "port": self.port,
            "rejected": self.reason or None,
            "messages": [
                {
                    "name": each.name,
                    "src": self.addresses[each.sender],
                    "number": each.number,
                    "time_ns": each.time_ns,
                    "about": each.about,
                    "again": each.again,
                }
                for each in self.messages
            ],
            "more_messages": self.counts.total() - len(self.messages),
        }


_Key = tuple[str, str, int, bool]
"""Active and passive side, communication or request ID of the active side, whether it is SIDR."""


class CMExchanges:
    """Finds the exchanges of a capture, a chunk at a time."""

    def __init__(self) -> None:
        self._open: OrderedDict[_Key, CMExchange] = OrderedDict()
        self._over: list[CMExchange] = []
        """Those whose communication IDs are used again."""

    def take(self, received: Iterable[Received]) -> None:
        """Take the messages of the next chunk of the capture."""
        for each in received:
            self._note(each.name, each)

    def merge(self, later: CMExchanges, files: int) -> None:
        """Continue with a later capture; `files` came before it."""
        for exchange in later.all():
            exchange.first = exchange.first[0] + files, exchange.first[1]
        for own, exchange in later._open.items():
            key = self._key_here(own, exchange)
            mine = self._open.get(key)
            if mine is None or exchange.identity not in ((), mine.identity):
                self._put(key, exchange)
                continue
            for side in (ACTIVE, PASSIVE):
                mine.comm_ids[side] = exchange.comm_ids[side] or mine.comm_ids[side]
                mine.qpns[side] = exchange.qpns[side] or mine.qpns[side]
            if exchange.reason and not mine.is_established:
                mine.reason, mine.rejected_by = exchange.reason, exchange.rejected_by
            before = +mine.counts
            mine.counts += exchange.counts
            for message in exchange.messages:
                again = message.again or (message.name, message.sender) in before
                if mine.has(message):
                    mine.counts[message.name, message.sender] -= 1
                elif len(mine.messages) < KEEP:
                    mine.messages.append(message._replace(again=again))
            mine.last_ns, mine.timeout_ns = exchange.last_ns, exchange.timeout_ns
            self._open.move_to_end(key)
        self._end(*later._over)

    def all(self) -> Iterator[CMExchange]:
        """The exchanges in the order of their first messages."""
        yield from sorted([*self._over, *self._open.values()], key=lambda each: each.first)

    def _key_here(self, key: _Key, exchange: CMExchange) -> _Key:
        """The key of an exchange that a later capture continues; turned, if it begins there with
        a message that either side may send."""
        active, passive = exchange.comm_ids
        if not exchange.are_sides_known and passive and not self._fits(key, passive):
            turned = key[1], key[0], passive, key[3]
            if self._fits(turned, active):
                exchange.turn()
                return turned
        return key

    def _fits(self, key: _Key, passive: int | None) -> bool:
        """Whether there is an exchange with this communication ID of the passive side."""
        exchange = self._open.get(key)
        return exchange is not None and exchange.comm_ids[PASSIVE] in (None, 0, passive)

    def _put(self, key: _Key, exchange: CMExchange) -> None:
        before = self._open.pop(key, None)
        if before is not None:
            self._end(before)
        self._open[key] = exchange
        if len(self._open) > EXCHANGES:
            self._open.popitem(last=False)

    def _end(self, *exchanges: CMExchange) -> None:
        """Keep exchanges whose communication IDs are used again."""
        self._over += exchanges
        del self._over[:-EXCHANGES]

    def _note(self, name: str, received: Received) -> None:
        key, sender = self._place(name, received)
        if key is None:
            return
        message = received.message
        identity: tuple[object, ...] = ()
        if name == "REQ":
            identity = (message["local_qpn"], message["starting_psn"], message["service_id"])
        exchange = self._open.get(key)
        if exchange is None or (identity and exchange.identity not in ((), identity)):
            exchange = CMExchange(
                addresses=key[:2],
                first=(0, received.number),
                service=Service.UD if key[3] else Service.RC,
            )
            exchange.comm_ids[ACTIVE] = key[2]
            self._put(key, exchange)
        self._open.move_to_end(key)
        exchange.identity = identity or exchange.identity
        if name not in ("REQ", "SIDR_REQ", "SIDR_REP") and not exchange.comm_ids[PASSIVE]:
            other = message["remote_comm_id" if sender == ACTIVE else "local_comm_id"]
            exchange.comm_ids[PASSIVE] = other or exchange.comm_ids[PASSIVE]
        again = exchange.counts[name, sender] > 0
        packet = received.psn, received.checksum
        found = CMMessage(name, sender, received.number, received.time_ns, "", again, packet)
        if again and exchange.has(found):
            return
        exchange.counts[name, sender] += 1
        exchange.last_ns = received.time_ns
        about = self._learn(exchange, name, sender, message)
        if len(exchange.messages) < KEEP:
            exchange.messages.append(found._replace(about=about))

    def _place(self, name: str, received: Received) -> tuple[_Key | None, int]:
        """The exchange of a message, and which side sent it."""
        src, dst, message = received.src, received.dst, received.message
        if name in ("SIDR_REQ", "SIDR_REP"):
            request = message["request_id"]
            if request is None:
                return None, ACTIVE
            if name == "SIDR_REQ":
                return (src, dst, request, True), ACTIVE
            return (dst, src, request, True), PASSIVE
        local = message["local_comm_id"]
        if local is None:
            return None, ACTIVE
        if name == "REQ":
            return (src, dst, local, False), ACTIVE
        remote = message["remote_comm_id"]
        if remote is None:
            return None, ACTIVE
        for side, key in (
            (ACTIVE, (src, dst, local, False)),
            (PASSIVE, (dst, src, remote, False)),
        ):
            exchange = self._open.get(key)
            if exchange is None or SENDERS.get(name, side) != side:
                continue
            other = remote if side == ACTIVE else local
            # A REJ of a REQ may have no communication ID of its own.
            if not other or self._fits(key, other):
                return key, side
        side = SENDERS.get(name, PASSIVE)
        return (src, dst, local, False) if side == ACTIVE else (dst, src, remote, False), side

    def _learn(self, exchange: CMExchange, name: str, sender: int, message: Message) -> str:
        """Take what a message says; returns it in words."""
        match name:
            case "REQ":
                return _learn_request(exchange, message)
            case "REP":
                exchange.comm_ids[PASSIVE] = message["local_comm_id"]
                exchange.qpns[PASSIVE] = message["local_qpn"] or message["local_eecn"]
                return _queue_pair(exchange.qpns[PASSIVE], message["starting_psn"])
            case "REJ":
                reason = reject_reason(message["reason"])
                if not exchange.is_established:
                    exchange.reason, exchange.rejected_by = reason, sender
                return f"reason {message['reason']}, {reason.replace('-', ' ')}"
            case "MRA":
                timeout = message["service_timeout"]
                if timeout is not None:
                    needed_ns = 4096 << timeout
                    exchange.timeout_ns = needed_ns + TIMEOUT_NS
                    return f"needs up to {duration_text(needed_ns * NS)}"
            case "SIDR_REQ":
                exchange.service_id = message["service_id"]
                return exchange.target()
            case "SIDR_REP":
                status = message["status"]
                exchange.qpns[PASSIVE] = message["qpn"]
                if status:
                    exchange.reason = f"sidr-{_name(cm.SIDRStatus, status)}"
                    exchange.rejected_by = sender
                    return f"status {status}, {_name(cm.SIDRStatus, status).replace('-', ' ')}"
                return _queue_pair(message["qpn"], None)
        return ""


def _learn_request(exchange: CMExchange, message: Message) -> str:
    exchange.service_id = message["service_id"]
    exchange.qpns[ACTIVE] = message["local_qpn"]
    transport = message["transport_service_type"]
    if transport == cm.TransportType.EXTENDED:
        exchange.service = Service.XRC
    else:
        exchange.service = _SERVICES.get(transport, Service.RC)
    timeout = message["remote_cm_response_timeout"]
    if timeout is not None:
        exchange.timeout_ns = 4096 << timeout
    own = _queue_pair(exchange.qpns[ACTIVE], message["starting_psn"])
    return ", ".join(filter(None, (f"to {exchange.target()}" * bool(exchange.target()), own)))


_SERVICES: dict[int | None, Service] = {
    cm.TransportType.RC: Service.RC,
    cm.TransportType.UC: Service.UC,
    cm.TransportType.RD: Service.RD,
}


def _queue_pair(qpn: int | None, psn: int | None) -> str:
    # A side names the PSN that it expects first (docs/reference/cm.md#request).
    parts = [] if qpn is None else [f"QP {qpn}"]
    parts += [] if psn is None else [f"{OTHER_SIDE} begins with PSN {psn}"]
    return ", ".join(parts)


def _name(names: type[cm.RejectReason] | type[cm.SIDRStatus], value: int) -> str:
    known = value in names.__members__.values()
    return names(value).name.lower().replace("_", "-") if known else f"code-{value}"


def reject_reason(code: int | None) -> str:
    """The reason of a REJ by name."""
    return "unknown" if code is None else _name(cm.RejectReason, code)
