"""Connections, and what is counted of each of their two directions."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from ibwire.analyse.events import Event, EventKind, Message
from ibwire.analyse.half import FULL, MTUS, RESPONSES, VERB, Half, Open, Verdict
from ibwire.analyse.histogram import Histogram
from ibwire.analyse.identity import KEEP, Identity
from ibwire.analyse.packets import Seen
from ibwire_layers.opcodes import OpCode, Service
from ibwire_layers.psn import MASK


class Observer(Protocol):
    """Hears of every packet, and of what it means, while a capture is analysed."""

    def request(self, half: Half, packet: Seen, verdict: Verdict) -> None:
        """A request, before the half moves on."""

    def response(self, half: Half, packet: Seen, verdict: Verdict) -> None:
        """A response, before the half moves on."""

    def other(self, connection: Connection, direction: int, packet: Seen) -> None:
        """A CNP, a datagram, or a packet with a wrong ICRC."""

    def event(self, event: Event) -> None:
        """Something happened; a run of packets is told when it is over."""

    def message(self, message: Message) -> None:
        """A message is complete and acknowledged, or given up."""


class End(NamedTuple):
    """One end of a connection."""

    address: str
    qpn: int | None
    """`None` when nothing was seen that is sent to it."""


class Direction:
    """What is counted of the packets that one end sends, and of what became of them."""

    def __init__(self) -> None:
        self.packets = 0
        self.bytes = 0
        """Of whole frames on the wire."""
        self.payload_bytes = 0
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self.messages: dict[str, int] = {}
        """By verb: messages whose last request was seen, each once."""
        self.message_bytes = 0
        """Payload of the messages that were completed, each once."""
        self.completed = 0
        self.retransmitted = 0
        self.lost = 0
        self.duplicates = 0
        self.reordered = 0
        self.naks: dict[str, int] = {}
        """By kind: NAKs of this direction's requests."""
        self.rnr_naks = 0
        self.timeouts = 0
        self.unexplained = 0
        """Of the timeouts, those for which nothing here shows what was lost."""
        self.implied_naks = 0
        self.marked = 0
        self.cnps = 0
        """That told this direction's sender to slow down."""
        self.damaged = 0
        self.restarts = 0
        self.acks = 0
        """Responses that completed messages of this direction."""
        self.acked_messages = 0
        self.max_outstanding = 0
        """PSNs sent and not acknowledged."""
        self.latency = Histogram()
        """ns from the first packet of a message to the response that completed it."""
        self.lowest_credits: int | None = None
        """Of the credit codes that the receiver gave; `None` when it gave none."""
        self.damaged_psns: dict[int, None] = {}
        """Newest PSNs that were seen with a wrong ICRC."""
        self.identity = Identity()

    def count_message(self, verb: str, count: int = 1) -> None:
        """The last requests of so many messages were seen for the first time."""
        self.messages[verb] = self.messages.get(verb, 0) + count

    def count_nak(self, name: str) -> None:
        """A NAK, by its name."""
        self.naks[name] = self.naks.get(name, 0) + 1

    def count_lost(self, psn: int, count: int) -> int:
        """Packets from this PSN on that were not seen, not even damaged; returns how many."""
        for each in range(psn, psn + count) if self.damaged_psns else ():
            if each & MASK in self.damaged_psns:
                del self.damaged_psns[each & MASK]
                count -= 1
        self.lost += count
        return count


