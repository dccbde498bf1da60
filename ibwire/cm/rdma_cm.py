"""The IP addressing of the RDMA connection manager, as in `rdma_connect` and `rdma_listen`.

A service ID is a port of a port space. The first 36 bytes of the private data of a REQ or
SIDR_REQ are the IP addresses; the rest belongs to the application.

Source: IBA annex A11; Linux `core/cma.c`; reference/wire-formats#udp-source-port,
reference/cm#ip-service; cm-rping.
"""

from __future__ import annotations

from dataclasses import dataclass

from ibwire.base.errors import EncodeError
from ibwire.cm.messages import padded
from ibwire.rc.path import V4_MAPPED, is_v4
from ibwire_layers import cm
from ibwire_layers.headers import IPCM

UDP_QKEY = 0x01234567
"""Q_Key of queue pairs in the UDP port space (reference/cm#ip-service)."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The two ends: GIDs, in which an IPv4 address is ::ffff:a.b.c.d, and ports."""

    source: int
    source_port: int
    destination: int
    destination_port: int
    space: int = cm.PortSpace.TCP

    @property
    def service_id(self) -> int:
        """Service ID of the listener."""
        return cm.rdma_cm_service_id(self.space, self.destination_port)

    @property
    def flow_label(self) -> int:
        """Flow label of the connection, 20 bits; both ends take it from the REQ (`core/cma.c`)."""
        return self.source_port * 31 + self.destination_port & 0xFFFFF

    def private_data(self, data: bytes = b"") -> bytes:
        """Private data of a REQ or SIDR_REQ with the application's data; raises `EncodeError`."""
        if is_v4(self.source) != is_v4(self.destination):
            raise EncodeError("destination", self.destination, "of the source's IP version")
        header = IPCM(
            ip_version=4 if is_v4(self.source) else 6,
            src_port=self.source_port,
            src_ip=_bare(self.source),
            dst_ip=_bare(self.destination),
        )
        return header.pack() + data


def endpoints_of(message: cm.REQ | cm.SIDR_REQ) -> tuple[Endpoints, bytes] | None:
    """The two ends and the application's data; `None` for a request without IP addresses.

    Also `None` for an unknown version of the header or of IP.
    """
    service = cm.rdma_cm_port(message.service_id)
    if service is None or not cm.has_ip_addresses(message.service_id):
        return None
    header = IPCM.unpack(message.private_data)
    if header.major or header.ip_version not in (4, 6):
        return None
    space, port = service
    v4 = header.ip_version == 4
    source, destination = header.src_ip, header.dst_ip
    if v4:
        # Only the last four bytes are used; Linux does not clear the others.
        source, destination = (V4_MAPPED | ip & 0xFFFFFFFF for ip in (source, destination))
    ends = Endpoints(source, header.src_port, destination, port, space)
    return ends, message.private_data[IPCM.SIZE :]


def resolve_request(ends: Endpoints, data: bytes = b"", pkey: int = 0xFFFF) -> cm.SIDR_REQ:
    """A SIDR_REQ for a datagram service; raises `EncodeError`."""
    return cm.SIDR_REQ(
        pkey=pkey,
        service_id=ends.service_id,
        private_data=padded(cm.SIDR_REQ, ends.private_data(data)),
    )


def resolve_reply(qpn: int, data: bytes = b"", qkey: int = UDP_QKEY) -> cm.SIDR_REP:
    """A SIDR_REP with a queue pair; raises `EncodeError`."""
    return cm.SIDR_REP(qpn=qpn, qkey=qkey, private_data=padded(cm.SIDR_REP, data))


def _bare(gid: int) -> int:
    return gid & 0xFFFFFFFF if is_v4(gid) else gid
