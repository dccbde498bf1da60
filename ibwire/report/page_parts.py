"""Parts of the page in words: of a connection, an event, a finding."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ibwire.connections.connection import Connection
from ibwire.connections.events import FlowEvent, FlowEventKind
from ibwire.connections.pairing import PAIRINGS
from ibwire.diagnosis.story import Story
from ibwire.diagnosis.wording import count, duration
from ibwire.report import remarks
from ibwire.report.figures import ENDS, MARKS
from ibwire.report.page_rows import way_of
from ibwire.report.series import span_of
from ibwire.rules.findings import Finding

_UNWRAPPED = 1 << 20


def sent_by(event: FlowEvent) -> int:
    """The end that sent what the event is about: a NAK counts for the requests it refuses."""
    is_nak = event.kind in (FlowEventKind.NAK, FlowEventKind.RNR_NAK)
    return 1 - event.direction if is_nak else event.direction


def end_of(connection: Connection, end: int) -> dict[str, str]:
    """One end of a connection: its name, its address, and what it sent."""
    counts = connection.directions[end]
    address, qpn = connection.ends[end]
    verbs = ", ".join(f"{number:,} {verb}" for verb, number in counts.messages.items())
    payload = count(counts.payload_bytes, "byte")
    return {
        "name": ENDS[end],
        "address": address,
        "qpn": "not seen" if qpn is None else f"{qpn} (0x{qpn:06x})",
        "sent": f"{count(counts.packets, 'packet')}, {payload} of payload",
        "messages": verbs.replace("RDMA_", "").replace("_", " ") or "none",
    }


def connection_facts(connection: Connection) -> list[tuple[str, str]]:
    """What is known of a connection besides its counts: name and value."""
    first, last = span_of(connection)
    return [
        ("Service", connection.service_name or "unknown"),
        ("Path MTU", f"{connection.mtu:,} bytes" if connection.mtu else "not seen"),
        ("Lasts", duration(last - first)),
        ("Directions paired by", PAIRINGS[connection.pairing]),
    ]


def not_observable(connection: Connection) -> Iterator[tuple[str, str]]:
    """Unreliable counts, with reasons."""
    for direction in (0, 1):
        if not connection.directions[direction].packets:
            continue
        reasons: dict[str, list[str]] = {}
        for name, reason in connection.not_observable(direction).items():
            reasons.setdefault(reason, []).append(name.replace("_", " "))
        for reason, names in reasons.items():
            uncounted = f"{way_of(direction)}: {', '.join(names)}"
            yield f"May be more than is counted here {uncounted}", reason


def display_filter(connection: Connection) -> str:
    """Display filter of Wireshark for the connection's packets."""
    queue_pairs = [end.qpn for end in connection.ends if end.qpn is not None]
    wanted = " or ".join(f"infiniband.bth.destqp == 0x{qpn:06x}" for qpn in queue_pairs)
    addresses = [end.address for end in connection.ends]
    if all("." in address and ":" not in address for address in addresses):
        hosts = " and ".join(f"ip.addr == {address}" for address in addresses)
        return f"{hosts} and ({wanted})"
    return wanted


def story_lines(story: Story) -> list[dict[str, str]]:
    """Lines of a description with their styles; the verdict is separate.

    What happened at some time has `time`, and `packets` where it names them.
    """
    lines = story.lines(_UNWRAPPED)
    return [
        {"style": line.style, **_timed(line.text)}
        for line in lines
        if line.text and line.style != "verdict"
    ]


def _timed(text: str) -> dict[str, str]:
    found = _TIMED.fullmatch(text)
    return {"text": text} if found is None else found.groupdict("")


_TIMED = re.compile(
    r"\s*(?P<time>\d+\.\d{6}(?:-\d+\.\d{6})?)\s+(?P<packets>#\d+(?:-\d+)?)?\s+(?P<text>.*)"
)


def label_of(kind: FlowEventKind) -> str:
    """The name of a kind of event."""
    return MARKS[kind].label if kind in MARKS else _LABELS[kind]


_LABELS = {
    FlowEventKind.RETRANSMISSION: "retransmission",
    FlowEventKind.ECN_CE: "CE mark",
    FlowEventKind.CNP: "CNP",
}


def sentence_of(event: FlowEvent) -> str:
    """An event in words, without its connection."""
    _, text = next(iter(remarks.of_event(event)))
    return text.removeprefix(f"connection {event.connection}: ")


def finding_row(finding: Finding) -> dict[str, Any]:
    """A finding, as a row of its table."""
    place, rule = finding.location, finding.rule
    qpn = "" if place.dst_qpn is None else f" QP {place.dst_qpn}"
    where = f"{place.src} → {place.dst}{qpn}" if place.src else "elsewhere"
    return {
        "severity": finding.severity.word,
        "rule": rule.id,
        "text": finding.text,
        "law": rule.sentence,
        "source": "; a habit of ".join(filter(None, (rule.section, ", ".join(rule.habits)))),
        "connection": place.connection,
        "where": where,
        "count": finding.count,
        "numbers": finding.numbers,
    }
