"""A whole order: which streams, how fast, and when it is over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ibwire.base.errors import EncodeError
from ibwire.base.units import NS, Time
from ibwire.traffic.blocks import Block, Template
from ibwire.traffic.build import Builder
from ibwire.traffic.cycle import Turn
from ibwire.traffic.model import Stream
from ibwire.traffic.pace import Pace
from ibwire.traffic.pairs import Pair, counts, pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """A `Source` of the packets of streams; a value that cannot be is an `EncodeError`."""

    streams: tuple[Stream, ...]
    count: int | None = None
    """Packets in all."""
    time: Time | None = None
    """From the first packet on; who sends them tells when it is over."""
    pace: Pace | None = None
    """`None`: as fast as the sender can."""
    turn: Turn = Turn.MESSAGE
    """Whether queue pairs take turns by message or by packet."""
    seed: int = 0
    """Of everything random."""
    final: Sequence[bytes] = ()
    _builder: Builder = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.streams:
            raise EncodeError("stream", (), "one or more")
        if self.count is None and self.time is None:
            raise EncodeError("count", None, "a limit, and neither is time: one of them is a must")
        if self.count is not None and not 1 <= self.count <= 1 << 48:
            raise EncodeError("count", self.count, "a number of packets, 1 or more")
        if self.time is not None and self.time < NS:
            raise EncodeError("time", self.time, "a nanosecond or more")
        if not 0 <= self.seed < 1 << 63:
            raise EncodeError("seed", self.seed, "a number from 0 to 2^63 - 1")
        builder = Builder(self.streams, turn=self.turn, seed=self.seed)
        object.__setattr__(self, "_builder", builder)

    def blocks(self, size: int) -> Iterator[Block]:
        """All packets from the first on, `count` of them if there is one."""
        left = self.count
        for frames, lengths in self._builder.blocks(size):
            if left is not None and left <= len(frames):
                yield Block(frames[:left], lengths[:left])
                return
            yield Block(frames, lengths)
            if left is not None:
                left -= len(frames)

    def templates(self) -> list[Template] | None:
        """The cycle for who numbers packets itself; `None` if more changes than the PSN."""
        return self._builder.templates()

    def pairs(self) -> list[Pair]:
        """The same packets by queue pair; `EncodeError` if answers could not be told apart."""
        return pairs(self.streams, self._builder, count=self.count, pace=self.pace, seed=self.seed)

    def counts(self, count: int) -> list[int]:
        """How many of the first so many packets belong to each of `pairs`."""
        return counts(self._builder.cycle, count)
