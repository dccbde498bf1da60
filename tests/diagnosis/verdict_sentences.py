"""The sentences of the verdict and of times without incidents, and what must be true of each."""

from __future__ import annotations

import re
from typing import Any

from diagnosis.sentence_judge import COUNT, Judge, must, number, table
from diagnosis.step_sentences import did_not_help, fine, reordered, repeated, restart
from ibwire.connections.opcode_sets import ACKNOWLEDGE


def open_messages(judge: Judge, match: re.Match[str], *rest: Any) -> None:
    """Messages without a response: the requester has posted as many, and lacks one at least."""
    works = judge.truth.scenario.works, judge.truth.scenario.back
    must(number(match["n"]) <= sum(map(len, works)), "fewer were posted")


def small_lost(judge: Judge, match: re.Match[str], *rest: Any) -> None:
    sent = [each for each in judge.truth.sent if each.sender == judge.end[match["r"]]]
    lost = sum(each.is_lost_before for each in sent)
    must(lost >= number(match["n"]), f"{lost} were lost before this point")


def small_damaged(judge: Judge, match: re.Match[str], entry: Any) -> None:
    one = judge.frame(entry.numbers[0])
    must(one.is_damaged_before, "it is not damaged")


def small_duplicate(judge: Judge, match: re.Match[str], entry: Any) -> None:
    must(entry.numbers[0] in judge.truth.was_copied, f"#{entry.numbers[0]} is none")


def small_repeated(judge: Judge, match: re.Match[str], entry: Any) -> None:
    repeated(judge, match, entry, None)


def small_reordered(judge: Judge, match: re.Match[str], entry: Any) -> None:
    reordered(judge, match, entry, None)


OTHERS = table(
    {
        rf"{COUNT} lost packets? from (?P<r>[AB]) to [AB] did not arrive here.*": small_lost,
        rf"{COUNT} reordered (?:packet|response)s? of (?P<r>[AB]).*": small_reordered,
        rf"{COUNT} duplicate (?:packet|response)s? of (?P<r>[AB]).*": small_duplicate,
        rf"{COUNT} repeated (?:packet|response)s? of (?P<r>[AB]).*": small_repeated,
        rf"{COUNT} damaged (?:packet|response)s? of (?P<r>[AB]).*": small_damaged,
        r"[AB] restarts at PSN.*": restart,
        r"[\d,]+ (?:messages?|packets?) .*": fine,
        r"[\d,]+ packets?\.": fine,
        rf"At the end of the capture {COUNT} messages? had not been acknowledged: .*": (
            open_messages
        ),
        r"[AB]: (REQ|MRA|REJ|REP|RTU|DREQ|DREP|SIDR_REQ|SIDR_REP)\b.*": fine,
    }
)


def total_lost(judge: Judge, match: re.Match[str], *rest: Any) -> None:
    sent = [each for each in judge.truth.sent if each.sender == judge.end[match["r"]]]
    lost = sum(each.is_lost_before and not each.is_response for each in sent)
    _exact_or_more(match, lost)


def total_responses_lost(judge: Judge, match: re.Match[str], *rest: Any) -> None:
    sent = [each for each in judge.truth.sent if each.sender == judge.end[match["s"]]]
    _exact_or_more(match, sum(each.is_lost_before and each.is_response for each in sent))


def _exact_or_more(match: re.Match[str], true: int) -> None:
    said = number(match["n"])
    is_open = "at least" in match[0].lower()
    must(said == true or (is_open and said < true), f"there were {true}")


def total_damaged(judge: Judge, match: re.Match[str], *rest: Any) -> None:
    is_response = match["what"].startswith("response")
    sent = [each for each in judge.truth.sent if each.sender == judge.end[match["r"]]]
    damaged = [e for e in sent if e.is_damaged_before and e.is_response == is_response]
    said, true = number(match["n"]), sum(len(each.captured) for each in damaged)
    must(said <= true, f"there were {true}")


