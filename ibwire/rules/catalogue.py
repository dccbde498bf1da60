"""Every rule, and what judges it: one table, family by family."""

from __future__ import annotations

from ibwire.rules import (
    atomics,
    congestion,
    credits,
    integrity,
    lengths,
    naks,
    psn_acks,
    reads,
    repeat,
    sequences,
)
from ibwire.rules.findings import Rule
from ibwire.rules.life import Law, Life
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
    "integrity": "ICRC and header bits",
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
        integrity.RULES,
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
)
"""Those that one packet breaks by itself."""


def laws(life: Life) -> list[Law]:
    """The laws of a reliable connection, in the order in which they hear of a packet."""
    messages = psn_acks.Messages(life)
    return [
        messages,
        psn_acks.Acknowledged(life),
        psn_acks.Kind(life),
        sequences.Order(life),
        lengths.PathMtu(life),
        lengths.Write(life),
        naks.Refusals(life),
        credits.Credits(life, messages),
        reads.Requests(life),
        reads.Responses(life),
        atomics.Atomics(life),
        repeat.Repeated(life),
        repeat.Retries(life),
        repeat.Duplicates(life),
    ]


def unreliable_laws(life: Life) -> list[Law]:
    """The laws of requests alone, as of an unreliable connection."""
    return [sequences.Order(life), lengths.PathMtu(life), lengths.Write(life)]
