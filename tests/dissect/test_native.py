"""The passes of `_native.c` say the same as those in Python, and never read outside a buffer."""

from __future__ import annotations

import importlib.util
import io
import struct
import sys
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strategies
from examples import scaled
from ibwire import base
from ibwire.base import native as native_front
from ibwire.base.errors import CaptureError
from ibwire.capture import RecordBatch, open_capture, pcap
from ibwire.capture.index import PADDING
from ibwire.connections import flow, packets
from ibwire.dissect import Columns, frames, icrc
from ibwire_layers import headers as h
from ibwire_layers import outer
from native_build import native_module
from shipped_captures import each_capture
from strategies import HANDMADE, Frame
from vectors import LINK_PACKET, load

T = TypeVar("T")

USERS = pcap, frames, icrc, packets, flow
"""Modules that have a pass of their own in Python."""


def with_build(native: ModuleType | None, run: Callable[[], T]) -> T:
    """The result of a function with these passes; with those in Python for `None`."""
    with pytest.MonkeyPatch.context() as patch:
        for module in USERS:
            patch.setattr(module, "native", native)
        return run()


def both(run: Callable[[], T]) -> tuple[T, T]:
    """The result of a function with the passes in Python, and with those in C."""
    return with_build(None, run), with_build(native_module(), run)


def assert_same(made: Sequence[Frame]) -> None:
    """Both builds read the same of these frames."""
    assert_equal(*both(lambda: what_is_read(batch_of(made))))


def batch_of(made: Sequence[Frame]) -> RecordBatch:
    lengths = np.array([len(frame.data) for frame in made], np.int64)
    data = b"".join(frame.data for frame in made) + bytes(PADDING)
    return RecordBatch(
        data=np.frombuffer(bytearray(data), np.uint8),
        offsets=np.cumsum(lengths) - lengths,
        cap_len=lengths,
        wire_len=lengths,
        time_ns=np.arange(len(made)),
        link_type=np.array([frame.link_type for frame in made], np.uint16),
        interface=np.zeros(len(made), np.uint32),
        first_number=7,
    )


def what_is_read(batch: RecordBatch) -> dict[str, Any]:
    columns = Columns(batch)
    many = columns.frames
    found: dict[str, Any] = {
        name: getattr(many, name)
        for name in ("start", "end", "outer_vlan", "protocol", "fault", "has_icrc", "tunnelled")
    }
    for header in (outer.Ethernet, outer.VLAN, outer.IPv4, outer.IPv6, outer.UDP, h.LRH, h.GRH):
        found[header.__name__] = many.position(header)
    found |= {"bth": many.bth, "icrc": icrc.icrc_status(many), "bytes": batch.data.copy()}
    rows = packets.known(columns)
    found["flow hash"] = flow._hashes(columns, rows)
    read = packets.read(columns, rows, np.arange(len(rows), dtype=np.int32))
    found |= {f"packet {name}": getattr(read, name) for name in packets.ROW.names or ()}
    return found


def assert_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    for name, values in one.items():
        assert values.dtype == other[name].dtype, name
        assert np.array_equal(values, other[name]), name


def test_crc_is_that_of_zlib_for_every_length() -> None:
    native, data = native_module(), bytes(range(1, 256)) * 20

    lengths = [*range(400), 1024, 4096, 5000]
    found = [native.crc32(data[size % 13 : size], size) for size in lengths]

    assert found == [zlib.crc32(data[size % 13 : size], size) for size in lengths]


def test_packets_one_by_one_are_the_same() -> None:
    """Of any bytes, so with values up to the largest of each type."""
    raw = np.random.default_rng(1).integers(0, 256, (50, packets.ROW.itemsize), np.uint8)
    raw[:20] |= 0x80
    raw[:, -4:] &= 1
    rows = packets.Rows(raw.view(packets.ROW)[:, 0])

    one, other = both(rows.packets)

    assert one == other
    assert {type(each) for each in other} == {packets.TransportPacket}
    assert [list(map(type, each)) for each in one] == [list(map(type, each)) for each in other]
    assert list(map(hash, one)) == list(map(hash, other))
    with pytest.raises(ValueError, match="whole rows"):
        native_module().packets(np.zeros(73, np.uint8), packets.TransportPacket)


@each_capture
def test_shipped_capture_reads_the_same(path: Path) -> None:
    def read() -> list[dict[str, Any]]:
        with open_capture(path) as capture:
            return [what_is_read(batch) for batch in capture.batches()]

    one, other = both(read)

    assert len(one) == len(other)
    for before, after in zip(one, other, strict=True):
        assert_equal(before, after)


def test_golden_and_handmade_frames_read_the_same() -> None:
    golden = [
        Frame(vector.name, vector.frame, vector.link_type)
        for vector in load()
        if vector.link_type != LINK_PACKET
    ]

    assert_same([*golden, *HANDMADE])


