"""The order in which the packets of several streams are sent: a cycle that repeats.

Queue pairs take turns, spread evenly by their weights; the cycle ends when each has
sent its share. A packet of the cycle is a *slot*. A field value in the n-th repetition of
a slot is its first value plus n times the increase per cycle.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import gcd, lcm

import numpy as np
import numpy.typing as npt

from ibwire.base.errors import EncodeError
from ibwire.rc.device import datagram_source_port, flow_label_of, flow_source_port
from ibwire.traffic.stream import PortRule, Stream
from ibwire_layers.opcodes import Service

Numbers = npt.NDArray[np.int64]

MAXIMUM_SLOTS = 1 << 18
"""Packets of a cycle, as many as a message of 1 GiB has at a path MTU of 4096. Each takes some
300 bytes of memory in addition to its frame."""


class Turn(StrEnum):
    """What a queue pair sends before the next one takes its turn."""

    MESSAGE = "message"
    PACKET = "packet"


@dataclass(frozen=True, slots=True)
class Cycle:
    """The slots of a cycle; all arrays have one row per slot."""

    layout: Numbers
    """Index into the packet layouts of all streams, one stream after the other."""
    stream: Numbers
    qpn: Numbers
    src_qpn: Numbers
    src_port: Numbers
    ordinal: Numbers
    """Number of the packet in its queue pair, from 0; `_step` is the increase per cycle."""
    ordinal_step: Numbers
    count: Numbers
    """Number of the packet in its stream, from 0."""
    count_step: Numbers
    message: Numbers
    message_step: Numbers
    psn: Numbers
    """Not reduced modulo 2^24."""
    psn_step: Numbers

    def __len__(self) -> int:
        return len(self.layout)


def make_cycle(streams: Sequence[Stream], turn: Turn = Turn.MESSAGE, *, seed: int = 0) -> Cycle:
    """The cycle of several streams; `EncodeError` for weights that make it too long.

    seed: of random source ports.
    """
    owner = np.repeat(np.arange(len(streams)), [len(each.qpns) for each in streams])
    packets = _each(streams, lambda stream: stream.packets)[owner]
    shares = _shares(streams, owner, packets)
    pair, ordinal = _turns(shares, packets, turn)
    stream = owner[pair]
    message = ordinal // packets[pair]
    index = ordinal - message * packets[pair]
    psns = _each(streams, lambda stream: stream.psns)[stream]
    count, in_stream = _numbered(stream, len(streams))
    return Cycle(
        layout=_layouts(streams, stream, index, ordinal),
        stream=stream,
        qpn=_all(streams, _qpns)[pair],
        src_qpn=_all(streams, _src_qpns)[pair],
        src_port=_ports(streams, seed)[pair],
        ordinal=ordinal,
        ordinal_step=(shares * packets)[pair],
        count=count,
        count_step=in_stream[stream],
        message=message,
        message_step=shares[pair],
        psn=_each(streams, lambda stream: stream.psn)[stream] + message * psns + index,
        psn_step=shares[pair] * psns,
    )


def _shares(streams: Sequence[Stream], owner: Numbers, packets: Numbers) -> Numbers:
    """Messages of each queue pair in a cycle.

    owner: (n,) stream of each queue pair. packets: (n,) packets of each of its messages.
    """
    for each in streams:
        if each.packets > MAXIMUM_SLOTS:
            expected = f"at most {MAXIMUM_SLOTS} packets at path MTU {each.mtu}"
            raise EncodeError("size", each.size, expected)
    shares = _smallest(streams)
    # The same packets must have overridden fields in every repetition.
    every = _each(streams, lambda stream: stream.fields_every)[owner]
    repeats = lcm(*(every // np.gcd(every, shares * packets)).tolist())
    _check_length(int((shares * packets).sum()) * repeats)
    return shares * repeats


def _turns(shares: Numbers, packets: Numbers, turn: Turn) -> tuple[Numbers, Numbers]:
    """Queue pair of each slot, and the number of the packet in its queue pair."""
    if turn is Turn.PACKET:
        shares, packets = shares * packets, np.ones_like(packets)
    pair, number = np.repeat(np.arange(len(shares)), shares), _ranks(shares)
    # The j-th of n turns comes at (2j + 1) / 2n of the cycle; ties are kept in order.
    order = np.lexsort((pair, (2 * number + 1) / (2 * shares[pair])))
    pair, number = pair[order], number[order]
    lengths = packets[pair]
    return np.repeat(pair, lengths), np.repeat(number * lengths, lengths) + _ranks(lengths)


def _layouts(
    streams: Sequence[Stream], stream: Numbers, index: Numbers, ordinal: Numbers
) -> Numbers:
    """The packet layout of each slot.

    index: (n,) number of the packet in its message. ordinal: among those of its queue pair.
    """
    counts = _each(streams, lambda stream: stream.layouts)
    packets = _each(streams, lambda stream: stream.packets)[stream]
    every = _each(streams, lambda stream: stream.fields_every)[stream]
    ends = np.minimum(packets, 3)
    position = np.where(index == packets - 1, ends - 1, np.minimum(index, 1))
    # Layouts with overridden fields come after the correct ones, if there are any.
    is_wrong = (every > 1) & (ordinal % every == every - 1)
    found: Numbers = (np.cumsum(counts) - counts)[stream] + position + np.where(is_wrong, ends, 0)
    return found


def _smallest(streams: Sequence[Stream]) -> Numbers:
    """Messages of each queue pair: the smallest numbers in the proportion of the weights."""
    weights = [each.weight // gcd(*(other.weight for other in streams)) for each in streams]
    wholes = [sum(weight for _, weight in stream.qpns) for stream in streams]
    # The messages of a stream must be a multiple of this for whole numbers per queue pair.
    divisors = []
    for stream, whole in zip(streams, wholes, strict=True):
        divisors.append(whole // gcd(*(weight for _, weight in stream.qpns)))
    common = lcm(
        *(part // gcd(part, weight) for part, weight in zip(divisors, weights, strict=True))
    )
    _check_length(common * sum(weights))
    shares = [
        common * messages * weight // whole
        for stream, messages, whole in zip(streams, weights, wholes, strict=True)
        for _, weight in stream.qpns
    ]
    return np.array(shares, np.int64) // gcd(*shares)


def _check_length(slots: int) -> None:
    if slots > MAXIMUM_SLOTS:
        expected = f"weights that fit a cycle of {MAXIMUM_SLOTS} packets"
        raise EncodeError("weight", f"a cycle of {slots} packets", expected)


def _ranks(lengths: Numbers) -> Numbers:
    """0, 1, ... for each of the lengths, one after the other."""
    starts = np.cumsum(lengths) - lengths
    return np.arange(int(lengths.sum()), dtype=np.int64) - np.repeat(starts, lengths)


def _numbered(group: Numbers, groups: int) -> tuple[Numbers, Numbers]:
    """The number of each row within its group, from 0, and the size of each group."""
    sizes = np.bincount(group, minlength=groups).astype(np.int64)
    numbers = np.empty(len(group), np.int64)
    numbers[np.argsort(group, kind="stable")] = _ranks(sizes)
    return numbers, sizes


def _each(streams: Sequence[Stream], of: Callable[[Stream], int]) -> Numbers:
    return np.array([of(stream) for stream in streams], np.int64)


def _all(streams: Sequence[Stream], of: Callable[[Stream], list[int]]) -> Numbers:
    return np.array([each for stream in streams for each in of(stream)], np.int64)


def _qpns(stream: Stream) -> list[int]:
    return [qpn for qpn, _ in stream.qpns]


def _src_qpns(stream: Stream) -> list[int]:
    if stream.src_qpn is None:
        return _qpns(stream)
    return list(range(stream.src_qpn, stream.src_qpn + len(stream.qpns)))


def _ports(streams: Sequence[Stream], seed: int) -> Numbers:
    draw = random.Random(f"{seed}/source ports")
    return _all(
        streams,
        lambda stream: [
            _port(stream, own, qpn, draw)
            for own, qpn in zip(_src_qpns(stream), _qpns(stream), strict=True)
        ],
    )


def _port(stream: Stream, own: int, qpn: int, draw: random.Random) -> int:
    if stream.src_port is PortRule.RANDOM:
        return draw.randrange(0xC000, 0x10000)
    if stream.src_port is PortRule.QPN:
        return own & 0xFFFF
    if stream.src_port is PortRule.FLOW:
        if stream.service is Service.UD:
            return datagram_source_port(own)
        return flow_source_port(flow_label_of(own, qpn))
    return int(stream.src_port)
