"""What has happened to a queue pair, counted."""

from __future__ import annotations

from ibwire_layers import syndrome as aeth


class QPCounters:
    """What has happened to a queue pair, for reports."""

    __slots__ = (
        *("packets_sent", "packets_received", "bytes_sent", "bytes_received"),
        *("retransmitted", "timeouts", "implied_naks", "sequence_naks_received"),
        *("rnr_naks_received", "fatal_naks_received", "ghost_acks", "unexpected_responses"),
        *("credit_stalls", "duplicates", "sequence_naks_sent", "rnr_naks_sent"),
        *("fatal_naks_sent", "dropped_messages", "bad_qkey", "cnps_received", "ce_marked"),
        "dropped",
    )

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)

    packets_sent: int
    packets_received: int
    bytes_sent: int
    """Payload."""
    bytes_received: int
    retransmitted: int
    """Request packets sent again."""
    timeouts: int
    implied_naks: int
    """Answers of READs and atomics found to be lost."""
    sequence_naks_received: int
    rnr_naks_received: int
    fatal_naks_received: int
    ghost_acks: int
    """Responses to what was acknowledged already."""
    unexpected_responses: int
    """Responses to what was never sent."""
    credit_stalls: int
    duplicates: int
    """Requests received again."""
    sequence_naks_sent: int
    rnr_naks_sent: int
    fatal_naks_sent: int
    dropped_messages: int
    """UC and UD messages without a receive request or with a fault."""
    bad_qkey: int
    cnps_received: int
    ce_marked: int
    """Packets received with the congestion-experienced mark."""
    dropped: int
    """Packets dropped in silence: wrong state, service, P_Key or sender."""

    def __repr__(self) -> str:
        told = (f"{name}={count}" for name, count in self.as_dict().items() if count)
        return f"<QPCounters {' '.join(told)}>"

    def count_nak(self, syndrome: int) -> None:
        """Count a NAK that leaves."""
        if aeth.kind(syndrome) is aeth.AckKind.RNR_NAK:
            self.rnr_naks_sent += 1
        elif syndrome & 31 == aeth.NakCode.PSN_SEQUENCE_ERROR:
            self.sequence_naks_sent += 1
        else:
            self.fatal_naks_sent += 1

    def as_dict(self) -> dict[str, int]:
        """Name to count."""
        return {name: getattr(self, name) for name in self.__slots__}
