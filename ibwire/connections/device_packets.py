"""The packets of one reliable connection of a device in a capture, as the device saw them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ibwire.base.errors import CaptureError, DecodeError
from ibwire.base.node import Frame
from ibwire.base.units import NS, Time
from ibwire.capture import open_capture
from ibwire.rc.device import gid_of
from ibwire_layers import headers as h
from ibwire_layers.opcodes import INFO, Payload, Service
from ibwire_layers.outer import LinkType
from ibwire_layers.packet import CrcStatus, Packet, RoCEv2Route

MAXIMUM_PACKETS = 20_000
"""Packets of a device that are kept; a capture with more has to be cut."""


@dataclass(frozen=True, slots=True)
class DevicePacket:
    """A packet that the device has received or sent."""

    time: Time
    """Since the first packet of the device."""
    frame: Frame
    packet: Packet
    is_received: bool


class DeviceConnection:
    """The packets of one connection of a device, in the order of the capture.

    The other attributes are indices of `packets`.
    """

    def __init__(self, packets: Sequence[DevicePacket], qpn: int, peer_qpn: int) -> None:
        self.packets = packets
        self.qpn = qpn
        self.peer_qpn = peer_qpn
        self.mtu = _path_mtu(packets)
        self.received = [i for i, each in enumerate(packets) if each.is_received]
        self.sent = [i for i, each in enumerate(packets) if not each.is_received]
        self.requests = [i for i in self.received if _is_request(packets[i])]
        """Requests to the device."""
        self.own_requests = [i for i in self.sent if _is_request(packets[i])]
        """Requests of the device."""
        self.addressed = [i for i in self.received if packets[i].packet.extension(h.RETH)]
        """Received packets with a RETH."""


def read_device_connection(path: str, device: str, qpn: int | None = None) -> DeviceConnection:
    """The connection of a device in a capture; `qpn` selects one of several.

    device: its address. Raises `CaptureError` for a file that cannot be read and for one
    that does not hold exactly one such connection.
    """
    found: list[DevicePacket] = []
    for each in _packets_of(path, device):
        found.append(each)
        if len(found) > MAXIMUM_PACKETS:
            reason = f"more than {MAXIMUM_PACKETS} RDMA packets of {device}: cut the capture"
            raise CaptureError(path, None, reason)
    own_qpn = _qpn_of(path, device, qpn, found)
    peers = {
        each.packet.bth.dest_qp
        for each in found
        if not each.is_received and each.packet.icrc_status() is not CrcStatus.BAD
    }
    if len(peers) > 1:
        raise CaptureError(
            path, None, f"{device} answers {len(peers)} queue pairs: cut the capture"
        )
    kept = [each for each in found if not each.is_received or each.packet.bth.dest_qp == own_qpn]
    return DeviceConnection(kept, own_qpn, peers.pop() if peers else 0)


def _packets_of(path: str, device: str) -> Iterator[DevicePacket]:
    """The RoCEv2 packets to and from an address, except damaged ones to it."""
    gid = gid_of(device)
    address = gid if gid >> 32 != 0xFFFF else gid & 0xFFFFFFFF
    start: int | None = None
    with open_capture(path) as reader:
        for record in reader.records():
            packet = _reliable_packet(record.data, record.link_type)
            if packet is None:
                continue
            assert isinstance(packet.route, RoCEv2Route)
            source, destination = packet.route.ip.src, packet.route.ip.dst
            if address not in (source, destination):
                continue
            start = record.time_ns if start is None else start
            is_received = destination == address
            if is_received and packet.icrc_status() is CrcStatus.BAD:
                continue  # the device has dropped it
            time = max(record.time_ns - start, 0) * NS
            yield DevicePacket(time, record.data, packet, is_received)


def _qpn_of(path: str, device: str, qpn: int | None, packets: Sequence[DevicePacket]) -> int:
    """The queue pair of the device; raises `CaptureError` unless there is exactly one."""
    received = {each.packet.bth.dest_qp for each in packets if each.is_received}
    if not received:
        reason = f"no RoCEv2 packet of a connection for {device} on Ethernet"
        raise CaptureError(path, None, reason)
    if qpn is None and len(received) > 1:
        listed = ", ".join(map(hex, sorted(received)[:_MOST_LISTED]))
        reason = f"which queue pair of {device}? it has packets for {listed}"
        raise CaptureError(path, None, reason)
    if qpn is not None and qpn not in received:
        raise CaptureError(path, None, f"no packet for queue pair {qpn:#x} of {device}")
    return received.pop() if qpn is None else qpn


def _reliable_packet(frame: Frame, link_type: int) -> Packet | None:
    """A RoCEv2 packet of a reliable connection, a CNP or a reserved opcode; otherwise `None`."""
    if link_type != LinkType.ETHERNET:
        return None
    try:
        packet = Packet.parse(frame, link_type)
    except DecodeError:
        return None
    info = INFO.get(packet.bth.opcode)
    is_kept = info is None or info.service in (Service.RC, Service.CNP)
    return packet if is_kept and isinstance(packet.route, RoCEv2Route) else None


def _is_request(each: DevicePacket) -> bool:
    info = INFO.get(each.packet.bth.opcode)
    return info is not None and not info.is_response and info.service is Service.RC


def _path_mtu(packets: Sequence[DevicePacket]) -> int:
    """The path MTU: the payload of a packet inside a message, or else the largest MTU."""
    for each in packets:
        info = INFO.get(each.packet.bth.opcode)
        if info is not None and info.payload is Payload.PMTU:
            return len(each.packet.payload)
    return 4096


_MOST_LISTED = 8
"""Queue pairs that an error names."""
