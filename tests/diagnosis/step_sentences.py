"""The sentences of incidents, and what must be true of each.

Each check takes the judge, the match of the sentence, the step and the incident.
"""

from __future__ import annotations

import re
from typing import Any

from diagnosis.sentence_judge import (
    AFTER,
    COUNT,
    PSNS,
    TIME,
    Breach,
    Judge,
    must,
    number,
    psn_range,
    table,
)
from ibwire.connections.opcode_sets import ANSWERED
from ibwire.diagnosis.incident_text import IncidentText, Step
from ibwire.rc.work import WROpcode
from ibwire_layers.psn import MASK
from wire_truth import Harm, Outcome, Sent


def _missing_count(match: re.Match[str]) -> int:
    return 1 if match["n"] is None else number(match["n"])


def lost_request(judge: Judge, match: re.Match[str], step: Step, incident: IncidentText) -> None:
    lost = [each for each in judge.of(match["r"], match["psns"]) if each.is_lost_before]
    must(len(lost) >= _missing_count(match), f"{len(lost)} were lost before this point")


def lost_response(judge: Judge, match: re.Match[str], step: Step, incident: IncidentText) -> None:
    found = judge.of(match["s"], match["psns"], responses=True)
    lost = [each for each in found if each.is_lost_before]
    must(len(lost) >= _missing_count(match), f"{len(lost)} were lost before this point")


def twice(judge: Judge, match: re.Match[str], step: Step, incident: IncidentText) -> None:
    one = judge.frame(step.numbers[0])
    alike = [
        each
        for each in judge.truth.sent
        if each.sender == one.sender
        and (each.psn, each.is_response) == (one.psn, one.is_response)
        and each.captured
    ]
    must(len(alike) > 1 or len(one.captured) > 1, "it does not")
    must(
        any(number in judge.truth.was_copied for each in alike for number in each.captured)
        or sum(each.is_again for each in alike) > 1
        or any(
            other.sender == one.sender
            and other.time > each.time
            and other.captured
            and other.captured[0] < each.captured[0]
            for each in alike
            for other in judge.truth.sent
        ),
        "none of them is reordered",
    )


def reordered(judge: Judge, match: re.Match[str], step: Step, incident: IncidentText) -> None:
    number = step.numbers[0]
    late = judge.frame(number)
    if not judge.has_identifications:
        alike = [e for e in judge.truth.sent if e.captured and e.packet == late.packet]
        late = alike[0]  # which of them is late does not show
        number = alike[-1].captured[-1]
    must(
        any(
            each.sender == late.sender and each.time > late.time and min(each.captured) < number
            for each in judge.truth.sent
            if each.captured
        ),
        "nothing that was sent later arrived before it",
    )


def late(judge: Judge, match: re.Match[str], step: Step, incident: IncidentText) -> None:
    """It was reordered, or an earlier one with its PSN did not arrive here."""
    found = judge.frame(step.numbers[0])
    before = [
        each
        for each in judge.truth.sent
        if each.sender == found.sender and each.psn == found.psn and each.time < found.time
    ]
    if not (found.is_again and any(each.is_lost_before for each in before)):
        reordered(judge, match, step, incident)


def duplicate(judge: Judge, match: re.Match[str], step: Step, incident: IncidentText) -> None:
    number = step.numbers[0]
    first = judge.frame(match["first"]) if match["first"] else judge.frame(number)
    is_copy = first is judge.frame(number) and number in judge.truth.was_copied
    must(is_copy, "they are two frames of the sender")


def repeated(judge: Judge, match: re.Match[str], step: Step, incident: IncidentText) -> None:
    number = step.numbers[0]
    again = judge.frame(number)
    must(
        any(
            each.sender == again.sender
            and (each.psn, each.is_response) == (again.psn, again.is_response)
            and any(captured < number for captured in each.captured)
            for each in judge.truth.sent
        ),
        "nothing like it was seen before",
    )


