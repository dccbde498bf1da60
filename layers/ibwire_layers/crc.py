"""ICRC, VCRC and LPCRC, and the bits that the ICRC excludes.

The ICRC is the CRC-32 of Ethernet and zlib over a copy of the packet in which
the fields that may change in transit are all ones (IBA 7.8.1; RoCEv2: annex
A17.3.3). VCRC and LPCRC are a 16-bit CRC over the real bytes (IBA 7.8.2, 7.9.4).
All are sent least significant byte first.
"""

from __future__ import annotations

import zlib

from ibwire_layers.schema import Bytes

ICRC_SEED = zlib.crc32(b"\xff" * 8)
"""CRC after the eight 0xFF bytes that replace the LRH in packets that do not cover one."""

# Offset in a header, and bits that are set to one before the CRC is taken.
LRH_MASK = ((0, 0xF0),)  # VL
GRH_MASK = ((0, 0x0F), (1, 0xFF), (2, 0xFF), (3, 0xFF), (7, 0xFF))  # class, label, hop limit
IPV6_MASK = GRH_MASK
IPV4_MASK = ((1, 0xFF), (8, 0xFF), (10, 0xFF), (11, 0xFF))  # DSCP and ECN, TTL, checksum
UDP_MASK = ((6, 0xFF), (7, 0xFF))  # checksum
BTH_MASK = ((4, 0xFF),)  # FECN, BECN, Resv6a; never Resv7

Mask = tuple[tuple[int, int], ...]


def icrc(packet: Bytes, masks: tuple[tuple[int, Mask], ...], seed: int = ICRC_SEED) -> bytes:
    """The four ICRC bytes as sent.

    packet: from the first covered header to the last pad byte, without the ICRC.
    masks: offset of each header in `packet`, with its mask.
    seed: `ICRC_SEED`, or 0 for a native packet without GRH, where the LRH is covered.
    """
    return register(packet, masks, seed).to_bytes(4, "little")


def register(packet: Bytes, masks: tuple[tuple[int, Mask], ...], seed: int) -> int:
    """The CRC of a packet or of its beginning, with the masked bits set to one."""
    return zlib.crc32(masked(packet, masks), seed)


def masked(packet: Bytes, masks: tuple[tuple[int, Mask], ...]) -> bytes:
    """The bytes with the masked bits set to one."""
    copy = bytearray(packet)
    for start, mask in masks:
        for offset, ones in mask:
            copy[start + offset] |= ones
    return bytes(copy)


def vcrc(packet: Bytes) -> bytes:
    """The two VCRC bytes as sent, over everything from the LRH to the ICRC."""
    return _crc16(packet).to_bytes(2, "little")


def lpcrc(packet: Bytes) -> bytes:
    """The two LPCRC bytes as sent, over the first four bytes of a flow-control packet."""
    return _crc16(packet).to_bytes(2, "little")


def internet_checksum(data: Bytes) -> int:
    """The checksum of IP and UDP (RFC 1071), padded with a zero byte to an even length.

    It is 0 over data that includes its own correct checksum.
    """
    total = sum(data[0::2]) * 256 + sum(data[1::2])
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def _crc16(data: Bytes) -> int:
    register = 0xFFFF
    if len(data) >= _FOLDABLE:
        data = _folded(data, register)
        register = 0
    for byte in data:
        register = register >> 8 ^ CRC16_TABLE[(register ^ byte) & 0xFF]
    return register ^ 0xFFFF


def _folded(data: Bytes, register: int) -> bytes:
    """Fewer bytes with the same remainder, which begin with a register of 0.

    The first bit that is sent is the highest power of x, and the lowest bit of the number here.
    x^469 + x^93 + 1 is a multiple of the CRC's polynomial, and so are its squares: each fold
    replaces the first bits by their product with the two lower powers.
    """
    left = 8 * len(data)
    value = int.from_bytes(data, "little") ^ register
    for scale in _SCALES:
        first, shift = (_HIGH - _MIDDLE) * scale, _MIDDLE * scale
        while left >= first + _HIGH * scale:
            folded = value & (1 << first) - 1
            value = value >> first ^ folded ^ folded << shift
            left -= first
    return value.to_bytes(left // 8, "little")


_HIGH, _MIDDLE = 469, 93
"""Exponents of the trinomial; their difference is 47 bytes."""
_FOLDABLE = (2 * _HIGH - _MIDDLE + 7) // 8
"""Bytes from which a message can be folded."""
_SCALES = (32, 16, 8, 4, 2, 1)


def _crc16_table(reflected: int) -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (reflected if value & 1 else 0)
        table.append(value)
    return tuple(table)


CRC16_TABLE = _crc16_table(0xD008)  # 0x100B with its bits reversed
