"""Two speeds, one truth: the walk over one frame and the walk over many say the same."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strategies
from each_case import each_case
from examples import sampled, scaled
from ibwire.capture import RecordBatch, open_capture
from ibwire.capture.index import PADDING
from ibwire.capture.pcap import PcapWriter
from ibwire.dissect import Columns
from ibwire_layers import cm, crc, opcodes, outer, syndrome
from ibwire_layers import headers as h
from ibwire_layers.errors import Fault
from ibwire_layers.mad import MAD, MgmtClass
from ibwire_layers.outer import LinkType
from ibwire_layers.packet import Packet
from ibwire_layers.schema import Field, Header, Show
from ibwire_layers.syndrome import AckKind
from ibwire_layers.walk import Protocol, Walk, walk
from shipped_captures import each_capture
from strategies import HANDMADE, Frame
from vectors import LINK_PACKET, load

CAPTURES = sorted((Path(__file__).parents[2] / "captures").glob("*.pcap*"))

TSHARK = shutil.which("tshark")

NETWORK = (outer.IPv4, outer.IPv6, outer.UDP)

# What the columns hold: every one of these that is the innermost of its kind.
SHOWN: tuple[type[Header], ...] = (
    outer.Ethernet,
    outer.VLAN,
    *NETWORK,
    outer.Pause,
    outer.PFC,
    h.LRH,
    h.RWH,
    h.GRH,
    h.FlowControl,
    h.BTH,
    *opcodes.EXTENSION_HEADERS,
)

FIRST_TAG = "vlan.outer."

VERDICTS = ("good", "bad", "truncated", "absent")


def batch_of(frames: Sequence[Frame], first_number: int = 1) -> RecordBatch:
    """The frames as a reader would hand them out."""
    lengths = np.array([len(frame.data) for frame in frames], np.int64)
    wire = [len(f.data) if f.wire_len is None else f.wire_len for f in frames]
    n = len(frames)
    return RecordBatch(
        data=np.frombuffer(
            bytearray(b"".join(frame.data for frame in frames) + bytes(PADDING)), np.uint8
        ),
        offsets=np.cumsum(lengths) - lengths,
        cap_len=lengths,
        wire_len=np.array(wire, np.int64),
        time_ns=np.zeros(n, np.int64),
        link_type=np.array([frame.link_type for frame in frames], np.uint16),
        interface=np.zeros(n, np.uint32),
        first_number=first_number,
    )


def innermost(found: Walk) -> dict[Any, int]:
    """Where the headers stand that describe the innermost frame; `FIRST_TAG` of several tags."""
    positions: dict[Any, int] = {}
    for layer in found.layers:
        forgotten: Iterable[Any] = ()
        if layer.header is outer.Ethernet:
            forgotten = (outer.VLAN, FIRST_TAG, *NETWORK)
        elif layer.header in (outer.IPv4, outer.IPv6):
            forgotten = NETWORK
        elif layer.header is outer.VLAN and outer.VLAN in positions:
            positions.setdefault(FIRST_TAG, positions[outer.VLAN])
        for header in forgotten:
            positions.pop(header, None)
        positions[layer.header] = layer.offset
    return positions


def expected_values(frame: Frame) -> dict[str, Any]:
    """Every column that the frame has, from the scalar codec."""
    data = frame.data
    found = walk(data, frame.link_type)
    positions = innermost(found)
    values: dict[str, Any] = {
        "frame.protocol": int(found.protocol),
        "frame.tunnelled": 1 if found.tunnelled else None,
        "fault": int(found.fault) or None,
    }
    for header in SHOWN:
        if header in positions:
            values |= _fields(header, data, positions[header])
    if h.AETH in positions:
        values |= _syndrome(data[positions[h.AETH]])
    if outer.PFC in positions:
        vector = data[positions[outer.PFC] + 3]
        values["macc.pfc.classes"] = [vector >> number & 1 for number in range(8)]
    if FIRST_TAG in positions:
        tag = _fields(outer.VLAN, data, positions[FIRST_TAG])
        values |= {name.replace("vlan.", FIRST_TAG): value for name, value in tag.items()}
    if found.bth >= 0:
        values |= _transport(frame, found)
    if h.LRH in positions:
        values |= _vcrc(frame, found, positions[h.LRH])
    if h.FlowControl in positions:
        at = positions[h.FlowControl]
        good = crc.lpcrc(data[at : at + 4]) == data[at + 4 : at + 6]
        values["lpcrc.status"] = VERDICTS[0 if good else 1]
    if found.protocol is Protocol.IB_RAW:
        values["icrc.status"] = "absent"
    return {name: value for name, value in values.items() if value is not None}


def _fields(header: type[Header], data: bytes, at: int) -> dict[str, Any]:
    return {field.key: _shown(field, value) for field, value in header.unpack(data, at).items()}


def _shown(field: Field, value: Any) -> Any:
    """As a row of a column: long numbers are bytes there."""
    if field.is_array:
        return list(value)
    return list(value.to_bytes(field.width // 8)) if field.width > 64 else value


def _syndrome(value: int) -> dict[str, Any]:
    named = {
        AckKind.ACK: "aeth.syndrome.credit_count",
        AckKind.RNR_NAK: "aeth.syndrome.timer",
        AckKind.NAK: "aeth.syndrome.error_code",
    }
    kind = syndrome.kind(value)
    part = {named[kind]: syndrome.code(value)} if kind in named else {}
    return {"aeth.syndrome.opcode": int(kind)} | part


def _transport(frame: Frame, found: Walk) -> dict[str, Any]:
    data = frame.data
    parsed = Packet.parse(data, frame.link_type, strict=False)
    values: dict[str, Any] = {
        "bth.opcode_name": data[found.bth],
        "icrc.status": str(parsed.icrc_status()),
    }
    if found.has_icrc and found.end <= len(data):
        values["icrc"] = int.from_bytes(data[found.end - 4 : found.end])
    if found.payload >= 0:
        length = found.payload_end - found.payload - parsed.bth.pad_count
        values["payload.len"] = length if length >= 0 else None
        management = parsed.bth.opcode == 0x64 and parsed.bth.dest_qp <= 1
        held = min(found.payload_end, len(data)) - found.payload
        if management and held >= MAD.SIZE:
            values |= _fields(MAD, data, found.payload)
            values |= _cm_fields(data[found.payload : found.payload + held])
    return values


def _cm_fields(mad: bytes) -> dict[str, Any]:
    """Fields of a message of the connection manager, as far as it was captured."""
    attribute = int.from_bytes(mad[16:18])
    if mad[1] != MgmtClass.COMM_MGT or attribute not in CM_MESSAGES:
        return {}
    place, message = CM_MESSAGES[attribute]
    body = mad[MAD.SIZE :]
    read = message.unpack(body.ljust(232, b"\0"), 0)
    held = {
        field.key: _shown(field, value)
        for field, value in read.items()
        if field.show is not Show.BYTES and field.offset + field.size <= 8 * len(body)
    }
    if held:
        held["cm.message"] = place
    if "cm.rej.reason" in held:
        # The words end at 35, the last reason that is known.
        held["cm.rej.reason_name"] = min(held["cm.rej.reason"], 36)
    return held


CM_MESSAGES = {
    attribute: (place, getattr(cm, cm.CMAttribute(attribute).name))
    for place, attribute in enumerate(range(0x10, 0x1B))
}


def _vcrc(frame: Frame, found: Walk, lrh: int) -> dict[str, Any]:
    wire_len = len(frame.data) if frame.wire_len is None else frame.wire_len
    sent = frame.data[found.end : found.end + 2]
    if found.end + 2 > len(frame.data):
        return {"vcrc.status": "truncated" if found.end + 2 <= wire_len else "absent"}
    good = crc.vcrc(frame.data[lrh : found.end]) == sent
    return {"vcrc": int.from_bytes(sent), "vcrc.status": "good" if good else "bad"}


CONSTANT = ("frame.number", "frame.time_ns", "frame.len", "frame.cap_len", "frame.interface")
TIMES = ("frame.time_epoch", "frame.time_relative")
COMPARED_APART = (*CONSTANT, *TIMES, "frame.file", "frame.comment")


def assert_same(frames: Sequence[Frame], batch: RecordBatch | None = None) -> None:
    """Both walks agree on everything about every frame."""
    batch = batch_of(frames) if batch is None else batch
    before = batch.data.copy()
    columns = Columns(batch)
    _assert_same_walk(frames, columns)
    wanted = [expected_values(frame) for frame in frames]
    unseen = {name for values in wanted for name in values}
    marks = [innermost(walk(f.data, f.link_type)) for f in frames]
    for name in columns:
        if name in COMPARED_APART:
            continue
        unseen.discard(name)
        column = columns.column(name)
        if column.values.dtype == np.bool_:
            flagged: set[Any] = {header for header in SHOWN if name == header.KEY}
            present = [bool(flagged & positions.keys()) for positions in marks]
            assert column.values.tolist() == present, name
            continue
        valid = columns.valid(name).tolist()
        values = column.values.tolist()
        if name in ("icrc.status", "vcrc.status", "lpcrc.status"):
            values = [VERDICTS[value] for value in values]
        for row, frame in enumerate(frames):
            got = values[row] if valid[row] else None
            assert got == wanted[row].get(name), (name, frame.name, frame.data.hex())
    assert not unseen
    assert np.array_equal(batch.data, before), "reading changed the capture"


def _assert_same_walk(frames: Sequence[Frame], columns: Columns) -> None:
    many = columns.frames
    offsets = many.batch.offsets
    positions = {header: many.position(header) for header in SHOWN}
    payload = many.payload
    for row, frame in enumerate(frames):
        found = walk(frame.data, frame.link_type)
        offset = int(offsets[row])

        def local(at: Any, offset: int = offset) -> int:
            return int(at) - offset if at >= 0 else -1

        one = innermost(found)
        assert {
            "protocol": Protocol(int(many.protocol[row])),
            "fault": Fault(int(many.fault[row])),
            "bth": local(many.bth[row]),
            "start": local(many.start[row]),
            "end": local(many.end[row]),
            "has_icrc": bool(many.has_icrc[row]),
            "tunnelled": bool(many.tunnelled[row]),
            "payload": local(payload[row]),
            "outer_vlan": local(many.outer_vlan[row]),
            **{header.__name__: local(at[row]) for header, at in positions.items()},
        } == {
            "protocol": found.protocol,
            "fault": found.fault,
            "bth": found.bth,
            "start": found.start,
            "end": found.end,
            "has_icrc": found.has_icrc,
            "tunnelled": found.tunnelled,
            "payload": found.payload,
            "outer_vlan": one.get(FIRST_TAG, -1),
            **{header.__name__: one.get(header, -1) for header in positions},
        }, (frame.name, frame.link_type, frame.wire_len, frame.data.hex())


def test_no_frames_are_no_rows() -> None:
    columns = Columns(batch_of([]))

    assert {len(columns[name]) for name in columns} == {0}


@each_capture
def test_shipped_capture_reads_the_same_at_both_speeds(path: Path) -> None:
    with open_capture(path) as capture:
        for batch in capture.batches():
            frames = [
                Frame(f"{path.name} {r.number}", r.data, r.link_type, r.wire_len)
                for r in batch.records()
            ]

            assert_same(frames, batch)


def test_golden_frames_read_the_same_at_both_speeds() -> None:
    frames = [
        Frame(vector.name, vector.frame, vector.link_type)
        if vector.link_type != LINK_PACKET
        else Frame(vector.name, strategies.erf(vector.frame, 25), LinkType.ERF)
        for vector in load()
    ]

    assert_same(frames)


def test_handmade_frames_of_all_kinds_in_one_batch_read_the_same_at_both_speeds() -> None:
    assert_same(HANDMADE)


@each_case(
    "frame",
    [
        pytest.param(frame, marks=pytest.mark.slow if number % 8 else (), id=str(frame))
        for number, frame in enumerate(HANDMADE)
    ],
)
def test_a_frame_alone_reads_the_same_at_both_speeds(frame: Frame) -> None:
    assert_same([frame])


KINDS = {
    "tunnelled": strategies.tunnelled(),
    "tagged": strategies.tagged(),
    "networked": strategies.networked(),
    "transported": strategies.transported()[::3],
    "linked": strategies.linked(),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", sampled(KINDS, 2))
def test_a_frame_cut_at_any_length_reads_the_same_at_both_speeds(kind: str) -> None:
    frames = [frame.cut(n) for frame in KINDS[kind] for n in range(min(len(frame.data), 250))]

    assert_same(frames)


@pytest.mark.slow
@pytest.mark.parametrize("kind", sampled(KINDS, 2))
def test_a_frame_shorter_than_its_lengths_say_reads_the_same_at_both_speeds(kind: str) -> None:
    frames = [
        Frame(f"{frame.name} short {n}", frame.data[:n], frame.link_type)
        for frame in KINDS[kind]
        for n in range(len(frame.data) - 1, max(0, len(frame.data) - 40), -1)
    ]

    assert_same(frames)


@pytest.mark.slow
@pytest.mark.parametrize("bit", sampled(range(8), 4))
def test_every_bit_flipped_reads_the_same_at_both_speeds(bit: int) -> None:
    names = ("vxlan", "gre teb c1k1s1", "ipv6 chain", "ipv4 options", "erspan iii o", "mad")
    frames = []
    for frame in HANDMADE:
        if frame.name in names or frame.name.startswith("erf global"):
            for at in range(min(len(frame.data), 160)):
                data = bytearray(frame.data)
                data[at] ^= 1 << bit
                frames.append(Frame(f"{frame.name} {at}.{bit}", bytes(data), frame.link_type))

    assert_same(frames)


@pytest.mark.slow
@settings(max_examples=scaled(150), deadline=None)
@given(st.lists(strategies.damaged() | strategies.random_frames, max_size=12))
def test_damaged_and_random_frames_read_the_same_at_both_speeds(frames: list[Frame]) -> None:
    assert_same(frames)


# What tunnels carry, by hand and by tshark.

NOT_FOLLOWED = ("gre rocev1", "gre vlan")
"""tshark 4.0 stops at these EtherTypes in GRE."""


@each_case("frame", strategies.tunnelled(), ids=str)
def test_the_packet_inside_a_tunnel_is_found(frame: Frame) -> None:
    found = walk(frame.data)
    packet = Packet.parse(frame.data)

    assert found.tunnelled
    assert packet.bth.dest_qp == strategies.DEST_QP
    assert packet.bth.psn == strategies.PSN
    assert packet.icrc_status() == "good"


@pytest.mark.slow
@pytest.mark.skipif(TSHARK is None, reason="tshark not installed")
def test_tunnelled_frames_read_as_tshark_reads_them(tmp_path: Path) -> None:
    made = (*strategies.tunnelled(), *strategies.tagged())
    frames = [frame for frame in made if frame.name not in NOT_FOLLOWED]
    columns = Columns(batch_of(frames))

    rows = _tshark(tmp_path / "tunnelled.pcap", frames)

    assert len(rows) == len(frames)
    for row, frame in enumerate(frames):
        opcode, dest_qp, psn, sources, sources6 = rows[row]
        found = (columns[n][row] for n in ("bth.opcode", "bth.destqp", "bth.psn"))
        assert [int(text, 0) for text in (opcode, dest_qp, psn)] == list(found), frame.name
        if columns.valid("ip.src")[row]:
            address = str(IPv4Address(int(columns["ip.src"][row])))
            assert sources.split(",")[-1] == address, frame.name
        elif columns.valid("ipv6.src")[row]:
            address = str(IPv6Address(columns["ipv6.src"][row].tobytes()))
            assert sources6.split(",")[-1] == address, frame.name


@pytest.mark.slow
@pytest.mark.skipif(TSHARK is None, reason="tshark not installed")
def test_swapped_udp_ports_read_as_tshark_reads_them(tmp_path: Path) -> None:
    """From port 4791 to ports with and without a protocol of their own."""
    ports = (1234, 53, 4500, 4789, 4790, 4792, 5353, 6635, 50000, 0xFFFF, 1, 3000)
    data = strategies.packet(strategies.ROUTE4)
    frames = [
        Frame(str(port), data[:34] + (4791).to_bytes(2) + port.to_bytes(2) + data[38:])
        for port in ports
    ]
    columns = Columns(batch_of(frames))

    rows = _tshark(tmp_path / "swapped.pcap", frames)

    is_roce = {port for port, row in zip(ports, rows, strict=True) if row[0]}
    assert {1234, 50000} <= is_roce
    assert {port for port, bth in zip(ports, columns["bth"], strict=True) if bth} == is_roce


def _tshark(path: Path, frames: Sequence[Frame]) -> list[list[str]]:
    with PcapWriter(path, LinkType.ETHERNET) as writer:
        for frame in frames:
            writer.write(frame.data, 0)
    names = ("infiniband.bth.opcode", "infiniband.bth.destqp", "infiniband.bth.psn")
    fields = [part for name in (*names, "ip.src", "ipv6.src") for part in ("-e", name)]
    command = [str(TSHARK), "-r", str(path), "-T", "fields", *fields]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [line.split("\t") for line in done.stdout.splitlines()]
