"""Writes a capture file frame by frame, in the format of its suffix."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Sequence
from contextlib import ExitStack, suppress
from itertools import chain
from types import TracebackType

from ibwire.base.closing import Closing
from ibwire.base.errors import EncodeError, OutputError
from ibwire.base.output import STANDARD_OUTPUT, Output, incomplete
from ibwire.capture.index import Record
from ibwire.capture.pcap import PcapWriter
from ibwire.capture.pcapng import PcapngWriter
from ibwire.capture.stream import Target
from ibwire_layers.outer import LinkType


class CaptureWriter(Closing):
    """Writes frames of one or more interfaces to a pcap or pcapng file.

    The file is created with its first interface, or without any frame when it is closed.
    A pcapng gets an interface for each pair of `key` and link type, in the order in which
    `interface` meets them. A pcap holds one link type and neither interfaces nor comments.
    """

    def __init__(
        self, target: Target, *, file_format: str | None = None, nanosecond: bool = True
    ) -> None:
        """file_format: `pcap` or `pcapng`; without it the suffix decides. nanosecond: times of a
        pcap have nanoseconds instead of microseconds. Raises `CaptureError` for another suffix.
        """
        self.file_format = file_format or format_of(target)
        self._target = target
        self._nanosecond = nanosecond
        self._writer: PcapWriter | PcapngWriter | None = None
        self._numbers: dict[tuple[Hashable, int], int] = {}
        self._closing = ExitStack()

    def interface(
        self,
        key: Hashable = 0,
        link_type: int = LinkType.ETHERNET,
        name: str = "",
        description: str = "",
    ) -> int:
        """The number of an interface in the file, which is described there when it is new.

        A pcap has neither name nor description.
        Raises `CaptureError` when the file cannot be opened, `EncodeError` for a second link
        type in a pcap.
        """
        number = self._numbers.get((key, link_type))
        if number is not None:
            return number
        writer = self._writer
        number = 0
        if writer is None:
            self._open(link_type, name, description)
        elif isinstance(writer, PcapngWriter):
            number = writer.add_interface(link_type, name, description)
        elif link_type != writer.link_type:
            expected = f"{writer.link_type}, as in the first record: pcap holds one link type"
            raise EncodeError("link_type", link_type, expected)
        self._numbers[key, link_type] = number
        return number

    def write(
        self,
        data: bytes | memoryview,
        time_ns: int,
        wire_len: int | None = None,
        *,
        interface: int = 0,
        comments: Sequence[str] = (),
    ) -> None:
        """Append one record; `wire_len` is the length of `data` unless it was cut."""
        writer = self._writer or self._open(LinkType.ETHERNET, "")
        if isinstance(writer, PcapngWriter):
            writer.write(data, time_ns, wire_len, interface=interface, comments=comments)
        else:
            writer.write(data, time_ns, wire_len)

    def flush(self) -> None:
        """Give the operating system all that was written: it then survives this process.

        A compressed file is left alone, which would grow by it.
        """
        if self._writer is not None:
            self._writer.flush()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and self._writer is not None:
            if isinstance(self._writer, PcapngWriter):
                with suppress(OutputError):
                    self._writer.end_incomplete(_INCOMPLETE)
            if isinstance(self._target, str | os.PathLike):
                error.add_note(incomplete(self._target))
        self.close()

    def close(self) -> None:
        """Finish the file, also one without records."""
        if self._writer is None:
            self._open(LinkType.ETHERNET, "")
        self._closing.close()

    def _open(self, link_type: int, name: str, description: str = "") -> PcapWriter | PcapngWriter:
        writer: PcapWriter | PcapngWriter
        if self.file_format == "pcapng":
            writer = PcapngWriter(self._target, link_type, name=name, description=description)
        else:
            writer = PcapWriter(self._target, link_type, nanosecond=self._nanosecond)
        self._closing.callback(writer.close)
        self._writer = writer
        return writer


def write_capture(path: str | os.PathLike[str], records: Iterable[Record]) -> int:
    """Write records to `.pcap` or `.pcapng`, and `.gz`, `.xz` or `.zst` after it; returns how many.

    Times keep their nanoseconds. pcap holds one link type and neither interfaces nor
    comments; pcapng numbers the interfaces in the order they appear. Raises
    `CaptureError` for another suffix or a file that cannot be opened, `EncodeError`
    for a record that the format cannot hold.
    """
    writer = CaptureWriter(path)
    rest = iter(records)
    first = next(rest, None)
    count = 0
    with writer:
        for record in () if first is None else chain((first,), rest):
            writer.write(
                record.data,
                record.time_ns,
                record.wire_len,
                interface=writer.interface(record.interface, record.link_type),
                comments=record.comments,
            )
            count += 1
    return count


def format_of(target: Target) -> str:
    """`pcap` or `pcapng`, from the suffix of a path; standard output is pcapng.

    Raises `OutputError` for another suffix.
    """
    if isinstance(target, Output):
        target = target.path
    path = os.fspath(target) if isinstance(target, str | os.PathLike) else str(target)
    if path == STANDARD_OUTPUT:
        return "pcapng"
    stem, suffix = os.path.splitext(path.lower())
    if suffix in _COMPRESSED:
        suffix = os.path.splitext(stem)[1]
    if suffix not in _FORMATS:
        reason = f"cannot be written: the name ends neither in {' nor in '.join(_FORMATS)}"
        raise OutputError(path, reason)
    return suffix.removeprefix(".")


_COMPRESSED = frozenset({".gz", ".xz", ".zst"})
_INCOMPLETE = "ibwire: this capture is incomplete, writing it was interrupted"
_FORMATS = (".pcap", ".pcapng")
