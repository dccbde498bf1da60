"""A port of a channel adapter in the fabric: a device, its virtual lanes, and its link.

The device decides what it sends; its port holds one packet for each lane, and sends them as VL
arbitration and credits allow. What arrives is given to the device at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ibwire.base.node import OPEN, Frame, Grant, Node
from ibwire.base.unbuilt import UnbuiltFrame
from ibwire.base.units import Time
from ibwire.fabric.infiniband.counters import TOO_LARGE
from ibwire.fabric.infiniband.credits import FCP_SIZE
from ibwire.fabric.infiniband.link import LANES, LinkEnd
from ibwire.fabric.infiniband.lrh import MANAGEMENT_VL
from ibwire.fabric.infiniband.packets import (
    FlowControl,
    LinkPacket,
    read_packet,
    unbuilt_packet,
)
from ibwire.fabric.infiniband.settings import FabricSettings
from ibwire.fabric.infiniband.states import ACTIVE, INIT
from ibwire.fabric.infiniband.subnet import Port


class _FreeLanes:
    """The grant of a device: lanes whose packet has left."""

    __slots__ = ("lane_of", "staged")

    def __init__(self, staged: list[LinkPacket | None], lane_of: Callable[[int], int]) -> None:
        self.staged = staged
        self.lane_of = lane_of

    def allows(self, lane: int, size: int) -> bool:
        """Whether the lane of a service level holds no packet."""
        vl = self.lane_of(lane & 15)
        return vl == MANAGEMENT_VL or self.staged[vl] is None


class AdapterPort:
    """A port of a channel adapter.

    device: what sends and receives packets there; `None` for a port that takes all and sends
    nothing. Packets of the device for its own LID do not leave it.
    """

    def __init__(self, port: Port, device: Node | None, settings: FabricSettings) -> None:
        self.name = f"{port.node.name}[{port.number}]"
        self.link = LinkEnd(port, settings)
        self._device: Node | None = None
        self._poll_device: _Poll | None = None
        self._give: Callable[[UnbuiltFrame, Time], None] | None = None
        """Takes packets that are not built, of a device that does."""
        self.device = device
        self.to_management: Callable[[Frame, int, Time], None] | None = None
        """Takes MADs, with the number of the port and the time; without, the device does."""
        self.on_bad_key: Callable[[Port, Frame, bool], None] | None = None
        """Called after `bad_key` has counted a packet, with that packet."""
        self._arriving: LinkPacket | None = None
        """What the device was given last."""
        self.vl15: deque[Frame] = deque()
        """Packets of subnet management that wait, which need no credits."""
        self.mads: deque[Frame] = deque()
        """Other packets with MADs that wait; they go before those of the device."""
        self.staged: list[LinkPacket | None] = [None] * LANES
        """The next packet of each lane."""
        self._sizes = [0] * LANES
        self._grant = _FreeLanes(self.staged, self._lane_of)

    @property
    def device(self) -> Node | None:
        """What sends and receives packets here."""
        return self._device

    @device.setter
    def device(self, device: Node | None) -> None:
        self._device = device
        self._poll_device = getattr(device, "poll_unbuilt", getattr(device, "poll_transmit", None))
        self._give = getattr(device, "receive_unbuilt", None)

    # As a node.

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        """Take a packet that has arrived whole, as bytes."""
        if len(frame) == FCP_SIZE:
            self.link.take_flow_control(frame, now)
        else:
            self._take(read_packet(frame), now)

    def receive_unbuilt(self, frame: UnbuiltFrame, now: Time, port: int = 0) -> None:
        """Take a packet that has arrived whole."""
        if isinstance(frame, FlowControl):
            self.link.take_flow_control(frame, now)
        else:
            assert isinstance(frame, LinkPacket)
            self._take(frame, now)

    def _take(self, packet: LinkPacket, now: Time) -> None:
        """Give a packet to the management or to the device."""
        link = self.link
        if not link.take(packet, now):
            return
        if packet.vl != MANAGEMENT_VL:
            link.free(packet.vl, packet.cost)
        if (packet.transport is None or link.verifies) and link.is_bad(packet):
            return
        if self.to_management is not None and packet.is_management:
            self.to_management(bytes(packet.build()), link.port.number, now)
        elif self._device is not None:
            self._arriving = packet
            transport = packet.received()
            if transport is not None and self._give is not None:
                self._give(transport, now)
            else:
                self._device.receive(bytes(packet.build()), now)

    def bad_key(self, is_qkey: bool) -> None:
        """Count the packet that the device was given last: its Q_Key or its P_Key is wrong."""
        port = self.link.port
        if is_qkey:
            port.qkey_violations = min(port.qkey_violations + 1, 0xFFFF)
        else:
            port.pkey_violations = min(port.pkey_violations + 1, 0xFFFF)
        if self.on_bad_key is not None:
            frame = b"" if self._arriving is None else self._arriving.build()
            self.on_bad_key(port, frame, is_qkey)

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | None:
        """The next packet of the link, as bytes."""
        found = self.poll_unbuilt(now)
        return None if found is None else found.build()

    def poll_unbuilt(
        self, now: Time, port: int = 0, grant: Grant = OPEN
    ) -> LinkPacket | FlowControl | None:
        """The next packet of the link."""
        link = self.link
        if self.vl15 and INIT <= link.state <= ACTIVE:
            smp = read_packet(self.vl15.popleft())
            link.sent(smp, now)
            return smp
        if link.due:
            return link.poll_flow_control(now)
        if link.state != ACTIVE:
            return None
        while self.mads and self._put(read_packet(self.mads[0])):
            self.mads.popleft()
        if self._device is not None:
            self._stage(self._device, now)
        return self._next(link, now)

    def _next(self, link: LinkEnd, now: Time) -> LinkPacket | None:
        """The next packet of the lanes, if one has credits."""
        if now >= link.settles_at:
            link.settle(now)
        sendable = 0
        waits = False
        for vl in range(link.lanes):
            packet = self.staged[vl]
            if packet is not None:
                waits = True
                if link.credits.allows(vl, packet.cost):
                    sendable |= 1 << vl
                    self._sizes[vl] = packet.size
        vl = link.choose(sendable, self._sizes)
        if vl < 0:
            if waits:
                link.begin_wait(now)
            return None
        packet, self.staged[vl] = self.staged[vl], None
        assert packet is not None
        link.sent(packet, now)
        return packet

    def poll_timeout(self) -> Time | None:
        """When the device or a flow-control packet is due."""
        link = self.link
        own = link.next_update
        if link.wait_since is not None and link.coming is not None:
            limit = link.coming.arrival
            own = limit if own is None or limit < own else own
        given = self._device.poll_timeout() if self._device is not None else None
        if own is None or given is None:
            return own if given is None else given
        return min(own, given)

    def handle_timeout(self, now: Time) -> None:
        """Take limits over, send them again; let the device do what is due."""
        self.link.settle(now)
        self.link.update(now)
        if self._device is not None:
            due = self._device.poll_timeout()
            if due is not None and due <= now:
                self._device.handle_timeout(now)

    def link_down(self) -> None:
        """The link has gone down: packets that wait are lost."""
        self.staged[:] = [None] * LANES
        self.vl15.clear()
        self.mads.clear()
        self.link.stop()

    # Packets of the device.

    def _lane_of(self, sl: int) -> int:
        return self.link.vl_for(0, sl)

    def _stage(self, device: Node, now: Time) -> None:
        """Take the next packet of each lane that has none."""
        poll = self._poll_device
        assert poll is not None
        link = self.link
        grant = OPEN if link.lanes == 1 else self._grant
        while self._has_room(link):
            frame = poll(now, 0, grant)
            if frame is None:
                return
            if isinstance(frame, UnbuiltFrame):
                packet = unbuilt_packet(frame)
            else:
                packet = read_packet(frame)
            first, end = link.own_lids
            if first <= packet.dlid < end:  # for this port itself: it does not leave it
                self._arriving = packet
                device.receive(packet.build(), now)
            elif not self._put(packet):
                link.counters.port_xmit_discards += 1

    def _has_room(self, link: LinkEnd) -> bool:
        """Whether a lane has no packet."""
        if link.lanes == 1:
            return self.staged[0] is None
        for vl in range(link.lanes):  # noqa: SIM110 - a generator would cost more
            if self.staged[vl] is None:
                return True
        return False

    def _put(self, packet: LinkPacket) -> bool:
        """Make a packet the next one of its lane; `False` if the lane holds one.

        A packet that no lane is for, or that is too long, is discarded.
        """
        vl = self._lane_of(packet.sl)
        if vl == MANAGEMENT_VL:
            self.link.counters.port_xmit_discards += 1
            return True
        if packet.size > self.link.largest:
            self.link.counters.discard(TOO_LARGE)
            return True
        if self.staged[vl] is not None:
            return False
        packet.put_on(vl)
        self.staged[vl] = packet
        return True


_Poll = Callable[[Time, int, Grant], Frame | UnbuiltFrame | None]
