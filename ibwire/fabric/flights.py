"""Runs of frames on the wires of a simulator.

A run (`ibwire.base.run`) takes two events however many frames it has: the first frame arrives as
any other; the rest is given to the far end when the last of it has arrived. Nothing else differs
from frames that travel one by one, because a run ends or is divided whenever that could matter:

- Before any event at the near end, frames that have not begun to leave are taken back. After the
  event the device may let the run go on; otherwise it is asked when the line is free.
- Before any event at the far end, the frames that have arrived by then are given to it.
- After any event at the far end, it is asked whether it takes the rest without an answer. If not,
  or if they change memory from which it sends a run, each frame gets its own event.
- Where the network stops after a number of frames, those of a run arrive up to that number. Runs
  in both directions are divided before.
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
        self.interrupted: Flight | None = None
        """A run whose last frames were taken back before the current event."""

    def launch(self, line: Direction, frame: UnbuiltFrame, size: int, now: Time) -> bool:
        """Send a frame that leaves now as the first of a run, if its node has one.

        size: bytes of line time of each frame. The line is free after the last.
        """
        sender = line.sends_runs
        if sender is None or not self._may_have_run(line, now):
            return False
        run = sender.extend_run(frame)
        if run is None:
            return False
        step = line.time_of(size) or 1
        flight = Flight(run, line, now, step)
        flight.order = self._events.schedule(flight.arrival(0), now, line.far, line, flight)
        line.coming.append(flight)
        self.under_way += run.count
        self._leave(flight)
        line.free_order = self._events.next_order()
        return True

    def _leave(self, flight: Flight) -> None:
        """Occupy the line until the last frame has left."""
        line = flight.line
        line.free_at = flight.start + flight.run.count * flight.step
        line.free_since = line.free_at - flight.step
        line.flight = flight
        line.near.flights.append(flight)

    def _await_free(self, flight: Flight) -> None:
        """Have the node asked for the next frame when the last one has left."""
        line = flight.line
        line.is_awaited = True
        line.free_order = 0
        since = line.free_at - flight.step
        flight.end_order = self._events.schedule(line.free_at, since, line.near, line, flight)

    def _may_have_run(self, line: Direction, now: Time) -> bool:
        return (
            self.enabled
            and line.stage is None
            and line.pause is None
            and now >= line.no_run_before
            and line.poll_transmit is line.plain_poll
            and line.receive is line.far.receive
        )

    def settle(self, station: Station, now: Time, since: Time) -> None:
        """Bring the runs of a station to where they are before an event scheduled at `since`."""
        self.interrupted = None
        for flight in tuple(station.flights):
            if flight.line.near is not station:
                self.take_arrived(flight, now, since)
            elif self._cut(flight, now, since):
                self.interrupted = flight

    def take_arrived(self, flight: Flight, now: Time, since: Time) -> None:
        """Give the far end what has arrived before an event scheduled at `since`."""
        self._deliver(flight, flight.arrived(now, since))

    def limit(self, flight: Flight, count: int) -> None:
        """Have no more than so many further frames of a run arrive as a whole."""
        if 0 < count < flight.run.count - flight.taken and flight.taken:
            self._await(flight, flight.taken + count - 1)

    def review(self, station: Station, now: Time, since: Time) -> None:
        """After an event: let a run from a station go on that the event has interrupted.

        Have the runs towards it arrive as a whole, or frame by frame.
        """
        if self.interrupted is not None:
            self._resume(self.interrupted, now)
            self.interrupted = None
        for flight in tuple(station.flights):
            if flight.line.far is not station:
                continue
            if not self._is_expected(flight):
                self.divide(flight, now, since)
            elif not flight.order:
                self._await(flight, flight.run.count - 1)

    def _is_expected(self, flight: Flight) -> bool:
        """Whether the far end takes the rest of a run as a whole."""
        receiver, station = flight.line.takes_runs, flight.line.far
        assert receiver is not None
        return receiver.expects_run(flight.run, flight.taken) and not any(
            receiver.overwrites(flight.run, flight.taken, other.run)
            for other in station.flights
            if other.line.near is station
        )

    def _resume(self, flight: Flight, now: Time) -> None:
        """Let a run go on from which the last frames were taken back, if nothing has changed."""
        line, run = flight.line, flight.run
        sender = line.sends_runs
        began = flight.start + run.count * flight.step  # when the next frame leaves
        if (
            sender is None
            or line.free_at != began
            or not line.is_awaited
            or flight.has_ended
            or not self._may_have_run(line, now)
        ):
            return
        more = sender.resume_run(run)
        if not more:
            return
        if flight.taken and not self._is_expected(flight):
            sender.take_back(run, more)
            return
        self.under_way += more
        self._leave(flight)
        self._await_free(flight)
        if flight.taken:
            self._await(flight, run.count - 1)

    def arrive(self, flight: Flight, now: Time) -> None:
        """Process an event at which a run arrives: its first frame, or further ones of it."""
        flight.order = 0
        if flight.taken:
            return  # they have been taken before this event
        line, frame = flight.line, flight.run.frame(0)
        line.coming.remove(flight)  # it is the first
        line.far.flights.append(flight)
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
            self._events.schedule(flight.arrival(index), began, line.far, line, made)
        self.under_way -= run.count - flight.taken
        self._end(flight)

    def _cut(self, flight: Flight, now: Time, since: Time) -> bool:
        """Take back the frames that have not begun to leave; whether there are some."""
        line, run = flight.line, flight.run
        if line.flight is not flight:
            return False  # all have left
        line.flight = None
        line.near.flights.remove(flight)
        left = flight.left(now, since)
        back = run.count - left
        if not back:
            return False
        assert line.sends_runs is not None
        line.sends_runs.take_back(run, back)
        self.under_way -= back
        line.free_at = flight.start + left * flight.step
        self._await_free(flight)
        if flight.taken == run.count:
            self._end(flight)
        elif flight.taken:
            self._await(flight, run.count - 1)
        return True

    def _await(self, flight: Flight, last: int) -> None:
        """Have the frames up to this one arrive as a whole."""
        line = flight.line
        began = flight.start + last * flight.step
        flight.order = self._events.schedule(flight.arrival(last), began, line.far, line, flight)

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
        flight.has_ended = True
        (flight.line.far.flights if flight.taken else flight.line.coming).remove(flight)
