"""Columns against the golden frames, and what a column promises."""

from __future__ import annotations

from decimal import Decimal
from io import BytesIO
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from each_case import each_case
from examples import sampled
from ibwire.capture import Record, open_capture
from ibwire.capture.pcapng import PcapngWriter
from ibwire.dissect import FIELDS, Columns, read
from ibwire.dissect.column import Kind
from ibwire_layers.outer import LinkType
from strategies import HANDMADE, erf, golden_fields
from vectors import LINK_PACKET, Vector, load

CAPTURES = sorted((Path(__file__).parents[2] / "captures").glob("*.pcap*"))

VECTORS = load()


def captured(records: list[Record]) -> Columns:
    """The records through a pcapng file, an interface a link type."""
    file = BytesIO()
    interfaces: dict[int, int] = {}
    with PcapngWriter(file, records[0].link_type) as writer:
        interfaces[records[0].link_type] = 0
        for record in records:
            if record.link_type not in interfaces:
                interfaces[record.link_type] = writer.add_interface(record.link_type)
            writer.write(
                record.data,
                record.time_ns,
                record.wire_len,
                interface=interfaces[record.link_type],
                comments=record.comments,
            )
    file.seek(0)
    with open_capture(file) as capture:
        (batch,) = capture.batches()
    return Columns(batch, "name of the file")


def record(
    data: bytes, link_type: int = LinkType.ETHERNET, comments: tuple[str, ...] = ()
) -> Record:
    return Record(1, 0, data, len(data), link_type, comments=comments)


@pytest.fixture(scope="module")
def golden() -> Columns:
    """All golden frames in one batch."""
    bare = LINK_PACKET
    return captured(
        [
            record(erf(v.frame, 25), LinkType.ERF)
            if v.link_type == bare
            else record(v.frame, v.link_type)
            for v in VECTORS
        ]
    )


def value(columns: Columns, name: str, row: int) -> Any:
    """One value as a number or a list; `None` where the packet does not have the field."""
    if not columns.valid(name)[row]:
        return None
    found = columns[name][row]
    kind = FIELDS[name].type.kind
    if kind is Kind.TEXT:
        return FIELDS[name].type.words[found]
    if kind is Kind.LIST:
        return found.tolist()
    return int.from_bytes(found.tobytes()) if found.ndim else int(found)


@each_case("row", range(len(VECTORS)), ids=[str(v) for v in VECTORS])
def test_golden_frame_has_the_expected_values(golden: Columns, row: int) -> None:
    expected = golden_fields(VECTORS[row].expected)

    assert expected
    assert {name: value(golden, name, row) for name in expected} == expected


@each_case("row", sampled(range(len(VECTORS)), 4), ids=[str(v) for v in VECTORS])
def test_golden_frame_has_no_header_that_is_not_expected(golden: Columns, row: int) -> None:
    """A key of every header that may be absent: BTH, extension and native headers."""
    expected = golden_fields(VECTORS[row].expected)
    telling: tuple[str, ...] = (
        "bth.opcode",
        "reth.va",
        "atomiceth.va",
        "aeth.msn",
        "immdt",
        "ieth",
        "grh.sgid",
    )
    telling += ("deth.srcqp", "rdeth.eecnxt", "xrceth.xrcsrq", "feth.sel", "lrh.slid", "vlan.id")
    telling += ("atomicacketh.origremdt", "udp.srcport", "ip.src", "ipv6.src")

    found = {name for name in telling if golden.valid(name)[row]}

    assert found == {name for name in telling if name in expected}


TRANSPORT = [row for row, vector in enumerate(VECTORS) if "bth.opcode" in vector.expected]


@each_case("row", sampled(TRANSPORT, 4), ids=[str(VECTORS[row]) for row in TRANSPORT])
def test_golden_packet_has_the_expected_name_payload_and_icrc(golden: Columns, row: int) -> None:
    vector: Vector = VECTORS[row]
    sent = int(vector.expected["icrc_wire_bytes"], 16)

    assert value(golden, "bth.opcode_name", row) == vector.expected["opcode_name"]
    assert value(golden, "icrc", row) == sent
    assert value(golden, "icrc.status", row) == ("good" if vector.icrc_verifies else "bad")
    length = vector.expected.get("payload_len")
    assert value(golden, "payload.len", row) == (None if length is None or length < 0 else length)


@each_case("path", sampled(CAPTURES, 3), ids=lambda path: path.name)
def test_every_column_has_a_row_for_each_packet(path: Path) -> None:
    for columns in read(path):
        for name in columns:
            assert len(columns[name]) == len(columns.valid(name)) == columns.rows


def test_numbers_and_words_are_what_their_kind_says(golden: Columns) -> None:
    shapes = {Kind.FLAG: "b", Kind.STRING: "O", Kind.SECONDS: "i"}

    for name, spec in FIELDS.items():
        values = golden[name]
        assert values.dtype.kind == shapes.get(spec.type.kind, "u"), name
        assert values.ndim == (2 if spec.type.kind in (Kind.LIST, Kind.IPV6) else values.ndim), name
        if spec.type.kind is Kind.TEXT:
            assert values[golden.valid(name)].max(initial=0) < len(spec.type.words), name


