"""A port that writes all frames that it has received or sent to a capture.

A received frame has the time at which the kernel has received it, if the port knows it. A frame
is sent after the time that it has, so that no response is older than its request. Every frame
is in the file before the next call, and the file is in the order of time: a frame that has
arrived before the last frame was sent, and was received after it, has the time of that one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from ibwire.base.closing import Closing
from ibwire.base.node import Frame
from ibwire.capture import CaptureWriter
from ibwire.capture.stream import Target
from ibwire.link.port import Port, TimedPort


class TappedPort(Closing):
    """A port around another, which it also closes; the file is pcapng."""

    def __init__(self, port: Port, target: Target) -> None:
        """Raises `OutputError` for a file that cannot be opened, and later, from every method
        that writes, for one that cannot be written."""
        self.port = port
        self._writer = CaptureWriter(target, file_format="pcapng")
        self._timed = port if isinstance(port, TimedPort) else None
        received = "the system's, when they are taken"
        if self._timed is not None:
            received = self._timed.arrival_clock
        self._writer.interface(
            name=port.name,
            description=f"times of received frames: {received}; of sent frames: the system's, "
            "before they are sent",
        )
        self._last_ns = 0
        """The time of the last frame."""

    @property
    def name(self) -> str:
        """The interface."""
        return self.port.name

    @property
    def mac(self) -> bytes:
        """Its MAC address."""
        return self.port.mac

    @property
    def mtu(self) -> int:
        """Bytes of the largest IP packet."""
        return self.port.mtu

    @property
    def addresses(self) -> Sequence[str]:
        """Its IP addresses."""
        return self.port.addresses

    def receive(self) -> Sequence[Frame]:
        """Frames that have arrived; without a better time their time is that of this call."""
        frames = self.port.receive()
        if frames:
            times = () if self._timed is None else self._timed.arrival_ns
            if len(times) != len(frames):
                times = [time.time_ns()] * len(frames)
            self._write(frames, times)
        return frames

    def send(self, frames: Sequence[Frame]) -> int:
        """Send frames; those that the link accepts are written."""
        now = time.time_ns()
        taken = self.port.send(frames)
        self._write(frames[:taken], [now] * taken)
        return taken

    def notes(self) -> list[str]:
        """Sentences for the user about the link."""
        return self.port.notes()

    def fileno(self) -> int:
        """The descriptor of the port."""
        return self.port.fileno()

    def close(self) -> None:
        """Finish the file and close the port."""
        try:
            self._writer.close()
        finally:
            self.port.close()

    def _write(self, frames: Sequence[Frame], times: Sequence[int]) -> None:
        for frame, time_ns in zip(frames, times, strict=True):
            self._last_ns = max(self._last_ns, time_ns)
            self._writer.write(frame, self._last_ns)
        self._writer.flush()
