"""The Construct grammar of whole frames, against golden frames and hostile bytes."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from each_case import each_case
from examples import few, sampled
from ibwire_layers.construct import (
    HEADERS,
    STRUCTS,
    annotate_frame,
    build_frame,
    describe,
    grammar_of,
    parse_frame,
)
from ibwire_layers.construct.headers import read, write
from ibwire_layers.construct.packet import link_packet
from ibwire_layers.errors import DecodeError, EncodeError, Fault
from vectors import ETHERNET, INFINIBAND, LINK_PACKET, RAW_IP, Vector, load

VECTORS = load()
FRAMES = [v for v in VECTORS if v.link_type != LINK_PACKET]
BY_NAME = {v.name: v for v in VECTORS}


def frame_of(name: str) -> bytes:
    return BY_NAME[name].frame


def row(rows: list[Any], path: str) -> Any:
    return next(entry for entry in rows if entry[0] == path)


@each_case("name", sorted(HEADERS))
@settings(max_examples=few(100))
@given(data=st.data())
def test_construct_and_scalar_codec_agree(name: str, data: st.DataObject) -> None:
    header, struct = HEADERS[name], STRUCTS[name]
    raw = data.draw(st.binary(min_size=header.SIZE, max_size=header.SIZE))

    scalar, parsed = header.unpack(raw), struct.parse(raw)

    for field, value in scalar.items():
        expected = list(value) if field.is_array else value
        assert parsed[field.name] == expected, field.name
    assert scalar.pack() == raw
    assert struct.build(parsed) == raw


@each_case("vector", FRAMES, ids=str)
def test_golden_frame_is_rebuilt_byte_for_byte(vector: Vector) -> None:
    found = parse_frame(vector.frame, vector.link_type)

    assert build_frame(found, vector.link_type) == vector.frame


# Groups of the vectors' names -> part of the container, and names that differ.
GROUPS = {
    "eth": "ethernet",
    "vlan": "vlan",
    "ip": "ipv4",
    "ip6": "ipv6",
    "udp": "udp",
    "lrh": "lrh",
    "rwh": "rwh",
    "grh": "grh",
    "bth": "bth",
}
RENAMED = {
    "m": "mig_req",
    "padcnt": "pad_count",
    "p_key": "pkey",
    "resv6": "resv6a",
    "destqp": "dest_qp",
    "a": "ack_req",
    "sport": "src_port",
    "dport": "dst_port",
    "proto": "protocol",
    "ipver": "ip_ver",
    "flowlabel": "flow_label",
    "paylen": "pay_len",
    "nxthdr": "nxt_hdr",
    "hoplmt": "hop_lmt",
    "pktlen": "pkt_len",
    "etype": "ether_type",
    "q_key": "qkey",
    "srcqp": "src_qp",
    "r_key": "rkey",
    "dmalen": "dma_len",
    "eecnxt": "ee_context",
    "xrcsrq": "xrc_srq",
    "swap_or_add": "swap",
    "orig_remote_data": "orig",
    "tc_dscp": "dscp",
    "tc_ecn": "ecn",
}


def number(value: int | str) -> int:
    """A value of a vector: MAC addresses have colons, GIDs are plain hex."""
    if isinstance(value, int):
        return value
    if value.count(":") == 5 or len(value) == 32:
        return int(value.replace(":", ""), 16)
    return int(ip_address(value))


@each_case("vector", FRAMES, ids=str)
def test_golden_frame_has_the_expected_fields(vector: Vector) -> None:
    found = parse_frame(vector.frame, vector.link_type)
    compared = 0

    for key, value in vector.expected.items():
        group, _, name = key.partition(".")
        part = found.get(GROUPS.get(group, ""))
        part = part[0] if isinstance(part, list) else part
        if part is None and found.get("extensions"):
            part = found.extensions.get(group)
        name = RENAMED.get(name, name)
        if key == "eth.type" and found.vlan:
            part, name = found.vlan[-1], "type"
        if part is not None and name in part:
            assert part[name] == number(value), key
            compared += 1

    assert compared >= 3


@each_case("vector", sampled([v for v in FRAMES if "bth.opcode" in v.expected], 4), ids=str)
def test_golden_packet_ends_at_its_length_field(vector: Vector) -> None:
    found = parse_frame(vector.frame, vector.link_type)
    expected = vector.expected

    assert [name.lower() for name in found.extensions if not name.startswith("_")] == [
        "cnpreserved" if name.startswith("CNP") else name.lower()
        for name in expected["ext_headers"]
    ]
    if "payload_len" in expected:
        assert len(found.payload) == expected["payload_len"]
        assert len(found.padding) == expected["bth.padcnt"]
    assert found.icrc.hex() == expected["icrc_wire_bytes"]
    assert len(found.trailer) == expected.get("trailing_bytes_after_ip", 0)
    if "vcrc_wire_bytes" in expected:
        assert found.vcrc.hex() == expected["vcrc_wire_bytes"]


@each_case("vector", sampled([v for v in FRAMES if v.icrc_verifies], 4), ids=str)
def test_missing_crcs_are_filled_in(vector: Vector) -> None:
    found = parse_frame(vector.frame, vector.link_type)
    found.icrc = None
    if "vcrc" in found:
        found.vcrc = None

    assert build_frame(found, vector.link_type) == vector.frame


@each_case("vector", sampled(FRAMES, 4), ids=str)
def test_annotation_covers_every_bit_once_and_in_order(vector: Vector) -> None:
    bit = 0
    for _, offset, width, _ in annotate_frame(vector.frame, vector.link_type):
        assert offset == bit // 8
        bit += width

    assert bit == 8 * len(vector.frame)


@pytest.mark.parametrize("vector", [v for v in VECTORS if v.link_type == LINK_PACKET], ids=str)
def test_link_packet_reads_as_expected(vector: Vector) -> None:
    found = read(link_packet, vector.frame, "link packet")

    assert found.flowcontrol.fctbs == vector.expected["infiniband_link.fctbs"]
    assert found.flowcontrol.fccl == vector.expected["infiniband_link.fccl"]
    assert found.flowcontrol.vl == vector.expected["infiniband_link.vl"]
    assert write(link_packet, found, "link packet") == vector.frame


def test_pfc_times_are_read_by_class() -> None:
    found = parse_frame(frame_of("eth_pfc_xoff_c3"))

    assert found.pfc.class_enable == 8
    assert found.pfc.time == [0, 0, 0, 65535, 0, 0, 0, 0]
    assert found.trailer == bytes(26)


def test_global_pause_is_not_taken_for_pfc() -> None:
    found = parse_frame(frame_of("eth_global_pause_max"))

    assert (found.pause.pause_time, found.pfc) == (0xFFFF, None)


def test_udp_length_decides_nothing() -> None:
    """The UDP length of this frame is wrong; IP total length bounds the packet."""
    vector = BY_NAME["libtins_svpktlib3_bad_udp_len"]
    found = parse_frame(vector.frame)

    assert found.udp.length == vector.expected["udp.length"]
    assert found.icrc.hex() == vector.expected["icrc_wire_bytes"]


def test_ipv4_options_are_between_header_and_udp() -> None:
    found = parse_frame(frame_of("v2_ipv4_options"))

    assert len(found.ipv4_options) == 4 * found.ipv4.ihl - 20 > 0
    assert found.udp.dst_port == 4791


def test_bytes_after_the_packet_are_the_trailer() -> None:
    frame = frame_of("v2_ack_nak_psn_sequence")
    padded = frame + b"\x01\x02\x03\x04\x05\x06"

    assert parse_frame(padded).trailer == b"\x01\x02\x03\x04\x05\x06"
    assert parse_frame(padded).icrc == parse_frame(frame).icrc
    assert build_frame(parse_frame(padded)) == padded


def test_unknown_opcode_leaves_everything_up_to_the_icrc_as_payload() -> None:
    frame = bytearray(frame_of("v2_fecn_ce_marked"))
    frame[42] = 0xC5
    found = parse_frame(bytes(frame))

    assert len(found.payload) == len(frame) - 42 - 12 - 4
    assert build_frame(found) == frame


def test_pad_count_beyond_the_packet_is_kept() -> None:
    """Some devices send it in an acknowledgement, which has no payload."""
    frame = bytearray(frame_of("v2_ack_nak_psn_sequence"))
    frame[43] |= 0x20
    found = parse_frame(bytes(frame))

    assert (found.payload, found.padding, found.bth.pad_count) == (b"", b"", 2)
    assert build_frame(found) == frame


@pytest.mark.parametrize("tags", [1, 2, 4])
def test_tags_in_tags_are_read(tags: int) -> None:
    plain = frame_of("v2_fecn_ce_marked")
    chain = b"".join(b"\x88\xa8\x00" + bytes([number]) for number in range(tags))
    found = parse_frame(plain[:12] + chain + plain[12:])

    assert [tag.vid for tag in found.vlan] == list(range(tags))
    assert found.bth == parse_frame(plain).bth


def test_more_tags_than_are_followed_leave_data() -> None:
    frame = bytes(12) + b"\x81\x00\x00\x01" * 6 + bytes(20)
    found = parse_frame(frame)

    assert len(found.vlan) == 4
    assert found.bth is None
    assert build_frame(found) == frame


def test_fragment_is_data() -> None:
    frame = bytearray(frame_of("v2_fecn_ce_marked"))
    frame[20:22] = b"\x20\x00"
    found = parse_frame(bytes(frame))

    assert (found.udp, found.bth) == (None, None)
    assert build_frame(found) == frame


@each_case(
    ("offset", "value", "fault"),
    [
        (14, b"\x65", Fault.VERSION),
        (14, b"\x44", Fault.LENGTH),
        (16, b"\x00\x08", Fault.LENGTH),
        (16, b"\x00\x24", Fault.LENGTH),
        (16, b"\xff\xff", Fault.TRUNCATED),
    ],
)
def test_contradicting_ipv4_header_is_refused(offset: int, value: bytes, fault: Fault) -> None:
    frame = bytearray(frame_of("v2_fecn_ce_marked"))
    frame[offset : offset + len(value)] = value

    with pytest.raises(DecodeError) as caught:
        parse_frame(bytes(frame))

    assert caught.value.fault is fault


def test_payload_length_and_packet_length_must_agree() -> None:
    frame = bytearray(frame_of("ib_global_ud_mcast"))
    frame[8 + 5] -= 4

    with pytest.raises(DecodeError) as caught:
        parse_frame(bytes(frame), INFINIBAND)

    assert caught.value.fault is Fault.LENGTH


def test_unknown_link_type_is_refused() -> None:
    with pytest.raises(DecodeError) as caught:
        parse_frame(b"", 9999)

    assert caught.value.fault is Fault.LINK_TYPE


@each_case("vector", sampled(FRAMES[::7], 2), ids=str)
def test_cut_off_frame_is_refused(vector: Vector) -> None:
    found = parse_frame(vector.frame, vector.link_type)
    end = len(vector.frame) - len(found.trailer) - len(found.get("vcrc") or b"")

    for size in range(end) if found.bth else ():
        with pytest.raises(DecodeError):
            parse_frame(vector.frame[:size], vector.link_type)


@given(st.binary(max_size=200), st.sampled_from([ETHERNET, RAW_IP, INFINIBAND]))
def test_any_bytes_are_rebuilt_or_refused(frame: bytes, link_type: int) -> None:
    try:
        found = parse_frame(frame, link_type)
    except DecodeError:
        return

    assert build_frame(found, link_type) == frame


@given(st.sampled_from(FRAMES), st.data())
def test_damaged_frames_are_rebuilt_or_refused(vector: Vector, data: st.DataObject) -> None:
    frame = bytearray(vector.frame)
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, min(len(frame), 120) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = parse_frame(bytes(frame), vector.link_type)
    except DecodeError:
        return

    assert build_frame(found, vector.link_type) == frame
    assert annotate_frame(bytes(frame), vector.link_type)


def test_value_that_does_not_fit_is_refused() -> None:
    found = parse_frame(frame_of("v2_rc_send_only"))
    found.bth.psn = 1 << 24

    with pytest.raises(EncodeError):
        build_frame(found)


def test_missing_field_is_refused() -> None:
    found = parse_frame(frame_of("v2_rc_send_only"))
    del found.bth["psn"]

    with pytest.raises(EncodeError):
        build_frame(found)


def test_annotation_shows_the_mad_inside_the_payload() -> None:
    rows = annotate_frame(frame_of("cm_req_rdmacm_v4"))

    assert row(rows, "payload.mad.attribute_id") == ("payload.mad.attribute_id", 78, 16, 0x10)
    path = "payload.attribute.private_data.ipcm.src_port"
    assert row(rows, path) == (path, 62 + 24 + 140 + 2, 16, 54321)


def test_description_has_a_line_for_every_field() -> None:
    frame = frame_of("v2_rc_rdma_write_only")
    lines = describe(frame).splitlines()

    assert len(lines) == len(annotate_frame(frame))
    assert lines[0].split() == ["0", "48", "ethernet.dst", "=", "0x020000000002"]


def test_grammar_of_a_link_type_is_a_construct() -> None:
    frame = frame_of("v2_rc_send_only")

    assert grammar_of(ETHERNET).parse(frame).bth.psn == parse_frame(frame).bth.psn