def damaged(judge: Judge, match: re.Match[str], step: Step, incident: IncidentText) -> None:
    must(judge.frame(step.numbers[0]).is_damaged_before, "it is not damaged")


def rnr(judge: Judge, match: re.Match[str], step: Step, incident: IncidentText) -> None:
    sent = judge.frame(step.numbers[0])
    must(sent.syndrome is not None and 0x20 <= sent.syndrome < 0x40, "no RNR NAK")


def _culprits(judge: Judge, match: re.Match[str], nak: Sent) -> list[Sent]:
    """The requests that a NAK asks for and that should have arrived before it was sent."""
    found = judge.of(match["r"] if "r" in match.groupdict() else _other(match["s"]), match["psns"])
    return [each for each in found if judge.arrives_by(each, nak)]


def _other(letter: str) -> str:
    return "B" if letter == "A" else "A"


def nak(judge: Judge, match: re.Match[str], step: Step, incident: IncidentText) -> None:
    sent = judge.frame(step.numbers[0])
    must(sent.syndrome == 0x60, "it is no NAK of a sequence error")
    why = match["why"]
    due = _culprits(judge, match, sent)
    newest = due[-1] if due else None
    if why == "That packet was damaged, see above.":
        must(newest is not None and newest.is_damaged_before, f"it was not: {newest}")
    elif found := re.fullmatch(r"That packet was reordered before this point \(#(\d+)\)\.", why):
        late = judge.frame(found[1])
        must(late in due and Harm.DELAY in late.harms_before, f"it was not: {late}")
        must(late is newest, f"a later one was sent: {newest}")
    elif found := re.fullmatch(
        r"That packet was late, or lost and retransmitted \(#(\d+)\)\.",
        why,
    ):
        late = judge.frame(found[1])
        must(late.psn in {each.psn for each in due}, f"it is another packet: {late}")
        must(newest is not None, "it had passed")
        must(
            Harm.DELAY in newest.harms_before if newest.captured else newest.is_lost_before,
            f"it was not: {newest}",
        )
    elif found := re.fullmatch(
        r"That packet arrived here again \(#(\d+)\): it was late, or lost and its retransmission "
        r"was late or duplicated, or [AB] discarded it because an earlier packet was missing "
        r"\(go-back-N\)\.",
        why,
    ):
        must(judge.frame(found[1]).psn in {each.psn for each in due}, "it is another packet")
        must(newest is not None, "it had passed")
        must(
            newest.harms_before or any(o is Outcome.DISCARDED for _, o in newest.arrived),
            f"it was not: {newest}",
        )
    elif why == "That packet was never seen here.":
        seen = [each for each in due if each.captured and min(each.captured) < step.numbers[0]]
        must(not seen, f"it was: {[str(each) for each in seen]}")
    elif found := re.fullmatch(
        r"It had passed here before \(#(\d+)\), but its retransmission did not arrive here: lost "
        "before this point.",
        why,
    ):
        must(judge.frame(found[1]) in due, f"#{found[1]} is another packet")
        must(newest is not None and newest.is_lost_before, f"it was not: {newest}")
    elif found := re.fullmatch(
        r"It had passed here before \(#(\d+)\), but its retransmission had not arrived here: late "
        "or lost before this point.",
        why,
    ):
        must(judge.frame(found[1]) in due, f"#{found[1]} is another packet")
        is_missing = newest is not None and newest.is_lost_before
        is_missing |= newest is not None and min(newest.captured, default=0) > step.numbers[0]
        must(is_missing, f"it was not: {newest}")
    elif why == "Whether it passed here is unknown: no packet with this PSN was captured.":
        must(not any(min(e.captured) < step.numbers[0] for e in due if e.captured), "one was")
    elif found := re.fullmatch(r"That packet passed here as #(\d+): it was (.*)\.", why):
        passed = judge.frame(found[1])
        must(passed in due or passed in judge.of(_other(match["s"]), match["psns"]), "another")
        if found[2].startswith("reordered after this point, as the next NAK shows"):
            must(Harm.DELAY in passed.harms_after, f"it was not: {passed}")
            must(any(o is not Outcome.DAMAGED for _, o in passed.arrived), f"lost: {passed}")
        elif found[2] == (
            f"{AFTER}, or {match['s']} discarded it because an earlier packet was missing "
            "(go-back-N)"
        ) or found[2] == (
            f"{AFTER}, or {match['s']} refused it with a response that arrived here damaged or late"
        ):
            must(not any(t < sent.time and o is Outcome.TAKEN for t, o in passed.arrived), "taken")
        else:
            must(found[2] == AFTER, "no check knows this sentence")
            must(passed.harms_after, f"it was not: {passed}")
            must(newest is passed, f"a later one was sent: {newest}")
    else:
        raise Breach("no check knows this sentence")


