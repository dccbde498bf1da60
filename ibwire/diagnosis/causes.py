"""The causes of an incident as data: what may have happened, and the evidence for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Reason(StrEnum):
    """The cause of an incident."""

    REFUSED = "refused"
    GIVEN_UP = "given_up"
    NO_BUFFER = "no_buffer"
    LOST_BEFORE = "lost_before"
    LOST_AFTER = "lost_after"
    LOST_OR_DISCARDED = "lost_or_discarded"
    DAMAGED = "damaged"
    REORDERED_BEFORE = "reordered_before"
    REORDERED_AFTER = "reordered_after"
    RESPONSE_LOST_BEFORE = "response_lost_before"
    RESPONSE_MISSING = "response_missing"
    RESPONSE_LOST_AFTER = "response_lost_after"
    RESPONSE_OR_LATE = "response_or_late"
    RESPONSE_OR_DISCARDED = "response_or_discarded"
    RESPONSE_DAMAGED = "response_damaged"
    RESPONSE_REORDERED = "response_reordered"
    EITHER_LOST_AFTER = "either_lost_after"
    AFTERMATH = "aftermath"
    OLD_NAK = "old_nak"
    LATE = "late"
    REPEATED = "repeated"
    STALE_TIMER = "stale_timer"
    NOT_CAPTURED = "not_captured"
    RESPONSE_NOT_CAPTURED = "response_not_captured"
    NOT_SEEN = "not_seen"
    RESPONSE_NOT_SEEN = "response_not_seen"
    NOT_IN_CAPTURE = "not_in_capture"
    UNCLEAR = "unclear"


OF_RESPONSES = frozenset(
    {
        Reason.RESPONSE_LOST_BEFORE,
        Reason.RESPONSE_MISSING,
        Reason.RESPONSE_LOST_AFTER,
        Reason.RESPONSE_DAMAGED,
        Reason.RESPONSE_REORDERED,
        Reason.RESPONSE_OR_LATE,
        Reason.RESPONSE_OR_DISCARDED,
        Reason.RESPONSE_NOT_CAPTURED,
        Reason.RESPONSE_NOT_SEEN,
    }
)
"""Causes that are about packets of the responder."""


class Possibility(StrEnum):
    """One thing that may have happened. "Here" is the point of capture."""

    LOST_BEFORE = "lost_before"
    """The network lost a request before this point."""
    LOST_AFTER = "lost_after"
    """A request passed here, and was lost, damaged or delayed before its responder had it."""
    DAMAGED = "damaged"
    """A request arrived here damaged."""
    REORDERED_BEFORE = "reordered_before"
    REORDERED_AFTER = "reordered_after"
    DISCARDED = "discarded"
    """The receiver of a packet discarded it, because an earlier one was missing (go-back-N)."""
    DUPLICATED = "duplicated"
    """By the network, or by the capture."""
    RETRANSMITTED = "retransmitted"
    """The requester sent it a second time."""
    NOT_CAPTURED = "not_captured"
    """The capture missed a packet, which the network delivered."""
    RESPONSE_LOST_BEFORE = "response_lost_before"
    RESPONSE_LOST_AFTER = "response_lost_after"
    """A response passed here, and was lost, damaged or delayed before its requester had it."""
    RESPONSE_DAMAGED = "response_damaged"
    RESPONSE_REORDERED = "response_reordered"
    RESPONSE_NOT_CAPTURED = "response_not_captured"
    TIMER = "timer"
    """Nothing was lost: the ACK timer of the requester expired too early."""
    OUTDATED_NAK = "outdated_nak"
    """Nothing was missing: a NAK had not been obeyed before what it asks for arrived."""
    NO_BUFFER = "no_buffer"
    """The responder had no receive buffer (RNR)."""
    REFUSED = "refused"
    """The responder does not accept the request."""
    EARLIER_LOSS = "earlier_loss"
    """What was lost in the previous incident of the same requester."""


POSSIBLE: dict[Reason, tuple[Possibility, ...]] = {
    Reason.REFUSED: (Possibility.REFUSED,),
    Reason.GIVEN_UP: (),
    Reason.NO_BUFFER: (Possibility.NO_BUFFER,),
    Reason.LOST_BEFORE: (Possibility.LOST_BEFORE,),
    Reason.LOST_AFTER: (Possibility.LOST_AFTER,),
    Reason.LOST_OR_DISCARDED: (Possibility.LOST_AFTER, Possibility.DISCARDED),
    Reason.DAMAGED: (Possibility.DAMAGED,),
    Reason.REORDERED_BEFORE: (Possibility.REORDERED_BEFORE,),
    Reason.REORDERED_AFTER: (Possibility.REORDERED_AFTER,),
    Reason.RESPONSE_LOST_BEFORE: (Possibility.RESPONSE_LOST_BEFORE,),
    Reason.RESPONSE_MISSING: (Possibility.RESPONSE_LOST_BEFORE, Possibility.RESPONSE_REORDERED),
    Reason.RESPONSE_LOST_AFTER: (Possibility.RESPONSE_LOST_AFTER,),
    Reason.RESPONSE_OR_LATE: (Possibility.RESPONSE_LOST_AFTER, Possibility.TIMER),
    Reason.RESPONSE_OR_DISCARDED: (Possibility.RESPONSE_LOST_AFTER, Possibility.DISCARDED),
    Reason.RESPONSE_DAMAGED: (Possibility.RESPONSE_DAMAGED,),
    Reason.RESPONSE_REORDERED: (Possibility.RESPONSE_REORDERED,),
    Reason.EITHER_LOST_AFTER: (Possibility.LOST_AFTER, Possibility.RESPONSE_LOST_BEFORE),
    Reason.AFTERMATH: (Possibility.EARLIER_LOSS,),
    Reason.OLD_NAK: (Possibility.OUTDATED_NAK,),
    Reason.LATE: (
        Possibility.REORDERED_BEFORE,
        Possibility.LOST_BEFORE,
    ),
    Reason.REPEATED: (
        Possibility.DUPLICATED,
        Possibility.REORDERED_BEFORE,
        Possibility.RETRANSMITTED,
    ),
    Reason.STALE_TIMER: (Possibility.TIMER,),
    Reason.NOT_CAPTURED: (Possibility.NOT_CAPTURED,),
    Reason.RESPONSE_NOT_CAPTURED: (Possibility.RESPONSE_NOT_CAPTURED,),
    Reason.NOT_SEEN: (Possibility.LOST_BEFORE, Possibility.NOT_CAPTURED),
    Reason.RESPONSE_NOT_SEEN: (
        Possibility.RESPONSE_LOST_BEFORE,
        Possibility.RESPONSE_NOT_CAPTURED,
    ),
    Reason.NOT_IN_CAPTURE: (),
    Reason.UNCLEAR: (),
}
"""What each cause may have been: more than one where the capture does not decide, none where it
shows nothing, or where the cause only says how the incident ended."""


@dataclass(slots=True)
class FoundCause:
    """A cause of one incident, and what shows it."""

    name: Reason
    count: int = 0
    """How many packets it affected, or how often it occurred."""
    frames: list[int] = field(default_factory=list)
    """Numbers of the packets that show it."""
    evidence: str = ""
    """What the first of them shows, in words."""

    @property
    def possible(self) -> tuple[Possibility, ...]:
        """What it may have been."""
        return POSSIBLE[self.name]
