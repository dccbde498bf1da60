"""What implementations are known to do otherwise: allowed by the specification, or not.

When a target leaves the reference, the case is carried out again on references that
differ in one choice. One that agrees with the target explains it: an allowed choice is
no finding, and a known deviation is a finding with a name. Either is taken over, so that
the rest of the run is about something else.

Source: rc-transport facts, sections 6, 9, 10 and 24; ibwire.rc.profile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ibwire.rc.profile import (
    DuplicateAck,
    DuplicateAckPSN,
    ExcessReads,
    Profile,
    ReadReplay,
    SourcePort,
)
from ibwire.rc.work import WCStatus
from ibwire.units import MS
from ibwire_layers.syndrome import RNR_TIMER_US, NakCode


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to differ."""

    name: str
    """Field of `Profile`."""
    values: Sequence[Any]
    allowed: bool
    about: str
    rule: str
    """Where the specification says so, or leaves it open."""

    def variants(self, profile: Profile) -> Iterator[Profile]:
        """The profile with each value that it does not have."""
        for value in self.values:
            if getattr(profile, self.name) != value:
                changes: dict[str, Any] = {self.name: value}
                yield replace(profile, **changes)


_BOTH = (False, True)

CHOICES: Sequence[Choice] = (
    Choice("live_credits", _BOTH, True, "whether AETHs carry credits", "IBA 9.7.7.2"),
    Choice("request_reserved", (0, 0x10), True, "reserved bits of BTH byte 4", "IBA 9.2.1"),
    Choice("counts_identification", _BOTH, True, "the IPv4 identification", "RFC 6864"),
    Choice("route_hop_limit", (None, 64), True, "the hop limit", "IBA A17.3.2"),
    Choice("coalesces_acks", _BOTH, True, "one ACK for several requests", "IBA 9.7.5.1.2"),
    Choice("answers_in_turn", _BOTH, True, "the MSN of a late answer", "IBA 9.7.5.1.2"),
    Choice("naks_after_rnr", _BOTH, True, "a sequence NAK after an RNR NAK", "IBA 9.7.5.2.8"),
    Choice(
        "duplicate_ack", tuple(DuplicateAck), True, "which duplicates are ACKed", "IBA 9.7.5.1.4"
    ),
    Choice("duplicate_clears_nak", _BOTH, True, "a second NAK after a duplicate", "IBA 9.7.5.2.8"),
    Choice(
        "read_replay",
        tuple(ReadReplay),
        True,
        "which duplicate READs are answered again",
        "IBA 9.7.5.1.4",
    ),
    Choice("atomic_alignment_first", _BOTH, True, "which of two faults is NAKed", "IBA 9.7.5.2.4"),
    Choice(
        "invalid_request_status",
        (WCStatus.LOC_LEN_ERR, WCStatus.REM_INV_REQ_ERR, WCStatus.LOC_QP_OP_ERR),
        True,
        "status of the receive that a refused message had taken",
        "IBA 11.6.2",
    ),
    Choice(
        "oversized_send_status",
        (WCStatus.LOC_LEN_ERR, WCStatus.LOC_QP_OP_ERR),
        True,
        "status of a receive that was too small",
        "IBA 11.6.2",
    ),
    Choice(
        "receive_fault_status",
        (WCStatus.LOC_PROT_ERR, WCStatus.LOC_QP_OP_ERR),
        True,
        "status of a receive whose memory is at fault",
        "IBA 11.6.2",
    ),
    Choice("marks_grh", _BOTH, True, "flag GRH of receives of connections", "IBA 11.4.2.1"),
    Choice(
        "ack_request_interval",
        (64, 66, 16, 256),
        True,
        "how often an ACK is asked for",
        "rc-transport 5",
    ),
    Choice("limited_message", _BOTH, True, "what is sent beyond the credits", "IBA 9.7.7.2.5"),
    Choice("timeout_sends_one", _BOTH, True, "one packet after a timeout", "IBA 9.7.6.1.3"),
    Choice("waits_for_recovery", _BOTH, True, "when a READ is restarted again", "IBA 9.7.6.1"),
    Choice(
        "bad_response_length",
        (WCStatus.BAD_RESP_ERR, WCStatus.LOC_LEN_ERR, WCStatus.FATAL_ERR),
        True,
        "status for a READ response of the wrong length",
        "IBA 11.6.2",
    ),
    Choice(
        "bad_response",
        (WCStatus.BAD_RESP_ERR, WCStatus.LOC_QP_OP_ERR, WCStatus.FATAL_ERR),
        True,
        "status for a response that does not fit",
        "IBA 11.6.2",
    ),
    Choice("asks_on_qp1", _BOTH, True, "AckReq of MADs, which nobody answers", "IBA 9.8.3"),
    Choice("source_port", tuple(SourcePort), True, "the UDP source port", "IBA A17.9.1"),
    Choice("max_unacked_psns", (128, (1 << 23) - 1), True, "packets on their way", "IBA 9.7.1"),
    Choice("counts_atomic_write", _BOTH, True, "what max_rd_atomic counts", "IBA 9.7.3.1"),
    Choice("rnr_granularity", (1, 4 * MS), True, "how exact the RNR wait is", "IBA 9.7.5.2.8"),
    # What the specification does not allow.
    Choice(
        "mig_req",
        (0, 1),
        False,
        "BTH.MigReq is 0 without an alternate path",
        "IBA 17.2.8; rc-transport 14",
    ),
    Choice(
        "duplicate_ack_psn",
        tuple(DuplicateAckPSN),
        False,
        "the ACK of a duplicate has the PSN of the last packet executed, whatever that was",
        "IBA 9.7.5.1.4; rc-transport 10",
    ),
    Choice(
        "timer_granularity",
        (1, 4 * MS),
        False,
        "the ACK timeout is a multiple of 4 ms, and so outside T to 4 T",
        "C9-141; rc-transport 9",
    ),
    Choice(
        "keeps_pending_timer",
        _BOTH,
        False,
        "the ACK timer runs on when all is acknowledged, and resends what was not lost",
        "IBA 9.7.6.1.3; rc-transport 9",
    ),
    Choice(
        "rnr_timer_us",
        (RNR_TIMER_US, (*RNR_TIMER_US[:25], 61410, *RNR_TIMER_US[26:])),
        False,
        "the RNR timer of code 25 is 61.41 ms",
        "IBA 9.7.5.2.8 table 45",
    ),
    Choice(
        "replays_mid_read",
        _BOTH,
        False,
        "a READ that is replayed from its middle begins with MIDDLE or LAST",
        "IBA 9.7.5.1.4",
    ),
    Choice(
        "excess_reads",
        tuple(ExcessReads),
        False,
        "more READs and atomics than max_dest_rd_atomic are taken in",
        "IBA 9.7.5.2.3; rc-transport 6 row 6",
    ),
    Choice(
        "checks_payload_size",
        _BOTH,
        False,
        "the payload of SENDs is not checked against position and path MTU",
        "C9-92; rc-transport 6 row 8",
    ),
    Choice(
        "discards_unpadded",
        _BOTH,
        False,
        "a payload that is no multiple of 4 without padding is taken",
        "IBA 9.2.3",
    ),
    Choice(
        "naks_reserved_opcode",
        _BOTH,
        False,
        "a reserved opcode is discarded and not NAKed",
        "IBA 9.7.4.1.2; rc-transport 6 row 4",
    ),
    Choice(
        "oversized_send",
        (NakCode.INVALID_REQUEST, NakCode.REMOTE_OPERATIONAL_ERROR),
        False,
        "a SEND longer than the receive draws NAK remote operational error",
        "IBA 9.7.5.2.5; rc-transport 6 row 9",
    ),
    Choice(
        "fixed_pkeys",
        ((), (0xFFFF, 0x7FFF)),
        False,
        "P_Keys 0xFFFF and 0x7FFF are taken whatever the table says",
        "IBA 10.9.1.2",
    ),
    Choice(
        "restarts_on_read_gap",
        _BOTH,
        False,
        "a gap in the responses of a READ waits for the timeout",
        "IBA 9.7.6.1; rc-transport 10 rule 6",
    ),
    Choice(
        "reserved_syndrome_fails",
        _BOTH,
        False,
        "a reserved syndrome fails the request",
        "IBA 9.7.5.1; rc-transport 7",
    ),
    Choice(
        "retry_7_is_infinite", _BOTH, False, "7 retries are for ever", "IBA 9.7.6; rc-transport 9"
    ),
    Choice(
        "sends_during_rnr_wait",
        _BOTH,
        False,
        "requests are sent during an RNR wait",
        "IBA 9.7.5.2.8; rc-transport 9",
    ),
)
