"""Builds the packets of streams in blocks, by writing columns of numbers into prepared frames.

A ring of frames holds the cycle, several times if it is short. From one
repetition to the next only a few fields change: they are computed for all rows at once,
and the ICRC follows from tables (`ibwire.traffic.icrc_tables`). A cycle that is larger than
the ring may be is copied from its layouts of packets again and again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from zlib import crc32 as _zlib_crc32

import numpy as np
import numpy.typing as npt

from ibwire.impair import MarkECN
from ibwire.traffic.blocks import Block, Template
from ibwire.traffic.cycle import Cycle, Numbers, Turn, make_cycle
from ibwire.traffic.icrc_tables import Words, change_table
from ibwire.traffic.layout import FieldColumn, PacketLayout, VaryingField, make_layouts
from ibwire.traffic.stream import Payload, Stream
from ibwire_layers import headers as h
from ibwire_layers import psn

try:
    from isal.isal_zlib import crc32
except ImportError:
    crc32 = _zlib_crc32

Frames = npt.NDArray[np.uint8]
Values = npt.NDArray[np.int64 | np.uint64]

MAXIMUM_RING = 1 << 25
"""Bytes of frames kept from one repetition to the next."""

BATCH = 4096
"""Rows computed at once: enough to make the cost of a NumPy call negligible."""

BATCH_BYTES = 1 << 21
"""Bytes of these rows: they stay in the processor's cache until they are sent, which makes sending
frames of 4 KiB 5 % faster."""

MAXIMUM_TEMPLATES = 4096
"""Packets of a cycle for a sender that numbers packets itself."""


class Builder:
    """The packets of several streams, endless.

    turn: whether queue pairs take turns by message or by packet. seed: of all random values.
    room: bytes of frames that are kept; less for one of many builders.
    """

    def __init__(
        self,
        streams: Sequence[Stream],
        *,
        turn: Turn = Turn.MESSAGE,
        seed: int = 0,
        room: int = MAXIMUM_RING,
    ) -> None:
        self.cycle = make_cycle(streams, turn, seed=seed)
        self.layouts = [(layout, stream) for stream in streams for layout in make_layouts(stream)]
        self.stride = max(len(layout.frame) for layout, _ in self.layouts)
        """Bytes of the longest frame."""
        self._seed = seed
        self._room = room
        drawn = [layout.payload_size for layout, of in self.layouts if of.payload is Payload.RANDOM]
        self._random_words = -(-max(drawn, default=0) // 8)
        self._is_marked = any(stream.ce for stream in streams)

    def blocks(self, size: int) -> Iterator[Block]:
        """All packets from the first on, at most `size` in a block.

        The frames of a block are overwritten by the next ones.
        """
        cycle = self.cycle
        batch = max(1, min(BATCH, min(self._room, BATCH_BYTES) // self.stride))
        repeated = max(1, batch // len(cycle))
        rows = repeated * len(cycle)
        keeps = rows * self.stride <= self._room
        ring = np.zeros((rows if keeps else min(batch, rows), self.stride), np.uint8)
        parts = []
        for start in range(0, rows, batch):
            stop = min(start + batch, rows)
            frames = ring[start:stop] if keeps else ring[: stop - start]
            parts.append(_Part(self, frames, start, repeated))
            if keeps:
                parts[-1].fill()
        # Raw numbers: what NumPy makes of a generator's numbers may change with its version.
        marks = np.random.PCG64((self._seed, 1))
        payloads = np.random.PCG64((self._seed, 2))
        turn = 0
        while True:
            for part in parts:
                count = len(part.frames)
                if not keeps:
                    part.fill()
                part.number(
                    turn,
                    marks.random_raw(count) if self._is_marked else None,
                    self._random(payloads, count) if self._random_words else None,
                )
                for first in range(0, count, size):
                    yield Block(
                        part.frames[first : first + size], part.lengths[first : first + size]
                    )
            turn += 1

    def templates(self) -> list[Template] | None:
        """The packets of the cycle, if only the PSN changes; `None` otherwise."""
        cycle = self.cycle
        if len(cycle) > MAXIMUM_TEMPLATES or self._is_marked or self._random_words:
            return None
        for layout, stream in self.layouts:
            moving = {column.field for column in layout.columns} - _STILL
            if moving != {VaryingField.PSN} or stream.ce_every:
                return None
        frames = np.zeros((len(cycle), self.stride), np.uint8)
        part = _Part(self, frames, 0, 1)
        part.fill()
        part.number(0, None, None)
        found = []
        steps = zip(frames, cycle.layout.tolist(), cycle.psn_step.tolist(), strict=True)
        for row, number, step in steps:
            layout, _ = self.layouts[number]
            (column,) = (each for each in layout.columns if each.field is VaryingField.PSN)
            tables = np.stack(_tables(layout, column))
            frame = row[: len(layout.frame)].tobytes()
            found.append(Template(frame, column.at, layout.icrc_at, step, tables))
        return found

    def _random(self, source: np.random.PCG64, count: int) -> Frames:
        words: npt.NDArray[np.uint64] = source.random_raw(count * self._random_words)
        return words.view(np.uint8).reshape(count, -1)


class _Part:
    """Consecutive rows of the ring."""

    def __init__(self, builder: Builder, frames: Frames, start: int, repeated: int) -> None:
        """repeated: how many cycles the ring holds."""
        self.frames = frames
        cycle = builder.cycle
        places = np.arange(start, start + len(frames))
        repetition, slot = np.divmod(places, len(cycle))
        layouts = cycle.layout[slot]
        self.lengths = np.array([len(layout.frame) for layout, _ in builder.layouts], np.int64)[
            layouts
        ]
        self._groups = []
        for number in np.unique(layouts).tolist():
            rows = np.flatnonzero(layouts == number)
            numbers = _Numbers.of(cycle, slot[rows], repetition[rows], repeated)
            layout, stream = builder.layouts[number]
            self._groups.append(_Group(layout, stream, _selection(rows), numbers))

    def fill(self) -> None:
        """Write all constant bytes."""
        for group in self._groups:
            group.fill(self.frames)

    def number(
        self, turn: int, marks: npt.NDArray[np.uint64] | None, payloads: Frames | None
    ) -> None:
        """Write all bytes that change.

        turn: how many times the ring was used. marks, payloads: random numbers for each row.
        """
        for group in self._groups:
            group.number(self.frames, turn, marks, payloads)


Selection = slice | npt.NDArray[np.intp]


def _selection(rows: npt.NDArray[np.intp]) -> Selection:
    """The rows as a slice if they are evenly spaced, which is several times faster."""
    if len(rows) == 1:
        return slice(int(rows[0]), int(rows[0]) + 1)
    steps = np.diff(rows)
    if (steps == steps[0]).all():
        return slice(int(rows[0]), int(rows[-1]) + 1, int(steps[0]))
    return rows


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Field values of rows in the first use of the ring, and their increase with each use."""

    start: Cycle
    step: dict[str, Numbers]

    @classmethod
    def of(cls, cycle: Cycle, slots: Numbers, repetition: Numbers, repeated: int) -> _Numbers:
        start, step = {}, {}
        for name in Cycle.__dataclass_fields__:
            values = getattr(cycle, name)[slots]
            if name in _ADVANCING:
                each = getattr(cycle, f"{name}_step")[slots]
                values = values + repetition * each
                step[name] = repeated * each
            start[name] = values
        return cls(Cycle(**start), step)

    def at(self, name: str, turn: int) -> Numbers:
        """A field value of every row in a use of the ring."""
        values: Numbers = getattr(self.start, name) + turn * self.step[name]
        return values


