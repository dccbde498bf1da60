"""Writes an emulated connection to a pcapng file: recorded input and emulated output."""

from __future__ import annotations

import heapq

from ibwire.base.closing import Closing
from ibwire.capture import CaptureWriter
from ibwire.capture.stream import Target
from ibwire.replay.recorded import RecordedPacket
from ibwire_layers.outer import LinkType


class ReplayCapture(Closing):
    """Writes recorded frames unchanged, and emulated ones with the time of their originals.

    Connections are replayed independently, so frames wait to be sorted by time. A frame that
    still comes too late gets the time of the frame before it, so times never decrease.
    Recorded and emulated frames are on different interfaces.
    """

    WAITING = 16 << 20
    """Bytes of frames that wait."""

    def __init__(self, target: Target) -> None:
        """Raises `CaptureError` for a file that cannot be opened."""
        self._writer = CaptureWriter(target, file_format="pcapng")
        self._writer.interface(_EMULATED, name=_EMULATED)
        self._waiting: list[tuple[int, int, int, bytes]] = []
        """Time, order of arrival, interface and frame."""
        self._size = 0
        """Approximate bytes of frames that wait."""
        self._count = 0
        self._last_ns = 0
        """Time of the last frame written."""

    def recorded(self, packet: RecordedPacket) -> None:
        """Write a recorded packet that was passed to the emulation."""
        self._write(packet.frame, packet.time_ns, _RECORDED, packet.link_type)

    def emulated(self, frame: bytes, time_ns: int, link: str) -> None:
        """Write a frame that the emulation has sent."""
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
"""Memory of a waiting frame in addition to its bytes."""

_RECORDED = "recorded"
_EMULATED = "emulated"
