"""Follows a connection packet by packet, and joins its parts from consecutive captures.

A connection is two trackers of requests, one for each end. End 0 sent the first packet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from ibwire.connections import repeats
from ibwire.connections.breaks import Breaks
from ibwire.connections.connection import Connection, Negotiated
from ibwire.connections.counts import DirectionCounts
from ibwire.connections.events import FlowEventKind
from ibwire.connections.identity import KEEP
from ibwire.connections.observer import Observer
from ibwire.connections.opcode_sets import ACKNOWLEDGE, CNP, FULL, READ, RESPONSES, VERB
from ibwire.connections.open_requests import ending_of, unacknowledged
from ibwire.connections.packet_observer import PacketObserver
from ibwire.connections.packets import Rows, TransportPacket
from ibwire.connections.reporting import Reporter
from ibwire.connections.retransmissions import NO_SKIP_NS
from ibwire.connections.run_observer import RunObserver, RunsObserver
from ibwire.connections.tracker import RequestTracker
from ibwire_layers.opcodes import INFO, Position, Service
from ibwire_layers.psn import HALF, MASK, distance
from ibwire_layers.syndrome import KIND_BITS

HELD: Final = 256
"""Most requests that wait for a response."""
HORIZON: Final = 1024
"""Packets of a connection after which those before them make no difference: more than are
outstanding at a time. When files are joined this is verified, see `Connection.seams`."""

ALONE: Final = 4
"""Packets that `take_odd` takes at least: looking for regular ones sooner costs more than it saves.
"""
FEW: Final = 6
"""With fewer packets up to the next break it goes on, for the same reason."""
FIRST_TOGETHER: Final = 8
"""Packets that become objects at first: two thirds of the irregular parts of a connection are not
longer (1 % of the packets of 256 connections lost)."""
TOGETHER: Final = 16
"""Packets that become objects at a time behind them."""
_DATAGRAMS: Final = Service.UD
"""As a name of this module, as `CNP` is one."""


@dataclass(slots=True)
class FirstPackets:
    """The first packets of a connection in a file, which its end in the file before may change."""

    rows: list[Rows] = field(default_factory=list)
    count: int = 0
    fingerprint: tuple[object, ...] | None = None
    """After `HORIZON` packets; `None` before."""
    turned_fingerprint: tuple[object, ...] | None = None
    """The same with the ends swapped."""
    next: tuple[int | None, int | None] = (None, None)
    """`RequestTracker.next` at that point."""
    directions: tuple[DirectionCounts, DirectionCounts] | None = None
    """What was counted up to that point."""


class ConnectionTracker:
    """Takes the packets of a connection in the order of the capture."""

    def __init__(
        self,
        connection: Connection,
        observer: Observer | None = None,
        packet_observer: PacketObserver | None = None,
        run_observer: RunObserver | None = None,
        runs_observer: RunsObserver | None = None,
    ) -> None:
        """The observers are the same one, as far as it takes packets, and runs of them.

        runs_observer: takes runs of this connection together with those of others.
        """
        self.connection = connection
        self.reports = Reporter(connection, observer)
        self.packet_observer = packet_observer
        self.run_observer = run_observer
        self.runs_observer = runs_observer
        self.group = 0
        """Runs of trackers with the same number may be reported together."""
        self.requests = self._request_tracker(0), self._request_tracker(1)
        """By the end that sends them."""
        self.first_packets: FirstPackets | None = None
        """Where another capture may come before this one."""
        self._held: list[TransportPacket] = []
        """Requests that are retransmitted, unless the next response shows that the queue pairs
        were reset and connected again with the same numbers: then the MSN counts from 0 again."""
        self._held_end = 0
        """The end that sent them."""

    def _request_tracker(self, end: int) -> RequestTracker:
        return RequestTracker(
            end,
            reports=self.reports,
            packet_observer=self.packet_observer,
            learn_mtu=self.learn_mtu,
        )

    @property
    def has_observer(self) -> bool:
        """Whether events and messages are reported."""
        return self.reports.observer is not None

    @property
    def last_ns(self) -> int:
        """When the last request or response was seen; 0 before the first."""
        return max(self.requests[0].last_ns, self.requests[1].last_ns)

    def take(self, direction: int, packet: TransportPacket) -> None:
        """Take the next packet, which end `direction` sent.

        A request that may be the first of queue pairs that were reset, with those after it, waits
        for the next response.
        """
        is_sound = not packet.damaged and packet.opcode != CNP
        is_request = is_sound and packet.opcode not in RESPONSES
        if self._held and not (is_request and self._goes_on(direction, packet)):
            if is_sound and direction != self._held_end and self._counts_anew(packet):
                self.requests[self._held_end].restart(self._held[0])
            self.take_held()
        if is_request and (self._held or self.requests[direction].may_begin_anew(packet)):
            self._held_end = direction
            self.requests[direction].is_waiting = True
            self._held.append(packet)
            if len(self._held) == HELD:
                self.take_held()
        else:
            self._take(direction, packet)

    def take_all(self, ways: Sequence[int], packets: Sequence[TransportPacket]) -> None:
        """Take the next packets; ways: which end sent each."""
        at = 0
        while at < len(packets):
            at += self.take_some(ways, packets, at)

    def take_some(self, ways: Sequence[int], packets: Sequence[TransportPacket], at: int) -> int:
        """Take the packet at a place, and those behind it that go on with a retransmission.

        ways: which end sent each packet. Returns how many it took.
        """
        if not self._held:
            count = repeats.advance(self.requests, self.packet_observer, ways, packets, at)
            if count:
                return count
        self.take(ways[at], packets[at])
        return 1

    def take_odd(
        self,
        rows: Rows,
        direction: npt.NDArray[np.uint8],
        start: int,
        end: int,
        breaks: Breaks,
    ) -> int:
        """Take packets one by one until regular ones may follow; returns how many.

        rows: among others, from `start` on, the next packets, which end at `end`. direction: (n,)
        which end sent each. breaks: those of all rows.
        """
        one, other = self.requests
        begin, together = start, FIRST_TOGETHER
        following = breaks.following(start)
        while begin < end:
            part = slice(begin, min(begin + together, end))
            ways: list[int] = direction[part].tolist()
            packets = rows.take(part).packets()
            at = 0
            while at < len(packets):
                here = begin + at
                if following < here:
                    following = breaks.following(here)
                may_go = here - start >= ALONE and following - here >= FEW
                if may_go and one.is_regular and other.is_regular:
                    return here - start
                at += self.take_some(ways, packets, at)
            begin, together = begin + together, TOGETHER
        return end - start

    def _goes_on(self, direction: int, packet: TransportPacket) -> bool:
        """Whether a request follows those that wait, as all requests of a new queue pair do."""
        last = self._held[-1]
        step = packet.psn - last.psn & MASK
        is_ahead = step == 1 or (0 < step < HALF and last.opcode in READ)
        return direction == self._held_end and is_ahead

    def _counts_anew(self, packet: TransportPacket) -> bool:
        """Whether the MSN of an ACK is the number of the waiting messages, and smaller than before.

        Only ACKs show it: the response to a repeated READ or atomic may have its former MSN.
        """
        if packet.opcode not in ACKNOWLEDGE or packet.syndrome & KIND_BITS != 0:
            return False
        done = sent = 0
        for each in self._held:
            sent += INFO[each.opcode].position in (Position.ONLY, Position.LAST)
            done = sent if distance(each.psn, packet.psn) >= 0 else done
        is_first = 0 < done <= packet.msn <= sent
        return is_first and self.requests[self._held_end].counts_back(packet)

    def take_held(self) -> None:
        """Take the requests that wait for a response."""
        held, self._held = self._held, []
        self.requests[self._held_end].is_waiting = False
        end, at = self._held_end, 0
        ways = [end] * len(held)
        while at < len(held):
            count = repeats.advance(
                self.requests, self.packet_observer, ways, held, at, were_held=True
            )
            if not count:
                self._take(end, held[at])
            at += max(count, 1)

    def _take(self, direction: int, packet: TransportPacket) -> None:
        connection = self.connection
        counts = connection.directions[direction]
        counts.packets += 1
        counts.bytes += packet.length
        if counts.first_ns is None:
            counts.first_ns = packet.time_ns
        before_ns = counts.last_ns or 0
        counts.last_ns = packet.time_ns
        if packet.damaged:
            self._take_damaged(direction, packet)
            return
        counts.payload_bytes += packet.size
        if packet.marked:
            counts.marked += 1
            self.reports.packet(FlowEventKind.ECN_CE, direction, packet)
        opcode = packet.opcode
        if opcode in FULL and packet.size != connection.mtu:
            self.learn_mtu(packet.size)
        if opcode == CNP:
            connection.directions[1 - direction].cnps += 1
            self.reports.packet(FlowEventKind.CNP, direction, packet)
            self._report_other(direction, packet)
        elif connection.service is _DATAGRAMS:
            counts.count_message(VERB[opcode])
            counts.message_bytes += packet.size
            self._report_other(direction, packet)
        elif opcode in RESPONSES:
            self.requests[1 - direction].handle_response(packet)
        else:
            self.requests[direction].handle_request(packet)
        skipped = connection.identities[direction].note(packet)
        counts.skipped_ids += skipped
        if packet.time_ns - before_ns < NO_SKIP_NS:  # else Linux may leave out some
            counts.skipped_soon += skipped

    def _take_damaged(self, direction: int, packet: TransportPacket) -> None:
        """A packet with a wrong ICRC, which its receiver drops."""
        self.connection.directions[direction].damaged += 1
        is_response = packet.opcode in RESPONSES
        damaged = self.connection.damaged_to_add_to()
        psns = (damaged.responses if is_response else damaged.requests)[direction]
        psns[packet.psn] = psns.pop(packet.psn, 0) + 1
        if len(psns) > KEEP:
            del psns[next(iter(psns))]
        if not is_response:
            self.requests[direction].note_damaged(packet)
        elif packet.opcode not in ACKNOWLEDGE:
            answers = damaged.answers[direction]
            answers[packet.psn] = None
            if len(answers) > KEEP:
                del answers[next(iter(answers))]
        self.reports.packet(FlowEventKind.ICRC_BAD, direction, packet)
        self._report_other(direction, packet)

    def learn_mtu(self, size: int) -> None:
        """Record the payload size of a packet that must be full."""
        if self.connection.learn_mtu(size):
            for each in self.requests:
                each.apply_mtu()

    def note_negotiated(self, end: int, negotiated: Negotiated) -> None:
        """A handshake has negotiated the next requests of an end."""
        self.requests[end].expect_start(negotiated.psn, negotiated.place)
        self.connection.note_negotiated(end, negotiated)

    def _report_other(self, direction: int, packet: TransportPacket) -> None:
        if self.packet_observer is not None:
            self.packet_observer.other(self.connection, direction, packet)

    def copy_kept(self) -> None:
        """Copy what is kept of the arrays of several connections that `short_runs` has given it."""
        for end in (0, 1):
            self.connection.identities[end].copy_kept()
            self.requests[end].recent_requests.copy_kept()
            self.requests[end].recent_responses.copy_kept()

    def finish(self, now: int) -> None:
        """Nothing more follows; the capture ended at `now` (ns)."""
        self.take_held()
        one, other = self.requests
        self.connection.endings = ending_of(one, now), ending_of(other, now)
        self.connection.unacknowledged = [
            unacknowledged(each, ending)
            for each, ending in zip(self.requests, self.connection.endings, strict=True)
        ]
        for each in self.requests:
            each.finish(now)
        if self.first_packets is not None and self.first_packets.directions is not None:
            connection, totals = self.connection, self.first_packets.directions
            for total, rest in zip(totals, connection.directions, strict=True):
                total.merge(rest)
            connection.directions = totals
            self.first_packets = None

    def finish_and_forget(self, now: int) -> None:
        """The capture is over at `now` (ns), and this tracker is not used any more.

        It and its trackers of requests refer to each other: while no garbage is collected, they
        would stay in memory.
        """
        self.finish(now)
        for each in self.requests:
            each.forget_connection()

    # Joining the parts of a connection from different files.

    def fingerprint(self, *, is_turned: bool = False) -> tuple[object, ...]:
        """Everything that decides how the next packets are taken.

        is_turned: with the ends swapped.
        """
        connection = self.connection
        order = (1, 0) if is_turned else (0, 1)
        return (
            connection.mtu if connection.mtu_is_seen else None,
            [
                (connection.identities[end].high, connection.identities[end].counts_up)
                for end in order
            ],
            [self.requests[end].fingerprint() for end in order],
        )

    def end_first_packets(self) -> None:
        """From here on packets before the first one make no difference."""
        first = self.first_packets
        assert first is not None
        self.take_held()
        first.fingerprint = self.fingerprint()
        first.turned_fingerprint = self.fingerprint(is_turned=True)
        first.next = self.requests[0].next, self.requests[1].next
        first.directions = self.connection.directions
        self.connection.directions = DirectionCounts(), DirectionCounts()
        self.connection.early_acks = self.connection.early_ns = 0

    def join(self, later: ConnectionTracker, *, is_turned: bool) -> None:
        """Continue with the same connection of a later file, after its first packets were taken.

        is_turned: its ends are swapped.
        """
        first = later.first_packets
        assert first is not None
        self.take_held()
        connection, other = self.connection, later.connection
        expected = first.turned_fingerprint if is_turned else first.fingerprint
        connection.seams += self.fingerprint() != expected
        order = (1, 0) if is_turned else (0, 1)
        before = self.requests
        self.requests = later.requests[order[0]], later.requests[order[1]]
        for end, tracker in enumerate(self.requests):
            tracker.join(before[end], next_there=first.next[order[end]])
        connection.identities = other.identities[order[0]], other.identities[order[1]]
        connection.take_damaged(other, is_turned=is_turned)
        connection.early_acks += other.early_acks
        connection.early_ns = max(connection.early_ns, other.early_ns)
        for end in (0, 1):
            connection.directions[end].merge(other.directions[order[end]])
        if other.mtu_is_seen:
            connection.mtu, connection.mtu_is_seen = other.mtu, True
