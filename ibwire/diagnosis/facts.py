"""What the events of a case say together: which NAK means which loss, and what was not lost."""

from __future__ import annotations

from collections.abc import Iterator

from ibwire.connections.events import FlowEvent, FlowEventKind
from ibwire.connections.opcode_sets import RESPONSES
from ibwire.diagnosis.record import Case
from ibwire_layers.psn import MASK


class Facts:
    """Questions about the events of a case."""

    def __init__(self, case: Case, before: Case | None) -> None:
        """before: the case before it of the same requester."""
        self._case = case
        self._before = before
        self.resends = self._of(FlowEventKind.RETRANSMISSION)
        self.naks = self._of(FlowEventKind.NAK)
        self.rnrs = self._of(FlowEventKind.RNR_NAK)

    def _of(self, kind: FlowEventKind) -> list[FlowEvent]:
        return [event for event in self._case.events if event.kind is kind]

    def _old(self) -> Iterator[FlowEvent]:
        """The events of the case before."""
        if self._before is not None:
            yield from self._before.events

    def requests(self, kind: FlowEventKind) -> set[int]:
        """PSNs of requests that this happened to."""
        return {event.psn for event in self._of(kind) if event.opcode not in RESPONSES}

    def is_lost(self, psn: int) -> bool:
        """Whether a request with this PSN was never seen here, at least one time."""
        return any(
            _covers(event, psn)
            for event in self._of(FlowEventKind.LOST)
            if event.direction == self._case.end
        )

    def lost_between(self, number: int, resend: FlowEvent) -> int:
        """Of what is sent again, how many were lost or damaged here since a packet."""
        return sum(
            event.count
            for event in (*self._of(FlowEventKind.LOST), *self._of(FlowEventKind.ICRC_BAD))
            if event.direction == self._case.end
            and number <= event.number < resend.number
            and _covers(resend, event.psn)
        )

    def answers_gone(self, resend: FlowEvent) -> bool:
        """Whether answers to what is sent again were missing, late or damaged here."""
        for event in (*self._old(), *self._case.events):
            is_answer = event.opcode in RESPONSES
            if event.kind is FlowEventKind.LOST:
                is_answer = event.direction != self._case.end
            elif event.kind not in (FlowEventKind.ICRC_BAD, FlowEventKind.REORDERED):
                continue
            if is_answer and _covers(resend, event.psn):
                return True
        return False

    def was_restarting(self, number: int) -> bool:
        """Whether the requester was sending again when a packet passed: it may have dropped it."""
        if any(each.number < number for each in self.resends):
            return True
        return self._before is not None and number <= self._before.last.number

    def follows(self, before: FlowEvent, nak: FlowEvent) -> bool:
        """Whether a NAK only says that the packet has come that the NAK before it asked for."""
        if nak.psn != before.psn + 1 & MASK:
            return False
        resent = any(before.number < each.number < nak.number for each in self.resends)
        clue = self._case.clues.get(nak.number)
        is_old = clue is not None and clue.is_old
        return not resent or is_old or before.psn in self.requests(FlowEventKind.REORDERED)

    def rnr_before(self, resend: FlowEvent) -> FlowEvent | None:
        """The RNR NAK that refused the first of what is sent again."""
        found = [e for e in self.rnrs if e.psn == resend.psn and e.number < resend.number]
        return found[-1] if found else None

    def nak_before(self, resend: FlowEvent) -> FlowEvent | None:
        """A NAK for what is sent again, that nobody has obeyed before."""
        old = [event for event in self._old() if event.kind is FlowEventKind.NAK]
        found = [e for e in (*old, *self.naks) if e.psn == resend.psn and e.number < resend.number]
        if found and not any(
            found[-1].number < each.number < resend.number and each.psn == resend.psn
            for each in self.resends
        ):
            return found[-1]
        return None


def _covers(event: FlowEvent, psn: int) -> bool:
    """Whether a PSN is among those of an event."""
    return psn - event.psn & MASK <= (event.last_psn - event.psn & MASK)
