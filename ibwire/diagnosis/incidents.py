"""One incident as cause and effect: what was lost or refused, and how the two ends reacted.

The causes follow from what passed the point of capture. A packet that had been
seen here and was requested again was lost, damaged or delayed after this point; one that was
never seen here was lost before it. A responder that asks for the next PSN right after
a NAK has received the packet: it was reordered. A requester whose packets are
all acknowledged twice had retransmitted them without need.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ibwire.connections.events import Cause, FlowEvent, FlowEventKind
from ibwire.connections.identity import COPY_NS
from ibwire.connections.opcode_sets import ANSWERED, RESPONSES
from ibwire.connections.packets import TransportPacket
from ibwire.connections.retransmissions import SILENCE_NS
from ibwire.diagnosis.causes import Reason
from ibwire.diagnosis.facts import Facts
from ibwire.diagnosis.incident_text import IncidentText, Step, summed_up
from ibwire.diagnosis.record import Clue, Incident, PacketTime
from ibwire.diagnosis.wording import (
    REFUSALS,
    VERBS,
    amount,
    count,
    duration,
    listed,
    opcode,
    psns,
)
from ibwire_layers.psn import HALF, MASK
from ibwire_layers.syndrome import NakCode, code


class Context(NamedTuple):
    """What the description of an incident depends on."""

    names: tuple[str, str]
    """Requester and responder."""
    is_paired: bool
    """The responder's packets were captured as well."""
    capture_end_ns: int
    """Time of the last frame of the capture."""
    every: bool = False
    """Do not summarise repeated steps."""
    may_be_cut: bool = False
    """Packets with cut headers were left out of the capture."""


def describe(incident: Incident, context: Context, before: Incident | None = None) -> IncidentText:
    """An incident in words; before: the previous one of the same requester."""
    describer = _Describer(incident, context, before)
    for event in incident.events:
        describer.take(event)
    describer.change()
    describer.end()
    describer.result.steps.sort(key=lambda step: (step.time_ns, not step.numbers[0], step.numbers))
    if not context.every:
        describer.result.steps = summed_up(describer.result.steps)
    return describer.result


