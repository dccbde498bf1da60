"""How the ICRC depends on a few bytes of a header, in both directions.

A CRC is linear: what a change of some bytes changes in it depends on the change and on
how many bytes follow, not on the message. So the ICRC of a packet can follow a change
of its header without being computed again, and stays wrong if it was; and what was
changed can be found from what has become of the ICRC.

Source: CRC-32 as in IBA 7.8.1; its polynomial is primitive, so x has the order 2**32 - 1.
"""

from __future__ import annotations

from functools import lru_cache
from zlib import crc32


def icrc_change(difference: bytes, after: int) -> int:
    """The value to XOR an ICRC with when bytes of a packet are XORed with a difference.

    after: bytes after them that the ICRC covers. Both are numbers as `crc32` gives them.
    """
    return crc32(difference + bytes(after)) ^ crc32(bytes(len(difference) + after))


def two_bytes_behind(change: int, after: int) -> bytes | None:
    """Which difference of two bytes makes this `icrc_change`; `None` when none does.

    One in 65536 changes is made by some two bytes.
    """
    # Feeding two bytes to the register XORs them into its low half, which then moves on by
    # sixteen bits and with the bytes that follow. So it is moved back.
    register = _product(change, _backwards(2 + after))
    return register.to_bytes(2, "little") if register < 1 << 16 else None


@lru_cache(maxsize=4096)
def _backwards(count: int) -> int:
    """The factor that takes a register back by this many bytes of zeros."""
    power, exponent = _X, -8 * count % _ORDER
    result = _ONE
    while exponent:
        if exponent & 1:
            result = _product(result, power)
        power = _product(power, power)
        exponent >>= 1
    return result


def _product(left: int, right: int) -> int:
    """The product of two polynomials modulo that of the CRC; bit 31 is the coefficient of 1."""
    result = 0
    while left:
        if left & _ONE:
            result ^= right
        left = left << 1 & 0xFFFFFFFF
        right = right >> 1 ^ (_POLYNOMIAL if right & 1 else 0)
    return result


_ONE = 1 << 31
_X = 1 << 30
_POLYNOMIAL = 0xEDB88320
"""0x04C11DB7 with its bits reversed."""
_ORDER = (1 << 32) - 1
