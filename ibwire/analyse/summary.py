"""A capture as connections: packets go in a chunk at a time, and what became of them comes out."""

from __future__ import annotations

import numpy as np

from ibwire.analyse import packets, partners, steady
from ibwire.analyse.connection import Connection, End, Observer
from ibwire.analyse.flow import FlowKey, Flows
from ibwire.analyse.packets import Rows
from ibwire.dissect import Columns
from ibwire_layers.opcodes import Service

BLOCK = 1 << 16
"""Packets that are collected before they are followed: many of one connection at once."""
PARKED = 4096
"""Packets of a flow that wait for its other direction."""
ALL_PARKED = 1 << 20
"""Packets that wait in all flows together."""


class Summary:
    """What is known of a capture, or of several."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self.first_ns: int | None = None
        self.last_ns = 0
        self.frames = 0
        self.packets = 0
        """With a transport header."""
        self.stray_damaged = 0
        """Packets with a wrong ICRC that belong to no flow: the damage may be in their headers."""


class Analysis:
    """Follows the connections of one capture."""

    def __init__(self, observer: Observer | None = None) -> None:
        self._observer = observer
        self._flows = Flows()
        self._places: list[tuple[Connection, int] | None] = []
        """Connection and direction by flow."""
        self._parked: dict[int, list[Rows]] = {}
        self._parked_rows = 0
        self._agreed: dict[FlowKey, int] = {}
        self._block: list[Rows] = []
        self._block_rows = 0
        self._summary = Summary()

    def take(self, columns: Columns) -> None:
        """Take the next chunk of the capture."""
        rows = packets.known(columns)
        summary = self._summary
        if columns.rows:
            times = columns.frames.batch.time_ns
            summary.first_ns = min(summary.first_ns or int(times[0]), int(times.min()))
            summary.last_ns = max(summary.last_ns, int(times.max()))
        summary.frames += columns.rows
        summary.packets += len(rows)
        damaged = columns["icrc.status"][rows] == packets.BAD
        flow = self._flows.numbers(columns, rows, ~damaged)
        if damaged.any():
            stray = flow < 0
            summary.stray_damaged += int(stray.sum())
            rows, flow = rows[~stray], flow[~stray]
        self._places.extend([None] * (len(self._flows.keys) - len(self._places)))
        if len(rows):
            self._block.append(packets.read(columns, rows, flow))
            self._block_rows += len(rows)
        if self._block_rows >= BLOCK:
            self._follow()

    def finish(self) -> Summary:
        """The capture is over."""
        self._follow()
        self._settle(force=True)
        for connection in self._summary.connections:
            connection.finish(self._summary.last_ns)
        return self._summary

    def connection_of(self, flow: int) -> tuple[Connection, int] | None:
        """Connection and direction of a flow, once they are known."""
        return self._places[flow]

    def _follow(self) -> None:
        """Deal with the packets that were collected."""
        if not self._block:
            return
        rows = Rows.concatenate(self._block)
        self._block, self._block_rows = [], 0
        placed = np.array([place is not None for place in self._places])[rows.flow]
        if placed.all():
            self._deliver(rows)
            return
        for flow, part in _by_flow(rows.take(~placed)):
            self._parked.setdefault(flow, []).append(part)
            self._parked_rows += len(part)
        if placed.any():
            self._deliver(rows.take(placed))
        self._settle(force=False)

    def _settle(self, force: bool) -> None:
        """Make connections of the flows that wait, as far as it is clear which belong together."""
        if not self._parked:
            return
        waiting = []
        for flow, parts in self._parked.items():
            key = self._flows.keys[flow]
            if key.service in (Service.RC, Service.XRC, Service.RD):
                first = parts[0].take(slice(0, PARKED)).seen()
                waiting.append(partners.candidate(flow, key, first))
        pairs = partners.pair(waiting, self._agreed)
        groups: list[tuple[list[int], str]] = [([p.one, p.other], p.how) for p in pairs]
        together = {flow for flows, _ in groups for flow in flows}
        full = force or self._parked_rows > ALL_PARKED
        for flow, parts in self._parked.items():
            if flow in together:
                continue
            lone = self._flows.keys[flow].service in (Service.UC, Service.UD)
            if full or lone or sum(map(len, parts)) >= PARKED:
                groups.append(([flow], "none"))
        groups.sort(
            key=lambda group: min(int(self._parked[flow][0].number[0]) for flow in group[0])
        )
        for flows, how in groups:
            self._connect(flows, how)

    def _connect(self, flows: list[int], how: str) -> None:
        """Begin a connection with these flows, and let it have what was parked."""
        parts = [part for flow in flows for part in self._parked.pop(flow)]
        rows = Rows.concatenate(parts)
        rows = rows.take(np.argsort(rows.number, kind="stable"))
        self._parked_rows -= len(rows)
        flows = sorted(flows, key=lambda flow: flow != rows.flow[0])
        key = self._flows.keys[flows[0]]
        back = self._flows.keys[flows[1]].dst_qpn if len(flows) > 1 else key.src_qpn
        if back is None:
            back = self._agreed.get(key)
        ends = End(key.src, back), End(key.dst, key.dst_qpn)
        connection = Connection(len(self._summary.connections) + 1, ends, key.service)
        connection.pairing = how
        connection.observer = self._observer
        self._summary.connections.append(connection)
        for direction, flow in enumerate(flows):
            self._places[flow] = connection, direction
        self._deliver(rows)

    def _deliver(self, rows: Rows) -> None:
        """Give packets to their connections, which are known."""
        numbers = np.array([place[0].number if place else 0 for place in self._places], np.int64)
        number = numbers[rows.flow]
        order = np.argsort(number, kind="stable")
        number = number[order]
        rows = rows.take(order)
        starts = np.flatnonzero(np.diff(number, prepend=0))
        ends = np.append(starts[1:], len(rows))
        few = ends - starts < steady.LEAST
        if self._observer is not None:
            few[:] = True
        for packet in rows.take(np.repeat(few, ends - starts)).seen():
            place = self._places[packet.flow]
            assert place is not None
            place[0].take(place[1], packet)
        for start, end in zip(starts[~few].tolist(), ends[~few].tolist(), strict=True):
            self._deliver_many(rows.take(slice(start, end)))

    def _deliver_many(self, rows: Rows) -> None:
        """Give one connection its packets: regular ones together, the others one by one."""
        directions = np.array([place[1] if place else 0 for place in self._places], np.uint8)
        direction = directions[rows.flow]
        place = self._places[rows.flow[0]]
        assert place is not None
        connection, at = place[0], 0
        while at < len(rows):
            took = steady.advance(connection, rows.take(slice(at, None)), direction[at:])
            at += took
            if not took or at < len(rows):
                part = rows.take(slice(at, at + steady.LEAST))
                for each, packet in zip(direction[at:].tolist(), part.seen(), strict=False):
                    connection.take(each, packet)
                at += len(part)


def _by_flow(rows: Rows) -> list[tuple[int, Rows]]:
    order = np.argsort(rows.flow, kind="stable")
    rows = rows.take(order)
    starts = np.flatnonzero(np.diff(rows.flow, prepend=-1))
    ends = [*starts[1:].tolist(), len(rows)]
    return [
        (int(rows.flow[start]), rows.take(slice(start, end)))
        for start, end in zip(starts.tolist(), ends, strict=True)
    ]
