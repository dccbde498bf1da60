"""The captures of a tap: every frame at the side where it arrived and where it left.

One file has both interfaces; with two files each has one, like a capture at this interface.
Frames that a rule acted on have a comment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType

from ibwire.base.closing import Closing
from ibwire.base.errors import OutputError
from ibwire.base.node import Frame
from ibwire.capture import CaptureWriter
from ibwire.capture.writer import format_of
from ibwire.tap.bridge import Arrived
from ibwire.tap.plan import Event


class TapRecord(Closing):
    """One pcapng file, or one for each side; a context manager."""

    def __init__(self, paths: Sequence[str], names: Sequence[str]) -> None:
        """Raises `OutputError` for a file that cannot be opened, or with another suffix."""
        for path in paths:
            if format_of(path) != "pcapng":
                raise OutputError(path, "its name does not end in .pcapng")
        with ExitStack() as opened:
            writers = [opened.enter_context(CaptureWriter(path)) for path in paths]
            files = [side % len(writers) for side in range(2)]
            self._places = [
                (file, writers[file].interface(name, name=name))
                for file, name in zip(files, names, strict=True)
            ]
            self._closing = opened.pop_all()
        self._writers = writers
        self._counts = [0] * len(writers)

    def count(self, side: int) -> int:
        """Packets in the file of a side."""
        return self._counts[self._places[side][0]]

    def passed(
        self,
        side: int,
        arrived: Arrived,
        leaving: Sequence[Frame | int],
        events: Mapping[int, Sequence[Event]],
        time_ns: int,
    ) -> None:
        """Write a batch that has arrived at a side, and the frames that have left at the other.

        leaving: as for `Side.send`. events: by row of the batch.
        """
        data = arrived.data.data
        frames = [
            data[start : start + length]
            for start, length in zip(arrived.starts.tolist(), arrived.lengths.tolist(), strict=True)
        ]
        self._write(side, frames, time_ns, events)
        self._write(
            1 - side,
            [frames[each] if isinstance(each, int) else memoryview(each) for each in leaving],
            time_ns,
            {},
        )

    def left(self, side: int, frames: Sequence[Frame], time_ns: int) -> None:
        """Write frames that have left at a side."""
        self._write(side, [memoryview(each) for each in frames], time_ns, {})

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.__exit__(kind, error, trace)

    def close(self) -> None:
        """Finish the files."""
        self._closing.close()

    def _write(
        self,
        side: int,
        frames: Sequence[memoryview],
        time_ns: int,
        events: Mapping[int, Sequence[Event]],
    ) -> None:
        file, interface = self._places[side]
        write = self._writers[file].write
        for row, frame in enumerate(frames):
            comments = [f"tap: {each.action} (rule {each.rule})" for each in events.get(row, ())]
            write(frame, time_ns, interface=interface, comments=comments)
        self._counts[file] += len(frames)
        if frames:
            self._writers[file].flush()
