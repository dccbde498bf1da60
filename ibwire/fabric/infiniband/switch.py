"""A switch in the fabric: it forwards packets by the tables of its node.

A packet is in the buffer of the port by which it came until it has left, and is in a queue of the
port by which it leaves, one queue for each virtual lane. Ports of origin take turns in a queue.
It may leave before it is there whole (cut-through), if all of it has credits.

Source: IBA 18.2.5; docs/reference/infiniband.md#switches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

from ibwire.base.node import OPEN, Frame, Grant
from ibwire.base.unbuilt import UnbuiltFrame
from ibwire.base.units import US, Time
from ibwire.fabric.infiniband.adaptive import Alternatives
from ibwire.fabric.infiniband.counters import (
    INACTIVE,
    LOOPING,
    NO_LANE,
    NO_ROUTE,
    TOO_LARGE,
    TOO_OLD_IN_QUEUE,
    TOO_OLD_IN_SWITCH,
)
from ibwire.fabric.infiniband.credits import COUNT_MASK, FCP_SIZE, LARGEST_GRANT, NO_LIMIT
from ibwire.fabric.infiniband.link import LANES, LinkEnd
from ibwire.fabric.infiniband.lrh import MANAGEMENT_VL, aborted, pkey_of
from ibwire.fabric.infiniband.packets import FlowControl, LinkPacket, read_packet
from ibwire.fabric.infiniband.settings import FabricSettings
from ibwire.fabric.infiniband.states import ACTIVE, ACTIVE_DEFER, INIT
from ibwire.fabric.infiniband.subnet import FIRST_MULTICAST, PERMISSIVE_LID, Node, Port
from ibwire.fabric.infiniband.tables import NO_PORT, TOP_AT
from ibwire.fabric.line import Direction

LIFE_UNIT: Time = 4096 * US // 1000
"""Of HOQLife and LifeTimeValue: 4.096 us times a power of two."""
LONGEST_LIFE = 19
"""The largest exponent; above it packets live for ever."""
STALL_LIVES = 8
"""Lifetimes for which a stalled lane discards (IBA 18.2.5.4)."""


class Copies:
    """How many copies of a multicast packet are in a switch."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left


class Transit:
    """A packet in a switch, on its way to one port."""

    __slots__ = (
        "arrived",
        "came",
        "copies",
        "cost",
        "drains",
        "is_bad",
        "packet",
        "ready",
        "source",
        "tail",
        "vl",
    )

    def __init__(
        self,
        packet: LinkPacket,
        source: SwitchPort | None,
        arrived: Time,
        tail: Time,
        copies: Copies | None = None,
    ) -> None:
        self.packet = packet
        self.source = source
        """The port by which it came; `None` for a packet of the switch itself."""
        self.came = 0 if source is None else source.number
        self.vl = packet.vl
        """The lane on which it came, whose buffer it is in."""
        self.cost = packet.cost
        self.arrived = arrived
        self.tail = tail
        """When its last byte is there."""
        self.ready = arrived if source is None else arrived + source.link.lead
        """From when it may leave."""
        self.copies = copies
        """What it has in common with its copies, which leave by other ports."""
        self.drains = False
        """Whether it is leaving and the last copy."""
        self.is_bad = False


