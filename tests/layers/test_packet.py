"""Packets: reading strictly and not, building, repairing."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strategies
from each_case import each_case
from examples import sampled, scaled
from ibwire_layers import headers as h
from ibwire_layers import opcodes, outer
from ibwire_layers.errors import DecodeError, EncodeError, Fault
from ibwire_layers.outer import LinkType
from ibwire_layers.packet import CrcStatus, IBRoute, Packet, RoCEv1Route, RoCEv2Route, Route
from ibwire_layers.walk import walk
from strategies import HANDMADE, ROUTE1, ROUTE4, ROUTE6, ROUTE_GLOBAL, ROUTE_LOCAL, Frame
from vectors import INFINIBAND, Vector, load

VECTORS = [vector for vector in load() if "bth.opcode" in vector.expected]

ROUTES: dict[str, Route] = {
    "rocev2": ROUTE4,
    "rocev2 ipv6": ROUTE6,
    "rocev2 tagged": replace(
        ROUTE4, eth=outer.Ethernet(type=outer.EtherType.VLAN), vlans=(outer.VLAN(vid=7),)
    ),
    "rocev2 options": replace(ROUTE4, options=b"\x94\x04\x00\x00"),
    "rocev2 without ethernet": replace(ROUTE4, eth=None),
    "rocev1": ROUTE1,
    "ib local": ROUTE_LOCAL,
    "ib global": ROUTE_GLOBAL,
}

every_route = each_case("name", ROUTES)


def read(vector: Vector) -> Packet:
    return Packet.parse(vector.frame, vector.link_type, strict=False)


def link_type_of(route: Route) -> int:
    if isinstance(route, IBRoute):
        return LinkType.INFINIBAND
    return LinkType.ETHERNET if route.eth else LinkType.RAW_IP


# Golden frames.


@each_case("vector", sampled(VECTORS, 4), ids=str)
def test_golden_icrc_is_read_computed_and_judged(vector: Vector) -> None:
    packet = read(vector)

    assert packet.icrc is not None
    assert packet.icrc.hex() == vector.expected["icrc_wire_bytes"]
    assert packet.computed_icrc().hex() == vector.expected["icrc_computed_wire_bytes"]
    assert packet.icrc_status() == (CrcStatus.GOOD if vector.icrc_verifies else CrcStatus.BAD)


@each_case("vector", sampled(VECTORS, 4), ids=str)
def test_golden_payload_name_and_trailer(vector: Vector) -> None:
    packet = read(vector)

    assert packet.opcode_name == vector.expected["opcode_name"]
    if packet.fault is Fault.NONE:
        assert len(packet.payload) == vector.expected["payload_len"]
        assert len(packet.padding or b"") == vector.expected["bth.padcnt"]
    if "trailing_bytes_after_ip" in vector.expected:
        assert len(packet.trailer) == vector.expected["trailing_bytes_after_ip"]


@each_case("vector", sampled(VECTORS, 2), ids=str)
def test_golden_frame_is_built_byte_for_byte(vector: Vector) -> None:
    packet = read(vector)

    assert packet.build() == vector.frame


@each_case("vector", sampled([v for v in VECTORS if v.icrc_verifies], 4), ids=str)
def test_golden_checks_are_computed_when_they_are_left_out(vector: Vector) -> None:
    packet = replace(read(vector), icrc=None, vcrc=None)

    assert packet.build() == vector.frame


@each_case(
    "vector",
    [v for v in VECTORS if v.icrc_verifies and not v.expected.get("udp.checksum")],
    ids=str,
)
def test_a_right_golden_frame_needs_no_repair(vector: Vector) -> None:
    packet = read(vector)
    if packet.fault is not Fault.NONE:
        pytest.skip(f"made with a fault: {packet.fault.name}")

    assert packet.repaired().build() == vector.frame


@each_case("vector", [v for v in VECTORS if v.vcrc_verifies is not None], ids=str)
def test_golden_vcrc_is_read(vector: Vector) -> None:
    packet = read(vector)

    assert packet.vcrc is not None
    assert packet.vcrc.hex() == vector.expected["vcrc_wire_bytes"]
    rebuilt = replace(packet, vcrc=None).build()
    assert rebuilt[-2:].hex() == vector.expected["vcrc_computed_wire_bytes"]


# Laws.


def rebuilt(frame: Frame) -> bytes | None:
    """The frame read and built again; `None` when it is no packet."""
    try:
        packet = Packet.parse(frame.data, frame.link_type, strict=False)
    except DecodeError:
        assert walk(frame.data, frame.link_type).bth < 0
        return None
    return packet.build()


@each_case("frame", sampled(HANDMADE, 4), ids=str)
def test_a_frame_cut_at_any_length_is_built_byte_for_byte(frame: Frame) -> None:
    for length in range(len(frame.data) + 1):
        cut = frame.cut(length)
        assert rebuilt(cut) in (cut.data, None)


def test_what_follows_a_packet_is_kept() -> None:
    for frame, more in product(HANDMADE, (1, 4, 8, 50)):
        longer = replace(frame, data=frame.data + bytes(range(1, more + 1)))

        assert rebuilt(longer) in (longer.data, None), f"{frame} and {more} bytes"


@pytest.mark.slow
@settings(max_examples=scaled(500), deadline=None)
@given(strategies.damaged())
def test_a_damaged_frame_is_built_byte_for_byte(frame: Frame) -> None:
    assert rebuilt(frame) in (frame.data, None)


@settings(max_examples=scaled(300), deadline=None)
@given(strategies.damaged() | strategies.random_frames, st.booleans())
def test_any_bytes_are_a_packet_or_a_decode_error(frame: Frame, strict: bool) -> None:
    found = walk(frame.data, frame.link_type)

    def parse() -> Packet:
        return Packet.parse(frame.data, frame.link_type, strict=strict)

    if found.bth < 0 or (strict and found.fault):
        with pytest.raises(DecodeError) as caught:
            parse()
        assert caught.value.fault is (found.fault or Fault.NEXT_HEADER)
    else:
        packet = parse()
        assert packet.fault is found.fault
        assert packet.icrc_status() in CrcStatus
        assert packet.repaired().build()


packets = st.builds(
    lambda route, opcode, payload, psn, qp: Packet(
        ROUTES[route],
        h.BTH(opcode=opcode, psn=psn, dest_qp=qp),
        strategies.extensions_of(opcode),
        payload,
    ),
    st.sampled_from(sorted(ROUTES)),
    st.sampled_from(sorted(opcodes.INFO)),
    st.binary(max_size=64),
    st.integers(0, 0xFFFFFF),
    st.integers(0, 0xFFFFFF),
)


@settings(max_examples=scaled(300), deadline=None)
@given(packets)
def test_a_repaired_packet_is_right_in_every_way(packet: Packet) -> None:
    fixed = packet.repaired()

    data = fixed.build()
    parsed = Packet.parse(data, link_type_of(packet.route))

    assert parsed.icrc_status() is CrcStatus.GOOD
    assert parsed.payload == packet.payload
    assert parsed.extensions == packet.extensions
    assert parsed.route == fixed.route
    assert (len(parsed.payload) + len(parsed.padding or b"")) % 4 == 0
    assert replace(parsed, icrc=None, vcrc=None).repaired() == fixed


@every_route
def test_repair_mends_lengths_checksums_and_crcs(name: str) -> None:
    route = ROUTES[name]
    right = Packet(route, h.BTH(opcode=4), (), b"payload").repaired()
    wrong: Route
    if isinstance(right.route, RoCEv2Route):
        ip = right.route.ip
        lying = (
            replace(ip, payload_length=1)
            if isinstance(ip, outer.IPv6)
            else replace(ip, ihl=5, total_length=1, checksum=5)
        )
        wrong = replace(right.route, udp=replace(right.route.udp, length=9, checksum=3), ip=lying)
    elif isinstance(right.route, RoCEv1Route):
        wrong = replace(right.route, grh=replace(right.route.grh, pay_len=7))
    else:
        wrong = replace(right.route, lrh=replace(right.route.lrh, pkt_len=1))
    damaged = replace(right, route=wrong, icrc=bytes(4), bth=replace(right.bth, pad_count=3))

    assert damaged.build() != right.build()
    assert damaged.repaired().build() == right.build()


# Strictness and faults.


def test_frame_without_a_bth_is_a_decode_error_with_the_reason() -> None:
    (arp,) = [frame for frame in HANDMADE if frame.name == "arp"]

    for strict in (True, False):
        with pytest.raises(DecodeError, match="not an RDMA packet but ARP") as caught:
            Packet.parse(arp.data, strict=strict)
        assert caught.value.fault is Fault.NEXT_HEADER


@each_case(
    ("name", "fault"),
    [
        ("udp length", Fault.UDP_LENGTH),
        ("ipv4 first fragment", Fault.FRAGMENT),
        ("pad count of three without payload", Fault.PAD_COUNT),
        ("ib local unknown opcode", Fault.OPCODE),
        ("ipv4 no room for icrc", Fault.LENGTH),
    ],
)
def test_faulty_packet_is_a_decode_error_unless_not_strict(name: str, fault: Fault) -> None:
    (frame,) = [frame for frame in HANDMADE if frame.name == name]

    packet = Packet.parse(frame.data, frame.link_type, strict=False)

    assert packet.fault is fault
    assert packet.build() == frame.data
    with pytest.raises(DecodeError) as caught:
        Packet.parse(frame.data, frame.link_type)
    assert caught.value.fault is fault


def test_a_packet_that_was_cut_in_its_payload_is_no_fault_but_cut() -> None:
    data = strategies.packet(ROUTE4, 0x04, bytes(100))

    packet = Packet.parse(data[:-30])

    assert packet.cut
    assert packet.icrc_status() is CrcStatus.TRUNCATED
    assert packet.build() == data[:-30]


def test_an_empty_frame_is_a_decode_error() -> None:
    for link_type in LinkType:
        with pytest.raises(DecodeError):
            Packet.parse(b"", link_type)


def test_a_value_that_does_not_fit_is_an_encode_error() -> None:
    with pytest.raises(EncodeError, match=r"BTH\.psn"):
        Packet(ROUTE4, h.BTH(opcode=4, psn=1 << 24)).build()


def test_a_payload_too_long_for_the_length_field_is_an_encode_error() -> None:
    for route in (ROUTE4, ROUTE6, ROUTE1, ROUTE_LOCAL):
        with pytest.raises(EncodeError):
            Packet(route, h.BTH(opcode=4), (), bytes(70000)).repaired().build()


def test_extension_is_found_by_its_type() -> None:
    packet = Packet.parse(strategies.packet(ROUTE4, opcodes.OpCode.RC_RDMA_WRITE_ONLY))

    assert packet.extension(h.RETH) == packet.extensions[0]
    assert packet.extension(h.AETH) is None


def test_ip_checksum_is_that_of_rfc_1071() -> None:
    """The sum of all 16-bit words of a right header is 0xFFFF."""
    data = Packet(ROUTES["rocev2 options"], h.BTH(opcode=4), (), b"x").repaired().build()
    words = [int.from_bytes(data[at : at + 2]) for at in range(14, 14 + 24, 2)]

    assert sum(words) % 0xFFFF == 0
    assert words[5] != 0


def test_native_golden_frames_are_among_those_built() -> None:
    assert {INFINIBAND, LinkType.ETHERNET, LinkType.RAW_IP} <= {v.link_type for v in VECTORS}
