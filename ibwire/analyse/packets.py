"""The transport packets of a capture as narrow arrays: what the analysis needs of each, no more."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ibwire.dissect import Columns
from ibwire.dissect.icrc import STATUS_WORDS
from ibwire_layers import headers as h
from ibwire_layers import outer
from ibwire_layers.packet import CrcStatus


class Seen(NamedTuple):
    """One transport packet."""

    number: int
    """In its capture, from 1."""
    time_ns: int
    flow: int
    """Number of its flow."""
    opcode: int
    psn: int
    length: int
    """Bytes of the frame on the wire."""
    size: int
    """Bytes of payload, without padding."""
    dma_len: int
    """Of the RETH; 0 without one."""
    va: int
    """Address of the RETH or AtomicETH; 0 without one."""
    rkey: int
    """Of the RETH or AtomicETH; 0 without one."""
    ack_req: bool
    syndrome: int
    """Of the AETH; -1 without one."""
    msn: int
    ip_id: int
    """Identification of IPv4; -1 where there is none."""
    port: int
    """UDP source port; 0 without UDP."""
    icrc: int
    """As it stands on the wire; 0 where it was not captured."""
    marked: bool
    """CE: congestion experienced."""
    damaged: bool
    """The ICRC is wrong: the receiver will drop the packet, whatever it says."""


@dataclass(slots=True)
class Rows:
    """n transport packets as arrays (n,); the fields are those of `Seen`."""

    number: npt.NDArray[np.int64]
    time_ns: npt.NDArray[np.int64]
    flow: npt.NDArray[np.int32]
    opcode: npt.NDArray[np.uint8]
    psn: npt.NDArray[np.uint32]
    length: npt.NDArray[np.uint32]
    size: npt.NDArray[np.uint32]
    dma_len: npt.NDArray[np.uint32]
    va: npt.NDArray[np.uint64]
    rkey: npt.NDArray[np.uint32]
    ack_req: npt.NDArray[np.bool_]
    syndrome: npt.NDArray[np.int16]
    msn: npt.NDArray[np.uint32]
    ip_id: npt.NDArray[np.int32]
    port: npt.NDArray[np.uint16]
    icrc: npt.NDArray[np.uint32]
    marked: npt.NDArray[np.bool_]
    damaged: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.number)

    def take(self, rows: npt.NDArray[np.integer] | slice) -> Rows:
        """The packets of these rows."""
        return Rows(*(getattr(self, name)[rows] for name in _NAMES))

    def seen(self) -> list[Seen]:
        """The packets one by one."""
        return list(
            map(Seen._make, zip(*(getattr(self, name).tolist() for name in _NAMES), strict=True))
        )

    @staticmethod
    def concatenate(parts: list[Rows]) -> Rows:
        """Parts of a capture, one after the other."""
        if len(parts) == 1:
            return parts[0]
        return Rows(*(np.concatenate([getattr(part, name) for part in parts]) for name in _NAMES))


_NAMES = tuple(field.name for field in fields(Rows))

BAD = STATUS_WORDS.index(CrcStatus.BAD)
_CE = 3
"""ECN field: congestion experienced (RFC 3168)."""


def known(columns: Columns) -> npt.NDArray[np.int64]:
    """Rows of a chunk that hold a transport packet with a known opcode and whole headers."""
    return np.flatnonzero(columns.frames.payload >= 0)


def read(columns: Columns, rows: npt.NDArray[np.int64], flow: npt.NDArray[np.int32]) -> Rows:
    """The packets of these rows of a chunk, which belong to these flows."""
    frames = columns.frames
    word = columns["bth.psn"][rows]
    syndrome = np.where(
        frames.position(h.AETH)[rows] >= 0, columns["aeth.syndrome"][rows].astype(np.int16), -1
    )
    ip_id = np.where(
        frames.position(outer.IPv4)[rows] >= 0, columns["ip.id"][rows].astype(np.int32), -1
    )
    ecn = np.where(
        frames.position(outer.IPv6)[rows] >= 0,
        columns["ipv6.tclass.ecn"][rows],
        columns["ip.dsfield.ecn"][rows],
    )
    return Rows(
        number=rows + frames.batch.first_number,
        time_ns=frames.batch.time_ns[rows],
        flow=flow,
        opcode=frames.opcode[rows],
        psn=word,
        length=frames.batch.wire_len[rows].astype(np.uint32),
        size=columns["payload.len"][rows],
        dma_len=columns["reth.dmalen"][rows],
        va=columns["reth.va"][rows] | columns["atomiceth.va"][rows],
        rkey=columns["reth.r_key"][rows] | columns["atomiceth.r_key"][rows],
        ack_req=columns["bth.a"][rows] != 0,
        syndrome=syndrome,
        msn=columns["aeth.msn"][rows],
        ip_id=ip_id,
        port=columns["udp.srcport"][rows],
        icrc=columns["icrc"][rows],
        marked=ecn == _CE,
        damaged=columns["icrc.status"][rows] == BAD,
    )
