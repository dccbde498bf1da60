"""Captures put together byte by byte, without the code under test."""

from __future__ import annotations

import io
from collections.abc import Iterable
from struct import pack

from ibwire.base.errors import CaptureError
from ibwire.capture import Record, open_capture

MICROSECONDS = 0xA1B2C3D4
NANOSECONDS = 0xA1B23C4D
KUZNETSOV = 0xA1B2CD34


def pcap_header(
    order: str = "<",
    magic: int = MICROSECONDS,
    snaplen: int = 65535,
    link_type: int = 1,
    version: tuple[int, int] = (2, 4),
) -> bytes:
    return pack(f"{order}IHHiIII", magic, *version, 0, 0, snaplen, link_type)


def pcap_record(
    data: bytes,
    seconds: int = 0,
    fraction: int = 0,
    wire_len: int | None = None,
    order: str = "<",
    cap_len: int | None = None,
) -> bytes:
    cap_len = len(data) if cap_len is None else cap_len
    wire_len = cap_len if wire_len is None else wire_len
    return pack(f"{order}IIII", seconds, fraction, cap_len, wire_len) + data


def block(kind: int, body: bytes, order: str = "<") -> bytes:
    size = len(body) + 12
    return pack(f"{order}II", kind, size) + body + pack(f"{order}I", size)


def section(order: str = "<", version: tuple[int, int] = (1, 0)) -> bytes:
    return block(0x0A0D0D0A, pack(f"{order}IHHq", 0x1A2B3C4D, *version, -1), order)


def option(code: int, value: bytes, order: str = "<") -> bytes:
    return pack(f"{order}HH", code, len(value)) + value + bytes(-len(value) % 4)


def interface(
    link_type: int = 1, snaplen: int = 0, options: bytes = b"", order: str = "<"
) -> bytes:
    return block(1, pack(f"{order}HHI", link_type, 0, snaplen) + options, order)


def enhanced(
    data: bytes,
    ticks: int = 0,
    interface: int = 0,
    wire_len: int | None = None,
    options: bytes = b"",
    order: str = "<",
    cap_len: int | None = None,
) -> bytes:
    cap_len = len(data) if cap_len is None else cap_len
    wire_len = cap_len if wire_len is None else wire_len
    head = pack(f"{order}IIIII", interface, ticks >> 32, ticks & 0xFFFFFFFF, cap_len, wire_len)
    return block(6, head + data + bytes(-len(data) % 4) + options, order)


def simple(data: bytes, wire_len: int | None = None, order: str = "<") -> bytes:
    wire_len = len(data) if wire_len is None else wire_len
    return block(3, pack(f"{order}I", wire_len) + data + bytes(-len(data) % 4), order)


def obsolete(
    data: bytes, ticks: int, interface: int = 0, drops: int = 0, order: str = "<"
) -> bytes:
    high, low = ticks >> 32, ticks & 0xFFFFFFFF
    head = pack(f"{order}HHIIII", interface, drops, high, low, len(data), len(data))
    return block(2, head + data + bytes(-len(data) % 4), order)


def read(content: bytes, chunk_size: int = 4096) -> list[Record]:
    with open_capture(io.BytesIO(content), chunk_size) as reader:
        return list(reader.records())


def read_until_damage(
    content: bytes, chunk_size: int = 4096
) -> tuple[list[Record], CaptureError | None]:
    """The records before the damage, and the damage; None if there is none."""
    records: list[Record] = []
    try:
        with open_capture(io.BytesIO(content), chunk_size) as reader:
            for record in reader.records():
                records.append(record)
    except CaptureError as error:
        return records, error
    return records, None


def data_of(records: Iterable[Record]) -> list[bytes]:
    return [record.data for record in records]
