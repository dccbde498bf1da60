"""A discrete-event simulator of a network: nodes, wires and one virtual clock.

One queue holds all future events, ordered by time and then by the order in which they were
scheduled, so runs with the same nodes are identical. An event is one of three:

- a frame arrives at the far end of a wire: whole, or its first bytes where that end forwards
  them before the rest is there (cut-through);
- a line has become free, or a pause on it has ended, and its port may be polled for the next
  frame;
- a node is woken: its timeout is due, or its application has called it.

After each event only the node of that event is polled: each port whose line is free for a
frame, then the node for its timeout. A node may have a list `ready_ports`, to which it adds the
ports that may have a frame; then only these are polled, as soon as their line is free. A port
that may have another frame after the one that was taken is added again. Events are not removed
from the queue early. A timeout that has moved to a later time is detected at its old time: the
node returns the new time and is not called until then.

A node may have `poll_unbuilt` and `receive_unbuilt`: `poll_transmit` and `receive` with frames
that need not be built. The bytes are made where a stage or the node at the far end needs them.

Two nodes on a plain wire may exchange runs of frames (`ibwire.fabric.flights`): two events for many
frames, with the same results.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sized
from enum import StrEnum
from typing import Final

from ibwire.base.errors import EncodeError, IbwireError, TooManyFrames
from ibwire.base.node import Frame, Node, Stage
from ibwire.base.unbuilt import UnbuiltFrame
from ibwire.base.units import ETHERNET_OVERHEAD, GBPS, US, Time
from ibwire.base.watcher import FrameWatcher
from ibwire.fabric.events import EventQueue
from ibwire.fabric.flights import Flights
from ibwire.fabric.line import NEVER, NOT_GIVEN, Direction, Flight, Station
from ibwire.fabric.pause import PauseGrant
from ibwire_layers.outer import EtherType

MAXIMUM_REPEATS = 100_000
"""Timeouts that one node may handle without time going on: a few for each of its queue pairs."""

MAXIMUM_EVENTS: Final = 1_000_000
"""Frames that may be on their way at a time: hundreds of megabytes with their contents."""


class Outcome(StrEnum):
    """Why a run ended."""

    IDLE = "idle"
    """No event is left."""
    UNTIL = "until"
    """The next event is after the given time."""
    STOPPED = "stopped"
    """`stop` returned true."""
    FRAMES = "frames"
    """The given number of frames has arrived."""


class Livelock(IbwireError):
    """A node whose timeout is due again after each `handle_timeout`, so time stands still."""

    def __init__(self, node: Node, now: Time) -> None:
        self.node = node
        self.now = now
        super().__init__(
            f"{getattr(node, 'name', type(node).__name__)}: at {now} ps the timeout was handled "
            f"{MAXIMUM_REPEATS} times and is still due; handle_timeout must move or clear it"
        )


class Wire:
    """A link between a port of `a` and a port of `b`."""

    __slots__ = ("a_to_b", "b_to_a", "name")

    def __init__(self, name: str, a_to_b: Direction, b_to_a: Direction) -> None:
        self.name = name
        self.a_to_b = a_to_b
        self.b_to_a = b_to_a
        if not min(a_to_b.delay, b_to_a.delay):  # see `ibwire.fabric.flights`
            a_to_b.sends_runs = b_to_a.sends_runs = None


class Simulator:
    """Nodes and wires with a common virtual clock.

    seed: from which the random parts of the network derive theirs, with `random`; the
    simulator itself uses no random numbers. arrivals_first: whether a line that becomes free takes
    its next frame after everything that arrives at the same instant, as in ns-3.
    """

    def __init__(self, seed: int = 0, *, arrivals_first: bool = False) -> None:
        self.seed = seed
        self._tie: Time = 1 if arrivals_first else 0
        self.now: Time = 0
        self._singles = 0
        """Frames that have arrived one by one."""
        self.wires: list[Wire] = []
        self._stations: dict[int, Station] = {}
        self._ports: set[tuple[int, int]] = set()
        self._events = EventQueue()
        self._since: Time = 0
        """When the last event was scheduled."""
        self.flights = Flights(self._events)
        self.flights.enabled = not arrivals_first

    @property
    def frames(self) -> int:
        """Frames that have arrived so far."""
        return self._singles + self.flights.delivered

    @property
    def pending(self) -> int:
        """Future events; some of them may have become obsolete."""
        return len(self._events)

    def random(self, name: str) -> random.Random:
        """The generator of the random part with this name."""
        return random.Random(f"{self.seed}/{name}")

    def connect(
        self,
        a: Node,
        b: Node,
        port_a: int = 0,
        port_b: int = 0,
        *,
        rate_bps: int | tuple[int, int] = 100 * GBPS,
        delay: Time | tuple[Time, Time] = 1 * US,
        a_to_b: Stage | None = None,
        b_to_a: Stage | None = None,
        overhead: int = ETHERNET_OVERHEAD,
        flow_control: bool = False,
        head: int | tuple[int, int] = 0,
        name: str = "",
    ) -> Wire:
        """Put a wire between two ports, of one node or of two.

        rate_bps, delay: of both directions, or a pair: from a to b, from b to a.
        overhead: bytes of line time that each frame costs besides its own.
        flow_control: whether both ends obey pause and PFC frames (IEEE 802.3 annex 31B, IEEE
        802.1Q 36). Such frames end at the line: the nodes do not see them.
        head: bytes of a frame at whose arrival the far end is given all of it, as it forwards a
        frame before the rest is there; 0 for whole frames. Of both directions, or a pair.

        A frame that starts to leave at t arrives, and the line is free, after the
        time of its bytes and the overhead; the frame needs `delay` in addition.
        Stages see a frame at t, in the order of time also across directions, and
        their delays add to its arrival. Raises `EncodeError` for a rate, delay or
        overhead that is invalid, and for a port that has a wire.
        """
        name = name or f"wire{len(self.wires)}"
        rates, delays, heads = _both(rate_bps), _both(delay), _both(head)
        _check_wire(rates, delays, overhead)
        self._take_ports((a, port_a), (b, port_b))
        ends = (self._station(a), port_a), (self._station(b), port_b)
        there, back = (
            Direction(
                f"{name}/{way}",
                near=near[0],
                port=near[1],
                far=far[0],
                far_port=far[1],
                rate_bps=rate,
                delay=wait,
                overhead=overhead,
                stage=stage,
                head=first,
            )
            for way, stage, near, far, rate, wait, first in (
                ("a_to_b", a_to_b, ends[0], ends[1], rates[0], delays[0], heads[0]),
                ("b_to_a", b_to_a, ends[1], ends[0], rates[1], delays[1], heads[1]),
            )
        )
        if flow_control:
            _obey_pauses(there, back)
        wire = Wire(name, there, back)
        self._add(wire)
        return wire

    def _add(self, wire: Wire) -> None:
        """Take a wire into the network and ask both its ends for frames."""
        self.wires.append(wire)
        for line in (wire.a_to_b, wire.b_to_a):
            line.near.add(line)
            self._wake(line.near, self.now)

    def _take_ports(self, a: tuple[Node, int], b: tuple[Node, int]) -> None:
        """Mark two ports as wired; raises `EncodeError` if one is already."""
        taken = self._ports
        for name, (node, port) in (("port_a", a), ("port_b", b)):
            if (id(node), port) in taken:
                raise EncodeError(name, port, "free: a wire is there already")
            taken = taken | {(id(node), port)}
        self._ports = taken

    def cut(self, wire: Wire) -> None:
        """Interrupt a wire: frames on their way are lost, and none leaves until `mend`.

        Pauses of both ends are over. A wire that is cut already stays so.
        """
        for line in (wire.a_to_b, wire.b_to_a):
            if line.free_at == NEVER:
                return
            for flight in self._arriving(line):
                self.flights.divide(flight, self.now, NEVER)
            line.free_at = NEVER
            if line.pause is not None:
                line.pause.clear(self.now)
            lost = [event for event in self._events if event[4] is line and event[5] is not None]
            # Runs have been divided: what they have left in the queue is obsolete.
            line.lost += sum(not isinstance(event[5], Flight) for event in lost)
            self._events.remove(lost)

    def mend(self, wire: Wire) -> None:
        """Let frames pass a wire again that was cut, and ask both its ends for them."""
        for line in (wire.a_to_b, wire.b_to_a):
            if line.free_at == NEVER:
                line.free_at = self.now - 1
                self.ask(line)

    def send_first(self, line: Direction, frame: Frame) -> None:
        """Send a frame of the MAC, such as a pause frame, ahead of what the node has."""
        line.first.append(frame)
        line.poll_transmit = line.poll_first
        self.ask(line)

    def ask(self, line: Direction) -> None:
        """Ask a line for its next frame at the current time."""
        self._events.schedule(self.now, self.now, line.near, line)

    def kick(self, node: Node) -> None:
        """Poll a node for frames and for its timeout at the current time.

        For an application that has given its node work. It may be called at any time, also
        from within the node.
        """
        self._wake(self._station(node), self.now)

    def step(self) -> bool:
        """Process the next event; `False` without one. Kicks no node."""
        try:
            return self._loop(None, _always, None, None) is Outcome.STOPPED
        finally:
            self._settle(self.now, self._since)

    def run(
        self,
        until: Time | None = None,
        stop: Callable[[], bool] | None = None,
        max_frames: int | None = None,
        *,
        stop_if: Sized | None = None,
    ) -> Outcome:
        """Process all events up to and including the time `until`; first kicks nodes with work.

        stop: called before the first and after each event; ends the run when true. Frames that
        travel together are one event, so what it looks at may change by more than one frame.
        max_frames: ends the run when this many more frames have arrived.
        stop_if: `stop` is called after those events only that leave something in it.

        Afterwards `now` is the time of the last event; it is `until` if the run got
        that far. Raises `Livelock`, `TooManyFrames`, and whatever a node, stage or `stop`
        raises; the network stays as it was at that moment.
        """
        if stop is not None and stop():
            return Outcome.STOPPED
        if max_frames is not None and max_frames <= 0:
            return Outcome.FRAMES
        for station in self._stations.values():
            if station.ready or not station.is_idle(self.now):
                self._wake(station, self.now)
        try:
            outcome = self._loop(until, stop, max_frames, stop_if)
            if until is not None and outcome in (Outcome.IDLE, Outcome.UNTIL):
                self.now = max(self.now, until)
                self._since = NEVER
        finally:
            self._settle(self.now, self._since)
        return outcome

    def _settle(self, now: Time, since: Time) -> None:
        """Bring all nodes to where they are without runs."""
        for station in self._stations.values():
            if station.flights:
                self.flights.settle(station, now, since)
        self.flights.interrupted = None

    def _loop(  # long: it runs for every frame  # noqa: C901 - nothing is a function of its own
        self,
        until: Time | None,
        stop: Callable[[], bool] | None,
        max_frames: int | None,
        stop_if: Sized | None,
    ) -> Outcome:
        events, tie = self._events, self._tie
        flights = self.flights
        target = NEVER if max_frames is None else self._singles + flights.delivered + max_frames
        has_runs = flights.enabled
        while True:
            event = events.pop(until)
            if event is None:
                if not len(events):
                    return Outcome.IDLE
                late = events.first()
                if isinstance(late[5], Flight) and late[5].is_stale(late[2]):
                    events.pop()
                    continue
                return Outcome.UNTIL
            now, since, order, station, line, frame = event
            flight: Flight | None = None
            if frame is not None and isinstance(frame, Flight):
                if frame.is_stale(order):
                    continue
                if order == frame.order:
                    flight = frame
                frame = None
            self.now = now
            self._since = since
            if station.flights and (
                line is None or frame is not None or flight is not None or line.free_at <= now
            ):  # else the line was asked at this very instant already, and has the next frame
                flights.settle(station, now, since)
            free_by = now - tie
            if line is None:
                self._woken(station, now)
                lines = station.lines if station.ready is None else ()
            elif flight is not None:
                if flight.order:  # otherwise all of it has been taken before this event
                    flights.arrive(flight, now)
                lines = station.lines if station.ready is None else ()
            elif frame is None:
                line.is_awaited = line.flight is not None and line.flight.end_order > 0
                lines = line.alone
                free_by = now
            else:
                self._singles += 1
                if isinstance(frame, UnbuiltFrame):
                    line.receive_unbuilt(frame, now, line.far_port)  # type: ignore[misc]
                    lines = station.lines if station.ready is None else ()
                elif line.back is not None and frame[12:14] == _MAC_CONTROL:
                    lines = self._obey(line.back, frame, now)
                else:
                    line.receive(frame, now, line.far_port)
                    lines = station.lines if station.ready is None else ()
            while True:
                for line in lines:
                    if line.free_at > free_by:
                        if not (line.polls_always or line.is_awaited or line.free_at == NEVER):
                            line.is_awaited = True
                            order, since_then = line.free_order, line.free_since
                            line.free_order = 0
                            if not order:
                                order, since_then = events.next_order(), now
                            leaving = line.flight
                            if leaving is not None:
                                leaving.end_order = order
                            events.push((line.free_at, since_then, order, station, line, leaving))
                        continue
                    pause = line.pause
                    if pause is not None and pause.paused:
                        pause.advance(now)
                    frame = line.poll_transmit(now, line.port, line.grant)
                    if frame is None:
                        continue
                    stage = line.stage
                    if isinstance(frame, UnbuiltFrame):
                        size = frame.size + line.overhead
                        if stage is line.plain_stage:  # which does nothing
                            stage = None
                        if (
                            frame.continues
                            and has_runs
                            and line.sends_runs is not None
                            and flights.launch(line, frame, size, now)
                        ):
                            continue
                        if not line.takes_unbuilt:
                            frame = frame.build()
                    else:
                        size = len(frame) + line.overhead
                    # At least a picosecond: otherwise empty frames could stop the clock.
                    # `time_of`, inlined.
                    took = (size * line.numerator + line.denominator - 1) // line.denominator
                    free = now + (took or 1)
                    line.free_at = free
                    if stage is None:
                        arrival = free + line.delay
                        if 0 < line.head < size:
                            arrival = now + line.head_time + line.delay
                        if size > line.control_size + line.overhead:
                            arrival += line.latency
                        elif line.plan_arrival is not None:
                            arrival = line.plan_arrival(frame, arrival)
                        if arrival != NOT_GIVEN:
                            events.schedule(arrival, now, line.far, line, frame)
                    else:
                        self._pass(line, stage, frame, now)
                    if line.polls_always:
                        events.schedule(free, now, station, line)
                    else:
                        # `next_order`, inlined.
                        line.free_order = events.order = events.order + 1
                        line.free_since = now
                ready = station.ready
                if not ready:
                    break
                if len(ready) == 1:
                    found = station.by_port.get(ready[0])
                    lines = found.alone if found is not None else ()
                else:
                    by_port = station.by_port
                    lines = tuple([by_port[port] for port in ready if port in by_port])
                ready.clear()
            if station.flights or flights.interrupted is not None:
                flights.review(station, now, since)
            if station.has_timers:
                due = station.poll_timeout()
                if due is not None and not (station.wakes and due >= station.armed):
                    self._wake(station, due)
            if stop is not None and (stop_if is None or stop_if) and stop():
                return Outcome.STOPPED
            if max_frames is not None:
                arrived = self._singles + flights.delivered
                if arrived >= target:
                    return Outcome.FRAMES
                if flights.under_way and arrived + flights.under_way >= target:
                    has_runs = self._limit(target, now, since)
                    if self.frames >= target:
                        return Outcome.FRAMES

    def _limit(self, target: int, now: Time, since: Time) -> bool:
        """Have runs stop after the frame with this number; whether further runs may begin."""
        flights = self.flights
        for station in self._stations.values():
            for flight in tuple(station.flights):
                if flight.line.far is station:
                    flights.take_arrived(flight, now, since)
        lines = [
            line
            for wire in self.wires
            for line in (wire.a_to_b, wire.b_to_a)
            if line.coming or any(flight.line is line for flight in line.far.flights)
        ]
        if len(lines) > 1:
            for line in lines:  # their frames arrive by turns
                for flight in self._arriving(line):
                    flights.divide(flight, now, since)
            return False
        for line in lines:
            for flight in line.far.flights:
                if flight.line is line:
                    flights.limit(flight, target - self.frames)
        return True

    def _arriving(self, line: Direction) -> list[Flight]:
        """The runs on their way along a line, in the order of their arrival."""
        begun = [flight for flight in line.far.flights if flight.line is line]
        return [*begun, *line.coming]

    def _obey(self, line: Direction, frame: Frame, now: Time) -> tuple[Direction, ...]:
        """Change what may be sent on a line by a pause frame; the lines to ask for a frame."""
        assert line.pause is not None
        end = line.pause.take(frame, now)
        if end is not None:
            self._events.schedule(end, self.now, line.near, line)
        return line.alone

    def _pass(self, line: Direction, stage: Stage, given: Frame | UnbuiltFrame, now: Time) -> None:
        """Send a frame through the stage of a direction."""
        unbuilt = given if isinstance(given, UnbuiltFrame) else None
        frame = given.build() if isinstance(given, UnbuiltFrame) else given
        arrival = line.free_at + line.delay
        if unbuilt is not None or line.back is None or frame[12:14] != _MAC_CONTROL:
            if 0 < line.head < len(frame) + line.overhead:
                arrival = now + line.head_time + line.delay
            if len(frame) > line.control_size:
                arrival += line.latency
        if stage is line.plain_stage:
            self._plan(line, frame, arrival, now)
            return
        if isinstance(stage, FrameWatcher):
            stage.record(frame, now)
            self._plan(line, given, arrival, now)
            return
        for extra, out in stage(frame, now):
            if extra < 0:
                raise EncodeError(f"{line.name}: delay of a stage", extra, "0 or above")
            # A frame that came out as it is goes on unbuilt, but a duplicate is on its own.
            going: Frame | UnbuiltFrame = out
            if unbuilt is not None and out is frame:
                going, unbuilt = unbuilt, None
            self._plan(line, going, arrival + extra, now)
        if len(self._events) > MAXIMUM_EVENTS:
            raise TooManyFrames(
                f"{line.name}: more than {MAXIMUM_EVENTS:,} frames are on their way: lower the "
                "`copies` of `duplicate`, or the `delay`"
            )

    def _plan(self, line: Direction, frame: Frame | UnbuiltFrame, arrival: Time, now: Time) -> None:
        """Have a frame that leaves now given to the far end when it arrives.

        The far end itself says when it is given a frame of the link.
        """
        if line.plan_arrival is not None:
            size = frame.size if isinstance(frame, UnbuiltFrame) else len(frame)
            if size <= line.control_size:
                arrival = line.plan_arrival(frame, arrival)
                if arrival == NOT_GIVEN:
                    return
        self._events.schedule(arrival, now, line.far, line, frame)

    def _woken(self, station: Station, now: Time) -> None:
        """Process a wake event of a node."""
        wakes = station.wakes
        wakes.pop()
        station.armed = wakes[-1] if wakes else 0
        due = station.poll_timeout()
        if due is None or due > now:
            return
        if station.repeated_at != now:
            station.repeated_at, station.repeats = now, 0
        station.repeats += 1
        if station.repeats > MAXIMUM_REPEATS:
            raise Livelock(station.node, now)
        station.handle_timeout(now)

    def _wake(self, station: Station, due: Time) -> None:
        """Add a wake event to the queue, unless one is no later."""
        if due < self.now:
            due = self.now
        if station.wakes and due >= station.armed:
            return
        # Each new one is earlier than those before it, which stay and are used again once it
        # has passed. Only a node whose timeout always moves to an earlier time collects
        # many; then the later ones are removed.
        if len(station.wakes) == _MAXIMUM_WAKES:
            station.wakes.clear()
            self._events.remove(
                [event for event in self._events if event[3] is station and event[4] is None]
            )
        station.wakes.append(due)
        station.armed = due
        self._events.schedule(due, self.now, station)

    def _station(self, node: Node) -> Station:
        # By identity: nodes need not be hashable. The station keeps the node alive.
        station = self._stations.get(id(node))
        if station is None:
            station = self._stations[id(node)] = Station(node)
        return station


def _obey_pauses(there: Direction, back: Direction) -> None:
    """Let pause frames that arrive by one direction change what may be sent by the other."""
    for line, other in ((there, back), (back, there)):
        line.grant = line.pause = PauseGrant(line.rate_bps)
        line.back = other


def _both(value: int | tuple[int, int]) -> tuple[int, int]:
    """A value for each direction."""
    return value if isinstance(value, tuple) else (value, value)


def _check_wire(rates: tuple[int, int], delays: tuple[Time, Time], overhead: int) -> None:
    """Raise `EncodeError` for a rate, delay or overhead that is out of range."""
    if min(rates) <= 0:
        raise EncodeError("rate_bps", min(rates), "above 0")
    if min(delays) < 0:
        raise EncodeError("delay", min(delays), "0 or above")
    if overhead < 0:
        raise EncodeError("overhead", overhead, "0 or above")


def _always() -> bool:
    return True


_MAC_CONTROL: Final = EtherType.MAC_CONTROL.to_bytes(2)

_MAXIMUM_WAKES: Final = 64