class Connection:
    """Two ends that talk to each other.

    Packets are taken in the order of the capture. End 0 sent the first of them.
    """

    def __init__(self, number: int, ends: tuple[End, End], service: Service) -> None:
        self.number = number
        """From 1, in the order of the first packets."""
        self.ends = ends
        self.service = service
        self.pairing = "none"
        """How it is known that the two directions belong together, see `PAIRINGS`."""
        self.directions = Direction(), Direction()
        """Index 0: packets from end 0 to end 1."""
        self.halves = Half(self, 0), Half(self, 1)
        self.mtu: int | None = None
        """Path MTU in bytes, once a packet has shown it."""
        self.max_reads: tuple[int | None, int | None] = (None, None)
        """READs and atomics that each end may have outstanding, where the CM says so."""
        self.observer: Observer | None = None

    @property
    def is_paired(self) -> bool:
        """Whether both directions have been seen."""
        return self.pairing != "none"

    @property
    def is_reliable(self) -> bool:
        """Whether requests are acknowledged."""
        return self.service in (Service.RC, Service.XRC, Service.RD)

    def take(self, direction: int, packet: Seen) -> None:
        """Take the next packet, which end `direction` sent."""
        counts = self.directions[direction]
        counts.packets += 1
        counts.bytes += packet.length
        if counts.first_ns is None:
            counts.first_ns = packet.time_ns
        counts.last_ns = packet.time_ns
        if packet.damaged:
            self._damaged(direction, packet)
            return
        counts.payload_bytes += packet.size
        if packet.marked:
            counts.marked += 1
            self._tell_one(EventKind.MARKED, direction, packet)
        opcode = packet.opcode
        if opcode in FULL and packet.size != self.mtu:
            self.learn_mtu(packet.size)
        if opcode == OpCode.CNP:
            self.directions[1 - direction].cnps += 1
            self._tell_one(EventKind.CNP, direction, packet)
            self._tell_other(direction, packet)
        elif self.service is Service.UD:
            counts.count_message(VERB[opcode])
            counts.message_bytes += packet.size
            self._tell_other(direction, packet)
        elif opcode in RESPONSES:
            self.halves[1 - direction].response(packet)
        else:
            self.halves[direction].request(packet)
        counts.identity.note(packet)

    def learn_mtu(self, size: int) -> None:
        """A packet that must be full has so many bytes."""
        if size in MTUS and size > (self.mtu or 0):
            self.mtu = size
            for half in self.halves:
                half.mtu_learnt()

    def to_json(self, direction: int) -> dict[str, Any]:
        """One direction, as `ibwire flows --json` shows it."""
        counts = self.directions[direction]
        source, destination = self.ends[direction], self.ends[1 - direction]
        seconds = ((counts.last_ns or 0) - (counts.first_ns or 0)) / 1e9
        return {
            "connection": self.number,
            "src": source.address,
            "dst": destination.address,
            "src_qpn": source.qpn,
            "dst_qpn": destination.qpn,
            "transport": self.service.name,
            "pairing": self.pairing,
            "path_mtu": self.mtu,
            "packets": counts.packets,
            "bytes": counts.bytes,
            "payload_bytes": counts.payload_bytes,
            "messages": sum(counts.messages.values()),
            "verbs": counts.messages,
            "message_bytes": counts.message_bytes,
            "goodput_bps": round(8 * counts.message_bytes / seconds) if seconds > 0 else None,
            "first_ns": counts.first_ns,
            "last_ns": counts.last_ns,
            "retransmitted_packets": counts.retransmitted,
            "lost_packets": counts.lost,
            "duplicate_packets": counts.duplicates,
            "reordered_packets": counts.reordered,
            "naks": counts.naks,
            "rnr_naks": counts.rnr_naks,
            "timeouts": counts.timeouts,
            "implied_naks": counts.implied_naks,
            "restarts": counts.restarts,
            "ecn_ce": counts.marked,
            "cnps": counts.cnps,
            "icrc_bad": counts.damaged,
            "latency_ns": counts.latency.to_json(),
            "max_outstanding_psns": counts.max_outstanding,
            "messages_per_ack": round(counts.acked_messages / counts.acks, 2)
            if counts.acks
            else None,
            "not_observable": self.not_observable(direction),
        }

    def not_observable(self, direction: int) -> dict[str, str]:
        """What the counts of a direction cannot say, and why not."""
        if self.service is Service.UD:
            return dict.fromkeys(("retransmitted_packets", "lost_packets"), _DATAGRAMS)
        asked, answered = self.directions[direction], self.directions[1 - direction]
        reasons = {}
        if asked.unexplained:
            reasons |= dict.fromkeys(("lost_packets", "retransmitted_packets"), _TIMER)
        if answered.unexplained:
            reasons["lost_packets"] = _TIMER
        elif answered.acked_messages > answered.acks:
            reasons["lost_packets"] = _COALESCED
        if self.is_reliable and not self.is_paired:
            reasons |= dict.fromkeys(("naks", "rnr_naks", "timeouts", "implied_naks"), _ONE_SIDED)
        return reasons

    def finish(self, now: int) -> None:
        """Nothing more follows; the capture goes on until `now` (ns)."""
        for half in self.halves:
            half.finish(now)

    # What the halves report.

    def complete(self, half: Half, message: Open, packet: Seen) -> None:
        """A message is acknowledged by this packet."""
        direction = self.directions[half.end]
        direction.completed += 1
        direction.message_bytes += message.size
        if self.is_reliable:
            direction.latency.add_one(packet.time_ns - message.first_ns)
        if self.observer is not None:
            self._tell_message(half, message, packet.number, packet.time_ns)

    def abandon(self, half: Half, message: Open) -> None:
        """A message was not acknowledged, as far as was seen."""
        if self.observer is not None:
            self._tell_message(half, message, 0, 0)

    def _tell_message(self, half: Half, message: Open, number: int, time_ns: int) -> None:
        assert self.observer is not None
        self.observer.message(
            Message(
                *(self.number, half.end, message.verb),
                *(message.first & MASK, message.last & MASK, message.size),
                *(message.first_number, message.last_number, message.first_ns, message.last_ns),
                *(number, time_ns, message.resent),
            )
        )

    def tell(self, event: Event) -> None:
        """Pass an event on."""
        if self.observer is not None:
            self.observer.event(event)

    def tell_request(self, half: Half, packet: Seen, verdict: Verdict) -> None:
        """Pass on what a request is."""
        if self.observer is not None:
            self.observer.request(half, packet, verdict)

    def tell_response(self, half: Half, packet: Seen, verdict: Verdict) -> None:
        """Pass on what a response is."""
        if self.observer is not None:
            self.observer.response(half, packet, verdict)

    def _tell_other(self, direction: int, packet: Seen) -> None:
        if self.observer is not None:
            self.observer.other(self, direction, packet)

    def _tell_one(self, what: EventKind, direction: int, packet: Seen) -> None:
        if self.observer is not None:
            self.observer.event(
                Event(
                    *(what, self.number, direction, packet.number, packet.time_ns),
                    *(packet.psn, packet.psn),
                    opcode=packet.opcode,
                )
            )

    def _damaged(self, direction: int, packet: Seen) -> None:
        counts = self.directions[direction]
        counts.damaged += 1
        counts.damaged_psns[packet.psn] = None
        if len(counts.damaged_psns) > KEEP:
            del counts.damaged_psns[next(iter(counts.damaged_psns))]
        self._tell_one(EventKind.DAMAGED, direction, packet)
        self._tell_other(direction, packet)


_DATAGRAMS = "datagrams are not acknowledged, and their PSNs count over all destinations"
_TIMER = "a timer expired, and nothing here shows which packet was lost; there may be more"
_COALESCED = "one ACK answered several messages: others were lost, or never sent"
_ONE_SIDED = "nothing was seen in the other direction"
