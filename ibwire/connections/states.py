"""The states of one direction of requests, and the events that change them.

Packets are seen at one point of the path, so two parties are followed at a time:
the requester that sends the requests, and the responder that answers them. Each has
one state. They change independently, because a NAK that passes this point has not
reached the requester yet.

    requester                                   responder

    NOT_SEEN                                    ACCEPTING <------------------+
       | FIRST                                     | NAK        | RNR_NAK    | OBEYED
    IN_SEQUENCE <-------------+                 GO_BACK_DUE   RNR_WAIT ------+
       | GO_BACK   | UNSETTLED | SETTLED           |            |
       |           v           |                   | FATAL_NAK  |
       |        SETTLING ------+                   v            v
       v           ^  | GO_BACK                 FAILED <--------+
    RETRANSMITTING <--+
       |  NEW: SETTLING

The requester starts to retransmit when it goes back to a PSN that it has sent before
(GO_BACK); further retransmitted requests continue that run, and a request with a new
PSN ends it. Whether a packet that was missing was lost, or is only late, shows later:
the requester is SETTLING until the packet arrives, or until too many others have
arrived.

The responder refuses a request with a NAK (PSN sequence error) or an RNR NAK; missing
READ responses, and a response to a later request (implied NAK), oblige the requester
to go back in the same way. It has OBEYED when it has gone back far enough, or when
everything is acknowledged. A NAK of any other kind ends the connection (FAILED).

Both restart when PSNs jump: the queue pair was reset, or its number was reused.

Deliberately absent: gaps. PSNs that were passed without being seen can be open in
every state; they are values of the tracker, like the counters.

Source: IBA 9.7.5.1 (responses), 9.7.5.2 (NAK, RNR NAK, implied NAK), 9.9 (going back).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, StrEnum, auto
from typing import Final


class RequesterState(IntEnum):
    """What the end that sends the requests is doing."""

    NOT_SEEN = auto()
    """No request has been seen."""
    IN_SEQUENCE = auto()
    """It sends new requests, and nothing of an earlier retransmission is open."""
    RETRANSMITTING = auto()
    """It retransmits requests, one after the other."""
    SETTLING = auto()
    """It sends new requests again; what was missing before may still arrive."""


class RequesterInput(IntEnum):
    """What moves the requester."""

    FIRST = auto()
    """The first request."""
    NEW = auto()
    """A request beyond all that were seen."""
    GO_BACK = auto()
    """A retransmitted request that does not continue a run."""
    UNSETTLED = auto()
    """Something was missing that may still arrive."""
    SETTLED = auto()
    """All that was missing has arrived, or counts as lost."""


REQUESTER_MOVES: Mapping[RequesterState, Mapping[RequesterInput, RequesterState]] = {
    RequesterState.NOT_SEEN: {
        RequesterInput.FIRST: RequesterState.IN_SEQUENCE,
    },
    RequesterState.IN_SEQUENCE: {
        RequesterInput.NEW: RequesterState.IN_SEQUENCE,
        RequesterInput.GO_BACK: RequesterState.RETRANSMITTING,
        # READ responses were retransmitted, and the request for them was not captured.
        RequesterInput.UNSETTLED: RequesterState.SETTLING,
        RequesterInput.SETTLED: RequesterState.IN_SEQUENCE,
    },
    RequesterState.RETRANSMITTING: {
        RequesterInput.NEW: RequesterState.SETTLING,
        RequesterInput.GO_BACK: RequesterState.RETRANSMITTING,
        RequesterInput.UNSETTLED: RequesterState.RETRANSMITTING,
        RequesterInput.SETTLED: RequesterState.RETRANSMITTING,
    },
    RequesterState.SETTLING: {
        RequesterInput.NEW: RequesterState.SETTLING,
        RequesterInput.GO_BACK: RequesterState.RETRANSMITTING,
        RequesterInput.UNSETTLED: RequesterState.SETTLING,
        RequesterInput.SETTLED: RequesterState.IN_SEQUENCE,
    },
}
"""What each input does in each state; the inputs that are not listed do not occur there."""


class ResponderState(IntEnum):
    """What the end that answers the requests demands."""

    ACCEPTING = auto()
    """Nothing is refused that the requester has not retransmitted."""
    GO_BACK_DUE = auto()
    """The requester is due to retransmit, and has not begun to."""
    RNR_WAIT = auto()
    """The same, and the requester first has to wait for the time in the RNR NAK."""
    FAILED = auto()
    """A NAK has ended the connection."""


class ResponderInput(IntEnum):
    """What moves the responder."""

    NAK = auto()
    """A PSN sequence error, an implied NAK, or a gap in the responses of a READ."""
    RNR_NAK = auto()
    FATAL_NAK = auto()
    """A NAK with any other code."""
    OBEYED = auto()
    """Nothing that was refused is left to be retransmitted."""


_FAILED = dict.fromkeys(ResponderInput, ResponderState.FAILED)

RESPONDER_MOVES: Mapping[ResponderState, Mapping[ResponderInput, ResponderState]] = {
    ResponderState.ACCEPTING: {
        ResponderInput.NAK: ResponderState.GO_BACK_DUE,
        ResponderInput.RNR_NAK: ResponderState.RNR_WAIT,
        ResponderInput.FATAL_NAK: ResponderState.FAILED,
        ResponderInput.OBEYED: ResponderState.ACCEPTING,
    },
    ResponderState.GO_BACK_DUE: {
        ResponderInput.NAK: ResponderState.GO_BACK_DUE,
        ResponderInput.RNR_NAK: ResponderState.RNR_WAIT,
        ResponderInput.FATAL_NAK: ResponderState.FAILED,
        ResponderInput.OBEYED: ResponderState.ACCEPTING,
    },
    ResponderState.RNR_WAIT: {
        # rxe sends a NAK of the same PSN for the packets that follow the refused one.
        ResponderInput.NAK: ResponderState.RNR_WAIT,
        ResponderInput.RNR_NAK: ResponderState.RNR_WAIT,
        ResponderInput.FATAL_NAK: ResponderState.FAILED,
        ResponderInput.OBEYED: ResponderState.ACCEPTING,
    },
    ResponderState.FAILED: _FAILED,
}
"""What each input does in each state."""


class PacketStatus(StrEnum):
    """The relation of a packet to the requests and responses before it."""

    NEW = "new"
    """The next one in sequence."""
    AFTER_GAP = "after_gap"
    """New, and something before it has not been seen here."""
    RETRANSMITTED = "retransmitted"
    """Retransmitted by its sender."""
    DUPLICATE = "duplicate"
    """The same packet again, duplicated by the network or the capture."""
    REORDERED = "reordered"
    """Arrived after packets that were sent later."""
    STALE = "stale"
    """A response that acknowledges nothing new."""
    UNKNOWN = "unknown"
    """A response to nothing that was seen here."""


NEW: Final = PacketStatus.NEW
AFTER_GAP: Final = PacketStatus.AFTER_GAP
RETRANSMITTED: Final = PacketStatus.RETRANSMITTED
DUPLICATE: Final = PacketStatus.DUPLICATE
REORDERED: Final = PacketStatus.REORDERED
STALE: Final = PacketStatus.STALE
UNKNOWN: Final = PacketStatus.UNKNOWN
"""The members of `PacketStatus` as names of this module: each packet is compared with several, and
`PacketStatus.NEW` is looked up slowly, also in a compiled module."""
