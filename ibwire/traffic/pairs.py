"""The packets of a mix by queue pair: what a sender needs that waits for answers.

In a mix everything has its place; a sender that waits for one queue pair, goes back in it or
slows it down must not hold up the others. So each has its packets, its part of the rate
and of the count for itself. They are those of the mix, byte for byte, but that what is drawn
at random, and what counts packets, is so for each queue pair alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ibwire.base.errors import EncodeError
from ibwire.rc.device import gid_of
from ibwire.traffic.blocks import Block
from ibwire.traffic.build import MAXIMUM_RING, Builder
from ibwire.traffic.cycle import Cycle, Numbers
from ibwire.traffic.model import Stream, Verb
from ibwire.traffic.pace import Pace, Unit
from ibwire_layers.opcodes import Service

MAXIMUM_PAIRS = 1024


@dataclass(frozen=True, slots=True)
class Pair:
    """A queue pair of ours, as far as its packets and their answers go."""

    peer: int
    """GID that its packets go to and answers come from."""
    qpn: int
    """Where they go."""
    src_qpn: int
    """Where answers go."""
    psn: int
    """Of its first packet."""
    step: int
    """PSNs that each packet takes; 0: they have no order."""
    message: int
    """Packets of a message."""
    period: int
    """Each so-many-th packet asks for an answer; 0: none does."""
    is_answered: bool
    """Whether each packet has an answer of its own, which no other can stand for."""
    share: float
    """Part of the packets of the mix."""
    count: int | None
    """Packets; `None`: without end."""
    pace: Pace | None
    """Its part of the rate."""
    length: int
    """Bytes of a frame, on average."""
    stream: Stream
    """The same, alone."""
    seed: int
    room: int

    def blocks(self, size: int) -> Iterator[Block]:
        """Its packets from the first on, without end, at most `size` in a block."""
        return Builder([self.stream], seed=self.seed, room=self.room).blocks(size)


def pairs(
    streams: Sequence[Stream], builder: Builder, *, count: int | None, pace: Pace | None, seed: int
) -> list[Pair]:
    """The queue pairs of a mix, in the order in which they have their first turn.

    count, pace: of the whole. Raises `EncodeError` for two with the same number towards the
    same address: nobody could tell their answers apart.
    """
    cycle = builder.cycle
    first, turns = _members(cycle)
    if len(first) > MAXIMUM_PAIRS:
        raise EncodeError("qpn", len(first), f"at most {MAXIMUM_PAIRS} that wait for answers")
    sizes = np.array([len(kind.frame) for kind, _ in builder.kinds], np.int64)[cycle.kind]
    packets = np.bincount(turns)
    octets = np.bincount(turns, sizes)
    parts = packets if pace is None or pace.unit is Unit.PACKETS else octets
    limits = counts(cycle, count) if count is not None else [None] * len(first)
    found: list[Pair] = []
    taken: set[tuple[int, int]] = set()
    for number, slot in enumerate(first.tolist()):
        stream = streams[cycle.stream[slot]]
        qpn, src_qpn = int(cycle.qpn[slot]), int(cycle.src_qpn[slot])
        peer = gid_of(stream.dst)
        if (peer, src_qpn) in taken:
            expected = f"given once towards {stream.dst}, to tell answers apart"
            raise EncodeError("src_qpn", hex(src_qpn), expected)
        taken.add((peer, src_qpn))
        found.append(
            Pair(
                peer=peer,
                qpn=qpn,
                src_qpn=src_qpn,
                psn=stream.psn,
                step=stream.psns // stream.packets,
                message=stream.packets,
                period=_period(stream),
                is_answered=stream.verb in _ANSWERED,
                share=packets[number] / len(cycle),
                count=limits[number],
                pace=None if pace is None else _part(pace, parts[number] / parts.sum()),
                length=round(octets[number] / packets[number]),
                stream=replace(
                    stream,
                    qpns=((qpn, 1),),
                    src_qpn=src_qpn,
                    src_port=int(cycle.src_port[slot]),
                    weight=1,
                ),
                seed=(seed + number) % (1 << 63),
                room=MAXIMUM_RING // len(first),
            )
        )
    return found


def counts(cycle: Cycle, count: int) -> list[int]:
    """How many of the first so many packets belong to each queue pair."""
    first, turns = _members(cycle)
    rounds, rest = divmod(count, len(cycle))
    of_round = np.bincount(turns)
    of_rest = np.bincount(turns[:rest], minlength=len(first))
    return [int(each) for each in rounds * of_round + of_rest]


def _members(cycle: Cycle) -> tuple[Numbers, Numbers]:
    """The first slot of each queue pair, in order, and the number of that of every slot."""
    names = cycle.stream << 24 | cycle.qpn
    _, first, inverse = np.unique(names, return_index=True, return_inverse=True)
    order = np.argsort(first)
    ranks = np.empty_like(order)
    ranks[order] = np.arange(len(order))
    return first[order], ranks[inverse]


def _period(stream: Stream) -> int:
    if stream.service is not Service.RC or stream.verb in (Verb.ACK, Verb.CNP):
        return 0
    if stream.verb in _ANSWERED:
        return 1
    return stream.packets if stream.ack_every is None else stream.ack_every


def _part(pace: Pace, part: float) -> Pace:
    phases = tuple(
        replace(
            each,
            rate=each.rate * part,
            end_rate=None if each.end_rate is None else each.end_rate * part,
            burst=each.burst * part,
        )
        for each in pace.phases
    )
    return replace(pace, phases=phases)


_ANSWERED = frozenset({Verb.READ, Verb.CAS, Verb.FADD})
