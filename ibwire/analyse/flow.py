"""Flows: all packets of one direction, by source, destination and destination queue pair."""

from __future__ import annotations

import ipaddress
import secrets
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ibwire.dissect import Columns
from ibwire_layers import headers as h
from ibwire_layers import outer
from ibwire_layers.opcodes import INFO, Service

Keys = npt.NDArray[np.uint64]


class FlowKey(NamedTuple):
    """What tells one flow from another."""

    src: str
    """IP address, or GID, or `LID n`."""
    dst: str
    dst_qpn: int
    service: Service
    src_qpn: int | None = None
    """Of datagrams, which name their sender; no other packet does."""


class Flows:
    """Numbers flows from 0 in the order in which they are met."""

    def __init__(self) -> None:
        self.keys: list[FlowKey] = []
        self._numbers: dict[FlowKey, int] = {}
        self._by_hash: dict[int, int] = {}

    def number(self, key: FlowKey) -> int:
        """The number of a flow, which is a new one the first time."""
        number = self._numbers.setdefault(key, len(self.keys))
        if number == len(self.keys):
            self.keys.append(key)
        return number

    def numbers(
        self, columns: Columns, rows: npt.NDArray[np.int64], admitted: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.int32]:
        """(n,) flow of each of these rows, -1 for those of unknown flows that are not admitted.

        admitted: (n,) which rows may begin a flow.
        """
        hashes = _hashes(columns, rows)
        distinct, inverse = np.unique(hashes, return_inverse=True)
        found = np.full(len(distinct), -1, np.int32)
        for place, value in enumerate(distinct.tolist()):
            found[place] = self._by_hash.get(value, -1)
        new = found < 0
        if new.any():
            candidates = np.flatnonzero(new[inverse] & admitted)
            _, at = np.unique(inverse[candidates], return_index=True)
            for row in np.sort(candidates[at]).tolist():
                place = inverse[row]
                number = self.number(_key(columns, int(rows[row])))
                self._by_hash[int(distinct[place])] = number
                found[place] = number
        return found[inverse]


# Odd numbers that nobody outside can know, so that no packets can be made whose flows collide.
_FACTORS = tuple(secrets.randbits(64) | 1 for _ in range(16))

_SERVICES = np.zeros(256, np.uint64)
for _info in INFO.values():
    # A CNP belongs to the connection whose queue pair it names, which is RC most of the time.
    _SERVICES[_info.opcode] = 0 if _info.service is Service.CNP else _info.service


def _hashes(columns: Columns, rows: npt.NDArray[np.int64]) -> Keys:
    """(n,) equal for packets of one flow, different for different flows, save by a miracle."""
    frames = columns.frames
    opcode = frames.opcode[rows]
    parts: list[Keys] = [
        columns["ip.src"][rows].astype(np.uint64) << np.uint64(32)
        | columns["ip.dst"][rows].astype(np.uint64),
        columns["bth.destqp"][rows].astype(np.uint64) << np.uint64(8) | _SERVICES[opcode],
    ]
    if (frames.position(h.DETH) >= 0).any():
        parts.append(columns["deth.srcqp"][rows].astype(np.uint64))
    else:
        parts.append(np.zeros(1, np.uint64))
    for header, names in _WIDE:
        if (frames.position(header) >= 0).any():
            for name in names:
                words = columns[name][rows]
                words = words.view(">u8") if words.ndim == 2 else words[:, None]
                parts.extend(words.astype(np.uint64).T)
    value = np.zeros(len(rows), np.uint64)
    for part, factor in zip(parts, _FACTORS[: len(parts)], strict=True):
        value = (value ^ part) * np.uint64(factor)
        value ^= value >> np.uint64(29)
    return value


_WIDE = (
    (outer.IPv6, ("ipv6.src", "ipv6.dst")),
    (h.GRH, ("grh.sgid", "grh.dgid")),
    (h.LRH, ("lrh.slid", "lrh.dlid")),
)


def _key(columns: Columns, row: int) -> FlowKey:
    """The key of one packet."""
    frames = columns.frames
    service = Service(int(_SERVICES[frames.opcode[row]]))
    src_qpn = int(columns["deth.srcqp"][row]) if frames.position(h.DETH)[row] >= 0 else None
    qpn = int(columns["bth.destqp"][row])
    src, dst = addresses(columns, row)
    return FlowKey(src, dst, qpn, service, src_qpn)


def addresses(columns: Columns, row: int) -> tuple[str, str]:
    """Source and destination of one packet in words."""
    frames = columns.frames
    if frames.position(outer.IPv4)[row] >= 0:
        source, destination = columns["ip.src"][row], columns["ip.dst"][row]
        return str(ipaddress.IPv4Address(int(source))), str(ipaddress.IPv4Address(int(destination)))
    for header, names in _WIDE[:2]:
        if frames.position(header)[row] >= 0:
            source, destination = (columns[name][row].tobytes() for name in names)
            return str(ipaddress.IPv6Address(source)), str(ipaddress.IPv6Address(destination))
    return f"LID {columns['lrh.slid'][row]}", f"LID {columns['lrh.dlid'][row]}"