@pytest.mark.parametrize(
    "kind", [strategies.tagged, strategies.networked, strategies.transported, strategies.tunnelled]
)
def test_frames_cut_at_any_length_read_the_same(kind: Callable[[], Sequence[Frame]]) -> None:
    assert_same([frame.cut(n) for frame in kind() for n in range(min(len(frame.data), 150))])


def test_frames_with_any_bit_flipped_read_the_same() -> None:
    flipped = []
    for frame in (*strategies.tagged(), *strategies.networked()):
        for bit in range(8 * min(len(frame.data), 100)):
            data = bytearray(frame.data)
            data[bit // 8] ^= 1 << bit % 8
            flipped.append(Frame(f"{frame.name} {bit}", bytes(data), frame.link_type))

    assert_same(flipped)


@settings(max_examples=scaled(100), deadline=None)
@given(st.lists(strategies.damaged() | strategies.random_frames, max_size=12))
def test_damaged_and_random_frames_read_the_same(made: list[Frame]) -> None:
    assert_same(made)


@settings(max_examples=scaled(200), deadline=None)
@given(
    st.sampled_from(
        [(">", 0xA1B2C3D4, 4), ("<", 0xA1B23C4D, 4), ("<", 0xA1B2CD34, 4), ("<", 0xA1B2C3D4, 3)]
    ),
    st.lists(st.tuples(st.integers(0, 90), st.integers(0, 90)), max_size=30),
    st.integers(0, 40),
)
def test_records_begin_at_the_same_places(
    kind: tuple[str, int, int], lengths: list[tuple[int, int]], cut: int
) -> None:
    order, magic, minor = kind
    header = 24 if magic == 0xA1B2CD34 else 16
    records = [
        struct.pack(f"{order}IIII", number, 0, *both_lengths).ljust(header, b"\0") + bytes(size)
        for number, both_lengths in enumerate(lengths)
        if (size := min(both_lengths) if minor == 3 else both_lengths[0]) >= 0
    ]
    head = struct.pack(f"{order}IHHIIII", magic, 2, minor, 0, 0, 65535, 1)
    file = (head + b"".join(records))[: len(head) + max(sum(map(len, records)) - cut, 0)]

    def read() -> tuple[list[Any], str]:
        found: list[Any] = []
        with open_capture(io.BytesIO(file)) as capture:
            try:
                for batch in capture.batches():
                    found += list(batch.records())
            except CaptureError as error:
                return found, str(error)
        return found, ""

    one, other = both(read)

    assert one == other
    if not cut:
        assert len(one[0]) == len(lengths)


def test_arrays_of_wrong_sizes_and_frames_outside_the_buffer_are_refused() -> None:
    native, data = native_module(), np.zeros(100, np.uint8)
    rows, start, end = np.array([0]), np.array([0]), np.array([101])
    seeds, found = np.zeros(1, np.uint32), np.zeros(1, np.uint32)

    for wrong in (np.array([1]), np.array([-1])):
        with pytest.raises(ValueError, match="outside the buffer"):
            native.icrcs(data, wrong, start, end, seeds, (), found)
    with pytest.raises(ValueError, match="outside the buffer"):
        native.icrcs(data, rows, start, end, seeds, (), found)
    with pytest.raises(ValueError, match="8 bytes instead of 4"):
        native.icrcs(data, rows, start, end, np.zeros(2, np.uint32), (), found)
    with pytest.raises(ValueError, match="16 bytes or more"):
        native.record_starts(data, 0, 8, False, True, np.zeros(9, np.int64))


def test_a_compiled_file_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    stale = ModuleType("_native")
    monkeypatch.setattr(base, "_native", stale, raising=False)
    monkeypatch.setitem(sys.modules, "ibwire.base._native", stale)
    spec = native_front.__spec__
    assert spec is not None
    fresh = importlib.util.module_from_spec(spec)
    assert spec.loader is not None

    spec.loader.exec_module(fresh)
    assert fresh.native is None
    stale.FORMAT = fresh.FORMAT  # type: ignore[attr-defined]
    spec.loader.exec_module(fresh)
    assert fresh.native is stale


def test_bits_behind_the_end_of_a_frame_are_not_masked() -> None:
    native, data = native_module(), np.arange(100, dtype=np.uint8)
    found = np.zeros(1, np.uint32)
    masks = ((np.array([10]), bytes([1, 0xFF, 39, 0xFF, 200, 0xFF])),)

    native.icrcs(
        data, np.array([0]), np.array([2]), np.array([53]), np.zeros(1, np.uint32), masks, found
    )

    covered = data[2:49].copy()
    covered[9] = 0xFF
    assert found.tolist() == [zlib.crc32(covered)]


def test_a_packet_without_all_of_its_headers_is_refused() -> None:
    columns = Columns(batch_of(strategies.transported()))
    rows = packets.known(columns)
    flow = np.zeros(len(rows), np.int32)
    long = rows[columns["payload.len"][rows] > 0][-1]
    columns.frames.limit[long] = columns.frames.payload[long] - 1

    with pytest.raises(ValueError, match="does not have all of its headers"):
        with_build(native_module(), lambda: packets.read(columns, rows, flow))
