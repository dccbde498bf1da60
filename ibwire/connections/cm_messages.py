"""Messages of connection managers: datagrams to queue pair 1, as far as they were captured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast
from zlib import crc32

import numpy as np

from ibwire.connections.flow import addresses
from ibwire.connections.packets import BAD
from ibwire.dissect import Columns
from ibwire_layers.mad import MAD, MAD_SIZE, MgmtClass
from ibwire_layers.opcodes import OpCode
from ibwire_layers.schema import Header


def mads(columns: Columns) -> Iterator[tuple[int, int, int]]:
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
        self._bits = 8 * (len(mad) - MAD.SIZE)
        self.transaction = int.from_bytes(mad[8:16])
        """Transaction ID of the MAD, which a message that is sent again keeps (Linux ib_mad sends
        the same buffer)."""
        self.checksum = crc32(mad)
        """Of all its bytes."""

    def __getitem__(self, name: str) -> int | None:
        """The value of a field that is a number, `None` if it was cut off."""
        place = next(each for each in self._message.FIELDS if each.name == name)
        if place.offset + place.size > self._bits:
            return None
        return cast(int, getattr(self._message, name))


class Received:
    """A message, and its place in the capture."""

    def __init__(self, columns: Columns, row: int, message: Message) -> None:
        batch = columns.frames.batch
        self.src, self.dst = addresses(columns, row)
        self.number = row + batch.first_number
        self.time_ns = int(batch.time_ns[row])
        self.psn = int(columns["bth.psn"][row])
        self.checksum = message.checksum
        self.message = message