def nak_after_rnr(judge: Judge, match: re.Match[str], step: Step, incident: IncidentText) -> None:
    sent = judge.frame(step.numbers[0])
    refused = [
        each
        for each in judge.of(_other(match["s"]), match["psns"])
        if any(time <= sent.time and o is Outcome.REFUSED for time, o in each.arrived)
    ]
    must(refused, "that packet was not refused")


def nak_again(judge: Judge, match: re.Match[str], step: Step, incident: IncidentText) -> None:
    sent = judge.frame(step.numbers[0])
    found = judge.of(_other(match["s"]), f"PSN {match['late']}")
    late = [
        each
        for each in found
        if any(time <= sent.time and o is Outcome.TAKEN for time, o in each.arrived)
    ]
    must(late, f"PSN {match['late']} had not arrived")
    must(
        any(
            time < late[0].arrived[0][0]
            and outcome is Outcome.DISCARDED
            and each.time > late[0].time
            for each in judge.truth.sent
            for time, outcome in each.arrived
            if each.sender == late[0].sender
        ),
        "nothing was dropped before it arrived",
    )


def retransmission(judge: Judge, match: re.Match[str], step: Step, incident: IncidentText) -> None:
    run = [
        each
        for number in range(step.numbers[0], step.numbers[1] + 1)
        if (each := judge.truth.by_number.get(number)) is not None
        and each.sender == judge.end[match["r"]]
        and not each.is_response
        and not each.is_damaged_before
        and number not in judge.truth.was_copied
        and judge.may_be(each, lambda one: one.is_again)
    ]
    n = _missing_count(match)
    first, last = psn_range(match["psns"])
    inside = [each for each in run if each.psn - first & MASK <= (last - first & MASK)]
    must(len(inside) >= n, f"{len(inside)} of these packets are retransmitted")
    head = judge.frame(step.numbers[0])
    must(judge.may_be(head, lambda each: each.is_again), "its first packet is not retransmitted")
    if not head.is_again:
        alike = [e for e in judge.truth.sent if e.captured and e.packet == head.packet]
        head = next((each for each in alike if each.is_again), head)  # which of them does not show
    _why_again(judge, match, step, head, inside)


def _missing_at_receiver(judge: Judge, sent: Sent) -> bool:
    """Whether no earlier frame with this PSN had arrived when a frame was sent."""
    return not any(
        time < sent.time and outcome is not Outcome.DAMAGED
        for each in judge.truth.sent
        if each.sender == sent.sender and not each.is_response and each.psn == sent.psn
        for time, outcome in each.arrived
    )


def _responses_before(judge: Judge, inside: list[Sent]) -> list[Sent]:
    """Responses with data to retransmitted requests that were sent before them."""
    first, end = inside[0].psn, max(each.psn + each.span for each in inside)
    return [
        each
        for each in judge.truth.sent
        if each.sender != inside[0].sender
        and each.is_response
        and first <= each.psn < end
        and each.time < inside[0].time
    ]


def did_not_help(sent: Sent) -> bool:
    """Whether a response did not bring the requester further when it should have."""
    return bool(sent.harms_after or sent.harms_before) or not any(
        outcome is Outcome.USED for _, outcome in sent.arrived
    )