class _Describer:
    """Goes through the events of an incident."""

    def __init__(self, incident: Incident, context: Context, before: Incident | None) -> None:
        self.incident = incident
        self.context = context
        self.r, self.s = context.names
        self.result = IncidentText(incident, names=context.names, may_be_cut=context.may_be_cut)
        self.facts = Facts(incident, before)
        self.limit = Cause.RETRIES
        """The limit at which the requester gave up, if it did."""
        self.resent_at = 0
        """The packet that began the last retransmission."""
        self._number = 0
        """The packet of the event that is described."""

    def take(self, event: FlowEvent) -> None:
        """Describe an event; the sentence about it is the evidence of the causes that it adds."""
        self._number = event.number
        known = len(self.result.steps)
        _DESCRIBE[event.kind](self, event)
        text = " ".join(step.text for step in self.result.steps[known:]) or self.result.given_up
        for cause in self.result.causes:
            cause.evidence = cause.evidence or text

    def _because(self, name: Reason, count: int = 1) -> None:
        self.result.because(name, self._number, count)

    # Events, by kind.

    def loss(self, event: FlowEvent) -> None:
        """Packets that were never seen here."""
        what = psns(event.psn, event.last_psn)
        if event.direction != self.incident.end:
            self._response_loss(event, what)
            return
        is_over = self.incident.recovered is not None
        if is_over and not self.facts.retransmissions and not self.facts.naks:
            self._because(Reason.NOT_CAPTURED, event.count)
            where = "It is acknowledged nevertheless: the capture missed it."
        elif (
            event.cause is Cause.UNKNOWN or (is_over and self._may_be_missed(event))
        ) and not self.facts.is_refused(event):
            self._because(Reason.NOT_SEEN, event.count)
            where = f"{_lost(event)} before this point, or the capture missed {_it(event)}."
        else:
            self._because(Reason.LOST_BEFORE, event.count)
            where = f"{_lost(event)} before this point{self._or_cut(event)}."
        self._step(
            event,
            f"{self.r}'s request with {what} did not arrive here: #{event.number} arrived instead. "
            f"{where}",
        )

    def _may_be_missed(self, event: FlowEvent) -> bool:
        """Whether requests that were acknowledged never came again; if headers are cut, that says
        nothing."""
        return not (self.context.may_be_cut or self.facts.came_again(event))

    def _or_cut(self, event: FlowEvent) -> str:
        """What else may be the reason why packets are missing."""
        if not self.context.may_be_cut:
            return ""
        return (
            f", or left out here because {'its' if event.count == 1 else 'their'} headers are cut"
        )

    def _response_loss(self, event: FlowEvent, what: str) -> None:
        """Responses that were never seen here."""
        why, where = Reason.RESPONSE_LOST_BEFORE, f"{_lost(event)} before this point"
        where += self._or_cut(event)
        if event.cause is Cause.NOT_CAPTURED:
            why = Reason.RESPONSE_NOT_CAPTURED
            where = f"{self.r} goes on without retransmitting: the capture missed {_it(event)}"
        elif event.cause is Cause.UNKNOWN:
            why = Reason.RESPONSE_NOT_SEEN
            where += f", or the capture missed {_it(event)}"
        self._because(why, event.count)
        if why is Reason.RESPONSE_LOST_BEFORE:
            many = f"lost before this point{self._or_cut(event)}"
        else:
            many = where
        self._step(
            event,
            f"{self.s}'s response to a READ or atomic with {what} did not arrive here: "
            f"#{event.number} arrived instead. {where}.",
            many=f"{{n}} times responses of {self.s} to READs or atomics did not arrive here "
            f"(before {{p}}): {many}.",
        )

    def late(self, event: FlowEvent) -> None:
        """A packet that was reordered."""
        may_be_resent = self._may_be_resent(event)
        if event.opcode in RESPONSES:
            self._because(Reason.RESPONSE_REORDERED)
        else:
            self._because(Reason.LATE if may_be_resent else Reason.REORDERED_BEFORE)
        self.result.retransmitted += event.cause is not None
        again = ", retransmitted," if event.cause is not None else ""
        what, many = (
            f"{again} is reordered: packets sent after it arrived here before it.",
            "reordered",
        )
        if may_be_resent:
            what = " arrives late: reordered, or lost before this point and retransmitted."
            many = "late"
        if not event.cause_number and self.facts.is_retransmitted(event.psn):
            what = " arrives twice: one of the two is late, a duplicate, or retransmitted."
        self._step(
            event,
            f"{self._owner(event)}'s {opcode(event.opcode)} with PSN {event.psn}{what}",
            many=f"{{n}} packets of {self._owner(event)} are {many}: {{p}}.",
        )

    def _may_be_resent(self, event: FlowEvent) -> bool:
        """Whether a request that was taken for a reordered one may have been retransmitted."""
        if event.cause is not None or event.cause_number or event.opcode in RESPONSES:
            return False
        missing_since = event.time_ns - (event.delay_ns or 0)
        was_asked = any(
            each.number < event.number
            and (each.psn == event.psn or each.time_ns > missing_since)
            and event.psn - each.psn & MASK < HALF
            for each in self.facts.naks
        )
        is_late = event.delay_ns is not None and event.delay_ns > COPY_NS
        return was_asked or is_late or not self.context.is_paired

    def copy(self, event: FlowEvent) -> None:
        """A duplicate made by the network, or by the capture."""
        first = f"#{event.cause_number}" if event.cause_number else "an earlier packet"
        self._step(
            event,
            f"A duplicate of {first} ({self._owner(event)}'s {opcode(event.opcode)}, "
            f"PSN {event.psn}), made by the network or by the capture.",
            many=f"{{n}} duplicates of {self._owner(event)}'s packets, made by the network or by "
            "the capture: {p}.",
        )

    def repeated(self, event: FlowEvent) -> None:
        """A packet that arrived again, and nothing shows why."""
        if event.opcode not in RESPONSES:
            self._because(Reason.REPEATED)
        first = f" (first as #{event.cause_number})" if event.cause_number else ""
        self._step(
            event,
            f"{self._owner(event)}'s {opcode(event.opcode)} with PSN {event.psn} arrives again"
            f"{first}: a duplicate made by the network or by the capture, late, or retransmitted.",
            many=f"{{n}} packets of {self._owner(event)} arrive again ({{p}}): duplicates made by "
            "the network or by the capture, late, or retransmitted.",
        )

    def damaged(self, event: FlowEvent) -> None:
        """A packet with a wrong ICRC."""
        answer = event.opcode in RESPONSES
        self._because(Reason.RESPONSE_DAMAGED if answer else Reason.DAMAGED)
        reader = self.r if answer else self.s
        self._step(
            event,
            f"{self._owner(event)}'s {opcode(event.opcode)} with PSN {event.psn} has a wrong ICRC: "
            f"damaged before this point, {reader} drops it silently.",
            many=f"{{n}} of {self._owner(event)}'s packets have a wrong ICRC ({{p}}): damaged "
            f"before this point, {reader} drops them silently.",
        )

    def rnr(self, event: FlowEvent) -> None:
        """A receiver that is not ready."""
        self._because(Reason.NO_BUFFER)
        self.result.rnr_naks += 1
        self._step(
            event,
            f"{self.s}: RNR NAK for PSN {event.psn}, it has no receive buffer posted; {self.r} "
            f"must wait {(event.delay_ns or 0) / 1e6:g} ms.",
            "rnr",
        )

    def nak(self, event: FlowEvent) -> None:
        """A NAK."""
        if code(event.code) != NakCode.PSN_SEQUENCE_ERROR:
            self._fatal(event)
            return
        before = [each for each in self.facts.naks if each.number < event.number]
        if any(rnr.psn == event.psn and rnr.number < event.number for rnr in self.facts.rnrs):
            self._step(
                event,
                f"{self.s} also sends a NAK for the packets after the refused one (it expects PSN "
                f"{event.psn}), as Linux rxe does after an RNR NAK.",
                "nak after rnr",
            )
        elif before and self.facts.follows(before[-1], event):
            self._step(
                event,
                f"{self.s}: NAK, now expects PSN {event.psn}: PSN {before[-1].psn} has arrived "
                f"late, and the packets that arrived before it were dropped.",
                "nak again",
            )
        else:
            why = self._why_missing(event)
            self._step(
                event, f"{self.s}: NAK, out of sequence, expects PSN {event.psn}. {why}", "nak"
            )

    def _why_missing(self, event: FlowEvent) -> str:
        """What happened to the packet that a NAK asks for."""
        clue = self.incident.clues.get(event.number)
        if self.facts.was_damaged(event.psn, before=event.number):
            return "That packet was damaged, see above."
        late = self.facts.late(event)
        is_sure = late is not None and not self._may_be_resent(late)
        if late is not None and (late.cause_number or (late.number < event.number and is_sure)):
            return f"That packet was reordered before this point (#{late.number})."
        if late is not None:
            return _WAS_LATE.format(number=late.number)
        late = self.facts.repeated(event, self.resent_at)
        if late is not None:
            return (
                f"That packet arrived here again (#{late.number}): it was late, or lost and its "
                f"retransmission was late or duplicated, or {self.s} discarded it because an "
                "earlier packet was missing (go-back-N)."
            )
        if clue is not None and clue.sent and clue.was_late and not self._has_resent(event):
            return f"That packet was reordered before this point (#{clue.sent.number})."
        named_before = any(
            each.psn == event.psn and each.number < event.number for each in self.facts.naks
        )
        was_lost = self.facts.is_lost(event.psn, before=event.number) and not named_before
        if was_lost or (clue is not None and clue.was_missing):
            if clue is not None and clue.sent is not None:
                if not self.facts.is_lost(event.psn):
                    self._because(Reason.LATE)
                    return (
                        f"It had passed here before (#{clue.sent.number}), but its retransmission "
                        "had not arrived here: late or lost before this point."
                    )
                return (
                    f"It had passed here before (#{clue.sent.number}), but its retransmission did "
                    "not arrive here: lost before this point."
                )
            return "That packet was never seen here."
        if clue is None or clue.sent is None:
            self._because(Reason.NOT_IN_CAPTURE)
            return "Whether it passed here is unknown: no packet with this PSN was captured."
        later = [each for each in self.facts.naks if each.number > event.number]
        passed = f"That packet passed here as #{clue.sent.number}: "
        if later and self.facts.follows(event, later[0]):
            self._because(Reason.REORDERED_AFTER)
            return f"{passed}it was reordered after this point, as the next NAK shows."
        if self.facts.was_refused_unseen(event):
            self._because(Reason.LOST_OR_DISCARDED)
            return (
                f"{passed}it was {AFTER}, or {self.s} refused it with a response that arrived here "
                "damaged or late."
            )
        if self.facts.may_be_discarded(event):
            self._because(Reason.LOST_OR_DISCARDED)
            return (
                f"{passed}it was {AFTER}, or {self.s} discarded it because an earlier packet was "
                "missing (go-back-N)."
            )
        self._because(Reason.LOST_AFTER)
        return f"{passed}it was {AFTER}."

    def _has_resent(self, event: FlowEvent) -> bool:
        """Whether the incident had a retransmission before an event."""
        return any(each.number < event.number for each in self.facts.retransmissions)

    def _fatal(self, event: FlowEvent) -> None:
        known = REFUSALS.get(NakCode(code(event.code))) if code(event.code) in _NAK_CODES else None
        self._because(Reason.REFUSED)
        if known is None:
            self.result.refusal = f"NAK with the reserved code {code(event.code)}"
            self._step(event, f"{self.s}: NAK with the reserved code {code(event.code)}.")
            return
        clue = self.incident.clues.get(event.number)
        what = f"the request with PSN {event.psn}"
        if clue is not None and clue.sent is not None:
            sent = clue.sent
            what = f"{opcode(sent.opcode)} #{sent.number} (PSN {event.psn}"
            if sent.rkey or sent.va:
                what += f", R_Key 0x{sent.rkey:x}, address 0x{sent.va:x}"
            size = sent.dma_len or sent.size
            what += f", {amount(size)})" if size else ")"
        self.result.refusal = f"{known.name} for {what}"
        self.result.look = known.look.format(s=self.s)
        self._step(
            event,
            f"{self.s}: NAK, {known.name}, for {what}: {known.meaning.format(s=self.s)}. "
            f"This ends the connection: {self.s}'s queue pair goes to the error state, "
            f"{self.r}'s work request fails with {known.status}.",
        )

    def retransmission(self, event: FlowEvent) -> None:
        """Requests that were retransmitted."""
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
        self.result.steps.append(
            Step(
                event.time_ns,
                number,
                text,
                f"retransmission {event.cause}",
                event.time_ns - rnr.time_ns if rnr is not None else event.delay_ns,
            )
        )

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
        if not self.context.is_paired and (
            self.incident.gaps or self.incident.recovered is not None
        ):
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
        if self.result.incident.recovered is None:
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
        if self.context.is_paired:
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
        if clue is None or not clue.resumes_read or self.context.is_paired:
            return ""
        return f" It has the responses before PSN {event.psn}, which were not captured."

    def given_up(self, event: FlowEvent) -> None:
        """The requester stopped; `end` describes the consequence."""
        if self.incident.recovered is not None:
            return
        result = self.result
        self._because(Reason.GIVEN_UP)
        self.limit = event.cause or Cause.RETRIES
        if self.limit is Cause.RNR_RETRIES:
            naks = sum(each.psn == event.psn for each in self.facts.rnrs)
            result.given_up = f"after {count(naks, 'RNR NAK')} for PSN {event.psn}"
        else:
            tries = count(event.count, "transmission")
            result.given_up = f"after {tries} of PSN {event.psn} without a response"

    def restart(self, event: FlowEvent) -> None:
        """The queue pair was reset."""
        self._step(event, f"{self.r} restarts at PSN {event.psn}.")

    def change(self) -> None:
        """A request that was retransmitted with another opcode."""
        if self.incident.changed is None:
            return
        before, after = self.incident.changed
        self.result.change = (
            f"{self.r} retransmitted PSN {after.psn} as {opcode(after.opcode)} (#{after.number}), "
            f"and had sent it as {opcode(before.opcode)} (#{before.number})"
        )
        text = f"{self.result.change}: a retransmitted packet must have the same opcode."
        self.result.steps.append(Step(after.time_ns, (after.number, after.number), text))

    # The end.

    def end(self) -> None:
        """How the incident ended."""
        incident, result = self.incident, self.result
        if incident.recovered is not None:
            self._recovered(incident.recovered)
            return
        if result.refusal:
            return
        if incident.is_cut:
            text = f"Not resolved: {self.r}'s queue pair was reset, or its number was reused."
            result.steps.append(Step(incident.last.time_ns, (0, 0), text))
            return
        silence = self.context.capture_end_ns - incident.last.time_ns
        text = "The capture ends here"
        if silence >= SILENCE_NS:
            text = f"Nothing more is seen for {duration(silence)} until the end of the capture"
        if result.given_up:
            text = f"{text}: {self.r} has given up {result.given_up}. "
            text += f"Its work request fails with {_STATUS[self.limit]}."
        else:
            text += ": this is not resolved."
        result.steps.append(Step(incident.last.time_ns, (0, 0), text))

    def _recovered(self, place: PacketTime) -> None:
        incident, result = self.incident, self.result
        clue = incident.clues[min(incident.clues)] if incident.clues else None
        since = f"the gap showed (#{incident.first.number})"
        began = incident.first.time_ns
        if clue is not None and clue.sent is not None and clue.sent.time_ns < began:
            began = clue.sent.time_ns
            since = f"PSN {clue.sent.psn} was first sent (#{clue.sent.number})"
        elif clue is not None and clue.answered is not None:
            began, since = clue.answered.time_ns, f"the lost response (#{clue.answered.number})"
        elif self._last_response is not None:
            last = self._last_response
            began, since = last.time_ns, f"the response before it (#{last.number})"
        elif any(each.number == incident.first.number for each in self.facts.naks):
            since = f"the NAK (#{incident.first.number})"
        elif any(each.number == incident.first.number for each in self.facts.rnrs):
            since = f"the RNR NAK (#{incident.first.number})"
        elif incident.first.number in incident.clues:
            since = f"it was retransmitted (#{incident.first.number})"
        result.stall_ns = place.time_ns - began
        if not result.retransmitted:
            return
        text = "Acknowledged" if self.context.is_paired else f"{self.r} continues"
        if incident.responses_again:
            text += f", with {count(incident.responses_again, 'response')} retransmitted"
        if incident.messages:
            text += f"; completed meanwhile: {listed(self._done())}"
        if result.is_harmless:
            text += f", {duration(result.stall_ns)} after {since}."
        else:
            text += f". Recovered {duration(result.stall_ns)} after {since}."
        result.steps.append(Step(place.time_ns, (place.number, place.number), text))

    @property
    def _last_response(self) -> TransportPacket | None:
        """The last response of a READ, where it shows first that none followed in time."""
        clue = self.incident.clues.get(self.incident.first.number)
        return None if clue is None else clue.begins_after_response

    def _done(self) -> list[str]:
        """The messages that were completed during the incident, by verb."""
        messages = self.incident.messages
        ends = {end for end, _ in messages}
        whose = dict.fromkeys(ends, "")
        if len(ends) > 1:
            whose = {end: f" of {self.r if end == self.incident.end else self.s}" for end in ends}
        return [f"{n:,} {VERBS.get(verb, verb)}{whose[end]}" for (end, verb), n in messages.items()]

    # Words.

    def _owner(self, event: FlowEvent) -> str:
        return self.r if event.direction == self.incident.end else self.s

    def _retransmits(self, event: FlowEvent) -> str:
        what = psns(event.psn, event.last_psn)
        if event.opcode in ANSWERED:
            what = f"{opcode(event.opcode)} {what}"
        number = f" ({count(event.count, 'packet')})" if event.count > 1 else ""
        return f"{self.r} retransmits {what}{number}"

    def _step(self, event: FlowEvent, text: str, key: str = "", many: str = "") -> None:
        self.result.steps.append(
            Step(event.time_ns, (event.number, event.number), text, key, many=many)
        )


