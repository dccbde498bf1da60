"""A port that writes all frames that it has received or sent to a capture."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ibwire.base.closing import Closing
from ibwire.base.node import Frame
from ibwire.capture import CaptureWriter
from ibwire.capture.stream import Target
from ibwire.link.port import Port


class TappedPort(Closing):
    """A port around another, which it also closes; the file is pcapng."""

    def __init__(self, port: Port, target: Target) -> None:
        """Raises `OutputError` for a file that cannot be opened, and later, from every method
        that writes, for one that cannot be written."""
        self.port = port
        self._writer = CaptureWriter(target, file_format="pcapng")
        self._writer.interface(name=port.name)

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
        """Frames that have arrived; their time is that of this call."""
        frames = self.port.receive()
        if frames:
            self._write(frames)
        return frames

    def send(self, frames: Sequence[Frame]) -> int:
        """Send frames; those that the link accepts are written."""
        taken = self.port.send(frames)
        self._write(frames[:taken])
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

    def _write(self, frames: Sequence[Frame]) -> None:
        now = time.time_ns()
        for frame in frames:
            self._writer.write(frame, now)
        self._writer.flush()
