"""Connections: their two ends, what was counted of each direction, and what was negotiated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ibwire.connections.cm_exchanges import CMExchange
from ibwire.connections.congestion import Congestion
from ibwire.connections.counted import Counted
from ibwire.connections.counts import DirectionCounts
from ibwire.connections.ending import NOTHING_OPEN, Ending
from ibwire.connections.identity import Identity
from ibwire.connections.packets import Rows
from ibwire.connections.pause import WHOLE_PORT, Pauses, still
from ibwire.connections.status import QUIET, ConnectionStatus, status_of
from ibwire_layers.opcodes import OpCode, Service
from ibwire_layers.psn import MASK
from ibwire_layers.syndrome import CREDITS

MTUS = (256, 512, 1024, 2048, 4096)
"""Bytes of the possible path MTUs (IBA 9.4.3)."""
SILENCES: Final = 8
"""Longest silences of a connection that are kept."""


class End(NamedTuple):
    """One end of a connection."""

    address: str
    qpn: int | None
    """`None` when no packet to it was seen."""


class Negotiated(NamedTuple):
    """What a handshake negotiated for the requests of one end."""

    psn: int | None
    """Of the first request."""
    mtu: int | None
    """Path MTU in bytes."""
    max_reads: int | None
    """READs and atomics that may be outstanding."""
    place: tuple[int, int] = (-1, 0)
    """File and number of the packet that completed the handshake."""


class Damaged:
    """PSNs of packets that were seen with a wrong ICRC, by direction."""

    __slots__ = ("answers", "requests", "responses")

    def __init__(self) -> None:
        self.requests: tuple[dict[int, int], dict[int, int]] = {}, {}
        """How often the newest of requests were seen, as far as those packets are not counted as
        missing."""
        self.responses: tuple[dict[int, int], dict[int, int]] = {}, {}
        """The same of responses, which have the PSNs of the other end's requests."""
        self.answers: tuple[dict[int, None], dict[int, None]] = {}, {}
        """The newest of responses to READs and atomics."""

    def turned(self) -> Damaged:
        """The same with the directions swapped."""
        twin = Damaged()
        twin.requests = self.requests[1], self.requests[0]
        twin.responses = self.responses[1], self.responses[0]
        twin.answers = self.answers[1], self.answers[0]
        return twin


NOTHING_DAMAGED: Final = Damaged()
"""Of most connections, which need no memory for it; nothing is added to it."""


