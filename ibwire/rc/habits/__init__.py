"""Behaviour of implementations that changes control flow, as one object of hooks.

A `Profile` holds numbers, statuses and flags of one implementation. Some of its fields
change the next step of the transport. For those `habits_of` selects functions, and the
send queue, completer and responder call these hooks. The functions in `spec` follow the
specification, those in `rxe` and `rdmavt` that implementation, those in `selective` adapters that
keep packets out of order. Each field can be set
separately, so a profile may mix implementations: a hook depends on one field, or on two of one
subject. A new habit needs a field of `Profile`, a hook of `RequesterHabits` or
`ResponderHabits`, a function in `spec` and one in the module of the implementation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

from ibwire.rc.early import EarlyPackets
from ibwire.rc.habits import rdmavt, rxe, selective, spec
from ibwire.rc.memory import KeyTable, ProtectionDomain
from ibwire.rc.packet import TransportPacket
from ibwire.rc.profile import (
    DuplicateAck,
    DuplicateAckPSN,
    ExcessReads,
    Profile,
    ReadReplay,
    UnaskedAck,
)
from ibwire.rc.replies import Reply, Resource
from ibwire.rc.send_state import SendState, SendWQE
from ibwire.rc.sizes import has_right_size
from ibwire.rc.srq import SharedReceiveQueue
from ibwire.rc.work import WCStatus
from ibwire_layers.syndrome import AckKind

__all__ = ["Habits", "RequesterHabits", "ResponderHabits", "habits_of"]


@dataclass(frozen=True, slots=True)
class RequesterHabits:
    """The hooks of a requester and its completer."""

    rnr_wait_blocks: Callable[[], bool]
    """Whether an RNR wait delays all requests and ends with an acknowledgement."""
    takes_rnr_nak: Callable[[SendState], bool]
    """Whether an RNR NAK is processed, given the current timers."""
    acknowledged_by_nak: Callable[[SendState, int], int]
    """The PSN before which a NAK with this PSN acknowledges everything."""
    nak_moves_una: Callable[[SendState, int], bool]
    """Whether a sequence NAK then moves `una` to its PSN without progress."""
    rnr_nak_is_for_oldest: Callable[[SendState, int], bool]
    """Whether an RNR NAK with this PSN refuses the oldest request."""
    may_go_back: Callable[[SendState], bool]
    """Whether a NAK or a missing response makes the requester go back now."""
    restart_psn_after_timeout: Callable[[SendState], int | None]
    """`restart_psn` after a timeout."""
    restart_psn_after_rnr_nak: Callable[[SendState], int | None]
    """`restart_psn` after an RNR NAK."""
    is_recovering: Callable[[SendState, int], bool]
    """Whether the packets before a PSN were retransmitted and may have been answered since."""
    renumber: Callable[[SendState, int], None]
    """Gives the oldest READ new PSNs before it is retransmitted; the number is the path MTU."""
    oldest_read_incomplete: Callable[[SendState], bool]
    """Whether all PSNs of the oldest READ are acknowledged before its data."""
    read_length_fault: Callable[[SendWQE, TransportPacket, int, WCStatus], WCStatus | None]
    """Status for a READ response of the wrong length, or `None`; takes the path MTU and the
    status of the profile."""
    completes: Callable[[SendWQE, TransportPacket], bool]
    """Whether a response completes a READ or atomic."""
    is_old_response: Callable[[SendState, int], bool]
    """Whether a response with a PSN before `una` is for an acknowledged packet."""
    acknowledged_by_unsent: Callable[[SendState], int | None]
    """The PSN before which a response to an unsent PSN acknowledges everything."""
    take_ack_as_answer: Callable[..., bool]
    """Lets an ACK or NAK answer the oldest READ or atomic, if that may be; whether the packet
    is done with. Takes the completer (`spec.Answering`), the PSN, `is_ack` and `now`."""
    read_gap_restarts: Callable[[], bool]
    """Whether a gap in the responses of a READ restarts it at once."""
    ack_kind: Callable[[int], AckKind]
    """The kind of response that a syndrome means."""
    fails_for_reserved: Callable[[int], bool]
    """Whether a response with this reserved syndrome ends the connection."""
    status_of_reserved_nak: Callable[[], WCStatus | None]
    """Status of the request that a NAK with a reserved code refuses; `None` ignores it."""
    stop_ack_timer: Callable[[SendState], None]
    """Called when everything is acknowledged."""
    retries_left: Callable[[int], int]
    """The retry count after one more retry."""
    holds_back: Callable[[SendState, SendWQE], bool]
    """Whether the rest of the one message beyond the credits waits."""
    waits_for_early: Callable[[], bool]
    """Whether responses that are ahead are kept until the missing ones come."""
    retransmits_missing: Callable[[SendState, TransportPacket, int], bool]
    """Lets the packets that a sequence NAK shows as missing be retransmitted, if only these are;
    the number is `nak_distance`."""


@dataclass(frozen=True, slots=True)
class ResponderHabits:
    """The hooks of a responder."""

    msn_of: Callable[[Reply, int], int]
    """MSN of a response that is sent, given the responder's MSN."""
    withdraw_naks: Callable[[deque[Reply]], deque[Reply]]
    """The waiting responses after the missing packet has arrived."""
    gap_ends_on_arrival: Callable[[], bool]
    """Whether the packet that was missing ends the gap even if it causes an RNR NAK; then the
    packets that follow it cause a sequence NAK."""
    gap_outlasts_duplicate: Callable[[], bool]
    """Whether the gap causes no further NAK after the answer to a duplicate."""
    acknowledges_duplicate: Callable[[TransportPacket], bool]
    """Whether a duplicate SEND or WRITE packet is acknowledged."""
    acks_unasked: UnaskedAck
    """The SENDs and WRITEs without AckReq that are acknowledged all the same."""
    psn_of_duplicate_ack: Callable[[int, int], int]
    """PSN of that acknowledgement, given the newest PSN and that of the newest executed SEND,
    WRITE or atomic."""
    first_of_replay: Callable[[int], int]
    """The packet of a READ replayed from this one that has FIRST or ONLY; 0 if none has."""
    acknowledges_failed_invalidate: Callable[[TransportPacket], bool]
    """Whether a SEND that cannot invalidate its key is acknowledged before the connection ends."""
    refused_receive_status: Callable[..., WCStatus | None]
    """Status of the receive request of a refused message, given `is_send` and `is_access`;
    `None` for the usual one."""
    ends_write: Callable[[TransportPacket, int, int], bool]
    """Whether a packet is the last of a WRITE, given the missing bytes and the path MTU."""
    is_write_size: Callable[[TransportPacket, int], bool]
    """Whether the size of the first packet of a WRITE fits its position and the path MTU."""
    is_send_size: Callable[[TransportPacket, int], bool]
    """Whether the size of a SEND packet fits its position and the path MTU."""
    replaced_ack: Callable[[deque[Reply]], Reply | None]
    """The waiting ACK that a newer one replaces; `None` if both are sent."""
    has_receive: Callable[[spec.Receives, SharedReceiveQueue | None], bool]
    """Whether there is a receive request for a WRITE with immediate data."""
    checks_alignment_first: Callable[[], bool]
    """Whether the alignment of an atomic is checked before its R_Key."""
    queue_replay: Callable[[deque[Reply], Reply], None]
    """Inserts the response to a duplicate into the waiting responses."""
    has_slot: Callable[[Iterable[Resource], int], bool]
    """Whether one more READ or atomic is executed; the number is `max_dest_rd_atomic`."""
    forget_oldest: Callable[[list[Resource]], Resource | None]
    """Takes one of the kept requests out, where a new one has come."""
    find_result: Callable[[Iterable[Resource], TransportPacket], Resource | None]
    """The kept result for a duplicate atomic, FLUSH or ATOMIC WRITE."""
    accepts_replay: Callable[[Resource, int, int], bool]
    """Whether a part of a READ, from a packet to an end in bytes, is replayed."""
    may_replay_read: Callable[[KeyTable, ProtectionDomain, int, TransportPacket], bool]
    """Whether the key of a duplicate READ is accepted; the number is that of the queue pair."""
    keeps_early: Callable[[selective.Keeping, TransportPacket], bool]
    """Whether a packet that is ahead is kept and causes no NAK."""
    record_of_nak: Callable[[EarlyPackets, int], bytes]
    """What a sequence NAK says of the packets that have arrived; the number is the expected PSN."""


