"""Identifies a frame at every point of its path: frames of a capture as rows of fingerprints.

A hop may change the link header, the DSCP and ECN bits, the TTL and the checksums,
and nothing else (IBA annex A17.3.3 leaves just these out of the ICRC). The other fields
are the fingerprint; the ICRC stands for all of the payload in it.
"""

from __future__ import annotations

import secrets
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from ibwire.capture.index import gather
from ibwire.connections.flow import Flows
from ibwire.dissect import Columns
from ibwire.dissect.icrc import STATUS_WORDS
from ibwire_layers import headers as h
from ibwire_layers import outer
from ibwire_layers.packet import CrcStatus

Frames = npt.NDArray[np.void]
"""Rows of type `ROW`."""


class Kind(IntEnum):
    """What a frame is good for."""

    GOOD = 0
    """A transport packet with a right ICRC."""
    CUT = 1
    """A transport packet of which the capture does not hold everything."""
    BAD = 2
    """A transport packet that was captured completely, and whose ICRC is wrong or missing."""
    STRANGER = 3
    """Something else; perhaps a transport packet that was damaged beyond recognition."""


ROW = np.dtype(
    [
        ("number", "i8"),  # in its capture, from 1
        ("time", "i8"),  # ns, by the clock of its capture
        ("flow", "i4"),  # of the `Flows` that both captures share; -1 for an unknown one
        ("opcode", "u1"),
        ("psn", "u4"),
        ("kind", "u1"),
        ("marked", "?"),  # CE
        ("ttl", "u1"),  # or hop limit
        ("ip_fault", "?"),  # the checksum of the IPv4 header is wrong
        ("head", "u8"),  # hash of the headers that no hop changes
        ("key", "u8"),  # hash of these and of the ICRC as it stands in the frame
        ("icrc", "u8"),  # as it stands where the headers say that it is
        ("tail", "u8"),  # length and last four bytes of the frame, whatever the headers say
        ("loose", "u8"),  # hash of what neither ICRC nor IP checksum covers
        ("partner", "i8"),  # number of the same frame in the other capture; 0 without one
        ("shift", "i8"),  # ns by which the second capture has it later, once there is a partner
        ("twin", "i8"),  # for a frame without: that of an identical frame which has one
    ]
)

_GOOD = STATUS_WORDS.index(CrcStatus.GOOD)
_CE = 3
"""ECN field: congestion experienced (RFC 3168)."""

# Odd random numbers, so that frames whose fingerprints collide cannot be constructed.
_FACTORS = tuple(np.uint64(secrets.randbits(64) | 1) for _ in range(8))


def frames_of(columns: Columns, flows: Flows) -> Frames:
    """The frames of a chunk; those that neither are nor may have been a packet are left out."""
    batch, frames = columns.frames.batch, columns.frames
    whole = batch.cap_len >= batch.wire_len
    has_bth = frames.bth >= 0
    kept = np.flatnonzero(has_bth | (whole & (batch.cap_len >= h.ICRC_SIZE)))
    found = np.zeros(len(kept), ROW)
    found["number"] = kept + batch.first_number
    found["time"] = batch.time_ns[kept]
    found["flow"] = -1
    found["tail"] = _tail(columns, kept)
    found["kind"] = Kind.STRANGER
    at = np.flatnonzero(has_bth[kept])
    rows = kept[at]
    packets = found[at]
    good = columns["icrc.status"][rows] == _GOOD
    packets["kind"] = np.where(good, Kind.GOOD, np.where(whole[rows], Kind.BAD, Kind.CUT))
    _describe(packets, columns, rows, flows)
    found[at] = packets
    return found


