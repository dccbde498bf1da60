"""The bytes of a packet that a switch looks at and changes, and the VCRC that follows them."""

from __future__ import annotations

from functools import cache
from typing import Final

from ibwire.base.node import Frame
from ibwire.fabric.infiniband.errors import AbortedFrame
from ibwire_layers import crc
from ibwire_layers.headers import BTH, GRH, LRH

MANAGEMENT_VL: Final = 15
LRH_SIZE = LRH.SIZE
VCRC_SIZE: Final = 2
DELIMITERS: Final = 2
"""Bytes of the start and the end of a packet on a link (IBA 7.2)."""
SHORTEST = LRH.SIZE + BTH.SIZE + 4 + VCRC_SIZE
"""Bytes of the shortest packet of the transport."""
_GLOBAL = 3
"""LNH: a GRH follows."""


def vl_of(frame: Frame) -> int:
    """The virtual lane of a packet."""
    return frame[0] >> 4


def sl_of(frame: Frame) -> int:
    """The service level of a packet."""
    return frame[1] >> 4


def dlid_of(frame: Frame) -> int:
    """The destination LID of a packet."""
    return frame[2] << 8 | frame[3]


def slid_of(frame: Frame) -> int:
    """The source LID of a packet."""
    return frame[6] << 8 | frame[7]


def words_of(frame: Frame) -> int:
    """PktLen: words of 4 bytes from the LRH to the ICRC."""
    return (frame[4] & 7) << 8 | frame[5]


def is_management(frame: Frame) -> bool:
    """Whether a packet carries a MAD: it is on VL15, or for queue pair 1."""
    if vl_of(frame) == MANAGEMENT_VL:
        return True
    kind = frame[1] & 3
    if kind < 2:
        return False
    at = LRH.SIZE + (GRH.SIZE if kind == _GLOBAL else 0) + 5
    return frame[at] == frame[at + 1] == 0 and frame[at + 2] == 1


def pkey_of(frame: Frame) -> int | None:
    """The P_Key of a packet, or `None`.

    A raw packet has none, nor has one that is too short for the GRH of its LNH: LNH is damaged.
    """
    kind = frame[1] & 3
    if kind < 2:
        return None
    at = LRH.SIZE + (GRH.SIZE if kind == _GLOBAL else 0) + 2
    if at + 2 > len(frame):
        return None
    return frame[at] << 8 | frame[at + 1]


def on_lane(frame: Frame, vl: int) -> Frame:
    """The packet on another virtual lane, with its VCRC; the ICRC does not cover the lane."""
    change = frame[0] ^ (vl << 4 | frame[0] & 15)
    if not change:
        return frame
    check = int.from_bytes(frame[-VCRC_SIZE:], "little") ^ _effect(change, len(frame) - VCRC_SIZE)
    return bytes((frame[0] ^ change,)) + frame[1:-VCRC_SIZE] + check.to_bytes(VCRC_SIZE, "little")


def aborted(frame: Frame) -> AbortedFrame:
    """The packet as a switch ends it that finds it damaged: EBP and the inverted VCRC."""
    check = bytes(byte ^ 0xFF for byte in crc.vcrc(frame[:-VCRC_SIZE]))
    return AbortedFrame(frame[:-VCRC_SIZE] + check)


def has_good_vcrc(frame: Frame) -> bool:
    """Whether the VCRC of a packet is right."""
    return crc.vcrc(frame[:-VCRC_SIZE]) == frame[-VCRC_SIZE:]


@cache
def _effect(change: int, size: int) -> int:
    """How the VCRC of a packet changes with its first byte: a CRC is linear."""
    register = crc.CRC16_TABLE[change]
    for _ in range(size - 1):
        register = register >> 8 ^ crc.CRC16_TABLE[register & 0xFF]
    return register
