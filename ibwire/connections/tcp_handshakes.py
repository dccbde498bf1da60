"""Lines of text in which test programs exchange their queue pairs over TCP.

Each ends with a NUL or a line feed. `ibv_rc_pingpong` and similar programs of rdma-core send
`LID:QPN:PSN:GID`, perftest sends `LID:READs:QPN:PSN:R_Key:address:GID:SRQ number:`
(both in hexadecimal digits, of fixed number), others a JSON object.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple


class Line(NamedTuple):
    """What one line names of its sender."""

    protocol: str
    qpn: int
    """0 in a filler line: srq_pingpong always sends 256 lines, also with fewer queue pairs."""
    psn: int | None
    address: str | None = None
    """`None` if it names no address: then that of the IP header."""
    reads: int | None = None
    """READs and atomics that it serves at once."""


VERSION_SIZE = 16
"""Bytes in which perftest sends its version, before anything else (reference/habits#perftest)."""

_NUMBERS = rb"([0-9a-f]{4}):(?:([0-9a-f]{4}):)?([0-9a-f]{6}):([0-9a-f]{6}):"
"""LID, READs that are served (perftest since 2010 or so), QPN, PSN."""

# Compiled by the first line that a capture has: that takes longer than most imports.
_WHOLE = (
    _NUMBERS + rb"(?:([0-9a-f]{32})"  # rdma-core rc_pingpong.c: the GID
    # perftest_communication.h: R_Key, address, GID, SRQ number
    rb"|[0-9a-f]{8}:[0-9a-f]{16}((?::[0-9a-f]{2}){16})?(?::[0-9a-f]{8})?:?)\Z"
)
_CUT = _NUMBERS + rb"[0-9a-f:]*\Z"
KEPT = 256
"""Lines whose meaning is remembered: srq_pingpong and perftest send some of theirs very often."""
SHORTEST_LINE = 50
"""Bytes that may be missing without a whole line among them."""

MTU_LINE = rb"(?s)[^.]{0,3}[1-5]"
"""The code of an MTU on its line, after bytes without a line end (check_mtu)."""

_OBJECT = rb"\{[^{}]*\}"
_QPN, _PSN = rb'"qpn"\s*:\s*(\d{1,8})\b', rb'"psn"\s*:\s*(\d{1,8})\b'
_GID = rb'"gid"\s*:\s*"([0-9a-fA-F:.]{2,45})"'


@lru_cache(KEPT)
def read_line(line: bytes, cut: bool) -> tuple[Line, ...]:
    """The queue pair that a line names; a JSON line may name several.

    cut: the end of the line was not captured.
    """
    match = re.search(_CUT if cut else _WHOLE, line)
    if match is None:
        return tuple(_read_json(line))
    lid, reads, qpn, psn = (int(part or b"0", 16) for part in match.groups()[:4])
    gid, octets = (None, None) if cut else match.groups()[4:]
    address = _address((gid or octets or b"").replace(b":", b""), lid)
    protocol = "pingpong" if gid or (cut and match[2] is None) else "perftest"
    return (Line(protocol, qpn=qpn, psn=psn, address=address, reads=reads or None),)


def _address(gid: bytes, lid: int) -> str | None:
    """The address that packets will have: from the GID if there is one, else from the LID.

    A GID that holds an IPv4 address stands for that one, as in RoCEv2.
    """
    number = int(gid, 16) if gid else 0
    if number:
        address = ipaddress.IPv6Address(number)
        return str(address.ipv4_mapped or address)
    return f"LID {lid}" if lid else None


def _read_json(line: bytes) -> Iterator[Line]:
    for found in re.findall(_OBJECT, line) if b'"qpn"' in line else ():
        qpn, psn, gid = (re.search(each, found) for each in (_QPN, _PSN, _GID))
        if qpn is None or psn is None or max(int(qpn[1]), int(psn[1])) >= 1 << 24:
            continue
        try:
            address = ipaddress.IPv6Address(gid[1].decode()) if gid else None
        except ipaddress.AddressValueError:
            continue
        where = str(address.ipv4_mapped or address) if address else None
        yield Line("json", qpn=int(qpn[1]), psn=int(psn[1]), address=where)