@dataclass(frozen=True, slots=True)
class Habits:
    """The hooks of one implementation."""

    requester: RequesterHabits
    responder: ResponderHabits


@lru_cache(maxsize=256)
def habits_of(profile: Profile) -> Habits:  # long: one argument a hook
    """The hooks that the fields of a profile select."""
    return Habits(_of_requester(profile), _of_responder(profile))


def _of_requester(profile: Profile) -> RequesterHabits:
    whole = not profile.nak_is_progress
    unchecked = not profile.checks_response_length
    unsent = profile.acks_unsent
    return RequesterHabits(
        rnr_wait_blocks=(
            rxe.rnr_wait_blocks if profile.sends_during_rnr_wait else spec.rnr_wait_blocks
        ),
        takes_rnr_nak=rxe.takes_rnr_nak if profile.counts_every_rnr_nak else spec.takes_rnr_nak,
        acknowledged_by_nak=rxe.acknowledged_by_nak if whole else spec.acknowledged_by_nak,
        nak_moves_una=rxe.nak_moves_una if whole else spec.nak_moves_una,
        rnr_nak_is_for_oldest=rxe.rnr_nak_is_for_oldest if whole else spec.rnr_nak_is_for_oldest,
        may_go_back=rxe.may_go_back if whole else spec.may_go_back,
        restart_psn_after_timeout=(
            rxe.restart_psn_after_timeout if whole else spec.restart_psn_after_timeout
        ),
        restart_psn_after_rnr_nak=(
            rxe.restart_psn_after_rnr_nak if whole else spec.restart_psn_after_rnr_nak
        ),
        is_recovering=spec.is_recovering if profile.waits_for_recovery else rxe.is_recovering,
        renumber=rxe.renumber if unchecked else spec.renumber,
        oldest_read_incomplete=(
            rxe.oldest_read_incomplete if unchecked else spec.oldest_read_incomplete
        ),
        read_length_fault=rxe.read_length_fault if unchecked else spec.read_length_fault,
        completes=rxe.completes if unchecked else spec.completes,
        is_old_response=rxe.is_old_response if unsent else spec.is_old_response,
        acknowledged_by_unsent=rxe.acknowledged_by_unsent
        if unsent
        else spec.acknowledged_by_unsent,
        take_ack_as_answer=(
            rxe.take_ack_as_answer if profile.acks_answer else spec.take_ack_as_answer
        ),
        read_gap_restarts=(
            spec.read_gap_restarts if profile.restarts_on_read_gap else rxe.read_gap_restarts
        ),
        ack_kind=rxe.ack_kind if profile.reserved_bit_fails else spec.ack_kind,
        fails_for_reserved=_fails_for_reserved(profile),
        status_of_reserved_nak=(
            rxe.status_of_reserved_nak
            if profile.reserved_syndrome_fails
            else spec.status_of_reserved_nak
        ),
        stop_ack_timer=rxe.stop_ack_timer if profile.keeps_pending_timer else spec.stop_ack_timer,
        retries_left=rxe.retries_left if profile.retry_7_is_infinite else spec.retries_left,
        holds_back=rdmavt.holds_back if profile.limited_message else spec.holds_back,
        waits_for_early=(
            selective.waits_for_early if profile.places_early else spec.waits_for_early
        ),
        retransmits_missing=(
            selective.retransmits_missing if profile.selective_repeat else spec.retransmits_missing
        ),
    )


