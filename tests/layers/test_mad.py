"""MAD headers and attributes: layouts, values of independent readers, and the walk over a MAD."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_case import each_case
from ibwire_layers import attributes as sm
from ibwire_layers import records as sa
from ibwire_layers.errors import DecodeError, Fault
from ibwire_layers.mad import (
    MAD,
    MAD_SIZE,
    RMPP,
    SA,
    SMP,
    ClassPortInfo,
    DirectedRouteMAD,
    DirectedRoutePaths,
    DirectedRouteSMP,
    MgmtClass,
    Notice,
    VendorOUI,
    status_names,
)
from ibwire_layers.management import LAYOUTS, read_mad
from ibwire_layers.performance import PortCounters, PortCountersExtended
from ibwire_layers.schema import Header
from vectors import Vector, load

GSI_PAYLOAD_TAIL = 4  # ICRC


def payload_of(vector: Vector) -> bytes | None:
    """The MAD of a vector: the 256 bytes before the ICRC, and the VCRC of a native frame."""
    if vector.expected.get("payload_len") != MAD_SIZE or "deth.srcqp" not in vector.expected:
        return None
    end = len(vector.frame) - GSI_PAYLOAD_TAIL - (2 if "lrh.lnh" in vector.expected else 0)
    return vector.frame[end - MAD_SIZE : end]


MADS = {v.name: p for v in load() if (p := payload_of(v)) and "mad" in " ".join(v.tshark)}


def part_of(payload: bytes, name: str) -> Any:
    return next(part for found, _, part in read_mad(payload) if found == name)


def number(text: str) -> object:
    """A value as tshark prints it, as a number where it is one."""
    if ":" in text:
        return int(ipaddress.IPv6Address(text))
    try:
        return int(text, 0)
    except ValueError:
        return text


@each_case(
    ("header", "size"),
    [
        (MAD, 24),
        (DirectedRouteMAD, 24),
        (SMP, 40),
        (DirectedRouteSMP, 40),
        (DirectedRoutePaths, 128),
        (RMPP, 12),
        (SA, 20),
        (VendorOUI, 4),
        (ClassPortInfo, 72),
        (Notice, 64),
        (PortCounters, 44),
        (PortCountersExtended, 184),
        (sm.NodeDescription, 64),
        (sm.NodeInfo, 40),
        (sm.SwitchInfo, 20),
        (sm.GUIDInfo, 64),
        (sm.PortInfo, 64),
        (sm.PKeyTable, 64),
        (sm.SLtoVLMappingTable, 8),
        (sm.VLArbitrationEntry, 2),
        (sm.VLArbitrationTable, 64),
        (sm.LinearForwardingTable, 64),
        (sm.MulticastForwardingTable, 64),
        (sm.SMInfo, 21),
        (sa.PathRecord, 64),
        (sa.MCMemberRecord, 56),
        (sa.ServiceRecord, 176),
        (sa.InformInfo, 36),
    ],
)
def test_header_has_the_size_of_the_specification(header: type[Header], size: int) -> None:
    assert size == header.SIZE


@each_case(
    ("header", "field", "byte", "bit"),
    [
        (MAD, "transaction_id", 8, 0),
        (MAD, "attribute_modifier", 20, 0),
        (DirectedRouteMAD, "hop_count", 7, 0),
        (RMPP, "flags", 2, 5),
        (RMPP, "payload_length", 8, 0),
        (SA, "component_mask", 12, 0),
        (ClassPortInfo, "resp_time_value", 7, 3),
        (ClassPortInfo, "trap_hl", 64, 0),
        (sm.NodeInfo, "vendor_id", 37, 0),
        (sm.SwitchInfo, "optimized_sl_to_vl_mapping_programming", 11, 6),
        (sm.SwitchInfo, "multicast_fdb_top", 18, 0),
        (sm.PortInfo, "port_state", 32, 4),
        (sm.PortInfo, "link_speed_enabled", 35, 4),
        (sm.PortInfo, "hoq_life", 42, 3),
        (sm.PortInfo, "filter_raw_outbound", 43, 7),
        (sm.PortInfo, "guid_cap", 50, 0),
        (sm.PortInfo, "link_round_trip_latency", 57, 0),
        (sm.PortInfo, "link_speed_ext_enabled", 63, 3),
        (sm.SMInfo, "sm_state", 20, 4),
        (Notice, "data_details", 10, 0),
        (sa.PathRecord, "flow_label", 44, 4),
        (sa.PathRecord, "qos_class", 52, 0),
        (sa.PathRecord, "preference", 57, 0),
        (sa.MCMemberRecord, "join_state", 48, 4),
        (PortCounters, "vl15_dropped", 22, 0),
        (PortCounters, "port_xmit_wait", 40, 0),
        (PortCountersExtended, "qp1_dropped", 176, 0),
    ],
)
def test_field_has_the_offset_of_the_specification(
    header: type[Header], field: str, byte: int, bit: int
) -> None:
    entry = next(entry for entry in header.FIELDS if entry.name == field)

    assert divmod(entry.offset, 8) == (byte, bit)


def test_sm_key_is_at_byte_36_of_the_mad() -> None:
    layout = LAYOUTS[MgmtClass.SUBN_ADM]

    assert MAD.SIZE + RMPP.SIZE == 36
    assert layout.headers == (RMPP, SA)
    assert layout.data_offset == 56


@each_case("name", sorted(MADS))
def test_values_equal_those_of_tshark(name: str) -> None:
    vector = next(v for v in load() if v.name == name)
    compared = 0

    for _, _, part in read_mad(MADS[name]):
        for field, value in part.items():
            printed = vector.tshark.get(field.wireshark or "")
            if printed is None or printed == "":
                continue
            compared += 1
            if isinstance(printed, str) and field.is_octets:
                assert value.rstrip(b"\0").decode() == printed, field.name
            elif isinstance(printed, str):
                assert value == number(printed), field.name

    assert compared >= 7


def expected_of(vector: Vector) -> dict[str, Any]:
    groups = ("nodeinfo.", "req.", "rep.", "mra.", "rej.", "dreq.", "sidr_req.", "apr.", "mcm.")
    return {k: v for k, v in vector.expected.items() if k.startswith((*groups, "ipcm."))}


SPELLING = {
    "local_port": "local_port_num",
    "path_mtu": "path_packet_payload_mtu",
    "message": ("message_mraed", "message_rejected"),
    "ar_status": "ap_status",
    "ipv": "ip_version",
    "maj_min": "major",
}


@each_case("vector", [v for v in load() if expected_of(v)], ids=str)
def test_values_equal_those_of_the_independent_parser(vector: Vector) -> None:
    payload = payload_of(vector)
    assert payload is not None
    found = {name.lower(): part for name, _, part in read_mad(payload)}
    found["mcm"] = found.get("mcmemberrecord")  # type: ignore[assignment]

    for key, value in expected_of(vector).items():
        group, name = key.split(".")
        part = found[group]
        names = SPELLING.get(name, name)
        choices = (names,) if isinstance(names, str) else names
        actual = next(getattr(part, choice) for choice in choices if hasattr(part, choice))
        if isinstance(value, str):
            value = int(ipaddress.ip_address(value))
        assert actual == value, key


def test_port_info_of_a_golden_frame_reads_as_built() -> None:
    """Values of `smp_lid_getresp_portinfo` as tshark 4.0 prints them."""
    info = part_of(MADS["smp_lid_getresp_portinfo"], "PortInfo")

    assert (info.lid, info.master_sm_lid, info.capability_mask) == (4, 1, 0x02514868)
    assert (info.port_state, info.port_physical_state) == (4, 5)
    assert (info.neighbor_mtu, info.mtu_cap, info.operational_vls) == (5, 5, 4)
    assert (info.vl_stall_count, info.hoq_life, info.subnet_timeout) == (7, 16, 18)


def test_returning_directed_route_smp_has_its_d_bit() -> None:
    """tshark 4.0 shows the status with its D bit, 0x8000, but D itself as 0."""
    common = part_of(MADS["smp_dr_getresp_nodedesc"], "DirectedRouteMAD")

    assert (common.d, common.status, common.hop_pointer, common.hop_count) == (1, 0, 2, 2)


def test_low_priority_arbitration_table_reads_as_entries() -> None:
    table = part_of(MADS["smp_lid_set_vlarb_low"], "VLArbitrationTable")
    first = sm.VLArbitrationEntry.unpack(table.pack())

    assert table.entry[0] == first.vl << 8 | first.weight
    assert table.pack() == MADS["smp_lid_set_vlarb_low"][64:128]


def test_service_level_mapping_puts_the_even_level_in_the_high_nibble() -> None:
    table = sm.SLtoVLMappingTable.unpack(bytes.fromhex("0123456789abcdef"))

    assert table.vl == tuple(range(16))


def test_walk_gives_offsets_from_the_start_of_the_mad() -> None:
    payload = MADS["sa_set_mcmemberrecord"]

    assert [(name, offset) for name, offset, _ in read_mad(payload)] == [
        ("MAD", 0),
        ("RMPP", 24),
        ("SA", 36),
        ("MCMemberRecord", 56),
    ]


def test_walk_of_a_directed_route_ends_with_the_paths() -> None:
    names = [(name, offset) for name, offset, _ in read_mad(MADS["smp_dr_get_nodedesc_2hops"])]

    assert names == [
        ("DirectedRouteMAD", 0),
        ("DirectedRouteSMP", 24),
        ("NodeDescription", 64),
        ("DirectedRoutePaths", 128),
    ]


def sa_table(segment: int, flags: int, payload_length: int, stride: int) -> bytes:
    """A GetTableResp of NodeRecords, of which only the headers are filled in."""
    common = MAD(mgmt_class=MgmtClass.SUBN_ADM, class_version=2, method=0x92, attribute_id=0x11)
    rmpp = RMPP(type=1, flags=flags, segment_number=segment, payload_length=payload_length)
    head = common.pack() + rmpp.pack() + SA(attribute_offset=stride).pack()
    return head + bytes(MAD_SIZE - len(head))


def record_offsets(payload: bytes) -> list[int]:
    return [offset for name, offset, _ in read_mad(payload) if name == "NodeRecordID"]


def test_table_of_records_is_read_by_its_attribute_offset() -> None:
    """200 bytes hold one whole NodeRecord of 14 x 8 bytes; the next is cut off."""
    assert record_offsets(sa_table(1, 0b011, 3 * 112 + 40, 14)) == [56]


def test_record_that_began_in_the_segment_before_is_left_out() -> None:
    """Segment 2 starts at byte 200 of the stream, the third record at 224."""
    assert record_offsets(sa_table(2, 0b101, 136 + 20, 14)) == [56 + 24]


def test_records_end_where_the_last_segment_ends() -> None:
    assert record_offsets(sa_table(2, 0b101, 100 + 20, 14)) == []


def test_acknowledgement_of_a_table_carries_no_record() -> None:
    payload = bytearray(sa_table(1, 0b001, 5, 14))
    payload[25] = 2

    assert record_offsets(bytes(payload)) == []


def test_table_whose_records_are_larger_than_their_distance_is_not_read() -> None:
    assert record_offsets(sa_table(1, 0b111, 220, 1)) == []


@pytest.mark.parametrize("size", [0, 1, 24, 255])
def test_short_payload_is_refused(size: int) -> None:
    with pytest.raises(DecodeError) as caught:
        read_mad(bytes(size))

    assert caught.value.fault is Fault.TRUNCATED


def test_unknown_class_is_read_as_far_as_the_common_header() -> None:
    payload = bytes([1, 0x0A, 1, 1]) + bytes(252)

    assert [name for name, _, _ in read_mad(payload)] == ["MAD"]


def test_unknown_attribute_is_read_as_far_as_the_class_headers() -> None:
    payload = bytes([1, 1, 1, 1]) + bytes(12) + b"\xff\x00" + bytes(238)

    assert [name for name, _, _ in read_mad(payload)] == ["MAD", "SMP"]


@given(st.binary(min_size=MAD_SIZE, max_size=MAD_SIZE + 8))
def test_parts_never_overlap_and_pack_to_the_bytes_they_were_read_from(payload: bytes) -> None:
    end = 0
    for name, offset, part in read_mad(payload):
        if name != "IPCM":
            assert offset >= end
            end = offset + part.SIZE
        assert part.pack() == payload[offset : offset + part.SIZE]


@each_case(
    ("status", "mgmt_class", "names"),
    [
        (0, MgmtClass.PERF, []),
        (0x0001, MgmtClass.PERF, ["BUSY"]),
        (0x000C, MgmtClass.SUBN_LID_ROUTED, ["METHOD_ATTRIBUTE_NOT_SUPPORTED"]),
        (0x001C, MgmtClass.SUBN_LID_ROUTED, ["INVALID_ATTRIBUTE_VALUE"]),
        (0x0010, MgmtClass.SUBN_LID_ROUTED, ["CODE_0x10"]),
        (0x0300, MgmtClass.SUBN_ADM, ["NO_RECORDS"]),
        (0x0302, MgmtClass.PERF, ["REDIRECT", "CLASS_0x03"]),
    ],
)
def test_status_is_named(status: int, mgmt_class: int, names: list[str]) -> None:
    assert status_names(status, mgmt_class) == names
