"""What perftest's programs tell each other, against what they have said in captures."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from each_case import each_case
from ibwire.base.errors import PeerError
from ibwire.capture.reader import open_capture
from ibwire.programs.perftest import (
    DONE,
    Layout,
    Record,
    Report,
    Step,
    Verb,
    Version,
    pack_mtu,
    pack_number,
    step_order,
    unpack_mtu,
    unpack_number,
)
from ibwire.rc.device import gid_of

CAPTURES = Path(__file__).parents[2] / "captures"

ETHERNET = 14
PORT = 18515

SIZES = {Step.ALL: [108], Step.ONE: [108], Step.REPORT: [8] * 5, Step.DONE: [5]}
BEGINNING = [16, 4, 4, 2]


@cache
def said(name: str) -> tuple[list[bytes], list[bytes]]:
    """What client and server have said in a capture, one entry for each TCP segment."""
    client: list[bytes] = []
    server: list[bytes] = []
    with open_capture(str(CAPTURES / name)) as capture:
        for record in capture.records():
            packet = bytes(record.data)[ETHERNET:]
            if packet[0] >> 4 == 4:
                head, protocol = (packet[0] & 15) * 4, packet[9]
                end = int.from_bytes(packet[2:4])
            else:
                head, protocol, end = 40, packet[6], 40 + int.from_bytes(packet[4:6])
            if protocol != 6:
                continue
            segment = packet[head:end]
            payload = segment[(segment[12] >> 4) * 4 :]
            if payload:
                (client if int.from_bytes(segment[2:4]) == PORT else server).append(payload)
    return client, server


NAMES = ["send-lat.pcap", "read-bw-ipv6.pcap", "uc-write-bw.pcap"]


@pytest.mark.parametrize("name", NAMES)
def test_every_step_of_the_tools_is_understood_and_said_alike(name: str) -> None:
    for side in said(name):
        assert Version.unpack(side[0]) == Version("6.06", is_ibwire=False)
        assert Version("6.06", is_ibwire=False).pack() == side[0]
        assert [pack_number(4096), pack_number(64)] == side[1:3]
        assert pack_mtu(unpack_mtu(side[3])) == side[3]
        records = [each for each in side if len(each) == Record.TEXT_SIZE]
        assert records
        for record in records:
            assert Record.unpack_text(record).pack_text() == record


def test_record_of_a_reader_over_ipv6() -> None:
    """`0000:0008:00008b:3f3b1a:000041a5:00000564fc9ba300...`, from the client's option -o 8."""
    record = Record.unpack_text(said("read-bw-ipv6.pcap")[0][4])

    assert record.qpn == 0x8B
    assert record.psn == 0x3F3B1A
    assert record.gid == gid_of("fd77::1")
    assert record.rkey == 0x41A5
    assert record.vaddr == 0x564FC9BA3000
    assert record.out_reads == 8


@pytest.mark.parametrize(
    ("name", "test", "latency"),
    [
        ("send-lat.pcap", Verb.SEND, True),
        ("read-bw-ipv6.pcap", Verb.READ, False),
        ("uc-write-bw.pcap", Verb.WRITE, False),
    ],
)
def test_course_is_that_of_the_capture(name: str, test: Verb, latency: bool) -> None:
    sizes = [len(each) for each in said(name)[0]]

    assert sizes == BEGINNING + sizes_of(test, latency=latency)


@each_case(
    ("test", "latency", "both", "qps", "sizes"),
    [
        # Of the client in captures that are too large for this repository: write-bw-2qp,
        # write-lat, read-lat, atomic-faa, ud-send-bw.
        (Verb.WRITE, False, True, 2, [108] * 6 + [8] * 5 + [108, 5]),
        (Verb.WRITE, True, False, 1, [108] * 4),
        (Verb.READ, True, False, 1, [108] * 5 + [5]),
        (Verb.ATOMIC, False, False, 1, [108] * 4 + [8] * 5 + [108, 5]),
        (Verb.SEND, False, False, 1, [108] * 5 + [5]),
    ],
)
def test_courses_of_other_tests(
    test: Verb, latency: bool, both: bool, qps: int, sizes: list[int]
) -> None:
    assert sizes_of(test, latency=latency, both=both, qps=qps) == sizes


def sizes_of(test: Verb, *, latency: bool, both: bool = False, qps: int = 1) -> list[int]:
    steps = step_order(test, latency=latency, both=both)
    return [
        size
        for step in (*steps.before, *steps.after)
        for size in SIZES[step] * (qps if step is Step.ALL else 1)
    ]


def test_last_word_is_that_of_the_tools() -> None:
    assert said("send-lat.pcap")[0][-1] == said("send-lat.pcap")[1][-1] == DONE


