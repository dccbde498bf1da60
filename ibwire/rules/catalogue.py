"""Every rule, and what judges it: one table, family by family."""

from __future__ import annotations

from ibwire.rules import (
    atomics,
    checksums,
    congestion,
    constant,
    credits,
    integrity,
    lengths,
    management,
    msn,
    naks,
    psn_acks,
    reads,
    repeat,
    routing,
    sequences,
)
from ibwire.rules.findings import Rule
from ibwire.rules.history import ConnectionCheck, RequestHistory
from ibwire.rules.packet import PacketRule

FAMILIES = {
    "sequences": "Order of opcodes",
    "lengths": "Payload, padding and lengths",
    "psn_acks": "PSNs, ACKs, MSN",
    "naks": "NAKs and RNR NAKs",
    "credits": "End-to-end credits",
    "reads": "RDMA READ",
    "atomics": "Atomic operations",
    "repeat": "Retransmission",
    "congestion": "Congestion notification",
    "cm": "Connection management",
    "constant": "Fields that do not change",
    "integrity": "ICRC, checksums and header bits",
}
"""First part of a rule's id -> what it is about."""

RULES: dict[str, Rule] = {
    rule.id: rule
    for rules in (
        sequences.RULES,
        lengths.RULES,
        psn_acks.RULES,
        naks.RULES,
        credits.RULES,
        reads.RULES,
        atomics.RULES,
        repeat.RULES,
        congestion.RULES,
        management.RULES,
        constant.RULES,
        integrity.RULES,
        routing.RULES,
        checksums.RULES,
    )
    for rule in rules
}
"""By id."""

PACKET_RULES: tuple[PacketRule, ...] = (
    *sequences.PACKET_RULES,
    *lengths.PACKET_RULES,
    *psn_acks.PACKET_RULES,
    *naks.PACKET_RULES,
    *atomics.PACKET_RULES,
    *congestion.PACKET_RULES,
    *integrity.PACKET_RULES,
    *routing.PACKET_RULES,
    *checksums.PACKET_RULES,
)
"""Those that one packet breaks by itself."""


def checks(history: RequestHistory) -> list[ConnectionCheck]:
    """The checks of a reliable connection, in the order in which they receive a packet."""
    messages = msn.Messages(history)
    return [
        messages,
        psn_acks.Acknowledged(history),
        psn_acks.Kind(history),
        sequences.Order(history),
        lengths.PathMtu(history),
        lengths.Write(history),
        naks.Refusals(history),
        credits.Credits(history, messages),
        reads.Requests(history),
        reads.Responses(history),
        atomics.Atomics(history),
        repeat.Repeated(history),
        repeat.Retries(history),
        repeat.Duplicates(history),
    ]


def unreliable_checks(history: RequestHistory) -> list[ConnectionCheck]:
    """The checks of requests alone, as of an unreliable connection."""
    return [sequences.Order(history), lengths.PathMtu(history), lengths.Write(history)]
