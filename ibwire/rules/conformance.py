"""Checks a capture against the rules: each packet by itself, and each connection over time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from ibwire.connections.analysis import Analysis
from ibwire.connections.connection import Connection
from ibwire.connections.events import FlowEvent, FlowEventKind, Message
from ibwire.connections.flow import FlowKeys, Flows
from ibwire.connections.packets import Fields, TransportPacket
from ibwire.connections.runs import CompletedMessages, Flags, Run, Runs
from ibwire.connections.states import NEW, RETRANSMITTED, PacketStatus
from ibwire.connections.summary import STEP_NS, Summary
from ibwire.connections.tracker import RequestTracker
from ibwire.dissect import Columns
from ibwire.rules import (
    aspects,
    atomics,
    catalogue,
    congestion,
    constant,
    integrity,
    management,
    sequences,
)
from ibwire.rules.congestion import Notifications
from ibwire.rules.constant import Constants
from ibwire.rules.findings import (
    ANY,
    ELSEWHERE,
    EXAMPLES,
    Finding,
    FindingCollector,
    Location,
    PlaceKey,
    Rule,
    Severity,
    worst_first,
)
from ibwire.rules.history import ConnectionCheck, KeptOperands, RequestHistory, Violation
from ibwire.rules.packet import BAD, GOOD, Chunk, sound
from ibwire.rules.regular import Regular, opcode_table
from ibwire_layers import headers as h
from ibwire_layers.opcodes import INFO, OpCode, Service

_RELIABLE = (Service.RC, Service.XRC)
KEEP_OPERANDS: Final = 1 << 19
"""Atomics whose operands are kept for the check of their connection; older ones are not."""
MOST_RESTARTS: Final = 1 << 12
"""Restarts that are remembered of one connection."""
BAD_FLOWS: Final = 1 << 16
"""With more flows packets with a wrong ICRC are not counted: each may look like a new flow."""


class Conformance:
    """Checks one capture; an observer of its connections.

    profile: the implementation whose habits are not reported, one of `findings.PROFILES`.
    rules: the rules to check. tell: receives the events of the connections, which break no rule.
    """

    def __init__(
        self,
        profile: str = ANY,
        rules: Iterable[Rule] = catalogue.RULES.values(),
        tell: Callable[[FlowEvent], None] | None = None,
    ) -> None:
        self.summary = Summary()
        """The connections, numbered as in the findings, once it is finished."""
        self._collector = FindingCollector(rules, profile)
        self._tell = tell
        self._analysis = Analysis(self)
        self._flows = Flows()
        self._services: dict[tuple[str, str, int], Service] = {}
        """Service by source, destination and queue pair, the first that was seen."""
        self._other_service = np.zeros(1024, np.int8)
        """By flow, whether its queue pair received packets of another service before; -1 where it
        did not, 0 where that has not been asked."""
        self._tally = integrity.Tally()
        self._constants = Constants()
        self._checks_constants = any(map(self._collector.wants, constant.RULES))
        self._restarts: dict[int, list[int]] = {}
        """Connection -> packets with which its queue pairs began anew."""
        self._histories: dict[int, _Checked] = {}
        """By twice the connection, plus the end that sends the requests."""
        self._notified: dict[int, Notifications] = {}
        self._operands = KeptOperands(KEEP_OPERANDS)
        self._packet_rules = [
            each for each in catalogue.PACKET_RULES if self._collector.wants(each.rule)
        ]

    def take(self, columns: Columns) -> None:
        """Check the next chunk of the capture."""
        columns = self._analysis.points.take(columns)
        flow = self._flow(columns)
        chunks: dict[object, Chunk] = {sound: sound(columns)}
        unusual = aspects.unusual(columns, chunks[sound].rows)
        for each in self._packet_rules:
            if not int(each.aspect) & unusual:
                continue
            chunk = chunks.get(each.of)
            if chunk is None:
                chunk = chunks[each.of] = each.of(columns)
            broken = np.flatnonzero(each.is_broken(chunk))
            for number, rows in _grouped(flow[chunk.rows[broken]], broken):
                words = each.words(chunk, int(rows[0]))
                self._add(each.rule, number, chunk, rows, words, has_icrc=each.has_icrc)
        chunk = chunks[sound]
        self._check_services(chunk, flow)
        if self._checks_constants:
            self._constants.take(chunk, flow[chunk.rows])
        self._keep_operands(chunk)
        self._analysis.take_once(columns)

    def finish(self, source: str = "") -> list[Finding]:
        """The findings, worst first; `source` names the capture."""
        summary = self.summary = self._analysis.finish()
        self._check_icrcs()
        self._check_notifications(summary)
        places = _Locations(summary, self._flows.keys)
        self._check_constants(places)
        self._check_management(summary)
        findings = []
        for rule, key, found in self._collector.occurrences():
            if rule.is_timed and summary.back_ns > STEP_NS:
                continue
            severity = rule.severity_for(self._collector.profile)
            assert severity is not None
            place = ELSEWHERE if key is None else places.of(key)
            text = found.text
            if found.count < rule.least:
                severity, text = Severity.NOTE, f"{text}; it may be damage that no ICRC shows"
            findings.append(
                Finding(rule, severity, place, text, found.count, found.numbers, source)
            )
        return worst_first(findings)

    # Packets by themselves.

    def _flow(self, columns: Columns) -> npt.NDArray[np.int32]:
        """(n,) flow of every packet, -1 without; ICRCs are counted on the way."""
        frames = columns.frames
        rows = np.flatnonzero(frames.bth >= 0)
        flow = np.full(columns.rows, -1, np.int32)
        if not len(rows):
            return flow
        status = columns["icrc.status"][rows]
        if len(self._flows.keys) > BAD_FLOWS:
            rows, status = rows[status != BAD], status[status != BAD]
        found = flow[rows] = self._flows.numbers(columns, rows)
        checked = np.flatnonzero((status == GOOD) | (status == BAD))
        rows = rows[checked]
        self._tally.take(
            found[checked],
            frames.opcode[rows],
            columns["bth.padcnt"][rows],
            status[checked],
            rows + frames.batch.first_number,
        )
        return flow

    def _check_services(self, chunk: Chunk, flow: npt.NDArray[np.int32]) -> None:
        """Find queue pairs that receive opcodes of several services."""
        rows = np.flatnonzero(chunk.opcode != OpCode.CNP)
        of_row = flow[chunk.rows[rows]]
        numbers = np.flatnonzero(np.bincount(of_row[of_row >= 0]))
        if len(self._flows.keys) > len(self._other_service):
            more = 2 * len(self._flows.keys) - len(self._other_service)
            self._other_service = np.pad(self._other_service, (0, more))
        for number in numbers[self._other_service[numbers] == 0].tolist():
            key = self._flows.keys[number]
            first = self._services.setdefault((key.src, key.dst, key.dst_qpn), key.service)
            self._other_service[number] = 1 if first is not key.service else -1
        if not (self._other_service[numbers] > 0).any():
            return
        of_row = np.where(self._other_service[of_row] > 0, of_row, -1)
        for number, group in _grouped(of_row, rows):
            key = self._flows.keys[number]
            first = self._services[key.src, key.dst, key.dst_qpn]
            words = f"{key.service.name} packets to a queue pair that was sent {first.name}"
            self._add(sequences.SERVICE, number, chunk, group, words)

    def _add(
        self,
        rule: Rule,
        flow: int,
        chunk: Chunk,
        rows: npt.NDArray[np.int64],
        words: str,
        *,
        has_icrc: bool = True,
    ) -> None:
        first = chunk.numbers[rows[:EXAMPLES]].tolist()
        verified = not has_icrc or bool((chunk["icrc.status"][rows] == GOOD).any())
        self._collector.add_many(
            rule, ("flow", flow, 0), first, len(rows), words, verified=verified
        )

    def _keep_operands(self, chunk: Chunk) -> None:
        """Keep the operands of atomics until their connection is checked."""
        rows = np.flatnonzero(_IS_ATOMIC[chunk.opcode])
        if len(rows):
            of = Fields(chunk.columns, chunk.rows[rows]).of
            asked = of(h.AtomicETH)
            first = asked("swap", np.uint64) | of(h.AtomicAckETH)("orig", np.uint64)
            values = np.stack([first, asked("compare", np.uint64)], axis=1)
            self._operands.add(chunk.numbers[rows], values)

    def _check_icrcs(self) -> None:
        totals = self._tally.totals()
        strays = [
            flow for flow, (good, bad) in totals.items() if not good and bad < integrity.SYSTEMATIC
        ]
        homes: dict[tuple[str, str], int] = {}
        for flow in sorted(totals, key=lambda flow: totals[flow][0]) if strays else ():
            homes[self._flows.keys[flow][:2]] = flow
        for flow in strays:
            home = homes[self._flows.keys[flow][:2]]
            if home != flow:
                self._tally.move(flow, home)
        for rule, flow, numbers, count, words in self._tally.found():
            self._collector.add_many(rule, ("flow", flow, 0), numbers, count, words)

    def _check_constants(self, places: _Locations) -> None:
        for flow in sorted(self._constants.flows):
            connection = places.of(("flow", flow, 0)).connection
            restarts = sorted(self._restarts.get(connection, ()))
            if len(restarts) == MOST_RESTARTS:
                continue
            for rule, numbers, words, verified in self._constants.found(flow, restarts):
                self._collector.add_many(
                    rule, ("flow", flow, 0), numbers, len(numbers), words, verified=verified
                )

    def _check_management(self, summary: Summary) -> None:
        for connection in summary.connections:
            for rule, direction, numbers, words in management.found(connection):
                key = ("connection", connection.number, direction)
                self._collector.add_many(rule, key, numbers[:EXAMPLES], len(numbers), words)

    # Connections.

    def request(
        self, tracker: RequestTracker, packet: TransportPacket, status: PacketStatus
    ) -> None:
        """Check a request."""
        checked = self._checked(tracker)
        if status is RETRANSMITTED and checked.history.is_beyond(packet):
            status = NEW  # only damaged packets had its PSN before
        for check in checked.of_requests:
            if found := check.request(packet, status):
                self._note(tracker, found)
        checked.history.learn(packet)
        checked.history.note_request(packet, status)
        if packet.marked:
            self._notifications(tracker.connection).mark(tracker.end, packet)

    def response(
        self, tracker: RequestTracker, packet: TransportPacket, status: PacketStatus
    ) -> None:
        """Check a response."""
        checked = self._checked(tracker)
        if checked.is_answered:  # else they may be those of another connection
            checked.history.learn(packet)
            for check in checked.of_responses:
                if found := check.response(packet, status):
                    self._note(tracker, found)
            checked.history.note_response(packet)
        if packet.marked:
            self._notifications(tracker.connection).mark(1 - tracker.end, packet)

    def other(self, connection: Connection, direction: int, packet: TransportPacket) -> None:
        """Check a CNP; datagrams and damaged packets are not checked."""
        if packet.opcode == OpCode.CNP and not packet.damaged:
            notified = self._notifications(connection)
            key = ("connection", connection.number, direction)
            for rule, words, _ in notified.cnp(direction, packet):
                self._collector.add(rule, key, packet.number, words, verified=packet.icrc != 0)

    def wants(self, connection: int) -> bool:
        """All connections are checked."""
        return True

    def takes(self, run: Run) -> int:
        """How many packets of a run break no rule for certain."""
        alone = self.alone(run.together())
        return int(alone.argmax()) if alone.any() else len(run)

    def run(self, run: Run) -> None:
        """Packets that break no rule."""
        self.runs(run.together())

    def group(self, connection: Connection) -> int:
        """Those whose responses are checked, or not: so all of one group have the same checks."""
        return 0 if _has_responses(connection) else 1

    def alone(self, runs: Runs) -> Flags:
        """(n,) packets that may break a rule."""
        run = Regular(runs)
        if run.count:
            checked = [self._checked(each) for each in run.trackers]
            for checks in _by_kind(checked):
                type(checks[0]).mark_alone(checks, run)
            RequestHistory.mark_alone([each.history for each in checked], run)
        runs.known = run
        return run.alone

    def runs(self, runs: Runs) -> None:
        """Packets that break no rule."""
        # What the checks have found out about these packets in `alone` is still true.
        run: Regular = runs.known if runs.known is not None else Regular(runs)
        if run.count:
            checked = [self._checked(each) for each in run.trackers]
            # Those that use what others know about the packets before go first.
            for checks in reversed(_by_kind(checked)):
                type(checks[0]).run(checks, run)
            RequestHistory.run([each.history for each in checked], run)
        self._note_congestion(runs)

    def over(self, connections: Sequence[int]) -> None:
        """Forget what packets of these connections are compared with."""
        for number in connections:
            for end in (0, 1):
                self._histories.pop(2 * number + end, None)

    def _note_congestion(self, runs: Runs) -> None:
        """Take the CNPs and the marked packets of runs."""
        rows, side = runs.rows, 2 * runs.connection + runs.direction
        is_cnp = rows.opcode == OpCode.CNP
        reliable = np.array([each.service in _RELIABLE for each in runs.connections], np.bool_)
        marked = np.flatnonzero(rows.marked & ~is_cnp & reliable[runs.connection])
        sides: list[int] = side[marked].tolist()
        for each in sorted(set(sides)):
            notified = self._notifications(runs.connections[each >> 1])
            notified.mark_many(each & 1, rows.number[marked[side[marked] == each]])
        cnps = np.flatnonzero(is_cnp)
        for each, packet in zip(side[cnps].tolist(), rows.take(cnps).packets(), strict=True):
            self.other(runs.connections[each >> 1], each & 1, packet)

    def completed(self, messages: CompletedMessages) -> None:
        """Messages are not checked by themselves."""

    def event(self, event: FlowEvent) -> None:
        """Forget a tracker whose queue pair was reset."""
        if event.kind is FlowEventKind.RESTART:
            self._histories.pop(2 * event.connection + event.direction, None)
            restarts = self._restarts.setdefault(event.connection, [])
            if len(restarts) < MOST_RESTARTS:
                restarts.append(event.number)
        if self._tell is not None:
            self._tell(event)

    def message(self, message: Message) -> None:
        """Messages are not checked by themselves."""

    def _note(self, tracker: RequestTracker, violations: Iterable[Violation]) -> None:
        for rule, words, packet in violations:
            sender = 1 - tracker.end if INFO[packet.opcode].is_response else tracker.end
            key = ("connection", tracker.connection.number, sender)
            # The ICRC of a packet that was cut is not there; its neighbours were cut as well.
            self._collector.add(rule, key, packet.number, words, verified=packet.icrc != 0)

    def _checked(self, tracker: RequestTracker) -> _Checked:
        key = 2 * tracker.connection.number + tracker.end
        checked = self._histories.get(key)
        if checked is None:
            checked = self._histories[key] = _Checked(RequestHistory(tracker, self._operands))
        return checked

    def _notifications(self, connection: Connection) -> Notifications:
        return self._notified.setdefault(connection.number, Notifications())

    def _check_notifications(self, summary: Summary) -> None:
        for number, notified in self._notified.items():
            connection = summary.connections[number - 1]
            for direction, numbers, count, words in notified.unanswered(connection):
                key = ("connection", number, direction)
                self._collector.add_many(congestion.UNANSWERED, key, numbers, count, words)


class _Checked:
    """A history, and the checks that receive its packets."""

    __slots__ = ("all", "history", "is_answered", "of_requests", "of_responses")

    def __init__(self, history: RequestHistory) -> None:
        self.history = history
        self.is_answered = _has_responses(history.tracker.connection)
        self.all = (catalogue.checks if self.is_answered else catalogue.unreliable_checks)(history)
        self.of_requests = [each for each in self.all if _has_own(each, "request")]
        """Those that look at requests; the next at responses."""
        self.of_responses = [each for each in self.all if _has_own(each, "response")]


def _has_own(check: ConnectionCheck, name: str) -> bool:
    """Whether a check does something in a method."""
    return getattr(type(check), name) is not getattr(ConnectionCheck, name)


def _by_kind(checked: list[_Checked]) -> list[list[ConnectionCheck]]:
    """The checks of each kind, by exchange; all exchanges have the same kinds."""
    kinds = range(len(checked[0].all))
    return [[each.all[kind] for each in checked] for kind in kinds]


def _has_responses(connection: Connection) -> bool:
    """Whether responses are checked: where the pairing is a guess, requests are checked alone."""
    return connection.service in _RELIABLE and connection.pairing != "guess"


_IS_ATOMIC = opcode_table(atomics.REQUESTS | atomics.ANSWERS)


class _Locations:
    """Finds the connection and direction of a violation."""

    def __init__(self, summary: Summary, flows: FlowKeys) -> None:
        self._summary = summary
        self._flows = flows
        self._by_ends: dict[tuple[object, ...], tuple[Connection, int]] | None = None
        """By the fields of a flow, made when a flow is first looked for."""

    def of(self, key: PlaceKey) -> Location:
        """The location with its addresses."""
        what, number, direction = key
        if what == "connection":
            return self._named(self._summary.connections[number - 1], direction)
        flow = self._flows[number]
        if self._by_ends is None:
            self._by_ends = self._find_ends()
        found = self._by_ends.get((flow.src, flow.dst, flow.dst_qpn, flow.service))
        return self._named(*found) if found else Location(flow.src, flow.dst, flow.dst_qpn)

    def _find_ends(self) -> dict[tuple[object, ...], tuple[Connection, int]]:
        """The directions of all connections by their ends and service, the first of each."""
        found: dict[tuple[object, ...], tuple[Connection, int]] = {}
        for connection in self._summary.connections:
            for direction in (0, 1):
                source, target = connection.ends[direction], connection.ends[1 - direction]
                key = (source.address, target.address, target.qpn, connection.service)
                found.setdefault(key, (connection, direction))
        return found

    @staticmethod
    def _named(connection: Connection, direction: int) -> Location:
        source, target = connection.ends[direction], connection.ends[1 - direction]
        return Location(source.address, target.address, target.qpn, connection.number, direction)


def _grouped(
    flow: npt.NDArray[np.int32], rows: npt.NDArray[np.int64]
) -> list[tuple[int, npt.NDArray[np.int64]]]:
    """Rows by flow, in their order; those without a flow are left out."""
    kept = flow >= 0
    flow, rows = flow[kept], rows[kept]
    if not len(rows):
        return []
    order = np.argsort(flow, kind="stable")
    starts = np.flatnonzero(np.diff(flow[order], prepend=-1))
    groups = np.split(rows[order], starts[1:])
    return list(zip(flow[order][starts].tolist(), groups, strict=True))
