"""The frames that emulated devices have sent and received, and a line of text for each."""

from __future__ import annotations

from typing import NamedTuple

from ibwire.base.errors import DecodeError
from ibwire.base.node import Frame
from ibwire.base.units import NS, US, Time
from ibwire_layers.headers import AETH
from ibwire_layers.outer import LinkType
from ibwire_layers.packet import Packet
from ibwire_layers.syndrome import describe


class LoggedFrame(NamedTuple):
    """A frame that a device has sent or received."""

    time: Time
    device: str
    event: str
    """`sent` or `received`."""
    frame: Frame
    link_type: int = LinkType.ETHERNET

    @property
    def packet(self) -> Packet:
        """The packet in it; raises `DecodeError` if there is none."""
        return Packet.parse(self.frame, self.link_type)

    def __str__(self) -> str:
        return (
            f"{self.time // US:>10}.{self.time % US // NS:03} us  {self.device} "
            f"{self.event:<8} {describe_frame(self.frame, self.link_type)}"
        )


def describe_frame(frame: Frame, link_type: int = LinkType.ETHERNET) -> str:
    """Opcode, PSN, destination QP, payload length and syndrome of a packet, as text."""
    try:
        packet = Packet.parse(frame, link_type, strict=False)
    except DecodeError as error:
        return f"{len(frame)} bytes: {error}"
    text = f"{packet.opcode_name} psn={packet.bth.psn} to {packet.bth.dest_qp:#x}"
    if packet.payload:
        text += f" len={len(packet.payload)}"
    aeth = packet.extension(AETH)
    if aeth is not None:
        text += f" {describe(aeth.syndrome)} msn={aeth.msn}"
    status = packet.icrc_status()
    return text if status == "good" else f"{text} icrc {status}"


def link_type_of(link: str) -> int:
    """The link type of captures of a link: `rocev2`, `rocev1` or `ib`."""
    return LinkType.INFINIBAND if link == "ib" else LinkType.ETHERNET
