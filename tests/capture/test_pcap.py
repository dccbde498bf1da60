import io
from pathlib import Path
from struct import pack
from typing import Any

import numpy as np
import pytest

from capture.handmade import (
    KUZNETSOV,
    MICROSECONDS,
    NANOSECONDS,
    data_of,
    pcap_header,
    pcap_record,
    read,
    read_until_damage,
)
from each_case import each_case
from ibwire.base.errors import CaptureError, EncodeError
from ibwire.capture import PADDING, PcapWriter, Record, open_capture

# A file of two records, written out by hand: 1700000000.123456 s, 3 of 5 bytes;
# 1700000001.000000 s, 2 bytes.
LITTLE_ENDIAN = bytes.fromhex(
    "d4c3b2a1 0200 0400 00000000 00000000 ffff0000 01000000"
    "00f15365 40e20100 03000000 05000000 aabbcc"
    "01f15365 00000000 02000000 02000000 ddee"
)
BIG_ENDIAN = bytes.fromhex(
    "a1b2c3d4 0002 0004 00000000 00000000 0000ffff 00000001"
    "6553f100 0001e240 00000003 00000005 aabbcc"
    "6553f101 00000000 00000002 00000002 ddee"
)


@pytest.mark.parametrize("content", [LITTLE_ENDIAN, BIG_ENDIAN], ids=["little", "big"])
def test_both_byte_orders_give_the_same_records(content: Any) -> None:
    assert read(content) == [
        Record(1, 1_700_000_000_123_456_000, b"\xaa\xbb\xcc", 5, 1),
        Record(2, 1_700_000_001_000_000_000, b"\xdd\xee", 2, 1),
    ]


@pytest.mark.parametrize("order", "<>")
def test_nanosecond_magic_keeps_every_nanosecond(order: str) -> None:
    content = pcap_header(order, NANOSECONDS) + pcap_record(b"x", 7, 123456789, order=order)

    with open_capture(io.BytesIO(content)) as reader:
        assert reader.nanosecond
        assert [record.time_ns for record in reader.records()] == [7_123_456_789]


@pytest.mark.parametrize("order", "<>")
def test_modified_format_has_eight_more_bytes_in_each_record_header(order: str) -> None:
    record = pack(f"{order}IIIIIHBB", 9, 250000, 4, 60, 3, 0x0800, 4, 0) + b"data"
    content = pcap_header(order, KUZNETSOV) + record * 2

    assert read(content) == [
        Record(1, 9_250_000_000, b"data", 60, 1),
        Record(2, 9_250_000_000, b"data", 60, 1),
    ]


def test_fcs_bits_above_the_link_type_are_masked_off() -> None:
    # FCS length 2 words, P bit set, link type 247 (InfiniBand).
    content = pcap_header(link_type=0x24000000 | 247) + pcap_record(b"x")

    assert read(content)[0].link_type == 247


def test_fractions_beyond_a_second_are_kept_arithmetically() -> None:
    content = pcap_header() + pcap_record(b"x", 1, 3_000_000)
    assert read(content)[0].time_ns == 4_000_000_000

    content = pcap_header() + pcap_record(b"x", 2**32 - 1, 2**32 - 1)
    assert read(content)[0].time_ns == (2**32 - 1) * 10**9 + (2**32 - 1) * 1000


def test_before_version_2_4_the_smaller_length_is_the_captured_one() -> None:
    # libpcap: caplen and len changed places in version 2.3, but not in every writer.
    swapped = pack("<IIII", 0, 0, 100, 4) + b"data"
    usual = pack("<IIII", 0, 0, 4, 90) + b"data"
    content = pcap_header(version=(2, 3)) + swapped + usual

    assert [(r.data, r.wire_len) for r in read(content)] == [(b"data", 100), (b"data", 90)]


def test_unknown_version_is_refused() -> None:
    records, damage = read_until_damage(pcap_header(version=(3, 0)) + pcap_record(b"x"))

    assert records == []
    assert damage is not None
    assert (damage.offset, damage.reason) == (4, "pcap version 3.0, expected 2.4")


def test_empty_records_are_legal() -> None:
    content = pcap_header() + pcap_record(b"") + pcap_record(b"x") + pcap_record(b"", wire_len=9)

    assert [(r.data, r.wire_len) for r in read(content)] == [(b"", 0), (b"x", 1), (b"", 9)]


def test_header_alone_is_a_capture_without_records() -> None:
    assert read(pcap_header()) == []


def test_cut_header_is_reported() -> None:
    _, damage = read_until_damage(pcap_header()[:17])

    assert damage is not None
    assert damage.reason == "the file ends inside its header: 17 of 24 bytes"


@pytest.mark.parametrize("chunk_size", [1, 64, 4096, 2**22])
def test_file_cut_inside_the_data_yields_everything_before(chunk_size: int) -> None:
    whole = pcap_header() + pcap_record(b"a" * 50) * 3
    content = whole + pcap_record(b"b" * 1098)[: 16 + 40]

    records, damage = read_until_damage(content, chunk_size)

    assert data_of(records) == [b"a" * 50] * 3
    assert damage is not None
    assert damage.path == "stream"
    assert damage.offset == len(whole) == 222
    assert damage.reason == (
        "the file ends inside record 4 (cut short, or still being written): 40 of 1098 bytes"
    )


