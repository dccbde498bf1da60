"""Recorded packets, rebound: what changes, what is made right, what stays; faults on the way."""

from pathlib import Path
from typing import Any

import pytest

from each_case import each_case
from ibwire.base.errors import EncodeError
from ibwire.capture import open_capture
from ibwire.capture.index import Record
from ibwire.capture.writer import write_capture
from ibwire.dissect import FIELDS
from ibwire.dissect.fields import type_of
from ibwire.dissect.where import parse
from ibwire.impair import build_pipe
from ibwire.rc.device import gid_of
from ibwire.traffic.capture_source import Replay, read_replay
from ibwire.traffic.rebind import Rebinding
from ibwire_layers import headers as h
from ibwire_layers.crc import internet_checksum
from ibwire_layers.opcodes import INFO
from ibwire_layers.outer import IPv4
from ibwire_layers.packet import CrcStatus, Packet, RoCEv2Route
from rules.check_frames import grave, judge_capture
from strategies import ROUTE4, Frame, cooked, packet, tunnelled

CAPTURES = Path(__file__).parents[2] / "captures"
ALL_OPS = CAPTURES / "rcx-all-ops.pcap"
"""A connection of 10.77.0.1, QP 0x9b, and 10.77.0.2, QP 0x66, with every operation."""

A, B = "10.77.0.1", "10.77.0.2"
HERE = {gid_of(A): gid_of("192.0.2.1"), gid_of(B): gid_of("192.0.2.2")}


def packets_of(path: Path) -> list[Packet]:
    """The RDMA packets of a capture with plain Ethernet frames."""
    with open_capture(path) as capture:
        frames = [record.data for record in capture.records()]
    return [Packet.parse(data) for data in frames if data[36:38] == b"\x12\xb7"]


def replayed(path: Path = ALL_OPS, *, more: Any = None, **rebinding: Any) -> list[Packet]:
    found = read_replay(path, Rebinding(**rebinding), **(more or {}))
    return [Packet.parse(frame) for frame in found.source.frames]


def ip_of(of: Packet) -> IPv4:
    assert isinstance(of.route, RoCEv2Route)
    assert isinstance(of.route.ip, IPv4)
    return of.route.ip


def test_without_changes_packets_and_times_are_those_of_the_capture() -> None:
    with open_capture(ALL_OPS) as capture:
        records = [each for each in capture.records() if each.data[36:38] == b"\x12\xb7"]

    found = read_replay(ALL_OPS, Rebinding())

    assert list(found.source.frames) == [record.data for record in records]
    assert list(found.source.times) == [record.time_ns - records[0].time_ns for record in records]
    assert (found.taken, found.others) == (50, 14)


def test_blocks_hold_the_frames() -> None:
    source = read_replay(ALL_OPS, Rebinding()).source
    blocks = list(source.blocks(7))

    rows = [
        row[:length].tobytes()
        for block in blocks
        for row, length in zip(block.frames, block.lengths.tolist(), strict=True)
    ]
    assert rows == list(source.frames)
    assert max(len(block.frames) for block in blocks) == 7


def test_addresses_change_in_both_directions_and_everything_else_stays() -> None:
    for before, after in zip(packets_of(ALL_OPS), replayed(addresses=HERE), strict=True):
        old, new = ip_of(before), ip_of(after)
        assert HERE[0xFFFF << 32 | old.src] == 0xFFFF << 32 | new.src
        assert HERE[0xFFFF << 32 | old.dst] == 0xFFFF << 32 | new.dst
        assert internet_checksum(new.pack()) == 0
        assert after.icrc_status() is CrcStatus.GOOD
        assert (after.bth, after.extensions) == (before.bth, before.extensions)
        assert after.payload == before.payload


