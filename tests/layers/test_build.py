"""Frames from named fields: bytes of golden frames, rules for names, ICRC and lengths."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from each_case import each_case
from ibwire_layers import headers as h
from ibwire_layers import outer
from ibwire_layers.build import build, build_packet, enclose
from ibwire_layers.errors import EncodeError
from ibwire_layers.fields import NAMES, change, changes_of
from ibwire_layers.opcodes import OpCode
from ibwire_layers.outer import EtherType, LinkType
from ibwire_layers.packet import CrcStatus, IBRoute, Packet, RoCEv1Route, RoCEv2Route, Route
from strategies import ROUTE1, ROUTE4, ROUTE6, ROUTE_GLOBAL, ROUTE_LOCAL, golden_fields
from vectors import Vector, load

VECTORS = [
    vector
    for vector in load()
    if vector.icrc_verifies and "bth.opcode" in vector.expected and "options" not in vector.name
]

LENGTHS = (
    "bth.padcnt", "ip.ihl", "ip.len", "ip.checksum", "ipv6.plen", "udp.length",
    "grh.paylen", "lrh.pktlen", "lrh.lnh", "reth.dmalen",
)  # fmt: skip
"""Column names of the fields that `build` computes."""

ROUTES: dict[str, Route] = {
    "rocev2": ROUTE4,
    "rocev2 ipv6": ROUTE6,
    "rocev1": ROUTE1,
    "ib local": ROUTE_LOCAL,
    "ib global": ROUTE_GLOBAL,
}

every_route = each_case("route", ROUTES.values(), ids=ROUTES)


def link_type_of(route: Route) -> int:
    return LinkType.INFINIBAND if isinstance(route, IBRoute) else LinkType.ETHERNET


def blank_route(expected: dict[str, Any]) -> Route:
    """The headers before the BTH of a golden frame, with every field at its default."""
    grh = h.GRH() if "grh.sgid" in expected else None
    if "lrh.vl" in expected:
        return IBRoute(h.LRH(), grh)
    tagged = "vlan.vid" in expected
    eth = outer.Ethernet(type=EtherType.VLAN if tagged else expected["eth.type"])
    tags = (outer.VLAN(),) if tagged else ()
    if grh is not None:
        return RoCEv1Route(grh, eth, tags)
    ip = outer.IPv4() if "ip.src" in expected else outer.IPv6()
    return RoCEv2Route(ip, outer.UDP(), eth, tags)


def golden_arguments(vector: Vector) -> dict[str, Any]:
    """The fields of a golden frame that are not computed, by column name, and its payload."""
    fields = golden_fields(vector.expected)
    at = len(vector.frame) - h.ICRC_SIZE - vector.expected["bth.padcnt"]
    at -= h.VCRC_SIZE if "lrh.vl" in vector.expected else 0
    payload = vector.frame[at - vector.expected["payload_len"] : at]
    known = {name: value for name, value in fields.items() if name in NAMES}
    return {**known, "route": blank_route(vector.expected), "payload": payload}


@each_case("vector", VECTORS, ids=str)
def test_golden_frame_is_built_from_its_hand_read_fields(vector: Vector) -> None:
    arguments = golden_arguments(vector)
    given = {name: value for name, value in arguments.items() if name not in LENGTHS}
    if "reth.dmalen" in arguments:  # the frame is one packet of a longer message
        given["dma_len"] = arguments["reth.dmalen"]

    frame = build(vector.expected["bth.opcode"], **given)

    assert frame == vector.frame


def test_ipv4_options_of_the_route_are_kept() -> None:
    (vector,) = [each for each in load() if each.name == "v2_ipv4_options"]
    packet = Packet.parse(vector.frame)

    frame = build(packet.bth.opcode, route=packet.route, payload=packet.payload, dest_qp=17, psn=1)

    assert frame == vector.frame


@pytest.mark.parametrize("vector", [v for v in VECTORS if "ip.id" in v.expected][:4], ids=str)
def test_lengths_that_are_given_are_used(vector: Vector) -> None:
    arguments = golden_arguments(vector)
    wrong = {"ip.len": 99, "udp.length": 7, "bth.padcnt": 2, "udp.checksum": 0x1234}
    arguments = {**arguments, **wrong}
    arguments.pop("ip.checksum")

    packet = Packet.parse(build(vector.expected["bth.opcode"], **arguments), strict=False)

    route = packet.route
    assert isinstance(route, RoCEv2Route)
    assert isinstance(route.ip, outer.IPv4)
    assert (route.ip.total_length, route.udp.length, packet.bth.pad_count) == (99, 7, 2)
    assert route.udp.checksum == 0x1234


# Names.


def test_bare_name_sets_every_transport_header_that_has_the_field() -> None:
    packet = build_packet(OpCode.RD_SEND_ONLY, reserved=3)

    assert [header.reserved for header in packet.extensions] == [3, 3]  # type: ignore[attr-defined]


def test_name_with_its_header_takes_precedence() -> None:
    names: dict[str, Any] = {"deth.reserved": 5, "reserved": 3}

    packet = build_packet(OpCode.RD_SEND_ONLY, **names)

    assert [header.reserved for header in packet.extensions] == [3, 5]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["dest_qp", "bth.dest_qp", "bth.destqp", "infiniband.bth.destqp"])
def test_field_is_known_by_all_its_names(name: str) -> None:
    names: dict[str, Any] = {name: 0x11}

    assert build_packet(OpCode.RC_SEND_ONLY, **names).bth.dest_qp == 0x11


def test_ip_names_the_header_of_either_version() -> None:
    names: dict[str, Any] = {"ip.dscp": 26}

    routes = [build_packet(OpCode.CNP, route=route, **names).route for route in (ROUTE4, ROUTE6)]

    assert [route.ip.dscp for route in routes if isinstance(route, RoCEv2Route)] == [26, 26]


def test_vlan_names_every_tag() -> None:
    tags = (outer.VLAN(vid=1), outer.VLAN(vid=2))
    names: dict[str, Any] = {"vlan.pcp": 5}

    packet = build_packet(OpCode.CNP, route=replace(ROUTE4, vlans=tags), **names)

    assert isinstance(packet.route, RoCEv2Route)
    assert [(tag.vid, tag.pcp) for tag in packet.route.vlans] == [(1, 5), (2, 5)]


@each_case(
    ("opcode", "name", "hint"),
    [
        (OpCode.RC_SEND_ONLY, "rkey", "on this route"),
        (OpCode.RC_SEND_ONLY, "bth.pns", "did you mean bth.psn"),
        (OpCode.RC_RDMA_READ_REQUEST, "aeth.msn", "RDMA_READ_REQUEST"),
        (OpCode.CNP, "grh.hop_lmt", "CNP"),
        (OpCode.CNP, "src", "CNP"),  # headers before the BTH need their name
        (0xFF, "syndrome", "OPCODE_0xFF"),
    ],
)
def test_field_that_the_packet_does_not_have_is_an_error(opcode: int, name: str, hint: str) -> None:
    names: dict[str, Any] = {name: 1}

    with pytest.raises(EncodeError, match=hint) as error:
        build(opcode, **names)

    assert error.value.field == name


@pytest.mark.parametrize(
    ("name", "value"),
    [("psn", 1 << 24), ("syndrome", -1), ("ip.ttl", 256), ("udp.length", 1 << 16)],
)
def test_value_that_does_not_fit_is_an_error(name: str, value: int) -> None:
    names: dict[str, Any] = {name: value}

    with pytest.raises(EncodeError, match="bits"):
        build(OpCode.RC_ACKNOWLEDGE, **names)


def test_defaults_are_overridden_and_ignored_where_they_do_not_apply() -> None:
    defaults = {"rkey": 7, "psn": 1, "aeth.msn": 9}

    packet = build_packet(OpCode.RC_RDMA_READ_REQUEST, defaults=defaults, psn=2, va=4)

    assert packet.bth.psn == 2
    assert packet.extensions == (h.RETH(va=4, rkey=7),)


def test_opcode_as_a_field_keeps_the_extension_headers() -> None:
    packet = build_packet(OpCode.RC_ACKNOWLEDGE, opcode=0xFF)

    assert packet.bth.opcode == 0xFF
    assert packet.extensions == (h.AETH(),)


# Payload and padding.


def test_dma_length_and_pad_count_are_those_of_the_payload() -> None:
    packet = build_packet(OpCode.RC_RDMA_WRITE_ONLY, payload=b"hello")

    assert packet.padding == bytes(3)
    assert packet.bth.pad_count == 3
    assert packet.extensions == (h.RETH(dma_len=5),)


def test_padding_may_be_any_bytes() -> None:
    packet = build_packet(OpCode.RC_SEND_ONLY, payload=b"hello", padding=b"\xff" * 6)

    assert packet.bth.pad_count == 2
    assert packet.build()[-10:-4] == b"\xff" * 6


# ICRC.


@every_route
def test_icrc_is_good_bad_absent_or_given(route: Route) -> None:
    def status(icrc: Any) -> tuple[CrcStatus, bytes | None]:
        frame = build(OpCode.RC_SEND_ONLY, route=route, payload=b"hello", icrc=icrc)
        packet = Packet.parse(frame, link_type_of(route), strict=False)
        return packet.icrc_status(), packet.icrc

    good, right = status("good")
    bad, wrong = status("bad")

    assert good is CrcStatus.GOOD
    assert bad is CrcStatus.BAD
    assert right is not None
    assert wrong == bytes([right[0] ^ 1]) + right[1:]
    assert status(0x01020304) == (CrcStatus.BAD, b"\x01\x02\x03\x04")
    assert status(int.from_bytes(right)) == (CrcStatus.GOOD, right)


def test_lengths_do_not_count_a_missing_icrc() -> None:
    whole = build(OpCode.RC_SEND_ONLY, route=ROUTE4, payload=b"12345678")

    frame = build(OpCode.RC_SEND_ONLY, route=ROUTE4, payload=b"12345678", icrc="none")

    ip = outer.IPv4.unpack(frame, outer.Ethernet.SIZE)
    assert len(frame) == len(whole) - 4
    assert ip.total_length == len(frame) - outer.Ethernet.SIZE
    assert frame[outer.Ethernet.SIZE + 28 :] == whole[outer.Ethernet.SIZE + 28 : -4]


@pytest.mark.parametrize("icrc", ["right", "", -1, 1 << 32])
def test_unknown_icrc_is_an_error(icrc: Any) -> None:
    with pytest.raises(EncodeError, match="icrc"):
        build(OpCode.CNP, icrc=icrc)


# Cut packets.


@every_route
@pytest.mark.parametrize("cut", [12, 13, 20, 36])
def test_cut_packet_has_right_lengths_and_icrc(route: Route, cut: int) -> None:
    opcode = OpCode.RC_RDMA_WRITE_ONLY
    whole = build_packet(opcode, route=route, payload=b"12345678").transport()

    frame = build(opcode, route=route, payload=b"12345678", cut=cut)

    # Read as an opcode without extension headers, all of what is left is payload.
    blank = build(
        OpCode.RC_SEND_ONLY, route=route, payload=whole[12:cut], padding=b"", opcode=opcode
    )
    assert frame == blank


def test_less_than_a_bth_has_an_icrc_of_zero() -> None:
    frame = build(OpCode.RC_SEND_ONLY, route=ROUTE4, cut=5)

    ip = outer.IPv4.unpack(frame, outer.Ethernet.SIZE)
    assert ip.total_length == len(frame) - outer.Ethernet.SIZE == 20 + 8 + 5 + 4
    assert frame[-9:] == b"\x04\x00\xff\xff\x00" + bytes(4)
    assert build(OpCode.RC_SEND_ONLY, route=ROUTE4, cut=5, icrc="none")[-5:] == frame[-9:-4]


def test_fields_before_the_bth_survive_the_cut() -> None:
    names: dict[str, Any] = {"ip.ttl": 9, "udp.length": 3}

    frame = build(OpCode.RC_SEND_ONLY, route=ROUTE4, cut=12, **names)

    assert outer.IPv4.unpack(frame, 14).ttl == 9
    assert outer.UDP.unpack(frame, 34).length == 3


@every_route
@pytest.mark.parametrize("size", [0, 5, 12, 30])
def test_bytes_that_are_no_packet_are_enclosed(route: Route, size: int) -> None:
    whole = build_packet(
        OpCode.RC_SEND_ONLY, route=route, payload=b"12345678 123456789"
    ).transport()

    frame = enclose(whole[:size], route=route, icrc="bad")

    assert frame == build(
        OpCode.RC_SEND_ONLY, route=route, payload=b"12345678 123456789", cut=size, icrc="bad"
    )


@pytest.mark.parametrize("name", ["psn", "bth.psn", "grh.hop_lmt"])
def test_enclosed_bytes_have_no_fields_but_those_of_the_route(name: str) -> None:
    names: dict[str, Any] = {name: 1}

    with pytest.raises(EncodeError, match="this route"):
        enclose(bytes(12), **names)


# Other values in a packet.


@every_route
def test_changed_fields_are_the_only_difference(route: Route) -> None:
    packet = build_packet(OpCode.RC_RDMA_WRITE_ONLY, route=route, payload=b"hello")

    found = change(packet, changes_of({"bth.psn": 9, "reth.va": 5, "aeth.msn": 1}))

    assert found.bth == replace(packet.bth, psn=9)
    assert found.extensions == (h.RETH(va=5, dma_len=5),)
    assert found == replace(packet, bth=found.bth, extensions=found.extensions)


def test_checksum_is_not_adapted_to_changed_fields() -> None:
    packet = build_packet(OpCode.CNP, route=ROUTE4)

    found = change(packet, changes_of({"ip.ttl": 9}))

    assert isinstance(packet.route, RoCEv2Route)
    assert found.route == replace(packet.route, ip=replace(packet.route.ip, ttl=9))


def test_packet_without_the_fields_is_the_same_object() -> None:
    packet = build_packet(OpCode.CNP, route=ROUTE1)

    assert change(packet, changes_of({"ip.ttl": 9, "reth.va": 1, "vlan.pcp": 2})) is packet


@each_case(
    ("name", "value"),
    [("bth.psm", 1), ("psn", 1), ("bth.psn", 1 << 24), ("bth.psn", -1), ("bth.psn", True)],
)
def test_change_that_cannot_be_is_named(name: str, value: int) -> None:
    with pytest.raises(EncodeError) as error:
        changes_of({name: value})

    assert error.value.field == name


def test_example_of_the_readme_runs() -> None:
    readme = Path(__file__).parents[2] / "layers" / "README.md"
    (code,) = re.findall(r"^```python\n(.*?)^```", readme.read_text(encoding="utf-8"), re.M | re.S)

    exec(compile(code, "README.md", "exec"), {})