NEEDED = re.compile(
    r": (?P<missing>[\d,]+) lost or damaged before this point, [\d,]+ others? after (?:it|them) "
    r"\(go-back-N\)"
)


def _why_again(
    judge: Judge, match: re.Match[str], step: Step, head: Sent, inside: list[Sent]
) -> None:
    why = match["why"]
    if found := re.fullmatch(
        rf", {TIME} after NAK #(\d+), although the packet it asks for had arrived meanwhile\.", why
    ):
        asked = judge.frame(found[1]).psn
        must(
            any(
                time < head.time and outcome is Outcome.TAKEN
                for each in judge.truth.sent
                if each.sender == head.sender and not each.is_response and each.psn == asked
                for time, outcome in each.arrived
            ),
            "it had not arrived",
        )
    elif found := re.fullmatch(
        rf" after {TIME}, as the RNR NAK(, or the NAK after it,)? asks\.", why
    ):
        must(
            head.cause == "rnr" or (found[1] and head.cause == "nak"),
            f"the requester went back because of {head.cause}",
        )
    elif re.fullmatch(
        rf", {TIME} after the RNR NAK: what it had retransmitted before arrived here damaged\.", why
    ):
        must(
            any(
                each.is_damaged_before and each.psn == head.psn and each.time < head.time
                for each in judge.truth.sent
                if each.sender == head.sender and not each.is_response
            ),
            "nothing had arrived damaged",
        )
    elif (
        re.fullmatch(
            rf", {TIME} after the RNR NAK, which asks to wait [\d.e-]+ ms"
            r"(: [AB] was retransmitting when it passed here)?\.",
            why,
        )
        or re.fullmatch(
            rf" after {TIME}, much later than the [\d.e-]+ ms that the RNR NAK asks for\.", why
        )
        or re.fullmatch(
            rf" after only {TIME}, although the RNR NAK asks to wait [\d.e-]+ ms\.", why
        )
    ):
        pass
    elif found := re.fullmatch(
        rf", {TIME} after the NAK((?P<late>, which had no effect until the ACK timer expired)"
        r"|, for which it had retransmitted before: [AB]'s ACK timer may have expired)?"
        r"(?P<more>.*)\.",
        why,
    ):
        wanted = ("timer",) if found["late"] else ("nak", "implied_nak", "timer", "rnr")
        must(head.cause in wanted, f"the requester went back because of {head.cause}")
        if needed := NEEDED.fullmatch(found["more"]):
            psns = {each.psn for each in inside}
            missing = sum(
                each.is_lost_before or each.is_damaged_before
                for each in judge.truth.sent
                if each.sender == head.sender and not each.is_response and each.psn in psns
            )
            must(missing >= number(needed["missing"]), f"{missing} were")
        else:
            must(found["more"] in ("", ": all from there on (go-back-N)"), "no check knows this")
    elif found := re.fullmatch(
        rf", for which responses were missing, {TIME} after the last packet(: its ACK timer had "
        r"expired)?\.",
        why,
    ):
        gone = [each for each in _responses_before(judge, inside) if each.harms_before]
        must(gone, "no response was")
        if found[1]:
            must(head.cause == "timer", f"the requester went back because of {head.cause}")
    elif found := re.fullmatch(
        rf", {TIME} after #\d+, a response to a later request: an earlier response is missing "
        r"\(implied NAK\)\.( [AB]'s ACK timer had expired\.)?",
        why,
    ):
        must(head.cause == "timer" or not found[1], f"it went back because of {head.cause}")
        must(
            head.cause in ("implied_nak", "timer"),
            f"the requester went back because of {head.cause}",
        )
    elif found := re.fullmatch(
        rf", although [AB] had responded \(#(\d+), {TIME} before\): that response passed here and "
        rf"was {AFTER}, on its way to [AB](, or [AB] had not waited for it)?(, or [AB] dropped it "
        r"because an earlier one was missing)?\.( [AB]'s ACK timer had expired\.)?",
        why,
    ):
        must(head.cause == "timer" or not found[4], f"it went back because of {head.cause}")
        response = judge.frame(found[1])
        must(
            response.harms_after
            or (found[2] and not any(time < head.time for time, _ in response.arrived))
            or (found[3] and did_not_help(response)),
            f"it arrived: {response}",
        )
    elif found := re.fullmatch(
        rf", {TIME} after #(\d+), to which no response passed here: one of them was lost, damaged "
        r"or delayed between this point and [AB](, or [AB] had not waited for it)?\."
        r"( [AB]'s ACK timer had expired\.)?",
        why,
    ):
        sent = judge.frame(found[1])
        must(not found[3] or head.cause == "timer", f"it went back because of {head.cause}")
        responses = [
            each
            for each in judge.truth.sent
            if each.is_response and each.sender != head.sender and each.psn >= head.psn
        ]
        if head.packet.bth.opcode in ANSWERED:  # only its own response is meant
            responses = [each for each in responses if each.psn < head.psn + head.span]
        must(
            not any(sent.time < e.time and judge.is_captured_before(e, head) for e in responses),
            "a response had passed",
        )
        must(
            found[2]
            or sent.harms_after
            or any(e.harms_before for e in responses if sent.time < e.time < head.time),
            "neither was",
        )
    elif found := re.fullmatch(
        rf", although [AB] had responded \(#(\d+), {TIME} before\): its timer expired just "
        r"before\.",
        why,
    ):
        must(head.cause == "timer", f"the requester went back because of {head.cause}")
        response = judge.frame(found[1])
        must(not response.harms_after, f"it did not arrive: {response}")
    elif why == "; the capture does not show why.":
        unexplained(judge, head)
    else:
        raise Breach("no check knows this sentence")


