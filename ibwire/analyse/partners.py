"""Which two flows are the two directions of one connection.

A reliable connection's packets name the queue pair they go to and not the one
they come from. Two flows between the same ends belong together when one answers
the other: its responses name PSNs that the other's requests had. Where several
fit, the UDP source port decides (rxe has one for both directions); where a
connection manager or a program's own exchange was captured, that decides first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from ibwire.analyse.flow import FlowKey
from ibwire.analyse.half import RESPONSES
from ibwire.analyse.packets import Rows, Seen
from ibwire_layers.opcodes import OpCode
from ibwire_layers.psn import distance

PAIRINGS = {
    "named": "every packet names both queue pairs",
    "agreed": "a connection manager's exchange, or the programs' own, names both queue pairs",
    "answers": "one direction answers the PSNs of the other, and no other flow does",
    "port": "several flows fit by their PSNs, and this one by its UDP source port as well",
    "guess": "several flows fit alike, or the PSNs are only near",
    "none": "nothing was seen in the other direction",
}
"""How sure it is that two directions belong together, best first."""

INDEXED = 64
"""Requests of a flow by which answers to it are known."""
ASKED = 16
"""Responses of a flow that are looked up."""
NEAR = 4096
"""PSNs that a response without a request of its PSN may be away: a NAK of a lost packet."""
CANDIDATES = 64
"""Flows between two ends from which on none is chosen for being near."""


class Candidate(NamedTuple):
    """A flow that waits for its other direction."""

    flow: int
    key: FlowKey
    requests: Sequence[Seen]
    """Some of those seen so far, the oldest first."""
    responses: Sequence[Seen]

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
        good = [packet for packet in rows.seen() if not packet.damaged]
        asked = [p for p in good if p.opcode not in RESPONSES and p.opcode != OpCode.CNP]
        return Candidate(flow, key, asked, [p for p in good if p.opcode in RESPONSES][:ASKED])
    is_response = _IS_RESPONSE[rows.opcode]
    requests = np.flatnonzero(~is_response & (rows.opcode != OpCode.CNP) & ~rows.damaged)
    responses = np.flatnonzero(is_response & ~rows.damaged)
    return Candidate(
        flow, key, rows.take(requests[:INDEXED]).seen(), rows.take(responses[:ASKED]).seen()
    )


_IS_RESPONSE = np.isin(np.arange(256), list(RESPONSES))


def pair(waiting: Sequence[Candidate], agreed: dict[FlowKey, int]) -> list[Pair]:
    """Flows that belong together.

    agreed: the sender's QPN by flow, where somebody said it.
    """
    pairs = [*_by_name(waiting), *_by_agreement(waiting, agreed)]
    paired = {flow for each in pairs for flow in each[:2]}
    left = [
        each
        for each in waiting
        if each.flow not in paired and each.key not in agreed and each.key.src_qpn is None
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


def _by_agreement(waiting: Sequence[Candidate], agreed: dict[FlowKey, int]) -> Iterable[Pair]:
    flows = {each.key: each.flow for each in waiting}
    for key, flow in flows.items():
        src_qpn = agreed.get(key)
        if src_qpn is not None:
            other = flows.get(FlowKey(key.dst, key.src, src_qpn, key.service))
            if other is not None and flow < other:
                yield Pair(flow, other, "agreed")


def _by_answers(waiting: Sequence[Candidate]) -> list[Pair]:
    by_psn: dict[tuple[str, str, int], list[Candidate]] = {}
    by_ends: dict[tuple[str, str], list[Candidate]] = {}
    for each in waiting:
        ends = each.key.src, each.key.dst
        by_ends.setdefault(ends, []).append(each)
        for psn in {packet.psn for packet in each.requests}:
            by_psn.setdefault((*ends, psn), []).append(each)
    wishes = []
    for each in waiting:
        if each.responses:
            back = each.key.dst, each.key.src
            scores: dict[int, int] = {}
            askers: dict[int, Candidate] = {}
            for psn in {packet.psn for packet in each.responses}:
                for asker in by_psn.get((*back, psn), ()):
                    askers[asker.flow] = asker
                    scores[asker.flow] = scores.get(asker.flow, 0) + 1
            best = max(scores.values(), default=0)
            fitting = [askers[flow] for flow, score in scores.items() if score == best]
            wishes += _wishes(each, fitting or _near(each, by_ends.get(back, [])), best)
    return _first_come(wishes)


def _wishes(each: Candidate, fitting: list[Candidate], score: int) -> list[tuple[int, Pair]]:
    """The pairs that a flow could be in."""
    same_port = [asker for asker in fitting if asker.port == each.port]
    how = "guess"
    if len(fitting) == 1 and score:
        how = "answers"
    elif len(same_port) == 1 and score:
        how = "port"
    return [(score, Pair(each.flow, asker.flow, how)) for asker in same_port or fitting]


def _near(each: Candidate, askers: list[Candidate]) -> list[Candidate]:
    """Flows that may have asked although none of their requests has the PSN of a response."""
    psn = each.responses[0].psn
    if len(askers) > CANDIDATES:
        return []
    return [
        asker
        for asker in askers
        if asker.requests and abs(distance(asker.requests[-1].psn, psn)) <= NEAR
    ]


def _first_come(wishes: list[tuple[int, Pair]]) -> list[Pair]:
    """The pairs that contradict none better."""
    order = list(PAIRINGS)
    taken: set[int] = set()
    pairs = []
    for _, wish in sorted(wishes, key=lambda each: (order.index(each[1].how), -each[0], each[1])):
        if wish.one not in taken and wish.other not in taken and wish.one != wish.other:
            taken |= {wish.one, wish.other}
            pairs.append(wish)
    return pairs
