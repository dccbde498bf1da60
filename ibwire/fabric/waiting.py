"""Which queues wait for which in a network that stands still, and whether in a circle.

A queue that may not send waits for its neighbour: for a host that pauses it, or for the queues
of a switch in which the frames lie for which that switch pauses it. Queues that wait in a circle
wait for ever: a deadlock. It needs routes whose buffers depend on each other in a circle, which
trees do not have.

Source: docs/reference/fabric.md#deadlock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ibwire.base.errors import IbwireError
from ibwire.base.units import MS, US, Time
from ibwire.fabric.blocked import blocked
from ibwire.fabric.lossless import LosslessNetwork
from ibwire.fabric.pause import LANES


@dataclass(frozen=True, slots=True)
class Queue:
    """What waits at a node for a link, in one priority."""

    node: str
    neighbour: str
    priority: int

    def __str__(self) -> str:
        return f"{self.node} to {self.neighbour} (priority {self.priority})"


@dataclass(frozen=True, slots=True)
class Wait:
    """A queue that its neighbour pauses, and what it waits for."""

    queue: Queue
    frames: int
    """0 for a host, whose queues are not counted."""
    reasons: tuple[Queue, ...]
    """Queues of the neighbour with the frames for which it pauses; empty where it is a host, and
    where those frames have left."""

    def __str__(self) -> str:
        frames = f"{self.frames} frame{'s'[: self.frames != 1]} " if self.frames else ""
        if not self.reasons:
            return f"{frames}{self.queue}: {self.queue.neighbour} pauses it"
        return f"{frames}{self.queue}: waits for {', '.join(map(str, self.reasons))}"


def waits(network: LosslessNetwork) -> list[Wait]:
    """All queues that are paused now and have frames, and paused hosts."""
    found = []
    switches = network.switches
    for link, wire, ends in network.ends:
        a, b = ends
        for line, near, far in ((wire.a_to_b, a, b), (wire.b_to_a, b, a)):
            if line.pause is None or any(link is each for each in network.down):
                continue
            for lane in range(LANES):
                if not line.pause.paused >> lane & 1:
                    continue
                switch = switches.get(near[0])
                frames = switch.waiting_by_source(near[1], lane).total() if switch else 0
                if switch and not frames:
                    continue
                queue = Queue(near[0], far[0], lane)
                found.append(Wait(queue, frames, _reasons(network, *far, lane)))
    return found


def deadlock(found: Sequence[Wait]) -> list[Wait]:
    """Waits in a circle, each for the queue of the next one; empty if there is none."""
    by_queue = {wait.queue: wait for wait in found}
    done: set[Queue] = set()
    for start in by_queue:
        way: list[Queue] = []
        pending = [(start, iter(by_queue[start].reasons))]
        while pending:
            queue, reasons = pending[-1]
            if queue not in way:
                way.append(queue)
            for reason in reasons:
                if reason in way:
                    return [by_queue[each] for each in way[way.index(reason) :]]
                if reason in by_queue and reason not in done:
                    pending.append((reason, iter(by_queue[reason].reasons)))
                    break
            else:
                pending.pop()
                way.pop()
                done.add(queue)
    return []


class Deadlock(IbwireError):
    """Queues that wait for each other, and will for ever."""

    def __init__(self, circle: Sequence[Wait], since: Time) -> None:
        self.circle = tuple(circle)
        self.since = since
        super().__init__(f"{_circle_text(circle)}, since {since / US:,.0f} us")


class DeadlockWatch:
    """Looks for a deadlock from time to time.

    The pauses of a deadlock are repeated for ever, so its network never becomes idle. bound: how
    long the same queues have to wait for each other, more than a pause or its end takes to arrive.
    """

    def __init__(self, network: LosslessNetwork, bound: Time = 5 * MS) -> None:
        self._network = network
        self._bound = bound
        self._next: Time = 0
        self._since: Time = 0
        self._queues: frozenset[Queue] = frozenset()

    def look(self, now: Time) -> None:
        """Raise `Deadlock` if there is one now, and was for the whole bound.

        Nothing is looked for while a storm or the failure of a link is planned, which may end it,
        or where a watchdog drops or sends the frames of a paused queue.
        """
        if now < self._next:
            return
        self._next = now + self._bound // 5
        found: list[Wait] = []
        if self._network.timetable.poll_timeout() is None and not self._has_watchdog():
            found = blocked(waits(self._network))
        queues = frozenset(wait.queue for wait in found)
        if queues != self._queues:
            self._queues, self._since = queues, now
        elif queues and now - self._since >= self._bound:
            raise Deadlock(deadlock(found), self._since)

    @property
    def suspects(self) -> bool:
        """Whether a queue is paused now, so that `look` has to be called again."""
        return not self._has_watchdog() and bool(waits(self._network))

    def _has_watchdog(self) -> bool:
        return any(switch.resolves_storms for switch in self._network.switches.values())


def explain(network: LosslessNetwork) -> str:
    """What waits for what, one line a queue, the circle of a deadlock first; empty if none does.

    A host whose link is down waits for it.
    """
    found = waits(network)
    circle = deadlock(found)
    lines = []
    if circle:
        lines.append(_circle_text(circle))
    lines += map(str, found)
    for link in network.down:
        for host, other in ((link.a, link.b), (link.b, link.a)):
            if host not in network.switches:
                lines.append(f"{host} to {other}: the line is down")
    return "\n".join(lines)


def _circle_text(circle: Sequence[Wait]) -> str:
    names = [str(wait.queue) for wait in circle]
    return f"deadlock: {' waits for '.join([*names, names[0]])}"


def _reasons(network: LosslessNetwork, node: str, port: int, lane: int) -> tuple[Queue, ...]:
    """The queues of a switch that hold frames of a priority that came by a port."""
    switch = network.switches.get(node)
    if switch is None:
        return ()
    return tuple(
        Queue(node, neighbour, lane)
        for out, (_, neighbour) in enumerate(network.topology.ports(node))
        if switch.waiting_by_source(out, lane)[port]
    )