def unexplained(judge: Judge, head: Sent) -> None:
    """A cause that passed the point of capture is not unexplained."""
    raise Breach(f"the requester went back because of {head.cause}")


def timer(judge: Judge, match: re.Match[str], step: Step, incident: IncidentText) -> None:
    head = judge.frame(step.numbers[0])
    must(head.is_again, "it is not retransmitted")
    must(head.cause == "timer", f"the requester went back because of {head.cause}")
    why = match["why"]
    requester = match["r"]
    run = [
        each
        for each in judge.of(requester, match["psns"])
        if each.captured and step.numbers[0] <= each.captured[0] <= step.numbers[1]
    ]
    before = [e for e in judge.of(requester, match["psns"]) if e.time < head.time]
    sent_before = [e for e in judge.truth.sent if e.time < head.time]
    mine = [e for e in sent_before if e.sender == head.sender and not e.is_response]
    if why == "":
        pass
    elif re.fullmatch(r"A response of [AB] was damaged, see above\.", why):
        must(any(e.is_response and e.is_damaged_before for e in sent_before), "none was")
    elif why.startswith("No response was due yet"):
        must(not any(e.harms_before or e.harms_after for e in before), "something was lost")
    elif why.startswith("The message is incomplete here") or re.fullmatch(
        r"[AB] lacked what was lost or damaged before this point(, and no NAK arrived here)?\.", why
    ):
        must(any(e.is_lost_before or e.is_damaged_before for e in mine), "nothing was")
    elif re.fullmatch(
        r"[AB] (?:acknowledges everything twice: nothing was lost, the timeout was too short|"
        r"responds to their first transmission as well: nothing was lost, [AB] was slow or the "
        r"timeout too short)\.",
        why,
    ):
        lost = [e for e in run if _missing_at_receiver(judge, e)]
        must(not lost, f"lost: {[str(each) for each in lost]}")
        answers = [
            e
            for e in sent_before
            if e.is_response and e.sender != head.sender and e.psn >= head.psn
        ]
        must(not any(e.harms_before or e.harms_after for e in answers), "a response was lost")
    elif re.fullmatch(
        r"[AB] acknowledges each of them, because it had them already: its first response was "
        r"lost before this point\.",
        why,
    ):
        answers = [e for e in sent_before if e.is_response and e.sender != head.sender]
        must(any(e.is_lost_before for e in answers), "it was not")
    elif re.fullmatch(
        r"[AB] acknowledges [\d,]+ of them with an ACK of PSN \d+, because it had them already: "
        rf"(?:of the other [\d,]+ the first|the other) had been {AFTER}\.",
        why,
    ):
        must(any(e.harms_after for e in before), "none was")
    elif found := re.fullmatch(
        r"The request passed here and no response came back: one of them was lost, damaged or "
        r"delayed between this point and [AB](, or [AB] discarded the request because an earlier "
        r"packet was missing)?\.",
        why,
    ):
        responses = [
            e
            for e in sent_before
            if e.is_response and e.sender != head.sender and e.psn >= head.psn
        ]
        must(
            any(e.harms_after for e in before)
            or any(e.harms_before for e in responses)
            or (
                found[1] and any(o is Outcome.DISCARDED for each in before for _, o in each.arrived)
            ),
            "neither was",
        )
    elif found := re.fullmatch(
        r"The first responses of this READ came back, so [AB] had the request: the response with "
        r"PSN (\d+) was lost or delayed before this point\.",
        why,
    ):
        answers = [e for e in sent_before if e.is_response and e.sender != head.sender]
        missing = [e for e in answers if e.psn & MASK == int(found[1])]
        must(any(e.psn == head.psn - 1 and e.captured for e in answers), "none came back")
        must(any({Harm.DROP, Harm.DELAY} & {*e.harms_before} for e in missing), "it was not")
    else:
        raise Breach("no check knows this sentence")


