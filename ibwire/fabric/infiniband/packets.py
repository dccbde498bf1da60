"""What is on the links of a fabric: packets and flow-control packets, with bytes made when needed.

Adapters and switches go by a few fields of a packet. Its bytes are made where somebody needs them:
a stage of a link, a tap, link-level retry, the management, or a device that takes bytes.
"""

from __future__ import annotations

from typing import Final

from ibwire.base.node import Frame
from ibwire.base.unbuilt import UnbuiltFrame
from ibwire.base.units import Time
from ibwire.fabric.infiniband.credits import (
    BLOCK,
    FCP_SIZE,
    flow_control_packet,
    read_flow_control,
)
from ibwire.fabric.infiniband.errors import DamagedFrame
from ibwire.fabric.infiniband.lrh import (
    SHORTEST,
    VCRC_SIZE,
    dlid_of,
    is_management,
    on_lane,
    sl_of,
    vl_of,
    words_of,
)

WORD: Final = 4
"""Bytes of the unit of PktLen."""
_GENERAL_SERVICES = 1
"""The queue pair of MADs that are not on VL15."""


class LinkPacket(UnbuiltFrame):
    """A packet with an LRH: from its bytes, or of a device that has not built it."""

    __slots__ = ("cost", "dlid", "is_damaged", "is_malformed", "sl", "transport", "vl", "words")

    transport: UnbuiltFrame | None
    """What a device has sent, while nothing else than its lane has changed."""
    vl: int
    sl: int
    dlid: int
    words: int
    """PktLen: words of 4 bytes from the LRH to the ICRC."""
    cost: int
    """Blocks of 64 bytes."""
    is_damaged: bool
    """Whether a symbol error was detected when it arrived."""
    is_malformed: bool
    """Whether it is too short, or its size is not that of its LRH."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.cost = (size + BLOCK - 1) // BLOCK
        self.words = (size - VCRC_SIZE) // WORD
        self.is_damaged = self.is_malformed = self.continues = False
        self.built = self.transport = None

    def put_on(self, vl: int) -> None:
        """Change its lane."""
        if vl == self.vl:
            return
        self.vl = vl
        if self.transport is not None:
            self.built = None
        elif self.built is not None:
            self.built = on_lane(self.built, vl)

    def build(self) -> bytes:
        """Its bytes, from the LRH to the VCRC."""
        frame = self.built
        if frame is None:
            assert self.transport is not None
            frame = self.built = on_lane(self.transport.build(), self.vl)
        return frame

    def copy(self) -> LinkPacket:
        """The same packet, to be sent by another port."""
        return read_packet(self.build())

    @property
    def is_management(self) -> bool:
        """Whether it carries a MAD."""
        if self.transport is not None:
            return getattr(self.transport, "dest_qp", None) == _GENERAL_SERVICES
        return is_management(self.build())

    def received(self) -> UnbuiltFrame | None:
        """The packet of the device, if it is as it was sent: on the lane that it was built for."""
        transport = self.transport
        if transport is None or transport.flow_key[0] >> 4 != self.vl:
            return None
        return transport


def read_packet(frame: Frame) -> LinkPacket:
    """A packet from its bytes, which it keeps as they are."""
    size = len(frame)
    packet = LinkPacket(size)
    packet.built = frame
    packet.is_damaged = type(frame) is DamagedFrame
    packet.words = words_of(frame) if size >= FCP_SIZE else 0
    packet.is_malformed = size < SHORTEST or packet.words * WORD + VCRC_SIZE != size
    if size < SHORTEST:
        packet.vl = packet.sl = packet.dlid = 0
    else:
        packet.vl, packet.sl, packet.dlid = vl_of(frame), sl_of(frame), dlid_of(frame)
    return packet


def unbuilt_packet(transport: UnbuiltFrame) -> LinkPacket:
    """The packet of a device that has no GRH; its flow key is the LRH but for the length."""
    packet = LinkPacket(transport.size)
    key = transport.flow_key
    packet.transport = transport
    packet.vl = key[0] >> 4
    packet.sl = key[1] >> 4
    packet.dlid = key[2] << 8 | key[3]
    return packet


class FlowControl(UnbuiltFrame):
    """A flow-control packet: operation, lane, FCTBS and FCCL."""

    __slots__ = ("arrival", "limit", "next", "operation", "sent", "vl")

    def __init__(self, vl: int, *, sent: int, limit: int, operation: int) -> None:
        self.size = FCP_SIZE
        self.continues = False
        self.vl = vl
        self.sent = sent
        self.limit = limit
        self.operation = operation
        self.arrival: Time = 0
        """When the other end of the link has it; set when it leaves."""
        self.next: FlowControl | None = None
        """The next one on its way there."""

    def build(self) -> bytes:
        """Its bytes, with the LPCRC."""
        return flow_control_packet(
            self.vl, sent=self.sent, limit=self.limit, operation=self.operation
        )


def read_limit(frame: Frame) -> FlowControl | None:
    """A flow-control packet from its bytes; `None` for a damaged one."""
    found = read_flow_control(frame)
    if found is None:
        return None
    operation, vl, sent, limit = found
    return FlowControl(vl, sent=sent, limit=limit, operation=operation)
