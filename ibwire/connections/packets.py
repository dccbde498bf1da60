"""The transport packets of a capture as arrays of the fields that the analysis needs."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ibwire.base.native import native
from ibwire.dissect import Columns
from ibwire.dissect.fields import gather
from ibwire.dissect.frames import EXTENSION_OFFSET, HEADER_SIZE
from ibwire.dissect.icrc import STATUS_WORDS
from ibwire_layers import headers as h
from ibwire_layers import outer
from ibwire_layers.packet import CrcStatus
from ibwire_layers.schema import Header


class TransportPacket(NamedTuple):
    """One transport packet."""

    number: int
    """In its capture, from 1."""
    time_ns: int
    va: int
    """Address of the RETH or AtomicETH; 0 without one."""
    flow: int
    """Number of its flow."""
    psn: int
    length: int
    """Bytes of the frame on the wire."""
    size: int
    """Bytes of payload, without padding."""
    dma_len: int
    """Of the RETH; 0 without one."""
    rkey: int
    """Of the RETH or AtomicETH; 0 without one."""
    msn: int
    icrc: int
    """As it stands on the wire; 0 where it was not captured."""
    ip_id: int
    """Identification of IPv4; -1 without IPv4."""
    syndrome: int
    """Of the AETH; -1 without one."""
    port: int
    """UDP source port; 0 without UDP."""
    file: int
    """Which of several captures."""
    opcode: int
    ack_req: bool
    marked: bool
    """CE: congestion experienced."""
    damaged: bool
    """The ICRC is wrong: the receiver drops the packet."""

    @property
    def place(self) -> tuple[int, int]:
        """File and number: the order of packets, also over several captures."""
        return self.file, self.number


_packet_of: Callable[[Any], TransportPacket] = partial(tuple.__new__, TransportPacket)
"""A packet of its fields, which is faster without a look at how many they are."""

_TYPES = {
    **dict.fromkeys(("number", "time_ns"), np.int64),
    "va": np.uint64,
    "flow": np.int32,
    **dict.fromkeys(("psn", "length", "size", "dma_len", "rkey", "msn", "icrc"), np.uint32),
    "ip_id": np.int32,
    "syndrome": np.int16,
    **dict.fromkeys(("port", "file"), np.uint16),
    "opcode": np.uint8,
    **dict.fromkeys(("ack_req", "marked", "damaged"), np.bool_),
}
ROW = np.dtype([(name, _TYPES[name]) for name in TransportPacket._fields], align=True)
"""One packet in an array; wide fields first, so that all are aligned."""
_BYTES = np.dtype(f"V{ROW.itemsize}")
_FIELDS = struct.Struct("".join(ROW[name].char for name in TransportPacket._fields) + "0q")
"""The same row for `struct`, which is faster than `tolist` and has the letters of NumPy; `0q` pads
the row at its end."""


class Rows:
    """n transport packets; `rows.psn` and the other fields of `TransportPacket` are arrays (n,)."""

    __slots__ = ("_data",)

    def __init__(self, data: npt.NDArray[np.void]) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getattr__(self, name: str) -> npt.NDArray[Any]:
        try:
            return self._data[name]
        except ValueError:
            raise AttributeError(name) from None

    def __reduce__(self) -> tuple[type[Rows], tuple[npt.NDArray[np.void]]]:
        return Rows, (self._data,)

    def take(self, rows: npt.NDArray[np.integer[Any] | np.bool_] | slice) -> Rows:
        """The packets of these rows; a slice shares their memory."""
        if isinstance(rows, slice):
            return Rows(self._data[rows])
        # Unlike an index, `take` copies whole rows, which is twenty times as fast as their fields.
        return Rows(self._data.take(rows if rows.dtype != np.bool_ else np.flatnonzero(rows)))

    def copy(self) -> Rows:
        """The same packets in memory of their own."""
        return Rows(self._data.copy())

    def packets(self) -> list[TransportPacket]:
        """The packets one by one."""
        if native is not None:
            found: list[TransportPacket] = native.packets(self._data, TransportPacket)
            return found
        return list(map(_packet_of, _FIELDS.iter_unpack(self._data.tobytes())))

    def packet(self, row: int) -> TransportPacket:
        """One of the packets."""
        return _packet_of(self._data.item(row))

    @property
    def first(self) -> tuple[int, int]:
        """File and number of the first packet."""
        return int(self.file[0]), int(self.number[0])

    def order(self) -> npt.NDArray[np.int64]:
        """(n,) rows in the order of the captures."""
        return np.lexsort((self.number, self.file))

    def moved(self, flows: list[int], files: int) -> Rows:
        """The same packets under other numbers: of flows, by their number, and of files."""
        data = self._data.copy()
        data["flow"] = np.array(flows, np.int32)[data["flow"]]
        data["file"] += np.uint16(files)
        return Rows(data)

    @staticmethod
    def concatenate(parts: list[Rows]) -> Rows:
        """Parts of a capture, one after the other."""
        if len(parts) == 1:
            return parts[0]
        return Rows(np.concatenate([part._data.view(_BYTES) for part in parts]).view(ROW))


BAD = STATUS_WORDS.index(CrcStatus.BAD)
_CE = 3
"""ECN field: congestion experienced (RFC 3168)."""


def known(columns: Columns) -> npt.NDArray[np.int64]:
    """Rows of a chunk that hold a transport packet with a known opcode and whole headers."""
    return np.flatnonzero(columns.valid("payload.len"))


def cut(columns: Columns) -> int:
    """How many packets of a chunk have a known opcode, and headers that were not captured whole."""
    frames = columns.frames
    whole = columns.valid("payload.len")
    return int(((frames.bth >= 0) & ~whole & (HEADER_SIZE[frames.opcode] > 0)).sum())


def read(columns: Columns, rows: npt.NDArray[np.int64], flow: npt.NDArray[np.int32]) -> Rows:
    """The packets of these rows of a chunk, which belong to these flows."""
    data = np.empty(len(rows), ROW)
    if native is not None:
        _read_natively(columns, rows, flow, data)
        data["damaged"] = columns["icrc.status"][rows] == BAD
        return Rows(data)
    of = Fields(columns, rows).of
    bth, reth, atomic = of(h.BTH), of(h.RETH), of(h.AtomicETH)
    aeth, ipv4 = of(h.AETH), of(outer.IPv4)
    frames = columns.frames
    data["number"] = rows + frames.batch.first_number
    data["file"] = 0
    data["time_ns"] = frames.batch.time_ns[rows]
    data["flow"] = flow
    data["opcode"] = frames.opcode[rows]
    data["psn"] = bth("psn", np.uint32)
    data["length"] = frames.batch.wire_len[rows].astype(np.uint32)
    data["size"] = columns["payload.len"][rows]
    data["dma_len"] = reth("dma_len", np.uint32)
    data["va"] = reth("va", np.uint64) | atomic("va", np.uint64)
    data["rkey"] = reth("rkey", np.uint32) | atomic("rkey", np.uint32)
    data["ack_req"] = bth("ack_req", np.bool_)
    data["syndrome"] = aeth("syndrome", np.int16, -1)
    data["msn"] = aeth("msn", np.uint32)
    data["ip_id"] = ipv4("id", np.int32, -1)
    data["port"] = of(outer.UDP)("src_port", np.uint16)
    data["icrc"] = columns["icrc"][rows]
    data["marked"] = (ipv4("ecn", np.uint8) | of(outer.IPv6)("ecn", np.uint8)) == _CE
    data["damaged"] = columns["icrc.status"][rows] == BAD
    return Rows(data)


def _read_natively(
    columns: Columns,
    rows: npt.NDArray[np.int64],
    flow: npt.NDArray[np.int32],
    data: npt.NDArray[np.void],
) -> None:
    """All fields but `damaged`."""
    assert native is not None
    frames = columns.frames
    batch = frames.batch
    native.read_packets(
        frames.data,
        rows,
        flow,
        batch.first_number,
        batch.time_ns,
        batch.wire_len,
        frames.limit,
        frames.end,
        frames.has_icrc,
        *(frames.position(header) for header in (h.BTH, outer.IPv4, outer.IPv6, outer.UDP)),
        HEADER_SIZE,
        *(EXTENSION_OFFSET[header] for header in (h.RETH, h.AtomicETH, h.AETH)),
        data,
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
