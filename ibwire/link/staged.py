"""A node with middleboxes in front of it: faults and taps where no simulated wire has them.

Stages act on what the node receives and on what it sends, as those of a wire do: they
drop, duplicate, change, and delay. What is delayed waits here.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from ibwire.base.errors import EncodeError
from ibwire.base.node import OPEN, Frame, Grant, Node, Stage
from ibwire.base.units import Time


class Staged:
    """A node whose frames go through stages; itself a node with the same ports.

    inbound, outbound: what arriving and leaving frames pass, `None` for nothing.
    """

    LIMIT = 1 << 16
    """Frames that may wait in each direction."""

    def __init__(
        self, node: Node, *, inbound: Stage | None = None, outbound: Stage | None = None
    ) -> None:
        self.node = node
        self.inbound = inbound
        self.outbound = outbound
        self.overflow = 0
        """Frames that were lost because too many waited."""
        self._arriving: list[_Delayed] = []
        self._leaving: list[_Delayed] = []
        self._ready: dict[int, deque[Frame]] = {}
        """By port, frames that have passed and may leave."""
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
        """When the node or a delayed frame wants to be looked at."""
        due = self.node.poll_timeout()
        for delayed in (self._arriving, self._leaving):
            if delayed and (due is None or delayed[0][0] < due):
                due = delayed[0][0]
        return due

    def handle_timeout(self, now: Time) -> None:
        """Let go what was delayed until `now`, and do what the node has to do."""
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
"""When it goes on, the order of coming, port, frame."""
