"""Records to a file in the format that its name asks for."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import chain

from ibwire.base.errors import CaptureError, EncodeError
from ibwire.capture.index import Record
from ibwire.capture.pcap import PcapWriter
from ibwire.capture.pcapng import PcapngWriter


def write_capture(path: str | os.PathLike[str], records: Iterable[Record]) -> int:
    """Write records to `.pcap` or `.pcapng`, and `.gz`, `.xz` or `.zst` after it; returns how many.

    Times keep their nanoseconds. pcap holds one link type and neither interfaces nor
    comments; pcapng numbers the interfaces in the order they appear. Raises
    `CaptureError` for another suffix or a file that cannot be opened, `EncodeError`
    for a record that the format cannot hold.
    """
    name = os.fspath(path).lower()
    stem, suffix = os.path.splitext(name)
    if suffix in _COMPRESSED:
        suffix = os.path.splitext(stem)[1]
    write = _FORMATS.get(suffix)
    if write is None:
        reason = f"cannot be written: the name ends neither in {' nor in '.join(_FORMATS)}"
        raise CaptureError(os.fspath(path), None, reason)
    return write(path, records)


def _write_pcap(path: str | os.PathLike[str], records: Iterable[Record]) -> int:
    rest = iter(records)
    first = next(rest, None)
    count = 0
    with PcapWriter(path, _ETHERNET if first is None else first.link_type) as writer:
        for record in chain(() if first is None else (first,), rest):
            if record.link_type != writer.link_type:
                expected = f"{writer.link_type}, as in the first record: pcap holds one link type"
                raise EncodeError("link_type", record.link_type, expected)
            writer.write(record.data, record.time_ns, record.wire_len)
            count += 1
    return count


def _write_pcapng(path: str | os.PathLike[str], records: Iterable[Record]) -> int:
    rest = iter(records)
    first = next(rest, None)
    if first is None:
        PcapngWriter(path).close()
        return 0
    numbers = {(first.interface, first.link_type): 0}
    count = 0
    with PcapngWriter(path, first.link_type) as writer:
        for record in chain((first,), rest):
            key = record.interface, record.link_type
            if key not in numbers:
                numbers[key] = writer.add_interface(record.link_type)
            writer.write(
                record.data,
                record.time_ns,
                record.wire_len,
                interface=numbers[key],
                comments=record.comments,
            )
            count += 1
    return count


_ETHERNET = 1
_COMPRESSED = frozenset({".gz", ".xz", ".zst"})
_FORMATS = {".pcap": _write_pcap, ".pcapng": _write_pcapng}
