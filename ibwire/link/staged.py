"""A node with stages in front of it, for faults and taps without a simulated wire.

Stages act on frames that the node receives and sends, as those of a wire do: they
drop, duplicate, change and delay. Delayed frames are kept here.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from ibwire.base.errors import EncodeError
from ibwire.base.node import OPEN, Frame, Grant, Node, Stage
from ibwire.base.units import Time


class Staged:
    """A node whose frames pass stages; itself a node with the same ports.

    inbound, outbound: stages for received and sent frames; `None` for none.
    """

    LIMIT = 1 << 16
    """Delayed frames in each direction."""

    def __init__(
        self, node: Node, *, inbound: Stage | None = None, outbound: Stage | None = None
    ) -> None:
        self.node = node
        self.inbound = inbound
        self.outbound = outbound
        self.overflow = 0
        """Frames that were lost because too many were delayed."""
        self._arriving: list[_Delayed] = []
        self._leaving: list[_Delayed] = []
        self._ready: dict[int, deque[Frame]] = {}
        """Frames that have passed and may be sent, by port."""
        self._count = 0

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        """Take a frame that has arrived at the first inbound stage."""
        if self.inbound is None:
            self.node.receive(frame, now, port)
            return
        for delay, out in self.inbound(frame, now):
            if delay:
                self._put_off(self._arriving, now, delay, port, out)
            else:
                self.node.receive(out, now, port)

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | None:
        """The next frame that leaves the last outbound stage."""
        ready = self._ready.setdefault(port, deque())
        while not ready:
            frame = self.node.poll_transmit(now, port, grant)
            if frame is None or self.outbound is None:
                return frame
            for delay, out in self.outbound(frame, now):
                if delay:
                    self._put_off(self._leaving, now, delay, port, out)
                else:
                    ready.append(out)
        return ready.popleft()

    def poll_timeout(self) -> Time | None:
        """When the node or a delayed frame has a timeout."""
        due = self.node.poll_timeout()
        for delayed in (self._arriving, self._leaving):
            if delayed and (due is None or delayed[0][0] < due):
                due = delayed[0][0]
        return due

    def handle_timeout(self, now: Time) -> None:
        """Pass on frames delayed until `now`, and handle the timeouts of the node."""
        while self._arriving and self._arriving[0][0] <= now:
            _, _, port, frame = heappop(self._arriving)
            self.node.receive(frame, now, port)
        while self._leaving and self._leaving[0][0] <= now:
            _, _, port, frame = heappop(self._leaving)
            self._ready.setdefault(port, deque()).append(frame)
        due = self.node.poll_timeout()
        if due is not None and due <= now:
            self.node.handle_timeout(now)

    def _put_off(
        self, delayed: list[_Delayed], now: Time, delay: Time, port: int, frame: Frame
    ) -> None:
        if delay < 0:
            raise EncodeError("delay of a stage", delay, "0 or above")
        if len(delayed) >= self.LIMIT:
            self.overflow += 1
            return
        self._count += 1
        heappush(delayed, (now + delay, self._count, port, frame))


_Delayed = tuple[Time, int, int, Frame]
"""Time, order of arrival, port, frame."""
