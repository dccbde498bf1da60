"""An injection: which streams are sent, how fast, and for how long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ibwire.base.errors import EncodeError, MissingValueError
from ibwire.base.units import NS, Time
from ibwire.traffic.blocks import Block, Template
from ibwire.traffic.builder import Builder
from ibwire.traffic.cycle import Turn
from ibwire.traffic.pace import Pace
from ibwire.traffic.queue_pairs import QueuePairTraffic, packets_by_queue_pair, split_by_queue_pair
from ibwire.traffic.stream import Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """A `Source` of the packets of streams; an invalid value raises `EncodeError`."""

    streams: tuple[Stream, ...]
    count: int | None = None
    """Packets of all streams together."""
    time: Time | None = None
    """Duration from the first packet on; the sender measures it."""
    pace: Pace | None = None
    """`None`: as fast as possible."""
    turn: Turn = Turn.MESSAGE
    """Whether queue pairs take turns by message or by packet."""
    seed: int = 0
    """Seed of all random values."""
    final: Sequence[bytes] = ()
    _builder: Builder = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.streams:
            raise EncodeError("stream", (), "one or more")
        if self.count is None and self.time is None:
            raise MissingValueError("count", "or time is required")
        if self.count is not None and not 1 <= self.count <= 1 << 48:
            raise EncodeError("count", self.count, "a number of packets, 1 or more")
        if self.time is not None and self.time < NS:
            raise EncodeError("time", self.time, "a nanosecond or more")
        if not 0 <= self.seed < 1 << 63:
            raise EncodeError("seed", self.seed, "a number from 0 to 2^63 - 1")
        builder = Builder(self.streams, turn=self.turn, seed=self.seed)
        object.__setattr__(self, "_builder", builder)

    def blocks(self, size: int) -> Iterator[Block]:
        """All packets from the first on, at most `count` of them."""
        left = self.count
        for frames, lengths in self._builder.blocks(size):
            if left is not None and left <= len(frames):
                yield Block(frames[:left], lengths[:left])
                return
            yield Block(frames, lengths)
            if left is not None:
                left -= len(frames)

    def templates(self) -> list[Template] | None:
        """The cycle, for a sender that numbers packets; `None` if more than PSNs change."""
        return self._builder.templates()

    def queue_pairs(self) -> list[QueuePairTraffic]:
        """The packets by queue pair; `EncodeError` if their responses cannot be distinguished."""
        return split_by_queue_pair(
            self.streams, self._builder, count=self.count, pace=self.pace, seed=self.seed
        )

    def packets_by_queue_pair(self, count: int) -> list[int]:
        """How many of the first `count` packets belong to each queue pair."""
        return packets_by_queue_pair(self._builder.cycle, count)
