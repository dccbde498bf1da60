"""The listing: one line a packet, whatever is asked for."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capture.handmade import pcap_header, pcap_record
from examples import scaled
from ibwire.base.node import Frame
from ibwire.dissect import read
from ibwire.report.listing import Listing
from ibwire_layers.outer import LinkType
from shipped_captures import each_capture
from vectors import ETHERNET, INFINIBAND, LINK_PACKET, load

CAPTURES = Path(__file__).parents[2] / "captures"
VECTORS = {vector.name: vector for vector in load()}


def listed(path: Path) -> Any:
    listing = Listing()
    return [
        line for c in read(path) for line in listing.lines(c, np.arange(c.rows, dtype=np.int64))
    ]


def line_of(tmp_path: Path, frame: Frame, link_type: int = ETHERNET) -> Any:
    path = tmp_path / "one.pcap"
    path.write_bytes(pcap_header(link_type=link_type) + pcap_record(frame))
    (line,) = listed(path)
    return line


@each_capture
def test_every_packet_has_one_line_with_its_number_and_length(path: Path) -> None:
    lines = listed(path)

    lengths = [n for c in read(path) for n in c["frame.len"].tolist()]
    assert [int(line.split()[0]) for line in lines] == list(range(1, len(lengths) + 1))
    assert all(f"len={n}" in line.split() for line, n in zip(lines, lengths, strict=True))


def test_time_counts_from_the_first_packet_of_the_capture() -> None:
    lines = listed(CAPTURES / "rcx-all-ops.pcap")

    # tshark: frame.time_relative
    assert lines[0].split()[1] == "0.000000000"
    assert lines[15].split()[1] == "0.243003000"


def test_chosen_rows_have_the_lines_they_have_among_all() -> None:
    path = CAPTURES / "probe-odd-frames.pcap"
    (columns,) = read(path)
    rows = np.array([3, 17, 100, 203])

    chosen = Listing().lines(columns, rows)

    every = Listing().lines(columns, np.arange(columns.rows))
    assert [line.split() for line in chosen] == [every[row].split() for row in rows]


def test_no_rows_no_lines() -> None:
    (columns,) = read(CAPTURES / "rcx-all-ops.pcap")

    assert Listing().lines(columns, np.arange(0)) == []


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("v2_ack_nak_psn_sequence", ["RC_ACKNOWLEDGE", "NAK PSN_SEQUENCE_ERROR"]),
        ("v2_ack_rnr_nak_655ms", ["RNR NAK", "wait=655.36ms"]),
        ("v2_rc_fetch_add", ["RC_FETCH_ADD", "rkey=0x4242", "swap=", "compare="]),
        ("v2_rc_send_only_with_invalidate", ["invalidate=0xbadf00d"]),
        ("v2_fecn_ce_marked", [" FECN", " CE"]),
        ("v2_rd_send_first", ["ee=291", "src_qp=0x000456", "qkey=0x11111111"]),
        ("v1_cnp", ["CNP"]),
        ("eth_global_pause_max", ["PAUSE", "time=65535"]),
        ("eth_pfc_xoff_c3", ["PFC", "class3="]),
        ("eth_pfc_xon_c3", ["PFC", "class3=resume"]),
        ("ib_local_rc_write_only", ["lid ", "icrc=good", "vcrc=good"]),
        ("perf_getresp_portcounters", ["PERF", "GET_RESP", "PortCounters"]),
        ("cm_drep", ["CM DREP"]),
    ],
)
def test_a_line_tells_what_the_golden_frame_is(tmp_path: Path, name: str, parts: list[str]) -> None:
    vector = VECTORS[name]

    line = line_of(tmp_path, vector.frame, vector.link_type)

    for part in parts:
        assert part in line


def test_a_vlan_is_named() -> None:
    lines = listed(CAPTURES / "vlan-rc-pingpong.pcap")

    assert sum("vlan=100" in line for line in lines) == 30


def test_marked_packets_are_named() -> None:
    lines = listed(CAPTURES / "ecn-ce.b.pcap")

    assert sum(" CE " in line for line in lines) == 11


def test_link_packets_are_listed(tmp_path: Path) -> None:
    frames = [v.frame for v in VECTORS.values() if v.link_type == LINK_PACKET]
    record = bytes(8) + bytes([25, 4, 0, 22, 0, 0, 0, 6])

    line = line_of(tmp_path, record + frames[0], LinkType.ERF)

    assert "IB LINK op=0 vl=3" in line


@settings(max_examples=scaled(100), deadline=None)
@given(
    st.lists(st.binary(max_size=120), max_size=8),
    st.sampled_from([*map(int, LinkType), 147]),
)
def test_any_bytes_have_a_line(
    tmp_path_factory: pytest.TempPathFactory, frames: list[bytes], link_type: int
) -> None:
    path = tmp_path_factory.mktemp("any") / "any.pcap"
    path.write_bytes(pcap_header(link_type=link_type) + b"".join(map(pcap_record, frames)))

    assert len(listed(path)) == len(frames)


@settings(max_examples=scaled(100), deadline=None)
@given(
    st.sampled_from([v for v in VECTORS.values() if v.link_type in (ETHERNET, INFINIBAND)]),
    st.lists(st.tuples(st.integers(0, 399), st.integers(0, 255)), max_size=6),
    st.integers(0, 400),
)
def test_damaged_frames_have_a_line(
    tmp_path_factory: pytest.TempPathFactory,
    vector: Any,
    changes: list[tuple[int, int]],
    length: int,
) -> None:
    data = bytearray(vector.frame)
    for position, value in changes:
        data[position % len(data)] = value
    path = tmp_path_factory.mktemp("damaged") / "damaged.pcap"
    record = pcap_record(bytes(data[:length]), wire_len=len(data))
    path.write_bytes(pcap_header(link_type=vector.link_type) + record)

    assert len(listed(path)) == 1
