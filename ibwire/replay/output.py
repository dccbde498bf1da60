"""An emulated conversation as a pcapng file: what went in, and what came out."""

from __future__ import annotations

import heapq

from ibwire.base.closing import Closing
from ibwire.capture import CaptureWriter
from ibwire.capture.stream import Target
from ibwire.replay.recorded import RecordedPacket
from ibwire_layers.outer import LinkType


class ReplayCapture(Closing):
    """Writes recorded frames as they were, and emulated ones with the time of their originals.

    Connections are replayed each at its own pace, so frames wait to be sorted by time. One
    that comes too late even so gets the time of the frame before it: times never go back.
    Recorded and emulated frames have interfaces of their own.
    """

    WAITING = 16 << 20
    """Bytes of frames that wait."""

    def __init__(self, target: Target) -> None:
        """Raises `CaptureError` for a file that cannot be opened."""
        self._writer = CaptureWriter(target, file_format="pcapng")
        self._writer.interface(_EMULATED, name=_EMULATED)
        self._waiting: list[tuple[int, int, int, bytes]] = []
        """Time, order of coming, interface and frame."""
        self._size = 0
        """Bytes of what waits, about."""
        self._count = 0
        self._last_ns = 0
        """Time of the last frame written."""

    def recorded(self, packet: RecordedPacket) -> None:
        """A recorded packet as it went into the emulation."""
        self._write(packet.frame, packet.time_ns, _RECORDED, packet.link_type)

    def emulated(self, frame: bytes, time_ns: int, link: str) -> None:
        """A frame that came out of it."""
        link_type = LinkType.INFINIBAND if link == "ib" else LinkType.ETHERNET
        self._write(frame, time_ns, _EMULATED, link_type)

    def _write(self, frame: bytes, time_ns: int, name: str, link_type: int) -> None:
        number = self._writer.interface(name, link_type, name=name)
        heapq.heappush(self._waiting, (time_ns, self._count, number, frame))
        self._count += 1
        self._size += len(frame) + _ENTRY
        while self._size > self.WAITING:
            self._write_first()

    def _write_first(self) -> None:
        time_ns, _, number, frame = heapq.heappop(self._waiting)
        self._size -= len(frame) + _ENTRY
        # A damaged file may have times before the epoch, which pcapng cannot hold.
        self._last_ns = max(time_ns, self._last_ns)
        self._writer.write(frame, self._last_ns, interface=number)

    def close(self) -> None:
        """Write the frames that wait and finish the file."""
        while self._waiting:
            self._write_first()
        self._writer.close()


_ENTRY = 128
"""Bytes that a frame which waits takes beside its own."""

_RECORDED = "recorded"
_EMULATED = "emulated"
