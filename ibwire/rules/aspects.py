"""What rules about single packets look at, and what of it is as usual in all packets of a chunk.

One pass in C over the bytes finds that, so that the rules about the rest need no columns. It may
take a packet for unusual that breaks no rule, but never the other way round; without it everything
counts as unusual.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

import numpy as np

from ibwire.base.native import native
from ibwire.dissect import Columns
from ibwire.dissect.frames import EXTENSION_OFFSET, HEADER_SIZE, Rows
from ibwire_layers import headers as h
from ibwire_layers import outer
from ibwire_layers.opcodes import INFO, OpCodeInfo, Operation, Payload, Position, Service


class Aspect(IntFlag):
    """What a rule looks at; `_native.c` has the same numbers."""

    SIZE = 1 << 0
    PAD_BYTES = 1 << 1
    VERSION = 1 << 2
    RESERVED = 1 << 3
    BYTE_4 = 1 << 4
    MIG_REQ = 1 << 5
    P_KEY = 1 << 6
    SOLICITED = 1 << 7
    DEST_QP = 1 << 8
    UDP_PORT = 1 << 9
    EXTENSION = 1 << 10
    ACK_REQ = 1 << 11
    SYNDROME = 1 << 12
    ADDRESS = 1 << 13
    CNP = 1 << 14
    BECN = 1 << 15
    HOP_LIMIT = 1 << 16
    Q_KEY = 1 << 17
    IP_CHECKSUM = 1 << 18
    UDP_CHECKSUM = 1 << 19
    OTHER = 1 << 20
    """Something else, which the pass does not know."""


ALL = (1 << 21) - 1


def unusual(columns: Columns, rows: Rows) -> int:
    """The aspects in which some of these packets, with all of their headers, may break a rule."""
    if native is None:
        return ALL
    frames = columns.frames
    found: int = native.unusual_aspects(
        frames.data,
        rows,
        frames.limit,
        frames.end,
        frames.has_icrc,
        *(frames.position(header) for header in (h.BTH, outer.IPv4, outer.IPv6, outer.UDP)),
        HEADER_SIZE,
        _KINDS,
        *(EXTENSION_OFFSET[header] for header in (h.RETH, h.AtomicETH, h.AETH)),
    )
    return found | Aspect.OTHER


class _Kind(IntEnum):
    """What an opcode says about its packets, as bits; `_native.c` has the same numbers."""

    EMPTY = 1 << 0
    FULL = 1 << 1
    NOT_EMPTY = 1 << 2
    UP_TO_MTU = 1 << 3
    EIGHT = 1 << 4
    WHOLE_WRITE = 1 << 5
    CONNECTED = 1 << 6
    MAY_SOLICIT = 1 << 7
    MAY_ASK = 1 << 8
    HAS_DATA = 1 << 9
    CNP = 1 << 10
    DATAGRAM = 1 << 11
    RARE = 1 << 12
    """Packets of which everything counts as unusual."""


def _kinds_of(info: OpCodeInfo) -> int:
    operation, payload = info.operation, info.payload
    ends = info.position in (Position.LAST, Position.ONLY)
    is_write = operation is Operation.WRITE
    what = {
        _Kind.EMPTY: payload is Payload.NONE,
        _Kind.FULL: payload is Payload.PMTU,
        _Kind.NOT_EMPTY: payload is Payload.SOME,
        _Kind.UP_TO_MTU: payload in (Payload.SOME, Payload.ANY),
        _Kind.EIGHT: payload is Payload.EIGHT,
        _Kind.WHOLE_WRITE: is_write and info.position is Position.ONLY,
        _Kind.CONNECTED: info.service in (Service.RC, Service.UC, Service.XRC),
        _Kind.MAY_SOLICIT: ends
        and (operation is Operation.SEND or (is_write and h.ImmDt in info.headers)),
        _Kind.MAY_ASK: not info.is_response and info.service in (Service.RC, Service.XRC),
        _Kind.HAS_DATA: operation is not Operation.ACKNOWLEDGE,
        _Kind.CNP: info.service is Service.CNP,
        _Kind.DATAGRAM: info.service is Service.UD,
        _Kind.RARE: info.service is Service.RD
        or any(each in info.headers for each in (h.XRCETH, h.FETH)),
    }
    return sum(kind for kind, applies in what.items() if applies)


_KINDS = np.zeros(256, np.uint32)
for _info in INFO.values():
    _KINDS[_info.opcode] = _kinds_of(_info)
