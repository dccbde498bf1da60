"""One case of trouble as cause and effect: what was lost or refused, who noticed, what was done.

The causes are read off what passed at the point of capture. A packet that was
asked for again and had been seen here was lost behind this point; one that was
never seen here was lost before it. A responder that asks for the next PSN right
after a NAK has got the packet after all: it was overtaken. A requester whose
packets are all answered twice had sent them again without need.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ibwire.connections.events import Cause, FlowEvent, FlowEventKind
from ibwire.connections.opcode_sets import ANSWERED, RESPONSES
from ibwire.connections.tracker import SILENCE_NS
from ibwire.diagnosis.facts import Facts
from ibwire.diagnosis.incident_text import IncidentText, Step, summed_up
from ibwire.diagnosis.record import Case, Clue, PacketTime
from ibwire.diagnosis.wording import (
    REFUSALS,
    VERBS,
    Why,
    amount,
    count,
    duration,
    listed,
    opcode,
    psns,
)
from ibwire_layers.psn import MASK
from ibwire_layers.syndrome import NakCode, code


class Scene(NamedTuple):
    """What a case needs to be told."""

    names: tuple[str, str]
    """Requester and responder."""
    is_paired: bool
    """The responder's packets were captured as well."""
    capture_end_ns: int
    """Time of the last frame of the capture."""
    every: bool = False
    """Do not sum up what happens again and again."""


def tell(case: Case, scene: Scene, before: Case | None = None) -> IncidentText:
    """A case in words; before: the case before it of the same requester."""
    teller = _Teller(case, scene, before)
    for event in case.events:
        _TELL[event.kind](teller, event)
    teller.end()
    teller.told.steps.sort(key=lambda step: (step.time_ns, not step.numbers[0], step.numbers))
    if not scene.every:
        teller.told.steps = summed_up(teller.told.steps)
    return teller.told


