"""The fields of sent packets that a user may choose, the same for all queue pairs of a command."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ibwire.rc.attributes import AddressVector


@dataclass(frozen=True, slots=True)
class PacketFields:
    """Header fields of sent packets, requests and responses."""

    traffic_class: int = 0
    """DSCP and ECN: type of service of IPv4, traffic class of IPv6."""
    hop_limit: int = 64
    pkey: int = 0xFFFF
    source_port: int | None = None
    """UDP source port; `None` for the profile's choice."""

    def address(self, gid: int, sgid_index: int, sl: int = 0) -> AddressVector:
        """The destination of packets with these fields."""
        return AddressVector(
            dgid=gid,
            sgid_index=sgid_index,
            traffic_class=self.traffic_class,
            hop_limit=self.hop_limit,
            sl=sl,
            udp_source_port=self.source_port,
        )

    def with_source_port(self, address: AddressVector) -> AddressVector:
        """A destination whose other fields were chosen by the peer that has connected."""
        return replace(address, udp_source_port=self.source_port)
