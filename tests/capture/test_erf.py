"""ERF records: the layout of Endace, and that the time survives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibwire.base.errors import EncodeError
from ibwire.capture.erf import MAXIMUM_FRAME, erf_record


def test_record_has_little_endian_time_and_big_endian_lengths() -> None:
    """1.5 s is 0x1_8000_0000 in units of 2^-32 s; type 21, flags 4 as tools write them."""
    record = erf_record(bytes(0x122), 1_500_000_000)

    assert record[:16].hex() == "0000008001000000" + "15" + "04" + "0132" + "0000" + "0122"
    assert record[16:] == bytes(0x122)


def test_header_is_that_of_a_capture_made_by_others() -> None:
    """First record of infiniband.pcap of srinivaskoritala/rdma-softroce-demo: 290 bytes, at
    0x482b41ef.7febea60; its interface, 1, is in the flags."""
    theirs = bytes.fromhex("60eaeb7fef412b48150501320000 0122")
    ours = erf_record(bytes(0x122), 0x482B41EF * 10**9 + (0x7FEBEA60 * 10**9 >> 32))

    assert ours[4:9] == theirs[4:9]
    assert abs(int.from_bytes(ours[:4], "little") - 0x7FEBEA60) <= 4  # 2^-32 s in a nanosecond
    assert ours[9] == theirs[9] & ~3
    assert ours[10:16] == theirs[10:16]


@given(st.integers(0, (1 << 32) * 10**9 - 1))
def test_time_comes_back_to_the_nanosecond_cut_or_rounded(time_ns: int) -> None:
    ticks = int.from_bytes(erf_record(b"", time_ns)[:8], "little")

    assert ticks * 10**9 >> 32 == time_ns
    assert (ticks * 10**9 + (1 << 31)) >> 32 == time_ns


@pytest.mark.parametrize(
    ("size", "time_ns", "field"),
    [(MAXIMUM_FRAME + 1, 0, "frame"), (1, -1, "time_ns"), (1, (1 << 32) * 10**9, "time_ns")],
)
def test_what_does_not_fit_is_refused(size: int, time_ns: int, field: str) -> None:
    with pytest.raises(EncodeError) as caught:
        erf_record(bytes(size), time_ns)

    assert caught.value.field == field


def test_largest_frame_fits() -> None:
    assert erf_record(bytes(MAXIMUM_FRAME), 0)[10:12] == b"\xff\xff"
