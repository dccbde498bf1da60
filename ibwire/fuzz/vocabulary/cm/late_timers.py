"""How late a device may be: the timers of the reference expire when those of the device do.

TIMEWAIT, and the wait that an MRA asks for, have a shortest time and no longest one
(reference/cm#timeouts). So after each wait of a case the reference is told when the device has
gone on, and does so at the same time. A device that goes on sooner differs, as does one that
needs more than four times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ibwire.base.node import Frame
from ibwire.base.units import Time
from ibwire.cm.connection import Connection
from ibwire.cm.manager import ConnectionManager
from ibwire.cm.states import EventKind, State
from ibwire.drill.targets.manager import message_in
from ibwire.fuzz.targets.emulated_device import Completion
from ibwire.fuzz.targets.emulated_manager import EVENT, EXCHANGES

MOST = 4
"""How many times as long as it must be a wait may be."""


@dataclass(frozen=True, slots=True)
class _Timer:
    """A timer that may expire late."""

    due: Time
    limit: Time


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a device did while time passed."""

    until: Time
    sent: dict[int, Time]
    """When each connection sent something first, by its ID."""
    reported: frozenset[tuple[int, int]]
    """Events with the IDs of their connections."""


class LateTimers:
    """The timers of a reference manager that may expire late."""

    def __init__(self, manager: ConnectionManager) -> None:
        self._manager = manager
        self._timers: dict[int, _Timer] = {}
        """By the ID of the connection, in its state."""
        self._answered: dict[int, _Timer] = {}
        """By the exchange: how long the answer to a request that is over is kept at least."""
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
        first: dict[int, Time] = {}
        for time, frame in sent:
            received = message_in(frame)
            number = getattr(received.message, "local_comm_id", 0) if received else 0
            first.setdefault(number, time)
        events = frozenset((each[1], each[2]) for each in reported if each[0] == EVENT)
        self._seen = _Seen(until, first, events)
        late: list[tuple[Time, Connection]] = []
        for connection in self._manager.connections:
            due = connection.deadline
            if due is None or due > until or connection.local_id not in self._timers:
                continue
            if connection.state in _LATE and (time := self._time_of(connection, due)) != due:
                late.append((time, connection))
        order = {number: place for place, number in enumerate(first)}  # of several at one time
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
        timer = self._answered.get(exchange)
        return timer is not None and timer.due <= now <= timer.limit

    def kept(self, now: Time) -> list[Connection]:
        """Connections of which only an answer is kept, which a device may have forgotten."""
        return [
            each
            for each in self._manager.connections
            if each.state is State.ANSWERED and self._refused.get(each.local_id, now) < now
        ]

    def forget(self, exchange: int, now: Time) -> None:
        """Note that the device has no such answer either."""
        timer = self._answered.get(exchange)
        if timer is not None and timer.due <= now:
            del self._answered[exchange]

    def _expiry(self, connection: Connection, now: Time, due: Time) -> Time:
        timer = _Timer(due, now + MOST * (due - now))
        if connection.state is State.ANSWERED:
            self._answered[connection.remote_id % EXCHANGES] = timer
            self._refused[connection.local_id] = now
        if connection.state not in _LATE:
            return due
        self._timers[connection.local_id] = timer
        is_in_wait = self._seen is not None and due <= self._seen.until
        return self._time_of(connection, due) if is_in_wait else due

    def _time_of(self, connection: Connection, due: Time) -> Time:
        """When the device has gone on in this wait; the time that is due if it should have."""
        seen, limit = self._seen, self._timers[connection.local_id].limit
        assert seen is not None
        number, is_last = connection.local_id, connection.state is State.TIMEWAIT
        event = EventKind.TIMEWAIT_EXIT if is_last else EventKind.UNREACHABLE
        sent = None if is_last else seen.sent.get(number)
        if sent is None:
            sent = due if (event, number) in seen.reported else seen.until + 1
        return sent if due <= sent <= limit else due


_LATE = (State.TIMEWAIT, State.MRA_REQ_RCVD, State.MRA_REP_RCVD)
"""States that end when a time has passed at least."""
