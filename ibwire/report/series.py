"""Plot data of a connection: its packets as points, thinned to the width of a screen.

Traffic without events is thinned: of many points, each column of the picture keeps the
lowest and the highest. Events are kept packet by packet, up to a limit for each kind,
so that the memory of a connection is bounded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ibwire.base.membership import are_among
from ibwire.connections.connection import Connection
from ibwire.connections.events import FlowEvent, FlowEventKind, Message
from ibwire.connections.opcode_sets import ACKNOWLEDGE, READ, RESPONSES, VERB
from ibwire.connections.packets import Rows, TransportPacket
from ibwire.connections.runs import CompletedMessages, Run
from ibwire.connections.states import PacketStatus
from ibwire.connections.tracker import RequestTracker
from ibwire.diagnosis.wording import VERBS, duration, opcode
from ibwire_layers.opcodes import OpCode, Service
from ibwire_layers.psn import HALF, MASK, MODULUS
from ibwire_layers.syndrome import AckKind, describe, kind

EVENTS = 500
"""Most events of each kind kept for a connection."""

COMPLETE = 400
"""Points of a series that are kept for any number of columns."""

STEPS = 240
"""Time bins for the goodput of a connection; at most twice as many are used."""


class Role(StrEnum):
    """Kind of a point in the PSN plot; events have their own kinds."""

    REQUEST = "request"
    RETRANSMISSION = "retransmission"
    RESPONSE = "response"
    RETRANSMITTED_RESPONSE = "retransmitted_response"
    ACK = "ack"


class Point(NamedTuple):
    """One packet or message."""

    time_ns: int
    value: int
    """Its height: a PSN, or nanoseconds."""
    number: int
    """Of the packet."""
    words: str


class Spot(NamedTuple):
    """Position of a packet in the plots."""

    time_ns: int
    end: int | None
    """End whose requests the plot shows; `None` for a point with a time and no PSN."""
    value: int


class PlottedEvent(NamedTuple):
    """An event and its position."""

    event: FlowEvent
    spot: Spot
    last_value: int
    """The height of its last PSN."""


class Thinned:
    """Points of one series, in any order; thinned to two for each column."""

    def __init__(self, first_ns: int, last_ns: int, columns: int) -> None:
        self.count = 0
        """Number of all points, including those not kept."""
        self._first_ns = first_ns
        self._span_ns = max(1, last_ns - first_ns)
        self._columns = columns
        self._points: list[Point] = []
        self._cells: dict[int, tuple[Point, Point]] | None = None

    @property
    def is_thinned(self) -> bool:
        """Whether points were left out."""
        return self._cells is not None

    def add(self, point: Point) -> None:
        """Add a point."""
        self.count += 1
        if self._cells is None:
            self._points.append(point)
            if len(self._points) > max(2 * self._columns, COMPLETE):
                self._cells = {}
                for each in self._points:
                    self._put(self._cells, each)
                self._points = []
        else:
            self._put(self._cells, point)

    def add_many(
        self,
        time_ns: npt.NDArray[np.int64],
        value: npt.NDArray[np.int64],
        number: npt.NDArray[np.int64],
        words: Callable[[int], str],
    ) -> None:
        """Add points (n,) in order; words: of one of them, by its index."""

        def point(at: int) -> Point:
            return Point(int(time_ns[at]), int(value[at]), int(number[at]), words(at))

        count, first = len(time_ns), 0
        while first < count and self._cells is None:
            self.add(point(first))
            first += 1
        if first == count or self._cells is None:
            return
        ahead_ns = time_ns[first:] - self._first_ns
        if max(int(ahead_ns.max()), -int(ahead_ns.min())) >= _LARGEST // (self._columns or 1):
            for at in range(first, count):
                self.add(point(at))
            return
        self.count += count - first
        column = np.clip(ahead_ns * self._columns // self._span_ns, 0, self._columns)
        order = np.argsort(column, kind="stable")
        column, height = column[order], value[first:][order]
        starts = np.flatnonzero(np.diff(column, prepend=-1))
        lowest, highest = (
            _first_of_each(extreme, height, starts) for extreme in (np.minimum, np.maximum)
        )
        for cell, low_at, low_value, high_at, high_value in zip(
            column[starts].tolist(),
            (order[lowest] + first).tolist(),
            height[lowest].tolist(),
            (order[highest] + first).tolist(),
            height[highest].tolist(),
            strict=True,
        ):
            low, high = self._cells.get(cell) or (None, None)
            if low is None or low_value < low.value:
                low = point(low_at)
            if high is None or high_value > high.value:
                high = point(high_at)
            self._cells[cell] = low, high

    def points(self) -> list[Point]:
        """The kept points in packet order."""
        if self._cells is None:
            kept = self._points
        else:
            kept = [point for cell in self._cells.values() for point in dict.fromkeys(cell)]
        return sorted(kept, key=lambda point: point.number)

    def _put(self, cells: dict[int, tuple[Point, Point]], point: Point) -> None:
        column = (point.time_ns - self._first_ns) * self._columns // self._span_ns
        # Clocks may step back: points outside of the picture are drawn at its edge.
        column = min(max(column, 0), self._columns)
        low, high = cells.get(column, (point, point))
        cells[column] = min(low, point, key=_value), max(high, point, key=_value)


def _first_of_each(
    extreme: np.ufunc, height: npt.NDArray[np.int64], starts: npt.NDArray[np.intp]
) -> npt.NDArray[np.intp]:
    """Where each part of an array is lowest or highest for the first time; starts: of the parts."""
    size = np.diff(starts, append=len(height))
    hits = np.flatnonzero(height == np.repeat(extreme.reduceat(height, starts), size))
    part = np.searchsorted(starts, hits, side="right")
    first: npt.NDArray[np.intp] = hits[np.diff(part, prepend=0) != 0]
    return first


class Bins:
    """Bytes in equal steps of time."""

    def __init__(self, first_ns: int, last_ns: int) -> None:
        self.step_ns = round_step(max(1, (last_ns - first_ns) // STEPS))
        self.first_ns = first_ns
        self._last = (last_ns - first_ns) // self.step_ns
        self.bytes = np.zeros(self._last + 1)

    def add(self, time_ns: int, size: int) -> None:
        """Take a packet."""
        self.bytes[self._bin(time_ns)] += size

    def add_many(self, time_ns: npt.NDArray[np.int64], size: npt.NDArray[np.integer]) -> None:
        """Take packets (n,)."""
        np.add.at(self.bytes, self._bins(time_ns), size)

    def spread_many(
        self,
        from_ns: npt.NDArray[np.int64],
        to_ns: npt.NDArray[np.int64],
        size: npt.NDArray[np.int64],
    ) -> None:
        """Spread messages (n,), one after the other."""
        first, last = self._bins(from_ns), self._bins(to_ns)
        done = 0
        for at in [*np.flatnonzero(first < last).tolist(), len(size)]:
            np.add.at(self.bytes, last[done:at], size[done:at])
            if at < len(size):
                self.spread(int(from_ns[at]), int(to_ns[at]), int(size[at]))
            done = at + 1

    def spread(self, from_ns: int, to_ns: int, size: int) -> None:
        """Spread a message evenly over the time it took."""
        first, last = self._bin(from_ns), self._bin(to_ns)
        if first >= last:
            self.bytes[last] += size
            return
        for each in range(first, last + 1):
            begin = self.first_ns + each * self.step_ns
            part = min(to_ns, begin + self.step_ns) - max(from_ns, begin)
            self.bytes[each] += size * max(part, 0) / (to_ns - from_ns)

    def _bin(self, time_ns: int) -> int:
        return min(max((time_ns - self.first_ns) // self.step_ns, 0), self._last)

    def _bins(self, time_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.clip((time_ns - self.first_ns) // self.step_ns, 0, self._last)


class Panel:
    """The requests of one end and their responses, by PSN.

    PSNs continue to count across a wrap; after a restart they count from the new first
    PSN, so that PSNs far apart fit into one picture.
    """

    def __init__(self, counts_from_first: bool, first_ns: int, last_ns: int, columns: int) -> None:
        self.counts_from_first = counts_from_first
        self.points = {role: Thinned(first_ns, last_ns, columns) for role in Role}
        self.is_wrapped = False
        """Whether PSNs wrapped."""
        self._near: int | None = None
        self._base = MODULUS

    def add(self, role: Role, tracker: RequestTracker, packet: TransportPacket, words: str) -> int:
        """Take a packet; returns its height."""
        if tracker.next is not None:
            self._near = tracker.next
            if self.counts_from_first:
                self._base = tracker.start
        value = self.height(packet.psn)
        self._near = value + self._base
        self.is_wrapped |= not 0 <= value <= MASK
        self.points[role].add(Point(packet.time_ns, value, packet.number, words))
        return value

    def add_run(
        self,
        tracker: RequestTracker,
        points: Sequence[tuple[Role, npt.NDArray[np.int64], npt.NDArray[np.int64]]],
        rows: Rows,
    ) -> list[npt.NDArray[np.int64]]:
        """Take regular packets; returns their heights.

        points: of each role the positions of its packets and their PSNs, unwrapped.
        """
        if self.counts_from_first:
            self._base = tracker.start
        heights, newest = [], -1
        for role, at, psn in points:
            height = psn - self._base
            heights.append(height)
            if not len(at):
                continue
            self.is_wrapped |= not (height[0] >= 0 and height[-1] <= MASK)
            if at[-1] > newest:
                newest, self._near = int(at[-1]), int(psn[-1])
            self.add_points(role, rows.take(at), height)
        return heights

    def add_points(self, role: Role, rows: Rows, height: npt.NDArray[np.int64]) -> None:
        """Take packets (n,) with their heights."""
        codes = rows.opcode
        self.points[role].add_many(
            rows.time_ns, height, rows.number, lambda at: opcode(int(codes[at]))
        )

    def height(self, psn: int) -> int:
        """Height of a PSN near the latest."""
        near = psn + MODULUS if self._near is None else self._near
        return near + (psn - near + HALF & MASK) - HALF - self._base

    def place(self, role: Role, packet: TransportPacket, words: str) -> None:
        """Take a datagram, whose PSNs have no order."""
        self.points[role].add(Point(packet.time_ns, packet.psn, packet.number, words))


class Series:
    """All plot data of one connection.

    known: the connection as found by an earlier pass over the capture.
    """

    def __init__(self, known: Connection, columns: int) -> None:
        self.connection = known
        self.first_ns, self.last_ns = span_of(known)
        span = self.first_ns, self.last_ns
        self.panels = (
            Panel(known.directions[0].restarts > 0, *span, columns),
            Panel(known.directions[1].restarts > 0, *span, columns),
        )
        """By requesting end."""
        self.latency = Thinned(*span, columns), Thinned(*span, columns)
        """Of messages, by direction."""
        self.slow = Thinned(*span, columns), Thinned(*span, columns)
        """Latency of messages with retransmitted packets."""
        self.payload = Bins(*span), Bins(*span)
        """By direction; of completed messages where completion is visible, otherwise of
        packets, without retransmitted ones."""
        self.by_messages = known.is_reliable and known.is_paired
        self._done_ns = [self.first_ns, self.first_ns]
        """When the newest message of each end was complete."""
        self.marked = Thinned(*span, columns), Thinned(*span, columns)
        self.cnps = Thinned(*span, columns), Thinned(*span, columns)
        """By direction of travel."""
        self.events: list[PlottedEvent] = []
        self.counts: Counter[FlowEventKind] = Counter()
        self._gap_of: dict[int, int] = {}
        """Latest packets before which PSNs were missing, with the requesting end."""

    @property
    def is_thinned(self) -> bool:
        """Whether points were left out."""
        parts = [*self.latency, *self.slow, *self.marked, *self.cnps]
        parts += [part for panel in self.panels for part in panel.points.values()]
        return any(part.is_thinned for part in parts)

    def left_out(self) -> Counter[FlowEventKind]:
        """Number of events of each kind that were not kept."""
        return Counter(
            {kind: count - EVENTS for kind, count in self.counts.items() if count > EVENTS}
        )

    def request(
        self, tracker: RequestTracker, packet: TransportPacket, status: PacketStatus
    ) -> Spot:
        """A request, before the tracker takes it."""
        again = status in (PacketStatus.RETRANSMITTED, PacketStatus.DUPLICATE)
        role = Role.RETRANSMISSION if status is PacketStatus.RETRANSMITTED else Role.REQUEST
        value = self.panels[tracker.end].add(role, tracker, packet, opcode(packet.opcode))
        if not again and not self.by_messages:
            self.payload[tracker.end].add(packet.time_ns, packet.size)
        self._note_gap(packet.number, tracker.end, status)
        return Spot(packet.time_ns, tracker.end, value)

    def response(
        self, tracker: RequestTracker, packet: TransportPacket, status: PacketStatus
    ) -> Spot:
        """A response, before the tracker takes it."""
        panel = self.panels[tracker.end]
        words = opcode(packet.opcode)
        if packet.opcode in ACKNOWLEDGE:
            role = Role.ACK
            if kind(packet.syndrome) is not AckKind.ACK:
                words = describe(packet.syndrome)
        else:
            role = (
                Role.RETRANSMITTED_RESPONSE
                if status is PacketStatus.RETRANSMITTED
                else Role.RESPONSE
            )
            again = status in (PacketStatus.RETRANSMITTED, PacketStatus.DUPLICATE)
            if not again and not self.by_messages:
                self.payload[1 - tracker.end].add(packet.time_ns, packet.size)
        self._note_gap(packet.number, tracker.end, status)
        return Spot(packet.time_ns, tracker.end, panel.add(role, tracker, packet, words))

    def other(self, direction: int, packet: TransportPacket) -> Spot:
        """A datagram; or a CNP or a damaged packet, which have events."""
        if packet.opcode == OpCode.CNP:
            return Spot(packet.time_ns, None, 0)
        if packet.damaged:
            end = 1 - direction if packet.opcode in RESPONSES else direction
            return Spot(packet.time_ns, end, self.panels[end].height(packet.psn))
        self.panels[direction].place(Role.REQUEST, packet, opcode(packet.opcode))
        self.payload[direction].add(packet.time_ns, packet.size)
        return Spot(packet.time_ns, direction, packet.psn)

    def run(self, run: Run) -> Iterator[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Regular packets; yields the end whose requests they concern, positions and heights."""
        rows = run.rows
        if run.connection.service is Service.UD:
            for direction in (0, 1):
                at = np.flatnonzero((run.direction == direction) & (rows.opcode != OpCode.CNP))
                mine = rows.take(at)
                psn = mine.psn.astype(np.int64)
                self.panels[direction].add_points(Role.REQUEST, mine, psn)
                self.payload[direction].add_many(mine.time_ns, mine.size)
                yield direction, at, psn
        for exchange in run.exchanges:
            end, answers = exchange.tracker.end, exchange.responses
            is_ack = _IS_ACKNOWLEDGE[rows.opcode[answers]]
            points = (
                (Role.REQUEST, exchange.requests, exchange.psn),
                (Role.ACK, answers[is_ack], exchange.answers[is_ack]),
                (Role.RESPONSE, answers[~is_ack], exchange.answers[~is_ack]),
            )
            heights = self.panels[end].add_run(exchange.tracker, points, rows)
            if not self.by_messages:
                for carrier, at in ((end, exchange.requests), (1 - end, answers[~is_ack])):
                    self.payload[carrier].add_many(rows.time_ns[at], rows.size[at])
            for (_, at, _), height in zip(points, heights, strict=True):
                yield end, at, height

    def completed(self, messages: CompletedMessages) -> None:
        """Messages that began and ended in a run."""
        way = messages.direction
        if not self.connection.is_reliable:
            return
        first_ns, acked_ns = messages.first_ns, messages.acked_ns
        done = np.maximum.accumulate(np.maximum(first_ns, acked_ns))
        done = np.maximum(done, self._done_ns[way])
        begun = np.maximum(first_ns, np.concatenate([[self._done_ns[way]], done[:-1]]))
        self._done_ns[way] = int(done[-1])
        goes_back = _IS_READ[messages.opcode]
        for carrier, mine in ((way, ~goes_back), (1 - way, goes_back)):
            self.payload[carrier].spread_many(begun[mine], acked_ns[mine], messages.size[mine])
        waited = np.maximum(acked_ns - first_ns, 0)

        def words(at: int) -> str:
            verb = VERB[int(messages.opcode[at])]
            return _words(verb, int(messages.size[at]), int(messages.first_number[at])) + (
                f": {duration(int(waited[at]))}"
            )

        self.latency[way].add_many(acked_ns, waited, messages.acked_number, words)

    def event(self, event: FlowEvent) -> None:
        """An event."""
        if event.kind in (FlowEventKind.ECN_CE, FlowEventKind.CNP):
            lanes = self.marked if event.kind is FlowEventKind.ECN_CE else self.cnps
            point = Point(event.time_ns, 0, event.number, opcode(event.opcode))
            lanes[event.direction].add(point)
            return
        self.counts[event.kind] += 1
        if self.counts[event.kind] > EVENTS:
            return
        end = self._end_of(event)
        if event.kind is FlowEventKind.RESTART:
            value = 0 if self.panels[end].counts_from_first else event.psn
            last_value = value
        else:
            value = self.panels[end].height(event.psn)
            last_value = value + (event.last_psn - event.psn & MASK)
        self.events.append(PlottedEvent(event, Spot(event.time_ns, end, value), last_value))

    def message(self, message: Message) -> None:
        """The end of a message."""
        if not message.acked_number or not self.connection.is_reliable:
            return
        # Messages are carried one after the other, so this one begins where the last has ended.
        begun = max(message.first_ns, self._done_ns[message.direction])
        self._done_ns[message.direction] = max(begun, message.acked_ns)
        goes_back = message.verb == "RDMA_READ"
        carrier = self.payload[message.direction ^ goes_back]
        carrier.spread(begun, message.acked_ns, message.size)
        words = _words(message.verb, message.size, message.first_number)
        waited = max(0, message.acked_ns - message.first_ns)
        if message.retransmitted_packets:
            words += f", {message.retransmitted_packets} of its packets retransmitted"
        words += f": {duration(waited)}"
        target = self.slow if message.retransmitted_packets else self.latency
        point = Point(message.acked_ns, waited, message.acked_number, words)
        target[message.direction].add(point)

    def finish(self) -> None:
        """End of the capture."""
        self.events.sort(key=lambda plotted: (plotted.event.time_ns, plotted.event.number))

    def _note_gap(self, number: int, end: int, status: PacketStatus) -> None:
        if status in (PacketStatus.AFTER_GAP, PacketStatus.RETRANSMITTED):
            self._gap_of[number] = end
            if len(self._gap_of) > _GAPS:
                del self._gap_of[next(iter(self._gap_of))]

    def _end_of(self, event: FlowEvent) -> int:
        """The end whose requests, or the responses to them, an event concerns."""
        if event.kind is FlowEventKind.LOST:
            return self._gap_of.get(event.number, event.direction)
        if event.kind in _OF_A_PACKET and event.opcode in RESPONSES:
            return 1 - event.direction
        return event.direction