class _Teller:
    """Walks through the events of a case."""

    def __init__(self, case: Case, scene: Scene, before: Case | None) -> None:
        self.case = case
        self.scene = scene
        self.r, self.s = scene.names
        self.told = IncidentText(case, names=scene.names)
        self.facts = Facts(case, before)
        self.limit = Cause.RETRIES
        """Which one made the requester give up, if it did."""
        self.is_lost_behind = False
        """A NAK since the last resend has shown a loss behind this point, or might have."""
        self.resent_at = 0
        """Packet that began the last resend."""

    # Events, by kind.

    def loss(self, event: FlowEvent) -> None:
        """Packets that were never seen here."""
        what = psns(event.psn, event.last_psn)
        if event.direction != self.case.end:
            self.told.whys[Why.ANSWER_LOST_BEFORE] += event.count
            self._step(
                event,
                f"{self.s}'s answer to READ or atomic with {what} never came by here: "
                f"#{event.number} came instead. {_lost(event)} before this point.",
                many=f"{{n}} times answers of {self.s} to READs or atomics never came by here "
                "(passed over by {p}): lost before this point.",
            )
            return
        if not self.facts.resends and not self.facts.naks:
            self.told.whys[Why.NOT_CAPTURED] += event.count
            where = "It is acknowledged all the same: the capture missed it."
        else:
            self.told.whys[Why.LOST_BEFORE] += event.count
            where = f"{_lost(event)} before this point."
        self._step(
            event,
            f"{self.r}'s request with {what} never came by here: #{event.number} came instead. "
            f"{where}",
        )

    def late(self, event: FlowEvent) -> None:
        """A packet that was overtaken."""
        if event.opcode in RESPONSES:
            self.told.whys[Why.ANSWER_OVERTAKEN] += 1
        else:
            self.told.whys[Why.OVERTAKEN_BEFORE] += 1
        self._step(
            event,
            f"{self._owner(event)}'s {opcode(event.opcode)} with PSN {event.psn} comes late: later "
            "packets overtook it on the way here.",
            many=f"{{n}} packets of {self._owner(event)} come late, overtaken on the way here: "
            "{p}.",
        )

    def copy(self, event: FlowEvent) -> None:
        """A copy made by the network, or the capture."""
        self._step(
            event,
            f"A copy of #{event.cause_number} ({self._owner(event)}'s {opcode(event.opcode)}, PSN "
            f"{event.psn}), made by the network or by the capture.",
            many=f"{{n}} copies of {self._owner(event)}'s packets, made by the network or by the "
            "capture: {p}.",
        )

    def damaged(self, event: FlowEvent) -> None:
        """A packet with a wrong ICRC."""
        answer = event.opcode in RESPONSES
        self.told.whys[Why.ANSWER_DAMAGED if answer else Why.DAMAGED] += 1
        reader = self.r if answer else self.s
        self._step(
            event,
            f"{self._owner(event)}'s {opcode(event.opcode)} with PSN {event.psn} has a wrong ICRC: "
            f"damaged before this point, {reader} drops it without a word.",
            many=f"{{n}} of {self._owner(event)}'s packets have a wrong ICRC ({{p}}): damaged "
            f"before this point, {reader} drops them without a word.",
        )

    def rnr(self, event: FlowEvent) -> None:
        """A receiver that is not ready."""
        self.told.whys[Why.NO_BUFFER] += 1
        self.told.rnr_naks += 1
        self._step(
            event,
            f"{self.s}: RNR NAK for PSN {event.psn}, it has no receive buffer posted; {self.r} is "
            f"to wait {(event.delay_ns or 0) / 1e6:g} ms.",
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
                f"{self.s} also NAKs what came behind the refused packet (it waits for PSN "
                f"{event.psn}), as Linux rxe does after an RNR NAK.",
                "nak after rnr",
            )
        elif before and self.facts.follows(before[-1], event):
            self._step(
                event,
                f"{self.s}: NAK, now waits for PSN {event.psn}: PSN {before[-1].psn} has come in "
                f"late, and what overtook it was dropped.",
                "nak again",
            )
        else:
            why = self._why_missing(event)
            self._step(
                event, f"{self.s}: NAK, out of sequence, waits for PSN {event.psn}. {why}", "nak"
            )

    def _why_missing(self, event: FlowEvent) -> str:
        """What became of the packet that a NAK asks for."""
        clue = self.case.clues.get(event.number)
        if event.psn in self.facts.requests(FlowEventKind.ICRC_BAD):
            return "That packet was damaged, see above."
        if event.psn in self.facts.requests(FlowEventKind.REORDERED):
            return "That packet was overtaken, not lost."
        named_before = any(
            each.psn == event.psn and each.number < event.number for each in self.facts.naks
        )
        if self.facts.is_lost(event.psn) and not named_before:
            return "That packet was never seen here."
        if clue is not None and clue.was_missing:
            if clue.sent is not None:
                self.told.whys[Why.LOST_BEFORE] += not self.facts.is_lost(event.psn)
                self.is_lost_behind = True
                return (
                    f"It had come by once (#{clue.sent.number}), but not when it was to be sent "
                    "again: lost before this point."
                )
            return "That packet was never seen here."
        if clue is None or clue.sent is None:
            self.told.whys[Why.UNCLEAR] += 1
            self.is_lost_behind = True
            return "Whether it passed here cannot be said: no packet with this PSN was captured."
        later = [each for each in self.facts.naks if each.number > event.number]
        passed = f"That packet passed here as #{clue.sent.number}: "
        if later and self.facts.follows(event, later[0]):
            self.told.whys[Why.OVERTAKEN_BEHIND] += 1
            return f"{passed}it was overtaken behind this point, as the next NAK shows."
        self.told.whys[Why.LOST_BEHIND] += 1
        self.is_lost_behind = True
        return f"{passed}it was lost behind this point."

    def _fatal(self, event: FlowEvent) -> None:
        known = REFUSALS.get(NakCode(code(event.code))) if code(event.code) in _NAK_CODES else None
        self.told.whys[Why.REFUSED] += 1
        if known is None:
            self.told.refusal = f"NAK with the reserved code {code(event.code)}"
            self._step(event, f"{self.s}: NAK with the reserved code {code(event.code)}.")
            return
        clue = self.case.clues.get(event.number)
        what = f"the request with PSN {event.psn}"
        if clue is not None and clue.sent is not None:
            sent = clue.sent
            what = f"{opcode(sent.opcode)} #{sent.number} (PSN {event.psn}"
            if sent.rkey or sent.va:
                what += f", R_Key 0x{sent.rkey:x}, address 0x{sent.va:x}"
            size = sent.dma_len or sent.size
            what += f", {amount(size)})" if size else ")"
        self.told.refusal = f"{known.name} for {what}"
        self.told.look = known.look.format(s=self.s)
        self._step(
            event,
            f"{self.s}: NAK, {known.name}, for {what}: {known.meaning.format(s=self.s)}. "
            f"This ends the connection: {self.s}'s queue pair goes to the error state, "
            f"{self.r}'s work request fails with {known.status}.",
        )

    def resend(self, event: FlowEvent) -> None:
        """Requests that were sent again."""
        self.told.resent += event.count
        rnr, nak = self.facts.rnr_before(event), self.facts.nak_before(event)
        if rnr is not None and event.cause in (Cause.RNR, Cause.NAK):
            text = self._after_rnr(event, rnr)
        elif nak is not None and (
            event.cause in (Cause.ACK_LOST, Cause.TIMEOUT) or nak.number < self.case.first.number
        ):
            text = self._after_old_nak(event, nak)
        else:
            text = _RESENT[event.cause or Cause.UNKNOWN](self, event)
        self.is_lost_behind, self.resent_at = False, event.number
        number = event.number, event.last_number or event.number
        self.told.steps.append(
            Step(
                event.time_ns,
                number,
                text,
                f"resend {event.cause}",
                event.time_ns - rnr.time_ns if rnr is not None else event.delay_ns,
            )
        )

    def _after_old_nak(self, event: FlowEvent, nak: FlowEvent) -> str:
        self.told.needless += event.count
        self.told.whys[Why.OLD_NAK] += 1
        return (
            f"{self._again(event)}, {duration(event.time_ns - nak.time_ns)} after NAK "
            f"#{nak.number}, although that had been settled meanwhile."
        )

    def _after_rnr(self, event: FlowEvent, rnr: FlowEvent) -> str:
        waited, asked = event.time_ns - rnr.time_ns, rnr.delay_ns or 0
        if waited >= asked:
            return f"{self.r} has waited {duration(waited)}, as asked. {self._again(event)}."
        return (
            f"{self._again(event)} after {duration(waited)} only, although it was asked to wait "
            f"{asked / 1e6:g} ms."
        )

    def after_nak(self, event: FlowEvent) -> str:
        """Why requests were sent again, by cause."""
        needed = self.facts.lost_between(self.resent_at, event) or int(self.is_lost_behind)
        needed = min(needed, event.count)
        self.told.needless += event.count - needed
        text = f"{self._again(event)}, {duration(event.delay_ns or 0)} after the NAK"
        clue = self.case.clues.get(event.number)
        if clue is not None and clue.idle_ns >= PROMPT_NS:
            text += ", which it had not obeyed until its ACK timer ended"
        if event.count == needed or event.count == 1:
            return f"{text}."
        if needed:
            behind = count(event.count - needed, "other")
            return (
                f"{text}: {needed:,} that had not arrived, {behind} that came behind (go-back-N)."
            )
        return f"{text}: all that came behind (go-back-N), although nothing was lost."

    def after_gap(self, event: FlowEvent) -> str:
        """READ responses were missing."""
        clue = self.case.clues.get(event.number)
        idle = clue.idle_ns if clue is not None else event.delay_ns or 0
        text = f"{self._again(event)}, for which answers were missing, {duration(idle)} after the "
        text += "last packet"
        return f"{text}: only its ACK timer made it do so." if idle >= PROMPT_NS else f"{text}."

    def after_implied_nak(self, event: FlowEvent) -> str:
        """A response passed over another one that was missing."""
        return (
            f"{self._again(event)}, {duration(event.delay_ns or 0)} after #{event.cause_number}, "
            "an answer to a later request: what was passed over must be lost (implied NAK)."
        )

    def after_answer(self, event: FlowEvent) -> str:
        """It had been answered here."""
        clue = self.case.clues.get(event.number)
        if self.facts.answers_gone(event):
            if not self.told.whys:
                self.told.whys[Why.AFTERMATH] += 1
            return self.after_gap(event)
        if clue is None or clue.answered is None:
            self.told.whys[Why.UNCLEAR] += 1
            return f"{self._again(event)}; nothing here says why."
        since = event.time_ns - clue.answered.time_ns
        answered = f"although {self.s} had answered (#{clue.answered.number}, "
        answered += f"{duration(since)} before)"
        if event.opcode in ANSWERED or since >= SILENCE_NS:
            self.told.whys[Why.ANSWER_LOST_BEHIND] += 1
            lost = f"that answer passed here and was lost behind this point, on its way to {self.r}"
            if self.facts.was_restarting(clue.answered.number):
                lost += f", unless {self.r} dropped it because an earlier one was missing"
            return f"{self._again(event)}, {answered}: {lost}."
        self._spurious(event)
        return f"{self._again(event)}, {answered}: its timer ended just before the answer came."

    def _spurious(self, event: FlowEvent) -> None:
        self.told.whys[Why.STALE_TIMER] += 1
        self.told.needless += event.count

    def after_timeout(self, event: FlowEvent) -> str:
        """Nothing was heard."""
        clue = self.case.clues.get(event.number)
        if clue is None:
            self.told.whys[Why.UNCLEAR] += 1
            return f"{self.r}'s ACK timer ends: {self._again(event)}."
        if not self.scene.is_paired and (self.case.gaps or self.case.recovered is not None):
            return self.after_nothing(event)
        return f"{self._timer(event, clue)} {self._why_timeout(event, clue)}".rstrip()

    def _timer(self, event: FlowEvent, clue: Clue) -> str:
        """A timer that ended, since when."""
        since = f"{duration(clue.idle_ns)} after the last packet"
        if clue.sent is not None:
            waited = duration(event.time_ns - clue.sent.time_ns)
            since = f"{waited} after PSN {event.psn} was sent (#{clue.sent.number})"
        return f"{self.r}'s ACK timer ends {since}: {self._again(event)}."

    def _why_timeout(self, event: FlowEvent, clue: Clue) -> str:
        if not clue.ack_due and clue.idle_ns < SILENCE_NS:
            self._spurious(event)
            return (
                "No answer was due yet, for nothing that was sent asked for one: an old timer "
                "was still running. Nothing was lost."
            )
        if clue.is_broken_off and not clue.ack_due:
            if not self.case.gaps:
                self.told.whys[Why.LOST_BEFORE] += 1
            return (
                "The message had broken off here: its end, at least, was lost before this point, "
                f"so that {self.s} had nothing to answer."
            )
        if clue.was_missing or self.case.gaps:
            return f"{self.s} lacked what was lost before this point, and no NAK came by here."
        most = max(clue.acks.values(), default=0)
        if most > 1 and most >= event.count:
            self._spurious(event)
            return f"{self.s} answers everything twice: nothing was lost, the timer was too short."
        if most > 1:
            had = max(clue.acks, key=lambda psn: clue.acks[psn]) & MASK
            lost = event.count - most
            self.told.whys[Why.LOST_BEHIND] += lost
            self.told.needless += most
            return (
                f"{self.s} answers {most} of them with an ACK of PSN {had}, for it had them "
                f"already: {count(lost, 'packet')} had been lost behind this point."
            )
        if self.told.case.recovered is None:
            return ""
        self.told.whys[Why.BEYOND] += 1
        return (
            f"The request passed here and no answer came back: one of them was lost between this "
            f"point and {self.s}."
        )

    def after_nothing(self, event: FlowEvent) -> str:
        """Nothing here says why."""
        if self.scene.is_paired:
            self.told.whys[Why.UNCLEAR] += 1
            return f"{self._again(event)}; nothing here says why."
        if not self.case.gaps:
            self.told.whys[Why.UNCLEAR] += 1
        return (
            f"{self._again(event)}, asked to by a NAK or by its timer: nothing of {self.s} was "
            "captured."
        )

    def given_up(self, event: FlowEvent) -> None:
        """The requester stopped; what it means is told at the end."""
        if self.case.recovered is not None:
            return
        told = self.told
        told.whys[Why.GIVEN_UP] += 1
        self.limit = event.cause or Cause.RETRIES
        if self.limit is Cause.RNR_RETRIES:
            naks = sum(each.psn == event.psn for each in self.facts.rnrs)
            told.given_up = f"after {count(naks, 'RNR NAK')} for PSN {event.psn}"
        else:
            tries = count(event.count, "transmission")
            told.given_up = f"after {tries} of PSN {event.psn} without an answer"

    def restart(self, event: FlowEvent) -> None:
        """The queue pair was reset."""
        self._step(event, f"{self.r} begins anew at PSN {event.psn}.")

    # The end.

    def end(self) -> None:
        """What the case came to."""
        case, told = self.case, self.told
        if case.recovered is not None:
            self._recovered(case.recovered)
            return
        if told.refusal:
            return
        if case.is_cut:
            text = f"Not resolved: {self.r}'s queue pair was reset, or its number used again."
            told.steps.append(Step(case.last.time_ns, (0, 0), text))
            return
        silence = self.scene.capture_end_ns - case.last.time_ns
        text = "Here the capture ends"
        if silence >= SILENCE_NS:
            text = f"Nothing more is seen for {duration(silence)}, to the end of the capture"
        if told.given_up:
            text = f"{text}: {self.r} has given up {told.given_up}. "
            text += f"Its work request fails with {_STATUS[self.limit]}."
        else:
            text += ": this is not resolved."
        told.steps.append(Step(case.last.time_ns, (0, 0), text))

    def _recovered(self, place: PacketTime) -> None:
        case, told = self.case, self.told
        clue = case.clues[min(case.clues)] if case.clues else None
        since = f"the gap showed (#{case.first.number})"
        began = case.first.time_ns
        if clue is not None and clue.sent is not None and clue.sent.time_ns < began:
            began = clue.sent.time_ns
            since = f"PSN {clue.sent.psn} was first sent (#{clue.sent.number})"
        elif clue is not None and clue.answered is not None:
            began, since = clue.answered.time_ns, f"the lost answer (#{clue.answered.number})"
        elif case.first.number in case.clues:
            since = f"it was sent again (#{case.first.number})"
        told.stall_ns = place.time_ns - began
        if not told.resent:
            return
        text = "Answered" if self.scene.is_paired else f"{self.r} goes on"
        if case.answers_again:
            text += f", with {count(case.answers_again, 'response')} sent again"
        if case.messages:
            done = [f"{n:,} {VERBS.get(verb, verb)}" for (_, verb), n in case.messages.items()]
            text += f"; completed meanwhile: {listed(done)}"
        if told.is_harmless:
            text += f", {duration(told.stall_ns)} after {since}."
        else:
            text += f". Recovered {duration(told.stall_ns)} after {since}."
        told.steps.append(Step(place.time_ns, (place.number, place.number), text))

    # Words.

    def _owner(self, event: FlowEvent) -> str:
        return self.r if event.direction == self.case.end else self.s

    def _again(self, event: FlowEvent) -> str:
        what = psns(event.psn, event.last_psn)
        if event.opcode in ANSWERED:
            what = f"{opcode(event.opcode)} {what}"
        number = f" ({count(event.count, 'packet')})" if event.count > 1 else ""
        return f"{self.r} sends {what} again{number}"

    def _step(self, event: FlowEvent, text: str, key: str = "", many: str = "") -> None:
        self.told.steps.append(
            Step(event.time_ns, (event.number, event.number), text, key, many=many)
        )


