"""Laws over all captures, chunk sizes and kinds of damage."""

import gzip
import io
import lzma
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from capture.handmade import (
    enhanced,
    interface,
    option,
    pcap_header,
    pcap_record,
    read,
    read_until_damage,
    section,
    simple,
)
from ibwire.capture import PcapngWriter, PcapWriter, open_capture

chunk_sizes = st.integers(1, 3000)
orders = st.sampled_from("<>")
packets = st.lists(st.binary(max_size=300), max_size=12)


@st.composite
def pcaps(draw: Any) -> Any:
    """A capture, where each of its records ends, and where it may end without damage."""
    order = draw(orders)
    parts = [pcap_header(order, draw(st.sampled_from([0xA1B2C3D4, 0xA1B23C4D])))]
    for data in draw(packets):
        seconds, fraction = draw(st.tuples(*[st.integers(0, 2**32 - 1)] * 2))
        wire_len = draw(st.integers(len(data), 2**32 - 1))
        parts.append(pcap_record(data, seconds, fraction, wire_len, order))
    ends = [sum(map(len, parts[: n + 1])) for n in range(1, len(parts))]
    return b"".join(parts), ends, [24, *ends]


@st.composite
def pcapngs(draw: Any) -> Any:
    """The same of several sections, interfaces and kinds of blocks."""
    content, ends, boundaries = b"", [], []
    for _ in range(draw(st.integers(1, 3))):
        order = draw(orders)
        content += section(order)
        boundaries.append(len(content))
        count = draw(st.integers(1, 3))
        for _ in range(count):
            resolution = option(9, draw(st.binary(min_size=1, max_size=1)), order)
            offset = option(14, draw(st.binary(min_size=8, max_size=8)), order)
            options = draw(st.sampled_from([b"", resolution, offset, resolution + offset]))
            content += interface(draw(st.integers(0, 65535)), 0, options, order)
            boundaries.append(len(content))
        for data in draw(packets):
            if draw(st.booleans()):
                content += enhanced(
                    data,
                    draw(st.integers(0, 2**64 - 1)),
                    draw(st.integers(0, count - 1)),
                    options=draw(st.sampled_from([b"", option(1, b"said", order)])),
                    order=order,
                )
            else:
                content += simple(data, order=order)
            ends.append(len(content))
    return content, ends, boundaries + ends


captures = st.one_of(pcaps(), pcapngs())


@given(captures, chunk_sizes)
def test_any_chunk_size_gives_the_same_records(capture: Any, chunk_size: int) -> None:
    content, ends, _ = capture

    records = read(content, 2**20)

    assert len(records) == len(ends)
    assert [record.number for record in records] == list(range(1, len(ends) + 1))
    assert read(content, chunk_size) == records


@given(captures, chunk_sizes, st.data())
def test_cut_capture_yields_exactly_the_records_before_the_cut(
    capture: Any, chunk_size: int, data: Any
) -> None:
    content, ends, boundaries = capture
    cut = data.draw(st.integers(1, len(content) - 1))

    records, damage = read_until_damage(content[:cut], chunk_size)

    assert records == read(content)[: sum(end <= cut for end in ends)]
    assert (damage is None) == (cut in boundaries)
    if damage is not None and cut > 28:
        assert damage.offset == max(boundary for boundary in boundaries if boundary < cut)


@given(captures, chunk_sizes, st.data())
def test_flipped_bit_leaves_the_records_before_it(capture: Any, chunk_size: int, data: Any) -> None:
    content, ends, _ = capture
    at = data.draw(st.integers(28, max(28, len(content) - 1)))
    damaged = bytearray(content)
    if at < len(damaged):
        damaged[at] ^= 1 << data.draw(st.integers(0, 7))

    records, damage = read_until_damage(bytes(damaged), chunk_size)

    before = sum(end <= at for end in ends)
    assert records[:before] == read(content)[:before]
    if damage is not None:
        assert damage.offset is not None
        assert damage.offset >= (ends[before - 1] if before else 0)


@given(captures, st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), max_size=9))
def test_overwritten_bytes_raise_only_capture_errors_and_agree_over_chunk_sizes(
    capture: Any, spots: Any
) -> None:
    damaged = bytearray(capture[0])
    for at, value in spots:
        damaged[at % len(damaged)] = value

    whole, damage = read_until_damage(bytes(damaged), 2**20)
    parts, same = read_until_damage(bytes(damaged), 40)

    assert parts == whole
    assert str(same) == str(damage)


@given(st.binary(max_size=2000), st.sampled_from([b"", pcap_header(), pcap_header(">"), section()]))
def test_random_bytes_raise_only_capture_errors(noise: Any, head: Any) -> None:
    read_until_damage(head + noise)
    read_until_damage(head + interface() * (head[:1] == b"\x0a") + noise, 64)


@given(st.sampled_from([gzip.compress, lzma.compress]), pcaps(), st.data())
def test_damaged_compressed_files_raise_only_capture_errors(
    compress: Any, capture: Any, data: Any
) -> None:
    content = bytearray(compress(capture[0]))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))

    read_until_damage(bytes(content[: data.draw(st.integers(0, len(content)))]))


writable = st.lists(
    st.tuples(st.binary(max_size=200), st.integers(0, 2**32 * 10**9 - 1), st.integers(0, 2**32 - 1))
)


@given(writable, st.integers(0, 65535), chunk_sizes)
def test_pcap_reads_back_what_was_written(packets: Any, link_type: int, chunk_size: int) -> None:
    output = io.BytesIO()
    with PcapWriter(output, link_type) as writer:
        for packet in packets:
            writer.write(*packet)

    records = read(output.getvalue(), chunk_size)

    assert [(r.data, r.time_ns, r.wire_len) for r in records] == packets
    assert {r.link_type for r in records} <= {link_type}


@given(writable, st.lists(st.text(max_size=20).filter(lambda t: "\0" not in t)), chunk_sizes)
def test_pcapng_reads_back_what_was_written(packets: Any, comments: Any, chunk_size: int) -> None:
    output = io.BytesIO()
    with PcapngWriter(output) as writer:
        for data, time_ns, wire_len in packets:
            writer.write(data, time_ns, wire_len, comments=comments)

    records = read(output.getvalue(), chunk_size)

    assert [(r.data, r.time_ns, r.wire_len) for r in records] == packets
    assert all(r.comments == tuple(comments) for r in records)


@given(captures, chunk_sizes)
def test_batches_and_records_say_the_same(capture: Any, chunk_size: int) -> None:
    with open_capture(io.BytesIO(capture[0]), chunk_size) as reader:
        rows = [batch.record(row) for batch in reader.batches() for row in range(len(batch))]

    assert rows == read(capture[0])