def _describe(packets: Frames, columns: Columns, rows: npt.NDArray[np.int64], flows: Flows) -> None:
    """Fill in what transport packets have."""
    frames = columns.frames
    admitted = packets["kind"] <= Kind.CUT
    # Damaged packets begin no flow, except where all are so: a tap before the ICRC is added.
    admitted |= 2 * admitted.sum() < len(admitted)
    packets["flow"] = flows.numbers(columns, rows, admitted)
    bth = gather(frames.data, frames.bth[rows], ">", h.BTH.SIZE // 4)
    packets["opcode"] = frames.opcode[rows]
    packets["psn"] = bth[:, 2] & 0xFFFFFF
    six = frames.position(outer.IPv6)[rows] >= 0
    ecn = np.where(six, columns["ipv6.tclass.ecn"][rows], columns["ip.dsfield.ecn"][rows])
    packets["marked"] = ecn == _CE
    packets["ttl"] = np.where(six, columns["ipv6.hlim"][rows], columns["ip.ttl"][rows])
    packets["ip_fault"] = _ip_fault(columns, rows)
    packets["head"] = _hash(
        packets["flow"],
        _joined(bth[:, 0], bth[:, 2]),
        _joined(columns["ip.id"][rows], columns["udp.srcport"][rows]),
        (frames.end - frames.start)[rows],
    )
    cut = packets["kind"] == Kind.CUT
    packets["icrc"] = np.where(cut, 0, columns["icrc"][rows])
    packets["key"] = _hash(packets["head"], packets["icrc"])
    # The TTL and the DSCP of IPv4 may change; its checksum watches over them.
    packets["loose"] = _hash(
        columns["eth.dst"][rows],
        columns["eth.src"][rows],
        _tags(columns, rows, "vlan") << np.uint64(16) | _tags(columns, rows, "vlan.outer"),
        _joined(columns["udp.checksum"][rows], bth[:, 1] >> 24),
        _joined(columns["ipv6.flow"][rows], columns["ipv6.tclass.dscp"][rows]),
    )


def _joined(high: npt.NDArray[np.integer], low: npt.NDArray[np.integer]) -> npt.NDArray[np.uint64]:
    return high.astype(np.uint64) << np.uint64(32) | low.astype(np.uint64)


def _tags(columns: Columns, rows: npt.NDArray[np.int64], name: str) -> npt.NDArray[np.uint64]:
    """The 16 bits of a VLAN tag."""
    tag = np.zeros(len(rows), np.uint64)
    for part, shift in (("priority", 13), ("dei", 12), ("id", 0)):
        tag |= columns[f"{name}.{part}"][rows].astype(np.uint64) << np.uint64(shift)
    return tag


def _tail(columns: Columns, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    batch = columns.frames.batch
    last = np.maximum(batch.offsets + batch.cap_len - h.ICRC_SIZE, 0)[rows]
    return _joined(batch.wire_len[rows], gather(batch.data, last, ">", 1)[:, 0])


def _ip_fault(columns: Columns, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """(n,) whether an IPv4 header without options has a wrong checksum (RFC 791)."""
    frames = columns.frames
    plain = (frames.position(outer.IPv4)[rows] >= 0) & (columns["ip.ihl"][rows] == 5)
    at = np.where(plain, frames.position(outer.IPv4)[rows], 0)
    words = gather(frames.data, at, ">", outer.IPv4.SIZE // 4).astype(np.uint64)
    total = (words >> np.uint64(16)).sum(axis=1) + (words & np.uint64(0xFFFF)).sum(axis=1)
    folded = (total & np.uint64(0xFFFF)) + (total >> np.uint64(16))
    wrong: npt.NDArray[np.bool_] = plain & (folded != 0xFFFF)
    return wrong


def _hash(*parts: npt.NDArray[np.integer]) -> npt.NDArray[np.uint64]:
    """(n,) of one number a row."""
    value = np.zeros(len(parts[0]), np.uint64)
    for part, factor in zip(parts, _FACTORS, strict=False):
        value = (value ^ part.astype(np.uint64)) * factor
        value ^= value >> np.uint64(29)
    return value
