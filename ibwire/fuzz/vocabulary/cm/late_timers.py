"""How late a device may be: the timers of the reference expire when those of the device do.

A timer may expire at a tick of the device's clock, which comes up to 10 ms later. TIMEWAIT, and
the wait that an MRA asks for, have a shortest time and no longest one (reference/cm#timeouts). So
after each wait of a case the reference is told when the device has gone on, and does so at the
same time. A device that goes on sooner differs, as does one that needs longer than by a tick, in
TIMEWAIT and after an MRA one that needs more than four times as long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ibwire.base.node import Frame
from ibwire.base.units import MS, Time
from ibwire.cm.connection import Connection
from ibwire.cm.manager import ConnectionManager
from ibwire.cm.states import EventKind, State
from ibwire.drill.targets.manager import message_in
from ibwire.fuzz.targets.emulated_device import Completion
from ibwire.fuzz.targets.emulated_manager import EVENT, EXCHANGES
from ibwire_layers import cm

MOST = 4
"""How many times as long as it must be TIMEWAIT, or the wait after an MRA, may be."""

TICK = 10 * MS
"""By how much any timer may be later: a jiffy of Linux where it has 100 in a second."""


@dataclass(frozen=True, slots=True)
class _Timer:
    """A timer that may expire late."""

    due: Time
    limit: Time


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a device did while time passed."""

    until: Time
    sent: dict[int, list[Time]]
    """When each connection sent something, by its ID."""
    reported: frozenset[tuple[int, int]]
    """Events with the IDs of their connections."""


class LateTimers:
    """The timers of a reference manager that may expire late."""

    def __init__(self, manager: ConnectionManager) -> None:
        self._manager = manager
        self._timers: dict[int, _Timer] = {}
        """By the ID of the connection, in its state."""
        self._answered: dict[tuple[int, bool], _Timer] = {}
        """By the exchange, and whether it is about datagrams: how long the answer to a request that
        is over is kept at least.
        """
        self._refused: dict[int, Time] = {}
        """By the ID of the connection: when such an answer was sent last."""
        self._seen: _Seen | None = None
        self.has_moved = False
        """Whether something of the last wait has come late."""
        manager.expiry = self._expiry

    def follow(
        self, until: Time, sent: Sequence[tuple[Time, Frame]], reported: Sequence[Completion]
    ) -> None:
        """Let the timers that are due in a wait expire as late as those of the device.

        until: the end of the wait. sent, reported: what the device did in it.
        """
        times: dict[int, list[Time]] = {}
        for time, frame in sent:
            times.setdefault(_sender(frame), []).append(time)
        events = frozenset((each[1], each[2]) for each in reported if each[0] == EVENT)
        self._seen = _Seen(until, times, events)
        late: list[tuple[Time, Connection]] = []
        for connection in self._manager.connections:
            due = connection.deadline
            if due is None or due > until or connection.local_id not in self._timers:
                continue
            if connection.state in _LATE and (time := self._time_of(connection, due)) != due:
                late.append((time, connection))
        order = {number: place for place, number in enumerate(times)}  # of several at one time
        late.sort(key=lambda each: (each[0], order.get(each[1].local_id, len(order))))
        self.has_moved = bool(late)
        for time, connection in late:
            self._manager.set_timer(connection, time)

    def end_wait(self) -> None:
        """Forget what the device did in a wait that both have finished."""
        self._seen = None

    def has_forgotten(self, exchange: int, now: Time) -> bool:
        """Whether the reference has forgotten an answer that a device may still have.

        What it then does about a repeated request is not known.
        """
        timers = (self._answered.get((exchange, each)) for each in (False, True))
        return any(each is not None and each.due <= now <= each.limit for each in timers)

    def forgotten(self, now: Time) -> int:
        """How many such answers a device may still have, each of which takes up a connection."""
        return sum(each.due <= now <= each.limit for each in self._answered.values())

    def kept(self, now: Time) -> list[Connection]:
        """Connections of which only an answer is kept, which a device may have forgotten.

        It need not keep that to a SIDR_REQ at all.
        """
        return [
            each
            for each in self._manager.connections
            if each.state is State.ANSWERED
            and (
                isinstance(each.request, cm.SIDR_REQ) or self._refused.get(each.local_id, now) < now
            )
        ]

    def forget(self, exchange: int, now: Time, *, is_datagram: bool) -> None:
        """Note that the device has no such answer either."""
        timer = self._answered.get((exchange, is_datagram))
        if timer is not None and timer.due <= now:
            del self._answered[exchange, is_datagram]

    def _expiry(self, connection: Connection, now: Time, due: Time) -> Time:
        most = 1 if connection.state in _ANSWERS else MOST
        timer = _Timer(due, max(now + most * (due - now), due + TICK))
        if connection.state is State.ANSWERED:
            is_datagram = isinstance(connection.request, cm.SIDR_REQ)
            self._answered[connection.remote_id % EXCHANGES, is_datagram] = timer
            self._refused[connection.local_id] = now
        if connection.state not in _LATE:
            return due
        self._timers[connection.local_id] = timer
        if self._seen is None or due > self._seen.until:
            return due
        late = self._time_of(connection, due)
        self.has_moved |= late != due
        return late

    def _time_of(self, connection: Connection, due: Time) -> Time:
        """When the device has gone on in this wait; the time that is due if it should have."""
        seen, limit = self._seen, self._timers[connection.local_id].limit
        assert seen is not None
        number = connection.local_id
        if connection.state is not State.TIMEWAIT:
            for sent in seen.sent.get(number, ()):
                if due <= sent <= limit:
                    return sent
        event = _END.get(connection.state, EventKind.UNREACHABLE)
        has_ended = (event, number) in seen.reported or seen.until >= limit
        return due if has_ended else seen.until + 1


def _sender(frame: Frame) -> int:
    """The ID of the connection that sends a message."""
    received = message_in(frame)
    if received is None:
        return 0
    said = received.message
    return said.request_id if isinstance(said, cm.SIDR_REQ) else getattr(said, "local_comm_id", 0)


_ANSWERS = (State.REQ_SENT, State.REP_SENT, State.DREQ_SENT, State.SIDR_REQ_SENT)
"""States that end, or send again, when a time has passed, or a tick later."""

_LATE = (State.TIMEWAIT, State.MRA_REQ_RCVD, State.MRA_REP_RCVD, *_ANSWERS)
"""States that may end later than when they are due."""

_END: Mapping[State, EventKind] = {
    State.TIMEWAIT: EventKind.TIMEWAIT_EXIT,
    State.DREQ_SENT: EventKind.DISCONNECTED,
}
"""The event at the end of a state that ends by itself, if it is another one than UNREACHABLE."""
