import io
from struct import pack
from typing import Any

import pytest

from capture.handmade import (
    block,
    data_of,
    enhanced,
    interface,
    obsolete,
    option,
    pcap_header,
    read,
    read_until_damage,
    section,
    simple,
)
from each_case import each_case
from ibwire.base.errors import EncodeError
from ibwire.capture import PcapngWriter, Record, open_capture

END = option(0, b"")
TSRESOL = 9
TSOFFSET = 14

# Section, Ethernet interface without options, and one packet of 5 bytes (of 9) at
# 1700000000.123456 s, which is 0x00060a24 * 2**32 + 0x18202240 microseconds.
BY_HAND = bytes.fromhex(
    "0a0d0d0a 1c000000 4d3c2b1a 0100 0000 ffffffffffffffff 1c000000"
    "01000000 14000000 0100 0000 00000000 14000000"
    "06000000 28000000 00000000 240a0600 40222018 05000000 09000000 0102030405 000000 28000000"
)


def test_hand_written_file() -> None:
    assert read(BY_HAND) == [Record(1, 1_700_000_000_123_456_000, b"\x01\x02\x03\x04\x05", 9, 1)]


@pytest.mark.parametrize("order", "<>")
def test_both_byte_orders(order: str) -> None:
    content = section(order) + interface(247, order=order) + enhanced(b"abc", 5, order=order)

    assert read(content) == [Record(1, 5000, b"abc", 3, 247)]


@pytest.mark.parametrize("chunk_size", [1, 50, 4096])
def test_sections_of_different_byte_order_in_one_file(chunk_size: int) -> None:
    content = b"".join(
        section(order)
        + interface(link_type, options=option(TSRESOL, b"\x09", order) + END, order=order)
        + enhanced(data, ticks, order=order)
        for order, link_type, data, ticks in (
            ("<", 1, b"a", 11),
            (">", 247, b"bb", 22),
            ("<", 101, b"ccc", 33),
        )
    )

    assert read(content, chunk_size) == [
        Record(1, 11, b"a", 1, 1, interface=0),
        Record(2, 22, b"bb", 2, 247, interface=1),
        Record(3, 33, b"ccc", 3, 101, interface=2),
    ]


@pytest.mark.parametrize("chunk_size", [1, 4096])
def test_each_interface_has_its_own_link_type_and_clock(chunk_size: int) -> None:
    content = (
        section()
        + interface(1)
        + enhanced(b"a", 3)
        + interface(247, options=option(TSRESOL, b"\x03") + END)
        + enhanced(b"b", 3, interface=1)
        + enhanced(b"c", 4, interface=0)
    )

    assert read(content, chunk_size) == [
        Record(1, 3_000, b"a", 1, 1, interface=0),
        Record(2, 3_000_000, b"b", 1, 247, interface=1),
        Record(3, 4_000, b"c", 1, 1, interface=0),
    ]


@each_case(
    ("resolution", "ticks", "time_ns"),
    [
        (0x00, 5, 5_000_000_000),
        (0x06, 5, 5_000),
        (0x09, 2**62, 2**62),
        (0x09, 2**63 - 1, 2**63 - 1),
        (0x0A, 57, 5),  # tenths of a nanosecond
        (0x0C, 1_999, 1),
        (0x80, 5, 5_000_000_000),  # 2**0
        (0x8A, 1536, 1_500_000_000),  # 2**-10: the draft's example
        (0xA0, 3 << 31, 1_500_000_000),  # 2**-32
        (0xBF, 3 << 62, 1_500_000_000),  # 2**-63
        (0xFF, 2**64 - 1, 0),  # 2**-127
        (0x7F, 2**64 - 1, 0),  # 10**-127
    ],
)
def test_time_resolution(resolution: int, ticks: int, time_ns: int) -> None:
    options = option(TSRESOL, bytes([resolution])) + END
    content = section() + interface(options=options) + enhanced(b"x", ticks)

    assert read(content)[0].time_ns == time_ns


