"""Finds the two flows that are the two directions of one connection.

Packets of a reliable connection name their destination queue pair and not their
source. Two flows between the same ends belong together when one answers the other:
its responses name PSNs of requests that the other had sent before. Where several
fit, the UDP source port decides (rxe has one for both directions); where a handshake
was captured, that decides first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from ibwire.connections.flow import FlowKey
from ibwire.connections.opcode_sets import ACKNOWLEDGE, ANSWERED, RESPONSES
from ibwire.connections.packets import Rows, TransportPacket
from ibwire_layers.opcodes import OpCode
from ibwire_layers.psn import distance

PAIRINGS = {
    "named": "every packet names both queue pairs",
    "handshake": "a handshake of the connection manager or of the programs names both queue pairs",
    "responses": "the responses of one direction name PSNs of the other, and of no other flow",
    "port": "several flows fit by their PSNs, and only this one by its UDP source port",
    "guess": "several flows fit equally, or the PSNs are only close",
    "none": "no packet was seen in the other direction",
}
"""Evidence that two directions belong together, best first."""

INDEXED = 64
"""Requests of a flow to which responses are matched."""
ASKED = 16
"""Responses of a flow that are matched."""
RIVALS = 4
"""Flows that are considered for each response: those with the newest requests before it."""
NEAR = 4096
"""Largest distance in PSNs of a response from the nearest request: a NAK of a lost packet."""
CANDIDATES = 64
"""With this many flows between two ends none is chosen by its distance."""


class Candidate(NamedTuple):
    """A flow that waits for its other direction."""

    flow: int
    key: FlowKey
    requests: Sequence[TransportPacket]
    """Some of those seen so far, the oldest first."""
    responses: Sequence[TransportPacket]

    @property
    def port(self) -> int:
        """UDP source port."""
        first = (*self.requests[:1], *self.responses[:1])
        return first[0].port if first else 0


class Pair(NamedTuple):
    """Two flows of one connection."""

    one: int
    other: int
    how: str
    """One of `PAIRINGS`."""


def candidate(flow: int, key: FlowKey, rows: Rows) -> Candidate:
    """A flow with its first packets."""
    if len(rows) <= INDEXED:
        good = [packet for packet in rows.packets() if not packet.damaged]
        asked = [p for p in good if p.opcode not in RESPONSES and p.opcode != OpCode.CNP]
        return Candidate(flow, key, asked, [p for p in good if p.opcode in RESPONSES][:ASKED])
    is_response = _IS_RESPONSE[rows.opcode]
    requests = np.flatnonzero(~is_response & (rows.opcode != OpCode.CNP) & ~rows.damaged)
    responses = np.flatnonzero(is_response & ~rows.damaged)
    return Candidate(
        flow, key, rows.take(requests[:INDEXED]).packets(), rows.take(responses[:ASKED]).packets()
    )


_IS_RESPONSE = np.isin(np.arange(256), list(RESPONSES))


def pair(waiting: Sequence[Candidate], handshakes: dict[FlowKey, int]) -> list[Pair]:
    """Flows that belong together.

    handshakes: the sender's QPN by flow, where a handshake names it.
    """
    pairs = [*_by_name(waiting), *_by_handshake(waiting, handshakes)]
    paired = {flow for each in pairs for flow in each[:2]}
    left = [
        each
        for each in waiting
        if each.flow not in paired and each.key not in handshakes and each.key.src_qpn is None
    ]
    return pairs + _by_answers(left)


def _by_name(waiting: Sequence[Candidate]) -> Iterable[Pair]:
    """Datagrams name both queue pairs (DETH)."""
    flows = {each.key: each.flow for each in waiting if each.key.src_qpn is not None}
    for (src, dst, dst_qpn, service, src_qpn), flow in flows.items():
        if src_qpn is not None:
            other = flows.get(FlowKey(dst, src, src_qpn, service, dst_qpn))
            if other is not None and flow < other:
                yield Pair(flow, other, "named")


def _by_handshake(waiting: Sequence[Candidate], handshakes: dict[FlowKey, int]) -> Iterable[Pair]:
    flows = {each.key: each.flow for each in waiting}
    for key, flow in flows.items():
        src_qpn = handshakes.get(key)
        if src_qpn is not None:
            other = flows.get(FlowKey(key.dst, key.src, src_qpn, key.service))
            if other is not None and flow < other:
                yield Pair(flow, other, "handshake")


def _by_answers(waiting: Sequence[Candidate]) -> list[Pair]:
    asked = _Requests(waiting)
    possible = [wish for each in waiting if each.responses for wish in asked.possible(each)]
    return _best(possible)


class _Possible(NamedTuple):
    """A possible pair; the smaller, the more certain."""

    doubt: int
    """Index of its evidence in `PAIRINGS`."""
    missed: int
    """How many of `ASKED` responses do not fit the requests of the other flow."""
    distance: int
    """Packets between requests and responses in all: of equal PSNs the nearest is likely."""
    pair: Pair


class _Requests:
    """The requests of all flows that wait, by what their responses have."""

    def __init__(self, waiting: Sequence[Candidate]) -> None:
        self._by_ends: dict[tuple[str, str], list[Candidate]] = {}
        self._found: dict[_Token, list[tuple[_PacketPlace, int]]] = {}
        for each in waiting:
            ends = each.key.src, each.key.dst
            self._by_ends.setdefault(ends, []).append(each)
            for packet in each.requests:
                found = (packet.file, packet.number), each.flow
                for port in (packet.port, None):
                    token = *ends, port, packet.opcode in ANSWERED, packet.psn
                    self._found.setdefault(token, []).append(found)
        for places in self._found.values():
            places.sort()

    def possible(self, each: Candidate) -> list[_Possible]:
        """The possible pairs of a flow with responses."""
        of_port, of_any = self._scores(each, each.port), self._scores(each, None)
        if len(of_any) == 1:
            return self._ranked(each, of_any, "responses")
        if len(of_port) == 1:
            return self._ranked(each, of_port, "port")
        if of_any:
            return self._ranked(each, of_port or of_any, "guess")
        return [
            _Possible(_ORDER["guess"], ASKED, 0, Pair(each.flow, asker.flow, "guess"))
            for asker in self._near(each)
        ]

    def _scores(self, each: Candidate, port: int | None) -> dict[int, tuple[int, int]]:
        """Flow -> how many of its requests are answered, and their distance in all."""
        scores: dict[int, tuple[int, int]] = {}
        for packet in each.responses:
            token = each.key.dst, each.key.src, port, packet.opcode not in ACKNOWLEDGE, packet.psn
            places = self._found.get(token, ())
            at = bisect_left(places, ((packet.file, packet.number), -1))
            for (file, number), flow in places[max(0, at - RIVALS) : at]:
                count, distance = scores.get(flow, (0, 0))
                far = packet.number - number if file == packet.file else NEAR
                scores[flow] = count + 1, distance + far
        return scores

    def _ranked(
        self, each: Candidate, scores: dict[int, tuple[int, int]], how: str
    ) -> list[_Possible]:
        return [
            _Possible(_ORDER[how], ASKED - count, distance, Pair(each.flow, flow, how))
            for flow, (count, distance) in scores.items()
        ]

    def _near(self, each: Candidate) -> list[Candidate]:
        """Flows that may be answered although no request of theirs has the PSN of a response."""
        psn = each.responses[0].psn
        askers = self._by_ends.get((each.key.dst, each.key.src), [])
        if len(askers) > CANDIDATES:
            return []
        near = [
            asker
            for asker in askers
            if asker.requests and abs(distance(asker.requests[-1].psn, psn)) <= NEAR
        ]
        return [asker for asker in near if asker.port == each.port] or near


_PacketPlace = tuple[int, int]
"""File and number of a packet."""
_Token = tuple[str, str, int | None, bool, int]
"""Requester, responder, UDP source port (`None`: any), whether it is a READ or atomic, PSN."""
_ORDER = {how: index for index, how in enumerate(PAIRINGS)}


def _best(possible: list[_Possible]) -> list[Pair]:
    """The best pairs, each flow in one of them."""
    taken: set[int] = set()
    pairs = []
    for _, _, _, wish in sorted(possible):
        if wish.one not in taken and wish.other not in taken and wish.one != wish.other:
            taken |= {wish.one, wish.other}
            pairs.append(wish)
    return pairs
