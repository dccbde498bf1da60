"""What a packet needs to reach its queue pair whole: fields of IP, and the Q_Key of QP 1."""

from __future__ import annotations

import numpy as np

from ibwire.dissect import Columns
from ibwire.rules.aspects import Aspect
from ibwire.rules.findings import Rule, Severity
from ibwire.rules.packet import Chunk, Mask, PacketRule, opcodes_where
from ibwire_layers import outer
from ibwire_layers.errors import Fault
from ibwire_layers.opcodes import Service, name_of

FRAGMENT = Rule(
    "integrity.fragment",
    "Packets of RoCEv2 are not fragmented: DF is set, and adapters do not reassemble.",
    Severity.WARNING,
    "IBA annex A17.3",
    "docs/reference/wire-formats.md#ip-fields",
)
HOP_LIMIT = Rule(
    "integrity.hop-limit",
    "The TTL or hop limit of IP is not 0: no host sends such a packet, no router forwards it.",
    Severity.WARNING,
    "IBA annex A17.3, RFC 1122 3.2.1.7",
    "docs/reference/wire-formats.md#ip-fields",
    least=4,
)
Q_KEY = Rule(
    "integrity.q-key",
    "Datagrams to QP 1 have its Q_Key, 0x80010000.",
    Severity.ERROR,
    "IBA 3.5.3, 10.2.5",
    "docs/reference/wire-formats.md#special-queue-pairs",
)

RULES: tuple[Rule, ...] = (FRAGMENT, HOP_LIMIT, Q_KEY)

MANAGEMENT_QP, MANAGEMENT_Q_KEY = 1, 0x80010000

_DATAGRAMS = opcodes_where(lambda info: info.service is Service.UD)


def _fragments(columns: Columns) -> Chunk:
    """The first fragments of packets; others have no BTH."""
    frames = columns.frames
    return Chunk(columns, np.flatnonzero((frames.bth >= 0) & (frames.fault == Fault.FRAGMENT)))


def _has_no_hops(chunk: Chunk) -> Mask:
    four = _has(chunk, outer.IPv4) & (chunk["ip.ttl"] == 0)
    six = _has(chunk, outer.IPv6) & (chunk["ipv6.hlim"] == 0)
    mask: Mask = four | six
    return mask


def _has(chunk: Chunk, header: type) -> Mask:
    mask: Mask = chunk.columns.frames.position(header)[chunk.rows] >= 0
    return mask


PACKET_RULES: tuple[PacketRule, ...] = (
    PacketRule(
        FRAGMENT,
        lambda chunk: np.ones(len(chunk), np.bool_),
        lambda chunk, row: f"the first fragment of a {name_of(int(chunk.opcode[row]))}",
        _fragments,
        has_icrc=False,
    ),
    PacketRule(
        HOP_LIMIT,
        _has_no_hops,
        lambda chunk, row: f"{name_of(int(chunk.opcode[row]))} with TTL or hop limit 0",
        aspect=Aspect.HOP_LIMIT,
    ),
    PacketRule(
        Q_KEY,
        lambda chunk: (
            chunk.are(_DATAGRAMS)
            & (chunk["bth.destqp"] == MANAGEMENT_QP)
            & (chunk["deth.q_key"] != MANAGEMENT_Q_KEY)
        ),
        lambda chunk, row: (
            f"{name_of(int(chunk.opcode[row]))} to QP 1 with Q_Key "
            f"0x{chunk['deth.q_key'][row]:08x}, expected 0x{MANAGEMENT_Q_KEY:08x}"
        ),
        aspect=Aspect.Q_KEY,
    ),
)
