"""How the requests of one end stand when the capture ends: what is open, and what is trouble."""

from __future__ import annotations

from typing import Final

from ibwire.connections.ending import NAMED, NOTHING_OPEN, Ending, OpenRequest, Trouble
from ibwire.connections.events import Cause, FlowEvent, FlowEventKind
from ibwire.connections.states import ResponderState
from ibwire.connections.tracked_requests import TrackedRequests
from ibwire_layers.psn import HALF, MASK

GIVE_UP_NS: Final = 100_000_000
"""A requester that has not retransmitted so long after it was due has given up. Timers of Linux
are late by tens of milliseconds at most (rnr-late-recv, rnr-multi-packet)."""
UNANSWERED_NS: Final = 1_000_000_000
"""A request without a response for so long is trouble, where no timeout of its requester was seen:
adapters respond within microseconds, and the usual ACK timeouts are shorter (67 ms for perftest
and ibv_*_pingpong)."""
DAMAGED_AHEAD: Final = 1024
"""PSNs ahead of the last request in which a damaged packet counts as the next one."""


def ending_of(requests: TrackedRequests, now: int) -> Ending:
    """How the requests stand when the capture ends at `now` (ns)."""
    if requests.next is None:
        nak = requests.unrequested_nak
        return NOTHING_OPEN if nak is None else Ending(trouble=nak[0])
    if not requests.connection.is_reliable:
        return NOTHING_OPEN
    is_failed = requests.responder is ResponderState.FAILED
    silence = now - requests.last_ns
    trouble = None if is_failed else _trouble(requests, silence)
    messages = requests.messages if requests.connection.is_paired else ()
    still_open = list(filter(requests.is_open, messages))
    first = tuple(OpenRequest(each.verb, each.first_number) for each in still_open[:NAMED])
    return Ending(len(still_open), trouble, silence, first)


def unacknowledged(requests: TrackedRequests, ending: Ending) -> tuple[int, int]:
    """First PSN and count of the requests without a response when the capture ends.

    Without the other direction these are, if they were in no trouble, the newest one.
    """
    if requests.next is None or not requests.connection.is_reliable:
        return 0, 0
    is_seen = requests.connection.is_paired or ending.trouble is not None
    first = requests.acked + 1 if is_seen else requests.next - 1
    return first & MASK, max(requests.next - first, 0)


def _trouble(requests: TrackedRequests, silence: int) -> Trouble | None:
    """What is open, if the capture shows that something has gone wrong with it."""
    assert requests.next is not None
    if requests.disturbed_end and not _is_settled(requests, silence):
        return _disturbance(requests)
    if _is_damaged_at_end(requests):
        return Trouble.DAMAGED
    if not requests.connection.is_paired or silence < _patience_ns(requests):
        return None
    waits = requests.acked + 1 < requests.next or any(map(requests.is_open, requests.messages))
    return Trouble.SILENCE if waits else None


def _is_settled(requests: TrackedRequests, silence: int) -> bool:
    """Whether the last retransmission was answered, and the requester asks for no more.

    It need not be of all requests: a READ is retransmitted alone if later ones are answered.
    """
    run = requests.retransmission
    return (
        run is not None
        and requests.connection.is_paired
        and requests.answered_end >= run.end
        and requests.acked + 1 == requests.next
        and not requests.unseen.responses
        and not any(map(requests.is_open, requests.messages))
        and silence >= _patience_ns(requests)
    )


def _disturbance(requests: TrackedRequests) -> Trouble:
    """What disturbed the requests that have not been answered since."""
    causes = {each.cause for each in requests.refusals if each.psn > requests.acked}
    if Cause.RNR in causes:
        return Trouble.RNR
    if Cause.NAK in causes:
        return Trouble.NAK
    run = requests.retransmission
    is_answered = run is not None and requests.answered_end >= run.end
    if is_answered and requests.unseen.responses:
        return Trouble.RESPONSES_MISSING
    if run is not None and run.event.time_ns >= requests.disturbed_ns:
        return Trouble.RETRANSMITTED
    if requests.unseen.requests:
        return Trouble.DAMAGED if _are_damaged(requests) else Trouble.REQUESTS_MISSING
    return Trouble.RESPONSES_MISSING if requests.unseen.responses else Trouble.REORDERED


def _are_damaged(requests: TrackedRequests) -> bool:
    """Whether all requests that were not seen arrived damaged."""
    damaged = requests.connection.damaged.requests[requests.end]
    gaps = requests.unseen.requests
    return sum(gap.end - gap.first for gap in gaps) <= len(damaged) and all(
        psn & MASK in damaged for gap in gaps for psn in range(gap.first, gap.end)
    )


def _is_damaged_at_end(requests: TrackedRequests) -> bool:
    """Whether a damaged packet was the last of its PSN: its receiver has dropped it."""
    after = requests.next
    assert after is not None
    asked, answered = (
        [(psn - after + HALF & MASK) - HALF for psn in psns]
        for psns in (
            requests.connection.damaged.requests[requests.end],
            requests.connection.damaged.responses[1 - requests.end],
        )
    )
    return any(0 <= step < DAMAGED_AHEAD for step in asked) or any(
        requests.acked - after < step < 0 for step in answered
    )


def _patience_ns(requests: TrackedRequests) -> int:
    """How long a response may take, as far as a timeout of this requester was seen."""
    run = requests.retransmission
    if run is None or run.event.cause is not Cause.TIMEOUT:
        return UNANSWERED_NS
    return 2 * run.waited_ns + GIVE_UP_NS


def report_exceeded_retries(requests: TrackedRequests, now: int) -> None:
    """Report when the requester no longer retransmits what is not acknowledged."""
    is_failed = requests.responder is ResponderState.FAILED
    if requests.next is None or is_failed or requests.acked + 1 >= requests.next:
        return
    psn = requests.acked + 1 & MASK
    refusal, run = requests.refusals.of(requests.acked + 1), requests.retransmission
    if refusal is not None and refusal.cause is Cause.RNR:
        cause, number, since = Cause.RNR_RETRIES, refusal.number, refusal.time_ns
        is_over = now - since > 2 * refusal.wait_ns + GIVE_UP_NS
    elif run is not None and requests.attempts > 0:
        cause, number, since = Cause.RETRIES, run.event.number, run.event.time_ns
        if requests.unseen.is_unseen(requests.end, requests.acked + 1):
            psn = run.event.psn  # the oldest one was not seen here, and not retransmitted
        is_over = now - since > 2 * run.waited_ns + GIVE_UP_NS
    else:
        return
    if is_over:
        counts = requests.connection.directions[requests.end]
        counts.rnr_retries_exceeded += cause is Cause.RNR_RETRIES
        counts.retries_exceeded += cause is Cause.RETRIES
        requests.reports.event(
            FlowEvent(
                kind=FlowEventKind.RETRY_EXCEEDED,
                connection=requests.connection.number,
                direction=requests.end,
                number=number,
                time_ns=since,
                psn=psn,
                last_psn=requests.next - 1 & MASK,
                count=requests.attempts + 1,
                cause=cause,
            )
        )