def test_report_of_a_client_is_read() -> None:
    """20 READs of 3000 bytes (`ib_read_bw -n 20 -s 3000`)."""
    numbers = [each for each in said("read-bw-ipv6.pcap")[0] if len(each) == 8]
    report = Report.unpack(numbers)

    assert (report.size, report.messages) == (3000, 20)
    # 0x40079f4f90087376 and 0x3f50e8d5557a6856 as numbers of IEEE 754.
    assert report.peak_mib_per_s == pytest.approx(2.952788)
    assert report.rate_mpps == pytest.approx(0.00103207, abs=1e-8)
    assert report.average_mib_per_s == pytest.approx(report.rate_mpps * 1e6 * 3000 / 2**20)
    assert report.pack() == numbers


def test_report_of_no_numbers_is_refused() -> None:
    nan, negative = bytes.fromhex("7ff8000000000000"), bytes.fromhex("bff0000000000000")
    for wrong in (nan, negative):
        with pytest.raises(PeerError, match="invalid report"):
            Report.unpack([bytes(8), bytes(8), bytes(8), wrong, bytes(8)])


def test_both_directions_add_up_and_messages_count_once() -> None:
    total = Report(64, 10, 3.0, 2.0, 1.0).plus(Report(64, 10, 0.5, 0.25, 0.125))

    assert total == Report(64, 10, 3.5, 2.25, 1.125)


BINARY = bytes.fromhex(
    "00000000 00000001 0000009a 00fa164c 00000000 00000000 000055c54b5d6000"
    "00000000000000000000ffff0a4d0001 00000000 00000001"
)
"""Packet 31 of the capture cm-send-bw-tos: LID, reads, QPN, PSN, R_Key, a gap, address, GID, SRQ,
index of the GID."""


def test_binary_record_is_that_of_the_capture() -> None:
    record = Record.unpack_binary(BINARY)

    assert record == Record(0x9A, 0xFA164C, gid_of("10.77.0.1"), vaddr=0x55C54B5D6000)
    # We have no index of the GID to send, and no peer needs it.
    assert record.pack_binary() == BINARY[:-1] + b"\0"


def test_ibwire_is_told_by_what_the_tools_do_not_read() -> None:
    """atof() of the tools ends at the NUL."""
    ours = Version().pack()

    assert len(ours) == 16
    assert ours.partition(b"\0")[0] == said("send-lat.pcap")[0][0].rstrip(b"\0")
    assert Version.unpack(ours).is_ibwire


@each_case(
    ("data", "reason"),
    [
        (b"5.60".ljust(16, b"\0"), "version 5.60; version 5.70 or newer is required"),
        (b"GET / HTTP/1.1\r\n", "not a program of perftest"),
        (bytes(16), "not a program of perftest"),
        (b"nan".ljust(16, b"\0"), "not a program of perftest"),
        (b"1e9".ljust(16, b"\0"), "not a program of perftest"),
        (b"\xff" * 16, "not a program of perftest"),
    ],
)
def test_version_that_is_none_or_too_old_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(PeerError, match=reason):
        Version.unpack(data)


TEXT = Record(1, 2, 3).pack_text()


@each_case(
    "data",
    [
        b"\0" * 108,
        TEXT[:-1] + b"x",
        TEXT.replace(b"000001", b"00000g"),
        TEXT.replace(b"000001", b"-00001"),
        TEXT.replace(b":00:00:00", b":0:000:00"),
        TEXT.upper().replace(b"0", b"\xff"),
    ],
)
def test_text_that_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(PeerError, match="not a record of a queue pair"):
        Record.unpack_text(data)


def test_binary_number_with_more_than_24_bits_is_refused() -> None:
    for start in (8, 12):
        wrong = BINARY[:start] + b"\x01" + BINARY[start + 1 :]
        with pytest.raises(PeerError, match="not a record of a queue pair"):
            Record.unpack_binary(wrong)


@each_case("data", [b"0\0", b"6\0", b"33", b"\0\0", b"3 ", b"-1"])
def test_path_mtu_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(PeerError, match="path MTU code"):
        unpack_mtu(data)


@pytest.mark.parametrize("number", [0, 65537, 0x80000000, 0xFFFFFFFF])
def test_buffer_sizes_of_no_machine_are_refused(number: int) -> None:
    """What the peer says here decides how much memory we take."""
    with pytest.raises(PeerError, match=f"cycle buffer: {number} bytes, expected 1 to 65536"):
        unpack_number(number.to_bytes(4), "cycle buffer", 65536)


@each_case(
    ("size", "step", "places"),
    [
        # By hand, from a page of 4096 bytes and lines of 64.
        (1, 64, 64),
        (64, 64, 64),
        (65, 128, 32),
        (100, 128, 32),
        (129, 192, 21),
        (2048, 2048, 2),
        (2049, 2112, 1),
        (3000, 3008, 1),
        (65536, 65536, 1),
    ],
)
def test_places_of_messages(size: int, step: int, places: int) -> None:
    layout = Layout(size)

    assert (layout.step, layout.places) == (step, places)
    assert layout.length == max(size, 4096)
