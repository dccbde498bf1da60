"""The golden frames through the scalar headers, and layouts drawn by hand."""

from __future__ import annotations

from typing import Any

from each_case import each_case
from ibwire_layers import headers as h
from ibwire_layers import opcodes, outer
from ibwire_layers.schema import Header
from ibwire_layers.walk import walk
from strategies import erf, golden_fields
from vectors import LINK_PACKET, Vector, load

ERF = 197


def read(vector: Vector) -> dict[str, Any]:
    """Every field of every header of a frame, by column name."""
    data, link_type = vector.frame, vector.link_type
    if link_type == LINK_PACKET:
        data, link_type = erf(data, outer.ErfType.INFINIBAND_LINK), ERF
    fields: dict[str, Any] = {}
    for layer in walk(data, link_type).layers:
        header = layer.header.unpack(data, layer.offset)
        fields |= {field.key: value for field, value in header.items()}
    return fields


@each_case("vector", load(), ids=str)
def test_golden_frame_has_the_expected_fields(vector: Vector) -> None:
    expected = golden_fields(vector.expected)

    found = read(vector)

    assert expected
    values = {name: found[name] for name in expected}
    assert {n: list(v) if isinstance(v, tuple) else v for n, v in values.items()} == expected


@each_case("vector", [v for v in load() if "ext_headers" in v.expected], ids=str)
def test_golden_frame_has_the_expected_extension_headers(vector: Vector) -> None:
    found = walk(vector.frame, vector.link_type)
    names = [layer.header.__name__ for layer in found.layers if layer.offset > found.bth]

    assert [name.upper() for name in names] == [
        name.upper().replace("_", "") for name in vector.expected["ext_headers"]
    ]
    if found.payload >= 0:
        assert found.payload - found.bth == vector.expected["payload_offset_from_bth"]


# Sizes in bytes: IBA 7.7, 8.3, 9.2, 9.3, annexes A14, A17 and A19; the RFCs and standards named
# at the outer headers.
SIZES: dict[type[Header], int] = {
    h.LRH: 8,
    h.RWH: 4,
    h.GRH: 40,
    h.BTH: 12,
    h.RDETH: 4,
    h.DETH: 8,
    h.RETH: 16,
    h.AtomicETH: 28,
    h.AETH: 4,
    h.AtomicAckETH: 8,
    h.ImmDt: 4,
    h.IETH: 4,
    h.XRCETH: 4,
    h.FETH: 4,
    h.CNPReserved: 16,
    h.FlowControl: 6,
    h.IPoIB: 4,
    h.IPCM: 36,
    outer.Ethernet: 14,
    outer.VLAN: 4,
    outer.MPLS: 4,
    outer.Pause: 4,
    outer.PFC: 20,
    outer.IPv4: 20,
    outer.IPv6: 40,
    outer.UDP: 8,
    outer.GRE: 4,
    outer.ERSPAN2: 8,
    outer.ERSPAN3: 12,
    outer.VXLAN: 8,
    outer.SLL: 16,
    outer.SLL2: 20,
    outer.ERF: 16,
}


@each_case("kind", SIZES, ids=lambda kind: kind.__name__)
def test_size(kind: type[Header]) -> None:
    assert SIZES[kind] == kind.SIZE


def test_bth_as_drawn_in_the_specification() -> None:
    """IBA 9.2: one bit set in each field in turn."""
    bth = h.BTH(0x04, 1, 0, 2, 0, 0xFFFF, 1, 0, 0x05, 0x123456, 1, 0x03, 0xABCDEF)

    assert bth.pack().hex() == "04a0ffff8512345683abcdef"


def test_lrh_as_drawn_in_the_specification() -> None:
    """IBA 7.7: VL, LVer, SL, Resv2, LNH, DLID, Resv5, PktLen, SLID."""
    lrh = h.LRH(0xA, 0x5, 0xC, 1, 2, 0x1234, 0x11, 0x723, 0x5678)

    assert lrh.pack().hex() == "a5c612348f235678"


def test_every_extension_header_has_its_own_key() -> None:
    keys = [header.KEY for header in opcodes.EXTENSION_HEADERS]

    assert len(set(keys)) == len(keys)
