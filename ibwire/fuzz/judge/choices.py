"""Known differences between implementations: allowed by the specification, or not.

When a target leaves the reference, the case is carried out again on references that
differ in one choice. One that agrees with the target explains it: an allowed choice is
no finding, and a known deviation is a finding with a name. Either is taken over, so that
the rest of the run is about something else.

Source: reference/transport#responder-checks, reference/habits#rxe-headers; ibwire.rc.profile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ibwire.base.units import MS
from ibwire.rc.profile import (
    SPEC,
    DuplicateAck,
    DuplicateAckPSN,
    ExcessReads,
    MRAFor,
    Profile,
    ReadReplay,
    SenderGID,
    SourcePort,
    UnaskedAck,
    UnknownRefused,
)
from ibwire.rc.work import WCFlags, WCStatus
from ibwire_layers.syndrome import RNR_TIMER_US, NakCode

USUAL_PERCENT, MOST_PERCENT = 100, 400
"""Percent of a time as it should be, and as it may be."""

MOST_RETRIES = 7
"""Of `retry_cnt`, which has three bits."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One known difference."""

    name: str
    """Field of `Profile`."""
    values: Sequence[Any]
    allowed: bool
    about: str
    rule: str
    """The section that fixes it, or leaves it open."""
    is_always_shown: bool = False
    """Whether a deterministic device that makes it shows that in its witness: without that, what
    it would explain is a fault."""

    is_measured: bool = False
    """Whether its value is a percentage, up to 400, that is measured in its own witnesses; or
    several, one for each retry."""

    in_witness: Sequence[int] = ()
    """Further values, with which only its own witnesses are tried."""

    replaces: Sequence[str] = ()
    """Choices of a constant value, which a device that makes this one does not make: the reference
    follows it each time. Only a witness that none of them explains shows it."""

    @property
    def is_by_witness_alone(self) -> bool:
        """Whether only its own witnesses show it: it would explain faults in other cases."""
        return self.is_measured or bool(self.replaces)

    def measured(self, text: str) -> int | tuple[int, ...] | None:
        """The value that can be measured which a case or a run has as this text, if it is one."""
        if isinstance(self.values[0], tuple):
            numbers = text.strip("(,)").split(", ")
            values = tuple(map(_number, numbers[: MOST_RETRIES + 1]))
            is_right = self.is_measured and all(map(_is_allowed, values)) and text == str(values)
            return values if is_right else None
        value = _number(text)
        is_percent = self.is_measured and _is_allowed(value)
        return value if is_percent or value in self.in_witness else None

    def variants(self, profile: Profile) -> Iterator[Profile]:
        """The profile with each of the other values."""
        for value in self.values:
            if getattr(profile, self.name) != value:
                changes: dict[str, Any] = {self.name: value}
                if value:
                    changes |= {name: getattr(SPEC, name) for name in self.replaces}
                yield replace(profile, **changes)


