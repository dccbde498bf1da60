"""Messages of communication management: sizes, a captured REQ, service IDs."""

from __future__ import annotations

from ipaddress import IPv4Address

from each_case import each_case
from ibwire_layers import cm
from ibwire_layers.headers import IPCM
from ibwire_layers.management import read_mad
from ibwire_layers.schema import Header

RPING_REQ = bytes.fromhex(
    "0107020300000000000000022ec034d90010000000000000d934c02e000000000000000001061c06"
    "505400fffe77000100000000000000000000920100000001000000a0fc17b7a7ffff57f0ffffffff"
    "00000000000000000000ffff0a4d000100000000000000000000ffff0a4d00022ab6100000400098"
    "00000000000000000000000000000000000000000000000000000000000000000000000000000000"
    "00000000004099450000000000000000000000000a4d00010000000000000000000000000a4d0002"
    "00000000000000000000000000000000000000000000000000000000000000000000000000000000"
    "00000000000000000000000000000000"
)
"""MAD of the first frame of an rping over Linux rxe (own capture); values below as tshark 4.0.17
prints them, except flow label and packet rate, which it misreads."""


@each_case(
    ("message", "private"),
    [
        (cm.REQ, 92),
        (cm.MRA, 222),
        (cm.REJ, 148),
        (cm.REP, 196),
        (cm.RTU, 224),
        (cm.DREQ, 220),
        (cm.DREP, 224),
        (cm.SIDR_REQ, 216),
        (cm.SIDR_REP, 136),
        (cm.LAP, 168),
        (cm.APR, 148),
    ],
)
def test_message_fills_232_bytes_and_ends_with_private_data(
    message: type[Header], private: int
) -> None:
    last = message.FIELDS[-1]

    assert message.SIZE == 232
    assert (last.name, last.size) == ("private_data", 8 * private)


@each_case(
    ("message", "field", "byte", "bit"),
    [
        (cm.REQ, "service_id", 8, 0),
        (cm.REQ, "transport_service_type", 43, 5),
        (cm.REQ, "rnr_retry_count", 50, 5),
        (cm.REQ, "primary_local_gid", 56, 0),
        (cm.REQ, "primary_packet_rate", 91, 2),
        (cm.REQ, "alternate_flow_label", 132, 0),
        (cm.REQ, "sap_supported", 139, 5),
        (cm.MRA, "service_timeout", 9, 0),
        (cm.REJ, "reason", 10, 0),
        (cm.REJ, "ari", 12, 0),
        (cm.REP, "starting_psn", 20, 0),
        (cm.REP, "failover_accepted", 26, 5),
        (cm.REP, "srq", 27, 3),
        (cm.REP, "local_ca_guid", 28, 0),
        (cm.DREQ, "remote_qpn", 8, 0),
        (cm.SIDR_REQ, "service_id", 8, 0),
        (cm.SIDR_REP, "service_id", 12, 0),
        (cm.SIDR_REP, "additional_info", 24, 0),
        (cm.LAP, "remote_qpn", 12, 0),
        (cm.LAP, "alternate_packet_rate", 61, 2),
        (cm.LAP, "alternate_local_ack_timeout", 63, 0),
        (cm.APR, "ap_status", 9, 0),
    ],
)
def test_field_has_the_offset_of_linux(
    message: type[Header], field: str, byte: int, bit: int
) -> None:
    """Linux `include/rdma/ibta_vol1_c12.h`."""
    entry = next(entry for entry in message.FIELDS if entry.name == field)

    assert divmod(entry.offset, 8) == (byte, bit)


def test_captured_request_reads_as_sent() -> None:
    req = next(part for _, _, part in read_mad(RPING_REQ) if isinstance(part, cm.REQ))

    assert req.local_comm_id == 0xD934C02E
    assert req.service_id == 0x0000000001061C06
    assert req.local_ca_guid == 0x505400FFFE770001
    assert (req.local_qpn, req.starting_psn) == (0x92, 0xFC17B7)
    assert (req.responder_resources, req.initiator_depth) == (1, 1)
    assert (req.remote_cm_response_timeout, req.local_cm_response_timeout) == (20, 20)
    assert (req.retry_count, req.rnr_retry_count, req.max_cm_retries) == (7, 7, 15)
    assert (req.pkey, req.path_packet_payload_mtu, req.srq) == (0xFFFF, 5, 0)
    assert (req.primary_local_lid, req.primary_remote_lid) == (0xFFFF, 0xFFFF)
    assert (req.primary_hop_limit, req.primary_local_ack_timeout) == (0x40, 19)
    # Bytes 2a b6 10 00: label 0x2ab61 in the upper 20 bits, rate in the lower 6.
    assert (req.primary_flow_label, req.primary_packet_rate) == (0x2AB61, 0)


def test_captured_request_carries_the_addresses_of_both_ends() -> None:
    name, offset, addresses = read_mad(RPING_REQ)[-1]

    assert (name, offset) == ("IPCM", 24 + 140)
    assert isinstance(addresses, IPCM)
    assert (addresses.ip_version, addresses.src_port) == (4, 0x9945)
    assert IPv4Address(addresses.src_ip) == IPv4Address("10.77.0.1")
    assert IPv4Address(addresses.dst_ip) == IPv4Address("10.77.0.2")


def test_tcp_port_18515_has_the_service_id_of_the_addressing_annex() -> None:
    """IBA annex A11; the value is that of the reference."""
    service_id = cm.rdma_cm_service_id(cm.PortSpace.TCP, 18515)

    assert service_id == 0x0000000001064853
    assert cm.rdma_cm_port(service_id) == (cm.PortSpace.TCP, 18515)


@each_case(
    ("service_id", "port", "addresses"),
    [
        (0x0000000001061C06, (cm.PortSpace.TCP, 7174), True),
        (0x0000000001111234, (cm.PortSpace.UDP, 0x1234), True),
        (0x00000000013F0007, (cm.PortSpace.IB, 7), False),
        (0x0000000000020005, (cm.PortSpace.IPOIB, 5), False),
        (0x1000000000000404, None, False),
        (0, None, False),
    ],
)
def test_service_id_determines_whether_private_data_begins_with_addresses(
    service_id: int, port: tuple[int, int] | None, addresses: bool
) -> None:
    assert cm.rdma_cm_port(service_id) == port
    assert cm.has_ip_addresses(service_id) is addresses


def test_request_of_another_service_is_read_without_addresses() -> None:
    payload = bytearray(RPING_REQ)
    payload[32:40] = (0x1000000000000404).to_bytes(8)

    assert [name for name, _, _ in read_mad(bytes(payload))] == ["MAD", "REQ"]


def test_reject_reason_28_is_consumer_defined() -> None:
    assert cm.RejectReason(28).name == "CONSUMER_DEFINED"
    assert sorted(cm.RejectReason) == [*range(1, 34), 35]
