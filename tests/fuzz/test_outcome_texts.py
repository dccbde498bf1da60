"""What is printed about a finding: its steps, and where what is expected and received differs."""

from __future__ import annotations

from pathlib import Path

import pytest

from ibwire.base.quantities import parse_duration
from ibwire.base.units import NS, US, S
from ibwire.fuzz.case import Case, Connection, Packet, Post, Wait, step_text
from ibwire.fuzz.judge.comparison import Difference, Kind
from ibwire.fuzz.judge.findings import Finding
from ibwire.fuzz.recording import Recording, record
from ibwire.fuzz.report_text import SHOWN_STEPS, case_lines, finding_lines
from ibwire.fuzz.targets.emulator import target
from ibwire.rc.work import WROpcode
from ibwire_layers.opcodes import OpCode

TABLE = """
[[mutant]]
name = "every-packet-repeats-its-first-eight-bytes"
[[mutant.patch]]
module = "rc/requester.py"
old = "        packet = TransportPacket(form, psn, payload)"
new = '''
        payload = payload[:8] * (len(payload) // 8)
        packet = TransportPacket(form, psn, payload)'''
"""


def test_other_data_is_shown_from_where_it_differs(tmp_path: Path) -> None:
    (tmp_path / "table.toml").write_text(TABLE, encoding="utf-8")
    mutant = f"{tmp_path / 'table.toml'}:every-packet-repeats-its-first-eight-bytes"
    steps = (Post(int(WROpcode.SEND), 512),)

    recording = record(Case(Connection(), steps), target(f"py:mutants.target:{mutant}"))

    expected, got = (each[0] for each in (recording.expected, recording.got))
    before, _, due = expected.partition(": ")
    assert before == "SEND_FIRST psn (500) len=256 ack data from byte 8"
    assert got.startswith(f"{before}: ")
    assert due != got.removeprefix(f"{before}: ")
    assert len(bytes.fromhex(due)) == 8


def test_equal_steps_are_one_line_before_the_first_ones_are_cut() -> None:
    posts = [Post(int(WROpcode.SEND)), *[Post(int(WROpcode.SEND), 8)] * 40]

    assert list(case_lines(Case(Connection(), tuple(posts)))) == [
        "       1    post SEND len=0",
        "       2    post SEND len=8   40 times",
    ]


def test_steps_that_are_cut_are_counted_one_by_one() -> None:
    steps = [*[Wait(S)] * 3, *(Wait(each * US) for each in range(1, SHOWN_STEPS + 1))]

    lines = list(case_lines(Case(Connection(), tuple(steps))))

    assert lines[0] == "            ... 3 steps before"
    assert lines[1] == "       4    wait 1 us"
    assert len(lines) == 1 + SHOWN_STEPS


def test_of_a_case_without_packets_it_is_not_said_how_many_are_left() -> None:
    send = Packet(int(OpCode.RC_SEND_ONLY))
    case = Case(Connection(), (Post(int(WROpcode.SEND)),))
    finding = Finding(
        1,
        "Any.",
        case,
        case.with_steps((*case.steps, send)),
        Difference(0, Kind.TIME, [], []),
        1,
        "",
    )

    lines = list(finding_lines(finding, Recording([], None, [], [])))

    assert not any("minimised" in line for line in lines)


def test_keys_are_written_as_keys() -> None:
    fields = {"bth.pkey": 32767, "bth.tver": 12}

    assert step_text(Packet(int(OpCode.RC_SEND_ONLY), fields=fields)).endswith(
        "bth.pkey=0x7fff bth.tver=12"
    )


@pytest.mark.parametrize(
    ("time", "text"),
    [
        (0, "0 ns"),
        (4096 * NS, "4.096 us"),
        (30 * S, "30 s"),
        (6442450944 * NS, "6.442450944 s"),
        (10**12 + 1, "1.000000000001 s"),
    ],
)
def test_times_are_exact_in_the_unit_that_suits_them(time: int, text: str) -> None:
    assert step_text(Wait(time)) == f"wait {text}"
    assert parse_duration(text) == time