def test_names_may_carry_the_prefix_of_wireshark(golden: Columns) -> None:
    assert golden["infiniband.bth.psn"] is golden["bth.psn"]


def test_an_unknown_name_is_a_key_error(golden: Columns) -> None:
    with pytest.raises(KeyError):
        golden["bth.nothing"]
    assert "bth.nothing" not in golden


def test_rows_are_packets_and_length_is_fields(golden: Columns) -> None:
    assert golden.rows == len(VECTORS)
    assert len(golden) == len(FIELDS) == len(list(golden))


def test_pause_and_pfc_share_the_fields_that_both_have() -> None:
    frames = [f for f in HANDMADE if f.name in ("pause", "pfc", "vlan")]
    columns = captured([record(frame.data) for frame in frames])
    names = [frame.name for frame in frames]

    assert columns["macc"].tolist() == [name != "vlan" for name in names]
    assert columns.valid("macc.opcode").tolist() == [name != "vlan" for name in names]
    opcodes = dict(zip(names, columns["macc.opcode"].tolist(), strict=True))
    assert (opcodes["pause"], opcodes["pfc"]) == (0x0001, 0x0101)


@pytest.mark.parametrize("name", ["pause", "pfc"])
def test_a_capture_of_one_kind_of_flow_control_has_its_opcode(name: str) -> None:
    (frame,) = [frame for frame in HANDMADE if frame.name == name]
    columns = captured([record(frame.data)] * 2)

    assert columns["macc"].tolist() == [True, True]
    assert columns["macc.opcode"].tolist() == [{"pause": 1, "pfc": 257}[name]] * 2


def test_what_the_file_says_about_a_packet_is_in_its_row() -> None:
    data = HANDMADE[0].data
    columns = captured(
        [
            Record(1, 5, data, 1500, LinkType.ETHERNET, comments=("one", "two")),
            Record(2, 1_700_000_000_123_456_789, data[:20], 20, LinkType.ETHERNET),
        ]
    )

    assert columns["frame.number"].tolist() == [1, 2]
    assert columns["frame.time_ns"].tolist() == [5, 1_700_000_000_123_456_789]
    assert columns["frame.len"].tolist() == [1500, 20]
    assert columns["frame.cap_len"].tolist() == [len(data), 20]
    assert columns["frame.file"].tolist() == ["name of the file"] * 2
    assert columns["frame.comment"].tolist() == ["one\ntwo", ""]
    assert columns.valid("frame.comment").tolist() == [True, False]


def test_invalid_rows_of_header_fields_hold_zero(golden: Columns) -> None:
    for name in ("reth.va", "ipv6.src", "macc.pfc.time", "eth.src"):
        assert not np.any(golden[name][~golden.valid(name)])


def test_repr_names_the_packets_and_the_capture() -> None:
    (columns,) = read(CAPTURES[0].parent / "drop-one-middle.a.pcap")

    assert repr(columns).startswith("<Columns: packets 1 to 35 of '")
    assert "drop-one-middle.a.pcap" in repr(columns)


def test_values_in_python_are_what_they_mean() -> None:
    """tshark: ip.src, eth.src, infiniband.aeth.syndrome, frame.time_relative of packet 20."""
    (columns,) = read(CAPTURES[0].parent / "drop-one-middle.a.pcap")

    row = {
        name: columns.to_list(name)[19]
        for name in ("ip.src", "eth.src", "bth.opcode_name", "bth.psn", "reth.va", "icrc")
    }
    assert row == {
        "ip.src": IPv4Address("10.77.0.2"),
        "eth.src": "52:54:00:77:00:02",
        "bth.opcode_name": "RC_ACKNOWLEDGE",
        "bth.psn": 103,
        "reth.va": None,
        "icrc": "8b030f73",
    }
    assert columns.to_list("frame.time_relative")[19] == Decimal("0.318254")
    (ipv6,) = read(CAPTURES[0].parent / "rcx-ipv6.pcap")
    assert IPv6Address("fd77::1") in ipv6.to_list("ipv6.src")


def test_arrow_has_the_fields_that_packets_have() -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `query`)")
    (columns,) = read(CAPTURES[0].parent / "drop-one-middle.a.pcap")

    table = columns.to_arrow()
    named = columns.to_arrow("ip.src", "infiniband.bth.psn", "frame.time_relative")

    assert {"ip.src", "bth.psn", "aeth.msn"} <= set(table.column_names)
    assert not {"ipv6.src", "lrh.slid", "deth.q_key"} & set(table.column_names)
    assert named.column_names == ["ip.src", "bth.psn", "frame.time_relative"]
    assert named.slice(19, 1).to_pylist()[0]["ip.src"] == "10.77.0.2"


def test_data_frame_has_times() -> None:
    pytest.importorskip("pandas", reason="pandas is not installed (extra `pandas`)")
    (columns,) = read(CAPTURES[0].parent / "drop-one-middle.a.pcap")

    frame = columns.to_pandas("frame.time_epoch", "frame.time_relative", "bth.psn")

    assert str(frame["frame.time_epoch"][19]) == "2026-11-21 00:20:55.867932+00:00"
    assert frame["frame.time_relative"][19].total_seconds() == 0.318254
    assert frame["bth.psn"].max() == 110  # tshark
