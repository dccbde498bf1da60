"""A port of a channel adapter in the fabric: a device, its virtual lanes, and its link.

The device decides what it sends; its port holds one packet for each lane, and sends them as VL
arbitration and credits allow. What arrives is given to the device at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ibwire.base.node import OPEN, Frame, Grant, Node
from ibwire.base.units import Time
from ibwire.fabric.infiniband.credits import FCP_SIZE, blocks_of
from ibwire.fabric.infiniband.link import LANES, LinkEnd
from ibwire.fabric.infiniband.lrh import (
    MANAGEMENT_VL,
    dlid_of,
    is_management,
    on_lane,
    sl_of,
    vl_of,
)
from ibwire.fabric.infiniband.settings import FabricSettings
from ibwire.fabric.infiniband.subnet import Port
from ibwire_layers.attributes import PortState

_INIT, _ACTIVE = int(PortState.INIT), int(PortState.ACTIVE)


class _FreeLanes:
    """The grant of a device: lanes whose packet has left."""

    __slots__ = ("lane_of", "staged")

    def __init__(self, staged: list[Frame | None], lane_of: Callable[[int], int]) -> None:
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
        self.device = device
        self.to_management: Callable[[Frame, int, Time], None] | None = None
        """Takes MADs, with the number of the port and the time; without, the device does."""
        self.on_bad_key: Callable[[Port, Frame, bool], None] | None = None
        """Called after `bad_key` has counted a packet, with that packet."""
        self._arriving: Frame = b""
        """What the device was given last."""
        self.vl15: deque[Frame] = deque()
        """Packets of subnet management that wait, which need no credits."""
        self.mads: deque[Frame] = deque()
        """Other packets with MADs that wait; they go before those of the device."""
        self.staged: list[Frame | None] = [None] * LANES
        """The next packet of each lane."""
        self._sizes = [0] * LANES
        self._grant = _FreeLanes(self.staged, self._lane_of)

    # As a node.

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        """Take a packet that has arrived whole."""
        link = self.link
        if len(frame) == FCP_SIZE:
            link.take_flow_control(frame)
            return
        if not link.take(frame):
            return
        if vl_of(frame) != MANAGEMENT_VL:
            link.free(vl_of(frame), blocks_of(len(frame)))
        if link.is_bad(frame):
            return
        if self.to_management is not None and is_management(frame):
            self.to_management(bytes(frame), link.port.number, now)
        elif self.device is not None:
            self._arriving = frame
            self.device.receive(bytes(frame), now)

    def bad_key(self, is_qkey: bool) -> None:
        """Count the packet that the device was given last: its Q_Key or its P_Key is wrong."""
        port = self.link.port
        if is_qkey:
            port.qkey_violations = min(port.qkey_violations + 1, 0xFFFF)
        else:
            port.pkey_violations = min(port.pkey_violations + 1, 0xFFFF)
        if self.on_bad_key is not None:
            self.on_bad_key(port, self._arriving, is_qkey)

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | None:
        """The next packet of the link."""
        link = self.link
        if self.vl15 and _INIT <= link.state <= _ACTIVE:
            smp = self.vl15.popleft()
            link.sent(smp, 0, now)
            return smp
        if link.due:
            return link.poll_flow_control()
        if link.state != _ACTIVE:
            return None
        while self.mads and self._put(self.mads[0]):
            self.mads.popleft()
        if self.device is not None:
            self._stage(self.device, now)
        sendable = waiting = 0
        for vl in range(link.lanes):
            frame = self.staged[vl]
            if frame is not None:
                waiting = 1
                if link.credits.allows(vl, blocks_of(len(frame))):
                    sendable |= 1 << vl
                    self._sizes[vl] = len(frame)
        vl = link.arbiter.choose(sendable, self._sizes) if sendable else -1
        if vl < 0:
            if waiting:
                link.begin_wait(now)
            return None
        frame, self.staged[vl] = self.staged[vl], None
        assert frame is not None
        link.sent(frame, blocks_of(len(frame)), now)
        return frame

    def poll_timeout(self) -> Time | None:
        """When the device or a flow-control packet is due."""
        own = self.link.next_update
        given = self.device.poll_timeout() if self.device is not None else None
        if own is None or given is None:
            return own if given is None else given
        return min(own, given)

    def handle_timeout(self, now: Time) -> None:
        """Send limits again; let the device do what is due."""
        self.link.update(now)
        if self.device is not None:
            due = self.device.poll_timeout()
            if due is not None and due <= now:
                self.device.handle_timeout(now)

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
        while None in self.staged[: self.link.lanes]:
            frame = device.poll_transmit(now, 0, self._grant)
            if frame is None:
                return
            if self._is_own(frame):
                self._arriving = frame
                device.receive(frame, now)
                continue
            if not self._put(frame):
                self.link.counters.port_xmit_discards += 1

    def _put(self, frame: Frame) -> bool:
        """Make a packet the next one of its lane; `False` if the lane holds one.

        A packet that no lane is for, or that is too long, is discarded.
        """
        vl = self._lane_of(sl_of(frame))
        if vl == MANAGEMENT_VL or len(frame) > self.link.largest:
            self.link.counters.port_xmit_discards += 1
            return True
        if self.staged[vl] is not None:
            return False
        self.staged[vl] = on_lane(frame, vl)
        return True

    def _is_own(self, frame: Frame) -> bool:
        """Whether a packet is for this port itself, so that it does not leave it."""
        return self.link.port.has_lid(dlid_of(frame))
