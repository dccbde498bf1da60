"""An Ethernet bridge that learns the port of each address from source addresses.

It has no spanning tree: networks must not have loops.
"""

from __future__ import annotations

from collections import deque
from typing import ClassVar

from ibwire.base.errors import EncodeError
from ibwire.base.node import OPEN, Frame, Grant
from ibwire.base.unbuilt import UnbuiltFrame
from ibwire.base.units import Time
from ibwire_layers.outer import EtherType

MAXIMUM_ADDRESSES = 65_536
"""Addresses that are learned; frames to others are flooded. It bounds the memory."""


class Bridge:
    """A store-and-forward bridge with `ports` ports, numbered from 0.

    Frames to an unknown or a group address leave by all other ports. Unlike IEEE 802.1D, a
    frame is sent back to its input port if the destination was learned there, because one
    device may have both ends of a connection.

    queue_frames: frames that wait at a port before further ones are dropped.
    """

    def __init__(self, ports: int, *, queue_frames: int = 1024, name: str = "bridge") -> None:
        if ports < 1:
            raise EncodeError("ports", ports, "1 or above")
        if queue_frames < 1:
            raise EncodeError("queue_frames", queue_frames, "1 or above")
        self.name = name
        self.queue_frames = queue_frames
        self.forwarded = 0
        """Frames whose destination was known."""
        self.flooded = 0
        self.malformed = 0
        """Frames shorter than an Ethernet header."""
        self.dropped = [0] * ports
        """Frames dropped because the queue of their port was full, by port."""
        self.ready_ports: list[int] = []
        """Ports that may have a frame to send; a driver that polls always may ignore it."""
        self._queues: list[deque[Frame | UnbuiltFrame]] = [deque() for _ in range(ports)]
        self._port_of: dict[bytes, int] = {}

    def waiting(self, port: int) -> int:
        """Frames in the queue of a port."""
        return len(self._queues[port])

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        """Learn the source and queue the frame at its output ports."""
        if len(frame) < _HEADER_SIZE:
            self.malformed += 1
            return
        self._forward(frame, frame[:6], frame[6:12], port)

    def receive_unbuilt(self, frame: UnbuiltFrame, now: Time, port: int = 0) -> None:
        """The same for a frame whose bytes were not made; only one port can have it so."""
        addresses = frame.flow_key
        destination, source = addresses[:6], addresses[6:12]
        known = self._port_of
        target = known.get(destination)
        if target is not None and known.get(source) == port:  # nothing to learn
            self.forwarded += 1
            self._queue(frame, target)
            return
        is_known = not destination[0] & 1 and destination in known
        self._forward(frame if is_known else frame.build(), destination, source, port)

    def _forward(
        self, frame: Frame | UnbuiltFrame, destination: bytes, source: bytes, port: int
    ) -> None:
        known = self._port_of
        if not source[0] & 1 and (source in known or len(known) < MAXIMUM_ADDRESSES):
            known[source] = port
        target = None if destination[0] & 1 else known.get(destination)
        if target is not None:
            self.forwarded += 1
            self._queue(frame, target)
            return
        self.flooded += 1
        for other in range(len(self._queues)):
            if other != port:
                self._queue(frame, other)

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | None:
        """The oldest frame that waits at the port; it keeps waiting if its lane may not send."""
        frame = self.poll_unbuilt(now, port, grant)
        return frame.build() if isinstance(frame, UnbuiltFrame) else frame

    def poll_unbuilt(
        self, now: Time, port: int = 0, grant: Grant = OPEN
    ) -> Frame | UnbuiltFrame | None:
        """The same, but its bytes need not be made."""
        queue = self._queues[port]
        if not queue:
            return None
        if grant is not OPEN and not grant.allows(_priority(queue[0]), _size(queue[0])):
            return None
        frame = queue.popleft()
        if queue:
            self._note_ready(port)
        return frame

    has_timers: ClassVar[bool] = False

    def poll_timeout(self) -> Time | None:
        """`None`: a bridge has no timers."""
        return None

    def handle_timeout(self, now: Time) -> None:
        """Does nothing: a bridge has no timers."""

    def _note_ready(self, port: int) -> None:
        if port not in self.ready_ports:
            self.ready_ports.append(port)

    def _queue(self, frame: Frame | UnbuiltFrame, port: int) -> None:
        queue = self._queues[port]
        if len(queue) < self.queue_frames:
            queue.append(frame)
            if port not in self.ready_ports:  # `_note_ready`, inlined
                self.ready_ports.append(port)
        else:
            self.dropped[port] += 1


def _size(frame: Frame | UnbuiltFrame) -> int:
    return frame.size if isinstance(frame, UnbuiltFrame) else len(frame)


def _priority(frame: Frame | UnbuiltFrame) -> int:
    """The priority in the tag of a frame, 0 without a tag (IEEE 802.1Q 6.9.3)."""
    if isinstance(frame, UnbuiltFrame):
        return 0
    tagged = len(frame) > _HEADER_SIZE and frame[12:14] in _TAGS
    return frame[_HEADER_SIZE] >> 5 if tagged else 0


_HEADER_SIZE = 14
_TAGS = tuple(tag.to_bytes(2) for tag in (EtherType.VLAN, EtherType.QINQ, EtherType.QINQ_OLD))