def test_queue_pairs_and_keys_change_wherever_they_stand() -> None:
    keys = {
        header.rkey
        for each in packets_of(ALL_OPS)
        for header in each.extensions
        if isinstance(header, h.RETH | h.AtomicETH | h.IETH)
    }
    after = replayed(qpns={0x66: 0x2A, 0x9B: 0x2B}, rkeys=dict.fromkeys(keys, 0xABCD))

    assert {each.bth.dest_qp for each in after} == {0x2A, 0x2B}
    assert {
        header.rkey
        for each in after
        for header in each.extensions
        if isinstance(header, h.RETH | h.AtomicETH | h.IETH)
    } == {0xABCD}
    assert {each.icrc_status() for each in after} == {CrcStatus.GOOD}


def test_a_datagrams_sender_changes_too() -> None:
    before = packets_of(CAPTURES / "ud-pingpong.pcap")
    sender = next(each.extension(h.DETH) for each in before if each.extension(h.DETH))
    assert sender is not None

    after = replayed(CAPTURES / "ud-pingpong.pcap", qpns={sender.src_qp: 0x777})

    sources = [each.extension(h.DETH).src_qp for each in after]
    assert 0x777 in sources
    assert sender.src_qp not in sources


@pytest.mark.parametrize("start", [0, 100, 0xFFFFF0])
def test_responses_follow_the_psns_of_their_requests(start: int) -> None:
    before, after = packets_of(ALL_OPS), replayed(psn_start=start)
    first = next(each for each in before if not INFO[each.bth.opcode].is_response)

    for old, new in zip(before, after, strict=True):
        assert new.bth.psn == (old.bth.psn - first.bth.psn + start) % 2**24
        assert new.icrc_status() is CrcStatus.GOOD


def test_the_rules_find_as_little_in_what_was_rebound_as_in_the_capture(tmp_path: Path) -> None:
    path = tmp_path / "out.pcap"
    for name in ("rcx-all-ops.pcap", "rc-pingpong.pcap", "rcx-ipv6.pcap", "drop-one-middle.a.pcap"):
        found = read_replay(CAPTURES / name, Rebinding(psn_start=5, qpns={0x66: 0x2A}))
        timed = zip(found.source.times, found.source.frames, strict=True)
        write_capture(path, (Record(1, time_ns, frame, len(frame), 1) for time_ns, frame in timed))

        assert grave(judge_capture(path, "rxe")) == grave(judge_capture(CAPTURES / name, "rxe"))


def test_one_queue_pair_may_have_a_start_of_its_own() -> None:
    after = replayed(psn_starts={0x66: 7})

    requests = [each for each in after if not INFO[each.bth.opcode].is_response]
    assert requests[0].bth.psn == 7


def test_mac_addresses_are_mapped_or_those_of_the_link() -> None:
    (before, *_) = packets_of(ALL_OPS)
    assert before.route.eth is not None
    old = before.route.eth.src.to_bytes(6)
    own, mapped = bytes.fromhex("020000000009"), bytes.fromhex("02000000000a")

    after = replayed(src_mac=own, mac_towards=lambda gid: b"\2\3" + (gid & 0xFFFFFFFF).to_bytes(4))
    (first, *_) = replayed(src_mac=own, macs={old: mapped})

    for each in after:
        eth = each.route.eth
        assert eth.src.to_bytes(6) == own
        assert eth.dst.to_bytes(6) == b"\2\3" + ip_of(each).dst.to_bytes(4)
    assert first.route.eth.src.to_bytes(6) == mapped


def test_a_wrong_icrc_stays_unless_something_changes_or_repair_is_asked_for(
    tmp_path: Path,
) -> None:
    frame = bytearray(packet(ROUTE4))
    frame[-1] ^= 1
    path = one_frame(tmp_path, Frame("bad", bytes(frame)))

    def status(**rebinding: Any) -> CrcStatus:
        (only,) = replayed(path, **rebinding)
        return only.icrc_status()

    assert status() is CrcStatus.BAD
    assert status(repair=True) is CrcStatus.GOOD
    assert status(psn_start=3) is CrcStatus.GOOD


