"""A capture as connections: packets go in a chunk at a time, and what became of them comes out."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import numpy.typing as npt

from ibwire.connections import packets, pairing, steady
from ibwire.connections.connection import (
    HORIZON,
    Birth,
    Connection,
    End,
    Head,
    Observer,
    PacketObserver,
)
from ibwire.connections.flow import FlowKey, Flows
from ibwire.connections.handshakes import Agreement, Agreements
from ibwire.connections.packets import Rows
from ibwire.connections.pause import Pauses
from ibwire.dissect import Columns
from ibwire_layers.opcodes import OpCode, Service

BLOCK = 1 << 18
"""Packets that are collected before they are followed: many of one connection at once."""
SMALL_BLOCK = 1 << 14
"""The same where packets are followed one by one, because each becomes an object."""
SETTLE_EVERY = 1 << 14
"""Packets after which it is looked which of the flows that wait belong together. So connections
and their numbers are the same, however packets are followed."""
PARKED = 4096
"""Packets of a flow that wait for its other direction."""
STEP_NS = 1_000_000
"""Queues of a NIC and CPUs of a host disorder times by less."""
BACK_PROBLEM = "times go back by {:.6f} s from one frame to the next: latencies and order are wrong"
CUT_PROBLEM = (
    "{:,} packets were cut before the end of their transport headers, and are left out: what "
    "looks lost may be one of them"
)
FEW = 8
"""Packets from which on most ICRCs being wrong says something of the capture, not of packets."""
ICRC_PROBLEM = (
    "{} of the first {} ICRCs are wrong: the capture was taken before they were filled in, or "
    "after headers were rewritten; the packets are believed all the same"
)
CLOCK_PROBLEM = (
    "{} begins {:.6f} s before the captures that come first have ended: clocks disagree, or they "
    "are captures of several points (see --other), and order and times cannot be relied on"
)
ALL_PARKED = 1 << 20
"""Packets that wait in all flows together."""


class Summary:
    """What is known of a capture, or of several."""

    def __init__(self, source: str = "", pauses: Pauses | None = None) -> None:
        self.sources = [source]
        self.pauses = pauses or Pauses()
        """Pause frames of all senders."""
        self.connections: list[Connection] = []
        self.first_ns: int | None = None
        self.last_ns = 0
        self.frames = 0
        self.packets = 0
        """With a transport header."""
        self.stray_damaged = 0
        """Packets with a wrong ICRC that belong to no flow: the damage may be in their headers."""
        self.problems: list[str] = []
        self.cut = 0
        """Packets whose transport headers were not captured whole."""
        self.back_ns = 0
        """How far a time is before the one of the frame that comes first."""
        self._newest = 0

    def note_times(self, columns: Columns) -> None:
        """Note when the frames of the next chunk were seen, and whether their clock goes back."""
        times = columns.frames.batch.time_ns
        if not len(times):
            return
        before = np.concatenate([times[:1] if self.first_ns is None else [self._newest], times])
        back = before[:-1] - before[1:]
        self.back_ns = max(self.back_ns, int(back.max()))
        self._newest = int(times[-1])
        self.first_ns = min(self.first_ns or int(times[0]), int(times.min()))
        self.last_ns = max(self.last_ns, int(times.max()))

    def all_problems(self) -> list[str]:
        """What is wrong with the captures themselves, in words."""
        found = list(self.problems)
        if self.back_ns > STEP_NS:
            found.append(BACK_PROBLEM.format(self.back_ns / 1e9))
        if self.cut:
            found.append(CUT_PROBLEM.format(self.cut))
        return found

    def merge(self, later: Summary) -> None:
        """Count what a later capture has, but for its connections."""
        shared = self.last_ns - (later.first_ns or self.last_ns)
        if shared > 0:
            self.problems.append(CLOCK_PROBLEM.format(later.sources[0], shared / 1e9))
        self.sources += later.sources
        self.pauses.merge(later.pauses)
        self.frames += later.frames
        self.packets += later.packets
        self.stray_damaged += later.stray_damaged
        self.problems += later.problems
        self.cut += later.cut
        self.back_ns = max(self.back_ns, later.back_ns)
        if self.first_ns is None:
            self.first_ns = later.first_ns
        self.last_ns = max(self.last_ns, later.last_ns)


class Analysis:
    """Follows the connections of one capture, or of consecutive ones.

    observer: hears of events and messages, and of every packet if it is a
    `PacketObserver`. is_part: other captures come before or after, and
    `merge` will be asked for: the first packets of every connection are kept. rate_bps:
    of the link, for the times of pause frames. source: the name of the capture, for
    what is said of it.
    """

    def __init__(
        self,
        observer: Observer | None = None,
        *,
        is_part: bool = False,
        rate_bps: int | None = None,
        source: str = "",
    ) -> None:
        self._observer = observer
        self._packet_observer = observer if isinstance(observer, PacketObserver) else None
        self._is_part = is_part
        self._flows = Flows()
        self._places: list[tuple[Connection, int] | None] = []
        """Connection and direction by flow; the arrays say the same by numbers."""
        self._number = np.zeros(1024, np.uint32)
        self._way = np.zeros(1024, np.uint8)
        self._parked: dict[int, list[Rows]] = {}
        self._parked_rows = 0
        self._agreements = Agreements()
        self._agreed: dict[FlowKey, int] = {}
        """The sender's QPN by flow, where somebody said it."""
        self._births: dict[FlowKey, Birth] = {}
        self._block: list[Rows] = []
        self._block_rows = 0
        self._unsettled = 0
        self._ignores_icrc: bool | None = None
        self._summary = Summary(source, Pauses(rate_bps))

    def take(self, columns: Columns) -> None:
        """Take the next chunk of the capture."""
        rows = packets.known(columns)
        summary = self._summary
        summary.note_times(columns)
        summary.cut += packets.cut(columns)
        summary.frames += columns.rows
        summary.packets += len(rows)
        summary.pauses.take(columns)
        for agreement in self._agreements.take(columns):
            self._agree(agreement)
        flow = self._flows.numbers(columns, rows)
        self._grow()
        if not len(rows):
            return
        seen = packets.read(columns, rows, flow)
        self._judge(seen)
        self._sort_out(seen)
        self._unsettled += len(seen)
        if self._unsettled >= SETTLE_EVERY:
            self._unsettled = 0
            self._settle(force=False)
        if self._block_rows >= (BLOCK if self._packet_observer is None else SMALL_BLOCK):
            self.flush()

    def flush(self) -> None:
        """Follow all packets whose connections are known; more may be taken."""
        if self._block:
            rows = Rows.concatenate(self._block)
            self._block, self._block_rows = [], 0
            self._deliver(rows)

    def finish(self) -> Summary:
        """The capture is over, and no other follows."""
        self.flush()
        self._settle(force=True)
        summary = self._summary
        for connection in summary.connections:
            connection.finish(summary.last_ns)
        if self._is_part:
            summary.connections.sort(key=lambda each: each.first)
            for number, connection in enumerate(summary.connections, 1):
                connection.number = number
        return summary

    def merge(self, later: Analysis) -> None:
        """Go on with what a later capture says, as if it had been one with this.

        Both must have been begun with `is_part`; the later one is used up.
        """
        self.flush()
        later.flush()
        files = len(self._summary.sources)
        flows = [self._flows.number(key) for key in later._flows.keys]
        self._grow()
        for agreement in self._agreements.merge(later._agreements):
            self._agree(agreement)
        self._agreed.update(later._agreed)
        self._births.update(later._births)
        self._summary.merge(later._summary)
        for connection in later._summary.connections:
            self._join(connection, flows, files)
        parked = [rows for parts in later._parked.values() for rows in parts]
        if parked:
            rows = Rows.concatenate(parked).moved(flows, files)
            self._sort_out(rows.take(rows.order()))
            self.flush()
            self._settle(force=False)

    def _join(self, later: Connection, flows: list[int], files: int) -> None:
        """Go on with a connection of a later capture."""
        assert later.head is not None
        rows = Rows.concatenate(later.head.rows).moved(flows, files)
        later.flows = [flows[flow] for flow in later.flows]
        places = [place for flow in later.flows if (place := self._places[flow]) is not None]
        is_known = any(
            flow in self._parked or self._flows.keys[flow] in self._births for flow in later.flows
        )
        if not places and not is_known:
            later.head.rows = [rows]
            later.first = later.first[0] + files, later.first[1]
            later.number = len(self._summary.connections) + 1
            self._summary.connections.append(later)
            for direction, flow in enumerate(later.flows):
                self._put(flow, later, direction)
            return
        if not places:
            parts = [part for flow in later.flows for part in self._parked.pop(flow, [])]
            self._parked_rows -= sum(map(len, parts))
            rows = Rows.concatenate([*parts, rows])
            rows = rows.take(rows.order())
            mine = self._connect(later.flows, later.pairing, rows)
            self._deliver(rows)
        else:
            mine = places[0][0]
            for flow in later.flows:
                if self._places[flow] is None and len(mine.flows) == 1:
                    self._add_flow(mine, flow, later.pairing)
            self._deliver(rows.take(self._number[rows.flow] > 0))
        if later.head.state is not None:
            place = self._places[later.flows[0]]
            mine.go_on(later, is_turned=place is not None and place[1] == 1)
            mine.seams += len({place[0].number for place in places}) > 1

    def _add_flow(self, connection: Connection, flow: int, how: str) -> None:
        """The other direction of a connection has been found."""
        connection.flows.append(flow)
        connection.pairing = how
        near, far = connection.ends
        connection.ends = End(near.address, self._flows.keys[flow].dst_qpn), far
        self._put(flow, connection, 1)
        for part in self._parked.pop(flow, ()):
            self._parked_rows -= len(part)
            self._deliver(part)

    def _agree(self, agreement: Agreement) -> None:
        """Two ends have told each other their queue pairs."""
        services = (Service.RC, Service.UC) if agreement.service is None else (agreement.service,)
        for near, far in permutations((agreement.one, agreement.other)):
            for service in services:
                key = FlowKey(near.address, far.address, far.qpn, service)
                self._agreed[key] = near.qpn
                birth = self._births[key] = Birth(near.psn, agreement.mtu, near.max_reads)
                place = self._place(key)
                if place is not None:
                    place[0].renew(place[1], birth)

    def _place(self, key: FlowKey) -> tuple[Connection, int] | None:
        flow = self._flows.find(key)
        return None if flow is None or flow >= len(self._places) else self._places[flow]

    def _grow(self) -> None:
        """Make room for the places of new flows."""
        self._places.extend([None] * (len(self._flows.keys) - len(self._places)))
        short = len(self._places) - len(self._number)
        if short > 0:
            more = max(short, len(self._number))
            self._number = np.pad(self._number, (0, more))
            self._way = np.pad(self._way, (0, more))

    def _put(self, flow: int, connection: Connection, direction: int) -> None:
        """A flow is this direction of that connection."""
        self._places[flow] = connection, direction
        self._number[flow], self._way[flow] = connection.number, direction

    def _connection(self, flow: int) -> Connection:
        place = self._places[flow]
        assert place is not None
        return place[0]

    def connection_of(self, flow: int) -> tuple[Connection, int] | None:
        """Connection and direction of a flow, once they are known."""
        return self._places[flow]

    def _judge(self, rows: Rows) -> None:
        """Believe packets with wrong ICRCs where that is how a capture shows all of them."""
        if self._ignores_icrc is None:
            wrong = int(rows.damaged.sum())
            self._ignores_icrc = 2 * wrong > len(rows) >= FEW
            if self._ignores_icrc:
                self._summary.problems.append(ICRC_PROBLEM.format(wrong, len(rows)))
        if self._ignores_icrc:
            rows.damaged[:] = False

    def _sort_out(self, rows: Rows) -> None:
        """Put packets aside until there are many, or until their connection is known."""
        placed = self._number[rows.flow] > 0
        if not placed.all():
            for flow, part in _by_flow(rows.take(~placed)):
                self._parked.setdefault(flow, []).append(part)
                self._parked_rows += len(part)
            rows = rows.take(placed)
        if len(rows):
            self._block.append(rows)
            self._block_rows += len(rows)

    def _settle(self, force: bool) -> None:
        """Make connections of the flows that wait, as far as it is clear which belong together."""
        if not self._parked:
            return
        self._parked = {flow: [Rows.concatenate(parts)] for flow, parts in self._parked.items()}
        if force:
            self._drop_stray()
        waiting = []
        for flow, (rows,) in self._parked.items():
            key = self._flows.keys[flow]
            if key.service is not Service.UC:
                waiting.append(pairing.candidate(flow, key, rows))
        groups = [([p.one, p.other], p.how) for p in pairing.pair(waiting, self._agreed)]
        together = {flow for flows, _ in groups for flow in flows}
        full = force or self._parked_rows > ALL_PARKED
        for flow, (rows,) in self._parked.items():
            if flow not in together and (full or len(rows) >= PARKED):
                groups.append(([flow], "none"))
        groups.sort(key=lambda group: min(self._parked[flow][0].first for flow in group[0]))
        begun = []
        for flows, how in groups:
            rows = Rows.concatenate([part for flow in flows for part in self._parked.pop(flow)])
            self._parked_rows -= len(rows)
            rows = rows.take(rows.order()) if len(flows) > 1 else rows
            self._connect(flows, how, rows)
            begun.append(rows)
        if begun:
            self._deliver(Rows.concatenate(begun))

    def _drop_stray(self) -> None:
        """Flows of damaged packets alone may be no flows: the damage may be in their addresses."""
        for flow, (rows,) in list(self._parked.items()):
            if rows.damaged.all():
                self._summary.stray_damaged += len(rows)
                self._parked_rows -= len(rows)
                del self._parked[flow]

    def _connect(self, flows: list[int], how: str, rows: Rows) -> Connection:
        """Begin a connection with these flows, whose packets are `rows`, in their order."""
        flows = sorted(flows, key=lambda flow: flow != rows.flow[0])
        key = self._flows.keys[flows[0]]
        back = self._flows.keys[flows[1]].dst_qpn if len(flows) > 1 else key.src_qpn
        if back is None:
            back = self._agreed.get(key)
        ends = End(key.src, back), End(key.dst, key.dst_qpn)
        connection = Connection(len(self._summary.connections) + 1, ends, key.service)
        connection.pairing = how
        connection.observer = self._observer
        connection.packet_observer = self._packet_observer
        connection.flows = flows
        connection.first = rows.first
        if self._is_part:
            connection.head = Head()
        self._summary.connections.append(connection)
        for direction, flow in enumerate(flows):
            self._put(flow, connection, direction)
            birth = self._births.get(self._flows.keys[flow])
            if birth is not None:
                connection.renew(direction, birth)
        return connection

    def _deliver(self, rows: Rows) -> None:
        """Give packets to their connections, which are known."""
        number = self._number[rows.flow]
        if len(self._summary.connections) < 1 << 16:
            number = number.astype(np.uint16)  # which is sorted in linear time
        order = np.argsort(number, kind="stable")
        rows = rows.take(order)
        direction = self._way[rows.flow]
        starts = np.flatnonzero(np.diff(number[order], prepend=number.dtype.type(0)))
        ends = np.append(starts[1:], len(rows))
        one_by_one = ends - starts < steady.LEAST
        if self._packet_observer is not None:
            one_by_one[:] = True
        has_pauses = self._summary.pauses.frames > 0
        congested = np.add.reduceat(rows.marked | (rows.opcode == OpCode.CNP), starts) > 0
        for index, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            connection = self._connection(rows.flow[start])
            if has_pauses:
                connection.note_silences(rows.time_ns[start:end])
            if connection.head is None and one_by_one[index] and not congested[index]:
                continue
            part, ways = rows.take(slice(start, end)), direction[start:end]
            if congested[index] or connection.is_congested:
                connection.take_congestion(part, ways, self._summary.sources)
            head = connection.head
            room = HORIZON - head.count if head is not None else 0
            if head is not None and room > 0:
                kept = part.take(np.arange(min(room, len(part))))  # a copy, that outlives the block
                head.rows.append(kept)
                head.count += len(kept)
                if head.count == HORIZON:
                    _take(connection, kept, ways[:room])
                    connection.settle_head()
                    part, ways = part.take(slice(room, None)), ways[room:]
                    one_by_one[index] = False
            if not one_by_one[index]:
                _take(connection, part, ways)
        lone = np.flatnonzero(np.repeat(one_by_one, ends - starts))
        for packet, way in zip(rows.take(lone).seen(), direction[lone].tolist(), strict=True):
            self._connection(packet.flow).take(way, packet)


def _take(connection: Connection, rows: Rows, direction: npt.NDArray[np.uint8]) -> None:
    """Give a connection packets: regular ones together, the others one by one."""
    at = 0
    while at < len(rows):
        took = steady.advance(connection, rows.take(slice(at, None)), direction[at:])
        at += took
        if not took or at < len(rows):
            part = rows.take(slice(at, at + steady.LEAST))
            for each, packet in zip(direction[at:].tolist(), part.seen(), strict=False):
                connection.take(each, packet)
            at += len(part)


def _by_flow(rows: Rows) -> list[tuple[int, Rows]]:
    order = np.argsort(rows.flow, kind="stable")
    rows = rows.take(order)
    starts = np.flatnonzero(np.diff(rows.flow, prepend=-1))
    ends = [*starts[1:].tolist(), len(rows)]
    return [
        (int(rows.flow[start]), rows.take(slice(start, end)))
        for start, end in zip(starts.tolist(), ends, strict=True)
    ]