class Lane:
    """What waits at a port for one virtual lane: a queue for each port of origin."""

    __slots__ = ("alone", "count", "queues", "since", "stalled_until", "stalls", "timed", "turns")

    def __init__(self) -> None:
        self.alone: Transit | None = None
        """The only packet, if it came while there was none: most do, and need no queue."""
        self.queues: dict[int, deque[Transit]] = {}
        """The packets otherwise, by port of origin."""
        self.turns: deque[deque[Transit]] = deque()
        """The queues that have packets, the next one first."""
        self.count = 0
        self.since: Time = 0
        """Since when its first packet is the first."""
        self.timed: Time = -1
        """The time at which its first packet is discarded, if an event is planned for it."""
        self.stalls = 0
        """Packets discarded in a row."""
        self.stalled_until: Time = 0

    def add(self, transit: Transit) -> None:
        """Put a packet at the end."""
        if not self.count:
            self.since, self.timed = transit.ready, -1
            self.alone = transit
        else:
            if self.alone is not None:
                self._queue(self.alone)
                self.alone = None
            self._queue(transit)
        self.count += 1

    def _queue(self, transit: Transit) -> None:
        queue = self.queues.get(transit.came)
        if queue is None:
            queue = self.queues[transit.came] = deque()
        if not queue:
            self.turns.append(queue)
        queue.append(transit)

    def first(self, now: Time) -> Transit | None:
        """The packet whose turn it is, of those that may leave by now; not one that is alone."""
        turns = self.turns
        for _ in range(len(turns)):
            transit = turns[0][0]
            if transit.ready <= now:
                return transit
            turns.rotate(-1)
        return None

    def pop(self, now: Time) -> Transit:
        """Take the packet that `first` gave."""
        self.count -= 1
        self.since, self.timed = now, -1
        transit = self.alone
        if transit is not None:
            self.alone = None
            return transit
        queue = self.turns.popleft()
        transit = queue.popleft()
        if queue:
            self.turns.append(queue)
        return transit

    def packets(self) -> list[Transit]:
        """All packets."""
        if self.alone is not None:
            return [self.alone]
        return [transit for queue in self.queues.values() for transit in queue]

    def clear(self) -> list[Transit]:
        """Take all packets out."""
        found = self.packets()
        self.alone = None
        self.queues.clear()
        self.turns.clear()
        self.count = 0
        return found


class SwitchPort:
    """A port of a switch that has a link: what waits there, and what is leaving."""

    __slots__ = (
        "draining",
        "hoq",
        "lanes",
        "link",
        "number",
        "sending",
        "sizes",
        "vl15",
        "waiting",
    )

    def __init__(self, link: LinkEnd) -> None:
        self.link = link
        self.number = link.port.number
        self.hoq = _life_of(link.port.hoq_life)
        """HOQLife as a time; `None` for ever."""
        self.lanes = [Lane() for _ in range(LANES)]
        self.vl15: deque[Transit] = deque()
        """Packets of subnet management, which need no credits."""
        self.waiting = 0
        """Bits of the lanes with packets."""
        self.sizes = [0] * LANES
        """Bytes of the packet whose turn it is, by lane."""
        self.sending: Transit | None = None
        """The packet that was sent last. It is in the buffer until its end, and longer if nobody
        needs to know the room that it leaves."""
        self.draining: list[SwitchPort] = []
        """The ports that send the last copy of what is in the buffer of this one."""


