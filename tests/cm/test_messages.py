"""Messages, times and the addresses of the RDMA connection manager."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_case import each_case
from ibwire.base.errors import EncodeError
from ibwire.base.units import US
from ibwire.cm import Endpoints, endpoints_of, request, resolve_reply, resolve_request
from ibwire.cm.messages import combined_ack_timeout, decode, duration, encode
from ibwire.rc.device import gid_of
from ibwire_layers import cm
from ibwire_layers.mad import MAD
from ibwire_layers.management import read_mad

MESSAGES = [
    cm.REQ,
    cm.MRA,
    cm.REJ,
    cm.REP,
    cm.RTU,
    cm.DREQ,
    cm.DREP,
    cm.SIDR_REQ,
    cm.SIDR_REP,
    cm.LAP,
    cm.APR,
]


@given(st.sampled_from(MESSAGES), st.binary(min_size=232, max_size=232), st.integers(0, 2**64 - 1))
def test_message_survives_its_mad(kind: type[cm.REQ], body: bytes, transaction_id: int) -> None:
    message = kind.unpack(body)
    received = decode(encode(message, transaction_id))

    assert received is not None
    assert received.message == message
    assert received.transaction_id == transaction_id


@given(st.sampled_from(MESSAGES), st.integers(0, 2**64 - 1))
def test_common_header_is_that_of_the_schema(kind: type[cm.REQ], transaction_id: int) -> None:
    """IBA 13.4: version 1, class 7, version 2 of it, Send."""
    header = MAD(
        base_version=1,
        mgmt_class=7,
        class_version=2,
        method=3,
        transaction_id=transaction_id,
        attribute_id=cm.CMAttribute[kind.__name__],
    )

    assert encode(kind(), transaction_id) == header.pack() + kind().pack()


@pytest.mark.parametrize("transaction_id", [-1, 1 << 64])
def test_transaction_that_does_not_fit_is_refused(transaction_id: int) -> None:
    with pytest.raises(EncodeError):
        encode(cm.DREP(), transaction_id)


def test_mad_reads_as_management_datagram_of_the_right_kind() -> None:
    found = read_mad(encode(cm.DREQ(local_comm_id=1, remote_comm_id=2, remote_qpn=3), 4))

    assert [name for name, _, _ in found] == ["MAD", "DREQ"]


@each_case(
    ("ca_ack_delay", "life", "code"),
    [
        (15, 18, 19),  # cm-rping: twice 2^18 is 2^19, next to which 2^15 is nothing
        (15, 14, 16),  # both are 2^15, together 2^16
        (15, 15, 17),  # 2^16 and half of it: rounded up
        (15, 13, 16),
        (15, 12, 15),
        (31, 31, 31),  # there are no more than five bits
    ],
)
def test_ack_timeout_holds_both_ways_and_the_device(
    ca_ack_delay: int, life: int, code: int
) -> None:
    assert combined_ack_timeout(ca_ack_delay, life) == code


def test_codes_are_powers_of_two_of_4096_nanoseconds_up_to_a_minute() -> None:
    assert duration(0) == 4096 * US // 1000
    assert duration(20) == 4294967296 * US // 1000  # 4.29 s, reference/cm#linux-values
    assert duration(31) == duration(24)


@pytest.mark.parametrize("mtu", [0, 5, 1000, 8192])
def test_mtu_that_has_no_code_is_refused(mtu: int) -> None:
    with pytest.raises(EncodeError):
        request(service_id=1, source=1, destination=2, qpn=1, starting_psn=0, mtu=mtu)


def test_addresses_stand_where_annex_a11_has_them() -> None:
    """The 36 bytes of cm-rping-ipv6, as tshark shows its first packet."""
    ends = Endpoints(gid_of("fd77::1"), 0x9D25, gid_of("fd77::2"), 7174)

    assert ends.service_id == 0x1061C06
    assert ends.private_data(b"xyz") == (
        bytes.fromhex("0060 9d25 fd770000000000000000000000000001 fd770000000000000000000000000002")
        + b"xyz"
    )
    assert ends.flow_label == 0x32381


def test_resolution_is_that_of_udaddy() -> None:
    """cm-udaddy: service ID 0x1111c06, Q_Key 0x1234567 for queue pair 0x63."""
    gids = gid_of("10.77.0.1"), gid_of("10.77.0.2")
    ends = Endpoints(gids[0], 0xDF86, gids[1], 7174, space=cm.PortSpace.UDP)
    asked, answer = resolve_request(ends), resolve_reply(0x63)

    assert asked.service_id == 0x1111C06
    assert asked.private_data[:36].hex() == (
        "0040df86" + "00" * 12 + "0a4d0001" + "00" * 12 + "0a4d0002"
    )
    assert (answer.status, answer.qpn, answer.qkey) == (0, 0x63, 0x1234567)


@given(
    st.sampled_from([("10.0.0.1", "10.0.0.2"), ("fe80::1", "fe80::2")]),
    st.integers(0, 0xFFFF),
    st.integers(0, 0xFFFF),
    st.binary(max_size=56),
)
def test_endpoints_are_read_as_written(
    addresses: tuple[str, str], source_port: int, port: int, data: bytes
) -> None:
    ends = Endpoints(gid_of(addresses[0]), source_port, gid_of(addresses[1]), port)
    made = request(
        service_id=ends.service_id,
        source=ends.source,
        destination=ends.destination,
        qpn=1,
        starting_psn=0,
        private_data=ends.private_data(data),
    )

    assert endpoints_of(made) == (ends, data.ljust(56, b"\0"))


@each_case(
    ("service_id", "first_bytes"),
    [
        (0x1061C06, "1040"),  # version 1 of the header
        (0x1061C06, "0050"),  # IP version 5
        (0x1061C06, "0000"),
        (0x13F1C06, "0040"),  # the InfiniBand port space has no such header
        (0x1234567890, "0040"),
    ],
)
def test_private_data_of_another_kind_has_no_endpoints(service_id: int, first_bytes: str) -> None:
    asked = cm.SIDR_REQ(
        service_id=service_id, private_data=bytes.fromhex(first_bytes).ljust(216, b"\0")
    )

    assert endpoints_of(asked) is None


def test_endpoints_of_two_ip_versions_are_refused() -> None:
    with pytest.raises(EncodeError):
        Endpoints(gid_of("10.0.0.1"), 1, gid_of("fd77::2"), 2).private_data()
