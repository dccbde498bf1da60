"""Several captures read as one: the files of a ring, in their order, with numbers that go on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ibwire.base.errors import CaptureError
from ibwire.capture import CaptureReader, open_capture
from ibwire.dissect.columns import Columns
from ibwire.dissect.frames import Frames

VERDICTS = 1 << 22
"""Verdicts on ICRCs that are kept, besides the most frequent one of each chunk."""


@dataclass(slots=True)
class CapturePart:
    """One of the files."""

    name: str
    first_number: int
    """Number that its first frame has among all."""
    frames: int = 0
    start_ns: int = 0
    """Time of its first frame."""


class Captures:
    """Reads captures one after the other, as often as needed.

    paths: in the order of their first packets. shown: names in place of paths, for messages.
    Frames are numbered through all files, and `frame.time_relative` counts from the first file.
    Damage ends a file, not the reading.
    """

    def __init__(self, paths: Sequence[str], shown: Mapping[str, str] | None = None) -> None:
        self._paths = paths
        self._shown = shown or {}
        self.parts: list[CapturePart] = []
        """The files with frames, as the last reading found them."""
        self.damage: list[CaptureError] = []
        """Why files could not be read to their end, as the last reading found them."""
        self.start_ns = 0
        self.end_ns = 0
        """Time of the first and of the last frame."""
        self._verdicts = _Verdicts()

    @property
    def frames(self) -> int:
        """Frames of all files, after a reading."""
        return sum(part.frames for part in self.parts)

    @property
    def name(self) -> str:
        """The name of the only file, or of the first and how many there are."""
        first, *others = [self._shown.get(path, path) for path in self._paths]
        first = os.path.basename(first)
        return f"{first} and {len(others)} more" if others else first

    def read(self, tell: Callable[[CaptureReader], None] | None = None) -> Iterator[Columns]:
        """Every chunk of all files; tell: called after each."""
        self.parts, self.damage = [], []
        for path in self._paths:
            shown = self._shown.get(path, path)
            part = CapturePart(shown, self.frames + 1)
            try:
                if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
                    reason = "cannot be read twice, as is needed here: save it as a file first"
                    raise CaptureError(shown, None, reason)
                with open_capture(path, reuse=True) as reader:
                    for columns in self._chunks(reader, part):
                        yield columns
                        if tell is not None:
                            tell(reader)
            except CaptureError as error:
                self.damage.append(CaptureError(shown, error.offset, error.reason))

    def _chunks(self, reader: CaptureReader, part: CapturePart) -> Iterator[Columns]:
        for batch in reader.batches():
            if len(batch):
                if not part.frames:
                    part.start_ns = int(batch.time_ns[0])
                    if not self.parts:
                        self.start_ns = part.start_ns
                    self.parts.append(part)
                self.end_ns = int(batch.time_ns[-1])
                part.frames += len(batch)
                batch.first_number += part.first_number - 1
                batch.start_ns = self.start_ns
            columns = Columns(batch, reader.path)
            self._verdicts.give(columns.frames)
            yield columns
            self._verdicts.keep(columns.frames)


class _Verdicts:
    """Verdicts on ICRCs, so that no ICRC is computed again when a capture is read again.

    Almost all of a chunk are the same, so the others are kept.
    """

    def __init__(self) -> None:
        self._kept: dict[
            tuple[int, int], tuple[int, npt.NDArray[np.uint32], npt.NDArray[np.uint8]]
        ] = {}
        """By number of the first frame and how many there are: the most frequent verdict, and
        where which others are."""
        self._room = VERDICTS

    def give(self, frames: Frames) -> None:
        """Set the verdicts of a chunk that was read before."""
        kept = self._kept.get((frames.batch.first_number, len(frames)))
        if kept is not None:
            usual, rows, others = kept
            frames.icrc_status = np.full(len(frames), usual, np.uint8)
            frames.icrc_status[rows] = others

    def keep(self, frames: Frames) -> None:
        """Keep the verdicts of a chunk, if they were needed and there is room."""
        key, status = (frames.batch.first_number, len(frames)), frames.icrc_status
        if status is None or not len(status) or key in self._kept:
            return
        usual = int(np.bincount(status).argmax())
        rows = np.flatnonzero(status != usual)
        if len(rows) <= self._room:
            self._room -= len(rows)
            self._kept[key] = usual, rows.astype(np.uint32), status[rows]
