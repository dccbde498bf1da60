"""Generated packets are right by every judge there is: our readers, Scapy, the rules, tshark."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.l2 import Ether

from each_case import each_case
from examples import scaled
from ibwire.base.errors import EncodeError
from ibwire.capture import PcapngWriter, open_capture
from ibwire.dissect import Columns
from ibwire.strategies import frames, packets, psns, routes
from ibwire_layers.opcodes import INFO, OpCode, Operation, Payload, Service
from ibwire_layers.outer import IPv4, IPv6, LinkType
from ibwire_layers.packet import CrcStatus, IBRoute, Packet, RoCEv1Route, RoCEv2Route
from ibwire_layers.scapy import BTH, LRH
from ibwire_layers.walk import walk
from rules.check_frames import grave, judge_capture

TSHARK = shutil.which("tshark")

GUESSING = ("rpcordma", "smb_direct", "nvme-rdma", "iser", "infiniband.eoib")
"""Dissectors that guess by content and would claim the payload of a SEND."""


def link_type_of(packet: Packet) -> int:
    return LinkType.INFINIBAND if isinstance(packet.route, IBRoute) else LinkType.ETHERNET


def captured(made: list[Packet]) -> bytes:
    """The packets as a pcapng file, Ethernet and InfiniBand each with an interface."""
    file = BytesIO()
    with PcapngWriter(file, LinkType.ETHERNET) as writer:
        native = writer.add_interface(LinkType.INFINIBAND)
        for number, packet in enumerate(made):
            interface = native if isinstance(packet.route, IBRoute) else 0
            writer.write(packet.build(), number, interface=interface)
    return file.getvalue()


@given(packets())
def test_packet_is_read_back_without_a_fault(packet: Packet) -> None:
    found = Packet.parse(packet.build(), link_type_of(packet))

    assert found.icrc_status() is CrcStatus.GOOD
    assert found.vcrc == replace(found, vcrc=None).build()[-2:] if found.vcrc else True
    assert replace(found, icrc=None, vcrc=None) == replace(packet, padding=found.padding)
    assert not any(found.padding or b"")


@given(packets(mtu=1024))
def test_packet_has_the_headers_and_the_length_that_its_opcode_demands(packet: Packet) -> None:
    info = INFO[packet.bth.opcode]
    allowed = {
        Payload.NONE: range(1),
        Payload.EIGHT: range(8, 9),
        Payload.PMTU: range(1024, 1025),
        Payload.SOME: range(1, 1025),
        Payload.ANY: range(1025),
    }

    assert tuple(type(header) for header in packet.extensions) == info.headers
    assert len(packet.payload) in allowed[info.payload]


@settings(max_examples=scaled(50))
@given(st.lists(packets(), min_size=1, max_size=8))
def test_dissector_sees_no_fault_and_a_right_icrc(made: list[Packet]) -> None:
    with open_capture(BytesIO(captured(made))) as capture:
        (batch,) = capture.batches()
    columns = Columns(batch, "made")

    assert not np.any(columns.frames.fault)
    assert columns["icrc.status"].tolist() == [columns["icrc.status"][0]] * len(made)
    assert columns["bth.opcode"].tolist() == [packet.bth.opcode for packet in made]
    assert columns["bth.psn"].tolist() == [packet.bth.psn for packet in made]


@pytest.mark.slow
@settings(max_examples=scaled(60))
@given(packets())
def test_rules_find_nothing_wrong_with_it(packet: Packet) -> None:
    assert grave(judge_capture(BytesIO(captured([packet])))) == []


@given(packets())
def test_scapy_reads_it_back(packet: Packet) -> None:
    data = packet.build()

    found = (LRH if isinstance(packet.route, IBRoute) else Ether)(data)

    assert found[BTH].icrc_ok() is True
    assert found[BTH].opcode == packet.bth.opcode
    assert found[BTH].psn == packet.bth.psn
    found.clear_cache()
    assert bytes(found) == data


@pytest.mark.slow
@pytest.mark.skipif(TSHARK is None, reason="tshark not installed")
def test_tshark_finds_nothing_malformed(tmp_path: Path) -> None:
    made: list[Packet] = []

    # tshark knows neither the opcode of a CNP nor, in some versions, LINKTYPE_INFINIBAND; and
    # it reads what follows an RDETH from eight bytes too far on.
    asked = [
        opcode for opcode, info in INFO.items() if info.service not in (Service.CNP, Service.RD)
    ]

    @settings(max_examples=scaled(200), derandomize=True, database=None)
    @given(packets(opcodes=asked, links=["rocev2", "rocev1"]))
    def gather(packet: Packet) -> None:
        made.append(packet)

    gather()
    path = tmp_path / "made.pcapng"
    path.write_bytes(captured(made))
    fields = ["infiniband.bth.opcode", "infiniband.bth.psn", "_ws.malformed"]
    options = [part for field in fields for part in ("-e", field)]
    options += [part for name in GUESSING for part in ("--disable-protocol", name)]
    assert TSHARK is not None
    run = subprocess.run(
        [TSHARK, "-r", str(path), "-T", "fields", *options],
        capture_output=True,
        text=True,
        check=True,
    )

    rows = [line.split("\t") for line in run.stdout.splitlines()]
    assert [(int(opcode), int(psn)) for opcode, psn, _ in rows] == [
        (packet.bth.opcode, packet.bth.psn) for packet in made
    ]
    assert {malformed for *_, malformed in rows} == {""}


@each_case("opcode", OpCode, ids=lambda opcode: opcode.name)
def test_each_opcode_is_made(opcode: OpCode) -> None:
    made: list[Packet] = []

    @settings(max_examples=1, database=None)
    @given(packets(opcodes=[opcode]))
    def gather(packet: Packet) -> None:
        made.append(packet)

    gather()
    assert [packet.bth.opcode for packet in made] == [opcode]


@pytest.mark.slow
def test_every_route_is_made() -> None:
    def kind(packet: Packet) -> str:
        match packet.route:
            case RoCEv2Route(ip=IPv4()):
                return "4"
            case RoCEv2Route(ip=IPv6()):
                return "6"
            case RoCEv1Route():
                return "1"
            case IBRoute(grh=None):
                return "local"
        return "global"

    seen: Counter[str] = Counter()

    @settings(max_examples=200, derandomize=True, database=None)
    @given(packets())
    def gather(packet: Packet) -> None:
        seen[kind(packet)] += 1

    gather()
    assert set(seen) == {"4", "6", "1", "local", "global"}


@given(packets(links=["rocev1", "ib"], opcodes=[OpCode.CNP, OpCode.RC_SEND_ONLY]))
def test_cnps_are_only_made_for_rocev2(packet: Packet) -> None:
    assert packet.bth.opcode != OpCode.CNP


@given(st.data())
def test_destination_sequence_and_route_are_the_requested_ones(data: st.DataObject) -> None:
    way = data.draw(routes(["rocev2"]))
    asked = packets(
        route=st.just(way),
        dest_qp=st.just(0x77),
        psn=st.just(5),
        opcodes=[OpCode.RC_SEND_ONLY, OpCode.RC_ACKNOWLEDGE],
    )

    packet = data.draw(asked)

    assert isinstance(packet.route, RoCEv2Route)
    assert isinstance(way, RoCEv2Route)
    assert (packet.route.eth, packet.route.ip.dst) == (way.eth, way.ip.dst)
    assert (packet.bth.dest_qp, packet.bth.psn) == (0x77, 5)
    assert packet.bth.opcode in (OpCode.RC_SEND_ONLY, OpCode.RC_ACKNOWLEDGE)


@given(packets())
def test_responses_with_data_are_never_naks(packet: Packet) -> None:
    operation = INFO[packet.bth.opcode].operation
    if operation in (Operation.READ_RESPONSE, Operation.ATOMIC_ACKNOWLEDGE):
        assert all(getattr(each, "syndrome", 0) >> 5 == 0 for each in packet.extensions)


@given(frames())
def test_frames_are_ethernet_frames_with_a_bth(frame: bytes) -> None:
    assert walk(frame).bth > 0


@pytest.mark.parametrize("asked", [{"opcodes": [0x15]}, {"links": ["token ring"]}])
def test_what_does_not_exist_is_refused(asked: dict[str, list[object]]) -> None:
    @given(packets(**asked))
    def draw(packet: Packet) -> None: ...

    with pytest.raises(EncodeError, match=r"21|token ring"):
        draw()


def test_sequence_numbers_are_often_near_the_wrap_and_near_the_half() -> None:
    seen: list[int] = []

    @settings(max_examples=300, derandomize=True, database=None)
    @given(psns())
    def gather(psn: int) -> None:
        seen.append(psn)

    gather()
    assert min(seen) >= 0
    assert max(seen) < 1 << 24
    assert {psn & 0xFFFFFF for psn in range(-8, 9)} <= set(seen)
    assert set(range((1 << 23) - 8, (1 << 23) + 9)) <= set(seen)
    assert len(set(seen)) > 60