class _Group:
    """The rows of a part with the same layout."""

    def __init__(
        self, layout: PacketLayout, stream: Stream, rows: Selection, numbers: _Numbers
    ) -> None:
        self._layout = layout
        self._stream = stream
        self._rows = rows
        self._numbers = numbers
        count = len(numbers.start)
        self._frame = np.frombuffer(layout.frame, np.uint8)
        icrc = int.from_bytes(layout.frame[layout.icrc_at :], "little")
        self._icrc = np.full(count, icrc, np.uint32)
        self._still = []
        self._moving = []
        for column in layout.columns:
            tables = _tables(layout, column)
            if column.field in _STILL:
                octets = _octets(self._values(column.field, 0), column.width)
                self._icrc ^= _change(octets, tables)
                self._still.append((column, octets))
            else:
                self._moving.append((column, tables))
        self._no_payload = crc32(bytes(layout.icrc_at - layout.payload_at))
        self._counts_ids = any(column.field is VaryingField.IP_ID for column in layout.columns)
        if stream.ce or stream.ce_every:
            ((_, marked),) = MarkECN(force=True)(layout.frame, 0)
            self._marked = marked
            self._limit = min(int(stream.ce * 2**64), 2**64 - 1)

    def fill(self, frames: Frames) -> None:
        """Write all constant bytes."""
        rows = self._rows
        frames[rows, : len(self._frame)] = self._frame
        for column, octets in self._still:
            frames[rows, column.at : column.at + column.width] = octets

    def number(
        self,
        frames: Frames,
        turn: int,
        marks: npt.NDArray[np.uint64] | None,
        payloads: Frames | None,
    ) -> None:
        """Write all bytes that change, and the ICRC."""
        layout, rows = self._layout, self._rows
        icrc = self._icrc
        for column, tables in self._moving:
            octets = _octets(self._values(column.field, turn), column.width)
            icrc = icrc ^ _change(octets, tables)
            end = column.at + column.width
            frames[rows, column.at : end] = octets | self._frame[column.at : end]
        if payloads is not None and self._stream.payload is Payload.RANDOM:
            icrc = icrc ^ self._fill_payload(frames, payloads[rows, : layout.payload_size])
        frames[rows, layout.icrc_at : layout.icrc_at + h.ICRC_SIZE] = (
            icrc.astype("<u4", copy=False).view(np.uint8).reshape(-1, h.ICRC_SIZE)
        )
        marked: npt.NDArray[np.bool_] | None = None
        if self._stream.ce and marks is not None:
            marked = marks[rows] < np.uint64(self._limit)
        elif self._stream.ce_every:
            place = self._numbers.at("ordinal", turn) % self._stream.ce_every
            marked = place >= self._stream.ce_every - self._stream.ce_run
        if marked is not None:
            self._mark(frames, marked)
        if layout.checksum_at >= 0 and (marked is not None or self._counts_ids):
            self._check(frames, turn, marked)

    def _values(self, number: VaryingField, turn: int) -> Values:
        stream, numbers = self._stream, self._numbers
        match number:
            case VaryingField.IP_ID:
                return numbers.at("ordinal", turn) & 0xFFFF
            case VaryingField.DEST_QP:
                return numbers.start.qpn
            case VaryingField.SRC_QP:
                return numbers.start.src_qpn
            case VaryingField.SRC_PORT:
                return numbers.start.src_port
            case VaryingField.PSN:
                return numbers.at("psn", turn) & psn.MASK
            case VaryingField.MSN:
                return stream.msn + numbers.at("ordinal", turn) & psn.MASK
            case VaryingField.ACK_REQ:
                assert stream.ack_every
                place = (numbers.at("ordinal", turn) + 1) % stream.ack_every
                return np.where(place == 0, 0x80, 0)
            case VaryingField.VA | VaryingField.ATOMIC_VA:
                place = numbers.at("message", turn) % stream.places * stream.va_step
                return place.astype(np.uint64) + np.uint64(stream.va)
            case VaryingField.COUNT:
                return numbers.at("count", turn)

    def _fill_payload(self, frames: Frames, octets: Frames) -> Words:
        """Write payloads; returns the change of the ICRC from a payload of zeros."""
        layout, rows = self._layout, self._rows
        frames[rows, layout.payload_at : layout.payload_at + layout.payload_size] = octets
        spans = np.ascontiguousarray(frames[rows, layout.payload_at : layout.icrc_at])
        found = np.fromiter(map(crc32, spans), np.uint32, len(spans))
        return found ^ np.uint32(self._no_payload)

    def _mark(self, frames: Frames, marked: npt.NDArray[np.bool_]) -> None:
        """Set ECN to CE in marked rows; the ICRC does not cover the field."""
        # The second byte of both IP headers holds it.
        at = self._layout.ip_at + 1
        frames[self._rows, at] = np.where(marked, self._marked[at], self._layout.frame[at])

    def _check(self, frames: Frames, turn: int, marked: npt.NDArray[np.bool_] | None) -> None:
        """Write the IPv4 checksum of marked or numbered rows; the ICRC does not cover it either."""
        at = self._layout.checksum_at
        checksum: Values = np.full(len(self._icrc), int.from_bytes(self._layout.frame[at : at + 2]))
        if marked is not None:
            checksum = np.where(marked, int.from_bytes(self._marked[at : at + 2]), checksum)
        if self._counts_ids:
            # The one's complement sum grows by the number, which is 0 in the frame (RFC 1624).
            total = (checksum ^ 0xFFFF) + self._values(VaryingField.IP_ID, turn)
            checksum = ((total & 0xFFFF) + (total >> 16)) ^ 0xFFFF
        frames[self._rows, at : at + 2] = _octets(checksum, 2)


def _octets(values: Values, width: int) -> Frames:
    """(n, width) big-endian bytes of the numbers."""
    size = 4 if width <= 4 else 8
    octets = values.astype(f">u{size}").view(np.uint8).reshape(-1, size)
    return octets[:, size - width :]


def _tables(layout: PacketLayout, column: FieldColumn) -> list[Words]:
    """A table for each byte of a column."""
    return [
        change_table(layout.icrc_at - 1 - at) for at in range(column.at, column.at + column.width)
    ]


def _change(octets: Frames, tables: Sequence[Words]) -> Words:
    """(n,) The change of the ICRC from zeros to these bytes."""
    change = tables[0].take(octets[:, 0])
    for place, table in enumerate(tables[1:], 1):
        change ^= table.take(octets[:, place])
    return change


_STILL = frozenset({VaryingField.DEST_QP, VaryingField.SRC_QP, VaryingField.SRC_PORT})
"""Fields that are constant for a queue pair."""

_ADVANCING = ("ordinal", "count", "message", "psn")
