"""Counters of a queue pair."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ibwire_layers import syndrome as aeth


@dataclass(slots=True, repr=False, eq=False)
class QPCounters:
    """Packets, retransmissions, NAKs and drops of one queue pair."""

    packets_sent: int = 0
    packets_received: int = 0
    bytes_sent: int = 0
    """Payload."""
    bytes_received: int = 0
    retransmitted: int = 0
    """Request packets retransmitted."""
    timeouts: int = 0
    implied_naks: int = 0
    """Responses to READs and atomics found to be lost."""
    sequence_naks_received: int = 0
    rnr_naks_received: int = 0
    fatal_naks_received: int = 0
    ghost_acks: int = 0
    """Responses to packets that were acknowledged already."""
    unexpected_responses: int = 0
    """Responses to PSNs that were never sent."""
    credit_stalls: int = 0
    duplicates: int = 0
    """Duplicate requests received."""
    sequence_naks_sent: int = 0
    rnr_naks_sent: int = 0
    fatal_naks_sent: int = 0
    dropped_messages: int = 0
    """UC and UD messages without a receive request or with a fault."""
    bad_qkey: int = 0
    cnps_received: int = 0
    ce_marked: int = 0
    """Packets received with the congestion-experienced mark."""
    dropped: int = 0
    """Packets dropped silently: wrong state, service, P_Key or sender."""

    def __repr__(self) -> str:
        counted = (f"{name}={count}" for name, count in self.as_dict().items() if count)
        return f"<QPCounters {' '.join(counted)}>"

    def count_nak(self, syndrome: int) -> None:
        """Count a NAK that is sent."""
        if aeth.kind(syndrome) is aeth.AckKind.RNR_NAK:
            self.rnr_naks_sent += 1
        elif syndrome & 31 == aeth.NakCode.PSN_SEQUENCE_ERROR:
            self.sequence_naks_sent += 1
        else:
            self.fatal_naks_sent += 1

    def as_dict(self) -> dict[str, int]:
        """Name to count."""
        return asdict(self)
