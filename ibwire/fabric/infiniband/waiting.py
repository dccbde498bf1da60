"""Who waits for whom in a fabric that stands still, and whether they wait in a circle.

A queue of a port waits when the packet whose turn it is needs more blocks than the buffer at the
other end of its link has. Those blocks are free again when one of the packets in that buffer
leaves, so the queue waits for the queues of the next switch in which these packets are. If none of
them can ever send, it is a deadlock, which lasts until packets get too old. Adapters take what
they receive, so nobody waits for one.

Source: docs/reference/infiniband.md#deadlock.
"""

from __future__ import annotations

from dataclasses import dataclass

from ibwire.fabric.blocked import blocked
from ibwire.fabric.infiniband.credits import MODULUS
from ibwire.fabric.infiniband.link import LANES, LinkEnd
from ibwire.fabric.infiniband.network import PacketFabric
from ibwire.fabric.infiniband.switch import CutThroughSwitch


@dataclass(frozen=True, slots=True, order=True)
class Queue:
    """What waits at a port for one virtual lane."""

    node: str
    port: int
    vl: int

    def __str__(self) -> str:
        return f"{self.node}[{self.port}] VL{self.vl}"


@dataclass(frozen=True, slots=True)
class Wait:
    """A queue that has no credits, and what it waits for."""

    queue: Queue
    packets: int
    reasons: tuple[Queue, ...]
    """Queues of the next switch with the packets that are in the way."""

    def __str__(self) -> str:
        count = f"{self.packets} packet{'s'[: self.packets != 1]}"
        return f"{self.queue} ({count}) waits for {', '.join(map(str, self.reasons))}"


def waits(fabric: PacketFabric) -> list[Wait]:
    """The queues of switches whose next packet has no room at the other end of the link."""
    found = []
    for switch in fabric.switches.values():
        for number in switch.ports:
            switch.settle(number, fabric.simulator.now)
    for switch in fabric.switches.values():
        for number, output in switch.ports.items():
            peer = switch.links[number].port.peer
            if not output.waiting or peer is None or not peer.node.is_switch:
                continue
            far = fabric.switches[peer.node.name]
            for vl in range(LANES):
                if not output.waiting >> vl & 1:
                    continue
                lane = output.lanes[vl]
                transit = lane.first(fabric.simulator.now)
                if transit is None:
                    continue
                room = _room(switch.links[number], far.links[peer.number], vl)
                if transit.cost <= room:
                    continue
                reasons = _reasons(far, peer.number, vl)
                if reasons:
                    queue = Queue(switch.name, number, vl)
                    found.append(Wait(queue, lane.count, reasons))
    return found


def deadlock(fabric: PacketFabric) -> list[Wait]:
    """Queues that wait for each other in a circle; empty if there are none.

    None of them sends before a packet in them is discarded. Each waits for the next one, the
    last one for the first.
    """
    stuck = {wait.queue: wait for wait in blocked(waits(fabric))}
    if not stuck:
        return []
    way: list[Queue] = []
    queue = min(stuck)
    while queue not in way:
        way.append(queue)
        queue = min(stuck[queue].reasons)
    return [stuck[each] for each in way[way.index(queue) :]]


def explain(circle: list[Wait]) -> str:
    """A deadlock as a sentence."""
    names = [str(wait.queue) for wait in circle]
    return f"deadlock: {' waits for '.join([*names, names[0]])}"


def _room(near: LinkEnd, far: LinkEnd, vl: int) -> int:
    """Blocks of a receiver that are neither taken nor on their way."""
    buffer = far.buffers[vl]
    on_the_way = (near.credits[vl].sent - buffer.accepted) % MODULUS
    return buffer.size - buffer.held - on_the_way


def _reasons(switch: CutThroughSwitch, came: int, vl: int) -> tuple[Queue, ...]:
    """The queues with the packets in a buffer; empty if one of the packets is leaving."""
    found = []
    for number, output in switch.ports.items():
        sending = output.sending
        if sending is not None and sending.came == came and sending.vl == vl:
            return ()
        for out_vl in range(LANES):
            if output.waiting >> out_vl & 1 and any(
                transit.came == came and transit.vl == vl
                for transit in output.lanes[out_vl].packets()
            ):
                found.append(Queue(switch.name, number, out_vl))
    return tuple(found)
