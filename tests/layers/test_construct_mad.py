"""The Construct grammar of MADs, against the scalar walk and golden frames."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_case import each_case
from ibwire_layers.construct import annotate_mad, build_mad, parse_frame, parse_mad
from ibwire_layers.construct.headers import parts
from ibwire_layers.errors import DecodeError, EncodeError, Fault
from ibwire_layers.mad import MAD, MAD_SIZE, RMPP, SA
from ibwire_layers.management import LAYOUTS, read_mad
from vectors import load

MADS = {
    v.name: parse_frame(v.frame, v.link_type).payload
    for v in load()
    if v.expected.get("payload_len") == MAD_SIZE and v.expected.get("bth.destqp") in (0, 1)
}

KNOWN = [(number, attribute) for number, entry in LAYOUTS.items() for attribute in entry.attributes]


@st.composite
def mads(draw: st.DrawFn) -> bytes:
    """256 bytes with a known class and attribute, the rest at random."""
    payload = bytearray(draw(st.binary(min_size=MAD_SIZE, max_size=MAD_SIZE)))
    mgmt_class, attribute = draw(st.sampled_from(KNOWN))
    payload[1] = mgmt_class
    payload[3] = draw(st.sampled_from([0x01, 0x03, 0x81, 0x92]))
    payload[16:18] = attribute.to_bytes(2)
    if draw(st.booleans()):
        payload[25], payload[26] = 1, draw(st.integers(0, 7))
        payload[28:32] = draw(st.integers(0, 4)).to_bytes(4)
        payload[44:46] = draw(st.integers(0, 30)).to_bytes(2)
    if draw(st.booleans()):
        payload[32:40] = (0x0000000001060000 + draw(st.integers(0, 0xFFFF))).to_bytes(8)
    return bytes(payload)


@given(st.binary(min_size=MAD_SIZE, max_size=MAD_SIZE) | mads())
def test_any_mad_is_rebuilt_byte_for_byte(payload: bytes) -> None:
    assert build_mad(parse_mad(payload)) == payload


def test_a_table_of_records_with_arrays_keeps_the_bytes_between_them() -> None:
    """VLArbitrationTableRecord has 72 bytes; here records begin every 80."""
    payload = bytearray(range(256))
    payload[1], payload[3], payload[16:18] = 0x03, 0x92, (0x36).to_bytes(2)
    payload[24:36] = bytes((1, 1, 1, 0)) + (1).to_bytes(4) + bytes(4)
    payload[44:46] = (10).to_bytes(2)

    found = parse_mad(payload)

    assert [each.gap for each in found.attribute.records] == [bytes(range(128, 136)), b""]
    assert build_mad(found) == payload


@given(mads())
def test_grammar_finds_what_the_scalar_walk_finds(payload: bytes) -> None:
    grammar = {
        (path.rpartition(".")[2].partition("[")[0], offset): part
        for path, offset, part in parts(parse_mad(payload))
        if not isinstance(part, bytes)
    }

    for name, offset, part in read_mad(payload):
        if name == "VLArbitrationTable":
            assert ("vlarbitrationentry", offset) in grammar
            continue
        found = grammar[name.lower(), offset]
        for field, value in part.items():
            if field.name in found:
                assert found[field.name] == (list(value) if field.is_array else value)


@given(st.binary(min_size=MAD_SIZE, max_size=MAD_SIZE) | mads())
def test_annotation_covers_every_bit_once_and_in_order(payload: bytes) -> None:
    bit = 0
    for _, offset, width, _ in annotate_mad(payload, 100):
        assert offset == 100 + bit // 8
        bit += width

    assert bit == 8 * MAD_SIZE


@given(st.binary(max_size=MAD_SIZE - 1))
def test_short_payload_is_refused(payload: bytes) -> None:
    with pytest.raises(DecodeError) as caught:
        parse_mad(payload)

    assert caught.value.fault is Fault.TRUNCATED


@each_case("name", sorted(MADS))
def test_golden_mad_is_rebuilt(name: str) -> None:
    assert build_mad(parse_mad(MADS[name])) == MADS[name]


def test_private_data_of_an_rdma_cm_request_is_nested() -> None:
    found = parse_mad(MADS["cm_req_rdmacm_v4"]).attribute

    assert found.req.local_qpn == 0x123
    assert found.private_data.ipcm.src_port == 54321
    assert len(found.private_data.application) == 92 - 36


def test_arbitration_table_is_a_list_of_entries() -> None:
    found = parse_mad(MADS["smp_lid_set_vlarb_low"])
    entries = [(entry.vl, entry.weight) for entry in found.attribute.vlarbitrationentry]

    raw = MADS["smp_lid_set_vlarb_low"][64:128]
    assert entries == [(raw[i] & 0x0F, raw[i + 1]) for i in range(0, 64, 2)]


def test_table_of_records_is_a_list() -> None:
    """Two LinkRecords of 6 bytes, 8 apart, of a last segment that ends after the second."""
    common = MAD(mgmt_class=3, class_version=2, method=0x92, attribute_id=0x20)
    rmpp = RMPP(type=1, flags=7, segment_number=1, payload_length=20 + 14)
    head = common.pack() + rmpp.pack() + SA(attribute_offset=1).pack()
    data = bytes.fromhex("00010203000400000005060700080000")
    payload = head + data + bytes(MAD_SIZE - len(head) - len(data))

    found: Any = parse_mad(payload).attribute

    ends = [(r.linkrecord.from_lid, r.linkrecord.to_lid) for r in found.records]
    assert ends == [(1, 4), (5, 8)]
    assert len(found.after) == 200 - 14


def test_value_without_common_header_is_refused() -> None:
    with pytest.raises(EncodeError):
        build_mad({})


def test_value_that_does_not_fit_is_refused() -> None:
    found = parse_mad(MADS["cm_rtu"])
    found.attribute.rtu.local_comm_id = -1

    with pytest.raises(EncodeError):
        build_mad(found)