class Collector:
    """Collects the series of some connections; an observer of the analysis.

    chosen: the connections as found by an earlier pass.
    columns: of the picture.
    wanted: packets whose positions are kept.
    """

    def __init__(
        self, chosen: Iterable[Connection], columns: int, wanted: Collection[int] = ()
    ) -> None:
        self.series = {each.number: Series(each, columns) for each in chosen}
        self.spots: dict[int, tuple[int, Spot]] = {}
        """Connection and position of the wanted packets."""
        self._wanted = frozenset(wanted)
        self._wanted_numbers = np.array(sorted(self._wanted), np.int64)

    def request(
        self, tracker: RequestTracker, packet: TransportPacket, status: PacketStatus
    ) -> None:
        """A request, before the tracker takes it."""
        number = tracker.connection.number
        series = self.series.get(number)
        if series is not None:
            spot = series.request(tracker, packet, status)
            if packet.number in self._wanted:
                self.spots[packet.number] = number, spot

    def response(
        self, tracker: RequestTracker, packet: TransportPacket, status: PacketStatus
    ) -> None:
        """A response, before the tracker takes it."""
        number = tracker.connection.number
        series = self.series.get(number)
        if series is not None:
            spot = series.response(tracker, packet, status)
            if packet.number in self._wanted:
                self.spots[packet.number] = number, spot

    def other(self, connection: Connection, direction: int, packet: TransportPacket) -> None:
        """A CNP, a datagram, or a packet with a wrong ICRC."""
        series = self.series.get(connection.number)
        if series is not None:
            spot = series.other(direction, packet)
            if packet.number in self._wanted:
                self.spots[packet.number] = connection.number, spot

    def wants(self, connection: int) -> bool:
        """Whether a connection is plotted, by its number."""
        return connection in self.series

    def run(self, run: Run) -> None:
        """Regular packets."""
        number, rows = run.connection.number, run.rows
        is_wanted = are_among(rows.number, self._wanted_numbers)
        found: dict[int, Spot] = {}
        for end, at, heights in self.series[number].run(run):
            for index in np.flatnonzero(is_wanted[at]).tolist():
                position = int(at[index])
                found[position] = Spot(int(rows.time_ns[position]), end, int(heights[index]))
        for position in np.flatnonzero(is_wanted & (rows.opcode == OpCode.CNP)).tolist():
            found[position] = Spot(int(rows.time_ns[position]), None, 0)
        for position, spot in sorted(found.items()):
            self.spots[int(rows.number[position])] = number, spot

    def completed(self, messages: CompletedMessages) -> None:
        """Messages that began and ended in a run."""
        self.series[messages.connection.number].completed(messages)

    def event(self, event: FlowEvent) -> None:
        """An event."""
        series = self.series.get(event.connection)
        if series is not None:
            series.event(event)

    def message(self, message: Message) -> None:
        """The end of a message."""
        series = self.series.get(message.connection)
        if series is not None:
            series.message(message)

    def finish(self) -> None:
        """End of the capture."""
        for series in self.series.values():
            series.finish()


