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


def explain(network: LosslessNetwork) -> str:
    """What waits for what, one line a queue, the circle of a deadlock first; empty if none does."""
    found = waits(network)
    circle = deadlock(found)
    lines = []
    if circle:
        names = [str(wait.queue) for wait in circle]
        lines.append(f"deadlock: {' waits for '.join([*names, names[0]])}")
    return "\n".join([*lines, *map(str, found)])


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
