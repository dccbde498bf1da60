"""A switch in the fabric: it forwards packets by the tables of its node.

A packet is in the buffer of the port by which it came until it has left, and is in a queue of the
port by which it leaves, one queue for each virtual lane. Ports of origin take turns in a queue.
It may leave before it is there whole (cut-through), if all of it has credits.

Source: IBA 18.2.5; docs/reference/infiniband.md#switches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush

from ibwire.base.node import OPEN, Frame, Grant
from ibwire.base.unbuilt import UnbuiltFrame
from ibwire.base.units import US, Time
from ibwire.fabric.infiniband.adaptive import Alternatives
from ibwire.fabric.infiniband.credits import FCP_SIZE
from ibwire.fabric.infiniband.link import LANES, LinkEnd
from ibwire.fabric.infiniband.lrh import MANAGEMENT_VL, aborted, pkey_of
from ibwire.fabric.infiniband.packets import FlowControl, LinkPacket, read_packet
from ibwire.fabric.infiniband.settings import FabricSettings
from ibwire.fabric.infiniband.states import ACTIVE, ACTIVE_DEFER, INIT
from ibwire.fabric.infiniband.subnet import FIRST_MULTICAST, NO_PORT, PERMISSIVE_LID, Node, Port

LIFE_UNIT: Time = 4096 * US // 1000
"""Of HOQLife and LifeTimeValue: 4.096 us times a power of two."""
LONGEST_LIFE = 19
"""The largest exponent; above it packets live for ever."""
STALL_LIVES = 8
"""Lifetimes for which a stalled lane discards (IBA 18.2.5.4)."""


class Transit:
    """A packet in a switch."""

    __slots__ = ("arrived", "came", "copies", "cost", "is_bad", "packet", "tail", "vl")

    def __init__(self, packet: LinkPacket, came: int, arrived: Time, tail: Time) -> None:
        self.packet = packet
        self.came = came
        """The port by which it came."""
        self.vl = packet.vl
        """The lane on which it came, whose buffer it is in."""
        self.cost = packet.cost
        self.arrived = arrived
        self.tail = tail
        """When its last byte is there."""
        self.copies = 0
        """Ports by which it has still to leave."""
        self.is_bad = False


class Lane:
    """What waits at a port for one virtual lane: a queue for each port of origin."""

    __slots__ = ("count", "queues", "since", "stalled_until", "stalls", "timed", "turns")

    def __init__(self) -> None:
        self.queues: dict[int, deque[tuple[Time, Transit]]] = {}
        """Packets with the time from which each may leave, by port of origin."""
        self.turns: deque[int] = deque()
        """Ports of origin that have packets, the next one first."""
        self.count = 0
        self.since: Time = 0
        """Since when its first packet is the first."""
        self.timed: Time = -1
        """The time at which its first packet is discarded, if an event is planned for it."""
        self.stalls = 0
        """Packets discarded in a row."""
        self.stalled_until: Time = 0

    def add(self, ready: Time, transit: Transit) -> None:
        """Put a packet at the end."""
        queue = self.queues.get(transit.came)
        if queue is None:
            queue = self.queues[transit.came] = deque()
        if not queue:
            self.turns.append(transit.came)
        queue.append((ready, transit))
        self.count += 1

    def first(self, now: Time) -> Transit | None:
        """The packet whose turn it is, of those that may leave by now."""
        turns = self.turns
        for _ in range(len(turns)):
            ready, transit = self.queues[turns[0]][0]
            if ready <= now:
                return transit
            turns.rotate(-1)
        return None

    def pop(self, now: Time) -> Transit:
        """Take the packet that `first` gave."""
        came = self.turns[0]
        queue = self.queues[came]
        _, transit = queue.popleft()
        self.turns.popleft()
        if queue:
            self.turns.append(came)
        self.count -= 1
        self.since, self.timed = now, -1
        return transit

    def packets(self) -> Iterator[Transit]:
        """All packets."""
        for queue in self.queues.values():
            for _, transit in queue:
                yield transit

    def clear(self) -> list[Transit]:
        """Take all packets out."""
        found = list(self.packets())
        self.queues.clear()
        self.turns.clear()
        self.count = 0
        return found


class Output:
    """The sending half of a port of a switch."""

    __slots__ = ("hoq", "lanes", "link", "sending", "sizes", "vl15", "waiting")

    def __init__(self, link: LinkEnd) -> None:
        self.link = link
        self.hoq = _life_of(link.port.hoq_life)
        """HOQLife as a time; `None` for ever."""
        self.lanes = [Lane() for _ in range(LANES)]
        self.vl15: deque[tuple[Time, LinkPacket, Transit | None]] = deque()
        """Packets of subnet management, which need no credits, with the time from which each may
        leave."""
        self.waiting = 0
        """Bits of the lanes with packets."""
        self.sizes = [0] * LANES
        """Bytes of the packet whose turn it is, by lane."""
        self.sending: Transit | None = None
        """The packet on the line; in the buffer until its end."""


class CutThroughSwitch:
    """The switch of a node of a subnet.

    alternatives: the ports it may choose from; without, it keeps to its forwarding table.
    """

    def __init__(
        self,
        node: Node,
        settings: FabricSettings,
        alternatives: Alternatives | None = None,
    ) -> None:
        self.name = node.name
        self.node = node
        self.latency = settings.latency
        self.links: dict[int, LinkEnd] = {}
        """By port, of those that have a link."""
        self.outputs: dict[int, Output] = {}
        self.to_management: Callable[[Frame, int, Time], None] | None = None
        """Takes packets for port 0 and SMPs by directed route, with the port by which they came
        and the time at which they are there whole."""
        self.on_bad_pkey: Callable[[Port, Frame], None] | None = None
        """Called for a packet that a port does not let pass by its P_Key, unless it is damaged."""
        self.ready_ports: list[int] = []
        self._settings = settings
        self._alternatives = alternatives
        self._due: list[tuple[Time, int]] = []
        """Ports to ask, and when."""
        self._life: Time | None = None
        self.read_tables()

    def add(self, number: int) -> LinkEnd:
        """The end of the link of a port, which is new."""
        link = self.links[number] = LinkEnd(self.node.ports[number], self._settings)
        self.outputs[number] = Output(link)
        return link

    def read_tables(self) -> None:
        """Take over what a subnet manager has written, besides the forwarding tables."""
        self.read_life_time()
        for number in self.links:
            self.read_port(number)

    def read_life_time(self) -> None:
        """Take over LifeTimeValue."""
        self._life = _life_of(self.node.life_time)

    def read_port(self, number: int) -> None:
        """Take over the tables of a port that has a link."""
        link = self.links[number]
        link.read_tables()
        self.outputs[number].hoq = _life_of(link.port.hoq_life)
        self.ready_ports.append(number)

    # What the node itself sends.

    def send_smp(self, frame: Frame, number: int, ready: Time) -> None:
        """Send a packet on VL15 by a port with a link, from a time on."""
        self._send_smp(read_packet(frame), number, ready, None)

    def _send_smp(
        self, packet: LinkPacket, number: int, ready: Time, transit: Transit | None
    ) -> None:
        """Put a packet on VL15 into the queue of a port.

        transit: of one that is forwarded, which may not yet be there whole.
        """
        self.outputs[number].vl15.append((ready, packet, transit))
        self._plan(self.links[number], number, ready)

    def _plan(self, link: LinkEnd, number: int, ready: Time) -> None:
        """Have a port asked at the time from which a packet may leave."""
        heappush(self._due, (ready, number))
        line = link.line
        if line.free_at >= ready and not line.is_awaited:  # and as soon as its line is free
            self.ready_ports.append(number)

    def send(self, frame: Frame, number: int, now: Time) -> None:
        """Send another packet of port 0 by a port with a link."""
        transit = Transit(read_packet(frame), 0, now, now)
        transit.copies = 1
        self._enqueue(transit, number, now)
        self._release(transit)

    def link_up(self, number: int, now: Time) -> None:
        """A link has come up."""
        link = self.links[number]
        link.start(now)
        if link.next_update is not None:
            heappush(self._due, (link.next_update, number))
        self.ready_ports.append(number)

    def link_down(self, number: int, now: Time) -> None:
        """A link has gone down: what waits for it and what has not yet come whole is lost."""
        link, output = self.links[number], self.outputs[number]
        link.stop()
        for lane in output.lanes:
            for transit in lane.clear():
                link.counters.port_xmit_discards += 1
                self._release(transit)
        output.vl15.clear()
        output.waiting = 0
        self._finish(output)
        self._truncate(number, now)

    def link_deferred(self, number: int, now: Time) -> None:
        """The signal of a link is lost: what has not yet come whole is; what waits stays."""
        self.links[number].defer()
        self._truncate(number, now)

    def link_recovered(self, number: int) -> None:
        """The signal of a link is back."""
        self.links[number].recover()
        self.ready_ports.append(number)

    def _truncate(self, number: int, now: Time) -> None:
        """Packets that are just arriving by a port end now."""
        for other in self.outputs.values():
            for _, _, smp in other.vl15:
                if smp is not None and smp.came == number and smp.tail > now:
                    smp.is_bad = True
            for lane in other.lanes:
                for transit in lane.packets():
                    if transit.came == number and transit.tail > now:
                        transit.is_bad = True
                        transit.tail = now

    def discards(self, number: int) -> bool:
        """Whether packets for a port are discarded when they have become too old."""
        return self._life is not None or self.outputs[number].hoq is not None

    # As a node.

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        """Take a packet whose first bytes have arrived, as bytes."""
        if len(frame) == FCP_SIZE:
            self.links[port].take_flow_control(frame)
            if self.outputs[port].waiting:
                self.ready_ports.append(port)
        else:
            self._take(read_packet(frame), now, port)

    def receive_unbuilt(self, frame: UnbuiltFrame, now: Time, port: int = 0) -> None:
        """Take a packet whose first bytes have arrived."""
        if isinstance(frame, FlowControl):
            self.links[port].take_limit(frame.operation, frame.vl, frame.sent, frame.limit)
            if self.outputs[port].waiting:
                self.ready_ports.append(port)
        else:
            assert isinstance(frame, LinkPacket)
            self._take(frame, now, port)

    def _take(self, packet: LinkPacket, now: Time, port: int) -> None:
        """Put a packet into the queues of the ports by which it leaves."""
        link = self.links[port]
        if not link.take(packet):
            return
        line = link.incoming
        tail = now
        if line.head and packet.size + line.overhead > line.head:
            tail += line.time_of(packet.size + line.overhead - line.head)
        transit = Transit(packet, port, now, tail)
        transit.is_bad = link.is_bad(packet)
        if transit.vl == MANAGEMENT_VL:
            self._forward_management(transit)
            return
        transit.copies = 1
        if FIRST_MULTICAST <= packet.dlid != PERMISSIVE_LID:
            outputs = self._multicast_ports(transit)
            if outputs and (not link.enforces_inbound or self._admits(link, transit, inbound=True)):
                for out in outputs:
                    self._forward(transit, out, now)
        else:
            out = self._port_to(transit)
            if out >= 0 and (
                not link.enforces_inbound or self._admits(link, transit, inbound=True)
            ):
                self._forward(transit, out, now)
        self._release(transit)

    def _forward(self, transit: Transit, out: int, now: Time) -> None:
        """Let a packet go to a port."""
        if out == 0:
            self._take_own(transit)
        else:
            self._enqueue(transit, out, now)

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | None:
        """The next packet of a port, as bytes."""
        found = self.poll_unbuilt(now, port)
        return None if found is None else found.build()

    def poll_unbuilt(
        self, now: Time, port: int = 0, grant: Grant = OPEN
    ) -> LinkPacket | FlowControl | None:
        """The next packet of a port."""
        output = self.outputs[port]
        link = output.link
        if output.sending is not None:
            self._finish(output)
        if output.vl15 and output.vl15[0][0] <= now and INIT <= link.state < ACTIVE_DEFER:
            self.ready_ports.append(port)
            _, packet, smp = output.vl15.popleft()
            if smp is not None and smp.is_bad:
                packet = read_packet(aborted(packet.build()))
            link.sent(packet, now)
            return packet
        if link.due:
            limit = link.poll_flow_control()
            # Otherwise nothing is to be done when the line is free again.
            if link.due or output.waiting or output.vl15:
                self.ready_ports.append(port)
            return limit
        if not output.waiting:
            return None
        vl = self._choose(link, output, now)
        if vl < 0:
            return None
        lane = output.lanes[vl]
        transit = lane.pop(now)
        lane.stalls = 0
        if not lane.count:
            output.waiting &= ~(1 << vl)
        packet = transit.packet
        if packet.dlid >= FIRST_MULTICAST:  # other ports may send it on other lanes
            packet = packet.copy()
        packet.put_on(vl)
        if transit.is_bad:
            packet = read_packet(aborted(packet.build()))
        link.sent(packet, now)
        output.sending = transit
        self.ready_ports.append(port)
        return packet

    def poll_timeout(self) -> Time | None:
        """When a packet may leave, is too old, or a limit is to be sent again."""
        return self._due[0][0] if self._due else None

    def handle_timeout(self, now: Time) -> None:
        """Ask the ports for which something is due."""
        due = self._due
        while due and due[0][0] <= now:
            _, port = heappop(due)
            link = self.links[port]
            if link.next_update is not None and now >= link.next_update:
                link.update(now)
                assert link.next_update is not None
                heappush(due, (link.next_update, port))
            self.ready_ports.append(port)

    # Where a packet goes.

    def _multicast_ports(self, transit: Transit) -> list[int]:
        """The ports by which a packet to a multicast LID leaves."""
        mask = self.node.multicast_ports(transit.packet.dlid) & ~(1 << transit.came)
        return [port for port in range(mask.bit_length()) if mask >> port & 1]

    def _port_to(self, transit: Transit) -> int:
        """The port by which a packet to one LID leaves; counts one that leaves by none, as -1."""
        lid, came = transit.packet.dlid, transit.came
        out = self.node.route(lid)
        if self._alternatives is not None and transit.vl != MANAGEMENT_VL:
            out = self._least_loaded(self._alternatives.ports(self.node, lid), transit)
        # A packet does not leave by the port by which it came (IBA 18.2.4.3).
        if out in (NO_PORT, came) or (out and out not in self.links):
            self.links[came].counters.port_rcv_switch_relay_errors += 1
            return -1
        return out

    def _least_loaded(self, ports: tuple[int, ...], transit: Transit) -> int:
        """The port with the fewest packets, then the most credits; the first of equal ones."""
        if len(ports) == 1:
            return ports[0]
        return min(ports, key=lambda port: self._load(port, transit))

    def _load(self, number: int, transit: Transit) -> tuple[bool, int, int]:
        link = self.links.get(number)
        if link is None or number == transit.came:
            return True, 0, 0
        vl = link.vl_for(transit.came, transit.packet.sl)
        if vl == MANAGEMENT_VL or link.state != ACTIVE:
            return True, 0, 0
        packets = sum(lane.count for lane in self.outputs[number].lanes)
        busy = link.line.free_at > transit.arrived
        return False, packets + busy, -link.credits.left(vl)

    def _admits(self, link: LinkEnd, transit: Transit, *, inbound: bool) -> bool:
        """Whether a port that enforces P_Keys lets a packet pass; counts it if not."""
        port = link.port
        pkey = pkey_of(transit.packet.build())
        if pkey is None or port.passes_pkey(pkey):
            return True
        if inbound:
            link.counters.port_rcv_constraint_errors += 1
        else:
            link.counters.port_xmit_constraint_errors += 1
        if self.on_bad_pkey is not None and not transit.is_bad:
            self.on_bad_pkey(port, transit.packet.build())
        return False

    def _enqueue(self, transit: Transit, out: int, now: Time) -> None:
        """Put a packet into the queue of a port."""
        link = self.links[out]
        if link.state < ACTIVE or transit.packet.size > link.largest:
            link.counters.port_xmit_discards += 1
            return
        vl = link.vl_for(transit.came, transit.packet.sl)
        if vl == MANAGEMENT_VL:
            if transit.came:
                self.links[transit.came].counters.port_rcv_switch_relay_errors += 1
            return
        if link.enforces_outbound and not self._admits(link, transit, inbound=False):
            return
        output = self.outputs[out]
        lane = output.lanes[vl]
        if now < lane.stalled_until:
            link.counters.port_xmit_discards += 1
            return
        transit.copies += 1
        ready = self._ready(transit, link)
        if not lane.count:
            lane.since, lane.timed = ready, -1
        lane.add(ready, transit)
        output.waiting |= 1 << vl
        self._plan(link, out, ready)

    def _ready(self, transit: Transit, link: LinkEnd) -> Time:
        """From when a packet may leave: its last byte must be there when it is sent."""
        if not transit.came:
            return transit.arrived
        came = self.links[transit.came].incoming
        arrived, latency = transit.arrived, self.latency
        ready = transit.tail + latency - link.line.time_of(transit.packet.size + came.overhead)
        start = arrived - came.time_of(came.head) + latency
        if start > ready:
            ready = start
        return ready if ready > arrived else arrived

    def _forward_management(self, transit: Transit) -> None:
        """Forward a packet on VL15: by its LID, or as the management says by directed route."""
        if transit.packet.dlid == PERMISSIVE_LID:
            self._take_own(transit)
            return
        if transit.packet.dlid >= FIRST_MULTICAST:
            outputs = self._multicast_ports(transit)
        else:
            outputs = [self._port_to(transit)]
        for out in outputs:
            if out == 0:
                self._take_own(transit)
            elif out > 0 and self.links[out].state < INIT:
                self.links[out].counters.port_xmit_discards += 1
            elif out > 0:
                ready = self._ready(transit, self.links[out])
                self._send_smp(transit.packet, out, ready, transit)

    def _take_own(self, transit: Transit) -> None:
        if self.to_management is not None:
            self.to_management(transit.packet.build(), transit.came, transit.tail)

    # What leaves.

    def _choose(self, link: LinkEnd, output: Output, now: Time) -> int:
        """The lane that sends now; -1 if none may."""
        sendable = waits = 0
        left = output.waiting
        while left:
            vl = (left & -left).bit_length() - 1
            left &= left - 1
            transit = self._first(link, output, vl, now)
            if transit is None:
                continue
            if link.credits.allows(vl, transit.cost):
                sendable |= 1 << vl
                output.sizes[vl] = transit.packet.size
            else:
                waits = 1
        vl = link.arbiter.choose(sendable, output.sizes) if sendable else -1
        if vl < 0 and waits:
            link.begin_wait(now)
        elif not output.waiting:
            link.end_wait(now)
        return vl

    def _first(self, link: LinkEnd, output: Output, vl: int, now: Time) -> Transit | None:
        """The packet of a lane whose turn it is; those before it that are too old are discarded."""
        lane, hoq, life = output.lanes[vl], output.hoq, self._life
        while (transit := lane.first(now)) is not None:
            if transit.is_bad and transit.tail <= now:
                self._release(lane.pop(now))
                continue
            if hoq is None and life is None:
                return transit
            end = _end_of(lane, transit, hoq, life)
            if now < end:
                if lane.timed != end:
                    lane.timed = end
                    heappush(self._due, (end, link.port.number))
                return transit
            self._discard(link, lane, hoq, now)
        if not lane.count:
            output.waiting &= ~(1 << vl)
        return None

    def _discard(self, link: LinkEnd, lane: Lane, hoq: Time | None, now: Time) -> None:
        """Discard the first packet of a lane, which is too old; the lane may stall."""
        self._release(lane.pop(now))
        link.counters.port_xmit_discards += 1
        lane.stalls += 1
        if hoq is None or not 0 < link.port.vl_stall_count <= lane.stalls:
            return
        lane.stalls = 0
        lane.stalled_until = now + STALL_LIVES * hoq
        for transit in lane.clear():
            link.counters.port_xmit_discards += 1
            self._release(transit)

    def _finish(self, output: Output) -> None:
        """Release the packet that has left the line."""
        transit, output.sending = output.sending, None
        if transit is not None:
            self._release(transit)

    def _release(self, transit: Transit) -> None:
        """Free the buffer of a packet, if this was its last copy."""
        transit.copies -= 1
        if transit.copies or not transit.came:
            return
        if self.links[transit.came].free(transit.vl, transit.cost):
            self.ready_ports.append(transit.came)


def _end_of(lane: Lane, transit: Transit, hoq: Time | None, life: Time | None) -> Time:
    """When a packet that is first is too old: at the head of its queue, or in the switch."""
    ends = [] if hoq is None else [lane.since + hoq]
    if life is not None:
        ends.append(transit.arrived + life)
    return min(ends)


def _life_of(exponent: int) -> Time | None:
    """The time of HOQLife or LifeTimeValue; `None` for ever."""
    return LIFE_UNIT << exponent if exponent <= LONGEST_LIFE else None
