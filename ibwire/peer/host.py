"""A device with applications, as a node: they run when something completes and at set times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from ibwire.base.node import OPEN, Frame, Grant
from ibwire.base.run import FrameRun
from ibwire.base.unbuilt import UnbuiltFrame
from ibwire.base.units import Time
from ibwire.rc.device import Device
from ibwire.rc.work import WC

_SHIFT = 40

WR_ID_MASK = (1 << _SHIFT) - 1
"""The bits of a `wr_id` that an application chooses; the others name its handler."""


class Host:
    """A device and the applications on it, as a node."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.name = device.name
        channel = device.create_channel()
        self.cq = device.create_cq(device.limits.max_cqe, channel)
        """The completion queue of every queue pair of the applications."""
        self.cq.arm()
        # This is called after every frame: an event is the quickest way.
        self._events = channel.events
        self._handlers: list[Callable[[WC, Time], None]] = []
        self._agenda: list[tuple[Time, int, Callable[[Time], None]]] = []
        self._planned = 0
        # Bound once: they are called for every frame.
        self._receive = device.receive
        self._poll_transmit = device.poll_transmit
        self._receive_unbuilt = device.receive_unbuilt
        self._poll_unbuilt = device.poll_unbuilt
        self._poll_timeout = device.poll_timeout

    def add_handler(self, handle: Callable[[WC, Time], None]) -> int:
        """Register a handler of completions; returns the first `wr_id` of its range."""
        self._handlers.append(handle)
        return len(self._handlers) - 1 << _SHIFT

    def at(self, time: Time, act: Callable[[Time], None]) -> None:
        """Call a function at a time; calls at equal times keep the order of registration."""
        self._planned += 1
        heappush(self._agenda, (time, self._planned, act))

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        """Take a frame that has arrived whole."""
        self._receive(frame, now)
        if self._events:
            self.collect(now)

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | None:
        """The next frame to send; `None` when no frame may leave now."""
        frame = self._poll_transmit(now, 0, grant)
        # Unreliable sends complete by being sent, and local errors by the attempt.
        while self._events:
            self.collect(now)
            if frame is None:
                frame = self._poll_transmit(now, 0, grant)
        return frame

    def receive_unbuilt(self, frame: UnbuiltFrame, now: Time, port: int = 0) -> None:
        """Take a frame whose bytes were not made, as `receive` does."""
        self._receive_unbuilt(frame, now)
        if self._events:
            self.collect(now)

    def poll_unbuilt(
        self, now: Time, port: int = 0, grant: Grant = OPEN
    ) -> Frame | UnbuiltFrame | None:
        """As `poll_transmit`, but frames need not be built."""
        frame = self._poll_unbuilt(now, 0, grant)
        while self._events:
            self.collect(now)
            if frame is None:
                frame = self._poll_unbuilt(now, 0, grant)
        return frame

    def extend_run(self, frame: UnbuiltFrame) -> FrameRun | None:
        """The run that a frame just polled begins, or `None`."""
        return self.device.extend_run(frame)

    def resume_run(self, run: FrameRun) -> int:
        """Let a run go on whose frames have left; how many more."""
        return self.device.resume_run(run)

    def take_back(self, run: FrameRun, count: int) -> None:
        """Take back the last frames of a run, which have not left."""
        self.device.take_back(run, count)

    def expects_run(self, run: FrameRun, first: int) -> bool:
        """Whether the device takes the frames of a run from `first` on without an answer."""
        return self.device.expects_run(run, first)

    def overwrites(self, run: FrameRun, first: int, other: FrameRun) -> bool:
        """Whether frames that it expects, from `first` on, change what `other` is read from."""
        return self.device.overwrites(run, first, other)

    def receive_run(self, run: FrameRun, first: int, last: int, now: Time, port: int = 0) -> None:
        """Take frames of a run whose bytes were not made."""
        self.device.receive_run(run, first, last, now)
        if self._events:
            self.collect(now)

    def receive_frames(self, frames: Sequence[Frame], now: Time, port: int = 0) -> None:
        """Take the frames of a run."""
        self.device.receive_frames(frames, now)
        if self._events:
            self.collect(now)

    def poll_timeout(self) -> Time | None:
        """When the device or an application has work to do."""
        due = self._poll_timeout()
        agenda = self._agenda
        if agenda and (due is None or agenda[0][0] < due):
            return agenda[0][0]
        return due

    def handle_timeout(self, now: Time) -> None:
        """Do what is due by `now`."""
        self.device.handle_timeout(now)
        agenda = self._agenda
        while agenda and agenda[0][0] <= now:
            heappop(agenda)[2](now)
        if self._events:
            self.collect(now)

    def collect(self, now: Time) -> None:
        """Pass all completions to their applications."""
        cq, handlers = self.cq, self._handlers
        while len(cq):
            for wc in cq.poll(256):
                handlers[wc.wr_id >> _SHIFT](wc, now)
        self._events.clear()
        cq.arm()
