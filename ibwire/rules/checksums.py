"""Checksums of IPv4 headers and UDP datagrams.

A capture on the sending host may show packets before the adapter fills in checksums: the field
of IPv4 is then 0, that of UDP holds the sum of the pseudo header. Neither is reported.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ibwire.base.membership import are_among
from ibwire.rules.aspects import Aspect
from ibwire.rules.findings import Rule, Severity
from ibwire.rules.packet import Chunk, Mask, PacketRule
from ibwire_layers import outer
from ibwire_layers.opcodes import name_of
from ibwire_layers.outer import IPProto

IP_CHECKSUM = Rule(
    "integrity.ip-checksum",
    "The header checksum of IPv4 is correct.",
    Severity.ERROR,
    "IBA annex A17.3, RFC 791 3.1",
    "docs/reference/wire-formats.md#checksums",
    least=4,
)
UDP_CHECKSUM = Rule(
    "integrity.udp-checksum",
    "The UDP checksum is 0, or correct.",
    Severity.WARNING,
    "IBA annex A17.3, RFC 768",
    "docs/reference/wire-formats.md#checksums",
    least=4,
)

RULES: tuple[Rule, ...] = (IP_CHECKSUM, UDP_CHECKSUM)

AT_ONCE = 1 << 20
"""Bytes that are summed at a time."""

Sums = npt.NDArray[np.uint64]


def _sums(
    data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64], size: npt.NDArray[np.int64]
) -> Sums:
    """(n,) sums of the 16-bit words of `size` bytes from each position on, not folded.

    The last byte of an odd number counts as the upper half of a word (RFC 1071).
    """
    sums = np.zeros(len(at), np.uint64)
    for length in np.flatnonzero(np.bincount(size)).tolist():  # `np.unique` would import numpy.ma
        rows = np.flatnonzero(size == length)
        words = np.ndarray((len(data) - length + 1, length // 2), ">u2", data, strides=(1, 2))
        step = max(1, AT_ONCE // max(1, length))
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            sums[part] = words[at[part]].sum(axis=1, dtype=np.uint64)
            if length % 2:
                sums[part] += data[at[part] + length - 1].astype(np.uint64) << np.uint64(8)
    return sums


def _folded(sums: Sums) -> Sums:
    """(n,) one's complement sums of 16 bits (RFC 1071)."""
    for _ in range(3):
        sums = (sums & np.uint64(0xFFFF)) + (sums >> np.uint64(16))
    return sums


def _ip_is_wrong(chunk: Chunk) -> Mask:
    frames = chunk.columns.frames
    at = frames.position(outer.IPv4)[chunk.rows]
    wrong = np.zeros(len(chunk), np.bool_)
    rows = np.flatnonzero(at >= 0)
    if not len(rows):
        return wrong
    size = (frames.data[at[rows]] & 0xF).astype(np.int64) * 4
    wrong[rows] = _folded(_sums(frames.data, at[rows], size)) != 0xFFFF
    empty = np.flatnonzero(wrong & (chunk["ip.checksum"] == 0))
    if len(empty):
        filled = chunk["ip.src"][rows][chunk["ip.checksum"][rows] != 0]
        wrong[empty] = are_among(chunk["ip.src"][empty], filled)
    return wrong


def _udp_is_wrong(chunk: Chunk) -> Mask:
    frames = chunk.columns.frames
    wrong = np.zeros(len(chunk), np.bool_)
    udp = frames.position(outer.UDP)[chunk.rows]
    size = chunk["udp.length"].astype(np.int64)
    held = (udp >= 0) & (chunk["udp.checksum"] != 0) & (udp + size <= frames.limit[chunk.rows])
    rows = np.flatnonzero(held & (size >= outer.UDP.SIZE))
    if not len(rows):
        return wrong
    pseudo = (size[rows] + IPProto.UDP).astype(np.uint64)
    for header, offset, length in ((outer.IPv4, 12, 8), (outer.IPv6, 8, 32)):
        at = frames.position(header)[chunk.rows[rows]]
        have = np.flatnonzero(at >= 0)
        if len(have):
            pseudo[have] += _sums(
                frames.data, at[have] + offset, np.full(len(have), length, np.int64)
            )
    found = _folded(pseudo + _sums(frames.data, udp[rows], size[rows]))
    is_partial = chunk["udp.checksum"][rows] == _folded(pseudo)
    wrong[rows] = (found != 0xFFFF) & ~is_partial
    return wrong


def _ip_words(chunk: Chunk, row: int) -> str:
    found = f"IPv4 header checksum 0x{int(chunk['ip.checksum'][row]):04x}"
    return f"{name_of(int(chunk.opcode[row]))} with {found}, which is wrong"


def _udp_words(chunk: Chunk, row: int) -> str:
    found = f"UDP checksum 0x{int(chunk['udp.checksum'][row]):04x}"
    return f"{name_of(int(chunk.opcode[row]))} with {found}, which is wrong"


PACKET_RULES: tuple[PacketRule, ...] = (
    PacketRule(IP_CHECKSUM, _ip_is_wrong, _ip_words, aspect=Aspect.IP_CHECKSUM),
    PacketRule(UDP_CHECKSUM, _udp_is_wrong, _udp_words, aspect=Aspect.UDP_CHECKSUM),
)
