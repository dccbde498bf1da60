"""Runs of MIDDLE packets: of a SEND, a WRITE or a READ response, in the order of their PSNs."""

from __future__ import annotations

from collections.abc import Sequence

from ibwire.base.node import Frame
from ibwire.base.run import FrameRun
from ibwire.rc.packet import TransportPacket, encode
from ibwire_layers.psn import MASK

_COMMON = 8
"""Bytes of the BTH before the AckReq bit and the PSN."""


class PacketRun(FrameRun):
    """MIDDLE packets of one message that ask for no ACK, with their data in one piece.

    packet: the first, which is sent already. memory: from which those after it are read, each of
    the path MTU.
    sender: the number of the queue pair that sends them.
    """

    __slots__ = ("_data", "_end", "_start", "mtu", "packet", "sender")

    def __init__(self, packet: TransportPacket, memory: memoryview, sender: int) -> None:
        self.packet = packet
        self.sender = sender
        self.mtu = len(packet.payload)
        self.count = 1 + len(memory) // self.mtu
        self._data = memory.tobytes()
        # Not the view itself: it would keep its owner from resizing the memory.
        self._start = _address(memory)
        self._end = self._start + len(memory)

    def append(self, memory: memoryview) -> int:
        """Add packets with the data in this memory; how many."""
        count = len(memory) // self.mtu
        self._data = self.data(1, self.count) + memory.tobytes()
        self.count += count
        start = _address(memory)  # elsewhere, if the region has moved
        self._start, self._end = min(self._start, start), max(self._end, start + len(memory))
        return count

    def is_read_from(self, memory: memoryview) -> bool:
        """Whether some of its data is read from this memory."""
        start = _address(memory)
        return start < self._end and self._start < start + len(memory)

    def frame(self, index: int) -> TransportPacket:
        """One of its packets, as a frame that is not built."""
        packet = self.packet
        if not index:
            return packet
        made = TransportPacket(packet.form, packet.psn + index & MASK, self.data(index, index + 1))
        made.pkey, made.mig_req = packet.pkey, packet.mig_req
        made.dest_qp, made.reserved = packet.dest_qp, packet.reserved
        made.path, made.size, made.flow_key = packet.path, packet.size, packet.flow_key
        made.is_marked, made.built, made.continues = False, None, False
        number = packet.identification
        made.identification = number if number < 0 else number + index & 0xFFFF
        return made

    def data(self, first: int, last: int) -> bytes:
        """The data of its packets from `first`, which is not 0, up to, without, `last`."""
        return self._data[(first - 1) * self.mtu : (last - 1) * self.mtu]

    def build(self, first: int, last: int) -> Sequence[Frame]:
        """The bytes of its frames from `first`, which is not 0, up to, without, `last`."""
        packet, path = self.packet, self.packet.path
        assert path is not None
        number = packet.identification
        if number >= 0:
            number = number + first & 0xFFFF
        bth = encode(packet)[:_COMMON]
        psn = packet.psn + first & MASK
        return path.frames(bth, psn, self.data(first, last), self.mtu, number)


def _address(memory: memoryview) -> int:
    """Where memory begins, in this process."""
    import numpy as np  # only programs that have runs need it

    address: int = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
    return address
