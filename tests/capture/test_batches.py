"""How a file is cut into batches."""

import io
import struct

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ibwire.capture import PcapngWriter, open_capture
from ibwire.capture.reader import MAXIMUM_ROWS


def test_many_tiny_records_are_handed_out_in_bounded_batches() -> None:
    """Six megabytes of empty records would be 400,000 rows."""
    empty = 50_000
    head = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)

    with open_capture(io.BytesIO(head + bytes(16 * empty))) as capture:
        sizes = [len(batch) for batch in capture.batches()]

    assert sum(sizes) == empty
    assert max(sizes) <= MAXIMUM_ROWS


@given(st.integers(1, 12), st.lists(st.booleans(), max_size=10))
def test_parts_of_a_batch_hold_its_records_in_order(rows: int, commented: list[bool]) -> None:
    out = io.BytesIO()
    with PcapngWriter(out) as writer:
        for number, has_comment in enumerate(commented):
            comments = (f"packet {number}",) if has_comment else ()
            writer.write(bytes([number] * number), number, comments=comments)
    out.seek(0)

    with open_capture(out) as capture:
        for batch in capture.batches():
            parts = list(batch.split(rows))
            records = [record for part in parts for record in part.records()]
            assert records == list(batch.records())
            assert all(0 < len(part) <= rows for part in parts)
            assert all(np.shares_memory(part.data, batch.data) for part in parts)
