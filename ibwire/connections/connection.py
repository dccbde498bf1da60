"""Connections, and what is counted of each of their two directions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ibwire.base.histogram import Histogram
from ibwire.connections.congestion import Congestion
from ibwire.connections.dialogue import Dialogue
from ibwire.connections.events import Event, EventKind, Message
from ibwire.connections.half import LIVES, MTUS, Half, Verdict
from ibwire.connections.identity import KEEP, Identity
from ibwire.connections.kinds import FULL, RESPONSES, VERB
from ibwire.connections.open_message import Open
from ibwire.connections.packets import Rows, Seen
from ibwire.connections.pause import Pauses, still
from ibwire_layers.opcodes import OpCode, Service
from ibwire_layers.psn import MASK
from ibwire_layers.syndrome import CREDITS


class Observer(Protocol):
    """Hears of what happens to connections while a capture is analysed."""

    def event(self, event: Event) -> None:
        """Something happened; a run of packets is told when it is over."""

    def message(self, message: Message) -> None:
        """A message is complete and acknowledged, or given up."""


@runtime_checkable
class PacketObserver(Observer, Protocol):
    """Hears of every packet besides, which takes several times as long."""

    def request(self, half: Half, packet: Seen, verdict: Verdict) -> None:
        """A request, before the half moves on."""

    def response(self, half: Half, packet: Seen, verdict: Verdict) -> None:
        """A response, before the half moves on."""

    def other(self, connection: Connection, direction: int, packet: Seen) -> None:
        """A CNP, a datagram, or a packet with a wrong ICRC."""


class End(NamedTuple):
    """One end of a connection."""

    address: str
    qpn: int | None
    """`None` when nothing was seen that is sent to it."""


@dataclass(slots=True)
class Direction:
    """What is counted of the packets that one end sends, and of what became of them."""

    packets: int = 0
    bytes: int = 0
    """Of whole frames on the wire."""
    payload_bytes: int = 0
    first_ns: int | None = None
    last_ns: int | None = None
    messages: dict[str, int] = field(default_factory=dict)
    """By verb: messages whose last request was seen, each once."""
    message_bytes: int = 0
    """Payload of the messages that were completed, each once."""
    completed: int = 0
    retransmitted: int = 0
    lost: int = 0
    duplicates: int = 0
    reordered: int = 0
    naks: dict[str, int] = field(default_factory=dict)
    """By kind: NAKs of this direction's requests."""
    rnr_naks: int = 0
    timeouts: int = 0
    unexplained: int = 0
    """Of the timeouts, those for which nothing here shows what was lost."""
    passed: int = 0
    """Messages that were answered by a response to a later one."""
    doubtful: int = 0
    """Responses seen here for the first time after they had been asked for again: they may
    have been sent before."""
    left_out: int = 0
    """IP identifications that no packet had where requests were sent again."""
    skipped_ids: int = 0
    """IP identifications that were passed over, and belong to no packet seen."""
    implied_naks: int = 0
    marked: int = 0
    cnps: int = 0
    """That told this direction's sender to slow down."""
    damaged: int = 0
    restarts: int = 0
    acks: int = 0
    """Responses that completed messages of this direction."""
    acked_messages: int = 0
    max_outstanding: int = 0
    """PSNs sent and not acknowledged."""
    latency: Histogram = field(default_factory=Histogram)
    """ns from the first packet of a message to the response that completed it."""
    credit_codes: tuple[int, int] | None = None
    """Lowest and highest credit code that its receiver gave; `None` when it gave none."""
    congestion: Congestion | None = None
    """From the first CE mark or CNP on."""

    def count_message(self, verb: str, count: int = 1) -> None:
        """The last requests of so many messages were seen for the first time."""
        self.messages[verb] = self.messages.get(verb, 0) + count

    def note_credits(self, lowest: int, highest: int) -> None:
        """The receiver has given credits, by their codes."""
        known = self.credit_codes or (lowest, highest)
        self.credit_codes = min(known[0], lowest), max(known[1], highest)

    def count_nak(self, name: str) -> None:
        """A NAK, by its name."""
        self.naks[name] = self.naks.get(name, 0) + 1

    def merge(self, later: Direction) -> None:
        """Count everything that the other has counted, which comes later."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(later, name))
        for mine, its in ((self.messages, later.messages), (self.naks, later.naks)):
            for key, count in its.items():
                mine[key] = mine.get(key, 0) + count
        self.latency.merge(later.latency)
        self.max_outstanding = max(self.max_outstanding, later.max_outstanding)
        if later.credit_codes is not None:
            self.note_credits(*later.credit_codes)
        if self.congestion is None or later.congestion is None:
            self.congestion = self.congestion or later.congestion
        else:
            self.congestion.merge(later.congestion)
        if self.first_ns is None:
            self.first_ns = later.first_ns
        if later.last_ns is not None:
            self.last_ns = later.last_ns


_SUMS = (
    *("packets", "bytes", "payload_bytes", "message_bytes", "completed"),
    *("retransmitted", "lost", "duplicates", "reordered", "rnr_naks", "timeouts", "unexplained"),
    *("passed", "doubtful", "left_out", "skipped_ids"),
    *("implied_naks", "marked", "cnps", "damaged", "restarts", "acks", "acked_messages"),
)


SILENCES = 8
"""Longest silences of a connection that are kept."""


class Birth(NamedTuple):
    """What was agreed of one end's requests before the first."""

    psn: int | None
    """Of the first request."""
    mtu: int | None
    """Path MTU in bytes."""
    max_reads: int | None
    """READs and atomics that may be outstanding."""


