"""Facts that follow from several events of an incident: which NAK means which loss."""

from __future__ import annotations

from collections.abc import Iterator

from ibwire.connections.events import FlowEvent, FlowEventKind
from ibwire.connections.opcode_sets import ACKNOWLEDGE, RESPONSES
from ibwire.diagnosis.record import Incident
from ibwire_layers.psn import HALF, MASK


class Facts:
    """Answers questions about the events of an incident."""

    def __init__(self, incident: Incident, before: Incident | None) -> None:
        """before: the previous incident of the same requester."""
        self._incident = incident
        self._before = before
        self.retransmissions = self._of(FlowEventKind.RETRANSMISSION)
        self.naks = self._of(FlowEventKind.NAK)
        self.rnrs = self._of(FlowEventKind.RNR_NAK)

    def _of(self, kind: FlowEventKind) -> list[FlowEvent]:
        return [event for event in self._incident.events if event.kind is kind]

    def _old(self) -> Iterator[FlowEvent]:
        """The events of the previous incident."""
        if self._before is not None:
            yield from self._before.events

    def is_retransmitted(self, psn: int) -> bool:
        """Whether the request with this PSN, or for a response with it, was retransmitted."""
        return any(_covers(event, psn) for event in self.retransmissions)

    def late(self, nak: FlowEvent) -> FlowEvent | None:
        """The reordered packet that a NAK asks for, as far as it may be the one sent before."""
        for event in self._of(FlowEventKind.REORDERED):
            if event.opcode in RESPONSES or event.psn != nak.psn:
                continue
            if event.number < nak.number or event.cause_number < nak.number:
                return event
        return None

    def repeated(self, nak: FlowEvent, since: int) -> FlowEvent | None:
        """The packet that a NAK asks for, if it arrived again after a packet and before the NAK,
        and nothing shows why."""
        found = [
            event
            for event in self._of(FlowEventKind.REPEATED)
            if event.psn == nak.psn and since < event.number < nak.number
        ]
        return found[-1] if found and found[-1].opcode not in RESPONSES else None

    def was_refused_unseen(self, nak: FlowEvent) -> bool:
        """Whether another response about the PSN of a NAK arrived here damaged or late."""
        return any(
            event.opcode in ACKNOWLEDGE and event.psn == nak.psn
            for kind in (FlowEventKind.ICRC_BAD, FlowEventKind.REORDERED)
            for event in self._of(kind)
        )

    def requests(self, kind: FlowEventKind) -> set[int]:
        """PSNs of the requests with an event of this kind."""
        return {event.psn for event in self._of(kind) if event.opcode not in RESPONSES}

    def is_lost(self, psn: int, before: int | None = None) -> bool:
        """Whether a request with this PSN was never seen here, at least once.

        before: the number of a packet before which that showed.
        """
        return any(
            _covers(event, psn)
            for event in self._of(FlowEventKind.LOST)
            if event.direction == self._incident.end and (before is None or event.number < before)
        )

    def came_again(self, loss: FlowEvent) -> bool:
        """Whether requests that were not seen here arrived after the packet that showed that."""
        kinds = (
            FlowEventKind.RETRANSMISSION,
            FlowEventKind.REORDERED,
            FlowEventKind.REPEATED,
            FlowEventKind.ICRC_BAD,
        )
        return any(
            (_covers(each, loss.psn) or _covers(loss, each.psn)) and each.number > loss.number
            for each in self._incident.events
            if each.kind in kinds and each.direction == loss.direction
        )

    def lacks_something(self, before: int) -> bool:
        """Whether a request that was missing here had not passed as a whole before a packet."""
        again = [each for each in self.retransmissions if each.number < before]
        return any(
            not any(_covers(each, first) and _covers(each, end - 1 & MASK) for each in again)
            or any(loss.number >= again[0].number for loss in self._of(FlowEventKind.LOST))
            for first, end in self._incident.gaps
        )

    def was_damaged(self, psn: int, before: int) -> bool:
        """Whether the newest request with this PSN before a packet arrived here damaged."""
        found = [
            event.number
            for event in self._of(FlowEventKind.ICRC_BAD)
            if event.opcode not in RESPONSES and event.psn == psn and event.number < before
        ]
        clue = self._incident.clues.get(before)
        return bool(found) and (clue is None or clue.sent is None or found[-1] > clue.sent.number)

    def damaged_within(self, retransmission: FlowEvent) -> bool:
        """Whether a retransmitted request had arrived here damaged before."""
        return any(
            event.opcode not in RESPONSES
            and event.number < retransmission.number
            and _covers(retransmission, event.psn)
            for event in self._of(FlowEventKind.ICRC_BAD)
        )

    def damaged_after(self, rnr: FlowEvent, retransmission: FlowEvent) -> bool:
        """Whether the request that an RNR NAK refused was retransmitted before, and arrived here
        damaged."""
        return any(
            event.opcode not in RESPONSES
            and event.psn == rnr.psn
            and rnr.number < event.number < retransmission.number
            for event in self._of(FlowEventKind.ICRC_BAD)
        )

    def is_refused(self, loss: FlowEvent) -> bool:
        """Whether a NAK asks for one of the requests that were not seen here."""
        return any(_covers(loss, nak.psn) for nak in (*self.naks, *self.rnrs))

    def lost_between(self, number: int, retransmission: FlowEvent) -> int:
        """How many of the retransmitted packets were lost or damaged here since a packet.

        Those that were lost or damaged again in this retransmission are not among its packets.
        """
        again = {
            event.psn + step & MASK
            for event in (*self._of(FlowEventKind.LOST), *self._of(FlowEventKind.ICRC_BAD))
            if event.direction == self._incident.end
            and retransmission.number < event.number <= retransmission.last_number
            for step in range(event.count)
        }
        found = [
            event
            for event in (*self._of(FlowEventKind.LOST), *self._of(FlowEventKind.ICRC_BAD))
            if event.direction == self._incident.end
            and number <= event.number < retransmission.number
            and _covers(retransmission, event.psn)
        ]
        lost = 0
        for event in found:
            if event.kind is FlowEventKind.LOST:
                lost += max(event.count - sum(_covers(event, psn) for psn in again), 0)
        damaged = {event.psn for event in found if event.kind is FlowEventKind.ICRC_BAD}
        return lost + len(damaged - again)

    def responses_missing(self, retransmission: FlowEvent) -> bool:
        """Whether responses to retransmitted requests were missing, reordered or damaged here."""
        for event in (*self._old(), *self._incident.events):
            is_answer = event.opcode in RESPONSES
            if event.kind is FlowEventKind.LOST:
                is_answer = event.direction != self._incident.end
                # What shows after the retransmission may be a response to it.
                is_answer &= event.number < (retransmission.last_number or retransmission.number)
            elif event.kind not in (FlowEventKind.ICRC_BAD, FlowEventKind.REORDERED):
                continue
            if event.kind is FlowEventKind.ICRC_BAD and event.number > retransmission.number:
                continue
            if is_answer and _covers(retransmission, event.psn):
                return True
        return False

    def was_restarting(self, event: FlowEvent, answered: int) -> bool:
        """Whether the requester may have dropped a response because an earlier one was missing.

        event: its retransmission. answered: number of the response.
        """
        if any(each.number < event.number for each in self.retransmissions):
            return True
        if self._before is None:
            return False
        return answered <= self._before.last.number or any(
            each.kind is FlowEventKind.RETRANSMISSION and _covers(each, event.psn)
            for each in self._before.events
        )

    def damaged_responses(self, retransmission: FlowEvent) -> bool:
        """Whether a response to the retransmitted requests, or to later ones, arrived damaged."""
        return any(
            event.opcode in RESPONSES
            and event.number < retransmission.number
            and event.psn - retransmission.psn & MASK < HALF
            for event in self._of(FlowEventKind.ICRC_BAD)
        )

    def may_be_discarded(self, nak: FlowEvent) -> bool:
        """Whether the responder may have lacked an earlier packet when the one came that a NAK
        asks for."""
        incident = self._incident
        if any(
            each.number < nak.number for each in (*self.naks, *self.rnrs, *self.retransmissions)
        ):
            return True
        if any(nak.psn - first & MASK < HALF for first, _ in incident.gaps):
            return any(first != nak.psn for first, _ in incident.gaps)
        clue = incident.clues.get(nak.number)
        if clue is not None and (clue.was_before_older or clue.was_busy):
            return True
        sent = clue.sent if clue is not None else None
        before = self._before
        return before is not None and sent is not None and sent.number <= before.last.number

    def follows(self, before: FlowEvent, nak: FlowEvent) -> bool:
        """Whether a NAK only shows that the packet which the previous NAK asked for has arrived."""
        if nak.psn != before.psn + 1 & MASK:
            return False
        retransmitted = any(
            before.number < each.number < nak.number for each in self.retransmissions
        )
        clue = self._incident.clues.get(nak.number)
        is_old = clue is not None and clue.is_old
        if self._was_late_first(before):
            return True
        if any(
            _covers(each, nak.psn) and each.last_psn != nak.psn and each.last_number < nak.number
            for each in self.retransmissions
        ):
            return False
        return not retransmitted or is_old

    def _was_late_first(self, before: FlowEvent) -> bool:
        """Whether the packet that a NAK asks for arrived here late, and no retransmission of it
        had passed here then."""
        return any(
            not any(
                _covers(each, before.psn) and event.cause_number <= each.number < event.number
                for each in self.retransmissions
            )
            for event in self._of(FlowEventKind.REORDERED)
            if event.opcode not in RESPONSES and event.psn == before.psn
        )

    def rnr_before(self, retransmission: FlowEvent) -> FlowEvent | None:
        """The RNR NAK that refused the first retransmitted packet."""
        found = [
            e for e in self.rnrs if e.psn == retransmission.psn and e.number < retransmission.number
        ]
        is_obeyed = found and any(
            found[-1].number < each.number < retransmission.number
            for each in self.retransmissions
            if each.psn == retransmission.psn
        )
        return found[-1] if found and not is_obeyed else None

    def nak_before(self, retransmission: FlowEvent) -> FlowEvent | None:
        """A NAK for the retransmitted packets that had caused no retransmission yet."""
        old = [event for event in self._old() if event.kind is FlowEventKind.NAK]
        found = [
            e
            for e in (*old, *self.naks)
            if e.psn == retransmission.psn and e.number < retransmission.number
        ]
        before = [event for event in self._old() if event.kind is FlowEventKind.RETRANSMISSION]
        if found and not any(
            found[-1].number < each.number < retransmission.number
            and (each.psn == retransmission.psn or each.cause_number == found[-1].number)
            for each in (*before, *self.retransmissions)
        ):
            return found[-1]
        return None


def _covers(event: FlowEvent, psn: int) -> bool:
    """Whether a PSN is among those of an event."""
    return psn - event.psn & MASK <= (event.last_psn - event.psn & MASK)