class Connection:
    """Two ends that exchange packets. End 0 sent the first of them."""

    __slots__ = (
        "_counted",
        "_damaged",
        "_directions",
        "_endings",
        "_identities",
        "_place",
        "_unacknowledged",
        "cm_rejected",
        "early_acks",
        "early_ns",
        "ends",
        "exchange_status",
        "exchanges",
        "first",
        "flows",
        "is_reliable",
        "max_reads",
        "may_be_cut",
        "mtu",
        "mtu_is_seen",
        "number",
        "pairing",
        "priorities",
        "refused",
        "seams",
        "service",
        "settled",
        "silences",
    )

    def __init__(self, number: int, ends: tuple[End, End], service: Service) -> None:
        self.number = number
        """From 1, in the order of the first packets."""
        self.ends = ends
        self.service = service
        self.is_reliable = service in (Service.RC, Service.XRC, Service.RD)
        """Whether requests are acknowledged."""
        self.pairing = "none"
        """How it is known that the two directions belong together, see `PAIRINGS`."""
        self._counted: Counted | None = None
        """What has the counts, once the capture is over."""
        self._place = 0
        """Of the connection there."""
        # These take the most memory, and are made when they are first read: the counts of most
        # connections are elsewhere when the capture is over, and made again each time.
        self._directions: tuple[DirectionCounts, DirectionCounts] | None = None
        self._identities: tuple[Identity, Identity] | None = None
        self._endings: tuple[Ending, Ending] | None = None
        self._unacknowledged: list[tuple[int, int]] | None = None
        self._damaged: Damaged | None = None
        self.mtu: int | None = None
        """Path MTU in bytes, once a packet has shown it or a handshake has negotiated it."""
        self.mtu_is_seen = False
        """A packet has shown the path MTU."""
        self.max_reads: tuple[int | None, int | None] = None, None
        """READs and atomics that each end may have outstanding, where the CM negotiated it."""
        self.flows: Sequence[int] = ()
        """Numbers of its flows, by direction."""
        self.settled = 0
        """How often flows had been paired when it was found."""
        self.first = (0, 0)
        """File and number of its first packet."""
        self.silences: Sequence[tuple[int, int]] = ()
        """The longest times without a packet, from and to (ns), of a capture with pause frames."""
        self.priorities: frozenset[int] = frozenset()
        """Those of the VLAN tags of its packets, in a capture with pause frames; none without a
        tag."""
        self.refused = ""
        """Why the destination refuses its packets, if an ICMP message says so."""
        self.cm_rejected = ""
        """The reason for which the connection manager rejected it."""
        self.exchanges: Sequence[CMExchange] = ()
        """Of connection managers, about this connection."""
        self.exchange_status: ConnectionStatus | None = None
        """What became of a connection of which only an exchange is in the capture."""
        self.may_be_cut = False
        """Packets with cut headers were left out of the capture: missing ones may be among them."""
        self.early_acks = 0
        """ACKs that were recorded before the request that they acknowledge."""
        self.early_ns = 0
        """How long before it, at most."""
        self.seams = 0
        """Joints between files at which something may have been counted wrongly."""

    @property
    def directions(self) -> tuple[DirectionCounts, DirectionCounts]:
        """Index 0: packets from end 0 to end 1."""
        if self._directions is None:
            if self._counted is not None:
                return self._counted.directions(self._place)
            self._directions = DirectionCounts(), DirectionCounts()
        return self._directions

    @directions.setter
    def directions(self, directions: tuple[DirectionCounts, DirectionCounts]) -> None:
        self._directions = directions

    def direction(self, way: int) -> DirectionCounts:
        """The counts of the packets that one end has sent."""
        if self._directions is None and self._counted is not None:
            return self._counted.direction(self._place, way)
        return self.directions[way]

    @property
    def identities(self) -> tuple[Identity, Identity]:
        """IP identifications of the packets of each direction."""
        if self._identities is None:
            if self._counted is not None:
                return self._counted.identities(self._place)
            self._identities = Identity(), Identity()
        return self._identities

    @identities.setter
    def identities(self, identities: tuple[Identity, Identity]) -> None:
        self._identities = identities

    @property
    def endings(self) -> tuple[Ending, Ending]:
        """How the requests of each end stood when the capture ended."""
        if self._endings is None:
            if self._counted is not None:
                return self._counted.endings(self._place)
            self._endings = NOTHING_OPEN, NOTHING_OPEN
        return self._endings

    @endings.setter
    def endings(self, endings: tuple[Ending, Ending]) -> None:
        self._endings = endings

    @property
    def unacknowledged(self) -> list[tuple[int, int]]:
        """First PSN and count of the requests of each end without an ACK when the capture ended."""
        if self._unacknowledged is None:
            if self._counted is not None:
                return self._counted.unacknowledged(self._place)
            self._unacknowledged = [(0, 0), (0, 0)]
        return self._unacknowledged

    @unacknowledged.setter
    def unacknowledged(self, unacknowledged: list[tuple[int, int]]) -> None:
        self._unacknowledged = unacknowledged

    def keep_in(self, counted: Counted, place: int) -> None:
        """These have the counts, at this place; nothing was counted here, and nothing will be.

        What is read from now on are copies.
        """
        self._counted, self._place = counted, place
        self._directions = self._identities = self._endings = self._unacknowledged = None

    @property
    def damaged(self) -> Damaged:
        """What was seen with a wrong ICRC."""
        return self._damaged or NOTHING_DAMAGED

    def damaged_to_add_to(self) -> Damaged:
        """The same, to add a packet."""
        if self._damaged is None:
            self._damaged = Damaged()
        return self._damaged

    def take_damaged(self, other: Connection, *, is_turned: bool) -> None:
        """Take what another part of the connection has; is_turned: its ends are swapped."""
        found = other._damaged
        self._damaged = found.turned() if found is not None and is_turned else found

    @property
    def status(self) -> ConnectionStatus:
        """What became of it, once the capture is over."""
        return QUIET if self._is_quiet else status_of(self)

    @property
    def _is_quiet(self) -> bool:
        """Whether it is certain without the counts that nothing went wrong."""
        if self._counted is None or self.refused or self.cm_rejected or self.exchange_status:
            return False
        return self._counted.is_quiet[self._place]

    @property
    def is_regular(self) -> bool:
        """Whether all its packets were regular, once the capture is over, and counted elsewhere.

        Nothing in its counts can be wrong but messages that were left open.
        """
        return self._counted is not None

    @property
    def counted(self) -> tuple[Counted, int] | None:
        """What has its counts, and its place there, once the capture is over."""
        return None if self._counted is None else (self._counted, self._place)

    @property
    def packets(self) -> int:
        """Of both directions."""
        if self._counted is not None:
            return self._counted.packets[self._place]
        one, other = self.directions
        return one.packets + other.packets

    def has_messages(self, direction: int) -> bool:
        """Whether the last request of a message of this end was seen."""
        if self._counted is not None:
            return self._counted.has_messages(self._place, direction)
        return bool(self.directions[direction].messages)

    @property
    def open_messages(self) -> int:
        """Messages of both ends that were not acknowledged when the capture ended."""
        if self._counted is not None:
            return self._counted.open_messages[self._place]
        one, other = self.endings
        return one.open_messages + other.open_messages

    @property
    def has_packets(self) -> bool:
        """Whether it has packets of its own, and not only messages of connection managers."""
        return self.packets > 0

    @property
    def is_paired(self) -> bool:
        """Whether both directions have been seen."""
        return self.pairing != "none"

    @property
    def service_name(self) -> str | None:
        """`RC`, `UC` and so on; None where all packets are CNPs, which name no service."""
        if self._counted is not None:  # of none with a CNP
            return self.service.name
        one, other = self.directions
        cnps = one.cnps + other.cnps  # counted for the end that is asked to slow down
        has_only_cnps = cnps > 0 and cnps == one.packets + other.packets
        return None if has_only_cnps else self.service.name

    @property
    def drops_late_packets(self) -> bool:
        """Whether a packet out of sequence costs its message: UC, which asks for nothing again."""
        return self.service is Service.UC

    @property
    def is_congested(self) -> bool:
        """Whether a CE mark or a CNP has been seen."""
        one, other = self.directions
        return one.congestion is not None or other.congestion is not None

    def take_congestion(
        self, rows: Rows, sender: npt.NDArray[np.uint8], sources: Sequence[str]
    ) -> None:
        """Take packets for the effects of congestion.

        sender: (n,) which end sent each. sources: names of the captures, by file number.
        """
        is_cnp = (rows.opcode == OpCode.CNP) & ~rows.damaged
        source = sources[int(rows.file[0])]
        for end, direction in enumerate(self.directions):
            data = np.flatnonzero((sender == end) & ~is_cnp & ~rows.damaged)
            cnps = np.flatnonzero((sender != end) & is_cnp)
            marked = rows.marked[data]
            if direction.congestion is None:
                if not len(cnps) and not marked.any():
                    continue
                direction.congestion = Congestion()
            direction.congestion.take(
                rows.time_ns[data],
                rows.number[data],
                rows.length[data].astype(np.int64),
                marked if marked.any() else None,
                rows.time_ns[cnps],
                rows.number[cnps],
                source,
            )

    def note_silences(self, time_ns: npt.NDArray[np.int64], last_ns: int) -> None:
        """Keep the longest times between packets.

        time_ns: (n,) times of the next packets. last_ns: of the packet before them, or 0.
        """
        times = np.concatenate([[last_ns], time_ns]) if last_ns else time_ns
        gaps = np.diff(times)
        longest = np.argsort(gaps)[-SILENCES:].tolist()
        found = [(int(times[at]), int(times[at + 1])) for at in longest]
        self.silences = sorted(
            [*self.silences, *found], key=lambda silence: silence[0] - silence[1]
        )[:SILENCES]

    def note_early(self, before_ns: int) -> None:
        """Note an ACK that was recorded before its request."""
        self.early_acks += 1
        self.early_ns = max(self.early_ns, before_ns)

    def learn_mtu(self, size: int) -> bool:
        """Record the payload of a packet that must be full; returns whether it shows the MTU."""
        shows = size in MTUS and (not self.mtu_is_seen or size > (self.mtu or 0))
        if shows:
            self.mtu, self.mtu_is_seen = size, True
        return shows

    def note_negotiated(self, end: int, negotiated: Negotiated) -> None:
        """A handshake has negotiated the next requests of an end."""
        one, other = self.max_reads
        limit = negotiated.max_reads
        self.max_reads = (one, limit) if end else (limit, other)
        if not self.mtu_is_seen:
            self.mtu = negotiated.mtu or self.mtu

    def packets_of(self, size: int) -> int:
        """Packets for this many bytes of payload; 1 while the path MTU is not known."""
        if size <= MTUS[0] or self.mtu is None:
            return 1  # if that is wrong, the next request shows the MTU
        return -(-size // self.mtu)

    def count_lost(
        self, direction: int, *, psn: int, count: int, span: int = 0, are_responses: bool = False
    ) -> int:
        """Count packets from this PSN on that were not seen, not even damaged; returns how many.

        span: PSNs that they take, if more than one each.
        """
        known = self.damaged
        damaged = (known.responses if are_responses else known.requests)[direction]
        for each in range(psn, psn + (span or count)) if damaged else ():
            if count and each & MASK in damaged:
                damaged[each & MASK] -= 1
                if not damaged[each & MASK]:
                    del damaged[each & MASK]
                count -= 1
        self.directions[direction].lost += count
        return count

    def to_json(self, direction: int) -> dict[str, Any]:
        """One direction, as `ibwire flows --json` shows it."""
        counts, status = self.directions[direction], self.status
        source, destination = self.ends[direction], self.ends[1 - direction]
        return {
            "connection": self.number,
            "status": str(status.status),
            "status_detail": status.detail or None,
            "src": source.address,
            "dst": destination.address,
            "src_qpn": source.qpn,
            "dst_qpn": destination.qpn,
            "transport": self.service_name,
            "pairing": self.pairing,
            "path_mtu": self.mtu,
            "packets": counts.packets,
            "bytes": counts.bytes,
            "payload_bytes": counts.payload_bytes,
            "messages": sum(counts.messages.values()),
            "verbs": counts.messages,
            "open_messages": self.endings[direction].open_messages,
            "message_bytes": counts.message_bytes,
            "goodput_bps": self.goodput_bps(direction),
            "first_ns": counts.first_ns,
            "last_ns": counts.last_ns,
            "retransmitted_packets": counts.retransmitted,
            "lost_packets": counts.lost,
            "duplicate_packets": counts.duplicates,
            "repeated_packets": counts.repeated,
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
            "cm": [exchange.to_json() for exchange in self.exchanges],
            "cm_messages": "; ".join(exchange.names() for exchange in self.exchanges) or None,
            "cm_service_id": next((each.service_id for each in self.exchanges), None),
        }

    def paused_ns(self, pauses: Pauses) -> int:
        """How long it was silent while its priority was paused.

        Only its longest silences count, as far as pauses fill at least half of each. That
        the pauses held this connection is not visible on the wire. Without a VLAN tag all
        priorities count, as its own is not visible.
        """
        lanes = {*self.priorities, WHOLE_PORT} if self.priorities else range(WHOLE_PORT + 1)
        silences = np.array(self.silences, np.int64).reshape(-1, 2)
        intervals = [
            interval
            for sender in pauses.senders.values()
            for priority, lane in sender.lanes.items()
            if priority in lanes
            for interval in lane.longest
        ]
        held = still(intervals, silences)
        return int(held[2 * held >= silences[:, 1] - silences[:, 0]].sum())

    def _congestion(self, direction: int) -> dict[str, Any] | None:
        counts = self.directions[direction]
        if counts.congestion is None:
            return None
        found = counts.congestion.to_json()
        # It counts from the first mark or CNP on; the direction counts all packets.
        del found["packets"]
        found["ecn_ce_share"] = counts.marked / counts.packets if counts.packets else 0.0
        return found

    def goodput_bps(self, direction: int) -> int | None:
        """Bits a second of completed messages, from the first packet of a direction to the last."""
        return self.directions[direction].goodput_bps

    def not_observable(self, direction: int) -> dict[str, str]:
        """Counts of a direction that the capture cannot show for certain, with the reason."""
        if self.service is Service.UD:
            return dict.fromkeys(("retransmitted_packets", "lost_packets"), _DATAGRAMS)
        reasons = {} if self._has_all(direction) else self._not_seen(direction)
        if self.is_reliable and not self.is_paired:
            reasons |= dict.fromkeys(("naks", "rnr_naks", "timeouts", "implied_naks"), _ONE_SIDED)
            if not self.directions[direction].messages:
                reasons |= dict.fromkeys(("lost_packets", "retransmitted_packets"), _ONE_SIDED)
        if self.may_be_cut:
            reasons |= dict.fromkeys(("lost_packets", "retransmitted_packets"), _CUT)
        return reasons

    def _has_all(self, direction: int) -> bool:
        """Whether the IP identifications show that no packet is missing that was not counted."""
        counts = self.directions[direction]
        known = counts.lost + counts.damaged
        return self.identities[direction].counts_up and counts.skipped_ids <= known

    def may_miss_losses(self, direction: int) -> bool:
        """Whether more packets of a direction may have been lost than were counted."""
        if "lost_packets" in self.not_observable(direction):
            return True
        return not self.identities[direction].counts_up

    def _not_seen(self, direction: int) -> dict[str, str]:
        """The counts of a direction that may be too low, and the reason."""
        sent, answered = self.directions[direction], self.directions[1 - direction]
        reasons: dict[str, str] = {}
        if sent.unexplained:
            reasons |= dict.fromkeys(("lost_packets", "retransmitted_packets"), _TIMER)
        if answered.unexplained:
            reasons["lost_packets"] = _TIMER
        elif answered.coalesced:
            reasons["lost_packets"] = _COALESCED
        elif answered.retransmitted and sent.skipped_soon > sent.lost + sent.damaged:
            reasons["lost_packets"] = _ANSWERS_AGAIN
        if sent.doubtful:
            reasons |= dict.fromkeys(("lost_packets", "retransmitted_packets"), _RETRIED)
        if sent.unseen_ids:
            reasons |= dict.fromkeys(("lost_packets", "retransmitted_packets"), _UNSEEN_IDS)
        if sent.perhaps_resent or (sent.reordered and self.is_reliable and not self.is_paired):
            reasons |= dict.fromkeys(("lost_packets", "retransmitted_packets"), _LATE)
        if sent.repeated:
            reasons |= dict.fromkeys(("retransmitted_packets", "duplicate_packets"), _REPEATED)
            if self.is_reliable:
                reasons["timeouts"] = _REPEATED
        return reasons


UNTAGGED = "its packets have no VLAN tag: which of the paused priorities it has, if any, is unknown"
"""Why `paused_ns` of a connection without `priorities` is no more than an upper bound."""
_DATAGRAMS = "datagrams are not acknowledged, and their PSNs count over all destinations"
_TIMER = "a timer expired, and what was lost, if anything, left no other trace here"
_COALESCED = "a response to a later message acknowledged these: ACKs were lost, or never sent"
_RETRIED = (
    "READs or atomics were retransmitted and their responses seen once:"
    " the first responses may have been lost"
)
_UNSEEN_IDS = "IP identifications are missing where packets were retransmitted: some may be lost"
_CUT = "packets with cut headers were left out: what seems to be lost may be one of them"
_LATE = "packets arrived late: reordered, or lost and retransmitted, nothing here shows which"
_REPEATED = "packets arrived again: duplicates or retransmitted, nothing here shows which"
_ANSWERS_AGAIN = "requests were retransmitted: responses to them may be missing"
_ONE_SIDED = "nothing was seen in the other direction"
