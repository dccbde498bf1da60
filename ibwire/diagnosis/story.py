"""The story of a connection: its time line in words, and a verdict.

recorder = Recorder({1})
analysis = Analysis(recorder)
...
for record in recorder.records():
    for style, line in Story(record, capture).lines(100):
        print(line)
"""

from __future__ import annotations

import os
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ibwire.connections.cm_exchanges import OTHER_SIDE
from ibwire.connections.ending import NAMED
from ibwire.connections.events import FlowEvent, FlowEventKind
from ibwire.connections.opcode_sets import RESPONSES, VERB
from ibwire.connections.pairing import PAIRINGS
from ibwire.diagnosis.incident_text import IncidentText
from ibwire.diagnosis.incidents import Context, describe
from ibwire.diagnosis.record import Incident, Record, Stretch
from ibwire.diagnosis.verdict import LETTERS, names, verdict
from ibwire.diagnosis.wording import (
    ONLY_OF_UC,
    VERBS,
    amount,
    count,
    duration,
    listed,
    packets,
    sentence,
    span,
)
from ibwire.dissect.captures import Captures
from ibwire_layers.opcodes import OpCode, Service

SHOWN = 3
"""Incidents of one kind that are described; the others are summarised."""


class Frames(NamedTuple):
    """The capture of a story."""

    name: str
    start_ns: int
    """Time of its first frame, from which times count."""
    end_ns: int
    """Time of its last frame."""
    files: Sequence[FileStart] = ()
    """Where there are several files: where each begins."""
    has_copies: bool = False
    """Whether packets were captured at several interfaces, and count at the first that has each."""


class FileStart(NamedTuple):
    """A file of a capture that has several."""

    name: str
    first_number: int
    """Of its first frame, counted through all files."""
    time_ns: int
    """Of its first frame."""


def frames_of(captures: Captures, *, has_copies: bool = False) -> Frames:
    """The capture of a story, after it was read."""
    files = [FileStart(part.name, part.first_number, part.start_ns) for part in captures.parts]
    return Frames(
        captures.name,
        captures.start_ns,
        captures.end_ns,
        files[1:],
        has_copies,
    )


_POINT = (
    "where the capture was taken: a packet lost before it is not in the capture, a packet lost "
    "after it is."
)
_POINTS = (
    "the first of the interfaces that captured a packet: a packet lost before all of them is not "
    "in the capture, one lost between them or after them is."
)


class Entry(NamedTuple):
    """A line of the time line, or several: of one time, of a time span, or a title."""

    title: str
    """Empty for lines that are not titles."""
    from_ns: int
    to_ns: int
    numbers: tuple[int, int]
    text: str


@dataclass(frozen=True, slots=True)
class Line:
    """A line of output and its style."""

    style: str
    """`head`, `title`, `text` or `verdict`."""
    text: str