def one_frame(folder: Path, frame: Frame) -> Path:
    path = folder / "one.pcapng"
    size = frame.wire_len or len(frame.data)
    write_capture(path, [Record(1, 1, frame.data, size, frame.link_type)])
    return path


@pytest.mark.parametrize("frame", tunnelled(), ids=str)
def test_what_is_in_a_tunnel_leaves_without_it(frame: Frame, tmp_path: Path) -> None:
    found = read_replay(one_frame(tmp_path, frame), Rebinding())

    (bare,) = found.source.frames
    route = Packet.parse(bare).route
    assert route.prefix == b""
    assert route.eth is not None
    assert Packet.parse(bare).icrc_status() is CrcStatus.GOOD


def test_a_cooked_capture_gets_ethernet_headers(tmp_path: Path) -> None:
    frame = Frame("cooked", cooked(packet(ROUTE4)[14:]), 113)

    (bare,) = read_replay(one_frame(tmp_path, frame), Rebinding()).source.frames

    assert bare[:14].hex() == "02000a000002" + "02000a000001" + "0800"


def test_packets_that_were_cut_or_are_none_are_left_out_and_counted(tmp_path: Path) -> None:
    whole = Frame("whole", packet(ROUTE4))
    path = tmp_path / "mixed.pcap"
    frames = [whole.data, whole.data[:60], bytes(60)]
    records = [
        Record(number, number, data, max(len(data), len(whole.data) if number == 2 else 0), 1)
        for number, data in enumerate(frames, 1)
    ]
    write_capture(path, records)

    found = read_replay(path, Rebinding())

    assert (found.taken, found.cut, found.others) == (1, 1, 1)


def test_an_expression_chooses_packets() -> None:
    condition = parse(f"ip.src == {A}", type_of, FIELDS)

    found = read_replay(ALL_OPS, Rebinding(), where=condition)

    assert {ip_of(Packet.parse(frame)).src for frame in found.source.frames} == {
        gid_of(A) & 0xFFFFFFFF
    }
    assert found.unselected + found.taken == 50


def through(rules: list[dict[str, Any]]) -> Replay:
    return read_replay(ALL_OPS, Rebinding(), faults=build_pipe(rules))


def test_faults_happen_on_the_way() -> None:
    plain = read_replay(ALL_OPS, Rebinding()).source
    lossy = through([{"drop": {"dest_qp": 0x66, "psn": 1}}]).source
    doubled = through([{"duplicate": {"nth": 1, "delay": "1ms"}}]).source

    assert lossy.count == plain.count - 1
    assert lossy.frames[1] == plain.frames[1]
    assert plain.frames[2] not in lossy.frames
    assert doubled.count == plain.count + 1
    assert doubled.frames.count(plain.frames[0]) == 2
    assert list(doubled.times) == sorted(doubled.times)


def test_a_delay_changes_the_order_and_the_times() -> None:
    plain = read_replay(ALL_OPS, Rebinding()).source
    late = through([{"delay": {"time": "5ms", "nth": 1}}]).source

    assert sorted(late.frames) == sorted(plain.frames)
    assert late.frames[0] == plain.frames[1]
    assert late.frames.index(plain.frames[0]) == 1


@each_case(
    ("wrong", "field"),
    [
        ({"qpns": {1 << 24: 0}}, "qpn"),
        ({"qpns": {0: -1}}, "qpn"),
        ({"rkeys": {0: 1 << 32}}, "rkey"),
        ({"psn_start": 1 << 24}, "psn_start"),
        ({"psn_starts": {0: -1}}, "psn_start"),
        ({"addresses": {gid_of(A): gid_of("fd00::1")}}, "address"),
    ],
    ids=str,
)
def test_a_rebinding_that_cannot_be_names_the_key(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(EncodeError) as caught:
        Rebinding(**wrong)

    assert caught.value.field == field
