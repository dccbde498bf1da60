"""An emulated conversation as a pcapng file: what went in, and what came out."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from ibwire.capture import PcapngWriter
from ibwire.capture.stream import Target
from ibwire.link.recorded import RecordedPacket
from ibwire_layers.outer import LinkType


class PcapngTap:
    """Writes recorded frames as they were, and emulated ones with the time of their originals.

    Connections are replayed each at its own pace: frames are in order within a
    connection and close to it over all of them. The two have interfaces of their own.
    """

    def __init__(self, target: Target) -> None:
        """Raises `CaptureError` for a file that cannot be opened."""
        self._writer = PcapngWriter(target, LinkType.ETHERNET, name=_EMULATED)
        self._interfaces: dict[tuple[str, int], int] = {(_EMULATED, LinkType.ETHERNET): 0}

    def recorded(self, packet: RecordedPacket) -> None:
        """A recorded packet as it went into the emulation."""
        self._write(packet.frame, packet.time_ns, _RECORDED, packet.link_type)

    def emulated(self, frame: bytes, time_ns: int, link: str) -> None:
        """A frame that came out of it."""
        link_type = LinkType.INFINIBAND if link == "ib" else LinkType.ETHERNET
        self._write(frame, time_ns, _EMULATED, link_type)

    def _write(self, frame: bytes, time_ns: int, name: str, link_type: int) -> None:
        number = self._interfaces.get((name, link_type))
        if number is None:
            number = self._writer.add_interface(link_type, name)
            self._interfaces[name, link_type] = number
        # A damaged file may have times before the epoch, which pcapng cannot hold.
        self._writer.write(frame, max(time_ns, 0), interface=number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._writer.close()


_RECORDED = "recorded"
_EMULATED = "emulated"
