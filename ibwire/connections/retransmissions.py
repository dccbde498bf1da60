"""Runs of retransmitted requests: their causes, their packets, and what they leave out.

Source: IBA 9.7.5.2 (NAK, RNR NAK, implied NAK), 9.9 (going back).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ibwire.connections.events import Cause, FlowEvent, FlowEventKind
from ibwire.connections.gaps import cut, within
from ibwire.connections.identity import DUPLICATE_NS
from ibwire.connections.opcode_sets import ANSWERED
from ibwire.connections.packets import TransportPacket
from ibwire.connections.refusals import Refusal
from ibwire.connections.states import RequesterInput
from ibwire.connections.tracked_requests import Retransmission, TrackedRequests
from ibwire_layers.psn import MASK

REPEATED_READS: Final = 32
"""READs and atomics that were retransmitted, which are remembered to recognise their responses."""
SILENCE_NS: Final = 1_000_000
"""A retransmission after a longer silence was started by a timer. NICs answer a NAK within
hundreds of microseconds at most (Lumina)."""
PAUSE_NS: Final = 10_000_000
"""After a longer silence a retransmission does not go on: a timer has started another one."""
NO_SKIP_NS: Final = 500_000
"""Between packets that follow each other so soon no sender leaves out IP identifications. Linux
does after a jiffy or more, 1 ms at least (net/ipv4/route.c ip_idents_reserve)."""


def retransmit(requests: TrackedRequests, psn: int, packet: TransportPacket) -> None:
    """Take a retransmitted request, which begins a run or continues it."""
    requests.connection.directions[requests.end].retransmitted += 1
    run = requests.run
    refusal = requests.refusals.of(psn)
    is_paused = packet.time_ns - requests.last_ns > PAUSE_NS
    if run is not None and run.interrupted is not None:
        run = _after_interruption(requests, run, psn)
    if run is None or psn < run.end or is_paused or (refusal and refusal.place > run.place):
        interrupted = None
        is_begun = run is not None and run.event.count > 1
        if run is not None and is_begun and psn < run.end and _may_go_on(requests, psn, packet):
            interrupted = run
        else:
            end_run(requests)
        run = _go_back(requests, psn, packet)
        run.interrupted = interrupted
    else:
        note_skipped(requests, run, psn, packet)
    assert requests.next is not None
    span = requests.span(packet)
    _find_late(requests, run, psn, psn + span, packet)
    if run.event.count or run.repeats is None or requests.acked < psn + span - 1:
        requests.disturb(requests.next, packet)
        requests.answered_end = 0
    run.event.count += 1
    run.event.last_psn = psn + span - 1 & MASK
    run.event.last_number = packet.number
    run.psn, run.end = psn, psn + span
    if packet.opcode in ANSWERED:
        requests.repeated_reads = [
            *requests.repeated_reads[1 - REPEATED_READS :],
            (psn, psn + span),
        ]
    requests.replay_end = None
    if requests.unseen.retransmit_request(psn, psn + span):
        requests.add(psn, span, packet)
        return
    for message in requests.messages:
        if message.first <= psn <= message.last:
            message.retransmitted += 1
            message.is_doubtful |= run.event.cause not in (Cause.NAK, Cause.RNR)
            break


def _may_go_on(requests: TrackedRequests, psn: int, packet: TransportPacket) -> bool:
    """Whether a retransmission may go on behind this packet, which was sent before its newest."""
    decides = requests.connection.identities[requests.end].decides(packet)
    is_soon = packet.time_ns - requests.last_ns < SILENCE_NS
    return is_soon and not decides and requests.refusals.of(psn) is None


def _after_interruption(
    requests: TrackedRequests, run: Retransmission, psn: int
) -> Retransmission | None:
    """The retransmission that goes on with this PSN: one of two, of which the other is reported."""
    assert run.interrupted is not None
    if psn == run.end:
        requests.reports.event(run.interrupted.event)
        run.resumes_at, run.interrupted = run.interrupted.end, None
        return run
    return resume(requests, run)


def _find_late(
    requests: TrackedRequests, run: Retransmission, psn: int, end: int, packet: TransportPacket
) -> None:
    """A request that was left out before may not be lost but late, if nothing asks for it."""
    skipped = requests.unseen.unsettled.skipped
    gap = within(skipped, psn)
    if gap is None or requests.connection.identities[requests.end].decides(packet):
        return
    was_asked = any(each.psn == psn and each.time_ns > gap.time_ns for each in run.obeyed)
    if not was_asked and packet.time_ns - gap.time_ns < SILENCE_NS:
        cut(skipped, gap, first=psn, end=end)
        requests.connection.directions[requests.end].perhaps_resent += 1


def resume(requests: TrackedRequests, run: Retransmission) -> Retransmission | None:
    """The only packet of a retransmission was late: the one before goes on."""
    before, run.interrupted = run.interrupted, None
    _take_for_repeated(requests, run, run.repeats)
    requests.attempts -= 1
    requests.refusals.restore(run.obeyed)
    requests.retransmission = before
    return before


def _go_back(requests: TrackedRequests, psn: int, packet: TransportPacket) -> Retransmission:
    """Begin a run of retransmitted requests."""
    cause, number, since = _cause(requests, psn, packet)
    newest = requests.recent_requests.last_added
    if newest is not None and requests.connection.identities[requests.end].counts_up:
        _note_unseen_ids(requests, newest, packet)
    before = requests.retransmission
    goes_on = before is not None and packet.time_ns - before.event.time_ns < SILENCE_NS
    run = requests.retransmission = Retransmission(
        FlowEvent(
            kind=FlowEventKind.RETRANSMISSION,
            connection=requests.connection.number,
            direction=requests.end,
            number=packet.number,
            time_ns=packet.time_ns,
            psn=packet.psn,
            last_psn=packet.psn,
            count=0,
            opcode=packet.opcode,
            cause=cause,
            cause_number=number,
            delay_ns=packet.time_ns - since if since else None,
        ),
        place=packet.place,
        waited_ns=packet.time_ns - (since or requests.last_ns),
        is_after_silence=packet.time_ns - requests.last_ns >= SILENCE_NS,
        psn=psn,
        end=psn,
        obeyed=list(requests.refusals),
        ip_id=-1 if newest is None else newest.ip_id,
        repeats=_repeated_by(requests, psn, packet),
    )
    is_silent = packet.time_ns - requests.last_ns >= PAUSE_NS
    is_timeout = run.event.is_timeout = (
        is_silent or not goes_on or cause is Cause.TIMEOUT
    ) and _is_timeout(requests, psn, run.event, is_silent=is_silent)
    requests.old_naks = [each for each in requests.old_naks if each != psn]
    counts = requests.connection.directions[requests.end]
    refused = None if requests.refusals.of(psn) else _refusal_before(requests, psn)
    if refused is not None and refused.number == number and requests.acked < refused.psn:
        known = _known_between(requests, refused.psn, psn)
        requests.unseen.skip_requests(refused.psn, psn, packet, max(known, 1))
    counted = {
        "timeouts": is_timeout,
        "unexplained": cause is Cause.TIMEOUT,
        "implied_naks": cause is Cause.IMPLIED_NAK,
        "retransmissions": True,
        "resumed_reads": requests.resumes_read(psn),
    }
    run.counted = [name for name, is_counted in counted.items() if is_counted]
    counts.increase(run.counted, 1)
    requests.attempts += 1
    requests.move_requester(RequesterInput.GO_BACK)
    # What else was refused is ignored during the retransmission, and sometimes obeyed
    # later (reorder-ab-3pc.b packet 190).
    requests.refusals.obey(upto=psn)
    return run


def _is_timeout(requests: TrackedRequests, psn: int, event: FlowEvent, *, is_silent: bool) -> bool:
    """Whether a timer of the requester began a retransmission.

    is_silent: no packet of these requests passed since `PAUSE_NS`.
    """
    match event.cause:
        case Cause.TIMEOUT:
            return True
        case Cause.RNR:
            return False  # in time or not, the requester was asked to retransmit
        case Cause.ACK_LOST if event.opcode not in ANSWERED:
            return psn not in requests.old_naks
    # Else the requester reacted to a NAK, or to what is missing, also after this point.
    return is_silent


def _cause(requests: TrackedRequests, psn: int, packet: TransportPacket) -> tuple[Cause, int, int]:
    """Why requests are retransmitted from this PSN on, the packet that shows it, and its
    time."""
    refusal = requests.refusals.of(psn) or _refusal_before(requests, psn)
    before = requests.recent_requests.get(psn) or requests.recent_responses.get(psn)
    sent, sent_ns = (before.number, before.time_ns) if before else (0, requests.last_ns)
    waited = packet.time_ns - requests.last_ns
    if refusal is not None and (refusal.cause in (Cause.NAK, Cause.RNR) or waited < SILENCE_NS):
        return refusal.cause, refusal.number, refusal.time_ns
    if requests.acked >= psn >= requests.start:
        return Cause.ACK_LOST, sent, sent_ns
    again = _obeyed_before(requests, psn)
    if again is not None and waited < SILENCE_NS:
        return again.cause, again.number, again.time_ns
    if waited >= PAUSE_NS or requests.connection.is_paired:
        return Cause.TIMEOUT, sent, sent_ns
    return Cause.UNKNOWN, 0, 0


def _obeyed_before(requests: TrackedRequests, psn: int) -> Refusal | None:
    """A NAK that the requester has gone back for, and may go back for another time: what it asks
    for is not acknowledged."""
    run = requests.retransmission
    if run is None:
        return None
    obeyed = [each for each in run.obeyed if requests.acked < each.psn <= psn]
    return obeyed[-1] if obeyed else None


def _repeated_by(
    requests: TrackedRequests, psn: int, packet: TransportPacket
) -> TransportPacket | None:
    """An equal packet that this may be a duplicate of, unless a NAK or a gap asks for it."""
    before = requests.recent_requests.get(psn)
    if before is None or requests.connection.identities[requests.end].decides(packet):
        return None
    asked = requests.refusals.of(psn)
    if asked is not None and asked.cause in (Cause.NAK, Cause.RNR, Cause.READ_GAP):
        return None
    is_equal = before.icrc == packet.icrc and before.opcode == packet.opcode
    is_soon = packet.time_ns - before.time_ns < DUPLICATE_NS
    return before if is_equal and is_soon else None


def may_be_late(requests: TrackedRequests, run: Retransmission) -> bool:
    """Whether the only packet of a retransmission may be the first of its PSN, and late."""
    return (
        run.event.count == 1
        and run.event.cause is Cause.NAK
        and not requests.connection.identities[requests.end].counts_up
        and run.psn & MASK not in requests.connection.damaged.requests[requests.end]
        and within(requests.unseen.unsettled.requests, run.psn) is not None
    )


def take_back(requests: TrackedRequests, run: Retransmission) -> None:
    """What seemed to begin a retransmission was late: the NAK is not obeyed yet."""
    counts = requests.connection.directions[requests.end]
    counts.retransmitted -= 1
    counts.reordered += 1
    counts.perhaps_resent += 1
    counts.timeouts -= run.event.is_timeout
    requests.attempts -= 1
    requests.refusals.restore(run.obeyed)
    requests.unseen.fill_request(run.psn, run.end)
    requests.retransmission = None
    late = requests.recent_requests.get(run.psn)
    if late is not None:
        requests.reports.packet(FlowEventKind.REORDERED, requests.end, late)


def _refusal_before(requests: TrackedRequests, psn: int) -> Refusal | None:
    """The NAK that a retransmission obeys whose first packets were not seen here."""
    before = requests.recent_requests.get(psn)
    since = (-1, 0) if before is None else before.place
    for each in reversed(list(requests.refusals)):
        if each.cause in (Cause.NAK, Cause.RNR) and each.psn < psn and requests.acked < psn:
            return each if each.place > since else None
    return None


def note_skipped(
    requests: TrackedRequests, run: Retransmission, psn: int, packet: TransportPacket
) -> None:
    """Requests were left out where all are retransmitted: lost, if they were sent."""
    before = requests.recent_requests.get(run.psn)
    identity = requests.connection.identities[requests.end]
    assert requests.next is not None
    if before is None or psn == run.resumes_at:
        return
    end = min(psn, requests.next)  # beyond, they are missing for the first time
    if not identity.counts_up:
        # Before something new, and except what is acknowledged, a requester leaves out nothing.
        if requests.acked < run.end and psn < requests.next:
            known = _known_between(requests, run.end, end)
            if known:
                requests.unseen.skip_requests(run.end, end, packet, known)
        return
    unseen = identity.unseen(before, packet)
    if not unseen:
        return
    known = _known_between(requests, run.end, end)
    for packets in {known, end - run.end}:
        if packets and len(unseen) == packets + psn - end:
            requests.unseen.skip_requests(run.end, end, packet, packets)
            return
    _note_unseen_ids(requests, before, packet)


def _known_between(requests: TrackedRequests, first: int, end: int) -> int:
    """How many requests with the PSNs `first` to `end` - 1 were seen, of the newest."""
    known = 0
    if first < end:
        for psn in requests.recent_requests.psns():
            if first <= psn < end:
                known += 1
    return known


def count_late(requests: TrackedRequests, psn: int, packet: TransportPacket) -> Cause | None:
    """Count a retransmitted request that is late; returns its cause if its run is over."""
    run = requests.retransmission
    if run is None:
        return Cause.UNKNOWN
    first = run.end - 1 - (run.event.last_psn - run.event.psn & MASK)
    if not requests.is_retransmitting or not first <= psn < run.end:
        return run.event.cause
    run.event.count += 1
    run.event.last_number = packet.number
    return None


def _note_unseen_ids(
    requests: TrackedRequests, before: TransportPacket, packet: TransportPacket
) -> None:
    """Note IP identifications left out between two requests, unless the sender was silent."""
    if packet.time_ns - before.time_ns < NO_SKIP_NS:
        identity = requests.connection.identities[requests.end]
        requests.unseen.unsettled.ip_ids |= identity.unseen(before, packet)


def end_run(requests: TrackedRequests) -> None:
    """Report the retransmission that was going on."""
    run = requests.run
    if run is not None and run.interrupted is not None:
        requests.reports.event(run.interrupted.event)
        run.interrupted = None
    if run is not None and run.event.count == 1 and run.repeats is not None:
        _take_for_repeated(requests, run, run.repeats)
    elif run is not None:
        requests.reports.event(run.event)


def _take_for_repeated(
    requests: TrackedRequests, run: Retransmission, first: TransportPacket | None
) -> None:
    """The only packet of a retransmission may be a duplicate, or late, as well."""
    counts = requests.connection.directions[requests.end]
    counts.increase(run.counted, -1)
    counts.retransmitted -= 1
    counts.repeated += 1
    requests.unseen.fill_request(run.psn, run.end)
    requests.reports.event(
        replace(
            run.event,
            kind=FlowEventKind.REPEATED,
            cause=None,
            cause_number=0 if first is None else first.number,
            delay_ns=None,
            is_timeout=False,
        )
    )
