"""Finds the two flows that are the two directions of one connection.

Packets of a reliable connection name their destination queue pair and not their
source. Two flows between the same ends belong together when one answers the other:
its responses name PSNs of requests that the other had sent before. Where several
fit, the UDP source port decides (rxe has one for both directions); where a handshake
was captured, that decides first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

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
    """Some of those seen so far, the oldest first: the first, the newest, and what is answered."""
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


def candidates(
    waiting: Sequence[tuple[int, FlowKey, Rows]], handshakes: Container[FlowKey] = ()
) -> list[Candidate]:
    """These flows with their first packets, as far as `pair` needs them.

    waiting: number, key and packets of each. handshakes: keys of flows that these name.
    """
    found = {flow: Candidate(flow, key, (), ()) for flow, key, _ in waiting}
    short = []
    for flow, key, rows in waiting:
        if key.src_qpn is not None or key in handshakes:
            continue  # their names are enough
        if len(rows) <= INDEXED:
            short.append((flow, key, rows))
            continue
        requests, responses = _kinds(rows)
        found[flow] = Candidate(
            flow,
            key,
            rows.take(requests[:INDEXED]).packets(),
            rows.take(responses[:ASKED]).packets(),
        )
    asked = {
        (each.key.dst, each.key.src, packet.opcode not in ACKNOWLEDGE, packet.psn)
        for each in found.values()
        for packet in each.responses
    }
    found.update((each.flow, each) for each in _short_candidates(short, asked))
    return list(found.values())


def _kinds(rows: Rows) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Positions of requests and of responses."""
    is_response = _IS_RESPONSE[rows.opcode]
    is_request = ~is_response & (rows.opcode != OpCode.CNP)
    return np.flatnonzero(is_request & ~rows.damaged), np.flatnonzero(is_response & ~rows.damaged)


def _short_candidates(
    waiting: Sequence[tuple[int, FlowKey, Rows]], asked: Iterable[tuple[str, str, bool, int]]
) -> Iterator[Candidate]:
    """Flows with few packets: of their requests those that some response answers, and the ends.

    asked: what responses of other flows have.
    """
    if not waiting:
        return
    rows = Rows.concatenate([part for _, _, part in waiting])
    of_row = np.repeat(np.arange(len(waiting)), [len(part) for _, _, part in waiting])
    numbers: dict[tuple[str, str], int] = {}
    ways = [
        (numbers.setdefault((key.src, key.dst), len(numbers)), (key.dst, key.src))
        for _, key, _ in waiting
    ]
    there = np.array([number for number, _ in ways], np.int64)
    back = np.array([numbers.get(ends, -1) for _, ends in ways], np.int64)
    requests, responses = _kinds(rows)
    responses = responses[_rank(of_row[responses]) < ASKED]
    psn, opcode = rows.psn.astype(np.int64), rows.opcode
    wanted = back[of_row[responses]] << 25 | psn[responses]
    wanted |= ~_IS_ACKNOWLEDGE[opcode[responses]] * np.int64(1 << 24)
    others = [
        numbers[src, dst] << 25 | answered << 24 | number
        for src, dst, answered, number in asked
        if (src, dst) in numbers
    ]
    has = there[of_row[requests]] << 25 | psn[requests]
    has |= _IS_ANSWERED[opcode[requests]] * np.int64(1 << 24)
    flow = of_row[requests]
    is_end = np.diff(flow, prepend=-1) != 0
    is_end |= np.diff(flow, append=-1) != 0
    asked_for = np.concatenate([wanted, np.array(others, np.int64)])
    requests = requests[is_end | _are_among(has, asked_for)]
    places = np.arange(len(waiting) + 1)
    asks, answers = (rows.take(each).packets() for each in (requests, responses))
    starts = np.searchsorted(of_row[requests], places).tolist()
    begins = np.searchsorted(of_row[responses], places).tolist()
    for place, (number, key, _) in enumerate(waiting):
        yield Candidate(
            number,
            key,
            asks[starts[place] : starts[place + 1]],
            answers[begins[place] : begins[place + 1]],
        )


def _are_among(
    values: npt.NDArray[np.int64], others: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """(n,) which are among others; `np.isin` would import numpy.ma for many."""
    if not len(others):
        return np.zeros(len(values), np.bool_)
    others = np.sort(others)
    found: npt.NDArray[np.bool_]
    found = others[np.minimum(np.searchsorted(others, values), len(others) - 1)] == values
    return found


def _rank(flow: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """(n,) how many of the same flow are before each, of sorted ones."""
    return np.arange(len(flow)) - np.searchsorted(flow, flow)


_IS_RESPONSE, _IS_ACKNOWLEDGE, _IS_ANSWERED = (
    np.isin(np.arange(256), list(opcodes)) for opcodes in (RESPONSES, ACKNOWLEDGE, ANSWERED)
)


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
        answered = {
            (each.key.dst, each.key.src, packet.opcode not in ACKNOWLEDGE, packet.psn)
            for each in waiting
            for packet in each.responses
        }
        for each in waiting:
            ends = each.key.src, each.key.dst
            self._by_ends.setdefault(ends, []).append(each)
            for packet in each.requests:
                named = packet.opcode in ANSWERED, packet.psn
                if (*ends, *named) not in answered:
                    continue
                found = (packet.file, packet.number), each.flow
                for port in (packet.port, None):
                    self._found.setdefault((*ends, port, *named), []).append(found)
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
