"""The first and last of many packets, dissected."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from ibwire.capture.index import PADDING, Record, RecordBatch
from ibwire.dissect import Columns
from ibwire.dissect.icrc import STATUS_WORDS
from ibwire.report.listing import Listing

MOST = 2_000_000
"""Packets built to show the last of them; it takes some seconds."""

FIRST, LAST = 5, 3
"""Packets shown."""

CHECKED = 1000
"""Packets at the beginning, and as many at the end, that are dissected."""


def preview(records: Iterator[Record], count: int | None, *, ends: bool) -> Iterator[str]:
    """Lines that show packets.

    count: how many there are, if known. ends: whether their number is limited.
    """
    begin = list(islice(records, CHECKED))
    end: deque[Record] = deque(maxlen=CHECKED)
    whole = False
    if ends and (count or 0) <= MOST:
        end.extend(islice(records, MOST))
        whole = next(records, None) is None
    seen = [*begin, *(end if whole else ())]
    if whole and seen:
        yield f"  {seen[-1].number} packets in {seen[-1].time_ns / 1e9:g} s"
    elif not whole:
        yield "  too many packets to show the last of them"
    columns = _dissected(seen)
    listing = Listing()
    if whole and len(seen) <= FIRST + LAST:
        yield from listing.lines(columns, np.arange(len(seen)))
    else:
        yield from listing.lines(columns, np.arange(min(FIRST, len(seen))))
        yield "   ..."
        if whole:
            yield from listing.lines(_dissected(seen[-LAST:]), np.arange(LAST))
    yield _verdict(columns)


def _dissected(records: Sequence[Record]) -> Columns:
    sizes = np.array([len(each.data) for each in records], np.int64)
    data = b"".join(each.data for each in records) + bytes(PADDING)
    count = len(records)
    return Columns(
        RecordBatch(
            data=np.frombuffer(bytearray(data), np.uint8),
            offsets=np.cumsum(sizes) - sizes,
            cap_len=sizes,
            wire_len=sizes,
            time_ns=np.array([each.time_ns for each in records], np.int64),
            link_type=np.array([each.link_type for each in records], np.uint16),
            interface=np.zeros(count, np.uint32),
            first_number=records[0].number if records else 1,
        ),
        "preview",
    )


def _verdict(columns: Columns) -> str:
    """Counts of ICRC states and malformed packets."""
    found = []
    if columns.rows:
        status = columns["icrc.status"][columns.valid("icrc.status")]
        counts = np.bincount(status, minlength=len(STATUS_WORDS)).tolist()
        found += [
            f"ICRC {word} in {each}"
            for word, each in zip(STATUS_WORDS, counts, strict=True)
            if each
        ]
        faults = int(columns.valid("fault").sum())
        found.append(f"{faults or 'no'} malformed")
    return f"of {columns.rows} packets checked: {', '.join(found) or 'none'}"
