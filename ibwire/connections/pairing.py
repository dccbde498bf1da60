"""Finds the two flows that are the two directions of one connection.

Packets of a reliable connection name their destination queue pair and not their
source. Two flows between the same ends belong together when one answers the other:
its responses name PSNs of requests that the other had sent before. Where several
fit, the UDP source port decides (rxe has one for both directions); where a handshake
was captured, that decides first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ibwire.base.membership import are_among
from ibwire.connections.flow import FlowKey, FlowKeys
from ibwire.connections.opcode_sets import ACKNOWLEDGE, ANSWERED, ATOMIC, RESPONSES
from ibwire.connections.packets import Rows
from ibwire_layers.opcodes import OpCode, Service
from ibwire_layers.psn import HALF, MASK

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
"""Requests of a flow to which responses are matched: the first ones."""
ASKED = 16
"""Responses of a flow that are matched: the first ones."""
RIVALS = 4
"""Flows that are considered for each response: those with the newest requests before it."""
NEAR = 4096
"""Largest distance in PSNs of a response from the nearest request: a NAK of a lost packet."""
CANDIDATES = 64
"""With this many flows between two ends none is chosen by its distance."""

Index = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Pair(NamedTuple):
    """Two flows of one connection."""

    one: int
    other: int
    how: str
    """One of `PAIRINGS`."""


def pair(keys: FlowKeys, rows: Rows, handshakes: Mapping[FlowKey, int | None]) -> list[Pair]:
    """Flows that belong together.

    keys: of the flows, by number. rows: packets of the flows that wait for their other direction,
    in the order of the capture. handshakes: the sender's QPN by flow, where a handshake names it.
    """
    flows = np.flatnonzero(np.bincount(rows.flow))
    flows = flows[~keys.are_of(Service.UC, flows)]
    pairs: list[Pair] = []
    is_named = keys.are_named(flows)
    left = flows[~is_named]
    if handshakes or is_named.any():
        key_of = {flow: keys[flow] for flow in flows.tolist()}
        waiting = {key: flow for flow, key in key_of.items()}
        pairs += [*_by_name(waiting), *_by_handshake(waiting, handshakes)]
        done = {flow for each in pairs for flow in each[:2]}
        done |= {flow for flow, key in key_of.items() if key in handshakes}
        left = np.array([flow for flow in left.tolist() if flow not in done], np.int64)
    if len(left) and _IS_RESPONSE[rows.opcode].any():
        pairs += _Answers(keys, left, rows).pairs()
    return pairs


def _by_name(waiting: Mapping[FlowKey, int]) -> Iterator[Pair]:
    """Datagrams name both queue pairs (DETH)."""
    for (src, dst, dst_qpn, service, src_qpn), flow in waiting.items():
        if src_qpn is not None:
            other = waiting.get(FlowKey(dst, src, src_qpn, service, dst_qpn))
            if other is not None and flow < other:
                yield Pair(flow, other, "named")


def _by_handshake(
    waiting: Mapping[FlowKey, int], handshakes: Mapping[FlowKey, int | None]
) -> Iterator[Pair]:
    for key, flow in waiting.items():
        src_qpn = handshakes.get(key)
        if src_qpn is not None:
            other = waiting.get(FlowKey(key.dst, key.src, src_qpn, key.service))
            if other is not None and flow < other:
                yield Pair(flow, other, "handshake")


class _Scores(NamedTuple):
    """Flows with responses, and what speaks for each flow whose requests they may answer."""

    one: Index
    """(n,) flow with responses."""
    other: Index
    """(n,) flow with requests."""
    answered: Index
    """(n,) how often a response fits a request."""
    distance: Index
    """(n,) packets between those in all: of equal PSNs the nearest is likely."""

    def take(self, which: Flags) -> _Scores:
        """Some of them."""
        return _Scores(*(each[which] for each in self))


class _Answers:
    """The responses of flows that wait, and the requests that they may answer.

    keys, rows: as for `pair`. flows: those that are paired by their PSNs.
    """

    def __init__(self, keys: FlowKeys, flows: Index, rows: Rows) -> None:
        self._rows = rows
        self._flow, self._psn = rows.flow.astype(np.int64), rows.psn.astype(np.int64)
        self._size = int(self._flow.max()) + 1
        self._there, self._back = (np.full(self._size, -1, np.int64) for _ in range(2))
        """(flows,) numbers of two ends and a service, in this and in the other direction."""
        self._there[flows], self._back[flows] = keys.ends(flows)
        at = np.flatnonzero(
            (self._there[self._flow] >= 0) & ~rows.damaged & (rows.opcode != OpCode.CNP)
        )
        at = at[np.argsort(self._flow[at], kind="stable")]
        is_response = _IS_RESPONSE[rows.opcode[at]]
        self._requests = self._first(at[~is_response], INDEXED)
        """Rows of the first requests, those of each flow together."""
        self._responses = self._first(at[is_response], ASKED)
        self._port = np.zeros(self._size, np.int64)
        """(flows,) UDP source port."""
        for each in (self._responses, self._requests):
            first = each[_rank(self._flow[each]) == 0]
            self._port[self._flow[first]] = rows.port[first]

    def _first(self, at: Index, most: int) -> Index:
        found: Index = at[_rank(self._flow[at]) < most]
        return found

    def pairs(self) -> list[Pair]:
        """The best pairs, each flow in one of them."""
        requests, responses = self._requests, self._responses
        opcode, flow = self._rows.opcode, self._flow
        asked = self._there[flow[requests]] << 26 | _KIND_OF_REQUEST[opcode[requests]] << 24
        asked |= self._psn[requests]
        wanted = self._back[flow[responses]] << 26 | _KIND_OF_ANSWER[opcode[responses]] << 24
        wanted |= self._psn[responses]
        of_any = self._scores(asked, wanted)
        odd = self._contradicted(of_any, asked, wanted)
        of_any = of_any.take(~are_among(self._pairs_of(of_any), odd))
        fits = np.bincount(of_any.one, minlength=self._size)
        """(flows,) how many others fit; so is the next."""
        several = fits[flow[responses]] > 1
        wanted = np.where(several, wanted << 16 | self._port[flow[responses]], -1)
        of_port = self._scores(asked << 16 | self._rows.port[requests], wanted)
        of_port = of_port.take(~are_among(self._pairs_of(of_port), odd))
        fits_port = np.bincount(of_port.one, minlength=self._size)
        is_guess = (fits > 1) & (fits_port == 0)
        return _best(
            {
                "responses": [of_any.take(fits[of_any.one] == 1)],
                "port": [of_port.take(fits_port[of_port.one] == 1)],
                "guess": [
                    of_port.take(fits_port[of_port.one] > 1),
                    of_any.take(is_guess[of_any.one]),
                    self._near(fits == 0),
                ],
            }
        )

    def _contradicted(self, scores: _Scores, asked: Index, wanted: Index) -> Index:
        """Which of these pairs of flows have responses of another kind than was asked for.

        Only such with more of them than of the right kind, if no other flow fits. An ACK says
        nothing, as a NAK may have the PSN of any request.
        """
        kind = _KIND_OF_ANSWER[self._rows.opcode[self._responses]]
        pairs, answered = self._pairs_of(scores), scores.answered
        for other in (np.zeros_like(kind), 3 - kind):
            odd = self._scores(asked, np.where(kind > 0, wanted ^ (kind ^ other) << 24, -1))
            pairs = np.concatenate([pairs, self._pairs_of(odd)])
            answered = np.concatenate([answered, -odd.answered])
        distinct, place = np.unique(pairs, return_inverse=True)
        is_odd = np.bincount(place, answered < 0, len(distinct)) > 0
        fits = np.bincount(distinct[~is_odd] // self._size, minlength=self._size)
        is_odd &= (np.bincount(place, answered, len(distinct)) < 0) | (
            fits[distinct // self._size] > 0
        )
        return distinct[is_odd]

    def _pairs_of(self, scores: _Scores) -> Index:
        return scores.one * self._size + scores.other

    def _scores(self, asked: Index, wanted: Index) -> _Scores:
        """The newest requests before each response that have what it names.

        asked, wanted: (requests,) and (responses,) what they have and name; below 0 is nothing.
        """
        nothing = np.zeros(0, np.int64)
        is_named = are_among(asked, wanted)
        requests, asked = self._requests[is_named], asked[is_named]
        if not len(requests):
            return _Scores(nothing, nothing, nothing, nothing)
        tokens, token = np.unique(asked, return_inverse=True)
        rows = len(self._rows)
        place = token * rows + requests
        order = np.argsort(place)
        place, requests = place[order], requests[order]
        token = np.minimum(np.searchsorted(tokens, wanted), len(tokens) - 1)
        responses = self._responses[tokens[token] == wanted]
        token = token[tokens[token] == wanted] * rows
        begin, end = np.searchsorted(place, token), np.searchsorted(place, token + responses)
        chosen = [np.flatnonzero(end - back >= begin) for back in range(1, RIVALS + 1)]
        answer = np.concatenate([responses[each] for each in chosen])
        request = np.concatenate(
            [requests[end[each] - back] for back, each in enumerate(chosen, 1)]
        )
        file, number = self._rows.file, self._rows.number
        far = np.where(file[answer] == file[request], number[answer] - number[request], NEAR)
        both, place, count = np.unique(
            self._flow[answer] * self._size + self._flow[request],
            return_inverse=True,
            return_counts=True,
        )
        distance = np.bincount(place, far, len(both)).astype(np.int64)
        return _Scores(both // self._size, both % self._size, count, distance)

    def _near(self, is_alone: Flags) -> _Scores:
        """Flows that may be answered although no request of theirs has the PSN of a response.

        is_alone: (flows,) which look for such a one, as far as they have responses.
        """
        first = self._responses[_rank(self._flow[self._responses]) == 0]
        first = first[is_alone[self._flow[first]] & (self._back[self._flow[first]] >= 0)]
        last = self._requests[np.diff(self._flow[self._requests], append=-1) != 0]
        newest = np.full(self._size, -1, np.int64)
        newest[self._flow[last]] = self._psn[last]
        """(flows,) PSN of the newest request."""
        askers = np.argsort(self._there, kind="stable")
        there = self._there[askers]
        found = []
        begin, end = (
            np.searchsorted(there, self._back[self._flow[first]], side)
            for side in ("left", "right")
        )
        for row, start, stop in zip(first.tolist(), begin.tolist(), end.tolist(), strict=True):
            if not 0 < stop - start <= CANDIDATES:
                continue
            flow, others = self._flow[row], askers[start:stop]
            far = (newest[others] - self._psn[row] + HALF & MASK) - HALF
            near = others[(newest[others] >= 0) & (np.abs(far) <= NEAR)]
            of_port = near[self._port[near] == self._port[flow]]
            found += [(flow, other, 0, 0) for other in (of_port if len(of_port) else near).tolist()]
        return _Scores(*np.array(found, np.int64).reshape(-1, 4).T)


def _best(possible: Mapping[str, list[_Scores]]) -> list[Pair]:
    """The best pairs, each flow in one of them.

    possible: by evidence, the best first.
    """
    taken: set[int] = set()
    pairs = []
    for how, parts in possible.items():
        one, other, answered, distance = map(np.concatenate, zip(*parts, strict=True))
        order = np.lexsort((other, one, distance, -answered))
        for near, far in zip(one[order].tolist(), other[order].tolist(), strict=True):
            if near not in taken and far not in taken and near != far:
                taken |= {near, far}
                pairs.append(Pair(near, far, how))
    return pairs


def _rank(flow: Index) -> Index:
    """(n,) how many of the same flow are before each, of sorted ones."""
    return np.arange(len(flow)) - np.searchsorted(flow, flow)


_IS_RESPONSE, _IS_ACKNOWLEDGE, _IS_ANSWERED, _IS_ATOMIC = (
    np.isin(np.arange(256), list(opcodes)) for opcodes in (RESPONSES, ACKNOWLEDGE, ANSWERED, ATOMIC)
)
_KIND_OF_REQUEST = np.where(_IS_ATOMIC, 2, _IS_ANSWERED).astype(np.int64)
"""By opcode: 0 for requests that ACKs answer, 1 READ responses, 2 ATOMIC ACKNOWLEDGE."""
_KIND_OF_ANSWER = np.where(_IS_ATOMIC, 2, ~_IS_ACKNOWLEDGE).astype(np.int64)
"""The same by opcode of a response."""
