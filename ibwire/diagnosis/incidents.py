"""One incident as cause and effect: what was lost or refused, and how the two ends reacted.

The causes follow from what passed the point of capture. A packet that had been
seen here and was requested again was lost, damaged or delayed after this point; one that was
never seen here was lost before it. A responder that asks for the next PSN right after
a NAK has received the packet: it was reordered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ibwire.connections.events import Cause, FlowEvent, FlowEventKind
from ibwire.connections.identity import COPY_NS
from ibwire.connections.opcode_sets import RESPONSES
from ibwire.connections.packets import TransportPacket
from ibwire.connections.retransmissions import SILENCE_NS
from ibwire.diagnosis.causes import Reason
from ibwire.diagnosis.facts import Facts
from ibwire.diagnosis.incident_text import IncidentText, Step, summed_up
from ibwire.diagnosis.record import Incident, PacketTime
from ibwire.diagnosis.retransmission_text import Retransmissions
from ibwire.diagnosis.wording import (
    AFTER,
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
        self.retransmissions = Retransmissions(self.result, self.facts, context.is_paired)
        self.limit = Cause.RETRIES
        """The limit at which the requester gave up, if it did."""
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
        late = self.facts.repeated(event, self.retransmissions.resent_at)
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
        self.result.steps.append(self.retransmissions.describe(event))

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

    def _step(self, event: FlowEvent, text: str, key: str = "", many: str = "") -> None:
        self.result.steps.append(
            Step(event.time_ns, (event.number, event.number), text, key, many=many)
        )


def _lost(event: FlowEvent) -> str:
    return "It was lost" if event.count == 1 else f"{count(event.count, 'packet')} were lost"


def _it(event: FlowEvent) -> str:
    return "it" if event.count == 1 else "them"


_WAS_LATE = "That packet was late, or lost and retransmitted (#{number})."

_STATUS = {
    Cause.RETRIES: "IBV_WC_RETRY_EXC_ERR",
    Cause.RNR_RETRIES: "IBV_WC_RNR_RETRY_EXC_ERR",
}
"""The status of a work request when the limit is reached."""

_NAK_CODES = frozenset(each.value for each in NakCode)

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
