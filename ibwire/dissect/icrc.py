"""ICRC, VCRC and LPCRC of many frames.

The ICRC of a frame is one CRC-32 call over the bytes of the capture buffer, in
which the variant fields of all frames have been set to ones beforehand and are
put back afterwards. `isal` does that at memory speed; `zlib` is the fallback. A
compiled build has one call for all frames.
"""

from __future__ import annotations

from itertools import chain

import numpy as np
import numpy.typing as npt

from ibwire.base.native import native
from ibwire.dissect.frames import Frames, Rows
from ibwire_layers import crc, outer
from ibwire_layers import headers as h
from ibwire_layers.packet import CrcStatus

try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

STATUS_WORDS = tuple(CrcStatus)
"""Verdicts, at the index that stands for them in a status column."""

_GOOD, _BAD, _TRUNCATED, _ABSENT = range(4)

_MASKED = (
    (outer.IPv4, crc.IPV4_MASK),
    (outer.IPv6, crc.IPV6_MASK),
    (outer.UDP, crc.UDP_MASK),
    (h.GRH, crc.GRH_MASK),
    (h.BTH, crc.BTH_MASK),
    (h.LRH, crc.LRH_MASK),
)
_MASK_BYTES = tuple((header, bytes(chain.from_iterable(mask))) for header, mask in _MASKED)
"""The same masks as bytes: offset and ones by turns."""


def icrc_status(frames: Frames) -> npt.NDArray[np.uint8]:
    """(n,) index into `STATUS_WORDS`; meaningful where the frame has a BTH or is IB raw.

    Source: IBA 7.8.1; for RoCEv2 annex A17.3.3.
    """
    if frames.icrc_status is None:
        frames.icrc_status = _icrc_status(frames)
    return frames.icrc_status


def _icrc_status(frames: Frames) -> npt.NDArray[np.uint8]:
    status = np.full(len(frames), _ABSENT, np.uint8)
    held = (frames.bth >= 0) & (frames.end <= frames.limit)
    status[(frames.bth >= 0) & ~held] = _TRUNCATED
    rows = np.flatnonzero(frames.has_icrc & held)
    ends = frames.end[rows] - h.ICRC_SIZE
    sent = np.ndarray((len(frames.data) - 3,), "<u4", frames.data, strides=(1,))[ends]
    status[rows] = np.where(_computed(frames, rows, ends) == sent, _GOOD, _BAD)
    return status


def _computed(frames: Frames, rows: Rows, ends: Rows) -> npt.NDArray[np.uint32]:
    """(n,) ICRCs of these rows, which end before their ICRCs at `ends`."""
    is_local = frames.start[rows] == frames.position(h.LRH)[rows]
    seeds = np.where(is_local, np.uint32(0), np.uint32(crc.ICRC_SEED))
    if native is not None and native.CAN_FOLD:  # else `isal` is faster
        found = np.empty(len(rows), np.uint32)
        masks = tuple((frames.position(header), mask) for header, mask in _MASK_BYTES)
        native.icrcs(frames.data, rows, frames.start, frames.end, seeds, masks, found)
        return found
    undo = _mask(frames, rows)
    # One CRC call per packet, with no Python code between them.
    spans = map(
        frames.data.data.__getitem__, map(slice, frames.start[rows].tolist(), ends.tolist())
    )
    found = np.fromiter(map(crc32, spans, seeds.tolist()), np.uint32, len(rows))
    for at, before in reversed(undo):
        frames.data[at] = before
    return found


def vcrc_status(frames: Frames) -> npt.NDArray[np.uint8]:
    """(n,) index into `STATUS_WORDS`; meaningful where the frame has an LRH. Source: IBA 7.8.2."""
    lrh = frames.position(h.LRH)
    status = np.full(len(frames), _ABSENT, np.uint8)
    wire_end = frames.batch.offsets + frames.batch.wire_len
    status[frames.end + h.VCRC_SIZE <= wire_end] = _TRUNCATED
    rows = np.flatnonzero((lrh >= 0) & (frames.end + h.VCRC_SIZE <= frames.limit))
    status[rows] = _check_16(frames, lrh[rows], frames.end[rows])
    return status


def lpcrc_status(frames: Frames) -> npt.NDArray[np.uint8]:
    """(n,) index into `STATUS_WORDS`; meaningful for flow-control packets. Source: IBA 7.9.4."""
    status = np.full(len(frames), _ABSENT, np.uint8)
    at = frames.position(h.FlowControl)
    rows = np.flatnonzero(at >= 0)
    status[rows] = _check_16(frames, at[rows], at[rows] + 4)
    return status


def _mask(frames: Frames, rows: Rows) -> list[tuple[Rows, npt.NDArray[np.uint8]]]:
    """Set the variant fields of these rows to ones; returns what stood there before."""
    undo = []
    start = frames.start[rows]
    for header, mask in _MASKED:
        at = frames.position(header)[rows]
        at = at[at >= start]  # covered by the ICRC: the LRH is not when there is a GRH
        if not len(at):
            continue
        for offset, ones in mask:
            where = at + offset
            before = frames.data[where]
            undo.append((where, before))
            frames.data[where] = before | ones
    return undo


def _check_16(frames: Frames, start: Rows, end: Rows) -> npt.NDArray[np.uint8]:
    """Verdicts on the 16-bit CRC that stands at `end` and covers the bytes from `start`."""
    register = np.full(len(start), 0xFFFF, np.uint16)
    length = end - start
    for step in range(int(length.max(initial=0))):
        active = np.flatnonzero(step < length)
        value = register[active]
        byte = frames.data[start[active] + step]
        register[active] = value >> 8 ^ _TABLE[(value ^ byte) & 0xFF]
    sent = np.ndarray((len(frames.data) - 1,), "<u2", frames.data, strides=(1,))[end]
    return np.where(register ^ 0xFFFF == sent, _GOOD, _BAD).astype(np.uint8)


_TABLE = np.array(crc.CRC16_TABLE, np.uint16)