def _lost(event: FlowEvent) -> str:
    return "It was lost" if event.count == 1 else f"{count(event.count, 'packet')} were lost"


_STATUS = {
    Cause.RETRIES: "IBV_WC_RETRY_EXC_ERR",
    Cause.RNR_RETRIES: "IBV_WC_RNR_RETRY_EXC_ERR",
}
"""How a work request ends when the limit is reached."""

PROMPT_NS = 10_000_000
"""Who asks again after a longer silence was not told by a response: rxe obeys an implied NAK
within 2 ms, and the ACK timers of the captures are 18 ms and more
(reference/habits#rxe-timeout)."""

_NAK_CODES = frozenset(each.value for each in NakCode)

_RESENT: dict[Cause, Callable[[_Teller, FlowEvent], str]] = {
    Cause.NAK: _Teller.after_nak,
    Cause.RNR: _Teller.after_nak,
    Cause.READ_GAP: _Teller.after_gap,
    Cause.IMPLIED_NAK: _Teller.after_implied_nak,
    Cause.ACK_LOST: _Teller.after_answer,
    Cause.TIMEOUT: _Teller.after_timeout,
    Cause.UNKNOWN: _Teller.after_nothing,
}

_TELL: dict[FlowEventKind, Callable[[_Teller, FlowEvent], None]] = {
    FlowEventKind.LOST: _Teller.loss,
    FlowEventKind.REORDERED: _Teller.late,
    FlowEventKind.DUPLICATE: _Teller.copy,
    FlowEventKind.ICRC_BAD: _Teller.damaged,
    FlowEventKind.RNR_NAK: _Teller.rnr,
    FlowEventKind.NAK: _Teller.nak,
    FlowEventKind.RETRANSMISSION: _Teller.resend,
    FlowEventKind.RETRY_EXCEEDED: _Teller.given_up,
    FlowEventKind.RESTART: _Teller.restart,
}
