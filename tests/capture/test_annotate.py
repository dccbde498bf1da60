"""A capture written again with comments: what is kept, and where the comments stand."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.handmade import pcap_header, pcap_record
from ibwire.base.errors import CaptureError
from ibwire.capture import PcapngWriter, Record, open_capture, write_capture
from ibwire.capture.annotate import MOST, Comments, annotate

TSHARK = shutil.which("tshark")

PACKETS = [
    Record(1, 1_700_000_000_000_000_001, b"first", 5, 1, interface=0, comments=("was there",)),
    Record(2, 1_700_000_000_000_000_002, b"second", 60, 113, interface=2),
    Record(3, 1_700_000_000_000_000_003, b"third", 5, 1, interface=1),
]


@pytest.fixture
def several(tmp_path: Path) -> Path:
    """Three interfaces, of which the last is used second."""
    path = tmp_path / "several.pcapng"
    with PcapngWriter(path, 1, name="eth0") as writer:
        writer.add_interface(1, "rdma0")
        writer.add_interface(113, "any")
        for record in PACKETS:
            writer.write(
                record.data,
                record.time_ns,
                record.wire_len,
                interface=record.interface,
                comments=record.comments,
            )
    return path


def records(path: Path) -> Any:
    with open_capture(path) as reader:
        return list(reader.records())


def test_comments_stand_at_their_packets_and_all_else_is_kept(
    several: Path, tmp_path: Path
) -> None:
    target = tmp_path / "out.pcapng"

    assert annotate(several, target, [(1, ["one"]), (3, ["two", "three"])]) == 3

    found = records(target)
    assert [record.comments for record in found] == [("was there", "one"), (), ("two", "three")]
    kept = [(r.number, r.time_ns, r.data, r.wire_len, r.link_type, r.interface) for r in found]
    assert kept == [
        (r.number, r.time_ns, r.data, r.wire_len, r.link_type, r.interface) for r in PACKETS
    ]


def test_interfaces_keep_their_names(several: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.pcapng"
    annotate(several, target, [])

    with open_capture(target) as reader:
        assert len(list(reader.records())) == 3
        names = {number: each.name for number, each in reader.interfaces.items()}

    assert names == {0: "eth0", 1: "rdma0", 2: "any"}


def test_a_comment_that_is_there_is_not_added_again(several: Path, tmp_path: Path) -> None:
    annotate(several, tmp_path / "once.pcapng", [(1, ["one"])])
    annotate(tmp_path / "once.pcapng", tmp_path / "twice.pcapng", [(1, ["one"])])

    once, twice = ((tmp_path / f"{name}.pcapng").read_bytes() for name in ("once", "twice"))
    assert once == twice


def test_comments_on_packets_that_are_not_there_are_passed_over(
    several: Path, tmp_path: Path
) -> None:
    target = tmp_path / "out.pcapng"

    annotate(several, target, [(0, ["zero"]), (2, ["two"]), (9, ["nine"])])

    assert [record.comments for record in records(target)] == [("was there",), ("two",), ()]


@pytest.mark.parametrize("suffix", ["pcapng", "pcapng.gz", "pcapng.zst"])
def test_a_pcap_becomes_pcapng_with_its_nanoseconds(
    captures: Path, tmp_path: Path, suffix: str
) -> None:
    source, target = captures / "fmt-pcap-nano.pcap", tmp_path / f"out.{suffix}"

    annotate(source, target, [(5, ["here"])])

    before, after = records(source), records(target)
    assert [r.time_ns for r in after] == [r.time_ns for r in before]
    assert [r.data for r in after] == [r.data for r in before]
    assert after[4].comments == ("here",)


def test_a_capture_without_packets_stays_one(tmp_path: Path) -> None:
    source, target = tmp_path / "in.pcap", tmp_path / "out.pcapng"
    source.write_bytes(pcap_header())

    assert annotate(source, target, [(1, ["one"])]) == 0

    assert records(target) == []


def test_everything_before_damage_is_written(tmp_path: Path) -> None:
    source, target = tmp_path / "in.pcap", tmp_path / "out.pcapng"
    source.write_bytes(pcap_header() + pcap_record(b"whole") + pcap_record(b"cut short")[:-1])

    with pytest.raises(CaptureError, match="the file ends inside record 2"):
        annotate(source, target, [(1, ["one"])])

    (record,) = records(target)
    assert (record.data, record.comments) == (b"whole", ("one",))


def test_a_comment_longer_than_an_option_is_cut_between_characters(
    several: Path, tmp_path: Path
) -> None:
    target = tmp_path / "out.pcapng"

    annotate(several, target, [(2, ["é" * 40_000])])

    assert records(target)[1].comments == ("é" * 32_767,)


def test_unreadable_bytes_of_a_long_comment_do_not_burst_the_option(tmp_path: Path) -> None:
    """Each becomes a replacement character of three bytes when it is read."""
    source, target = tmp_path / "in.pcapng", tmp_path / "out.pcapng"
    write_capture(source, [Record(1, 0, b"x", 1, 1, comments=("?" * 60_000,))])
    source.write_bytes(source.read_bytes().replace(b"?", b"\xff"))

    annotate(source, target, [])

    assert records(target)[0].comments == ("\ufffd" * 21_845,)


@pytest.mark.slow
@pytest.mark.skipif(TSHARK is None, reason="tshark not installed")
def test_tshark_shows_the_comments(captures: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.pcapng"
    annotate(captures / "rcx-all-ops.pcap", target, [(16, ["a WRITE"]), (20, ["one", "two"])])

    fields = ("-T", "fields", "-e", "frame.number", "-e", "frame.comment")
    command = [TSHARK, "-r", target, "-Y", "frame.comment", *fields]
    run = subprocess.run(command, capture_output=True, text=True, check=True)

    assert run.stdout.splitlines() == ["16\ta WRITE", "20\tone,two"]


@given(st.lists(st.tuples(st.integers(1, 12), st.sampled_from("abc")), max_size=MOST))
def test_comments_come_by_packet_in_the_order_they_were_told(told: Any) -> None:
    with Comments() as comments:
        for number, text in told:
            comments.add(number, text)
        found = [(number, text) for number, texts in comments for text in texts]

    assert found == sorted(told, key=lambda pair: pair[0])


def test_a_packet_gets_no_more_comments_than_fit() -> None:
    with Comments() as comments:
        for index in range(10_000):
            comments.add(7, f"comment {index}")
        comments.add(3, "before")
        found = dict(comments)

    assert list(found) == [3, 7]
    assert len(found[7]) == MOST
    assert found[7][0] == "comment 0"
    assert found[7][-1] == f"comment {MOST - 1} (and {10_000 - MOST} more comments)"