def test_time_offset_is_in_seconds_and_signed() -> None:
    for offset, time_ns in ((100, 100_000_007_000), (-3, -2_999_993_000)):
        options = option(TSOFFSET, pack("<q", offset)) + END
        content = section() + interface(options=options) + enhanced(b"x", 7)
        assert read(content)[0].time_ns == time_ns


def test_times_out_of_range_are_held_within_64_bits() -> None:
    seconds = option(TSRESOL, b"\x00")
    for options, ticks, time_ns in (
        (seconds, 2**64 - 1, 2**63 - 1),
        (seconds + option(TSOFFSET, pack("<q", -(2**63))), 0, -(2**63)),
        (seconds + option(TSOFFSET, pack("<q", 2**63 - 1)), 0, 2**63 - 1),
        (option(TSOFFSET, pack("<q", -(2**63))), 2**64 - 1, -(2**63)),
    ):
        content = section() + interface(options=options + END) + enhanced(b"x", ticks)
        assert read(content)[0].time_ns == time_ns


def test_big_endian_options_are_read_in_their_order() -> None:
    options = option(TSOFFSET, pack(">q", 2), ">") + option(TSRESOL, b"\x09", ">")
    content = section(">") + interface(options=options, order=">") + enhanced(b"", 1, order=">")

    assert read(content)[0].time_ns == 2_000_000_001


def test_simple_packet_block_is_cut_by_the_snap_length_of_the_first_interface() -> None:
    content = (
        section()
        + interface(247, snaplen=6)
        + interface(1, snaplen=2)
        + simple(b"abcdef", wire_len=100)
        + simple(b"abc")
    )

    assert read(content) == [
        Record(1, 0, b"abcdef", 100, 247, interface=0),
        Record(2, 0, b"abc", 3, 247, interface=0),
    ]


def test_simple_packet_block_without_snap_length_is_whole() -> None:
    assert data_of(read(section() + interface() + simple(b"abcdefg"))) == [b"abcdefg"]


def test_simple_packet_block_needs_an_interface() -> None:
    _, damage = read_until_damage(section() + simple(b"abc"))

    assert damage is not None
    assert damage.offset == 28
    assert "names interface 0" in damage.reason


@pytest.mark.parametrize("order", "<>")
def test_obsolete_packet_block_has_a_16_bit_interface_and_a_drop_count(order: str) -> None:
    content = (
        section(order)
        + interface(1, order=order)
        + interface(247, order=order)
        + obsolete(b"old", 12, interface=1, drops=0xFFFF, order=order)
    )

    assert read(content) == [Record(1, 12_000, b"old", 3, 247, interface=1)]


def test_comments_stay_with_their_packets() -> None:
    options = (
        option(2, b"\0\0\0\1")  # epb_flags
        + option(1, "drop → here".encode())
        + option(1, b"second\0rubbish")
        + option(1, b"\xff broken")
        + END
    )
    content = (
        section()
        + interface()
        + enhanced(b"a")
        + enhanced(b"bc", options=options)
        + enhanced(b"d", options=option(2, b"\0\0\0\2"))
        + enhanced(b"e", options=option(1, b"no end mark"))
    )

    assert [record.comments for record in read(content)] == [
        (),
        ("drop → here", "second", "\ufffd broken"),
        (),
        ("no end mark",),
    ]


def test_option_that_reaches_beyond_its_block_is_ignored() -> None:
    options = option(1, b"good") + pack("<HH", 1, 60000)
    content = section() + interface() + enhanced(b"a", options=options)

    assert read(content)[0].comments == ("good",)


def test_other_blocks_are_skipped() -> None:
    content = section()
    for kind in (4, 5, 10, 0xBAD, 0x80000001):  # names, statistics, secrets, custom, local use
        content += block(kind, bytes(40))
    content += interface() + block(5, bytes(12)) + enhanced(b"a") + block(0x77, b"")

    assert data_of(read(content)) == [b"a"]


