"""The tree of a packet explains every byte once, whatever the bytes are."""

import re
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from capture.handmade import pcap_header, pcap_record
from each_case import each_case
from examples import sampled, scaled
from ibwire.base.errors import DecodeError
from ibwire.base.node import Frame
from ibwire.capture import open_capture
from ibwire.cli import main
from ibwire.report.tree import render
from ibwire_layers.construct import describe
from ibwire_layers.outer import LinkType
from shipped_captures import each_capture
from vectors import LINK_PACKET, load

CAPTURES = Path(__file__).parents[2] / "captures"
LINK_TYPES = [int(member) for member in LinkType]
NESTED = "RDMA IP CM private data"
"""The one part inside another: it explains the private data of a CM message."""

GOLDEN = [v for v in load() if v.link_type != LINK_PACKET]

PART = re.compile(r"^(\S.*), bytes (\d+)-(\d+)(?:  \[.+\])?$")


def tree_of(lines: Any) -> Any:
    """(title, first byte, byte after the last) of each part."""
    found = map(PART.match, lines[: lines.index("")])
    return [(m[1], int(m[2]), int(m[3]) + 1) for m in found if m]


def assert_covers_once(frame: Frame, link_type: int) -> Any:
    lines = list(render(frame, link_type))
    position = 0
    for title, start, stop in tree_of(lines):
        if title == NESTED:
            assert stop <= position
            continue
        assert (title, start) == (title, position)
        position = stop
    assert position == len(frame)
    return lines


def assert_dump_repeats(lines: Any, frame: Frame) -> None:
    """The bytes below the tree are the frame's, each at its offset."""
    seen = set()
    for line in lines[lines.index("") + 1 :]:
        match = re.match(r"^(?:\S+ *| +) ([0-9a-f]{4})  (.{47}) ", line)
        assert match, line
        start, raw = int(match[1], 16), bytes.fromhex(match[2])
        assert frame[start : start + len(raw)] == raw
        seen |= set(range(start, start + len(raw)))
    assert seen == set(range(len(frame)))


@pytest.mark.slow
@each_capture
def test_parts_cover_every_byte_of_every_shipped_packet_once(path: Path) -> None:
    with open_capture(path) as reader:
        for record in reader.records():
            lines = assert_covers_once(record.data, record.link_type)
            assert_dump_repeats(lines, record.data)


@each_case("vector", sampled(GOLDEN, 4), ids=str)
def test_parts_cover_every_byte_of_every_golden_frame_once(vector: Any) -> None:
    lines = assert_covers_once(vector.frame, vector.link_type)

    assert_dump_repeats(lines, vector.frame)


def test_the_widths_of_the_fields_of_a_header_sum_up_to_its_size() -> None:
    vector = next(v for v in GOLDEN if v.name == "cm_req_rdmacm_v4")
    lines = list(render(vector.frame, vector.link_type))
    lines = lines[: lines.index("")]

    sums: dict[tuple[str, int, int], int] = {}
    part = ("", 0, 0)
    for line in lines:
        if match := PART.match(line):
            part = (match[1], int(match[2]), int(match[3]) + 1)
        elif match := re.match(r"^ +\d+:\d +(\d+) ", line):
            sums[part] = sums.get(part, 0) + int(match[1])
    assert len(sums) == 8  # Ethernet, IPv4, UDP, BTH, DETH, MAD, REQ, its addresses
    assert {part: bits / 8 for part, bits in sums.items()} == {
        part: part[2] - part[1] for part in sums
    }


# A whole golden frame, cut and with some bytes changed.
mutated = st.builds(
    lambda vector, cut, changes: (_changed(vector.frame, cut, changes), vector.link_type),
    st.sampled_from(GOLDEN),
    st.integers(0, 400),
    st.lists(st.tuples(st.integers(0, 399), st.integers(0, 255)), max_size=6),
)
anything = st.tuples(st.binary(max_size=200), st.sampled_from([*LINK_TYPES, 147]))


def _changed(frame: Frame, cut: Any, changes: Any) -> bytes:
    data = bytearray(frame)
    for position, value in changes:
        data[position % len(data)] = value
    return bytes(data[: max(len(data) - cut, 0)] if cut < 200 else data)


@settings(max_examples=scaled(300), deadline=None)
@given(mutated | anything)
def test_whatever_the_bytes_the_parts_cover_them_once(case: Any) -> None:
    frame, link_type = case

    assert_covers_once(frame, link_type)


@settings(max_examples=scaled(100), deadline=None)
@given(mutated | anything, st.integers(0, 2000))
def test_a_frame_that_was_cut_is_shown_as_far_as_it_goes(case: Any, missing: int) -> None:
    frame, link_type = case

    assert_covers_once(frame[: max(0, len(frame) - missing)], link_type)


@settings(max_examples=scaled(200), deadline=None)
@given(mutated | anything)
def test_the_construct_view_raises_nothing_but_decode_errors(case: Any) -> None:
    frame, link_type = case
    with suppress(DecodeError):
        assert str(describe(frame, link_type))


@pytest.mark.slow
@settings(max_examples=scaled(100), deadline=None)
@given(mutated | anything)
def test_the_scapy_view_of_anything_is_shown_or_refused(case: Any) -> None:
    frame, link_type = case
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "one.pcap")
        path.write_bytes(pcap_header(link_type=link_type) + pcap_record(frame))
        result = CliRunner().invoke(main, ["show", "--scapy", str(path), "1"])

    assert isinstance(result.exception, SystemExit | None)
    assert bool(result.stdout) == (result.exit_code == 0)
