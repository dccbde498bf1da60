"""Messages of connection managers: datagrams to queue pair 1, as far as they were captured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast
from zlib import crc32

import numpy as np

from ibwire.connections.flow import addresses
from ibwire.connections.packets import BAD
from ibwire.dissect import Columns
from ibwire_layers import cm
from ibwire_layers.mad import MAD, MAD_SIZE, MgmtClass
from ibwire_layers.opcodes import OpCode
from ibwire_layers.schema import Field, Header

KINDS: dict[int, type[Header]] = {
    cm.CMAttribute.REQ: cm.REQ,
    cm.CMAttribute.MRA: cm.MRA,
    cm.CMAttribute.REJ: cm.REJ,
    cm.CMAttribute.REP: cm.REP,
    cm.CMAttribute.RTU: cm.RTU,
    cm.CMAttribute.DREQ: cm.DREQ,
    cm.CMAttribute.DREP: cm.DREP,
    cm.CMAttribute.SIDR_REQ: cm.SIDR_REQ,
    cm.CMAttribute.SIDR_REP: cm.SIDR_REP,
    cm.CMAttribute.LAP: cm.LAP,
    cm.CMAttribute.APR: cm.APR,
}
"""By the attribute of the MAD."""

_FIELDS: dict[type[Header], dict[str, Field]] = {
    kind: {each.name: each for each in kind.FIELDS} for kind in KINDS.values()
}
"""The fields of each message by name."""


def received(columns: Columns) -> list[Received]:
    """The messages of a chunk."""
    found = []
    for row, at, end in _mads(columns):
        mad = columns.frames.data[at:end].tobytes()
        kind = KINDS.get(int.from_bytes(mad[16:18]))
        if kind is not None:
            found.append(Received(columns, row, kind.__name__, Message(kind, mad)))
    return found


def _mads(columns: Columns) -> Iterator[tuple[int, int, int]]:
    """Rows with a message of the connection manager, and where it begins and ends."""
    frames = columns.frames
    rows = np.flatnonzero(frames.opcode == OpCode.UD_SEND_ONLY)
    if not len(rows):
        return
    rows = rows[columns["bth.destqp"][rows] == 1]
    if not len(rows):
        return
    at = frames.payload[rows]
    rows, at = rows[at >= 0], at[at >= 0]
    end = np.minimum(np.minimum(frames.payload_end, frames.limit)[rows], at + MAD_SIZE)
    good = end - at > MAD.SIZE
    good &= frames.data[np.where(good, at + 1, 0)] == MgmtClass.COMM_MGT
    if good.any():
        good &= columns["icrc.status"][rows] != BAD
    yield from zip(rows[good].tolist(), at[good].tolist(), end[good].tolist(), strict=True)


class Message:
    """A message of the connection manager, possibly cut off by the snap length."""

    def __init__(self, kind: type[Header], mad: bytes) -> None:
        self._message = kind.unpack(mad.ljust(MAD_SIZE, b"\0"), MAD.SIZE)
        self._fields = _FIELDS[kind]
        self._bits = 8 * (len(mad) - MAD.SIZE)
        self.transaction = int.from_bytes(mad[8:16])
        """Transaction ID of the MAD, which a message that is sent again keeps (Linux ib_mad sends
        the same buffer)."""
        self.checksum = crc32(mad)
        """Of all its bytes."""

    def __getitem__(self, name: str) -> int | None:
        """The value of a field that is a number, `None` if it was cut off."""
        place = self._fields[name]
        if place.offset + place.size > self._bits:
            return None
        return cast(int, getattr(self._message, name))


class Received:
    """A message, its name, and its place in the capture."""

    def __init__(self, columns: Columns, row: int, name: str, message: Message) -> None:
        batch = columns.frames.batch
        self.name = name
        self.src, self.dst = addresses(columns, row)
        self.number = row + batch.first_number
        self.time_ns = int(batch.time_ns[row])
        self.psn = int(columns["bth.psn"][row])
        self.checksum = message.checksum
        self.message = message