def test_file_cut_inside_a_record_header_says_so() -> None:
    records, damage = read_until_damage(pcap_header() + pcap_record(b"abc") + bytes(7))

    assert data_of(records) == [b"abc"]
    assert damage is not None
    assert damage.offset == 24 + 19
    assert "record 2" in damage.reason
    assert "7 of the 16 bytes of its header" in damage.reason


@each_case("chunk_size", [1, 100, 2**22])
@each_case("absurd", [262145, 2**31, 2**32 - 1])
def test_absurd_length_ends_the_reading_where_it_stands(absurd: int, chunk_size: int) -> None:
    content = (
        pcap_header(snaplen=96)
        + pcap_record(b"abc")
        + pcap_record(b"defg")
        + pcap_record(b"", cap_len=absurd)
        + pcap_record(b"lost") * 20000
    )

    records, damage = read_until_damage(content, chunk_size)

    assert data_of(records) == [b"abc", b"defg"]
    assert damage is not None
    assert damage.offset == 24 + 19 + 20
    assert damage.reason == (
        f"record 3 claims {absurd} captured bytes, at most 262144 are possible"
    )


def test_longest_record_that_libpcap_allows_is_read_whatever_the_snap_length() -> None:
    longest = bytes(range(256)) * 1024

    assert data_of(read(pcap_header(snaplen=96) + pcap_record(longest), 1000)) == [longest]


def test_larger_snap_length_raises_the_limit() -> None:
    long = b"\x5a" * 1_000_000

    assert data_of(read(pcap_header(snaplen=2_000_000) + pcap_record(long), 1000)) == [long]


def test_snap_length_without_bounds_does_not_make_every_length_possible() -> None:
    content = pcap_header(snaplen=2**32 - 1) + pcap_record(b"", cap_len=2**30)

    _, damage = read_until_damage(content)

    assert damage is not None
    assert "at most 16777216" in damage.reason


def test_batch_is_private_writable_and_padded_with_zeros() -> None:
    content = pcap_header() + pcap_record(b"\xff" * 300) * 10

    with open_capture(io.BytesIO(content), 1000) as reader:
        for batch in reader.batches():
            end = int(batch.offsets[-1] + batch.cap_len[-1])
            assert len(batch.data) - end >= PADDING
            assert not batch.data[end:].any()
            assert batch.data.flags.c_contiguous
            for row in range(len(batch)):
                assert batch.record(row).data == b"\xff" * 300
            batch.data[:] = 0x77  # must not reach the next batch


def test_batch_arrays_have_the_promised_types() -> None:
    with open_capture(io.BytesIO(LITTLE_ENDIAN)) as reader:
        (batch,) = reader.batches()

    assert batch.data.dtype == np.uint8
    assert batch.offsets.dtype == batch.cap_len.dtype == batch.wire_len.dtype == np.int64
    assert batch.time_ns.dtype == np.int64
    assert batch.link_type.dtype == np.uint16
    assert batch.interface.dtype == np.uint32
    assert (len(batch), batch.first_number, batch.comments) == (2, 1, {})


def test_numbers_go_on_over_batches() -> None:
    content = pcap_header() + pcap_record(b"x" * 84) * 100

    with open_capture(io.BytesIO(content), 1000) as reader:
        batches = list(reader.batches())

    assert len(batches) > 5
    assert [b.first_number for b in batches[1:]] == [b.first_number + len(b) for b in batches[:-1]]
    assert batches[-1].first_number + len(batches[-1]) == 101


def test_writer_makes_the_bytes_of_the_format() -> None:
    output = io.BytesIO()

    with PcapWriter(output, nanosecond=False, snaplen=65535) as writer:
        writer.write(b"\xaa\xbb\xcc", 1_700_000_000_123_456_789, 5)
        writer.write(b"\xdd\xee", 1_700_000_001_000_000_000)

    assert output.getvalue() == LITTLE_ENDIAN


def test_writer_keeps_nanoseconds_unless_told_otherwise() -> None:
    output = io.BytesIO()

    with PcapWriter(output, link_type=247) as writer:
        writer.write(b"x", 1_700_000_000_123_456_789)

    assert output.getvalue()[:4] == bytes.fromhex("4d3cb2a1")
    assert read(output.getvalue()) == [Record(1, 1_700_000_000_123_456_789, b"x", 1, 247)]


@pytest.mark.parametrize(
    ("data", "time_ns", "wire_len", "field"),
    [
        (b"x", -1, None, "time_ns"),
        (b"x", 2**32 * 10**9, None, "time_ns"),
        (b"x", 0, 2**32, "wire_len"),
        (bytes(262145), 0, None, "data"),
    ],
)
def test_writer_refuses_what_the_format_cannot_hold(
    data: bytes, time_ns: int, wire_len: int | None, field: str
) -> None:
    with PcapWriter(io.BytesIO()) as writer, pytest.raises(EncodeError) as caught:
        writer.write(data, time_ns, wire_len)

    assert caught.value.field == field


def test_microsecond_files_say_so() -> None:
    with open_capture(io.BytesIO(pcap_header(magic=MICROSECONDS))) as reader:
        assert not reader.nanosecond
        assert reader.format == "pcap"


def test_error_names_path_and_offset(tmp_path: Path) -> None:
    path = tmp_path / "cut.pcap"
    path.write_bytes(pcap_header() + bytes(5))

    with open_capture(path) as reader, pytest.raises(CaptureError) as caught:
        list(reader.batches())

    assert str(caught.value).startswith(f"{path}: byte 24: ")
