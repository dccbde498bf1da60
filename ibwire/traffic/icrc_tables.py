"""Tables of how the ICRC changes with one byte, independent of the rest of the packet.

A CRC is linear but for a constant: writing `new` over `old` changes it by the same bits
in every packet in which as many bytes follow. So a table for each byte that varies
takes the place of a CRC over each packet (reference/sending#affine-icrc).
"""

from __future__ import annotations

from functools import lru_cache
from zlib import crc32

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]


@lru_cache(maxsize=4096)
def change_table(following: int) -> Words:
    """(256,) The change of the CRC for each `old ^ new` of a byte.

    following: covered bytes after it.
    """
    zeros = crc32(bytes(1 + following))
    table = np.zeros(256, np.uint32)
    for bit in range(8):
        change = crc32(bytes((1 << bit,)) + bytes(following)) ^ zeros
        # Each entry with this bit is the entry without it XOR the change of the bit.
        table[1 << bit : 2 << bit] = table[: 1 << bit] ^ np.uint32(change)
    table.flags.writeable = False
    return table