def test_minor_version_2_is_read_as_0() -> None:
    assert data_of(read(section(version=(1, 2)) + interface() + enhanced(b"a"))) == [b"a"]


@each_case("chunk_size", [1, 4096])
@each_case(
    ("bad", "reason"),
    [
        (pack("<II", 6, 33) + bytes(60), "claims 33 bytes, expected a multiple of 4 from 32"),
        (pack("<II", 6, 28) + bytes(60), "claims 28 bytes, expected a multiple of 4 from 32"),
        (pack("<II", 6, 0) + bytes(60), "claims 0 bytes"),
        (pack("<II", 4, 8) + bytes(60), "block of type 0x00000004 claims 8 bytes"),
        (pack("<II", 4, 14) + bytes(60), "claims 14 bytes, expected a multiple of 4 from 12"),
        (pack("<II", 6, 2**24 + 4) + bytes(60), "to 16777216"),
        (pack("<II", 77, 2**32 - 4) + bytes(60), "to 16777216"),
        (enhanced(b"x" * 4)[:-4] + pack("<I", 40), "of 36 bytes says 40 at its end"),
        (block(9, b"1234")[:-4] + pack("<I", 0), "of 16 bytes says 0 at its end"),
        (interface()[:-4] + pack("<I", 24), "interface description of 20 bytes says 24"),
        (enhanced(b"x", interface=1), "record 3 names interface 1"),
        (enhanced(b"x", interface=2**32 - 1), "record 3 names interface 4294967295"),
        (obsolete(b"x", 0, interface=7), "record 3 names interface 7"),
        (enhanced(b"xxxx", cap_len=5), "record 3 claims 5 captured bytes, but its block has room"),
        (enhanced(b"", cap_len=2**32 - 1), "claims 4294967295 captured bytes"),
        (simple(b"xxxx", wire_len=5), "record 3 claims 5 captured bytes"),
        (block(0x0A0D0D0A, bytes(16)), "byte-order magic 00000000"),
        (section(version=(2, 0)), "pcapng version 2.0, expected 1.0"),
        (pack("<II", 0x0A0D0D0A, 24) + b"\x4d\x3c\x2b\x1a" + bytes(12), "a section header claims"),
    ],
)
def test_damage_is_told_after_everything_before_it(bad: Any, reason: str, chunk_size: int) -> None:
    good = section() + interface() + enhanced(b"one") + enhanced(b"two")

    records, damage = read_until_damage(good + bad + enhanced(b"lost") * 50, chunk_size)

    assert data_of(records) == [b"one", b"two"]
    assert damage is not None
    assert damage.offset == len(good)
    assert reason in damage.reason


def test_interfaces_of_an_earlier_section_are_unknown_in_the_next() -> None:
    good = section() + interface() + enhanced(b"a") + section()

    records, damage = read_until_damage(good + enhanced(b"b"))

    assert data_of(records) == [b"a"]
    assert damage is not None
    assert damage.offset == len(good)


@pytest.mark.parametrize("chunk_size", [1, 4096])
def test_file_cut_inside_a_packet_block(chunk_size: int) -> None:
    good = section() + interface() + enhanced(b"one")

    records, damage = read_until_damage(good + enhanced(b"x" * 100)[:50], chunk_size)

    assert data_of(records) == [b"one"]
    assert damage is not None
    assert damage.offset == len(good)
    assert damage.reason == (
        "the file ends inside record 2 (cut short, or still being written): 50 of 132 bytes"
    )


def test_file_cut_inside_another_block() -> None:
    good = section() + interface() + enhanced(b"one")
    for tail in (interface()[:-2], block(5, bytes(100))[:20], b"\x06\0\0"):
        records, damage = read_until_damage(good + tail)
        assert data_of(records) == [b"one"]
        assert damage is not None
        assert damage.offset == len(good)
        assert "the file ends inside a" in damage.reason


