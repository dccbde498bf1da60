"""Arithmetic of the 24-bit sequence numbers: PSN, MSN and SSN.

A number is newer than another if it is in the half of the circle ahead of it. Source: IBA 9.7.1
(the duplicate region reaches 2^23 back, the invalid region 2^23 - 1 ahead).
"""

from __future__ import annotations

from typing import Final

BITS: Final = 24
MODULUS: Final = 1 << BITS
MASK: Final = MODULUS - 1
HALF: Final = 1 << (BITS - 1)


def add(psn: int, count: int) -> int:
    """The number `count` steps after `psn`; `count` may be negative."""
    return (psn + count) & MASK


def distance(start: int, end: int) -> int:
    """Steps from `start` to `end`, -2^23 .. 2^23 - 1: negative when `end` is older."""
    return ((end - start + HALF) & MASK) - HALF


def is_newer(psn: int, than: int) -> bool:
    """Whether `psn` is in the half of the circle ahead of `than`."""
    return distance(than, psn) > 0


def in_window(psn: int, first: int, count: int) -> bool:
    """Whether `psn` is one of the `count` numbers that start with `first`."""
    return (psn - first) & MASK < count
