"""Lines over TCP: expected queue pairs and PSNs are what the programs printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from connections.handshake_frames import (
    NAMES,
    PREAMBLE,
    Talk,
    captured,
    chunks,
    handshakes_of,
    perftest,
    pingpong,
    qpns,
)
from each_case import each_case
from ibwire.connections.flow import addresses
from ibwire.connections.handshakes import Party
from ibwire.connections.opcode_sets import RESPONSES
from ibwire_layers import opcodes
from ibwire_layers.opcodes import Service


@pytest.mark.parametrize(
    ("name", "how", "one", "other", "mtu"),
    [
        (
            "vlan-rc-pingpong.pcap",
            "pingpong",
            Party("10.78.0.1", 0xC3, 0x4536D6),
            Party("10.78.0.2", 0x8E, 0xABA409),
            None,
        ),
        (
            "ud-pingpong.pcap",
            "pingpong",
            Party("10.77.0.1", 0x81, 0x59A0DB),
            Party("10.77.0.2", 0x4D, 0x5DD49A),
            None,
        ),
        (
            "uc-write-bw.pcap",
            "perftest",
            Party("10.77.0.1", 0x8F, 0x4EC499, 1),
            Party("10.77.0.2", 0x5B, 0xE9A08E, 1),
            1024,
        ),
        (
            "rcx-ipv6.pcap",
            "json",
            Party("fd77::1", 176, 11303374),
            Party("fd77::2", 123, 12014425),
            None,
        ),
    ],
)
def test_lines_of_programs_say_what_the_programs_printed(
    name: str, how: str, one: Party, other: Party, mtu: int | None, captures: Path
) -> None:
    [found] = handshakes_of(chunks(captures / name))

    assert (found.protocol, found.one, found.other, found.mtu) == (how, one, other, mtu)


def test_lines_that_segments_cut_in_two_are_put_together(captures: Path) -> None:
    """Each end sends 256 lines, of which 16 name a queue pair."""
    found = handshakes_of(chunks(captures / "srq-pingpong.pcap"))

    assert qpns(found) == [(0x70 + nth, 0x3C + nth) for nth in range(16)]
    assert (found[5].one.psn, found[5].other.psn) == (0xC8E830, 0x85058E)


@pytest.mark.parametrize("name", NAMES)
def test_packets_bear_out_what_was_said(name: str, captures: Path) -> None:
    """Every flow is of an agreement, and its first request has the PSN that was said."""
    parts = chunks(captures / name)
    said: dict[tuple[str, str, int], int | None] = {}
    for each in handshakes_of(parts):
        for src, dst in ((each.one, each.other), (each.other, each.one)):
            said[src.address, dst.address, dst.qpn] = src.psn
    first: dict[tuple[str, str, int], int] = {}
    for columns in parts:
        for row, opcode in enumerate(columns.frames.opcode.tolist()):
            if columns.frames.payload[row] >= 0 and opcodes.INFO[opcode].service is not Service.UD:
                key = *addresses(columns, row), int(columns["bth.destqp"][row])

                assert key in said
                if opcode not in RESPONSES:
                    first.setdefault(key, int(columns["bth.psn"][row]))

    assert first
    assert {key: said[key] for key in first} == first


def test_the_exchange_of_several_queue_pairs_is_in_their_order() -> None:
    """As in a capture of ib_write_bw -q 2, which says everything several times."""
    talk = Talk().begin()
    for text in (*PREAMBLE, b"5\0"):
        talk.say(0, text).say(1, text.replace(b"5", b"3"))
    for _ in range(3):
        for nth in (0, 1):
            talk.say(0, perftest(0x87 + nth, 1, 16)).say(1, perftest(0x53 + nth, 2, 8))
    talk.say(0, bytes(7) + b"(").say(1, bytes(7) + b"(")
    talk.say(0, perftest(0x87, 1, 16)).say(1, perftest(0x53, 2, 8)).say(0, b"done\0")

    found = handshakes_of(captured(talk.frames))

    assert qpns(found) == [(0x87, 0x53), (0x88, 0x54)]
    assert found[0].one == Party("10.0.0.1", 0x87, 1, max_reads=8)
    assert found[0].other == Party("10.0.0.2", 0x53, 2, max_reads=16)
    assert found[0].mtu == 1024


@pytest.mark.parametrize(
    "line",
    [
        b"0000:000087:130038:00003e33:0000560ef7d13000\0",
        b"0000:0001:000087:130038:00003e33:0000560ef7d13000\0",
        b"0000:0001:000087:130038:00003e33:0000560ef7d13000:00000000\0",
    ],
    ids=("perftest 1", "perftest 2 to 4", "perftest 5"),
)
def test_lines_of_older_programs_without_a_gid_are_read(line: bytes) -> None:
    [found] = handshakes_of(captured(Talk().begin().say(0, line).say(1, line).frames))

    assert found.one == Party("10.0.0.1", 0x87, 0x130038, found.one.max_reads)


@each_case(
    ("gid", "lid", "address"),
    [
        (0, 0, "10.0.0.1"),
        (0xFFFF_0A4D0001, 0, "10.77.0.1"),
        (0xFE80 << 112 | 1, 0, "fe80::1"),
        (0, 12, "LID 12"),
        (0xFE80 << 112 | 1, 12, "fe80::1"),
    ],
)
def test_a_gid_or_else_a_lid_names_the_address(gid: int, lid: int, address: str) -> None:
    talk = Talk().begin().say(0, pingpong(1, 0, gid, lid)).say(1, pingpong(2))

    [found] = handshakes_of(captured(talk.frames))

    assert (found.one.address, found.other.address) == (address, "10.0.0.2")


def test_programs_may_talk_over_ipv6() -> None:
    talk = Talk(six=True).begin().say(0, pingpong(1)).say(1, pingpong(2))

    [found] = handshakes_of(captured(talk.frames))

    assert (found.one.address, found.other.address) == ("2001:db8::1", "2001:db8::2")


def test_a_segment_that_is_sent_again_says_nothing_new() -> None:
    talk = Talk().begin().say(0, pingpong(1)).say(1, pingpong(2))
    talk.frames += talk.frames[-2:]
    talk.say(0, pingpong(3)).say(1, pingpong(4))

    assert qpns(handshakes_of(captured(talk.frames))) == [(1, 2), (3, 4)]


def test_after_a_gap_no_line_is_believed_to_answer_another() -> None:
    talk = Talk().begin().say(0, pingpong(1)).say(1, pingpong(2))
    talk.skip(0, pingpong(3)).say(0, pingpong(5)).say(1, pingpong(4)).say(1, pingpong(6))

    assert qpns(handshakes_of(captured(talk.frames))) == [(1, 2)]


def test_ports_may_be_used_again() -> None:
    first = Talk().begin().say(0, pingpong(1)).say(1, pingpong(2)).say(0, pingpong(3))
    second = Talk()
    second.next = [77, 99]
    second.begin().say(0, pingpong(5)).say(1, pingpong(6))
    third = Talk()
    third.next = [0x50000000, 0x60000000]
    third.say(0, pingpong(7)).say(1, pingpong(8))

    found = handshakes_of(captured(first.frames + second.frames + third.frames))

    assert qpns(found) == [(1, 2), (5, 6), (7, 8)]


def test_a_capture_that_begins_between_line_and_answer_joins_no_strangers() -> None:
    talk = Talk().skip(0, perftest(1)).say(1, perftest(2)).say(0, perftest(3)).say(1, perftest(4))

    assert qpns(handshakes_of(captured(talk.frames))) == [(3, 4)]


def test_a_capture_that_begins_among_the_lines_of_one_end_joins_no_strangers() -> None:
    """srq_pingpong: each end sends all its lines at once, which are filled up to 256."""
    for seen in range(4):
        talk = Talk().skip(0, pingpong(1) + pingpong(2))
        talk.say(0, b"".join([pingpong(3), pingpong(4), pingpong(0), pingpong(0)][seen:]))
        talk.say(1, b"".join(map(pingpong, (5, 6, 7, 8, 0, 0))))

        assert handshakes_of(captured(talk.frames)) == []


def test_lines_cut_by_the_capture_still_say_queue_pair_and_psn() -> None:
    talk = Talk().begin().say(0, perftest(1, 5)).say(1, perftest(2, 6))
    talk.say(0, perftest(3, 7)).say(1, perftest(4, 8))

    found = handshakes_of(captured(talk.frames, snaplen=128))

    assert qpns(found) == [(1, 2), (3, 4)]
    assert [(each.one.psn, each.other.psn) for each in found] == [(5, 6), (7, 8)]


def test_lines_hidden_behind_a_cut_break_the_order() -> None:
    talk = Talk().begin().say(0, perftest(1) + perftest(3)).say(1, perftest(2))
    talk.say(0, perftest(5)).say(1, perftest(4))

    assert qpns(handshakes_of(captured(talk.frames, snaplen=128))) == [(1, 2)]


@each_case(
    "text",
    [
        b'{"qpn": 16777216, "psn": 1}\n',
        b'{"qpn": "1", "psn": 1}\n',
        b'{"qpn": 1}\n',
        b'{"qpn": 1, "psn": 1, "gid": "1:2:3"}\n',
        b'{"qpn": 1, "psn": 999999999999999999999}\n',
        b"0000:00006g:126402:00000000000000000000000000000000\0",
        b"0000:000000:000000:00000000000000000000000000000000\0",
        b"0000:00006a:126402:0000000000000000\0",
    ],
)
def test_what_only_looks_like_a_line_is_none(text: bytes) -> None:
    assert handshakes_of(captured(Talk().begin().say(0, text).say(1, text).frames)) == []