def restart(judge: Judge, match: re.Match[str], step: Step, incident: IncidentText) -> None:
    raise Breach("it did not")


def recovered(judge: Judge, match: re.Match[str], step: Step, incident: IncidentText) -> None:
    """What ends an incident, what its time counts from, and what was completed meanwhile."""
    last = judge.frame(step.numbers[0])
    begin = judge.frame(match["since"])
    requester = judge.end[incident.names[0]]
    must(last.is_response and last.sender != requester, f"it is no response: {last}")
    what = match["what"]
    if first := re.fullmatch(r"PSN (\d+) was first sent", what):
        must(begin.psn & MASK == int(first[1]) and begin.sender == requester, f"another: {begin}")
        must(not begin.is_response, f"it is a response: {begin}")
    elif what == "the lost response" or what == "the response before it":
        must(begin.is_response and begin.sender != requester, f"it is none: {begin}")
    elif what == "the RNR NAK":
        must(begin.syndrome is not None and begin.syndrome >> 5 == 1, f"it is none: {begin}")
    elif what == "the NAK":
        must(begin.syndrome is not None and begin.syndrome >= 0x60, f"it is none: {begin}")
    elif what == "it was retransmitted":
        must(judge.may_be(begin, lambda each: each.is_again), f"it was not: {begin}")
    else:
        must(what == "the gap showed", "no check knows this")
    said = _nanoseconds(match["took"])
    took = (
        judge.truth.frames[step.numbers[0] - 1][0] - judge.truth.frames[int(match["since"]) - 1][0]
    )
    must(abs(said - took) <= took / 100 + 1, f"it took {took} ns")
    for times, verb in re.findall(r"([\d,]+) ([A-Z]+(?: [A-Z]+)?)", match["done"] or ""):
        posted = sum(
            VERB_NAMES[work.opcode] == verb
            for work in (*judge.truth.scenario.works, *judge.truth.scenario.back)
        )
        must(number(times) <= posted, f"only {posted} {verb} were posted")
    if match["again"]:
        again = [
            each
            for each in judge.truth.sent
            if each.is_response and each.sender != requester and each.captured
        ]
        must(number(match["again"]) <= len(again), f"{len(again)} responses passed")


