"""Many packets at once: captures as columns.

for columns in read("capture.pcap"):
    print(columns["bth.psn"], columns.valid("bth.psn"))
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO

from ibwire.capture import open_capture
from ibwire.dissect.columns import Columns
from ibwire.dissect.fields import FIELDS

__all__ = ["FIELDS", "Columns", "read"]


def read(source: str | os.PathLike[str] | BinaryIO) -> Iterator[Columns]:
    """The packets of a capture, a chunk of a few megabytes at a time.

    source: a path, `-` for standard input, or an open binary file. Raises
    `CaptureError` where the file is damaged, after everything before the damage.
    """
    with open_capture(source) as capture:
        for batch in capture.batches():
            yield Columns(batch, capture.path)
