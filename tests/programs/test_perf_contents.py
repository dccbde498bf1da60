"""How the contents of messages are verified that perftest, or ibwire, has sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from each_case import each_case
from ibwire.capture.reader import open_capture
from ibwire.programs.perf_contents import (
    RandomRun,
    is_random_run,
    pieces_kept,
    pieces_sent,
)
from ibwire.programs.perftest import Layout, Record

CAPTURES = Path(__file__).parents[2] / "captures"

HEADERS = {4: 14 + 20 + 8, 6: 14 + 40 + 8}
BTH, RETH, AETH, ICRC = 12, 16, 4, 4

# Opcodes with payload, and the bytes of headers behind the BTH: SEND_ONLY of RC; FIRST, MIDDLE,
# LAST and ONLY of READ responses; FIRST, MIDDLE, LAST of UC WRITEs.
PAYLOADS = {
    "send-lat.pcap": {0x04: 0},
    "read-bw-ipv6.pcap": {0x0D: AETH, 0x0E: 0, 0x0F: AETH},
    "uc-write-bw.pcap": {0x26: RETH, 0x27: 0, 0x28: 0},
}


def payloads(name: str) -> list[bytes]:
    found = []
    with open_capture(str(CAPTURES / name)) as capture:
        for record in capture.records():
            frame = bytes(record.data)
            start = HEADERS.get(frame[14] >> 4, 0)
            if not start or frame[start - 6 : start - 4] != (4791).to_bytes(2):
                continue
            head = PAYLOADS[name].get(frame[start])
            if head is not None:
                padding = frame[start + 1] >> 4 & 3
                found.append(frame[start + BTH + head : len(frame) - ICRC - padding])
    return found


@pytest.mark.parametrize("name", list(PAYLOADS))
def test_all_that_perftest_has_sent_are_runs_of_rand(name: str) -> None:
    rows = payloads(name)

    assert len(rows) > 20
    assert min(map(len, rows)) >= 64
    assert all(map(is_random_run, rows))


@pytest.mark.parametrize("name", list(PAYLOADS))
def test_one_wrong_byte_of_them_is_found(name: str) -> None:
    """A change by more than one cannot be a carry."""
    row = bytearray(payloads(name)[0])
    for place in (0, len(row) // 2, len(row) - 1):
        row[place] ^= 0x40
        assert not is_random_run(bytes(row))
        row[place] ^= 0x40
    assert is_random_run(bytes(row))


def test_first_outputs_of_rand_are_a_run() -> None:
    """srand(1) of glibc 2.36: 1804289383, 846930886, 1681692777, ... (rand(3) on Debian 12)."""
    # fmt: off
    numbers = [
        1804289383, 846930886, 1681692777, 1714636915, 1957747793, 424238335, 719885386,
        1649760492, 596516649, 1189641421, 1025202362, 1350490027, 783368690, 1102520059,
        2044897763, 1967513926, 1365180540, 1540383426, 304089172, 1303455736, 35005211,
        521595368, 294702567, 1726956429, 336465782, 861021530, 278722862, 233665123,
        2145174067, 468703135, 1101513929, 1801979802, 1315634022, 635723058, 1369133069,
        1125898167, 1059961393, 2089018456, 628175011, 1656478042,
    ]
    # fmt: on
    row = bytes(number & 0xFF for number in numbers)

    assert is_random_run(row)
    assert not is_random_run(row[:35] + row[36:] + b"\0")


def test_other_rows_are_no_runs() -> None:
    assert not is_random_run(bytes(range(100)))
    assert not is_random_run(b"\x55" * 100)


def test_steady_place_must_hold_the_same_each_time() -> None:
    first, second = payloads("read-bw-ipv6.pcap")[0], payloads("send-lat.pcap")[0]
    layout = Layout(len(first))
    contents = RandomRun(layout, steady=True)
    again = layout.places

    assert contents.fits(0, memoryview(first))
    assert contents.fits(again, memoryview(first))
    assert not contents.fits(2 * again, memoryview(first[:-1] + b"\0"))
    assert not contents.fits(3 * again, memoryview(second))
    assert contents.how == "as runs of glibc's rand() and the same each time"


def test_message_that_is_no_run_after_one_that_was_is_wrong() -> None:
    row = payloads("send-lat.pcap")[0]
    contents = RandomRun(Layout(len(row)), steady=False)

    assert contents.fits(0, memoryview(row))
    assert not contents.fits(1, memoryview(bytes(len(row) - 1) + b"\x07"))
    assert contents.how == "as runs of glibc's rand()"


def test_contents_of_another_generator_are_said_to_be_unknown() -> None:
    contents = RandomRun(Layout(100), steady=False)

    assert contents.fits(0, memoryview(bytes(range(100))))
    assert contents.fits(1, memoryview(bytes(range(1, 101))))
    assert "by length only" in contents.how


def test_messages_that_are_too_short_are_said_to_be_unknown() -> None:
    assert "too short" in RandomRun(Layout(31), steady=False).how
    assert RandomRun(Layout(31), steady=True).how == "equal each time"


RECORD = Record(qpn=0x17, psn=0x123456, gid=0)


@each_case("size", [1, 64, 100, 2048, 5000])
def test_pieces_that_ibwire_sends_follow_from_the_record(size: int) -> None:
    ours, theirs = (pieces_sent(RECORD, Layout(size)) for _ in range(2))

    for number in (0, 1, len(ours.offsets) - 1, len(ours.offsets), 1000):
        start = ours.offsets[number % len(ours.offsets)]
        assert theirs.fits(number, memoryview(ours.row[start : start + size]))


def test_no_piece_stands_for_another_of_its_round() -> None:
    pieces = pieces_sent(RECORD, Layout(100))
    rows = {pieces.row[start : start + 100] for start in pieces.offsets}

    assert len(rows) == len(pieces.offsets) >= 128


@each_case("size", [1, 100, 130, 700, 2048, 2049])
def test_each_piece_belongs_to_one_place(size: int) -> None:
    layout = Layout(size)
    pieces = pieces_sent(RECORD, layout)

    assert len(pieces.offsets) % layout.places == 0
    for number in (0, 5, len(pieces.offsets) + 1):
        start = pieces.offsets[number % len(pieces.offsets)]
        data = memoryview(pieces.row[start : start + size])
        if size > 16:
            assert [
                place for place in range(layout.places) if pieces.holds(place, layout.places, data)
            ] == [number % layout.places]


def test_places_of_memory_that_ibwire_lets_its_peer_read() -> None:
    layout = Layout(100)
    kept = pieces_kept(RECORD, layout)

    assert len(kept.row) == 4096
    assert kept.fits(0, memoryview(kept.row[:100]))
    assert kept.fits(33, memoryview(kept.row[128:228]))
    assert not kept.fits(1, memoryview(kept.row[:100]))