@dataclass(slots=True)
class Head:
    """The first packets of a connection in a file, which its end in the file before may change."""

    rows: list[Rows] = field(default_factory=list)
    count: int = 0
    state: tuple[object, ...] | None = None
    """After `HORIZON` packets; `None` before."""
    turned_state: tuple[object, ...] | None = None
    next: tuple[int | None, int | None] = (None, None)
    """`Half.next` at that point."""
    directions: tuple[Direction, Direction] | None = None
    """What was counted up to that point."""


HORIZON = 1024
"""Packets of a connection after which what came before them makes no difference: more than are
under way at a time. That it is so is looked at when files are joined, see `Connection.seams`."""


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
        self.halves = Dialogue(self, 0), Dialogue(self, 1)
        self.identities = Identity(), Identity()
        """Of the packets of each direction."""
        self.damaged_psns: tuple[dict[int, None], dict[int, None]] = {}, {}
        """Newest PSNs of each direction that were seen with a wrong ICRC."""
        self.mtu: int | None = None
        """Path MTU in bytes, once a packet has shown it."""
        self.mtu_is_seen = False
        """A packet has shown the path MTU; else it is what was agreed."""
        self.max_reads: list[int | None] = [None, None]
        """READs and atomics that each end may have outstanding, where the CM says so."""
        self.observer: Observer | None = None
        self.packet_observer: PacketObserver | None = None
        self.flows: list[int] = []
        """Numbers of its flows, by direction."""
        self.first = (0, 0)
        """File and number of its first packet."""
        self.head: Head | None = None
        self.silences: list[tuple[int, int]] = []
        """The longest times without a packet, from and to (ns), of a capture with pause frames."""
        self.seams = 0
        """Joints between files at which something may have been counted wrongly."""

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
            self.tell_one(EventKind.MARKED, direction, packet)
        opcode = packet.opcode
        if opcode in FULL and packet.size != self.mtu:
            self.learn_mtu(packet.size)
        if opcode == OpCode.CNP:
            self.directions[1 - direction].cnps += 1
            self.tell_one(EventKind.CNP, direction, packet)
            self._tell_other(direction, packet)
        elif self.service is Service.UD:
            counts.count_message(VERB[opcode])
            counts.message_bytes += packet.size
            self._tell_other(direction, packet)
        elif opcode in RESPONSES:
            self.halves[1 - direction].response(packet)
        else:
            self.halves[direction].request(packet)
        counts.skipped_ids += self.identities[direction].note(packet)

    @property
    def is_congested(self) -> bool:
        """Whether a CE mark or a CNP has been seen."""
        return any(direction.congestion is not None for direction in self.directions)

    def take_congestion(
        self, rows: Rows, way: npt.NDArray[np.uint8], sources: Sequence[str]
    ) -> None:
        """Take packets for what congestion did; `take` is given them besides.

        way: (n,) which end sent each. sources: names of the captures, by file number.
        """
        is_cnp = (rows.opcode == OpCode.CNP) & ~rows.damaged
        source = sources[int(rows.file[0])]
        for end, direction in enumerate(self.directions):
            data = np.flatnonzero((way == end) & ~is_cnp & ~rows.damaged)
            cnps = np.flatnonzero((way != end) & is_cnp)
            marked = rows.marked[data]
            if direction.congestion is None:
                if not len(cnps) and not marked.any():
                    continue
                direction.congestion = Congestion()
            direction.congestion.take(
                *(rows.time_ns[data], rows.number[data], rows.length[data].astype(np.int64)),
                marked if marked.any() else None,
                *(rows.time_ns[cnps], rows.number[cnps], source),
            )

    def note_silences(self, time_ns: npt.NDArray[np.int64]) -> None:
        """Keep the longest times between packets: (n,) times of the next packets."""
        last = max((half.last_ns for half in self.halves), default=0)
        times = np.concatenate([[last], time_ns]) if last else time_ns
        gaps = np.diff(times)
        longest = np.argsort(gaps)[-SILENCES:].tolist()
        found = [(int(times[at]), int(times[at + 1])) for at in longest]
        self.silences = sorted(self.silences + found, key=lambda silence: silence[0] - silence[1])[
            :SILENCES
        ]

    def learn_mtu(self, size: int) -> None:
        """A packet that must be full has so many bytes."""
        if size in MTUS and (not self.mtu_is_seen or size > (self.mtu or 0)):
            self.mtu, self.mtu_is_seen = size, True
            for half in self.halves:
                half.mtu_learnt()

    def to_json(self, direction: int) -> dict[str, Any]:
        """One direction, as `ibwire flows --json` shows it."""
        counts = self.directions[direction]
        source, destination = self.ends[direction], self.ends[1 - direction]
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
            "goodput_bps": self.goodput_bps(direction),
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
            "congestion": self._congestion(direction),
            "latency_ns": counts.latency.to_json(),
            "max_outstanding_psns": counts.max_outstanding,
            "messages_per_ack": round(counts.acked_messages / counts.acks, 2)
            if counts.acks
            else None,
            "credits": counts.credit_codes and [CREDITS[code] for code in counts.credit_codes],
            "not_observable": self.not_observable(direction),
        }

    def paused_ns(self, pauses: Pauses) -> int:
        """How long it sat still while some priority was paused: its longest silences, as far as
        pauses fill at least half of each. That the pauses held *it* is not on the wire."""
        silences = np.array(self.silences, np.int64).reshape(-1, 2)
        intervals = [
            interval
            for sender in pauses.senders.values()
            for lane in sender.lanes.values()
            for interval in lane.longest
        ]
        held = still(intervals, silences)
        return int(held[2 * held >= silences[:, 1] - silences[:, 0]].sum())

    def _congestion(self, direction: int) -> dict[str, Any] | None:
        counts = self.directions[direction]
        if counts.congestion is None:
            return None
        found = counts.congestion.to_json()
        # It was begun at the first mark or CNP; the direction knows all of its packets.
        del found["packets"]
        found["ecn_ce_share"] = counts.marked / counts.packets if counts.packets else 0.0
        return found

    def goodput_bps(self, direction: int) -> int | None:
        """Bits a second of completed messages, from the first packet of a direction to the last."""
        counts = self.directions[direction]
        if counts.first_ns is None or counts.last_ns is None or counts.last_ns <= counts.first_ns:
            return None
        return round(8e9 * counts.message_bytes / (counts.last_ns - counts.first_ns))

    def not_observable(self, direction: int) -> dict[str, str]:
        """What the counts of a direction cannot say, and why not."""
        if self.service is Service.UD:
            return dict.fromkeys(("retransmitted_packets", "lost_packets"), _DATAGRAMS)
        reasons = {} if self._has_all(direction) else self._not_seen(direction)
        if self.is_reliable and not self.is_paired:
            reasons |= dict.fromkeys(("naks", "rnr_naks", "timeouts", "implied_naks"), _ONE_SIDED)
            if not self.directions[direction].messages:
                reasons |= dict.fromkeys(("lost_packets", "retransmitted_packets"), _ONE_SIDED)
        return reasons

    def _has_all(self, direction: int) -> bool:
        """Whether the IP identifications show that nothing but what was counted is missing."""
        counts = self.directions[direction]
        known = counts.lost + counts.damaged
        return self.identities[direction].counts_up and counts.skipped_ids <= known

    def _not_seen(self, direction: int) -> dict[str, str]:
        """What the counts of a direction may lack, as far as its packets' PSNs tell."""
        asked, answered = self.directions[direction], self.directions[1 - direction]
        reasons: dict[str, str] = {}
        if asked.unexplained:
            reasons |= dict.fromkeys(("lost_packets", "retransmitted_packets"), _TIMER)
        if answered.unexplained:
            reasons["lost_packets"] = _TIMER
        elif answered.passed:
            reasons["lost_packets"] = _COALESCED
        if asked.doubtful:
            reasons |= dict.fromkeys(("lost_packets", "retransmitted_packets"), _ASKED_AGAIN)
        if asked.left_out:
            reasons |= dict.fromkeys(("lost_packets", "retransmitted_packets"), _LEFT_OUT)
        return reasons

    def renew(self, end: int, birth: Birth) -> None:
        """The requests of an end will begin anew, as was agreed."""
        self.halves[end].births = [*self.halves[end].births[1 - LIVES :], birth.psn]
        self.max_reads[end] = birth.max_reads
        if not self.mtu_is_seen:
            self.mtu = birth.mtu or self.mtu

    def packets_of(self, size: int) -> int:
        """Packets of so many bytes of payload; 1 while the path MTU is not known."""
        if size <= MTUS[0] or self.mtu is None:
            return 1  # if that is wrong, `Half` learns the MTU from the next request
        return -(-size // self.mtu)

    def finish(self, now: int) -> None:
        """Nothing more follows; the capture goes on until `now` (ns)."""
        for half in self.halves:
            half.finish(now)
        if self.head is not None and self.head.directions is not None:
            for total, rest in zip(self.head.directions, self.directions, strict=True):
                total.merge(rest)
            self.directions = self.head.directions
            self.head = None

    # Joining the parts of a connection that stand in different files.

    def state(self, is_turned: bool = False) -> tuple[object, ...]:
        """All that decides how the next packets are taken; `is_turned`: with the ends swapped."""
        order = (1, 0) if is_turned else (0, 1)
        return (
            self.mtu if self.mtu_is_seen else None,
            [(self.identities[i].high, self.identities[i].counts_up) for i in order],
            [self.halves[i].state() for i in order],
        )

    def settle_head(self) -> None:
        """From here on what came before the first packet makes no difference any more."""
        assert self.head is not None
        self.head.state = self.state()
        self.head.turned_state = self.state(is_turned=True)
        self.head.next = self.halves[0].next, self.halves[1].next
        self.head.directions = self.directions
        self.directions = Direction(), Direction()

    def go_on(self, later: Connection, is_turned: bool) -> None:
        """Take over what the same connection did in a later file, after its head was taken."""
        head = later.head
        assert head is not None
        expected = head.turned_state if is_turned else head.state
        self.seams += self.state() != expected
        order = (1, 0) if is_turned else (0, 1)
        before = self.halves
        self.halves = later.halves[order[0]], later.halves[order[1]]
        for end, half in enumerate(self.halves):
            half.connection, half.end = self, end
            base, mine = head.next[order[end]], before[end]
            if base is not None and mine.next is not None:
                half.start = base - (mine.next - mine.start)
        self.identities = later.identities[order[0]], later.identities[order[1]]
        self.damaged_psns = later.damaged_psns[order[0]], later.damaged_psns[order[1]]
        for end in (0, 1):
            self.directions[end].merge(later.directions[order[end]])
        if later.mtu_is_seen:
            self.mtu, self.mtu_is_seen = later.mtu, True

    # What the halves report.

    def count_lost(self, direction: int, psn: int, count: int) -> int:
        """Packets from this PSN on that were not seen, not even damaged; returns how many."""
        damaged = self.damaged_psns[direction]
        for each in range(psn, psn + count) if damaged else ():
            if each & MASK in damaged:
                del damaged[each & MASK]
                count -= 1
        self.directions[direction].lost += count
        return count

    def complete(self, half: Half, message: Open, packet: Seen) -> None:
        """A message is acknowledged by this packet."""
        direction = self.directions[half.end]
        direction.completed += 1
        direction.message_bytes += message.size
        if self.is_reliable:
            direction.latency.add_one(packet.time_ns - message.first_ns)
        if self.observer is not None:
            self.tell_message(half, message, packet.number, packet.time_ns)

    def abandon(self, half: Half, message: Open) -> None:
        """A message was not acknowledged, as far as was seen."""
        if self.observer is not None:
            self.tell_message(half, message, 0, 0)

    def tell_message(self, half: Half, message: Open, number: int, time_ns: int) -> None:
        """Pass on a message that a response has completed; 0 and 0: that none has."""
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
        if self.packet_observer is not None:
            self.packet_observer.request(half, packet, verdict)

    def tell_response(self, half: Half, packet: Seen, verdict: Verdict) -> None:
        """Pass on what a response is."""
        if self.packet_observer is not None:
            self.packet_observer.response(half, packet, verdict)

    def _tell_other(self, direction: int, packet: Seen) -> None:
        if self.packet_observer is not None:
            self.packet_observer.other(self, direction, packet)

    def tell_one(self, what: EventKind, direction: int, packet: Seen) -> None:
        """Pass on what a packet is by itself."""
        if self.observer is not None:
            self.observer.event(
                Event(
                    *(what, self.number, direction, packet.number, packet.time_ns),
                    *(packet.psn, packet.psn),
                    opcode=packet.opcode,
                )
            )

    def _damaged(self, direction: int, packet: Seen) -> None:
        self.directions[direction].damaged += 1
        psns = self.damaged_psns[direction]
        psns[packet.psn] = None
        if len(psns) > KEEP:
            del psns[next(iter(psns))]
        self.tell_one(EventKind.DAMAGED, direction, packet)
        self._tell_other(direction, packet)


_DATAGRAMS = "datagrams are not acknowledged, and their PSNs count over all destinations"
_TIMER = "a timer expired, and nothing here shows which packet was lost; there may be more"
_COALESCED = "messages were answered by a response to a later one: ACKs were lost, or never sent"
_ASKED_AGAIN = "responses were asked for again and seen once: the first may have been lost, or not"
_LEFT_OUT = "IP identifications were left out where packets were sent again: some may be lost"
_ONE_SIDED = "nothing was seen in the other direction"
