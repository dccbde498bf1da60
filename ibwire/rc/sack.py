"""Selective acknowledgement: which packets arrived before one that is missing.

A NAK for a sequence error names the missing packet. With this record after it, it also names the
ranges of PSNs that have arrived since, so that the sender can retransmit all that is missing in one
round trip. The record follows the ICRC, as bytes of the Ethernet frame after the IP packet: a peer
that does not know it goes back to the PSN of the NAK.

    kind 0x53, number of ranges, then 8 times the first PSN and the PSN after the last, 3 bytes each

Source: the idea is that of IRN (SIGCOMM 2018); the form is a choice of this emulator
(docs/reference/transport.md#selective-repeat).
"""

from __future__ import annotations

from collections.abc import Iterable

from ibwire_layers.psn import HALF, MASK

KIND = 0x53
MAXIMUM_RANGES = 8
SIZE = 2 + 6 * MAXIMUM_RANGES

Ranges = tuple[tuple[int, int], ...]
"""First PSN of each range and the PSN after its last one."""


def ranges_of(psns: Iterable[int], expected: int) -> Ranges:
    """The ranges of PSNs that arrived, nearest to the expected PSN first."""
    found: list[list[int]] = []
    for ahead in sorted((psn - expected) & MASK for psn in psns):
        if found and found[-1][1] == ahead:
            found[-1][1] = ahead + 1
        elif len(found) == MAXIMUM_RANGES:
            break
        else:
            found.append([ahead, ahead + 1])
    return tuple((expected + first & MASK, expected + end & MASK) for first, end in found)


def pack(ranges: Ranges) -> bytes:
    """The record of up to `MAXIMUM_RANGES` ranges."""
    numbers = b"".join(psn.to_bytes(3) for each in ranges for psn in each)
    return bytes((KIND, len(ranges))) + numbers.ljust(SIZE - 2, b"\0")


def unpack(record: bytes, expected: int) -> Ranges:
    """The ranges of a record, in order; none where they are not behind the expected PSN."""
    if len(record) != SIZE or record[0] != KIND or record[1] > MAXIMUM_RANGES:
        return ()
    found = []
    least = 1
    for number in range(record[1]):
        at = 2 + 6 * number
        first, end = int.from_bytes(record[at : at + 3]), int.from_bytes(record[at + 3 : at + 6])
        ahead, after = (first - expected) & MASK, (end - expected) & MASK
        if not least <= ahead < after < HALF:
            return ()
        least = after + 1
        found.append((first, end))
    return tuple(found)
