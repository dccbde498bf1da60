"""Judges a capture by the rules: every packet by itself, and every connection as it goes on."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from ibwire.connections.analysis import Analysis
from ibwire.connections.connection import Connection
from ibwire.connections.events import FlowEvent, FlowEventKind, Message
from ibwire.connections.flow import FlowKey, Flows
from ibwire.connections.packets import TransportPacket
from ibwire.connections.states import PacketStatus
from ibwire.connections.summary import Summary
from ibwire.connections.tracker import RequestTracker
from ibwire.dissect import Columns
from ibwire.rules import atomics, catalogue, congestion, integrity, sequences
from ibwire.rules.congestion import Notifications
from ibwire.rules.findings import (
    ANY,
    ELSEWHERE,
    EXAMPLES,
    Finding,
    Key,
    Ledger,
    Place,
    Rule,
    worst_first,
)
from ibwire.rules.life import Breach, Law, Life, Operands
from ibwire.rules.packet import BAD, GOOD, Chunk, sound
from ibwire_layers.opcodes import INFO, OpCode, Service

_RELIABLE = (Service.RC, Service.XRC)
KEEP_OPERANDS = 1 << 16
"""Atomics whose operands wait for their packet to be followed; of older ones nothing is said."""
BAD_FLOWS = 1 << 16
"""Flows from which on packets with a wrong ICRC are not counted: they may begin any number."""


class Conformance:
    """Judges one capture; an observer of its connections.

    profile: whose habits are no finding, one of `findings.PROFILES`.
    rules: those to judge by.
    """

    def __init__(
        self, profile: str = ANY, rules: Iterable[Rule] = catalogue.RULES.values()
    ) -> None:
        self.summary = Summary()
        """The connections, numbered as in the findings, once it is finished."""
        self._ledger = Ledger(rules, profile)
        self._analysis = Analysis(self)
        self._flows = Flows()
        self._services: dict[tuple[str, str, int], Service] = {}
        """Service by source, destination and queue pair, the first that was seen."""
        self._contrary: dict[int, bool] = {}
        """Flow -> whether its queue pair was spoken to in another service before."""
        self._tally = integrity.Tally()
        self._lives: dict[tuple[int, int], _Judged] = {}
        self._notified: dict[int, Notifications] = {}
        self._operands: dict[int, Operands] = {}
        self._packet_rules = [
            each for each in catalogue.PACKET_RULES if self._ledger.wants(each.rule)
        ]

    def take(self, columns: Columns) -> None:
        """Judge the next chunk of the capture."""
        flow = self._flow(columns)
        chunks: dict[object, Chunk] = {}
        for each in self._packet_rules:
            chunk = chunks.get(each.of)
            if chunk is None:
                chunk = chunks[each.of] = each.of(columns)
            broken = np.flatnonzero(each.is_broken(chunk))
            for number, rows in _grouped(flow[chunk.rows[broken]], broken):
                self._add(each.rule, number, chunk, rows, each.words(chunk, int(rows[0])))
        chunk = chunks.get(sound) or sound(columns)
        self._check_services(chunk, flow)
        self._keep_operands(chunk)
        self._analysis.take(columns)

    def finish(self, source: str = "") -> list[Finding]:
        """What was found, worst first; `source` names the capture."""
        summary = self.summary = self._analysis.finish()
        self._check_icrcs()
        self._check_notifications(summary)
        places = _Places(summary, self._flows.keys)
        findings = []
        for rule, key, breach in self._ledger.breaches():
            severity = rule.judged_by(self._ledger.profile)
            assert severity is not None
            place = ELSEWHERE if key is None else places.of(key)
            findings.append(
                Finding(rule, severity, place, breach.text, breach.count, breach.numbers, source)
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
        """Find queue pairs that are spoken to in the opcodes of several services."""
        rows = np.flatnonzero(chunk.opcode != OpCode.CNP)
        for number, group in _grouped(flow[chunk.rows[rows]], rows):
            if number not in self._contrary:
                key = self._flows.keys[number]
                first = self._services.setdefault((key.src, key.dst, key.dst_qpn), key.service)
                self._contrary[number] = first is not key.service
            if self._contrary[number]:
                key = self._flows.keys[number]
                first = self._services[key.src, key.dst, key.dst_qpn]
                words = f"{key.service.name} packets to a queue pair that was sent {first.name}"
                self._add(sequences.SERVICE, number, chunk, group, words)

    def _add(
        self, rule: Rule, flow: int, chunk: Chunk, rows: npt.NDArray[np.int64], words: str
    ) -> None:
        first = chunk.numbers[rows[:EXAMPLES]].tolist()
        verified = bool((chunk["icrc.status"][rows] == GOOD).any())
        self._ledger.add_many(rule, ("flow", flow, 0), first, len(rows), words, verified=verified)

    def _keep_operands(self, chunk: Chunk) -> None:
        """Remember the numbers in atomics until their connection hears of them."""
        for opcodes, names in _OPERANDS:
            rows = np.flatnonzero(np.isin(chunk.opcode, opcodes))
            if not len(rows):
                continue
            numbers = chunk.numbers[rows].tolist()
            values = zip(*(chunk[name][rows].tolist() for name in names), strict=True)
            self._operands.update(zip(numbers, values, strict=True))
        while len(self._operands) > KEEP_OPERANDS:
            del self._operands[next(iter(self._operands))]

    def _check_icrcs(self) -> None:
        totals = self._tally.totals()
        homes: dict[tuple[str, str], int] = {}
        for flow in sorted(totals, key=lambda flow: totals[flow][0]):
            homes[self._flows.keys[flow][:2]] = flow
        for flow, (good, bad) in totals.items():
            home = homes[self._flows.keys[flow][:2]]
            if not good and bad < integrity.SYSTEMATIC and home != flow:
                self._tally.move(flow, home)
        for rule, flow, numbers, count, words in self._tally.found():
            self._ledger.add_many(rule, ("flow", flow, 0), numbers, count, words)

    # Connections.

    def request(self, half: RequestTracker, packet: TransportPacket, verdict: PacketStatus) -> None:
        """Judge a request."""
        judged = self._judged(half)
        for law in judged.of_requests:
            for breach in law.request(packet, verdict):
                self._note(half, breach)
        judged.life.learn(packet)
        judged.life.note_request(packet, verdict)
        self._heard(half.connection, half.end, packet)

    def response(
        self, half: RequestTracker, packet: TransportPacket, verdict: PacketStatus
    ) -> None:
        """Judge a response."""
        judged = self._judged(half)
        judged.life.learn(packet)
        for law in judged.of_responses:
            for breach in law.response(packet, verdict):
                self._note(half, breach)
        judged.life.note_response(packet)
        self._heard(half.connection, 1 - half.end, packet)

    def other(self, connection: Connection, direction: int, packet: TransportPacket) -> None:
        """Judge a CNP; datagrams and damaged packets are not looked at."""
        if packet.opcode == OpCode.CNP and not packet.damaged:
            notified = self._notified.setdefault(connection.number, Notifications())
            key = ("connection", connection.number, direction)
            for rule, words, _ in notified.cnp(direction, packet):
                self._ledger.add(rule, key, packet.number, words, verified=packet.icrc != 0)

    def event(self, event: FlowEvent) -> None:
        """Forget a half whose queue pair was reset."""
        if event.kind is FlowEventKind.RESTART:
            self._lives.pop((event.connection, event.direction), None)

    def message(self, message: Message) -> None:
        """Nothing is judged of messages as such."""

    def _note(self, half: RequestTracker, breach: Breach) -> None:
        rule, words, packet = breach
        sender = 1 - half.end if INFO[packet.opcode].is_response else half.end
        key = ("connection", half.connection.number, sender)
        # The ICRC of a packet that was cut is not there; its neighbours were cut as well.
        self._ledger.add(rule, key, packet.number, words, verified=packet.icrc != 0)

    def _judged(self, half: RequestTracker) -> _Judged:
        key = half.connection.number, half.end
        judged = self._lives.get(key)
        if judged is None:
            judged = self._lives[key] = _Judged(Life(half, self._operands))
        return judged

    def _heard(self, connection: Connection, direction: int, packet: TransportPacket) -> None:
        if packet.marked:
            self._notified.setdefault(connection.number, Notifications()).mark(direction, packet)
        if self._operands:
            self._operands.pop(packet.number, None)

    def _check_notifications(self, summary: Summary) -> None:
        for number, notified in self._notified.items():
            connection = summary.connections[number - 1]
            for direction, numbers, count, words in notified.unanswered(connection):
                key = ("connection", number, direction)
                self._ledger.add_many(congestion.UNANSWERED, key, numbers, count, words)


class _Judged:
    """A life of a half, and the laws that hear of it."""

    __slots__ = ("life", "of_requests", "of_responses")

    def __init__(self, life: Life) -> None:
        self.life = life
        connection = life.half.connection
        # Where it is only guessed who answers whom, requests are judged without answers.
        is_answered = connection.service in _RELIABLE and connection.pairing != "guess"
        laws = (catalogue.laws if is_answered else catalogue.unreliable_laws)(life)
        self.of_requests = [law for law in laws if type(law).request is not Law.request]
        self.of_responses = [law for law in laws if type(law).response is not Law.response]


_OPERANDS = (
    (tuple(atomics.REQUESTS), ("atomiceth.swapdt", "atomiceth.cmpdt")),
    (tuple(atomics.ANSWERS), ("atomicacketh.origremdt",)),
)
"""Opcodes, and the fields that the laws of atomics compare."""


class _Places:
    """Finds connection and direction of what was found."""

    def __init__(self, summary: Summary, flows: list[FlowKey]) -> None:
        self._summary = summary
        self._flows = flows
        self._of_flow: dict[tuple[object, ...], tuple[Connection, int]] = {}
        for connection in summary.connections:
            for direction in (0, 1):
                source, target = connection.ends[direction], connection.ends[1 - direction]
                key = (source.address, target.address, target.qpn, connection.service)
                self._of_flow.setdefault(key, (connection, direction))

    def of(self, key: Key) -> Place:
        """The place with its names."""
        what, number, direction = key
        if what == "connection":
            return self._named(self._summary.connections[number - 1], direction)
        flow = self._flows[number]
        found = self._of_flow.get((flow.src, flow.dst, flow.dst_qpn, flow.service))
        return self._named(*found) if found else Place(flow.src, flow.dst, flow.dst_qpn)

    @staticmethod
    def _named(connection: Connection, direction: int) -> Place:
        source, target = connection.ends[direction], connection.ends[1 - direction]
        return Place(source.address, target.address, target.qpn, connection.number, direction)


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
