"""The packets of several streams by queue pair, for a closed-loop sender.

A sender that waits for one queue pair, goes back in it or reduces its rate must not delay the
others. So each queue pair has its own packets and its share of the rate and of the count. The
packets are the same bytes as in the common cycle, except random values and packet counters,
which each queue pair has for itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ibwire.base.errors import EncodeError
from ibwire.rc.device import gid_of
from ibwire.traffic.blocks import Block
from ibwire.traffic.builder import MAXIMUM_RING, Builder
from ibwire.traffic.cycle import Cycle, Numbers
from ibwire.traffic.pace import Pace, Unit
from ibwire.traffic.stream import Stream, Verb
from ibwire_layers.opcodes import Service

MAXIMUM_QUEUE_PAIRS = 1024


@dataclass(frozen=True, slots=True)
class QueuePairTraffic:
    """The packets of one queue pair, and what is needed to match responses to them."""

    peer: int
    """GID that its packets go to and responses come from."""
    qpn: int
    """Destination QP number."""
    src_qpn: int
    """Own QP number, which responses go to."""
    psn: int
    """Of its first packet."""
    step: int
    """PSNs that each packet uses; 0: the packets have no order."""
    message: int
    """Packets of a message."""
    period: int
    """Every `period`-th packet requests an acknowledgement; 0: none does."""
    is_answered: bool
    """Whether each packet is acknowledged by its own response only, as READs and atomics are."""
    share: float
    """Fraction of the packets of all streams."""
    count: int | None
    """Packets; `None`: endless."""
    pace: Pace | None
    """Its share of the rate; `None`: as fast as possible."""
    length: int
    """Mean bytes of a frame."""
    stream: Stream
    """The stream reduced to this queue pair."""
    seed: int
    room: int

    def blocks(self, size: int) -> Iterator[Block]:
        """Its packets from the first on, endless, at most `size` in a block."""
        return Builder([self.stream], seed=self.seed, room=self.room).blocks(size)


def split_by_queue_pair(
    streams: Sequence[Stream], builder: Builder, *, count: int | None, pace: Pace | None, seed: int
) -> list[QueuePairTraffic]:
    """The queue pairs of streams, in the order of their first packets.

    count, pace: of all queue pairs together. Raises `EncodeError` for two with the same own QP
    number towards the same address, whose responses could not be distinguished.
    """
    cycle = builder.cycle
    first, turns = _members(cycle)
    if len(first) > MAXIMUM_QUEUE_PAIRS:
        expected = f"at most {MAXIMUM_QUEUE_PAIRS} that wait for responses"
        raise EncodeError("qpn", len(first), expected)
    sizes = np.array([len(layout.frame) for layout, _ in builder.layouts], np.int64)[cycle.layout]
    packets = np.bincount(turns)
    octets = np.bincount(turns, sizes)
    parts = packets if pace is None or pace.unit is Unit.PACKETS else octets
    limits = packets_by_queue_pair(cycle, count) if count is not None else [None] * len(first)
    found: list[QueuePairTraffic] = []
    taken: set[tuple[int, int]] = set()
    for number, slot in enumerate(first.tolist()):
        stream = streams[cycle.stream[slot]]
        qpn, src_qpn = int(cycle.qpn[slot]), int(cycle.src_qpn[slot])
        peer = gid_of(stream.dst)
        if (peer, src_qpn) in taken:
            expected = f"used once towards {stream.dst}, so that responses can be told apart"
            raise EncodeError("src_qpn", hex(src_qpn), expected)
        taken.add((peer, src_qpn))
        found.append(
            QueuePairTraffic(
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
                pace=None if pace is None else _scaled(pace, parts[number] / parts.sum()),
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


def packets_by_queue_pair(cycle: Cycle, count: int) -> list[int]:
    """How many of the first `count` packets belong to each queue pair."""
    first, turns = _members(cycle)
    rounds, rest = divmod(count, len(cycle))
    of_round = np.bincount(turns)
    of_rest = np.bincount(turns[:rest], minlength=len(first))
    return [int(each) for each in rounds * of_round + of_rest]


def _members(cycle: Cycle) -> tuple[Numbers, Numbers]:
    """The first slot of each queue pair, in order, and the queue pair of every slot."""
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


def _scaled(pace: Pace, part: float) -> Pace:
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
