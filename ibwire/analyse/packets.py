"""The transport packets of a capture as narrow arrays: what the analysis needs of each, no more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ibwire.dissect import Columns
from ibwire.dissect.fields import gather
from ibwire.dissect.icrc import STATUS_WORDS
from ibwire_layers import headers as h
from ibwire_layers import outer
from ibwire_layers.packet import CrcStatus
from ibwire_layers.schema import Header


class Seen(NamedTuple):
    """One transport packet."""

    number: int
    """In its capture, from 1."""
    file: int
    """Which of several captures."""
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
    file: npt.NDArray[np.uint16]
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

    @property
    def first(self) -> tuple[int, int]:
        """File and number of the first packet."""
        return int(self.file[0]), int(self.number[0])

    def order(self) -> npt.NDArray[np.int64]:
        """(n,) rows in the order of the captures."""
        return np.lexsort((self.number, self.file))

    def moved(self, flows: list[int], files: int) -> Rows:
        """The same packets under other numbers: of flows, by their number, and of files."""
        moved = self.take(slice(None))
        moved.flow = np.array(flows, np.int32)[self.flow]
        moved.file = self.file + np.uint16(files)
        return moved

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
    of = Fields(columns, rows).of
    bth, reth, atomic = of(h.BTH), of(h.RETH), of(h.AtomicETH)
    aeth, ipv4 = of(h.AETH), of(outer.IPv4)
    frames = columns.frames
    return Rows(
        number=rows + frames.batch.first_number,
        file=np.zeros(len(rows), np.uint16),
        time_ns=frames.batch.time_ns[rows],
        flow=flow,
        opcode=frames.opcode[rows],
        psn=bth("psn", np.uint32),
        length=frames.batch.wire_len[rows].astype(np.uint32),
        size=columns["payload.len"][rows],
        dma_len=reth("dma_len", np.uint32),
        va=reth("va", np.uint64) | atomic("va", np.uint64),
        rkey=reth("rkey", np.uint32) | atomic("rkey", np.uint32),
        ack_req=bth("ack_req", np.bool_),
        syndrome=aeth("syndrome", np.int16, -1),
        msn=aeth("msn", np.uint32),
        ip_id=ipv4("id", np.int32, -1),
        port=of(outer.UDP)("src_port", np.uint16),
        icrc=columns["icrc"][rows],
        marked=(ipv4("ecn", np.uint8) | of(outer.IPv6)("ecn", np.uint8)) == _CE,
        damaged=columns["icrc.status"][rows] == BAD,
    )


class Fields:
    """Header fields of some rows of a chunk."""

    def __init__(self, columns: Columns, rows: npt.NDArray[np.int64]) -> None:
        self._frames = columns.frames
        self._rows = rows

    def of(self, header: type[Header]) -> Callable[..., npt.NDArray[Any]]:
        """A reader of a header's fields: (name, dtype, value where there is no such header)."""
        at = self._frames.position(header)[self._rows]
        have = np.flatnonzero(at >= 0)
        data = self._frames.data
        by_name = {field.name: field for field in header.FIELDS}

        def read(name: str, dtype: npt.DTypeLike, otherwise: int = 0) -> npt.NDArray[Any]:
            if len(have) == len(at):
                return gather(data, at, by_name[name]).astype(dtype)
            values = np.full(len(at), otherwise, dtype)
            if len(have):
                values[have] = gather(data, at[have], by_name[name])
            return values

        return read