class Story:
    """One connection as text."""

    def __init__(self, record: Record, capture: Frames, every: bool = False) -> None:
        """every: describe every incident, and summarise none."""
        self._record = record
        self.connection = record.connection
        self._capture = capture
        self._every = every
        self.incidents: list[IncidentText] = []
        before: dict[int, Incident] = {}
        for incident in record.incidents():
            context = Context(
                names(incident.end),
                self.connection.is_paired,
                capture.end_ns,
                every,
                self.connection.may_be_cut,
            )
            self.incidents.append(describe(incident, context, before.get(incident.end)))
            before[incident.end] = incident

    def lines(self, width: int) -> Iterator[Line]:
        """The story, wrapped to a width in columns."""
        for place, text in enumerate(self._head()):
            style = "text" if place else "head"
            yield from _wrapped(style, text, width, "  " if text.startswith("  ") else "")
        entries = list(self._with_files(self._entries()))
        times = max((len(self._time(entry)) for entry in entries if not entry.title), default=0)
        numbers = max((len(_numbers(entry)) for entry in entries if not entry.title), default=0)
        for entry in entries:
            if entry.title:
                yield Line("text", "")
                yield from _wrapped("title", entry.title, width, "  ")
                continue
            first = f"{self._time(entry):>{times}}  {_numbers(entry):<{numbers}}  "
            yield from _wrapped("text", first + entry.text, width, " " * len(first))
        yield Line("text", "")
        judged = f"Verdict: {self.connection.status}. {self.verdict}"
        yield from _wrapped("verdict", judged, width, "  ")
        for text in self._not_observable():
            yield from _wrapped("text", text, width, "  ")

    # The head.

    def _head(self) -> Iterator[str]:
        connection = self.connection
        service = _SERVICES[connection.service]
        mtu = f", path MTU {connection.mtu}" if connection.mtu else ", path MTU not seen"
        if connection.service is Service.UD:
            mtu = ""
        if connection.service_name is None:
            service, mtu = "CNPs of an unknown connection", ""
        yield (
            f"{os.path.basename(self._capture.name)}, connection {connection.number}: "
            f"{service}{mtu}"
        )
        for letter, end, direction in zip(
            LETTERS, connection.ends, connection.directions, strict=True
        ):
            qpn = "QP unknown" if end.qpn is None else f"QP {end.qpn} (0x{end.qpn:06x})"
            sends = f"{count(direction.packets, 'packet')} sent"
            yield f"  {letter}  {end.address}  {qpn}  {sends}"
        pairing = PAIRINGS.get(connection.pairing, connection.pairing)
        if not connection.has_packets:
            yield "Only messages of connection managers are in the capture, no packet of its own."
        elif connection.is_paired:
            yield f"Treated as one connection because {pairing}."
        else:
            silent = LETTERS[0] if not connection.directions[0].packets else LETTERS[1]
            other = LETTERS[1 - LETTERS.index(silent)]
            said = f"packets of {other} are in the capture"
            cnps = sum(each.kind is FlowEventKind.CNP for each in self._record.marks)
            if cnps == connection.directions[LETTERS.index(other)].packets:
                # A CNP has no source queue pair, and none of its fields names a service.
                said = (
                    f"CNPs of {other} are known to belong to this connection: they name a queue "
                    f"pair of {silent}, whose packets may be in the capture as another connection"
                )
            elif connection.service is Service.UC:
                said = (
                    f"packets of {other} are in this connection: a packet of UC does not name its "
                    f"sender's queue pair, so those of {silent}, if any, are another connection"
                )
            elif connection.is_reliable:
                said += f": packets from {silent}, if any, were not captured"
            yield f"Only {said}."
        yield (
            'Times are seconds since the first frame of the capture. "This point" is '
            f"{_POINTS if self._capture.has_copies else _POINT}"
        )

    # The time line.

    def _with_files(self, entries: Iterator[Entry]) -> Iterator[Entry]:
        """Entries, and where the connection goes on in another file of the capture."""
        last = max((end.last_ns or 0 for end in self.connection.directions), default=0)
        begun = min((end.first_ns for end in self.connection.directions if end.first_ns), default=0)
        crossed = [file for file in self._capture.files if begun < file.time_ns <= last]
        waiting: list[Entry] = []  # a title, which stands before what it announces
        for entry in entries:
            if entry.title:
                waiting.append(entry)
                continue
            while crossed and crossed[0].first_number <= entry.numbers[0]:
                yield _crossing(crossed.pop(0))
            yield from waiting
            waiting = []
            yield entry
        yield from waiting
        yield from map(_crossing, crossed)

    def _entries(self) -> Iterator[Entry]:
        described = iter(self.incidents)
        seen: Counter[tuple[object, ...]] = Counter()
        first: dict[tuple[object, ...], int] = {}
        number = 0
        quiet: list[Stretch | IncidentText] = []
        marks = self._marks()
        earlier, later = self._exchanges()
        yield from earlier
        for each in self._record.line:
            if isinstance(each, Stretch):
                quiet.append(each)
                continue
            incident = next(described)
            number += 1
            seen[incident.kind] += 1
            first.setdefault(incident.kind, number)
            if seen[incident.kind] > SHOWN and not self._every:
                quiet.append(incident)
                continue
            yield from self._quiet(quiet, first)
            quiet = []
            yield from self._incident(incident, number)
        yield from self._quiet(quiet, first)
        yield from marks
        yield from self._left()
        yield from later

    def _exchanges(self) -> tuple[list[Entry], list[Entry]]:
        """The messages of connection managers: before the first packet, and after it."""
        entries: tuple[list[Entry], list[Entry]] = [], []
        line = self._record.line
        begin = line[0].first.time_ns if line else None
        for exchange in self.connection.exchanges:
            swapped = exchange.addresses[0] != self.connection.ends[0].address
            for each in exchange.messages:
                sender = LETTERS[each.sender ^ swapped]
                again = " again" * each.again
                about = each.about.replace(OTHER_SIDE, LETTERS[1 - each.sender ^ swapped])
                text = f"{sender}: {each.name}{again}{': ' * bool(about)}{about}"
                late = begin is not None and each.time_ns > begin
                numbers = each.number, each.number
                entries[late].append(Entry("", each.time_ns, each.time_ns, numbers, text))
            more = exchange.counts.total() - len(exchange.messages)
            if more:
                last = exchange.messages[-1]
                text = f"{count(more, 'more message')} of the connection managers"
                late = begin is not None
                numbers = last.number, last.number
                entries[late].append(Entry("", last.time_ns, exchange.last_ns, numbers, text))
        return entries

    def _incident(self, described: IncidentText, number: int) -> Iterator[Entry]:
        incident = described.incident
        when = self._seconds(incident.first.time_ns)
        title = f"Incident {number} at {when} s: {sentence(described.title)}"
        yield Entry(title, 0, 0, (0, 0), "")
        for step in described.steps:
            yield Entry("", step.time_ns, step.time_ns, step.numbers, step.text)

    def _quiet(
        self, parts: Sequence[Stretch | IncidentText], first: dict[tuple[object, ...], int]
    ) -> Iterator[Entry]:
        """Stretches without incidents, together with incidents that are like others."""
        stretches = [each for each in parts if isinstance(each, Stretch)]
        incidents = [each for each in parts if isinstance(each, IncidentText)]
        if not parts:
            return
        places = [each if isinstance(each, Stretch) else each.incident for each in parts]
        begin, end = places[0].first, max(each.last for each in places)
        if any(each.packets for each in stretches) or incidents:
            yield Entry(
                "",
                begin.time_ns,
                end.time_ns,
                (begin.number, end.number),
                self._steady(stretches, incidents, first),
            )
        yield from self._small([event for each in stretches for event in each.events])

    def _steady(
        self,
        stretches: Sequence[Stretch],
        incidents: Sequence[IncidentText],
        first: dict[tuple[object, ...], int],
    ) -> str:
        messages: Counter[tuple[int, str]] = Counter()
        passed = size = 0
        parts: list[Stretch | Incident] = [
            *stretches,
            *(described.incident for described in incidents),
        ]
        for part in parts:
            messages.update(part.messages)
            passed += part.packets
            size += part.bytes
        text = self._messages(messages, size)
        if text:
            text += f", {count(passed, 'packet')}"
        else:
            text = self._without_messages(stretches, passed)
        low = [each.latency for each in stretches if each.latency.count]
        if low:
            typical = sorted(each.percentile(50) or 0 for each in low)[len(low) // 2]
            most = max(each.high or 0 for each in low)
            text += f", latency {duration(typical)}"
            if most != typical:
                text += f" typical, {duration(most)} at most"
        if incidents:
            text += f". {sentence(self._more(incidents, first))}"
        return f"{text}."

    def _without_messages(self, stretches: Sequence[Stretch], passed: int) -> str:
        """The packets of stretches that complete no message."""
        requests: Counter[tuple[int, str]] = Counter()
        for each in stretches:
            requests.update(each.requests)
        packets = count(passed, "packet")
        asking = [key for key in sorted(requests) if key[1] != _CNP]
        if asking:
            whose = [f"{VERBS.get(verb, verb)} of {LETTERS[end]}" for end, verb in asking]
            waits = self.connection.is_reliable and self.connection.is_paired
            return f"{packets} ({listed(whose)})" + (", nothing acknowledged yet" if waits else "")
        if requests.total() == passed:
            return count(passed, "CNP")
        return f"{packets} of responses and CNPs" if requests else f"{packets} of responses"

    def _messages(self, messages: Counter[tuple[int, str]], size: int) -> str:
        if not messages:
            return ""
        both = len({end for end, _ in messages}) > 1
        verbs = ", ".join(
            f"{number:,} {VERBS.get(verb, verb)}{f' of {LETTERS[end]}' if both else ''}"
            for (end, verb), number in sorted(messages.items())
        )
        (end, _), *_ = messages
        done = " acknowledged" if self.connection.is_reliable else ""
        whose = "" if both else f" of {LETTERS[end]}"
        total = sum(messages.values())
        return f"{count(total, 'message')}{whose}{done} ({verbs}), {amount(size)}"

    @staticmethod
    def _more(incidents: Sequence[IncidentText], first: dict[tuple[object, ...], int]) -> str:
        """A summary of incidents."""
        like = Counter(first[each.kind] for each in incidents)
        kinds = listed(f"{number:,} like incident {which}" for which, number in like.items())
        text = f"includes {count(len(incidents), 'more incident')}"
        text += f": {kinds}" if len(like) > 1 else f" like incident {next(iter(like))}"
        retransmitted = sum(each.retransmitted for each in incidents)
        if retransmitted:
            text += f"; {count(retransmitted, 'packet')} retransmitted"
        stalls = [
            each.stall_ns
            for each in incidents
            if each.stall_ns is not None and not each.is_harmless
        ]
        if stalls:
            text += f"; recovered after {span(stalls)}"
        return f"{text} (--all shows each)"

    def _small(self, events: Sequence[FlowEvent]) -> Iterator[Entry]:
        """Events outside of incidents, by kind."""
        for kind, one, text in _SMALL:
            for direction in (0, 1):
                found = [e for e in events if e.kind is kind and e.direction == direction]
                if found:
                    number = sum(e.count for e in found)
                    answers = all(e.opcode in RESPONSES for e in found) and kind is not (
                        FlowEventKind.LOST
                    )
                    sender, reader = names(direction)
                    what = count(number, f"{one} {'response' if answers else 'packet'}")
                    where = "" if len(found) == 1 else f" ({packets(e.number for e in found)})"
                    if kind is FlowEventKind.REORDERED and self.connection.drops_late_packets:
                        single = sum(e.opcode in ONLY_OF_UC for e in found)
                        text = _LATE_OF_UC if single else _LATE_PARTS_OF_UC
                    if kind is FlowEventKind.DUPLICATE and self.connection.service is Service.UC:
                        text = _DUPLICATE_OF_UC
                    yield Entry(
                        "",
                        found[0].time_ns,
                        found[-1].time_ns,
                        (found[0].number, found[-1].number),
                        text.format(what=what, where=where, r=sender, s=reader, psn=found[0].psn),
                    )

    def _marks(self) -> Iterator[Entry]:
        """Congestion, in one line a direction."""
        for direction in (0, 1):
            marks = [
                event
                for event in self._record.marks
                if event.kind is FlowEventKind.ECN_CE and event.direction == direction
            ]
            cnps = [
                event
                for event in self._record.marks
                if event.kind is FlowEventKind.CNP and event.direction == 1 - direction
            ]
            if marks or cnps:
                both = sorted([*marks, *cnps], key=lambda event: event.number)
                yield Entry(
                    "",
                    both[0].time_ns,
                    both[-1].time_ns,
                    (both[0].number, both[-1].number),
                    self._congestion(direction, marks, cnps),
                )

    def _congestion(
        self, direction: int, marks: Sequence[FlowEvent], cnps: Sequence[FlowEvent]
    ) -> str:
        sender, reader = names(direction)
        total = self.connection.directions[direction].packets
        if not marks:
            where = "no CE mark was seen here, so the congestion is after this point"
            if not total:
                where = f"without packets of {sender} it is unknown where the congestion is"
            return (
                f"{count(len(cnps), 'CNP')} from {reader} ({packets(e.number for e in cnps)}) "
                f"asked {sender} to slow down; {where}."
            )
        text = (
            f"Congestion: {len(marks):,} of {count(total, 'packet')} from {sender} to {reader} "
            f"carry the CE mark of a switch before this point ({packets(e.number for e in marks)})."
        )
        if not cnps and not self.connection.is_reliable:
            return (
                f"{text} CNPs of {reader}, if any, are listed as a connection of their own: a CNP "
                f"names a queue pair of {sender}, and no service."
            )
        if not cnps and not self.connection.directions[1 - direction].packets:
            return f"{text} No packet of {reader} was captured, so CNPs of it would not be seen."
        if not cnps:
            return (
                f"{text} {reader} sends no CNP, so {sender} is not asked to slow down: Linux rxe "
                "never sends CNPs; with a NIC, look at its congestion control settings."
            )
        after = [each for each in cnps if each.number > marks[0].number]
        earlier = [each for each in cnps if each.number < marks[0].number]
        if after:
            delay = duration(after[0].time_ns - marks[0].time_ns)
            text += (
                f" {reader} responds with {count(len(after), 'CNP')}, the first "
                f"(#{after[0].number}) {delay} after the first mark."
            )
        if earlier:
            text += (
                f" {count(len(earlier), 'CNP')} from {reader} "
                f"({packets(e.number for e in earlier)}) before the first mark."
            )
        return text

    def _left(self) -> Iterator[Entry]:
        """Messages without a response."""
        record = self._record
        number = sum(ending.open_messages for ending in self.connection.endings)
        if not number or record.last is None:
            return
        if any(described.refusal or described.given_up for described in self.incidents):
            return
        yield Entry(
            "",
            record.last.time_ns,
            record.last.time_ns,
            (0, 0),
            f"At the end of the capture {count(number, 'message')} had not been acknowledged: "
            f"{self._begun(number)}.",
        )

    def _begun(self, number: int) -> str:
        """The first open messages of both ends; number: how many are open."""
        first = sorted(
            (each.number, f"{VERBS.get(each.verb, each.verb)} of {LETTERS[end]} (#{each.number})")
            for end, ending in enumerate(self.connection.endings)
            for each in ending.first_open
        )
        named = [text for _, text in first[:NAMED]]
        return listed([*named, *([f"{number - NAMED:,} more"] if number > NAMED else [])])

    # The verdict.

    @property
    def verdict(self) -> str:
        """What went wrong, the most likely cause, and how it ended."""
        return verdict(self._record, self.incidents)

    def _not_observable(self) -> Iterator[str]:
        """What this capture cannot show."""
        reasons: dict[str, dict[str, list[str]]] = {}
        for direction, letter in enumerate(LETTERS):
            if self.connection.directions[direction].packets:
                for name, reason in self.connection.not_observable(direction).items():
                    what = _COUNTS.get(name, name.replace("_", " "))
                    reasons.setdefault(reason, {}).setdefault(letter, []).append(what)
        for reason, counts in reasons.items():
            whose = [f"{letter}'s {listed(which)}" for letter, which in counts.items()]
            yield f"May be more than is counted here: {', '.join(whose)}; {reason}."

    # Words.

    def _seconds(self, time_ns: int) -> str:
        since = time_ns - self._capture.start_ns
        sign = "-" if since < 0 else ""
        return f"{sign}{abs(since) // 1_000_000_000}.{abs(since) % 1_000_000_000 // 1000:06d}"

    def _time(self, entry: Entry) -> str:
        begin, end = self._seconds(entry.from_ns), self._seconds(entry.to_ns)
        return begin if begin == end else f"{begin}-{end}"


def _crossing(file: FileStart) -> Entry:
    number = file.first_number
    text = f"Here {os.path.basename(file.name)} begins: its frame 1 is #{number}."
    return Entry("", file.time_ns, file.time_ns, (number, number), text)


def _numbers(entry: Entry) -> str:
    first, last = entry.numbers
    if not first:
        return ""
    return f"#{first}" if first == last else f"#{first}-{last}"


def _wrapped(style: str, text: str, width: int, indent: str) -> Iterator[Line]:
    lead = len(text) - len(text.lstrip())
    lines = textwrap.wrap(
        text,
        max(width, len(indent) + 30),
        initial_indent="",
        subsequent_indent=indent,
        drop_whitespace=True,
        break_on_hyphens=False,
        break_long_words=False,
    )
    if lead and lines:
        lines[0] = " " * lead + lines[0].lstrip()
    yield from (Line(style, line) for line in lines)


_CNP = VERB[OpCode.CNP]

_SERVICES = {
    Service.RC: "reliable connection (RC)",
    Service.UC: "unreliable connection (UC)",
    Service.RD: "reliable datagrams (RD)",
    Service.UD: "datagrams (UD)",
    Service.XRC: "extended reliable connection (XRC)",
}

_COUNTS = {
    "retransmitted_packets": "retransmitted packets",
    "naks": "NAKs",
    "rnr_naks": "RNR NAKs",
    "implied_naks": "implied NAKs",
    "duplicate_packets": "duplicates",
}
"""Counts of `Connection.not_observable` in words, where more than the underscores differ."""

_LATE_PARTS_OF_UC = "{what} of {r}{where}: {s} drops messages whose packets are out of order."
_LATE_OF_UC = (
    "{what} of {r}{where}: {s} drops a message of several packets that are out of order, and takes "
    "one of a single packet."
)
_DUPLICATE_OF_UC = (
    "{what} of {r}{where}: made by the network or by the capture. This service does not recognise "
    "duplicates: unless the capture made them, {s} gets a message of one packet twice, and may "
    "drop one of several packets."
)
"""IBA 9.8.2; rxe_resp.c check_psn: a FIRST or ONLY is taken with whatever PSN it has."""

_SMALL = (
    (
        FlowEventKind.RESTART,
        "",
        "{r} restarts at PSN {psn}: the queue pair was reset, or its number was reused.",
    ),
    (
        FlowEventKind.LOST,
        "lost",
        "{what} from {r} to {s} did not arrive here{where}; the first has PSN {psn}.",
    ),
    (
        FlowEventKind.REORDERED,
        "reordered",
        "{what} of {r}{where}, which had no effect on {s}.",
    ),
    (
        FlowEventKind.DUPLICATE,
        "duplicate",
        "{what} of {r}{where}: made by the network or by the capture; {s} drops the duplicate.",
    ),
    (
        FlowEventKind.REPEATED,
        "repeated",
        "{what} of {r}{where}: duplicated by the network or by the capture, or retransmitted.",
    ),
    (
        FlowEventKind.ICRC_BAD,
        "damaged",
        "{what} of {r}{where}: the ICRC is wrong, {s} drops it silently.",
    ),
)
