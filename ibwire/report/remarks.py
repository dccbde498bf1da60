"""Events and findings as sentences, for the packets that show or cause them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ibwire.connections.events import Cause, FlowEvent, FlowEventKind
from ibwire.rules.findings import Finding, Severity
from ibwire_layers import syndrome
from ibwire_layers.syndrome import NakCode

Remark = tuple[int, str]
"""Number of a packet, and a sentence about it."""


def of_event(event: FlowEvent) -> Iterator[Remark]:
    """A sentence for the packet that shows an event, and one for the packet that caused it."""
    head = f"connection {event.connection}: "
    yield event.number, head + _SHOWN[event.kind](event)
    if event.cause_number and event.kind in _CAUSED:
        yield event.cause_number, head + _CAUSED[event.kind](event)


def of_finding(finding: Finding) -> Iterator[Remark]:
    """A sentence for each packet that the finding names; of a note only for the first."""
    where = f"connection {finding.location.connection}: " if finding.location.connection else ""
    habits = f"; a habit of {', '.join(finding.rule.habits)}" if finding.rule.habits else ""
    text = f"{where}{finding.severity.word}: {finding.rule.id}: "
    about = f"[{finding.rule.section}{habits}]"
    first, *others = finding.numbers or [0]
    more = f" ({finding.count} packets in all)" if finding.count > 1 else ""
    yield first, f"{text}{finding.text}{more} {about}"
    if finding.severity is not Severity.NOTE:
        for number in others:
            yield number, f"{text}{finding.rule.sentence} See packet {first}. {about}"


def _lost(event: FlowEvent) -> str:
    packets = _count(event.count, "packet was", "packets were")
    reason = _MISSED.get(event.cause, "")
    return f"{packets} not seen here before this one{reason}: {_psns(event)}"


def _retransmitted(event: FlowEvent) -> str:
    why = _WHY[event.cause or Cause.UNKNOWN](event)
    what = "retransmitted"
    if event.last_number > event.number:
        what = f"{event.count} requests retransmitted from here to packet {event.last_number}"
    return f"{what} ({_psns(event)}): {why}"


def _cause_of_retransmission(event: FlowEvent) -> str:
    again = f"packet {event.number}"
    if event.last_number > event.number:
        again = f"packets {event.number} to {event.last_number}"
    if event.cause in (Cause.TIMEOUT, Cause.ACK_LOST):
        return f"PSN {event.psn} is retransmitted in {again}{_later(event)}"
    return f"because of this, PSN {event.psn} onwards is retransmitted in {again}{_later(event)}"


def _refused(event: FlowEvent) -> str:
    words = syndrome.describe(event.code)
    if syndrome.code(event.code) == NakCode.PSN_SEQUENCE_ERROR:
        return f"{words}: the responder misses PSN {event.psn} and what follows"
    return f"{words}: the responder refuses the request with PSN {event.psn}"


def _not_ready(event: FlowEvent) -> str:
    wait = "" if event.delay_ns is None else f", asks to wait {_time(event.delay_ns)}"
    return f"RNR NAK: no receive buffer for PSN {event.psn}{wait}"


def _duplicate(event: FlowEvent) -> str:
    of = f" of packet {event.cause_number}" if event.cause_number else ""
    return f"duplicate{of}: made by the network or the capture, not retransmitted"


def _repeated(event: FlowEvent) -> str:
    of = f" as packet {event.cause_number}" if event.cause_number else ""
    return f"seen before{of}: a duplicate made by the network or the capture, or retransmitted"


def _retry_exceeded(event: FlowEvent) -> str:
    why = {Cause.RETRIES: "no response arrived", Cause.RNR_RETRIES: "the receiver stayed not ready"}
    reason = f": {why[event.cause]}" if event.cause in why else ""
    return f"the requester gave up PSN {event.psn} after this{reason}"


_MISSED: dict[Cause | None, str] = {
    Cause.NOT_CAPTURED: ", missed by the capture",
    Cause.UNKNOWN: ", lost or missed by the capture",
}

_SHOWN: dict[FlowEventKind, Callable[[FlowEvent], str]] = {
    FlowEventKind.LOST: _lost,
    FlowEventKind.REORDERED: lambda event: (
        "reordered: packets that were sent after this one arrived before it"
    ),
    FlowEventKind.DUPLICATE: _duplicate,
    FlowEventKind.REPEATED: _repeated,
    FlowEventKind.RETRANSMISSION: _retransmitted,
    FlowEventKind.NAK: _refused,
    FlowEventKind.RNR_NAK: _not_ready,
    FlowEventKind.ICRC_BAD: lambda event: "wrong ICRC: the receiver drops this packet",
    FlowEventKind.ECN_CE: lambda event: "CE mark: there was congestion on the way to here",
    FlowEventKind.CNP: lambda event: "CNP: asks its receiver to send more slowly",
    FlowEventKind.RETRY_EXCEEDED: _retry_exceeded,
    FlowEventKind.RESTART: lambda event: (
        f"PSNs restart at {event.psn}: the queue pair was reset, or its number used again"
    ),
}

_CAUSED: dict[FlowEventKind, Callable[[FlowEvent], str]] = {
    FlowEventKind.RETRANSMISSION: _cause_of_retransmission,
    FlowEventKind.DUPLICATE: lambda event: f"packet {event.number} is a duplicate of this one",
}


def _because(of: str) -> Callable[[FlowEvent], str]:
    """Why, with the packet that shows it, where one does."""

    def words(event: FlowEvent) -> str:
        where = f" in packet {event.cause_number}" if event.cause_number else ""
        return f"because of {of}{where}{_after(event)}"

    return words


def _before(event: FlowEvent) -> str:
    if not event.cause_number:
        return ""
    return f"; PSN {event.psn} was seen in packet {event.cause_number}{_after(event)}"


_WHY: dict[Cause, Callable[[FlowEvent], str]] = {
    Cause.NAK: _because("the NAK"),
    Cause.RNR: _because("the RNR NAK"),
    Cause.IMPLIED_NAK: _because("a response that passed over an unanswered READ or atomic,"),
    Cause.READ_GAP: _because("a gap in the responses of a READ, seen"),
    Cause.TIMEOUT: lambda event: f"a timeout{_before(event)}",
    Cause.ACK_LOST: lambda event: (
        "it was answered here, so the response was lost, damaged or delayed after this point, or a "
        "timer was stale" + _before(event)
    ),
    Cause.RETRIES: lambda event: "until the retries were used up",
    Cause.RNR_RETRIES: lambda event: "until the RNR retries were used up",
    Cause.NOT_CAPTURED: lambda event: "the capture missed it",
    Cause.UNKNOWN: lambda event: "nothing in this capture shows why",
}


def _count(count: int, one: str, several: str) -> str:
    return f"1 {one}" if count == 1 else f"{count} {several}"


def _psns(event: FlowEvent) -> str:
    one = event.last_psn == event.psn
    return f"PSN {event.psn}" if one else f"PSN {event.psn} to {event.last_psn}"


def _after(event: FlowEvent) -> str:
    return "" if event.delay_ns is None else f", {_time(event.delay_ns)} before"


def _later(event: FlowEvent) -> str:
    return "" if event.delay_ns is None else f", {_time(event.delay_ns)} later"


def _time(ns: int) -> str:
    """Nanoseconds in the unit that suits them."""
    for unit, size in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if abs(ns) >= size:
            return f"{ns / size:.4g} {unit}"
    return f"{ns} ns"
