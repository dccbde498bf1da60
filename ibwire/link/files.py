"""Pcap files and FIFOs as a link: a node receives frames from one and sends to another.

Two processes exchange packets through two FIFOs, each reading what the other writes. One
process can read a capture and write its responses to a second file. The format is pcap with
nanoseconds, and every packet is written at once.

Frames from a file arrive at the times of their records, in virtual time. With a FIFO the
time is the monotonic clock. Opening never deadlocks, in any order in which two processes
start: the incoming FIFO is opened for reading without waiting for a writer, then opening the
outgoing one is retried until it has a reader.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from enum import StrEnum
from io import BytesIO
from struct import Struct

from ibwire.base.closing import Closing
from ibwire.base.errors import EncodeError, LinkError
from ibwire.base.node import Frame, Node
from ibwire.base.units import NS, S, Time
from ibwire.capture import PcapWriter, Record, open_capture
from ibwire.capture.pcap import FILE_HEADER_SIZE, MAGICS, MAXIMUM_SNAPLEN
from ibwire.fabric.sim import MAXIMUM_REPEATS, Livelock
from ibwire_layers.outer import LinkType

FileName = str | os.PathLike[str]


class Ended(StrEnum):
    """Why a run ended."""

    END_OF_INPUT = "end of input"
    """The incoming file was read completely, or the writer of the FIFO has closed it."""
    STOPPED = "stopped"
    """`stop` returned true."""
    TIME = "time"
    """The given time is over."""
    FRAMES = "frames"
    """The given number of frames has arrived."""


class FileLink(Closing):
    """A link through two files; a context manager.

    incoming: a capture, or a FIFO with pcap data. outgoing: a FIFO, or a new
    file. link_type: of both. opening: seconds to wait for the reader
    of an outgoing FIFO. Raises `LinkError` or `CaptureError` if one cannot be opened.
    """

    def __init__(
        self,
        incoming: FileName,
        outgoing: FileName,
        *,
        link_type: int = LinkType.ETHERNET,
        opening: float = 10.0,
    ) -> None:
        self._incoming = os.fspath(incoming)
        self._outgoing = os.fspath(outgoing)
        self._link_type = link_type
        self._begin_ns = time.monotonic_ns()
        self._epoch_ns = time.time_ns()
        """Time of the records that are written at time 0 of the node."""
        self._now: Time = 0
        self.received = 0
        """Frames."""
        self.sent = 0
        self._closing = ExitStack()
        self._output: int | None = None
        """`None` when the reader has gone."""
        self._unsent = bytearray()
        self._buffer = BytesIO()
        with ExitStack() as opened:
            self._input: int | None = None
            if _is_fifo(self._incoming):
                self._input = _open(self._incoming, os.O_RDONLY | os.O_NONBLOCK, opened)
                self._stream = _PcapStream(self._incoming, link_type)
            else:
                reader = opened.enter_context(open_capture(self._incoming))
                self._records = reader.records()
                self._first = next(self._records, None)
                if self._first is not None:
                    self._epoch_ns = self._first.time_ns
            self._output = _open_output(self._outgoing, opening, opened)
            self._writer = PcapWriter(self._buffer, link_type)
            self._closing = opened.pop_all()
        self._flush()

    def run(
        self,
        node: Node,
        *,
        stop: Callable[[], bool] | None = None,
        seconds: float = 60.0,
        frames: int | None = None,
    ) -> Ended:
        """Run a node on this link until a limit is reached.

        stop: called after every step; it may also give the node work. seconds: of
        the clock, or of virtual time after the last record of a file. frames: number of arrivals
        since the link was created. It can be called again with the same node.
        Raises `LinkError` for a FIFO without pcap data, `CaptureError` for a
        damaged file.
        """
        if self._input is None:
            return self._run_file(node, stop, seconds, frames)
        return self._run_fifo(node, self._input, stop, seconds, frames)

    def close(self) -> None:
        """Close both ends."""
        self._closing.close()
        self._output = None

    # Virtual time.

    def _run_file(
        self, node: Node, stop: Callable[[], bool] | None, seconds: float, frames: int | None
    ) -> Ended:
        self._drain(node)
        while (record := self._next_record()) is not None:
            if record.link_type != self._link_type:
                reason = f"record {record.number} has link type {record.link_type}"
                raise LinkError(self._incoming, f"{reason}, not {self._link_type}")
            arrival = max((record.time_ns - self._epoch_ns) * NS, self._now)
            self._advance(node, arrival)
            node.receive(record.data, self._now)
            self.received += 1
            self._drain(node)
            if stop is not None and stop():
                self._drain(node)
                return Ended.STOPPED
            if self.received == frames:
                return Ended.FRAMES
        self._advance(node, self._now + int(seconds * S))
        return Ended.END_OF_INPUT

    def _next_record(self) -> Record | None:
        record, self._first = self._first, None
        return next(self._records, None) if record is None else record

    def _advance(self, node: Node, until: Time) -> None:
        """Handle the timeouts before the next frame."""
        repeats = 0
        while (due := node.poll_timeout()) is not None and due <= until:
            repeats = repeats + 1 if due <= self._now else 0
            if repeats > MAXIMUM_REPEATS:
                raise Livelock(node, self._now)
            self._now = max(self._now, due)
            node.handle_timeout(self._now)
            self._drain(node)
        self._now = until

    # Real time.

    def _run_fifo(
        self,
        node: Node,
        source: int,
        stop: Callable[[], bool] | None,
        seconds: float,
        frames: int | None,
    ) -> Ended:
        end = time.monotonic_ns() + int(seconds * 1e9)
        while True:
            self._read_clock()
            due = node.poll_timeout()
            if due is not None and due <= self._now:
                node.handle_timeout(self._now)
            if stop is not None and stop():
                self._drain(node)
                return Ended.STOPPED
            # A full FIFO is a busy link: the node is not polled until there is room.
            while not self._unsent and (frame := node.poll_transmit(self._now)) is not None:
                self._send(frame)
            if self.received == frames:
                return Ended.FRAMES
            if time.monotonic_ns() >= end:
                return Ended.TIME
            if self._stream.frames:
                node.receive(self._stream.frames.popleft(), self._now)
                self.received += 1
            elif self._wait(source, node, end) and not self._read(source):
                return Ended.END_OF_INPUT

    def _read_clock(self) -> None:
        self._now = (time.monotonic_ns() - self._begin_ns) * NS

    def _wait(self, source: int, node: Node, end: int) -> bool:
        """Wait for input, for room for output or for a timeout; whether there is input."""
        due = node.poll_timeout()
        until = end if due is None else min(end, self._begin_ns + -(-due // NS))
        seconds = max(until - time.monotonic_ns(), 0) / 1e9
        waiting = [self._output] if self._unsent and self._output is not None else []
        readable, writable, _ = select.select([source], waiting, [], seconds)
        if writable:
            self._flush()
        return bool(readable)

    def _read(self, source: int) -> bool:
        """Read the contents of the FIFO; `False` at its end."""
        try:
            data = os.read(source, _READ)
        except BlockingIOError:
            return True
        except OSError as error:
            raise LinkError(self._incoming, f"cannot be read: {error.strerror}") from None
        if data:
            self._stream.feed(data)
            return True
        if self._stream.begun:
            self._stream.check_end()
            return False
        # On some systems a FIFO without a writer yet looks like this.
        time.sleep(_OPENING_STEP)
        return True

    # Output.

    def _drain(self, node: Node) -> None:
        """Write everything that the node has to send, waiting for a slow reader."""
        while (frame := node.poll_transmit(self._now)) is not None:
            self._send(frame)
            while self._unsent and self._output is not None:
                _, writable, _ = select.select([], [self._output], [], _SLOWEST)
                if not writable:
                    raise LinkError(self._outgoing, f"no reader for {_SLOWEST:g} s")
                self._flush()

    def _send(self, frame: Frame) -> None:
        try:
            self._writer.write(frame, self._epoch_ns + self._now // NS)
        except EncodeError as error:
            raise LinkError(self._outgoing, f"a frame does not fit pcap: {error}") from None
        self.sent += 1
        self._flush()

    def _flush(self) -> None:
        """Write as much as there is room for."""
        self._unsent += self._buffer.getvalue()
        self._buffer.seek(0)
        self._buffer.truncate()
        while self._unsent and self._output is not None:
            try:
                written = os.write(self._output, self._unsent)
            except BlockingIOError:
                return
            except BrokenPipeError:
                self._output = None
                break
            except OSError as error:
                raise LinkError(self._outgoing, f"cannot be written: {error.strerror}") from None
            del self._unsent[:written]
        self._unsent.clear()


class _PcapStream:
    """Splits a stream of pcap data into frames."""

    def __init__(self, name: str, link_type: int) -> None:
        self._name = name
        self._link_type = link_type
        self._data = bytearray()
        self._record: Struct | None = None
        self.frames: deque[Frame] = deque()
        """Complete frames."""

    @property
    def begun(self) -> bool:
        """Whether any data has arrived."""
        return self._record is not None or bool(self._data)

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        buffer = self._data
        buffer += data
        record = self._record or self._begin()
        if record is None:
            return
        position = 0
        while len(buffer) - position >= record.size:
            (length,) = record.unpack_from(buffer, position)
            if length > MAXIMUM_SNAPLEN:
                raise LinkError(self._name, f"invalid record of {length} bytes")
            start = position + record.size
            if len(buffer) < start + length:
                break
            position = start + length
            self.frames.append(bytes(buffer[start:position]))
        del buffer[:position]

    def check_end(self) -> None:
        """Raise `LinkError` if the stream has ended inside a record."""
        if self._data:
            raise LinkError(self._name, f"ends {len(self._data)} bytes into a record")

    def _begin(self) -> Struct | None:
        """Read the file header, if it is there."""
        if len(self._data) < FILE_HEADER_SIZE:
            return None
        known = MAGICS.get(bytes(self._data[:4]))
        if known is None:
            raise LinkError(self._name, f"is not pcap: it begins with {self._data[:4].hex(' ')}")
        order, _, size = known
        link_type = Struct(f"{order}I").unpack_from(self._data, 20)[0] & 0xFFFF
        if link_type != self._link_type:
            raise LinkError(self._name, f"link type {link_type}, not {self._link_type}")
        self._record = Struct(f"{order}8xI{size - 12}x")
        del self._data[:FILE_HEADER_SIZE]
        return self._record


def _is_fifo(name: str) -> bool:
    try:
        return stat.S_ISFIFO(os.stat(name).st_mode)
    except OSError:
        return False


def _open(name: str, flags: int, opened: ExitStack) -> int:
    try:
        descriptor = os.open(name, flags, 0o666)
    except OSError as error:
        raise LinkError(name, f"cannot be opened: {error.strerror}") from None
    opened.callback(os.close, descriptor)
    return descriptor


def _open_output(name: str, opening: float, opened: ExitStack) -> int:
    if not _is_fifo(name):
        return _open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, opened)
    end = time.monotonic() + opening
    while True:
        try:
            descriptor = os.open(name, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise LinkError(name, f"cannot be opened: {error.strerror}") from None
            if time.monotonic() >= end:
                raise LinkError(name, f"no reader has opened it within {opening:g} s") from None
            time.sleep(_OPENING_STEP)
        else:
            opened.callback(os.close, descriptor)
            return descriptor


_OPENING_STEP = 0.005
"""Seconds between attempts to open a FIFO that has no reader yet."""

_SLOWEST = 10.0
"""Seconds that a reader may take to make room when everything has to be written."""

_READ = 1 << 16
"""Bytes taken from a FIFO at a time."""