def _number(text: str) -> int:
    """A number that may be a value which is measured; -1 for other text."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(MOST_PERCENT))
    return int(text) if is_number else -1


def _is_allowed(percent: int) -> bool:
    return USUAL_PERCENT <= percent <= MOST_PERCENT


_BOTH = (False, True)

_NAK_BEHIND_RNR = "a request behind one that was refused by an RNR NAK draws a sequence NAK"
_TWO_NAKS = "a gap draws a sequence NAK though a NAK has been sent already"

CHOICES: Sequence[Choice] = (
    Choice("live_credits", _BOTH, True, "whether AETHs carry credits", "IBA 9.7.7.2"),
    Choice(
        "takes_credits",
        _BOTH,
        True,
        "whether credits limit a requester that gives none",
        "IBA 9.7.7.2; docs/reference/transport.md#credits-off",
    ),
    Choice("counts_identification", _BOTH, True, "the IPv4 identification", "RFC 6864"),
    Choice("route_hop_limit", (None, 64), True, "the hop limit", "IBA A17.3.2"),
    Choice("coalesces_acks", _BOTH, True, "one ACK for several requests", "IBA 9.7.5.1.2"),
    Choice(
        "acks_unasked",
        tuple(UnaskedAck),
        True,
        "whether packets without AckReq are acknowledged",
        "IBA 9.7.5.1.2; docs/reference/transport.md#ack-due",
        is_always_shown=True,
    ),
    Choice(
        "answers_in_turn",
        _BOTH,
        True,
        "the MSN of a late answer",
        "IBA 9.7.5.1.2",
        is_always_shown=True,
    ),
    Choice(
        "withdraws_naks",
        _BOTH,
        True,
        "whether a NAK is sent though the missing packet has come",
        "IBA 9.7.5.1.3",
        is_always_shown=True,
    ),
    Choice(
        "duplicate_ack", tuple(DuplicateAck), True, "which duplicates are ACKed", "IBA 9.7.5.1.4"
    ),
    # They differ for requests that no correct requester sends: it asks for what it misses.
    Choice(
        "read_replay",
        tuple(ReadReplay),
        True,
        "which duplicate READs are answered again",
        "IBA 9.7.5.1.4; docs/reference/transport.md#duplicate-read",
    ),
    Choice("atomic_alignment_first", _BOTH, True, "which of two faults is NAKed", "IBA 9.7.5.2.4"),
    Choice(
        "atomic_write_alignment_first",
        _BOTH,
        True,
        "which of two faults of an ATOMIC WRITE is NAKed",
        "IBA A19; docs/reference/transport.md#atomic-alignment",
    ),
    Choice(
        "invalid_request_status",
        (WCStatus.LOC_LEN_ERR, WCStatus.REM_INV_REQ_ERR, WCStatus.LOC_QP_OP_ERR),
        True,
        "status of the receive that a refused message had taken",
        "IBA 11.6.2",
    ),
    Choice("marks_grh", _BOTH, True, "flag GRH of receives of connections", "IBA 11.4.2.1"),
    Choice(
        "ack_request_interval",
        (1, 64, 66, 16, 256),
        True,
        "how often an ACK is asked for",
        "docs/reference/habits.md#rxe-ack-request",
    ),
    Choice(
        "ack_restarts_read",
        _BOTH,
        True,
        "whether an ACK in place of a READ response restarts the READ",
        "IBA 9.7.5.1.2, 9.7.6.1; docs/reference/transport.md#ack-inside-read",
        is_always_shown=True,
    ),
    Choice("timeout_sends_one", _BOTH, True, "one packet after a timeout", "IBA 9.7.6.1.3"),
    # Before the next one, which leaves out some of the same answers.
    Choice(
        "nak_is_progress",
        _BOTH,
        False,
        "packets of its own message that a NAK acknowledges are not progress",
        "IBA 9.7.5.1.1; docs/reference/transport.md#nak-completes",
    ),
    Choice("waits_for_recovery", _BOTH, True, "when a READ is restarted again", "IBA 9.7.6.1"),
    # reference/transport#read-response-length has the first. The second is "RDMA READ response
    # with too much or too little payload" among the requester's errors in the manuals of MT23108
    # and FastLinQ adapters.
    Choice(
        "bad_response_length",
        (WCStatus.BAD_RESP_ERR, WCStatus.LOC_LEN_ERR),
        True,
        "status for a READ response of the wrong length",
        "IBA 9.9.2, 11.6.2",
    ),
    Choice("source_port", tuple(SourcePort), True, "the UDP source port", "IBA A17.9.1"),
    Choice(
        "max_unacked_psns",
        (128, (1 << 23) - 1),
        True,
        "packets on their way",
        "IBA 9.7.1; docs/reference/transport.md#psn-window",
        in_witness=range(1, 128),
    ),
    Choice(
        "max_unacked_messages",
        (0, 1),
        True,
        "messages on their way",
        "docs/reference/transport.md#psn-window",
        in_witness=range(2, 9),
    ),
    Choice(
        "reads_divided_by",
        (1, 2),
        True,
        "whether half of max_rd_atomic is used",
        "docs/reference/transport.md#read-limit",
        is_always_shown=True,
    ),
    Choice(
        "max_unacked_reads",
        (0, 1),
        True,
        "READs and atomics on their way",
        "docs/reference/transport.md#read-limit",
        in_witness=range(2, 9),
        is_always_shown=True,
    ),
    Choice(
        "rnr_wait_sends_one",
        _BOTH,
        True,
        "one packet after the wait after an RNR NAK",
        "docs/reference/transport.md#psn-window",
        is_always_shown=True,
    ),
    Choice(
        "rnr_nak_steps",
        (0, 1, 2),
        True,
        "how many codes above min_rnr_timer an RNR NAK has",
        "IBA 9.7.5.2.8; docs/reference/transport.md#rnr-timer",
        is_always_shown=True,
    ),
    Choice(
        "credits_divided_by",
        (1, 2, 4),
        True,
        "how many of the free receive requests are promised",
        "IBA 9.7.7.2; docs/reference/transport.md#credits-granted",
        is_always_shown=True,
    ),
    Choice(
        "fence_waits_for_all",
        _BOTH,
        True,
        "whether a fence waits for SENDs and WRITEs, too",
        "IBA 10.8.3.3; docs/reference/transport.md#fence",
        is_always_shown=True,
    ),
    Choice(
        "messages_wait_for_reads",
        _BOTH,
        True,
        "whether a SEND or WRITE waits for the responses to earlier READs and atomics",
        "docs/reference/transport.md#psn-window",
        is_always_shown=True,
    ),
    Choice(
        "counts_flushes",
        _BOTH,
        True,
        "whether a FLUSH counts as a READ for max_rd_atomic and fences",
        "IBA A19; docs/reference/transport.md#read-limit",
    ),
    Choice("counts_every_rnr_nak", _BOTH, True, "RNR NAKs during the wait", "IBA 9.7.5.2.8"),
    Choice(
        "ack_timer_percent",
        (100, 200),
        True,
        "how long the ACK timer runs, from T to 4 T",
        "C9-141; docs/reference/transport.md#ack-timeout",
        is_measured=True,
    ),
    Choice(
        "ack_timer_percents",
        ((), (100, 200), (100, 200, 400)),
        True,
        "how long the ACK timer runs after each retry, from T to 4 T",
        "C9-141; docs/reference/transport.md#ack-timeout",
        is_measured=True,
    ),
    Choice(
        "rnr_timer_percent",
        (100, 200),
        True,
        "how much longer than asked for the wait after an RNR NAK is",
        "IBA 9.7.5.2.8; docs/reference/transport.md#rnr-wait",
        is_measured=True,
    ),
    Choice(
        "timers_vary",
        _BOTH,
        True,
        "how long each wait is, of the ACK timer from T to 4 T, after an RNR NAK at least its time",
        "C9-141, IBA 9.7.5.2.8; docs/reference/transport.md#ack-timeout, #rnr-wait",
        is_always_shown=True,
        replaces=("ack_timer_percent", "ack_timer_percents", "rnr_timer_percent"),
    ),
    Choice(
        "refuses_unknown",
        tuple(UnknownRefused),
        True,
        "whether a REP or RTU of an unknown connection is refused",
        "IBA 12.9; docs/reference/cm.md#unknown-connection",
        is_always_shown=True,
    ),
    Choice(
        "refuses_unknown_mra",
        _BOTH,
        True,
        "whether an MRA of an unknown connection is refused",
        "IBA 12.9; docs/reference/cm.md#unknown-connection",
        is_always_shown=True,
    ),
    Choice(
        "refuses_in_timewait",
        tuple(UnknownRefused),
        True,
        "whether a REP or RTU in TIMEWAIT is refused",
        "IBA 12.9; docs/reference/cm.md#teardown",
        is_always_shown=True,
    ),
    Choice(
        "mra_for_duplicate",
        tuple(MRAFor),
        True,
        "whether a duplicate REQ or REP draws an MRA before the application decides",
        "IBA 12.9; docs/reference/cm.md#handshake",
        is_always_shown=True,
    ),
    Choice(
        "repeats_mra",
        tuple(MRAFor),
        True,
        "whether a duplicate REQ or REP draws the MRA again before the application decides",
        "IBA 12.9; docs/reference/cm.md#handshake",
        is_always_shown=True,
    ),
    Choice(
        "duplicate_restarts_rep",
        _BOTH,
        True,
        "whether the wait for the RTU begins again at a duplicate REQ",
        "IBA 12.9; docs/reference/cm.md#resending",
        is_always_shown=True,
    ),
    Choice(
        "repeats_rep_after_mra",
        _BOTH,
        True,
        "whether a duplicate REQ draws the REP again after an MRA of the REP",
        "IBA 12.9; docs/reference/cm.md#resending",
        is_always_shown=True,
    ),
    Choice(
        "mra_at_once",
        tuple(MRAFor),
        True,
        "whether a REQ or REP draws an MRA at once",
        "IBA 12.9; docs/reference/cm.md#handshake",
        is_always_shown=True,
    ),
    Choice(
        "rejects_expired_request",
        _BOTH,
        True,
        "whether a REJ is sent when a REQ was never answered",
        "IBA 12.9; docs/reference/cm.md#resending",
        is_always_shown=True,
    ),
    Choice(
        "keeps_refusal",
        _BOTH,
        True,
        "whether a refused REQ that is repeated draws the same REJ",
        "IBA 12.9; docs/reference/cm.md#resending",
        is_always_shown=True,
    ),
    Choice(
        "sender_gid",
        tuple(SenderGID),
        True,
        "whether the GID of a sender of a connection's messages is compared",
        "IBA 12.9; docs/reference/cm.md#peer",
        is_always_shown=True,
    ),
    Choice("refuses_annex_a19", _BOTH, True, "whether FLUSH and ATOMIC WRITE are known", "IBA A19"),
    Choice("rnr_granularity", (1, 4 * MS), True, "how exact the RNR wait is", "IBA 9.7.5.2.8"),
    # What the specification does not allow.
    Choice(
        "request_reserved",
        (0, 0x10),
        False,
        "reserved bits of BTH byte 4 are not 0",
        "IBA 9.2; docs/reference/wire-formats.md#reserved-bits",
    ),
    # Either lets a gap be NAKed twice, and a case in which a request is refused, retransmitted
    # and one is missing does not show which: they share one name, and match each other.
    # At any time there is but one NAK (Shanley, InfiniBand Network Architecture, chapter 17).
    Choice(
        "naks_after_rnr",
        _BOTH,
        False,
        _NAK_BEHIND_RNR,
        "IBA 9.7.5.2.8; docs/reference/transport.md#rnr-tail",
    ),
    Choice(
        "duplicate_clears_nak",
        _BOTH,
        False,
        _TWO_NAKS,
        "IBA 9.7.5.2.8; docs/reference/transport.md#psn-ahead",
    ),
    Choice(
        "oversized_send_status",
        (WCStatus.LOC_LEN_ERR, WCStatus.LOC_QP_OP_ERR),
        False,
        "a receive that was too small does not end with LOC_LEN_ERR",
        "IBA 11.6.2; docs/reference/transport.md#receive-too-short",
    ),
    Choice(
        "receive_fault_status",
        (WCStatus.LOC_PROT_ERR, WCStatus.LOC_QP_OP_ERR),
        False,
        "a receive whose memory is at fault does not end with LOC_PROT_ERR",
        "IBA 11.6.2; docs/reference/transport.md#receive-fault",
    ),
    Choice(
        "limited_message",
        _BOTH,
        False,
        "a message beyond the credits is sent whole",
        "IBA 9.7.7.2.5; docs/reference/transport.md#limited-message",
    ),
    Choice(
        "bad_response",
        (WCStatus.BAD_RESP_ERR, WCStatus.LOC_QP_OP_ERR, WCStatus.FATAL_ERR),
        False,
        "a READ response to another request does not end it with BAD_RESP_ERR",
        "IBA 11.6.2; docs/reference/transport.md#response-mismatch",
    ),
    Choice(
        "misplaced_response",
        (WCStatus.BAD_RESP_ERR, WCStatus.SUCCESS, WCStatus.LOC_QP_OP_ERR),
        False,
        "a response out of place does not end its request with BAD_RESP_ERR",
        "IBA 11.6.2; docs/reference/transport.md#response-mismatch",
    ),
    Choice(
        "checks_response_length",
        _BOTH,
        False,
        "the length of READ responses is not checked, and the READ waits for more",
        "IBA 9.7.6; docs/reference/transport.md#read-response-length",
    ),
    Choice(
        "acks_answer",
        _BOTH,
        False,
        "an ACK completes a READ or an atomic without its answer",
        "IBA 9.7.5.1.2; docs/reference/transport.md#ack-inside-read",
    ),
    Choice(
        "acks_unsent",
        _BOTH,
        False,
        "an answer to what was never sent acknowledges what was",
        "IBA 9.7.5.1.2; docs/reference/transport.md#response-unsent",
    ),
    Choice(
        "asks_on_qp1",
        _BOTH,
        False,
        "datagrams on QP1 ask for an ACK",
        "IBA 9.8.3; docs/reference/transport.md#ack-request",
    ),
    Choice(
        "mig_req",
        (0, 1),
        False,
        "BTH.MigReq is 0 without an alternate path",
        "IBA 17.2.8; docs/reference/transport.md#migration",
    ),
    Choice(
        "duplicate_ack_psn",
        tuple(DuplicateAckPSN),
        False,
        "the ACK of a duplicate has the PSN of the last packet executed, whatever that was",
        "IBA 9.7.5.1.4; docs/reference/transport.md#duplicate-write",
    ),
    Choice(
        "timer_granularity",
        (1, 4 * MS),
        False,
        "the ACK timeout is a multiple of 4 ms, which need not be within T to 4 T",
        "C9-141; docs/reference/transport.md#ack-timeout",
    ),
    Choice(
        "keeps_pending_timer",
        _BOTH,
        False,
        "the ACK timer runs on when all is acknowledged, and resends what was not lost",
        "IBA 9.7.6.1.3; docs/reference/transport.md#ack-timer",
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
        "IBA 9.7.5.2.3; docs/reference/transport.md#read-resources",
    ),
    Choice(
        "rounds_read_depth",
        _BOTH,
        False,
        "max_rd_atomic and max_dest_rd_atomic are rounded up to powers of two",
        "IBA 9.7.3.1; docs/reference/transport.md#read-limit",
    ),
    Choice(
        "checks_payload_size",
        _BOTH,
        False,
        "the payload of SENDs is not checked against position and path MTU",
        "C9-92; docs/reference/transport.md#packet-length",
    ),
    Choice(
        "discards_unpadded",
        _BOTH,
        False,
        "a payload that is not a multiple of 4 is accepted without padding",
        "IBA 9.2.3",
    ),
    Choice(
        "checks_request_payload",
        _BOTH,
        False,
        "the payload of a READ or atomic request is passed over",
        "IBA 9.4.4, 9.4.5; docs/reference/transport.md#read-payload",
    ),
    Choice(
        "checks_write_position",
        _BOTH,
        False,
        "whether a WRITE packet is first or last is not compared with what is left",
        "C9-93; docs/reference/transport.md#write-length",
    ),
    Choice(
        "checks_message_length",
        _BOTH,
        False,
        "more than 2^31 bytes are not refused as such",
        "C9-94; docs/reference/transport.md#message-size",
    ),
    Choice(
        "bounds_windows",
        _BOTH,
        False,
        "a memory window opens the whole region",
        "IBA 10.6.7.2; docs/reference/transport.md#memory-windows",
    ),
    Choice(
        "frees_windows_again",
        _BOTH,
        True,
        "whether a window that is invalid already may be invalidated",
        "IBA 10.6.7.2; docs/reference/transport.md#local-invalidate",
        is_always_shown=True,
    ),
    Choice(
        "acknowledges_bad_invalidate",
        _BOTH,
        False,
        "a SEND that invalidates a wrong key is acknowledged",
        "IBA 9.9.3 class J; docs/reference/transport.md#invalidate-fault",
    ),
    Choice(
        "takes_receive_early",
        _BOTH,
        False,
        "a refused WRITE with immediate data ends a receive request",
        "IBA 9.7.5.1; docs/reference/transport.md#immediate-data",
    ),
    Choice(
        "replays_by_psn",
        _BOTH,
        False,
        "a duplicate atomic is answered with what is kept for another request",
        "IBA 9.7.5.1.4; docs/reference/transport.md#duplicate-atomic",
    ),
    Choice(
        "rechecks_empty_reads",
        _BOTH,
        False,
        "a duplicate READ of nothing is refused for its key",
        "C9-88; docs/reference/transport.md#zero-length",
    ),
    Choice(
        "invalidate_flag",
        (WCFlags.WITH_INV, WCFlags.IP_CSUM_OK),
        False,
        "a completion says IP_CSUM_OK where it means WITH_INV",
        "IBA 11.4.2.1; verbs.h",
    ),
    Choice(
        "reports_refusals",
        _BOTH,
        False,
        "no event QP_REQ_ERR or QP_ACCESS_ERR is raised",
        "IBA 11.6.3.2; docs/reference/transport.md#completion-status",
    ),
    Choice(
        "reports_first_request",
        _BOTH,
        False,
        "no event COMM_EST is raised",
        "IBA 11.6.3.1; docs/reference/transport.md#communication-established",
    ),
    Choice(
        "flushes_late_receives",
        _BOTH,
        False,
        "a receive request that is posted in error does not complete",
        "IBA 10.3.1.7; docs/reference/transport.md#flush",
    ),
    Choice(
        "naks_reserved_opcode",
        _BOTH,
        False,
        "a reserved opcode is discarded and not NAKed",
        "IBA 9.7.4.1.2; docs/reference/transport.md#reserved-opcode",
    ),
    Choice(
        "discards_annex_a19",
        _BOTH,
        False,
        "FLUSH and ATOMIC WRITE are discarded and not NAKed where they are not known",
        "IBA 9.7.4.1.2, A19; docs/reference/transport.md#reserved-opcode",
    ),
    Choice(
        "oversized_send",
        (NakCode.INVALID_REQUEST, NakCode.REMOTE_OPERATIONAL_ERROR),
        False,
        "a SEND longer than the receive draws NAK remote operational error",
        "IBA 9.7.5.2.5; docs/reference/transport.md#receive-too-short",
    ),
    Choice(
        "fixed_pkeys",
        ((), (0xFFFF, 0x7FFF)),
        False,
        "P_Keys 0xFFFF and 0x7FFF are taken whatever the table says",
        "IBA 10.9.1.2; docs/reference/wire-formats.md#partition-key",
    ),
    Choice(
        "restarts_on_read_gap",
        _BOTH,
        False,
        "a gap in the responses of a READ waits for the timeout",
        "IBA 9.7.6.1; docs/reference/transport.md#read-gap",
    ),
    Choice(
        "reserved_syndrome_fails",
        _BOTH,
        False,
        "a reserved syndrome ends the connection",
        "IBA 9.7.5.1; docs/reference/transport.md#aeth",
    ),
    Choice(
        "reserved_bit_fails",
        _BOTH,
        False,
        "a syndrome whose reserved bit is set ends the connection",
        "IBA 9.7.5.1; docs/reference/transport.md#aeth",
    ),
    Choice(
        "retry_7_is_infinite",
        _BOTH,
        False,
        "7 retries are for ever",
        "IBA 9.7.6; docs/reference/transport.md#retry-count",
    ),
    Choice(
        "sends_during_rnr_wait",
        _BOTH,
        False,
        "requests are sent during an RNR wait",
        "IBA 9.7.5.2.8; docs/reference/transport.md#rnr-wait",
    ),
)
