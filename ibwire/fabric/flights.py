"""Runs of frames on the wires of a simulator.

A run (`ibwire.base.run`) takes two events however many frames it has: the first frame arrives as
any other; the rest is given to the far end when the last of it has arrived. Nothing else differs
from frames that travel one by one, because a run ends or is divided whenever that could matter:

- Before any event at the near end, frames that have not begun to leave are taken back. The device
  is asked for them again when the line is free.
- Before any event at the far end, the frames that have arrived by then are given to it.
- After any event at the far end, it is asked whether it takes the rest without an answer. If not,
  or if they change memory from which it sends a run, each frame gets its own event.
- A line with a stage, a tap or pause frames, or between other nodes than devices, has no runs.
- Nor has a wire without delay: frames of both directions may begin and end at the same instants
  there, in an order that depends on all frames before.

Events at the same instant take place in the order in which they were scheduled. For the frames of
a run that is when they began to leave.
"""

from __future__ import annotations

from ibwire.base.node import Frame
from ibwire.base.unbuilt import UnbuiltFrame
from ibwire.base.units import Time
from ibwire.fabric.events import EventQueue
from ibwire.fabric.line import Direction, Flight, Station


class Flights:
    """All runs on the wires of a simulator, whose events it shares."""

    def __init__(self, events: EventQueue) -> None:
        self._events = events
        self.enabled = True
        self.under_way = 0
        """Frames of runs that have not arrived."""
        self.delivered = 0
        """Frames of runs that have arrived."""

    def launch(self, line: Direction, frame: UnbuiltFrame, size: int, now: Time) -> bool:
        """Send a frame that leaves now as the first of a run, if its node has one.

        size: bytes of line time of each frame. The line is free after the last.
        """
        sender = line.sends_runs
        if (
            sender is None
            or not self.enabled
            or line.stage is not None
            or line.pause is not None
            or now < line.no_run_before
            or line.poll_transmit is not line.plain_poll
            or line.receive is not line.far.receive
        ):
            return False
        run = sender.extend_run(frame)
        if run is None:
            return False
        step = line.time_of(size) or 1
        flight = Flight(run, line, now, step)
        flight.order = self._events.next_order()
        self._events.push((flight.arrival(0), now, flight.order, line.far, line, flight))
        line.free_at = now + run.count * step
        line.free_since = line.free_at - step
        line.free_order = self._events.next_order()
        line.flight = flight
        line.near.flights.append(flight)
        line.far.flights.append(flight)
        self.under_way += run.count
        return True

    def settle(self, station: Station, now: Time, since: Time) -> None:
        """Bring the runs of a station to where they are before an event scheduled at `since`."""
        for flight in tuple(station.flights):
            if flight.line.near is station:
                self._cut(flight, now, since)
            elif flight.taken:
                self._deliver(flight, flight.arrived(now, since))

    def review(self, station: Station, now: Time, since: Time) -> None:
        """After an event: have the runs towards a station arrive as a whole, or frame by frame."""
        for flight in tuple(station.flights):
            line = flight.line
            if line.far is not station or not flight.taken:
                continue
            assert line.takes_runs is not None
            if not line.takes_runs.expects_run(flight.run, flight.taken) or any(
                line.takes_runs.overwrites(flight.run, flight.taken, other.run)
                for other in station.flights
                if other.line.near is station
            ):
                self.divide(flight, now, since)
            elif not flight.order:
                self._await_last(flight)

    def arrive(self, flight: Flight, now: Time) -> None:
        """Process the event at which a run arrives: its first frame, or all that are left."""
        if flight.taken:
            self._deliver(flight, flight.run.count)
            return
        line, frame = flight.line, flight.run.frame(0)
        flight.order = 0
        self._count(flight, 1)
        if line.takes_unbuilt and line.receive_unbuilt is not None:
            line.receive_unbuilt(frame, now, line.far_port)
        else:
            line.receive(frame.build(), now, line.far_port)

    def divide(self, flight: Flight, now: Time, since: Time) -> None:
        """Have the frames that are on their way arrive one by one, and the others asked for."""
        self._cut(flight, now, since)
        line, run = flight.line, flight.run
        line.no_run_before = now + 2 * (line.delay + flight.step)
        for index in range(flight.taken, run.count):
            frame = run.frame(index)
            began = flight.start + index * flight.step
            made: Frame | UnbuiltFrame = frame if line.takes_unbuilt else frame.build()
            event = (flight.arrival(index), began, self._events.next_order(), line.far, line, made)
            self._events.push(event)
        self.under_way -= run.count - flight.taken
        self._end(flight)

    def _cut(self, flight: Flight, now: Time, since: Time) -> None:
        """Take back the frames that have not begun to leave."""
        line, run = flight.line, flight.run
        if line.flight is not flight:
            return  # all have left
        line.flight = None
        line.near.flights.remove(flight)
        left = flight.left(now, since)
        back = run.count - left
        if not back:
            return
        assert line.sends_runs is not None
        line.sends_runs.take_back(run, back)
        self.under_way -= back
        flight.end_order = 0
        line.free_at = flight.start + left * flight.step
        line.free_order = 0
        line.is_awaited = True
        since = line.free_at - flight.step
        event = (line.free_at, since, self._events.next_order(), line.near, line, None)
        self._events.push(event)
        if flight.taken == run.count:
            self._end(flight)
        elif flight.taken:
            self._await_last(flight)

    def _await_last(self, flight: Flight) -> None:
        line, last = flight.line, flight.run.count - 1
        flight.order = self._events.next_order()
        began = flight.start + last * flight.step
        event = (flight.arrival(last), began, flight.order, line.far, line, flight)
        self._events.push(event)

    def _deliver(self, flight: Flight, last: int) -> None:
        """Give the far end the frames up to, without, `last`."""
        line, first = flight.line, flight.taken
        if last <= first:
            return
        self._count(flight, last)
        receiver = line.takes_runs
        assert receiver is not None
        arrival = flight.arrival(last - 1)
        if line.takes_unbuilt:
            receiver.receive_run(flight.run, first, last, arrival, line.far_port)
        else:
            receiver.receive_frames(flight.run.build(first, last), arrival, line.far_port)

    def _count(self, flight: Flight, last: int) -> None:
        """Count the frames up to, without, `last` as arrived."""
        count = last - flight.taken
        flight.taken = last
        self.under_way -= count
        self.delivered += count
        if last == flight.run.count:
            self._end(flight)

    def _end(self, flight: Flight) -> None:
        flight.order = 0
        flight.line.far.flights.remove(flight)
