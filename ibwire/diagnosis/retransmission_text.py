"""Why a requester retransmits, in words: after a NAK, an RNR NAK, a gap, a response, a timeout.

What passed the point of capture before a retransmission shows its cause, and what came after it
shows whether it was needed: a requester whose packets are all acknowledged twice had
retransmitted them without need.
"""

from __future__ import annotations

from collections.abc import Callable

from ibwire.connections.events import Cause, FlowEvent
from ibwire.connections.identity import COPY_NS
from ibwire.connections.opcode_sets import ANSWERED
from ibwire.connections.packets import TransportPacket
from ibwire.connections.retransmissions import SILENCE_NS
from ibwire.diagnosis.causes import Reason
from ibwire.diagnosis.facts import Facts
from ibwire.diagnosis.incident_text import IncidentText, Step
from ibwire.diagnosis.record import Clue
from ibwire.diagnosis.wording import AFTER, count, duration, opcode, psns
from ibwire_layers.psn import MASK


class Retransmissions:
    """Describes the retransmissions of an incident, one after another."""

    def __init__(self, result: IncidentText, facts: Facts, is_paired: bool) -> None:
        """result: takes the causes and counts. is_paired: the responder's packets were captured."""
        self.incident = result.incident
        self.result = result
        self.facts = facts
        self.r, self.s = result.names
        self.is_paired = is_paired
        self.resent_at = 0
        """The packet that began the last retransmission."""
        self._number = 0
        """The packet that begins the one that is described."""

    def describe(self, event: FlowEvent) -> Step:
        """Requests that were retransmitted."""
        self._number = event.number
        self.result.retransmitted += event.count
        rnr, nak = self.facts.rnr_before(event), self.facts.nak_before(event)
        if rnr is not None and event.cause in (Cause.RNR, Cause.NAK):
            text = self._after_rnr(event, rnr)
        elif nak is not None and event.cause is Cause.ACK_LOST:
            text = self._after_old_nak(event, nak)
        else:
            text = _RETRANSMITTED[event.cause or Cause.UNKNOWN](self, event)
        self.resent_at = event.number
        number = event.number, event.last_number or event.number
        return Step(
            event.time_ns,
            number,
            text,
            f"retransmission {event.cause}",
            event.time_ns - rnr.time_ns if rnr is not None else event.delay_ns,
        )

    def _because(self, name: Reason) -> None:
        self.result.because(name, self._number)

    def _after_old_nak(self, event: FlowEvent, nak: FlowEvent) -> str:
        self.result.needless += event.count
        self._because(Reason.OLD_NAK)
        return (
            f"{self._retransmits(event)}, {duration(event.time_ns - nak.time_ns)} after NAK "
            f"#{nak.number}, although the packet it asks for had arrived meanwhile."
        )

    def _after_rnr(self, event: FlowEvent, rnr: FlowEvent) -> str:
        waited, asked = event.time_ns - rnr.time_ns, rnr.delay_ns or 0
        if waited > 2 * asked + PROMPT_NS:
            return (
                f"{self._retransmits(event)} after {duration(waited)}, much later than the "
                f"{asked / 1e6:g} ms that the RNR NAK asks for."
            )
        if self.facts.damaged_after(rnr, event):
            return (
                f"{self._retransmits(event)}, {duration(waited)} after the RNR NAK: what it had "
                "retransmitted before arrived here damaged."
            )
        if waited > 2 * asked + LATE_RNR_NS:
            return (
                f"{self._retransmits(event)}, {duration(waited)} after the RNR NAK, which asks to "
                f"wait {asked / 1e6:g} ms."
            )
        if waited >= asked:
            naks = [e for e in self.facts.naks if rnr.number < e.number < event.number]
            is_nak = any(nak.psn == rnr.psn for nak in naks) and waited < SILENCE_NS
            who = "the RNR NAK, or the NAK after it, asks" if is_nak else "the RNR NAK asks"
            return f"{self._retransmits(event)} after {duration(waited)}, as {who}."
        if self._goes_on(event, rnr):
            return (
                f"{self._retransmits(event)}, {duration(waited)} after the RNR NAK, which asks to "
                f"wait {asked / 1e6:g} ms: {self.r} was retransmitting when it passed here."
            )
        return (
            f"{self._retransmits(event)} after only {duration(waited)}, although the RNR NAK asks "
            f"to wait {asked / 1e6:g} ms."
        )

    def _goes_on(self, event: FlowEvent, rnr: FlowEvent) -> bool:
        """Whether a retransmission had begun before an RNR NAK."""
        return any(
            each.number < rnr.number and (event.psn - each.last_psn & MASK) == 1
            for each in self.facts.retransmissions
        )

    def after_nak(self, event: FlowEvent) -> str:
        """A retransmission because of a NAK."""
        needed = min(self.facts.lost_between(self.resent_at, event), event.count)
        text = f"{self._retransmits(event)}, {duration(event.delay_ns or 0)} after the NAK"
        if event.is_timeout:
            text += ", which had no effect until the ACK timer expired"
        elif self._was_obeyed(event):
            text += (
                f", for which it had retransmitted before: {self.r}'s ACK timer may have expired"
            )
        if event.count == needed or event.count == 1:
            return f"{text}."
        if needed:
            behind = count(event.count - needed, "other")
            it = "it" if needed == 1 else "them"
            lost = f"{needed:,} lost or damaged before this point"
            return f"{text}: {lost}, {behind} after {it} (go-back-N)."
        return f"{text}: all from there on (go-back-N)."

    def _was_obeyed(self, event: FlowEvent) -> bool:
        """Whether the NAK before a retransmission had caused another one, and a timer may this."""
        return (event.delay_ns or 0) > COPY_NS and any(
            each.cause_number == event.cause_number and each.number < event.number
            for each in self.facts.retransmissions
        )

    def after_gap(self, event: FlowEvent) -> str:
        """READ responses were missing."""
        clue = self.incident.clues.get(event.number)
        idle = clue.idle_ns if clue is not None else event.delay_ns or 0
        text = f"{self._retransmits(event)}, for which responses were missing, {duration(idle)} "
        text += "after the last packet"
        return f"{text}: its ACK timer had expired." if event.is_timeout else f"{text}."

    def after_implied_nak(self, event: FlowEvent) -> str:
        """A response to a later request showed that one was missing."""
        if not self.facts.responses_missing(event):
            self._because(Reason.RESPONSE_MISSING)
        return (
            f"{self._retransmits(event)}, {duration(event.delay_ns or 0)} after "
            f"#{event.cause_number}, a response to a later request: an earlier response is "
            f"missing (implied NAK).{self._expired(event)}"
        )

    def after_answer(self, event: FlowEvent) -> str:
        """A retransmission of a request whose response was seen here."""
        clue = self.incident.clues.get(event.number)
        if self.facts.responses_missing(event):
            if not self.result.causes:
                self._because(Reason.AFTERMATH)
            return self.after_gap(event)
        if clue is None or clue.answered is None:
            self._because(Reason.UNCLEAR)
            if clue is not None and event.is_timeout:
                return self._timer(event, clue)
            return f"{self._retransmits(event)}; the capture does not show why."
        if clue.sent is not None and clue.sent.number > clue.answered.number:
            return self._after_no_answer(event, clue.sent)
        since = event.time_ns - clue.answered.time_ns
        answered = f"although {self.s} had responded (#{clue.answered.number}, "
        answered += f"{duration(since)} before)"
        was_restarting = self.facts.was_restarting(event, clue.answered.number)
        is_nak = clue.answered.syndrome >= 0x20
        if event.opcode in ANSWERED or since >= COPY_NS or was_restarting or is_nak:
            is_sure = since >= SILENCE_NS
            why = Reason.RESPONSE_LOST_AFTER if is_sure else Reason.RESPONSE_OR_LATE
            lost = f"that response passed here and was {AFTER}, on its way to {self.r}"
            if not is_sure:
                lost += f", or {self.r} had not waited for it"
            if was_restarting or clue.was_busy:
                why = Reason.RESPONSE_OR_DISCARDED if is_sure else why
                lost += f", or {self.r} dropped it because an earlier one was missing"
            self._because(why)
            return f"{self._retransmits(event)}, {answered}: {lost}.{self._expired(event)}"
        self._spurious(event)
        return f"{self._retransmits(event)}, {answered}: its timer expired just before."

    def _expired(self, event: FlowEvent) -> str:
        """A timer, where the sentence before does not name it."""
        return f" {self.r}'s ACK timer had expired." if event.is_timeout else ""

    def _after_no_answer(self, event: FlowEvent, sent: TransportPacket) -> str:
        """A retransmission after one that no response seen here had answered."""
        self._because(Reason.EITHER_LOST_AFTER)
        since = event.time_ns - sent.time_ns
        text = (
            f"{self._retransmits(event)}, {duration(since)} after #{sent.number}, to which no "
            "response passed here: one of them was lost, damaged or delayed between this point and "
            f"{self.s}"
        )
        late = "" if since >= SILENCE_NS else f", or {self.r} had not waited for it"
        return f"{text}{late}.{self._expired(event)}"

    def _spurious(self, event: FlowEvent) -> None:
        self._because(Reason.STALE_TIMER)
        self.result.needless += event.count

    def after_timeout(self, event: FlowEvent) -> str:
        """A retransmission after no response arrived."""
        clue = self.incident.clues.get(event.number)
        if clue is None:
            self._because(Reason.UNCLEAR)
            return f"{self.r}'s ACK timer expires: {self._retransmits(event)}."
        if not self.is_paired and (self.incident.gaps or self.incident.recovered is not None):
            if not self.incident.gaps:
                self._because(Reason.UNCLEAR)
            return f"{self._timer(event, clue)}{self._resumes(event)}"
        text = f"{self._timer(event, clue)}{self._resumes(event)}"
        return f"{text} {self._why_timeout(event, clue)}".rstrip()

    def _timer(self, event: FlowEvent, clue: Clue) -> str:
        """A timer that expired, and since when it ran."""
        since = f" {duration(clue.idle_ns)} after the last packet" if clue.idle_ns else ""
        if clue.sent is not None:
            waited = duration(event.time_ns - clue.sent.time_ns)
            since = f" {waited} after PSN {event.psn} was sent (#{clue.sent.number})"
        return f"{self.r}'s ACK timer expires{since}: {self._retransmits(event)}."

    def _why_timeout(self, event: FlowEvent, clue: Clue) -> str:
        if self.facts.damaged_within(event):
            text = f"{self.s} lacked what was lost or damaged before this point"
            return f"{text}{self._no_nak(event)}."
        if not clue.ack_due and clue.idle_ns < SILENCE_NS:
            self._spurious(event)
            return (
                "No response was due yet, because no request had asked for one: an old timer "
                "was still running. Nothing was lost."
            )
        if self.facts.damaged_responses(event):
            return f"A response of {self.s} was damaged, see above."
        if clue.is_broken_off and not clue.ack_due:
            if not self.incident.gaps:
                self._because(Reason.LOST_BEFORE)
            return (
                "The message is incomplete here: at least its end was lost before this point, "
                f"so {self.s} had nothing to acknowledge."
            )
        if clue.was_missing or self.facts.lacks_something(before=event.number):
            text = f"{self.s} lacked what was lost or damaged before this point"
            return f"{text}{self._no_nak(event)}."
        if text := self._acknowledged_again(event, clue):
            return text
        if self.incident.recovered is None:
            return ""
        if clue.begins_after_response is not None:
            self._because(Reason.RESPONSE_MISSING)
            return (
                f"The first responses of this READ came back, so {self.s} had the request: the "
                f"response with PSN {event.psn} was lost or delayed before this point."
            )
        self._because(Reason.EITHER_LOST_AFTER)
        return (
            f"The request passed here and no response came back: one of them was lost, damaged or "
            f"delayed between this point and {self.s}{self._or_discarded(event, clue)}."
        )

    def _acknowledged_again(self, event: FlowEvent, clue: Clue) -> str:
        """What several acknowledgements of one request show; empty if there is one at most."""
        width = event.last_psn - event.psn & MASK
        acks = {p: n for p, n in clue.acks.items() if (p - event.psn & MASK) <= width}
        most = max(acks.values(), default=0)
        if most == event.count > 1 and sum(acks.values()) > event.count:
            self._spurious(event)
            return (
                f"{self.s} responds to their first transmission as well: nothing was lost, "
                f"{self.s} was slow or the timeout too short."
            )
        if most == event.count > 1:
            self._because(Reason.RESPONSE_LOST_BEFORE)
            return (
                f"{self.s} acknowledges each of them, because it had them already: its first "
                "response was lost before this point."
            )
        if most > event.count:
            self._spurious(event)
            return (
                f"{self.s} acknowledges everything twice: nothing was lost, the timeout was too "
                "short."
            )
        if most > 1:
            had = max(acks, key=lambda psn: acks[psn]) & MASK
            self._because(Reason.LOST_AFTER)
            self.result.needless += most
            rest = event.count - most
            which = "the other" if rest == 1 else f"of the other {rest:,} the first"
            return (
                f"{self.s} acknowledges {most} of them with an ACK of PSN {had}, because it had "
                f"them already: {which} had been {AFTER}."
            )
        return ""

    def _or_discarded(self, event: FlowEvent, clue: Clue) -> str:
        """A responder sends one NAK for a gap, and no other while packets after it come.

        Nothing is missing before a request if a response acknowledged all of that before the
        request was sent.
        """
        facts = self.facts
        acknowledged, sent = clue.response_before, clue.sent
        if acknowledged is not None and sent is not None and acknowledged.place < sent.place:
            return ""
        earlier = (*facts.naks, *facts.rnrs, *facts.retransmissions)
        if not any(each.number < event.number for each in earlier):
            return ""
        return f", or {self.s} discarded the request because an earlier packet was missing"

    def _no_nak(self, event: FlowEvent) -> str:
        if any(each.number < event.number for each in self.facts.naks):
            return ""
        return ", and no NAK arrived here"

    def after_nothing(self, event: FlowEvent) -> str:
        """A retransmission without a visible reason."""
        if self.is_paired:
            self._because(Reason.UNCLEAR)
            return f"{self._retransmits(event)}; the capture does not show why."
        if not self.incident.gaps:
            self._because(Reason.UNCLEAR)
        clue = self.incident.clues.get(event.number)
        why = "a NAK or its timer"
        if clue is not None and clue.resumes_read:
            why = "missing responses or its timer"
        return (
            f"{self._retransmits(event)}, because of {why}: no packet of {self.s} was captured."
            f"{self._resumes(event)}"
        )

    def _resumes(self, event: FlowEvent) -> str:
        """What it shows that a READ is retransmitted from its middle on."""
        clue = self.incident.clues.get(event.number)
        if clue is None or not clue.resumes_read or self.is_paired:
            return ""
        return f" It has the responses before PSN {event.psn}, which were not captured."

    def _retransmits(self, event: FlowEvent) -> str:
        what = psns(event.psn, event.last_psn)
        if event.opcode in ANSWERED:
            what = f"{opcode(event.opcode)} {what}"
        number = f" ({count(event.count, 'packet')})" if event.count > 1 else ""
        return f"{self.r} retransmits {what}{number}"


PROMPT_NS = 10_000_000
"""A retransmission after a longer silence was not triggered by a response: rxe reacts to an
implied NAK within 2 ms, and the ACK timers of the captures are 18 ms and more
(reference/habits#rxe-timeout)."""

LATE_RNR_NS = 50_000
"""A retransmission so much later than twice the time of an RNR NAK may be one of an ACK timer: the
shortest ones last 131 us (`COPY_NS`)."""

_RETRANSMITTED: dict[Cause, Callable[[Retransmissions, FlowEvent], str]] = {
    Cause.NAK: Retransmissions.after_nak,
    Cause.RNR: Retransmissions.after_nak,
    Cause.READ_GAP: Retransmissions.after_gap,
    Cause.IMPLIED_NAK: Retransmissions.after_implied_nak,
    Cause.ACK_LOST: Retransmissions.after_answer,
    Cause.TIMEOUT: Retransmissions.after_timeout,
    Cause.UNKNOWN: Retransmissions.after_nothing,
}