def _lost(event: FlowEvent) -> str:
    return "It was lost" if event.count == 1 else f"{count(event.count, 'packet')} were lost"


def _it(event: FlowEvent) -> str:
    return "it" if event.count == 1 else "them"


_WAS_LATE = "That packet was late, or lost and retransmitted (#{number})."

AFTER = "lost, damaged or delayed after this point"
"""What may have happened to a packet that passed here and is missing at its receiver: a capture
does not show which."""

_STATUS = {
    Cause.RETRIES: "IBV_WC_RETRY_EXC_ERR",
    Cause.RNR_RETRIES: "IBV_WC_RNR_RETRY_EXC_ERR",
}
"""The status of a work request when the limit is reached."""

PROMPT_NS = 10_000_000
"""A retransmission after a longer silence was not triggered by a response: rxe reacts to an
implied NAK within 2 ms, and the ACK timers of the captures are 18 ms and more
(reference/habits#rxe-timeout)."""

LATE_RNR_NS = 50_000
"""A retransmission so much later than twice the time of an RNR NAK may be one of an ACK timer: the
shortest ones last 131 us (`COPY_NS`)."""

_NAK_CODES = frozenset(each.value for each in NakCode)

_RETRANSMITTED: dict[Cause, Callable[[_Describer, FlowEvent], str]] = {
    Cause.NAK: _Describer.after_nak,
    Cause.RNR: _Describer.after_nak,
    Cause.READ_GAP: _Describer.after_gap,
    Cause.IMPLIED_NAK: _Describer.after_implied_nak,
    Cause.ACK_LOST: _Describer.after_answer,
    Cause.TIMEOUT: _Describer.after_timeout,
    Cause.UNKNOWN: _Describer.after_nothing,
}

_DESCRIBE: dict[FlowEventKind, Callable[[_Describer, FlowEvent], None]] = {
    FlowEventKind.LOST: _Describer.loss,
    FlowEventKind.REORDERED: _Describer.late,
    FlowEventKind.DUPLICATE: _Describer.copy,
    FlowEventKind.REPEATED: _Describer.repeated,
    FlowEventKind.ICRC_BAD: _Describer.damaged,
    FlowEventKind.RNR_NAK: _Describer.rnr,
    FlowEventKind.NAK: _Describer.nak,
    FlowEventKind.RETRANSMISSION: _Describer.retransmission,
    FlowEventKind.RETRY_EXCEEDED: _Describer.given_up,
    FlowEventKind.RESTART: _Describer.restart,
}