VERB_NAMES = {
    WROpcode.SEND: "SEND",
    WROpcode.RDMA_WRITE: "WRITE",
    WROpcode.RDMA_WRITE_WITH_IMM: "WRITE",
    WROpcode.RDMA_READ: "READ",
    WROpcode.ATOMIC_FETCH_AND_ADD: "FETCH ADD",
}


def _nanoseconds(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}[unit]


def capture_ends(judge: Judge, match: re.Match[str], step: Step, incident: IncidentText) -> None:
    requester = judge.truth.ends[judge.end[incident.names[0]]].qp
    if "has given up" in match[0]:
        must(requester.state.name in ("ERR", "SQE"), f"its state is {requester.state.name}")


def fine(judge: Judge, match: re.Match[str], *rest: Any) -> None:
    pass


STEPS = table(
    {
        rf"(?P<r>[AB])'s request with {PSNS} did not arrive here: #\d+ arrived instead\. "
        rf"(?:It was|{COUNT} packets were) lost before this point(?:, or the capture missed "
        r"(?:it|them))?\.": lost_request,
        rf"(?P<s>[AB])'s response to a READ or atomic with {PSNS} did not arrive here: #\d+ "
        rf"arrived instead\. (?:It was|{COUNT} packets were) lost before this point(?:, or the "
        r"capture missed (?:it|them))?\.": lost_response,
        r"[AB]'s [A-Z ]+ with PSN \d+(?:, retransmitted,)? is reordered: packets sent after it "
        r"arrived here before it\.": reordered,
        r"[AB]'s [A-Z ]+ with PSN \d+ arrives late: reordered, or lost before this point and "
        r"retransmitted\.": late,
        r"[AB]'s [A-Z ]+ with PSN \d+ arrives twice: one of the two is late, a duplicate, or "
        r"retransmitted\.": (twice),
        r"A duplicate of (?:#(?P<first>\d+)|an earlier packet) \([AB]'s [A-Z ]+, PSN \d+\), made "
        r"by the network or by the capture\.": duplicate,
        r"[AB]'s [A-Z ]+ with PSN \d+ arrives again(?: \(first as #\d+\))?: a duplicate made by "
        r"the network or by the capture, late, or retransmitted\.": repeated,
        r"[AB]'s [A-Z ]+ with PSN \d+ has a wrong ICRC: damaged before this point, [AB] drops it "
        r"silently\.": damaged,
        r"[AB]: RNR NAK for PSN \d+, it has no receive buffer posted; [AB] must wait [\d.e-]+ "
        r"ms\.": rnr,
        r"(?P<s>[AB]) also sends a NAK for the packets after the refused one \(it expects "
        rf"{PSNS}\), as Linux rxe does after an RNR NAK\.": nak_after_rnr,
        rf"(?P<s>[AB]): NAK, now expects {PSNS}: PSN (?P<late>\d+) has arrived late, and the "
        r"packets that arrived before it were dropped\.": nak_again,
        rf"(?P<s>[AB]): NAK, out of sequence, expects {PSNS}\. (?P<why>.*)": nak,
        rf"(?P<r>[AB]) retransmits (?:[A-Z ]+ )?{PSNS}(?: \({COUNT} packets\))?"
        r"(?P<why>.*)": retransmission,
        rf"(?P<r>[AB])'s ACK timer expires(?: {TIME} after (?:the last packet|PSN \d+ was sent "
        rf"\(#\d+\)))?: [AB] retransmits (?:[A-Z ]+ )?{PSNS}(?: \({COUNT} packets\))?\.\s?"
        r"(?P<why>.*)": timer,
        r"[AB] restarts at PSN \d+\.": restart,
        r"Acknowledged(?:, with (?P<again>[\d,]+) responses? retransmitted)?"
        r"(?:; completed meanwhile: (?P<done>[A-Za-z\d, ]+))?"
        rf"(?:\. Recovered|,) (?P<took>{TIME}) after (?P<what>[A-Za-z \d]+) "
        r"\(#(?P<since>\d+)\)\.": recovered,
        r"(?:The capture ends here|Nothing more is seen for).*": capture_ends,
    }
)