def test_packet_longer_than_a_chunk() -> None:
    long = bytes(range(250)) * 4000

    content = section() + interface() + enhanced(b"a") + enhanced(long) + enhanced(b"b")

    assert data_of(read(content, 1000)) == [b"a", long, b"b"]


def test_packet_block_beyond_the_limit_is_refused_even_where_the_chunk_holds_it() -> None:
    content = section() + interface() + enhanced(bytes(2**24 - 28))

    _, damage = read_until_damage(content, 2**25)

    assert damage is not None
    assert damage.offset == 48
    assert "claims 16777220 bytes" in damage.reason


def test_nanosecond_is_known_once_the_interface_is() -> None:
    content = section() + interface(options=option(TSRESOL, b"\x09")) + enhanced(b"")
    with open_capture(io.BytesIO(content)) as reader:
        list(reader.batches())
        assert (reader.format, reader.nanosecond) == ("pcapng", True)

    with open_capture(io.BytesIO(BY_HAND)) as reader:
        list(reader.batches())
        assert not reader.nanosecond


def test_pcap_inside_a_pcapng_is_not_followed() -> None:
    _, damage = read_until_damage(section() + pcap_header())

    assert damage is not None


def test_flood_of_interfaces_is_stopped() -> None:
    _, damage = read_until_damage(section() + interface() * 70_000, 2**20)

    assert damage is not None
    assert damage.offset == 28 + 65536 * 20
    assert "more than 65536 interfaces" in damage.reason


def test_flood_of_sections_is_read_in_one_batch() -> None:
    content = (section() + interface() + enhanced(b"")) * 5000

    with open_capture(io.BytesIO(content)) as reader:
        (batch,) = reader.batches()

    assert batch.interface.tolist() == list(range(5000))


def test_writer_makes_the_bytes_of_the_format() -> None:
    output = io.BytesIO()

    with PcapngWriter(output, link_type=247) as writer:
        writer.write(b"\x01\x02\x03\x04\x05", 0x01020304_05060708, 9, comments=["hi"])

    assert output.getvalue() == bytes.fromhex(
        "0a0d0d0a 2c000000 4d3c2b1a 0100 0000 ffffffffffffffff"
        "0400 0600 696277697265 0000 0000 0000 2c000000"
        "01000000 20000000 f700 0000 00000000 0900 0100 09 000000 0000 0000 20000000"
        "06000000 34000000 00000000 04030201 08070605 05000000 09000000 0102030405 000000"
        "0100 0200 6869 0000 0000 0000 34000000"
    )


def test_writer_with_several_interfaces_and_comments_reads_back() -> None:
    output = io.BytesIO()

    with PcapngWriter(output) as writer:
        second = writer.add_interface(247, "mlx5_0")
        writer.write(b"a", 1)
        writer.write(b"b", 2**63 - 1, 70, interface=second, comments=("one", "zwei ü"))

    assert read(output.getvalue()) == [
        Record(1, 1, b"a", 1, 1),
        Record(2, 2**63 - 1, b"b", 70, 247, interface=1, comments=("one", "zwei ü")),
    ]


@each_case(
    ("arguments", "field"),
    [
        ({"time_ns": -1}, "time_ns"),
        ({"time_ns": 2**64}, "time_ns"),
        ({"wire_len": 2**32}, "wire_len"),
        ({"wire_len": -1}, "wire_len"),
        ({"interface": 1}, "interface"),
        ({"interface": -1}, "interface"),
        ({"comments": ["x" * 65536]}, "option"),
        ({"data": bytes(2**24)}, "block"),
    ],
)
def test_writer_refuses_what_the_format_cannot_hold(arguments: Any, field: str) -> None:
    arguments = {"data": b"x", "time_ns": 0} | arguments

    with PcapngWriter(io.BytesIO()) as writer, pytest.raises(EncodeError) as caught:
        writer.write(**arguments)

    assert caught.value.field == field