def _of_responder(profile: Profile) -> ResponderHabits:
    return ResponderHabits(
        msn_of=rxe.msn_of if profile.answers_in_turn else spec.msn_of,
        withdraw_naks=spec.withdraw_naks if profile.withdraws_naks else rxe.withdraw_naks,
        gap_ends_on_arrival=(
            rxe.gap_ends_on_arrival if profile.naks_after_rnr else spec.gap_ends_on_arrival
        ),
        gap_outlasts_duplicate=(
            rdmavt.gap_outlasts_duplicate
            if profile.duplicate_clears_nak
            else spec.gap_outlasts_duplicate
        ),
        acknowledges_duplicate=_ACKNOWLEDGES_DUPLICATE[profile.duplicate_ack],
        acks_unasked=profile.acks_unasked,
        psn_of_duplicate_ack=_PSN_OF_DUPLICATE_ACK[profile.duplicate_ack_psn],
        first_of_replay=rxe.first_of_replay if profile.replays_mid_read else spec.first_of_replay,
        acknowledges_failed_invalidate=(
            rxe.acknowledges_failed_invalidate
            if profile.acknowledges_bad_invalidate
            else spec.acknowledges_failed_invalidate
        ),
        refused_receive_status=(
            rxe.refused_receive_status
            if profile.takes_receive_early
            else spec.refused_receive_status
        ),
        ends_write=spec.ends_write if profile.checks_write_position else rxe.ends_write,
        is_write_size=has_right_size if profile.checks_write_position else rxe.is_any_size,
        is_send_size=has_right_size if profile.checks_payload_size else rxe.is_any_size,
        replaced_ack=spec.replaced_ack if profile.coalesces_acks else rxe.replaced_ack,
        has_receive=rxe.has_receive if profile.takes_receive_early else spec.has_receive,
        checks_alignment_first=(
            spec.checks_alignment_first
            if profile.atomic_alignment_first
            else rxe.checks_alignment_first
        ),
        queue_replay=rxe.queue_replay if profile.answers_in_turn else spec.queue_replay,
        has_slot=rxe.has_slot if profile.excess_reads is ExcessReads.RECYCLE else spec.has_slot,
        forget_oldest=(
            rxe.forget_oldest if profile.excess_reads is ExcessReads.RECYCLE else spec.forget_oldest
        ),
        find_result=rxe.find_result if profile.replays_by_psn else spec.find_result,
        accepts_replay=_ACCEPTS_REPLAY[profile.read_replay],
        may_replay_read=(
            rxe.may_replay_read if profile.rechecks_empty_reads else spec.may_replay_read
        ),
        keeps_early=selective.keeps_early if profile.places_early else spec.keeps_early,
        record_of_nak=(selective.record_of_nak if profile.selective_repeat else spec.record_of_nak),
    )


def _fails_for_reserved(profile: Profile) -> Callable[[int], bool]:
    if profile.reserved_syndrome_fails:
        return rxe.fails_for_reserved
    return rxe.fails_for_reserved_bit if profile.reserved_bit_fails else spec.fails_for_reserved


_ACKNOWLEDGES_DUPLICATE = {
    DuplicateAck.EVERY: spec.acknowledges_duplicate,
    DuplicateAck.REQUESTED: rdmavt.acknowledges_duplicate,
    DuplicateAck.LAST: spec.acknowledges_last_duplicate,
}
_PSN_OF_DUPLICATE_ACK = {
    DuplicateAckPSN.NEWEST: spec.psn_of_duplicate_ack,
    DuplicateAckPSN.EXECUTED: rxe.psn_of_duplicate_ack,
}
_ACCEPTS_REPLAY = {
    ReadReplay.INSIDE: spec.accepts_replay,
    ReadReplay.NARROWING: rxe.accepts_replay,
    ReadReplay.SAME_END: rdmavt.accepts_replay,
}
