"""Finds the connections of a capture, and gives each of them its packets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import numpy as np
import numpy.typing as npt

from ibwire.connections import breaks, cm_messages, packets, pairing, rounds, steady, untracked
from ibwire.connections.awaited import Awaited
from ibwire.connections.breaks import Breaks
from ibwire.connections.cm_exchanges import CMExchanges
from ibwire.connections.connection import Connection, End, Negotiated
from ibwire.connections.connection_tracker import HORIZON, ConnectionTracker, FirstPackets
from ibwire.connections.flow import FlowKey, Flows
from ibwire.connections.handshakes import Handshake, Handshakes
from ibwire.connections.observer import Observer
from ibwire.connections.packet_observer import PacketObserver
from ibwire.connections.packets import Rows
from ibwire.connections.parked import Parked
from ibwire.connections.pause import Pauses
from ibwire.connections.points import Points
from ibwire.connections.priorities import Priorities
from ibwire.connections.run_observer import RunObserver, RunsObserver
from ibwire.connections.summary import Summary
from ibwire.connections.tracker import START_PSNS
from ibwire.connections.unreachable import Unreachable
from ibwire.dissect import Columns
from ibwire_layers.opcodes import OpCode, Service

BLOCK = 1 << 18
"""Packets that are collected before they are given to their connections."""
HELD = 64
"""Packets of a connection kept beyond that, on average, in place of a tracker, which takes about as
much memory."""
SLICE = 1 << 16
"""Packets of connections without a tracker that are counted at a time."""
TOGETHER = 512
"""Connections that are given their last packets at a time, at least."""
SMALL_BLOCK = 1 << 14
"""The same where packets are followed one by one, because each becomes an object."""
SETTLE_EVERY = 1 << 14
"""Packets after which the flows that wait are paired. So connections and their numbers are the
same, whether packets are followed one by one or many at once."""
WINDOW = 1 << 10
"""Packets of a connection among which regular ones are looked for first."""
ALONE = 12
"""Packets that are taken one by one behind a run; more, where no run follows them."""
PARKED = 4096
"""Packets of a flow that wait for its other direction."""
FEW = 8
"""From this many packets on, mostly wrong ICRCs are an error of the capture, not of packets."""
ICRC_PROBLEM = (
    "{} of the first {} ICRCs are wrong: the capture was taken before they were filled in, or "
    "after headers were rewritten; the ICRCs are ignored"
)
ALL_PARKED = 1 << 20
"""Packets that wait in all flows together."""


class Analysis:
    """Follows the connections of one capture, or of consecutive ones.

    observer: receives events and messages, and every packet if it is a
    `PacketObserver`; regular packets many at a time if it is a `RunObserver`.
    is_part: other captures come before or after, and are joined with
    `merge`: the first packets of every connection are kept. rate_bps: of the link, for
    the times of pause frames. source: the name of the capture, for messages about it.
    known: the connections as an earlier reading of the same capture found them; then only those
    that a `RunObserver` wants are followed, and the others have their numbers and ends alone.
    """

    def __init__(
        self,
        observer: Observer | None = None,
        *,
        is_part: bool = False,
        rate_bps: int | None = None,
        source: str = "",
        known: Sequence[Connection] | None = None,
    ) -> None:
        self._observer = observer
        self._packet_observer = observer if isinstance(observer, PacketObserver) else None
        self._run_observer = observer if isinstance(observer, RunObserver) else None
        self._runs_observer = observer if isinstance(observer, RunsObserver) else None
        self._awaited = Awaited(known, self._run_observer) if known and self._run_observer else None
        """What is still to begin of the connections that are known and wanted."""
        self._is_one_by_one = self._packet_observer is not None and self._run_observer is None
        self._is_part = is_part
        self.points = Points()
        """Leaves out what was captured again at another interface."""
        self._flows = Flows()
        self._priorities = Priorities()
        is_watched = observer is not None and self._runs_observer is None
        self._makes_trackers = is_watched or is_part or known is not None
        """Whether each connection has a tracker from its first packet on."""
        self._trackers: dict[int, ConnectionTracker] = {}
        """By connection: of each that is followed."""
        self._congested: set[int] = set()
        """Connections with a CE mark or a CNP."""
        self._number = np.zeros(1024, np.uint32)
        """Number of the connection by flow, 0 without one; and the direction."""
        self._way = np.zeros(1024, np.uint8)
        self._parked = Parked()
        self._handshakes = Handshakes()
        self._unreachable = Unreachable()
        self._exchanges = CMExchanges()
        self._sender_qpns: dict[FlowKey, int] = {}
        """The sender's QPN by flow, where a handshake names it."""
        self._negotiated: dict[FlowKey, list[Negotiated]] = {}
        self._block: list[Rows] = []
        self._block_rows = 0
        self._room = SMALL_BLOCK if self._is_one_by_one else BLOCK
        """Packets that are kept, at most."""
        self._unsettled = 0
        self._settled = 0
        """How often the flows that wait have been paired."""
        self._ignores_icrc: bool | None = None
        self._summary = Summary(source, Pauses(rate_bps))
        if self._awaited is not None:
            self._summary.connections = self._awaited.connections()

    def take(self, columns: Columns) -> None:
        """Take the next chunk of the capture."""
        self.take_once(self.points.take(columns))

    def take_once(self, columns: Columns) -> None:
        """Take the next chunk of the capture, which `points` has taken already."""
        rows = packets.known(columns)
        summary = self._summary
        summary.note_times(columns)
        summary.cut += packets.cut(columns)
        summary.copies += self.points.copies
        summary.is_unnamed |= self.points.is_unnamed
        summary.frames += columns.rows
        summary.packets += len(rows)
        summary.pauses.take(columns)
        self._unreachable.take(columns)
        received = cm_messages.received(columns)
        for handshake in self._handshakes.take(columns, received):
            self._note_handshake(handshake)
        summary.iwarp = list(self._handshakes.iwarp)
        self._exchanges.take(received)
        flow = self._flows.numbers(columns, rows)
        self._priorities.take(columns, rows, flow)
        self._grow()
        if not len(rows):
            return
        self._unsettled += len(rows)
        if self._awaited is not None and self._ignores_icrc is not None:
            is_wanted = self._awaited.are_wanted(flow)
            rows, flow = rows[is_wanted], flow[is_wanted]
        if len(rows):
            seen = packets.read(columns, rows, flow)
            if self.points.marked is not None:
                seen.marked[self.points.marked[rows]] = True
            self._judge_icrcs(seen)
            if self._awaited is not None:
                seen = seen.take(self._awaited.are_wanted(seen.flow))
            self._sort_out(seen)
        if self._unsettled >= SETTLE_EVERY:
            self._unsettled = 0
            self._settle(force=False)
        if self._block_rows >= self._room:
            self._make_room()

    def flush(self) -> None:
        """Give all kept packets to their connections; more may be taken."""
        if self._block:
            self._deliver(self._take_kept())

    def _take_kept(self) -> Rows:
        """All kept packets; afterwards none is kept."""
        rows = Rows.concatenate(self._block)
        self._block, self._block_rows = [], 0
        self._room = SMALL_BLOCK if self._is_one_by_one else BLOCK
        return rows

    def _make_room(self) -> None:
        """Give packets to their connections, except to those that may never need a tracker."""
        rows = self._take_kept()
        if not self._makes_trackers:
            is_few = self._with_few(rows)
            waits = is_few[self._number[rows.flow]]
            if 0 < waits.sum() <= HELD * is_few.sum():
                self._block, self._block_rows = [rows.take(waits)], int(waits.sum())
                self._room += self._block_rows
                rows = rows.take(~waits)
        if len(rows):
            self._deliver(rows)

    def finish(self) -> Summary:
        """The capture is over, and no other follows."""
        if self._makes_trackers:
            self.flush()
        self._settle(force=True)
        if self._block:
            rest = self._count_untracked(self._take_kept())
            self._deliver_last(rest)
        summary = self._summary
        for tracker in self._trackers.values():
            tracker.finish(summary.last_ns)
        for connection in summary.connections:
            connection.may_be_cut = summary.cut > 0
            if summary.pauses.senders:
                connection.priorities = self._priorities.of(connection.flows)
        if self._awaited is None:
            self._unreachable.note(summary.connections)
        self._add_exchanges()
        if self._is_part:
            summary.connections.sort(key=lambda each: each.first)
            for number, connection in enumerate(summary.connections, 1):
                connection.number = number
        return summary

    def _add_exchanges(self) -> None:
        """Give exchanges of connection managers to their connections; others become one each."""
        exchanges = list(self._exchanges.all())
        if not exchanges:
            return
        by_ends: dict[frozenset[tuple[str, int | None]], Connection] = {}
        for connection in self._summary.connections:
            by_ends[frozenset((end.address, end.qpn) for end in connection.ends)] = connection
            if connection.service is Service.UD:  # a SIDR_REQ names no queue pair of its sender
                for end, other in permutations(connection.ends):
                    by_ends[frozenset([(end.address, None), (other.address, other.qpn)])] = (
                        connection
                    )
        for exchange in exchanges:
            ends = [End(*end) for end in zip(exchange.addresses, exchange.qpns, strict=True)]
            known = by_ends.get(frozenset((end.address, end.qpn) for end in ends))
            if known is not None and exchange.qpns[1] is not None and not exchange.reason:
                known.exchanges = (*known.exchanges, exchange)
                continue
            number = len(self._summary.connections) + 1
            connection = Connection(number, (ends[0], ends[1]), exchange.service)
            connection.pairing = "handshake" if exchange.is_answered else "none"
            connection.first = exchange.first
            connection.exchanges = (exchange,)
            connection.exchange_status = exchange.status(self._summary.last_ns)
            self._summary.connections.append(connection)

    def merge(self, later: Analysis) -> None:
        """Continue with a later capture, as if both were one.

        Both must have been begun with `is_part`; the later one cannot be used afterwards.
        """
        self.flush()
        later.flush()
        files = len(self._summary.sources)
        flows = [self._flows.number(key) for key in later._flows.keys]
        self._grow()
        self._priorities.merge(later._priorities, flows)
        for handshake in self._handshakes.merge(later._handshakes):
            self._note_handshake(handshake, files)
        self._exchanges.merge(later._exchanges, files)
        self._sender_qpns.update(later._sender_qpns)
        for key, negotiated in later._negotiated.items():
            mine = self._negotiated.setdefault(key, [])
            mine += (
                each._replace(place=(files + each.place[0], each.place[1])) for each in negotiated
            )
        self._summary.merge(later._summary)
        self._unreachable.merge(later._unreachable)
        parked = self._parked.apart()
        for tracker in later._trackers.values():
            self._join(tracker, flows, files, parked)
        self._parked = Parked(*parked.values())
        if len(later._parked):
            self._sort_out(later._parked.rows().moved(flows, files))
            self.flush()
            self._settle(force=False)

    def _join(
        self, later: ConnectionTracker, flows: list[int], files: int, parked: dict[int, Rows]
    ) -> None:
        """Continue with a connection of a later capture.

        flows: number here by number there. files: how many captures came before. parked: packets
        of flows that wait here.
        """
        first, connection = later.first_packets, later.connection
        assert first is not None
        rows = Rows.concatenate(first.rows).moved(flows, files)
        connection.flows = [flows[flow] for flow in connection.flows]
        places = [place for flow in connection.flows if (place := self._place_of(flow)) is not None]
        is_known = any(
            flow in parked or self._flows.keys[flow] in self._negotiated
            for flow in connection.flows
        )
        if not places and not is_known:
            first.rows = [rows]
            connection.first = connection.first[0] + files, connection.first[1]
            connection.number = len(self._trackers) + 1
            self._add(connection)
            self._trackers[connection.number] = later
            if connection.is_congested:
                self._congested.add(connection.number)
            for direction, flow in enumerate(connection.flows):
                self._put(flow, connection, direction)
            return
        if not places:
            parts = [parked.pop(flow) for flow in connection.flows if flow in parked]
            rows = Rows.concatenate([*parts, rows])
            rows = rows.take(rows.order())
            flows_in_order = sorted(connection.flows, key=lambda flow: flow != rows.flow[0])
            mine = self._connect(flows_in_order, connection.pairing, rows.first)
            self._deliver(rows)
        else:
            mine = places[0][0]
            for flow in connection.flows:
                if not self._number[flow] and len(mine.flows) == 1:
                    self._add_flow(mine, flow, connection.pairing)
                    if flow in parked:
                        self._deliver(parked.pop(flow))
            self._deliver(rows.take(self._number[rows.flow] > 0))
        if first.fingerprint is not None:
            place = self._place_of(connection.flows[0])
            is_turned = place is not None and place[1] == 1
            self._tracker_of(mine).join(later, is_turned=is_turned)
            if mine.is_congested:
                self._congested.add(mine.number)
            mine.seams += len({place[0].number for place in places}) > 1

    def _add(self, connection: Connection) -> None:
        if self._awaited is None:
            self._summary.connections.append(connection)
        else:
            self._summary.connections[connection.number - 1] = connection

    def _add_flow(self, connection: Connection, flow: int, how: str) -> None:
        """The other direction of a connection has been found."""
        connection.flows = (*connection.flows, flow)
        connection.pairing = how
        near, far = connection.ends
        connection.ends = End(near.address, self._flows.keys[flow].dst_qpn), far
        self._put(flow, connection, 1)

    def _note_handshake(self, handshake: Handshake, file: int = 0) -> None:
        """A handshake, completed in this file, has named the queue pairs of both ends."""
        services = (Service.RC, Service.UC) if handshake.service is None else (handshake.service,)
        for near, far in permutations((handshake.one, handshake.other)):
            for service in services:
                key = FlowKey(near.address, far.address, far.qpn, service)
                self._sender_qpns[key] = near.qpn
                place = self._place(key)
                if place is not None and place[0].number not in self._trackers:
                    self.flush()  # its packets came before
                place_of = file, handshake.number
                negotiated = Negotiated(near.psn, handshake.mtu, near.max_reads, place_of)
                known = self._negotiated.setdefault(key, [])
                known.append(negotiated)
                del known[:-START_PSNS]
                if place is not None:
                    self._tracker_of(place[0]).note_negotiated(place[1], negotiated)

    def _place(self, key: FlowKey) -> tuple[Connection, int] | None:
        flow = self._flows.find(key)
        return None if flow is None or flow >= len(self._number) else self._place_of(flow)

    def _place_of(self, flow: int) -> tuple[Connection, int] | None:
        """Connection and direction of a flow, if it has any."""
        number = int(self._number[flow])
        return (self._summary.connections[number - 1], int(self._way[flow])) if number else None

    def _grow(self) -> None:
        """Make room for the places of new flows."""
        short = len(self._flows.keys) - len(self._number)
        if short > 0:
            more = max(short, len(self._number))
            self._number = np.pad(self._number, (0, more))
            self._way = np.pad(self._way, (0, more))

    def _put(self, flow: int, connection: Connection, direction: int) -> None:
        """Record which direction of which connection a flow is."""
        self._number[flow], self._way[flow] = connection.number, direction

    def _tracker(self, flow: int) -> ConnectionTracker:
        """What follows the connection of a flow."""
        place = self._place_of(flow)
        assert place is not None
        return self._trackers.get(place[0].number) or self._tracker_of(place[0])

    def _tracker_of(self, connection: Connection) -> ConnectionTracker:
        """What follows a connection from now on, if nothing has until now."""
        found = self._trackers.get(connection.number)
        if found is not None:
            return found
        is_wanted = self._run_observer is None or self._run_observer.wants(connection.number)
        if is_wanted:
            together = self._runs_observer
            tracker = ConnectionTracker(
                connection, self._observer, self._packet_observer, self._run_observer, together
            )
            if together is not None:
                tracker.group = together.group(connection)
        else:
            tracker = ConnectionTracker(connection)
        if self._is_part:
            tracker.first_packets = FirstPackets()
        self._trackers[connection.number] = tracker
        for direction, flow in enumerate(connection.flows):
            for negotiated in self._negotiated.get(self._flows.keys[flow], ()):
                tracker.note_negotiated(direction, negotiated)
        return tracker

    @property
    def trackers(self) -> list[ConnectionTracker]:
        """What follows connections, in the order in which it was made.

        At the end of a capture it may be forgotten (`_deliver_last`).
        """
        return list(self._trackers.values())

    def _judge_icrcs(self, rows: Rows) -> None:
        """Ignore the ICRCs of a capture that shows most of them wrong."""
        if self._ignores_icrc is None:
            wrong = int(rows.damaged.sum())
            self._ignores_icrc = 2 * wrong > len(rows) >= FEW
            if self._ignores_icrc:
                self._summary.problems.append(ICRC_PROBLEM.format(wrong, len(rows)))
        if self._ignores_icrc:
            rows.damaged[:] = False

    def _sort_out(self, rows: Rows) -> None:
        """Keep packets until there are many, or until their connection is known."""
        placed = self._number[rows.flow] > 0
        if not placed.all():
            self._parked.add(rows.take(~placed))
            rows = rows.take(placed)
        if len(rows):
            self._block.append(rows)
            self._block_rows += len(rows)

    def _settle(self, force: bool) -> None:
        """Make connections of the flows that wait, as far as their pairing is certain."""
        self._settled += 1
        if not len(self._parked):
            return
        if self._awaited is not None:
            flows = self._parked.flows()
            self._begin(self._awaited.begin(flows, None if force else self._settled))
            return
        if force:
            self._summary.stray_damaged += self._parked.drop_damaged()
            if not len(self._parked):
                return
        pairs = pairing.pair(self._flows.keys, self._parked.rows(), self._sender_qpns)
        groups = [([each.one, each.other], each.how) for each in pairs]
        together = {flow for flows, _ in groups for flow in flows}
        alone = self._parked.flows(1 if force or len(self._parked) > ALL_PARKED else PARKED)
        groups += [([flow], "none") for flow in alone if flow not in together]
        self._begin(groups)

    def _begin(self, groups: list[tuple[list[int], str]]) -> None:
        """Begin connections with the packets that wait: flows and evidence of each."""
        if not groups:
            return
        rows = self._parked.pop([flow for flows, _ in groups for flow in flows])
        distinct, at = np.unique(rows.flow, return_index=True)
        first = dict(zip(distinct.tolist(), at.tolist(), strict=True))
        groups = [(sorted(flows, key=first.__getitem__), how) for flows, how in groups]
        groups.sort(key=lambda group: first[group[0][0]])
        at = np.array([first[flows[0]] for flows, _ in groups])
        places = zip(rows.file[at].tolist(), rows.number[at].tolist(), strict=True)
        for (flows, how), place in zip(groups, places, strict=True):
            self._connect(flows, how, place)
        if self._makes_trackers:
            self._deliver(rows)
        else:
            self._block.append(rows)
            self._block_rows += len(rows)

    def _connect(self, flows: list[int], how: str, first: tuple[int, int]) -> Connection:
        """Begin a connection with these flows, the first of which has the first packet.

        first: file and number of that.
        """
        key = self._flows.keys[flows[0]]
        back = self._flows.keys[flows[1]].dst_qpn if len(flows) > 1 else key.src_qpn
        if back is None:
            back = self._sender_qpns.get(key)
        ends = End(key.src, back), End(key.dst, key.dst_qpn)
        number = len(self._summary.connections) + 1
        if self._awaited is not None:
            number = self._awaited.number_of(flows[0])
        connection = Connection(number, ends, key.service)
        connection.pairing = how
        connection.flows = flows
        connection.first = first
        connection.settled = self._settled
        if self._awaited is not None:
            connection.refused = self._awaited.refused(number)
        self._add(connection)
        for direction, flow in enumerate(flows):
            self._put(flow, connection, direction)
        if self._makes_trackers:
            self._tracker_of(connection)
        return connection

    def _count_untracked(self, rows: Rows) -> Rows:
        """Count connections that need no tracker for these last packets; returns the others."""
        is_counted, number = self._with_few(rows), self._number[rows.flow]
        mine = np.flatnonzero(is_counted[number])
        mine = mine[np.argsort(number[mine], kind="stable")]
        numbers = np.flatnonzero(is_counted)
        counts = np.bincount(number[mine], minlength=len(is_counted))[numbers]
        ends = np.cumsum(counts)
        begin = 0
        while begin < len(numbers):
            start = int(ends[begin] - counts[begin])
            end = max(int(np.searchsorted(ends, start + SLICE, side="right")), begin + 1)
            part = rows.take(mine[start : int(ends[end - 1])])
            is_counted[numbers[begin:end]] = untracked.count(
                [self._summary.connections[each - 1] for each in numbers[begin:end].tolist()],
                part,
                self._way[part.flow],
                counts[begin:end],
                now=self._summary.last_ns,
                observer=self._runs_observer,
            )
            begin = end
        return rows.take(~is_counted[number])

    def _with_few(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Which connections, by number, may need no tracker: so far these are all of their packets.

        A handshake says more of a connection than its packets, and pauses ask for its silences.
        """
        number = self._number[rows.flow]
        counts = np.bincount(number, minlength=len(self._summary.connections) + 1)
        is_few: npt.NDArray[np.bool_] = (counts > 0) & (counts <= untracked.MOST)
        is_few[list(self._trackers)] = False
        is_few[number[untracked.are_odd(rows)]] = False
        if self._summary.pauses.frames:
            is_few[:] = False
        connections = self._summary.connections
        is_few[is_few] = [
            self._is_plain(connections[each - 1]) for each in np.flatnonzero(is_few).tolist()
        ]
        return is_few

    def _is_plain(self, connection: Connection) -> bool:
        """Whether all that is known of a reliable connection is in its packets."""
        if connection.service not in (Service.RC, Service.XRC):
            return False
        observer = self._runs_observer
        if observer is not None and observer.group(connection) != 0:
            return False
        return not self._negotiated or not any(
            self._flows.keys[flow] in self._negotiated for flow in connection.flows
        )

    def _deliver_last(self, rows: Rows) -> None:
        """Give the last packets to their connections, and forget trackers that are not needed.

        Where many packets are left, their connections are taken some thousands of packets, or some
        hundreds of connections, at a time, so that few of the trackers are in memory together.
        """
        order = np.argsort(self._number[rows.flow], kind="stable")
        number = self._number[rows.flow[order]]
        starts = np.append(np.flatnonzero(np.diff(number, prepend=0)), len(rows))
        begin = 0
        while len(rows) - begin > SMALL_BLOCK:
            last = number[begin + SMALL_BLOCK - 1]
            end = int(np.searchsorted(number, last, side="right"))
            many = int(np.searchsorted(starts, begin)) + TOGETHER
            end = max(end, int(starts[min(many, len(starts) - 1)]))
            self._deliver(rows.take(order[begin:end]), are_last=True)
            over = np.flatnonzero(np.bincount(number[begin:end])).tolist()
            for each in over:
                self._trackers.pop(each).finish_and_forget(self._summary.last_ns)
            if self._runs_observer is not None:
                self._runs_observer.over(over)
            begin = end
        if begin < len(rows):
            self._deliver(rows.take(order[begin:]), are_last=True)

    def _deliver(self, rows: Rows, *, are_last: bool = False) -> None:
        """Give packets to their connections.

        are_last: nothing more follows, so that nothing needs to be copied of these rows.
        """
        number = self._number[rows.flow]
        if len(self._summary.connections) < 1 << 16:
            number = number.astype(np.uint16)  # which is sorted in linear time
        order = np.argsort(number, kind="stable")
        rows = rows.take(order)
        direction = self._way[rows.flow]
        starts = np.flatnonzero(np.diff(number[order], prepend=number.dtype.type(0)))
        ends = np.append(starts[1:], len(rows))
        trackers = list(map(self._tracker, rows.flow[starts].tolist()))
        self._note_congestion(trackers, rows, direction, starts, ends)
        found = Breaks([], len(rows))
        if not self._is_one_by_one:
            followed = [each.connection for each in trackers]
            found = breaks.find(followed, rows, direction, ends - starts)
        taken = rounds.advance(trackers, rows, direction, starts, ends, found)
        starts = starts + taken
        one_by_one = ends - starts < steady.LEAST
        if self._is_one_by_one:
            one_by_one[:] = True
        for index in np.flatnonzero(starts < ends).tolist():
            tracker, first = trackers[index], trackers[index].first_packets
            if first is None and one_by_one[index]:
                continue
            at = slice(int(starts[index]), int(ends[index]))
            part, ways = rows.take(at), direction[at]
            room = HORIZON - first.count if first is not None else 0
            if first is not None and room > 0:
                kept = part.take(np.arange(min(room, len(part))))  # a copy, that outlives the block
                first.rows.append(kept)
                first.count += len(kept)
                if first.count == HORIZON:
                    begin = int(starts[index])
                    _take(tracker, kept, ways[:room], found.between(begin, begin + room))
                    tracker.end_first_packets()
                    part, ways = part.take(slice(room, None)), ways[room:]
                    one_by_one[index] = False
            if not one_by_one[index]:
                end = int(ends[index])
                _take(tracker, part, ways, found.between(end - len(part), end))
        counts = (ends - starts) * one_by_one
        lone = np.repeat(starts - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        single, ways = rows.take(lone).packets(), direction[lone].tolist()
        begin = 0
        for index in np.flatnonzero(counts).tolist():
            end = begin + int(counts[index])
            trackers[index].take_all(ways[begin:end], single[begin:end])
            begin = end
        for index in np.flatnonzero(taken).tolist() if not are_last else ():
            trackers[index].copy_kept()

    def _note_congestion(
        self,
        trackers: list[ConnectionTracker],
        rows: Rows,
        direction: npt.NDArray[np.uint8],
        starts: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64],
    ) -> None:
        """Take the packets of each connection for what congestion, and pauses, do to it."""
        if self._summary.pauses.frames:
            for tracker, start, end in zip(trackers, starts.tolist(), ends.tolist(), strict=True):
                tracker.connection.note_silences(rows.time_ns[start:end], tracker.last_ns)
        shows = np.add.reduceat(rows.marked | (rows.opcode == OpCode.CNP), starts) > 0
        self._congested |= {trackers[each].connection.number for each in np.flatnonzero(shows)}
        for index, tracker in enumerate(trackers) if self._congested else ():
            if tracker.connection.number in self._congested:
                at = slice(int(starts[index]), int(ends[index]))
                tracker.connection.take_congestion(
                    rows.take(at), direction[at], self._summary.sources
                )


def _take(
    tracker: ConnectionTracker, rows: Rows, direction: npt.NDArray[np.uint8], found: Breaks
) -> None:
    """Give a connection packets: regular ones together, the others one by one.

    Runs are looked for up to the next break, and in windows that grow as long as they are regular
    to their end: else each run between two losses would cost a look at all packets. found: the
    breaks among the packets.
    """
    at, window, alone = 0, WINDOW, ALONE
    while at < len(rows):
        stop = found.following(at)
        ahead = slice(at, min(at + window, stop))
        took = 0
        if ahead.stop - at >= steady.LEAST or stop == len(rows):
            took = steady.advance(tracker, rows.take(ahead), direction[ahead])
        at += took
        if took == window:
            window *= 4
        elif at < len(rows):
            window = WINDOW
            alone = ALONE if took else min(2 * alone, steady.LEAST)
            part = rows.take(slice(at, at + alone))
            ways = direction[at : at + len(part)].tolist()
            tracker.take_all(ways, part.packets())
            at += len(part)
