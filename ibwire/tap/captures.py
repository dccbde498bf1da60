"""The tap from capture to capture: applies a plan to recorded frames.

Records pass unchanged, byte for byte and with their times; a delayed frame has a later
time and its place in the order of time. The side of a frame is determined by its
source address, or by the interface of a pcapng: side a is the given one, or otherwise the
sender of the first RDMA packet. All others are side b.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from ibwire.base.closing import Closing
from ibwire.base.errors import CaptureError, EncodeError
from ibwire.base.node import Frame
from ibwire.base.output import Output
from ibwire.base.units import NS, Time
from ibwire.capture import CaptureWriter, RecordBatch, open_capture
from ibwire.capture.pcapng import Interface
from ibwire.capture.stream import Target
from ibwire.impair.match import locate
from ibwire.tap.plan import SIDES, Event, Plan, ReportEvent, header_of
from ibwire_layers.outer import VLAN, Ethernet, EtherType, LinkType


class FileTap(Closing):
    """Applies a plan to a capture and writes another; a context manager.

    sources: addresses, or names or numbers of interfaces, whose frames come from side a.
    report: takes events. Raises `CaptureError`.
    """

    BATCH = 256
    """Records processed together."""

    def __init__(
        self,
        plan: Plan,
        capture: str,
        output: Target,
        report: ReportEvent,
        sources: Sequence[str] = (),
    ) -> None:
        self.plan = plan
        self._report = report
        self._path = output.path if isinstance(output, Output) else str(output)
        self._sides = _Sides(sources)
        with ExitStack() as opened:
            self._reader = opened.enter_context(open_capture(capture))
            later = any(each in _LATER for way in plan.ways for each in way.actions)
            is_finer = later or self._reader.format != "pcap" or self._reader.nanosecond
            self._writer = opened.enter_context(CaptureWriter(output, nanosecond=is_finer))
            self._closing = opened.pop_all()
        self._counts = {"read": 0, "written": 0, "not_ethernet": 0}
        self._begin_ns: int | None = None
        self._now: Time = 0

    def run(self, count: int | None = None) -> None:
        """Process all records, or `count`; raises `CaptureError` after those that could be read."""
        try:
            for batch in self._reader.batches():
                for part in batch.split(self.BATCH):
                    if count is not None and self._counts["read"] + len(part) >= count:
                        self._pass(next(part.split(count - self._counts["read"])))
                        return
                    self._pass(part)
        finally:
            for way in self.plan.ways:
                for time, frame in way.rest(self._now):
                    self._write(frame, self._time_ns(time))

    def counters(self) -> dict[str, Any]:
        """Counts of records."""
        return {"records": {name: number for name, number in self._counts.items() if number}}

    def problems(self) -> list[str]:
        """Sentences about problems."""
        problems = []
        if self._counts["not_ethernet"]:
            problems.append(
                f"{self._counts['not_ethernet']} records are not Ethernet frames: unchanged"
            )
        for side, way in zip(SIDES, self.plan.ways, strict=True):
            if not way.arrived:
                problems.append(f"no frame comes from side {side}")
            if way.overflow:
                problems.append(
                    f"{way.overflow} delayed frames of {side} are lost: too many waited"
                )
        return problems

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.__exit__(kind, error, trace)

    def close(self) -> None:
        """Finish the file."""
        self._closing.close()

    def _pass(self, batch: RecordBatch) -> None:
        """Process the records of a batch in order."""
        if self._begin_ns is None:
            self._begin_ns = int(batch.time_ns[0])
        sides = self._sides.of(batch, self._reader.interfaces)
        wanted = self._concerned(batch, np.array(sides))
        times = batch.time_ns.tolist()
        for row, side in enumerate(sides):
            self._release_until(times[row])
            self._counts["read"] += 1
            if side is None:
                self._counts["not_ethernet"] += 1
                self._copy(batch, row)
                continue
            way = self.plan.ways[side]
            way.arrived += 1
            if row in wanted or way.rules.holding:
                self._take(batch, row, side)
            else:
                self._copy(batch, row)

    def _concerned(self, batch: RecordBatch, sides: npt.NDArray[Any]) -> Collection[int]:
        """Rows for which a rule must be called."""
        wanted: set[int] = set()
        for number, way in enumerate(self.plan.ways):
            rows = np.flatnonzero(sides == number)
            chosen = way.concerned(batch.data, batch.offsets[rows], batch.cap_len[rows])
            wanted.update(rows[chosen].tolist() if len(chosen) else ())
        return wanted

    def _take(self, batch: RecordBatch, row: int, side: int) -> None:
        """Pass a record to the rules of its side."""
        record = batch.record(row)
        way, frame = self.plan.ways[side], record.data
        taken = way.take(frame, self._now)
        for out in taken.leaving:
            if out is frame:
                self._copy(batch, row)
            else:
                # A truncated record stays truncated.
                wire = record.wire_len + len(out) - len(frame)
                self._write(out, record.time_ns, wire, record.interface, record.comments)
        for answer in taken.answers:
            self._write(answer, record.time_ns, None, record.interface)
        for rule, action in taken.met:
            self._report(
                Event(
                    time_ns=record.time_ns,
                    side=SIDES[side],
                    rule=rule,
                    action=action,
                    frame=way.arrived,
                    packet=record.number,
                    header=header_of(frame),
                )
            )

    def _release_until(self, time_ns: int) -> None:
        """Write the frames that were delayed until the time of a record."""
        assert self._begin_ns is not None
        # The time never decreases, even if that of the capture does.
        self._now = max(self._now, (time_ns - self._begin_ns) * NS)
        for way in self.plan.ways:
            if way.poll_timeout() is not None:
                for time, frame in way.due(self._now):
                    self._write(frame, self._time_ns(time))

    def _time_ns(self, time: Time) -> int:
        return (self._begin_ns or 0) + time // NS

    def _copy(self, batch: RecordBatch, row: int) -> None:
        start = int(batch.offsets[row])
        self._counts["written"] += 1
        self._writer.write(
            batch.data.data[start : start + int(batch.cap_len[row])],
            int(batch.time_ns[row]),
            int(batch.wire_len[row]),
            interface=self._interface(int(batch.interface[row]), int(batch.link_type[row])),
            comments=batch.comments.get(row, ()),
        )

    def _write(
        self,
        frame: Frame,
        time_ns: int,
        wire_len: int | None = None,
        interface: int = 0,
        comments: Sequence[str] = (),
    ) -> None:
        self._counts["written"] += 1
        self._writer.write(
            memoryview(frame),
            time_ns,
            wire_len,
            interface=self._interface(interface, LinkType.ETHERNET),
            comments=comments,
        )

    def _interface(self, number: int, link_type: int) -> int:
        """The number in the output of an interface of the input."""
        found: Interface | None = self._reader.interfaces.get(number)
        try:
            return self._writer.interface(number, link_type, name=found.name if found else "")
        except EncodeError:
            reason = "a .pcap holds one link type, and the capture has several: use .pcapng"
            raise CaptureError(self._path, None, reason) from None


class _Sides:
    """Determines the side that each record comes from."""

    LIMIT = 1024
    """MAC addresses of side a that are kept."""

    def __init__(self, sources: Sequence[str]) -> None:
        self._addresses: set[bytes] = set()
        self._macs: set[bytes] = set()
        """MAC addresses of frames from those addresses, for frames without IP."""
        self._interfaces: set[str] = set()
        for source in sources:
            try:
                self._addresses.add(ipaddress.ip_address(source).packed)
            except ValueError:
                self._interfaces.add(source)

    def of(self, batch: RecordBatch, interfaces: Any) -> list[int | None]:
        """The side of each row; `None` for records that are not Ethernet."""
        return [
            self._side(batch, row, interfaces) if link_type == LinkType.ETHERNET else None
            for row, link_type in enumerate(batch.link_type.tolist())
        ]

    def _side(self, batch: RecordBatch, row: int, interfaces: Any) -> int:
        if self._interfaces:
            number = int(batch.interface[row])
            found: Interface | None = interfaces.get(number)
            names = {str(number), found.name if found else ""}
            return int(not names & self._interfaces)
        start, length = int(batch.offsets[row]), int(batch.cap_len[row])
        view = batch.data.data
        mac, address = _source(bytes(view[start : start + min(length, _HEAD)]))
        if not self._addresses and locate(bytes(view[start : start + length])).bth >= 0:
            self._addresses.add(address)
        if address in self._addresses:
            if len(self._macs) < self.LIMIT:
                self._macs.add(mac)
            return 0
        return int(address != mac or mac not in self._macs)


def _source(head: bytes) -> tuple[bytes, bytes]:
    """The source MAC address of a frame, and its source IP address or GID, or the MAC address."""
    at = Ethernet.SIZE
    if head[at - 2 : at] == _VLAN:
        at += VLAN.SIZE
    kind, mac = head[at - 2 : at], head[6:12]
    if kind == _IPV4:
        return mac, head[at + 12 : at + 16]
    if kind in (_IPV6, _ROCE):
        return mac, head[at + 8 : at + 24]
    return mac, mac


_LATER = ("delay", "duplicate")
"""Actions that create new times, which may be finer than those of the capture."""
_IPV4, _IPV6 = EtherType.IPV4.to_bytes(2), EtherType.IPV6.to_bytes(2)
_ROCE, _VLAN = EtherType.ROCE.to_bytes(2), EtherType.VLAN.to_bytes(2)
_HEAD = Ethernet.SIZE + VLAN.SIZE + 24
"""Bytes of a frame that contain its addresses."""
