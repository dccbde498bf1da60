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
        self._ready: list[int] = getattr(device, "ready_ports", [])
        """Holds 0 where there may be a packet to send: also the list of the device."""
        named = device is None or hasattr(device, "ready_ports")
        self.ready_ports: list[int] | None = self._ready if named else None
        """The same; `None` if the device does not say when it has a packet, so is asked always."""
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
        if device is not None and self.ready_ports is not None:
            device.ready_ports = self._ready  # type: ignore[attr-defined]  # not of every node
            self._note_ready()
        self._device = device
        self._poll_device = getattr(device, "poll_unbuilt", getattr(device, "poll_transmit", None))
        self._give = getattr(device, "receive_unbuilt", None)

    def send_smp(self, frame: Frame) -> None:
        """Send a packet on VL15."""
        self.vl15.append(frame)
        self._note_ready()

    def send_mad(self, frame: Frame) -> None:
        """Send another packet with a MAD."""
        self.mads.append(frame)
        self._note_ready()

    def read_tables(self) -> None:
        """Take over what a subnet manager has written."""
        self.link.read_tables()
        self._note_ready()

    def _note_ready(self) -> None:
        """There may be a packet to send."""
        if not self._ready:
            self._ready.append(0)

    # As a node.

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        """Take a packet that has arrived whole, as bytes."""
        if len(frame) == FCP_SIZE:
            self.link.take_flow_control(frame, now)
            self._note_ready()
        else:
            self.receive_unbuilt(read_packet(frame), now)

    def receive_unbuilt(self, frame: UnbuiltFrame, now: Time, port: int = 0) -> None:
        """Take a packet that has arrived whole, and give it to the management or to the device."""
        if not isinstance(frame, LinkPacket):
            assert isinstance(frame, FlowControl)
            self.link.take_flow_control(frame, now)
            self._note_ready()
            return
        packet = frame
        link = self.link
        line, state = link.line, link.state
        # What waits for a limit or for the end of a packet may leave, if that is at this instant.
        if link.wait_since is not None or (
            line.free_at <= now and (line.is_awaited or line.polls_always)
        ):
            self._note_ready()
        if not link.take(packet, now):
            return
        vl = packet.vl
        if vl != MANAGEMENT_VL and link.buffers[vl].free(packet.cost) and link.give(vl):
            self._note_ready()
        if link.state != state:
            self._note_ready()
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
            self._note_ready()
            return smp
        if link.due:
            limit = link.poll_flow_control(now)
            if link.due or self._may_send():
                self._note_ready()
            return limit
        if link.state != ACTIVE:
            return None
        while self.mads and self._put(read_packet(self.mads[0])):
            self.mads.popleft()
        was_asked = self._device is not None and self._stage(self._device, now)
        packet = self._next(link, now)
        # A device that was asked has said itself whether it has more for the only lane.
        if packet is not None and not (was_asked and link.lanes == 1 and not self.mads):
            self._note_ready()
        return packet

    def _may_send(self) -> bool:
        """Whether there may be a packet to send, besides those of flow control."""
        if self.vl15 or self.mads or any(self.staged):
            return True
        return self._device is not None and getattr(self._device, "has_more", True)

    def _next(self, link: LinkEnd, now: Time) -> LinkPacket | None:
        """The next packet of the lanes, if one has credits."""
        if now >= link.settles_at:
            link.settle(now)
        staged = self.staged
        sendable = 0
        waits = False
        vl = 0
        while vl < link.lanes:
            packet = staged[vl]
            if packet is not None:
                waits = True
                if link.credits[vl].allows(packet.cost):
                    sendable |= 1 << vl
                    self._sizes[vl] = packet.size
            vl += 1
        vl = link.choose(sendable, self._sizes) if sendable else -1
        if vl < 0:
            if waits:
                link.begin_wait(now)
            return None
        packet = staged[vl]
        assert packet is not None
        staged[vl] = None
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
        return given if own is None or (given is not None and given < own) else own

    def handle_timeout(self, now: Time) -> None:
        """Take limits over, send them again; let the device do what is due."""
        self.link.settle(now)
        self.link.update(now)
        self._note_ready()
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

    def _stage(self, device: Node, now: Time) -> bool:
        """Take the next packet of each lane that has none; whether there was such a lane."""
        poll = self._poll_device
        assert poll is not None
        link = self.link
        grant = OPEN if link.lanes == 1 else self._grant
        was_asked = False
        while self.staged[0] is None or (link.lanes > 1 and self._has_room(link)):
            was_asked = True
            frame = poll(now, 0, grant)
            if frame is None:
                break
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
        return was_asked

    def _has_room(self, link: LinkEnd) -> bool:
        """Whether a lane has no packet."""
        for vl in range(link.lanes):  # noqa: SIM110 - a generator would cost more
            if self.staged[vl] is None:
                return True
        return False

    def _put(self, packet: LinkPacket) -> bool:
        """Make a packet the next one of its lane; `False` if the lane holds one.

        A packet that no lane is for, or that is too long, is discarded.
        """
        vl = self.link.vl_for(0, packet.sl)
        if vl == MANAGEMENT_VL:
            self.link.counters.port_xmit_discards += 1
            return True
        if packet.size > self.link.largest:
            self.link.counters.discard(TOO_LARGE)
            return True
        if self.staged[vl] is not None:
            return False
        if packet.vl != vl:
            packet.put_on(vl)
        self.staged[vl] = packet
        return True


_Poll = Callable[[Time, int, Grant], Frame | UnbuiltFrame | None]
