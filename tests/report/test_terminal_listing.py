"""The listing on a terminal: every packet has one line, and the line fits."""

import re
from pathlib import Path

import numpy as np
import pytest

from each_case import each_case
from ibwire.dissect import read
from ibwire.report.terminal_listing import Line, TerminalListing

CAPTURES = Path(__file__).parents[2] / "captures"


def listed(name: str, width: int = 80) -> list[Line]:
    listing = TerminalListing(width)
    return [
        line
        for columns in read(CAPTURES / name)
        for line in listing.coloured(columns, np.arange(columns.rows))
    ]


@each_case("width", [40, 80, 300])
@each_case("name", ["probe-odd-frames.pcap", "chaos.a.pcap", "rcx-ipv6.pcap"])
def test_each_packet_has_one_line_that_fits(name: str, width: int) -> None:
    lines = listed(name, width)

    frames = sum(columns.rows for columns in read(CAPTURES / name))
    assert [int(line.text.split()[0]) for line in lines] == list(range(1, frames + 1))
    assert max(len(line.text) for line in lines) <= width


def test_lines_fit_whatever_the_width() -> None:
    for width in range(60, 180, 7):
        assert max(len(line.text) for line in listed("cm-rping.pcap", width)) <= width


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_line_is_cut_only_where_it_is_too_long(more: int) -> None:
    (line, *_) = listed("drop-one-middle.a.pcap", 1000)
    width = len(line.text) + more

    (cut, *_) = listed("drop-one-middle.a.pcap", width)
    assert len(cut.text) == min(len(line.text), width)
    assert cut.text.endswith("…") == (more < 0)


def test_line_of_80_columns_has_what_matters() -> None:
    """tshark: frame.time_relative, ip.src, aeth.syndrome, bth.psn of packet 20."""
    line = listed("drop-one-middle.a.pcap")[19]

    assert line.text.startswith(
        "   20 0.318254  10.77.0.2 > 10.77.0.1  NAK SEQUENCE       psn=103      qp=0xb8"
    )
    assert line.colour == "red"


def test_wide_terminal_shows_every_detail() -> None:
    """tshark: reth, frame.len of packet 16."""
    line = listed("rcx-all-ops.pcap", 200)[15]

    assert "WRITE_FIRST        psn=4099     qp=0x66 va=0x2a2a5000 rkey=0x4fdd dmalen=5000" in (
        line.text
    )
    assert line.text.endswith(" len=1098")


def test_wrong_icrc_is_seen_at_80_columns() -> None:
    """The driver corrupted 3 % of the packets: *.wire.json of this capture."""
    lines = listed("corrupt-both-3pc.b.pcap")

    bad = [line for line in lines if "icrc=bad" in line.text]
    statuses = [n for c in read(CAPTURES / "corrupt-both-3pc.b.pcap") for n in c["icrc.status"]]
    assert len(bad) == statuses.count(1) > 0
    assert {line.colour for line in bad} == {"red"}


def test_congestion_and_waits_have_colours() -> None:
    marks = [line for line in listed("ecn-ce.b.pcap", 200) if re.search(r" CE\b", line.text)]
    waits = [line for line in listed("rnr-late-recv.pcap") if "RNR NAK" in line.text]

    assert {line.colour for line in marks} == {"cyan"}
    assert {line.colour for line in waits} == {"yellow"}
