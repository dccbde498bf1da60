"""Keys and PSNs of many frames at once: what `locate`, which reads one by one, says of each."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibwire.base.node import Frame
from ibwire.capture import open_capture
from ibwire.impair.columns import NO_PACKET, UNREAD, WINDOW, read
from ibwire.impair.match import locate
from ibwire_layers.outer import EtherType, LinkType
from strategies import HANDMADE, ROUTE4, ROUTE6, damaged, ethernet, ipv4, packet, vlan

ETHERNET = [each for each in HANDMADE if each.link_type == LinkType.ETHERNET]


def columns_of(frames: Any) -> Any:
    """Keys, PSNs and what is behind, of frames that lie one after the other."""
    data = np.frombuffer(b"".join(frames) + bytes(WINDOW), np.uint8)
    lengths = np.array([len(each) for each in frames], np.int64)
    return read(data, np.cumsum(lengths) - lengths, lengths)


def expected(frame: Frame) -> Any:
    """Key, PSN and the bytes behind the BTH as read by itself; `None` without a packet."""
    at = locate(frame).bth
    if at < 0:
        return None
    key = int.from_bytes(frame[at + 5 : at + 8]) << 8 | frame[at]
    return key, int.from_bytes(frame[at + 9 : at + 12]), frame[at + 12 : at + 16]


def assert_right(frames: Any) -> None:
    for frame, key, psn, behind in zip(frames, *columns_of(frames), strict=True):
        if key == NO_PACKET:
            assert expected(frame) is None
        elif key != UNREAD:
            right_key, right_psn, right_behind = expected(frame)
            assert (key, psn) == (right_key, right_psn)
            assert behind.to_bytes(4)[: len(right_behind)] == right_behind


def test_no_handmade_frame_is_misread() -> None:
    assert_right([each.data for each in ETHERNET])


@given(st.lists(damaged().filter(lambda frame: frame.link_type == LinkType.ETHERNET), min_size=1))
def test_no_damaged_frame_is_misread(frames: Any) -> None:
    assert_right([frame.data for frame in frames])


def usual(route: Any, tag: Any) -> Any:
    frame = packet(route)
    if not tag:
        return frame
    tagged = vlan(frame[14:], int.from_bytes(frame[12:14]))
    return frame[:12] + EtherType.VLAN.to_bytes(2) + tagged


every_usual = pytest.mark.parametrize(
    "frame", [usual(route, tag) for route in (ROUTE4, ROUTE6) for tag in (False, True)]
)


@every_usual
def test_usual_packets_are_read_however_they_are_cut(frame: Frame) -> None:
    """What is behind the end in the buffer is the next frame."""
    for length in range(len(frame)):
        assert_right([frame[:length], frame, frame])


@every_usual
def test_usual_packets_are_read(frame: Frame) -> None:
    found = columns_of([frame, packet(ROUTE4)])

    assert [found.keys[0], found.psns[0]] == list(expected(frame)[:2])
    assert found.keys[1] >= 0


def test_what_carries_no_packet_is_known() -> None:
    frames = [
        ethernet(bytes(46), EtherType.ARP),
        ethernet(ipv4(bytes(40), 6)),
        ethernet(vlan(ipv4(bytes(40), 6)), EtherType.VLAN),
        ethernet(ipv4(bytes(40), 1)),
    ]

    assert columns_of(frames).keys == [NO_PACKET] * 4


def test_every_packet_of_a_capture_is_read(captures: Path) -> None:
    with open_capture(captures / "rcx-all-ops.pcap") as capture:
        frames = [record.data for record in capture.records()]

    found = columns_of(frames)

    assert UNREAD not in found.keys
    assert_right(frames)
    assert sum(key >= 0 for key in found.keys) == sum(expected(each) is not None for each in frames)
