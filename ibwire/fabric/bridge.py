"""Where does a frame leave a bridge: by its destination address, learned from sources.

An Ethernet bridge without spanning tree: networks must not have loops.
"""

from __future__ import annotations

from collections import deque

from ibwire.base.errors import EncodeError
from ibwire.base.node import OPEN, Frame, Grant
from ibwire.base.units import Time
from ibwire_layers.outer import EtherType

MAXIMUM_ADDRESSES = 65_536
"""Addresses that are remembered; frames to others are flooded. It bounds the memory."""


class Bridge:
    """A store-and-forward bridge with `ports` ports, numbered from 0.

    Frames to an unknown or a group address leave by every port but the one they came
    from. Unlike IEEE 802.1D it does send a frame back out of its port when the
    destination was learned there: one device may hold both ends of a connection.

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
        """Frames that found the queue of their port full, by port."""
        self._queues: list[deque[Frame]] = [deque() for _ in range(ports)]
        self._port_of: dict[bytes, int] = {}

    def waiting(self, port: int) -> int:
        """Frames in the queue of a port."""
        return len(self._queues[port])

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        """Learn the source, queue the frame where it is to leave."""
        if len(frame) < _HEADER_SIZE:
            self.malformed += 1
            return
        destination, source = frame[:6], frame[6:12]
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
        """The oldest frame that waits at the port; it waits on if its lane may not send."""
        queue = self._queues[port]
        if not queue:
            return None
        if grant is not OPEN and not grant.allows(_priority(queue[0]), len(queue[0])):
            return None
        return queue.popleft()

    def poll_timeout(self) -> Time | None:
        """Never: a bridge only reacts."""
        return None

    def handle_timeout(self, now: Time) -> None:
        """Nothing is ever due."""

    def _queue(self, frame: Frame, port: int) -> None:
        queue = self._queues[port]
        if len(queue) < self.queue_frames:
            queue.append(frame)
        else:
            self.dropped[port] += 1


def _priority(frame: Frame) -> int:
    """The priority that the tag of a frame asks for, 0 without one (IEEE 802.1Q 6.9.3)."""
    tagged = len(frame) > _HEADER_SIZE and frame[12:14] in _TAGS
    return frame[_HEADER_SIZE] >> 5 if tagged else 0


_HEADER_SIZE = 14
_TAGS = tuple(tag.to_bytes(2) for tag in (EtherType.VLAN, EtherType.QINQ, EtherType.QINQ_OLD))
