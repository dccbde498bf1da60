"""Packets of every kind as others see them: tshark, Scapy's own ICRC, our dissector and rules."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from scapy.contrib.roce import BTH as ScapyBTH
from scapy.layers.inet import UDP as ScapyUDP
from scapy.layers.l2 import Ether

from examples import sampled
from ibwire.capture import open_capture
from ibwire.capture.index import Record
from ibwire.capture.writer import write_capture
from ibwire.dissect import Columns
from ibwire.dissect.icrc import STATUS_WORDS
from ibwire.traffic.builder import Builder
from ibwire.traffic.stream import Link, Payload, Stream, Verb, parse_qpns
from ibwire_layers.opcodes import Service
from ibwire_layers.outer import LinkType
from rules.check_frames import judge_capture

V4 = {"src": "10.0.0.1", "dst": "10.0.0.2"}
V6 = {"src": "fd00::1", "dst": "fd00::2"}
TSHARK = shutil.which("tshark")

SPACING_NS = 100_000
"""Enough between CNPs for the rule about their pace."""

FORMS: list[dict[str, Any]] = [
    *({"verb": verb} for verb in Verb),
    *({"verb": verb, "service": Service.UC} for verb in (Verb.SEND, Verb.SEND_IMM)),
    *({"verb": verb, "service": Service.UC} for verb in (Verb.WRITE, Verb.WRITE_IMM)),
    *({"verb": verb, "service": Service.UD} for verb in (Verb.SEND, Verb.SEND_IMM)),
    {"size": 0},
    {"size": 1},
    {"size": 2500, "psn": 0xFFFFF0},
    {"size": 2500, "qpn": "0x11*3, 0x12", "ack_every": 7},
    {"verb": Verb.SEND_IMM, "size": 1030, "imm": 0x01020304, "solicited": True},
    {"va": 0x7F0000000000, "va_step": 4096, "va_window": 1 << 20, "rkey": 0x1234},
    {"payload": Payload.RANDOM, "size": 1027},
    {"payload": Payload.COUNTER, "size": 1500},
    {"ce": 0.3},
    {"ce_every": 5, "ce_run": 2, "dscp": 26},
    {"vlan": 100, "pcp": 3},
]
"""Every verb and service, and every thing that changes bytes."""


def made(form: dict[str, Any], **more: Any) -> Stream:
    values = {"qpns": parse_qpns("0x11, 0x12"), **V4, **form, **more}
    if "qpn" in values:
        values["qpns"] = parse_qpns(values.pop("qpn"))
    return Stream(**values)


def frames_of(stream: Stream, count: int) -> list[bytes]:
    block = next(Builder([stream]).blocks(count))
    rows = zip(block.frames, block.lengths.tolist(), strict=True)
    return [row[:length].tobytes() for row, length in rows]


def captured(path: Path, frames: list[bytes]) -> Path:
    write_capture(
        path,
        (
            Record(number, number * SPACING_NS, frame, len(frame), LinkType.ETHERNET)
            for number, frame in enumerate(frames, 1)
        ),
    )
    return path


@pytest.mark.slow
@pytest.mark.parametrize("addresses", [V4, V6], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_scapys_own_icrc_is_that_of_every_packet(
    form: dict[str, Any], addresses: dict[str, str]
) -> None:
    for frame in frames_of(made(form, **addresses), 40):
        packet = Ether(frame)
        # Our layers may be bound to the port too: Scapy's own reads the datagram.
        datagram = packet[ScapyUDP]
        transport = bytes(datagram.payload)
        datagram.remove_payload()
        own = ScapyBTH(transport)
        datagram.add_payload(own)

        assert own.compute_icrc(transport) == frame[-4:]


@pytest.mark.parametrize("addresses", [V4, V6], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("form", sampled(FORMS, 2), ids=str)
def test_our_rules_find_nothing_in_a_capture_of_a_stream(
    form: dict[str, Any], addresses: dict[str, str], tmp_path: Path
) -> None:
    path = captured(tmp_path / "out.pcap", frames_of(made(form, **addresses), 200))

    with open_capture(path) as capture:
        for batch in capture.batches():
            columns = Columns(batch, str(path))
            assert not columns.valid("fault").any()
            assert set(columns["icrc.status"].tolist()) == {STATUS_WORDS.index("good")}
    assert judge_capture(path) == []


@pytest.mark.slow
@pytest.mark.skipif(TSHARK is None, reason="tshark not installed")
@pytest.mark.parametrize("where", [V4, V6, {**V4, "link": Link.ROCEV1}], ids=str)
def test_tshark_reads_every_packet_and_finds_none_malformed(
    where: dict[str, Any], tmp_path: Path
) -> None:
    frames, opcodes, psns = [], [], []
    for form in FORMS:
        if "link" in where and ("ce" in form or "ce_every" in form):
            continue
        found = frames_of(made(form, **where, src_port=0xC123), 12)
        frames += found
        for frame in found:
            at = 14 + (4 if "vlan" in form else 0)
            at += 40 if "link" in where or ":" in where["dst"] else 20
            at += 0 if "link" in where else 8
            opcodes.append(str(frame[at]))
            psns.append(str(int.from_bytes(frame[at + 9 : at + 12])))
    path = captured(tmp_path / "out.pcap", frames)
    command = [str(TSHARK), "-n", "-r", str(path), "-d", "udp.port==0xc123,infiniband"]
    fields = ("infiniband.bth.opcode", "infiniband.bth.psn", "_ws.malformed", "_ws.expert")
    command += ["-T", "fields", *(f"-e{name}" for name in fields)]
    for name in ("rpcordma", "smb_direct", "nvme-rdma", "iser"):
        command += ["--disable-protocol", name]

    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    rows = [line.split("\t") for line in lines.splitlines()]
    assert [row[0] for row in rows] == opcodes
    assert [row[1] for row in rows] == psns
    assert not any(row[2] for row in rows)


@pytest.mark.slow
@pytest.mark.skipif(TSHARK is None, reason="tshark not installed")
def test_tshark_reads_the_fields_that_were_asked_for(tmp_path: Path) -> None:
    stream = made(
        {"verb": Verb.WRITE_IMM, "size": 2500, "psn": 0xFFFFFF, "imm": 0x01020304},
        qpns=((0xABCDEF, 1),),
        rkey=0x11223344,
        va=0x7F00_0000_1000,
        va_step=4096,
        va_window=8192,
        vlan=77,
        pcp=5,
        dscp=26,
        ttl=9,
        src_port=0xC123,
        pkey=0x8001,
        src_mac=bytes.fromhex("020000000001"),
        dst_mac=bytes.fromhex("020000000002"),
        ce_every=2,
    )
    path = captured(tmp_path / "out.pcap", frames_of(stream, 6))
    fields = {
        "eth.src": ["02:00:00:00:00:01"] * 6,
        "eth.dst": ["02:00:00:00:00:02"] * 6,
        "vlan.id": ["77"] * 6,
        "vlan.priority": ["5"] * 6,
        "ip.dsfield.dscp": ["26"] * 6,
        "ip.dsfield.ecn": ["2", "3"] * 3,
        "ip.ttl": ["9"] * 6,
        "ip.checksum.status": ["1"] * 6,
        # 20 + 8 + 12 + 16 + 1024 + 4; without RETH; 452 bytes and ImmDt.
        "ip.len": ["1084", "1068", "500"] * 2,
        "udp.srcport": ["49443"] * 6,
        "infiniband.bth.opcode": ["6", "7", "9"] * 2,
        "infiniband.bth.p_key": ["32769"] * 6,
        "infiniband.bth.destqp": ["0xabcdef"] * 6,
        "infiniband.bth.psn": ["16777215", "0", "1", "2", "3", "4"],
        "infiniband.bth.a": ["0", "0", "1"] * 2,
        "infiniband.bth.padcnt": ["0"] * 6,
        "infiniband.reth.va": ["0x00007f0000001000", "", "", "0x00007f0000002000", "", ""],
        "infiniband.reth.r_key": ["0x11223344", "", ""] * 2,
        "infiniband.reth.dmalen": ["2500", "", ""] * 2,
        "infiniband.immdt": ["", "", "01020304"] * 2,
    }
    command = [str(TSHARK), "-n", "-r", str(path), "-d", "udp.port==0xc123,infiniband"]
    command += [
        "-o",
        "ip.check_checksum:TRUE",
        "-E",
        "occurrence=f",
        "-T",
        "fields",
        *(f"-e{name}" for name in fields),
    ]

    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    columns = zip(*(line.split("\t") for line in lines.splitlines()), strict=True)
    assert dict(zip(fields, map(list, columns), strict=True)) == fields