def _on_line(transit: Transit) -> LinkPacket:
    """A packet as it leaves, with the end of a bad one if it is bad."""
    packet = transit.packet
    return read_packet(aborted(packet.build())) if transit.is_bad else packet


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
        self._info, self._lft = node.info, node.lft  # which are changed in place
        self.latency = settings.latency
        self.links: dict[int, LinkEnd] = {}
        """By port, of those that have a link."""
        self.ports: dict[int, SwitchPort] = {}
        """The same ports."""
        self._ports: list[SwitchPort | None] = [None] * (NO_PORT + 1)
        """The same by number: a list needs no search."""
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
        self.ports[number] = self._ports[number] = SwitchPort(link)
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
        self.ports[number].hoq = _life_of(link.port.hoq_life)
        self.ready_ports.append(number)

    # What the node itself sends.

    def send_smp(self, frame: Frame, number: int, now: Time) -> None:
        """Send a packet on VL15 by a port with a link."""
        self._send_smp(Transit(read_packet(frame), None, now, now), self.ports[number], now)

    def _send_smp(self, transit: Transit, port: SwitchPort, now: Time) -> None:
        """Put a packet on VL15 into the queue of a port."""
        port.vl15.append(transit)
        if transit.ready <= now:
            self.ready_ports.append(port.number)
        else:
            heappush(self._due, (transit.ready, port.number))

    def send(self, frame: Frame, number: int, now: Time) -> None:
        """Send another packet of port 0 by a port with a link."""
        self._enqueue(Transit(read_packet(frame), None, now, now), self.ports[number], now)

    def link_up(self, number: int, now: Time) -> None:
        """A link has come up."""
        link = self.links[number]
        link.start(now)
        if link.next_update is not None:
            heappush(self._due, (link.next_update, number))
        self.ready_ports.append(number)

    def link_down(self, number: int, now: Time) -> None:
        """A link has gone down: what waits for it and what has not yet come whole is lost."""
        port = self.ports[number]
        port.link.stop()
        for lane in port.lanes:
            for transit in lane.clear():
                port.link.counters.discard(INACTIVE)
                self._release(transit)
        port.vl15.clear()
        port.waiting = 0
        self._finish(port)
        self._truncate(number, now)

    def link_deferred(self, number: int, now: Time) -> None:
        """The signal of a link is lost: what has not yet come whole is; what waits stays."""
        self.links[number].defer(now)
        self._truncate(number, now)

    def link_recovered(self, number: int) -> None:
        """The signal of a link is back."""
        self.links[number].recover()
        self.ready_ports.append(number)

    def _truncate(self, number: int, now: Time) -> None:
        """Packets that are just arriving by a port end now."""
        for other in self.ports.values():
            for smp in other.vl15:
                if smp.came == number and smp.tail > now:
                    smp.is_bad = True
            for lane in other.lanes:
                for transit in lane.packets():
                    if transit.came == number and transit.tail > now:
                        transit.is_bad = True
                        transit.tail = now

    def discards(self, number: int) -> bool:
        """Whether packets for a port are discarded when they have become too old."""
        return self._life is not None or self.ports[number].hoq is not None

    # As a node.

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        """Take a packet, as bytes."""
        if len(frame) == FCP_SIZE:
            self._take_flow_control(frame, now, port)
        else:
            self.receive_unbuilt(read_packet(frame), now, port)

    def receive_unbuilt(self, frame: UnbuiltFrame, now: Time, port: int = 0) -> None:
        """Take a packet when it may leave, and put it into the queues of the ports by which it
        does; or a flow-control packet when it arrives."""
        if not isinstance(frame, LinkPacket):
            assert isinstance(frame, FlowControl)
            self._take_flow_control(frame, now, port)
            return
        source = self._ports[port]
        assert source is not None
        packet, link = frame, source.link
        if not link.take(packet, now):
            return
        line = link.incoming
        arrived = tail = now - link.pipe
        more = packet.size + line.overhead - line.head
        if line.head and more > 0:  # `time_of`, inlined
            tail += (more * line.numerator + line.denominator - 1) // line.denominator
        transit = Transit(packet, source, arrived, tail)
        if packet.transport is None or link.verifies:
            transit.is_bad = link.is_bad(packet)
        if packet.vl == MANAGEMENT_VL:
            self._forward_management(transit, now)
        elif FIRST_MULTICAST <= packet.dlid != PERMISSIVE_LID:
            self._forward_copies(transit, self._multicast_ports(transit), now)
        else:
            out = self._port_to(transit, now)
            if out < 0 or (link.enforces_inbound and not self._admits(link, transit, inbound=True)):
                self._release(transit)
            elif out == 0:
                self._take_own(transit)
                self._release(transit)
            else:
                output = self._ports[out]
                assert output is not None
                self._enqueue(transit, output, now)

    def _take_flow_control(self, frame: Frame | FlowControl, now: Time, number: int) -> None:
        """Take a flow-control packet; its port may go on."""
        port = self.ports[number]
        port.link.take_flow_control(frame, now)
        if port.waiting:
            self.ready_ports.append(number)

    def _forward_copies(self, transit: Transit, outputs: list[int], now: Time) -> None:
        """Let a packet go to several ports. It is in the buffer until the last copy has left."""
        source, packet = transit.source, transit.packet
        assert source is not None
        copies = transit.copies = Copies(1)
        link = source.link
        if outputs and (not link.enforces_inbound or self._admits(link, transit, inbound=True)):
            for out in outputs:
                if out == 0:
                    self._take_own(transit)
                elif out in self.ports:
                    copies.left += 1
                    copy = Transit(packet, source, transit.arrived, transit.tail, copies)
                    copy.is_bad = transit.is_bad
                    self._enqueue(copy, self.ports[out], now)
        self._release(transit)

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | None:
        """The next packet of a port, as bytes."""
        found = self.poll_unbuilt(now, port)
        return None if found is None else found.build()

    def poll_unbuilt(
        self, now: Time, port: int = 0, grant: Grant = OPEN
    ) -> LinkPacket | FlowControl | None:
        """The next packet of a port."""
        output = self._ports[port]
        assert output is not None
        link = output.link
        if output.sending is not None:
            self._finish(output)
        if output.vl15 and output.vl15[0].ready <= now and INIT <= link.state < ACTIVE_DEFER:
            self.ready_ports.append(port)
            smp = output.vl15.popleft()
            link.sent(smp.packet, now)
            return _on_line(smp)
        if link.due:
            if output.draining:
                self.settle(port, now)
            limit = link.poll_flow_control(now)
            # Otherwise nothing is to be done when the line is free again.
            if link.due or output.waiting or output.vl15:
                self.ready_ports.append(port)
            return limit
        if not output.waiting:
            return None
        vl = self._choose(output, now)
        if vl < 0:
            return None
        lane = output.lanes[vl]
        transit = lane.pop(now)
        lane.stalls = 0
        if not lane.count:
            output.waiting &= ~(1 << vl)
        packet = transit.packet
        if transit.copies is not None:  # other ports may send it on other lanes
            packet = transit.packet = packet.copy()
        if packet.vl != vl:
            packet.put_on(vl)
        link.sent(packet, now)
        output.sending = transit
        if output.waiting or output.vl15:
            self.ready_ports.append(port)
        self._begin_to_release(transit, output)
        return _on_line(transit) if transit.is_bad else packet

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

    def _port_to(self, transit: Transit, now: Time) -> int:
        """The port by which a packet to one LID leaves; counts one that leaves by none, as -1."""
        lid, came = transit.packet.dlid, transit.came
        lft, info = self._lft, self._info
        # `output_port`, inlined.
        top = info[TOP_AT] << 8 | info[TOP_AT + 1]
        out = lft[lid] if lid <= top and lid < len(lft) else NO_PORT
        if self._alternatives is not None and transit.vl != MANAGEMENT_VL:
            out = self._least_loaded(self._alternatives.ports(self.node, lid), transit, now)
        # A packet does not leave by the port by which it came (IBA 18.2.4.3); none is NO_PORT.
        if out == came or (out and self._ports[out] is None):
            self.links[came].counters.reject(LOOPING if out == came else NO_ROUTE)
            return -1
        return out

    def _least_loaded(self, ports: tuple[int, ...], transit: Transit, now: Time) -> int:
        """The port with the fewest packets, then the most credits; the first of equal ones."""
        if len(ports) == 1:
            return ports[0]
        return min(ports, key=lambda port: self._load(port, transit, now))

    def _load(self, number: int, transit: Transit, now: Time) -> tuple[bool, int, int]:
        link = self.links.get(number)
        if link is None or number == transit.came:
            return True, 0, 0
        link.settle(now)
        vl = link.vl_for(transit.came, transit.packet.sl)
        if vl == MANAGEMENT_VL or link.state != ACTIVE:
            return True, 0, 0
        packets = sum(lane.count for lane in self.ports[number].lanes)
        busy = link.line.free_at > now
        return False, packets + busy, -link.credits[vl].left

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

    def _enqueue(self, transit: Transit, output: SwitchPort, now: Time) -> None:
        """Put a packet into the queue of a port, unless it is discarded."""
        link, packet, source = output.link, transit.packet, transit.source
        vl = link.sl2vl.get(transit.came, link.shared_lanes)[packet.sl]  # `vl_for`, inlined
        if link.state < ACTIVE or packet.size > link.largest:
            link.counters.discard(INACTIVE if link.state < ACTIVE else TOO_LARGE)
        elif vl == MANAGEMENT_VL:
            if source is not None:
                source.link.counters.reject(NO_LANE)
        elif link.enforces_outbound and not self._admits(link, transit, inbound=False):
            pass  # which is counted there
        elif now < output.lanes[vl].stalled_until:
            link.counters.discard(TOO_OLD_IN_QUEUE)
        else:
            line = link.line
            if source is not None and line.rate_bps > source.link.incoming.rate_bps:
                self._delay(transit, line)
            output.lanes[vl].add(transit)
            output.waiting |= 1 << vl
            ready = transit.ready
            if ready <= now or ready <= line.free_at:
                self.ready_ports.append(output.number)
            else:
                heappush(self._due, (ready, output.number))
            return
        self._release(transit)

    def _delay(self, transit: Transit, line: Direction) -> None:
        """Let a packet leave by a faster line so late that its last byte is there in time."""
        took = line.time_of(transit.packet.size + line.overhead)
        transit.ready = max(transit.ready, transit.tail + self.latency - took)

    def _forward_management(self, transit: Transit, now: Time) -> None:
        """Forward a packet on VL15: by its LID, or as the management says by directed route."""
        if transit.packet.dlid == PERMISSIVE_LID:
            self._take_own(transit)
            return
        if transit.packet.dlid >= FIRST_MULTICAST:
            outputs = self._multicast_ports(transit)
        else:
            outputs = [self._port_to(transit, now)]
        for out in outputs:
            if out == 0:
                self._take_own(transit)
            elif out > 0 and self.links[out].state < INIT:
                self.links[out].counters.discard(INACTIVE)
            elif out > 0:
                copy = Transit(transit.packet, transit.source, transit.arrived, transit.tail)
                copy.is_bad = transit.is_bad
                line = self.links[out].line
                if copy.source is not None and line.rate_bps > copy.source.link.incoming.rate_bps:
                    self._delay(copy, line)
                self._send_smp(copy, self.ports[out], now)

    def _take_own(self, transit: Transit) -> None:
        if self.to_management is not None:
            self.to_management(transit.packet.build(), transit.came, transit.tail)

    # What leaves.

    def _choose(self, output: SwitchPort, now: Time) -> int:
        """The lane that sends now; -1 if none may."""
        link = output.link
        if now >= link.settles_at:
            link.settle(now)
        have_lifetimes = output.hoq is not None or self._life is not None
        sendable = vl = 0
        waits = False
        left = output.waiting
        while left:
            if left & 1:
                transit = output.lanes[vl].alone
                if transit is None or have_lifetimes or transit.is_bad:
                    transit = self._first(output, vl, now)
                elif transit.ready > now:
                    transit = None
                if transit is not None:
                    credits = link.credits[vl]
                    limit = credits.limit  # `allows`, inlined
                    if (
                        limit != NO_LIMIT
                        and (limit - credits.sent - transit.cost) & COUNT_MASK <= LARGEST_GRANT
                    ):
                        if output.waiting == 1 and link.lanes == 1:
                            return 0 if link.arbiter.lanes & 1 else -1
                        sendable |= 1 << vl
                        output.sizes[vl] = transit.packet.size
                    else:
                        waits = True
            left >>= 1
            vl += 1
        vl = link.choose(sendable, output.sizes)
        if vl < 0 and waits:
            self._wait(output, now)
        elif not output.waiting:
            link.end_wait(now)
        return vl

    def _wait(self, output: SwitchPort, now: Time) -> None:
        """Packets wait for credits: ask again when the next limit is here."""
        link = output.link
        link.begin_wait(now)
        if link.coming is not None:
            heappush(self._due, (link.coming.arrival, output.number))

    def _first(self, output: SwitchPort, vl: int, now: Time) -> Transit | None:
        """The packet of a lane whose turn it is; those before it that are too old are discarded."""
        lane, hoq, life = output.lanes[vl], output.hoq, self._life
        while True:
            transit = lane.alone
            if transit is None:
                transit = lane.first(now)
                if transit is None:
                    break
            elif transit.ready > now:
                return None
            if transit.is_bad and transit.tail <= now:
                self._release(lane.pop(now))
                continue
            if hoq is None and life is None:
                return transit
            end = _end_of(lane, transit, hoq, life)
            if now < end:
                if lane.timed != end:
                    lane.timed = end
                    heappush(self._due, (end, output.number))
                return transit
            self._discard(output.link, lane, hoq, now)
        if not lane.count:
            output.waiting &= ~(1 << vl)
        return None

    def _discard(self, link: LinkEnd, lane: Lane, hoq: Time | None, now: Time) -> None:
        """Discard the first packet of a lane, which is too old; the lane may stall."""
        is_first_too_long = hoq is not None and lane.since + hoq <= now
        self._release(lane.pop(now))
        link.counters.discard(TOO_OLD_IN_QUEUE if is_first_too_long else TOO_OLD_IN_SWITCH)
        lane.stalls += 1
        if hoq is None or not 0 < link.port.vl_stall_count <= lane.stalls:
            return
        lane.stalls = 0
        lane.stalled_until = now + STALL_LIVES * hoq
        for transit in lane.clear():
            link.counters.discard(TOO_OLD_IN_QUEUE)
            self._release(transit)

    def settle(self, number: int, now: Time) -> None:
        """Release the packets of the buffer of a port that have left."""
        for output in tuple(self.ports[number].draining):
            if output.link.line.free_at <= now:
                self._finish(output)

    def _begin_to_release(self, transit: Transit, output: SwitchPort) -> None:
        """A packet begins to leave: have its end looked at if something is to be done then.

        That is if the other end of the link by which it came is given a new limit by then, or if
        it has copies. Otherwise its room is taken back when somebody needs to know.
        """
        source = transit.source
        if transit.copies is not None:
            self.ready_ports.append(output.number)
        elif source is not None:
            transit.drains = True
            source.draining.append(output)
            if source.link.buffers[transit.vl].begin_to_free(transit.cost):
                # Whichever of them ends last; the end of others may be awaited already.
                for each in source.draining:
                    if not each.link.line.is_awaited:
                        self.ready_ports.append(each.number)

    def _finish(self, output: SwitchPort) -> None:
        """Release the packet that has left the line."""
        transit, output.sending = output.sending, None
        if transit is None:
            return
        if not transit.drains:
            self._release(transit)
            return
        source = transit.source
        assert source is not None
        source.draining.remove(output)
        link = source.link
        vl = transit.vl
        if link.buffers[vl].free(transit.cost, has_begun=True) and link.give(vl):
            self.ready_ports.append(source.number)

    def _release(self, transit: Transit) -> None:
        """Free the buffer of a packet, if this was its last copy."""
        copies, source = transit.copies, transit.source
        if copies is not None:
            copies.left -= 1
            if copies.left:
                return
        if source is not None:
            link = source.link
            if link.buffers[transit.vl].free(transit.cost) and link.give(transit.vl):
                self.ready_ports.append(source.number)


def _end_of(lane: Lane, transit: Transit, hoq: Time | None, life: Time | None) -> Time:
    """When a packet that is first is too old: at the head of its queue, or in the switch."""
    ends = [] if hoq is None else [lane.since + hoq]
    if life is not None:
        ends.append(transit.arrived + life)
    return min(ends)


def _life_of(exponent: int) -> Time | None:
    """The time of HOQLife or LifeTimeValue; `None` for ever."""
    return LIFE_UNIT << exponent if exponent <= LONGEST_LIFE else None
