"""The RDMA packets of a capture as a source, rebound to other endpoints, with faults applied."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ibwire.base.errors import CaptureError, DecodeError, EncodeError
from ibwire.base.node import Frame, Pipe
from ibwire.capture import open_capture
from ibwire.capture.stream import Source
from ibwire.connections.analysis import Analysis
from ibwire.dissect import Columns
from ibwire.dissect.where import Expression
from ibwire.rc.device import gid_of
from ibwire.traffic.impaired import MAXIMUM_BYTES, apply_faults
from ibwire.traffic.rebind import Flow, Rebinder, Rebinding
from ibwire.traffic.timed_frames import TimedFrames
from ibwire_layers.outer import LinkType
from ibwire_layers.walk import Protocol

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Replay:
    """Packets read from a capture, and how many were left out."""

    source: TimedFrames
    taken: int
    """Packets taken from the capture; faults may change how many are sent."""
    others: int
    """Frames without an RDMA packet over Ethernet or IP, left out."""
    cut: int
    """Packets that were not captured whole, left out."""
    unselected: int
    """Packets for which `where` does not hold."""


def read_replay(
    source: Source,
    rebinding: Rebinding,
    *,
    where: Expression | None = None,
    faults: Pipe | None = None,
) -> Replay:
    """Read the packets of a capture.

    where: which packets. faults: stages applied to the packets at their times; frames that a
    stage still holds at the end are lost. Raises `CaptureError` for a damaged or too large
    capture.
    """
    others = cut = unselected = size = 0
    kept: list[_Recorded] = []
    analysis = Analysis()
    with open_capture(source) as capture:
        for batch in capture.batches():
            columns = Columns(batch, capture.path)
            if rebinding.moves_psns:
                analysis.take(columns)
            fit, whole = _fit(columns)
            others += int((~fit).sum())
            cut += int((fit & ~whole).sum())
            chosen = fit & whole
            if where is not None:
                chosen &= where.select(columns.column, columns.rows)
            unselected += int((fit & whole & ~chosen).sum())
            for recorded in _chosen(columns, np.flatnonzero(chosen)):
                size += len(recorded.frame)
                if size > MAXIMUM_BYTES:
                    reason = f"more than {MAXIMUM_BYTES} bytes of packets: choose some of them"
                    raise CaptureError(capture.path, None, reason)
                kept.append(recorded)
    rebinder = Rebinder(rebinding, _partners(analysis) if rebinding.moves_psns else {})
    as_it_is = rebinding == Rebinding()
    packets: list[tuple[int, Frame]] = []
    for recorded in kept:
        frame = recorded.frame
        try:
            if not (as_it_is and recorded.is_bare):
                frame = rebinder.rebound(frame, recorded.link_type)
        except (DecodeError, EncodeError):  # too damaged to be built again
            others += 1
            continue
        packets.append((recorded.time_ns, frame))
    passed = packets if faults is None else list(apply_faults(packets, faults))
    passed.sort(key=lambda each: each[0])
    first = passed[0][0] if passed else 0
    times = [time_ns - first for time_ns, _ in passed]
    frames = TimedFrames([frame for _, frame in passed], times)
    return Replay(frames, len(packets), others, cut, unselected)


def _fit(columns: Columns) -> tuple[Mask, Mask]:
    """(n,) Which frames have an RDMA packet over Ethernet or IP, and which are whole."""
    frames = columns.frames
    protocol = frames.protocol
    fit = (protocol == Protocol.ROCEV2) | (protocol == Protocol.ROCEV1)
    return fit & (frames.bth >= 0), frames.end <= frames.limit


class _Recorded(NamedTuple):
    """A packet of a capture."""

    time_ns: int
    frame: Frame
    """Up to the end of the packet."""
    link_type: int
    is_bare: bool
    """Whether it is Ethernet without a tunnel."""


def _chosen(columns: Columns, rows: npt.NDArray[np.intp]) -> Iterator[_Recorded]:
    frames, batch = columns.frames, columns.frames.batch
    bare = ~frames.tunnelled & (batch.link_type == LinkType.ETHERNET)
    for row in rows.tolist():
        data = batch.data[int(batch.offsets[row]) : int(frames.end[row])].tobytes()
        yield _Recorded(int(batch.time_ns[row]), data, int(batch.link_type[row]), bool(bare[row]))


def _partners(analysis: Analysis) -> dict[Flow, Flow]:
    """The flow in the other direction of each flow, where the capture shows it."""
    partners: dict[Flow, Flow] = {}
    for connection in analysis.finish().connections:
        one, other = connection.ends
        if one.qpn is None or other.qpn is None or one.address.startswith("LID"):
            continue
        flows = (gid_of(one.address), one.qpn), (gid_of(other.address), other.qpn)
        partners |= {flows[0]: flows[1], flows[1]: flows[0]}
    return partners