def _words(verb: str, size: int, first_number: int) -> str:
    return f"{VERBS.get(verb, verb)} of {size:,} bytes, begun in packet {first_number}"


def span_of(connection: Connection) -> tuple[int, int]:
    """Times of the first and the last packet, ns."""
    times = [
        time
        for counts in connection.directions
        for time in (counts.first_ns, counts.last_ns)
        if time is not None
    ]
    return min(times, default=0), max(times, default=0)


def round_step(size: int) -> int:
    """The smallest of 1, 2, 5, 10, 20 and so on that is at least so large."""
    power = 1
    while True:
        for digit in (1, 2, 5):
            if digit * power >= size:
                return digit * power
        power *= 10


def cause_of(events: Sequence[PlottedEvent], number: int) -> FlowEvent | None:
    """The retransmission event of a packet, among events of that kind in packet order."""
    at = bisect_right(events, number, key=lambda plotted: plotted.event.number) - 1
    if at >= 0 and number <= max(events[at].event.last_number, events[at].event.number):
        return events[at].event
    return None


def _value(point: Point) -> int:
    return point.value


_OF_A_PACKET = (
    FlowEventKind.REORDERED,
    FlowEventKind.DUPLICATE,
    FlowEventKind.REPEATED,
    FlowEventKind.ICRC_BAD,
)

_GAPS = 4096

_LARGEST = 1 << 62
"""Products of a time and a number of columns fit into 64 bits up to here."""

_IS_ACKNOWLEDGE = np.zeros(256, np.bool_)
_IS_ACKNOWLEDGE[list(ACKNOWLEDGE)] = True
_IS_READ = np.zeros(256, np.bool_)
_IS_READ[list(READ)] = True