def total_after(judge: Judge, match: re.Match[str], *rest: Any) -> None:
    sent = [e for e in judge.truth.sent if e.sender == judge.end[match["r"]] and not e.is_response]
    true = sum(bool(each.harms_after) for each in sent)
    must(number(match["n"]) <= true, f"there were {true}")


def total_responses_after(judge: Judge, match: re.Match[str], *rest: Any) -> None:
    sent = [e for e in judge.truth.sent if e.sender == judge.end[match["s"]] and e.is_response]
    true = sum(bool(each.harms_after) or did_not_help(each) for each in sent if each.captured)
    must(number(match["n"]) <= true, f"there were {true}")
    must(any(each.harms_after for each in sent), "none")


def nothing_wrong(judge: Judge, match: re.Match[str], *rest: Any) -> None:
    """What the capture shows: that a packet was not seen at all may have left no trace."""
    firsts: set[tuple[str, bool, int]] = set()
    for each in judge.truth.sent:
        if not each.captured or each.is_damaged_before or each.packet.bth.opcode in ACKNOWLEDGE:
            continue
        key = each.sender, each.is_response, each.psn
        must(key not in firsts or each.is_response, f"retransmitted: {each}")
        firsts.add(key)
    last = {each.sender: each.psn for each in judge.truth.sent if not each.is_response}
    for each in judge.truth.sent:
        if each.is_lost_before and not each.is_response and each.psn < last[each.sender]:
            seen = (each.sender, False, each.psn) in firsts
            must(seen, f"lost and never seen: {each}")


def in_flight(judge: Judge, match: re.Match[str], *rest: Any) -> None:
    """The emulation ends when all is done: nothing is in flight unless its response was lost."""
    lost = [e for e in judge.truth.sent if e.is_response and (e.harms_before or e.harms_after)]
    must(lost, "every response arrived")


def cost(judge: Judge, match: re.Match[str], *rest: Any) -> None:
    again = sum(
        each.is_again
        and bool(each.captured)
        and not each.is_response
        and not each.is_damaged_before
        for each in judge.truth.sent
    )
    must(number(match["n"]) <= again, f"{again} were retransmitted")


def needless(judge: Judge, match: re.Match[str], *rest: Any) -> None:
    """A timer has expired at least so often."""
    counters = judge.truth.ends[judge.end[match["r"]]].qp.counters
    times = {"once": 1, "twice": 2}.get(match["t"]) or number(match["t"].split()[0])
    must(counters.timeouts >= times, f"{counters.timeouts} timers expired")


VERDICT = table(
    {
        rf"The network lost (?:at least )?{COUNT} packets? from (?P<r>[AB]) to [AB] between [AB] "
        r"and this point\.": total_lost,
        rf"The network lost (?:at least )?{COUNT} responses? of (?P<s>[AB]) between [AB] and this "
        r"point\.": total_responses_lost,
        rf"[Aa]t least {COUNT} packets? from (?P<r>[AB]) did not reach [AB] in time:": total_after,
        r"lost, damaged or delayed between this point and [AB], by the network or by [AB] "
        r"itself\.": fine,
        rf"[Aa]t least {COUNT} responses? of (?P<s>[AB]) (?:was|were) lost, damaged or delayed "
        r"between this point and [AB], by the network or by [AB] itself\.": total_responses_after,
        rf"{COUNT} (?P<what>packets?|responses?) (?:from|of) (?P<r>[AB])(?: to [AB])? arrived here "
        r"damaged.*": total_damaged,
        r"[Nn]othing went wrong.*": nothing_wrong,
        rf"{COUNT} messages? of [AB](?: and [\d,]+ messages? of [AB])? (?:is|are) still in flight "
        r"when the capture ends\.": in_flight,
        rf"It cost {COUNT} packets? retransmitted and .*": cost,
        r"(?P<r>[AB]) retransmitted (?P<t>once|twice|[\d,]+ times) although nothing was lost: its "
        r"ACK timer expired before [AB] could respond\.": needless,
        r".*": fine,
    }
)
