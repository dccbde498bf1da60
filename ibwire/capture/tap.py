"""A stage that writes the frames that pass to a capture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ibwire.base.errors import EncodeError
from ibwire.base.node import Frame
from ibwire.base.units import NS, Time
from ibwire.base.watcher import FrameWatcher
from ibwire.capture.pcap import PcapWriter
from ibwire.capture.pcapng import PcapngWriter
from ibwire.capture.writer import CaptureWriter


class Writer(Protocol):
    """A file of frames: `CaptureWriter`, `PcapWriter`, `PcapngWriter`."""

    def write(self, data: bytes, time_ns: int, /) -> None:
        """Append a frame."""
        ...


class Tap(FrameWatcher):
    """Writes each frame that passes to a file and lets it through.

    The time is that of passing, in whole nanoseconds, rounded down, from `epoch_ns` on:
    on a wire when the frame starts to leave, plus what earlier stages of the pipe
    delayed it. Several taps may share a file, in pcapng each with an interface; those
    of one simulator write in the order of time unless a delay stands before them.

    interface: its number in a pcapng. pick: which frames are written; `None` for all.
    """

    def __init__(
        self,
        writer: Writer,
        *,
        interface: int = 0,
        epoch_ns: int = 0,
        pick: Callable[[Frame, Time], bool] | None = None,
    ) -> None:
        if interface and isinstance(writer, PcapWriter):
            raise EncodeError("interface", interface, "0: only pcapng has interfaces")
        self.pick = pick
        self.epoch_ns = epoch_ns
        self.interface = interface
        self.hits = 0
        self._writer = writer
        self._pcap = writer if isinstance(writer, PcapWriter) else None
        self._interfaces = writer if isinstance(writer, CaptureWriter | PcapngWriter) else None
        """The same, if it has several interfaces."""

    def record(self, frame: Frame, now: Time) -> None:
        """Write the frame if it is picked."""
        if self.pick is None or self.pick(frame, now):
            self.hits += 1
            time_ns = self.epoch_ns + now // NS
            if self._pcap is not None:  # a call of compiled code by compiled code
                self._pcap.write(frame, time_ns)
            elif self._interfaces is not None:
                self._interfaces.write(frame, time_ns, interface=self.interface)
            else:
                self._writer.write(frame, time_ns)
