"""Flows: all packets of one direction, by source, destination and destination queue pair."""

from __future__ import annotations

import ipaddress
import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from ibwire.base.native import native
from ibwire.capture.index import gather
from ibwire.connections.packets import Fields
from ibwire.dissect import Columns
from ibwire_layers import headers as h
from ibwire_layers import outer
from ibwire_layers.opcodes import INFO, Service

Keys = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]


class FlowKey(NamedTuple):
    """What distinguishes one flow from another."""

    src: str
    """IP address, or GID, or `LID n`."""
    dst: str
    dst_qpn: int
    service: Service
    src_qpn: int | None = None
    """Of datagrams, which name their sender; no other packet does."""


_key_of: Callable[[tuple[Any, ...]], FlowKey] = partial(tuple.__new__, FlowKey)
"""A key of its fields, which is faster without a look at how many they are."""


class FlowKeys(Sequence[FlowKey]):
    """The keys of flows by number, as arrays: a key is made when it is read.

    Thousands of flows have few addresses.
    """

    def __init__(self) -> None:
        self._addresses: list[tuple[str, str]] = []
        """All different sources with destinations."""
        self._place: dict[tuple[str, str], int] = {}
        self._ends = array("I")
        """Place of the addresses by flow; the following are by flow, too."""
        self._dst_qpn, self._service, self._src_qpn = array("I"), array("B"), array("i")

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, flow: int) -> FlowKey: ...

    @overload
    def __getitem__(self, flow: slice) -> list[FlowKey]: ...

    def __getitem__(self, flow: int | slice) -> FlowKey | list[FlowKey]:
        if isinstance(flow, slice):
            return [self[each] for each in range(*flow.indices(len(self)))]
        src, dst = self._addresses[self._ends[flow]]
        sender = self._src_qpn[flow]
        service = _SERVICE_OF[self._service[flow]]
        src_qpn = None if sender < 0 else sender
        return _key_of((src, dst, self._dst_qpn[flow], service, src_qpn))

    def append(self, key: FlowKey) -> None:
        """The next flow has this key."""
        ends = key.src, key.dst
        place = self._place.setdefault(ends, len(self._addresses))
        if place == len(self._addresses):
            self._addresses.append(ends)
        self._ends.append(place)
        self._dst_qpn.append(key.dst_qpn)
        self._service.append(key.service)
        self._src_qpn.append(-1 if key.src_qpn is None else key.src_qpn)

    def extend(self, fields: _Fields) -> None:
        """The next flows have these keys."""
        places = []
        for ends in fields.ends:
            place = self._place.setdefault(ends, len(self._addresses))
            if place == len(self._addresses):
                self._addresses.append(ends)
            places.append(place)
        self._ends.extend(places)
        self._dst_qpn.extend(fields.dst_qpn)
        self._service.extend(fields.service)
        self._src_qpn.extend(fields.src_qpn)

    def ends(self, flows: npt.NDArray[np.int64]) -> tuple[Numbers, Numbers]:
        """(n,) numbers of the addresses and services of flows, from 0, and those of the way back.

        The latter are -1 where none of these flows goes back. All numbers are below n.
        """
        service, size = np.array(self._service, np.int64)[flows], 1 << 8
        places = [self._place.get((dst, src), -1) for src, dst in self._addresses]
        place = np.array(self._ends, np.int64)[flows]
        back = np.array(places, np.int64)[place]
        there, back = place * size + service, np.where(back < 0, -1, back * size + service)
        ordered = np.sort(there)
        distinct = ordered[np.flatnonzero(np.diff(ordered, prepend=-1))]
        found = np.searchsorted(distinct, back)
        is_known = np.append(distinct, -2)[found] == back
        return np.searchsorted(distinct, there), np.where(is_known, found, -1)

    def are_named(self, flows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """(n,) which of these flows name their senders."""
        return np.array(self._src_qpn, np.int32)[flows] >= 0

    def are_of(self, service: Service, flows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """(n,) which of these flows have this service."""
        found: npt.NDArray[np.bool_] = np.array(self._service, np.uint8)[flows] == service
        return found


class Flows:
    """Numbers flows from 0 in the order in which they are met."""

    def __init__(self) -> None:
        self.keys = FlowKeys()
        self._numbers: dict[FlowKey, int] | None = None
        """By key, made when a flow is first looked for by its key."""
        # Of all flows, in the order of their hashes.
        self._hashes = np.zeros(0, np.uint64)
        self._flows = np.zeros(0, np.int32)
        # Direct answers for most packets: hash and flow by the lower bits of the hash.
        self._hash = np.zeros(_SLOTS, np.uint64)
        self._flow = np.full(_SLOTS, -1, np.int32)

    def number(self, key: FlowKey) -> int:
        """The number of a flow, which is a new one the first time."""
        numbers = self._by_key()
        number = numbers.setdefault(key, len(self.keys))
        if number == len(self.keys):
            self.keys.append(key)
        return number

    def find(self, key: FlowKey) -> int | None:
        """The number of a flow that was met."""
        return self._by_key().get(key)

    def _by_key(self) -> dict[FlowKey, int]:
        if self._numbers is None:
            self._numbers = {key: number for number, key in enumerate(self.keys)}
        return self._numbers

    def _begin(self, fields: _Fields) -> Sequence[int]:
        """The numbers of flows whose hashes were not met."""
        if self._numbers is not None:
            return [self.number(key) for key in fields.as_keys()]
        first = len(self.keys)
        self.keys.extend(fields)
        return range(first, len(self.keys))

    def numbers(
        self,
        columns: Columns,
        rows: npt.NDArray[np.int64],
        admitted: npt.NDArray[np.bool_] | None = None,
    ) -> npt.NDArray[np.int32]:
        """(n,) flow of each of these rows; new flows are numbered in the order of their packets.

        admitted: (n,) which rows may begin a flow, all by default. The others get -1
        when theirs is not known.
        """
        hashes = _hashes(columns, rows)
        slots = (hashes & np.uint64(_SLOTS - 1)).astype(np.int64)
        flows = np.where(self._hash[slots] == hashes, self._flow[slots], -1)
        unknown = np.flatnonzero(flows < 0)
        if len(unknown):
            flows[unknown] = self._look_up(columns, rows, hashes, unknown, admitted)
            known = unknown[flows[unknown] >= 0]
            self._hash[slots[known]] = hashes[known]
            self._flow[slots[known]] = flows[known]
        return flows

    def _look_up(
        self,
        columns: Columns,
        rows: npt.NDArray[np.int64],
        hashes: Keys,
        unknown: npt.NDArray[np.int64],
        admitted: npt.NDArray[np.bool_] | None,
    ) -> npt.NDArray[np.int32]:
        """(n,) flows of the rows at `unknown`."""
        distinct, inverse = np.unique(hashes[unknown], return_inverse=True)
        at = np.searchsorted(self._hashes, distinct)
        found = np.full(len(distinct), -1, np.int32)
        inside = np.flatnonzero(at < len(self._hashes))
        known = inside[self._hashes[at[inside]] == distinct[inside]]
        found[known] = self._flows[at[known]]
        new = (found < 0)[inverse]
        candidates = np.flatnonzero(new if admitted is None else new & admitted[unknown])
        _, first = np.unique(inverse[candidates], return_index=True)
        begins = np.sort(candidates[first])
        found[inverse[begins]] = self._begin(_fields(columns, rows[unknown[begins]]))
        begun = np.sort(inverse[begins])
        self._hashes = np.insert(self._hashes, at[begun], distinct[begun])
        self._flows = np.insert(self._flows, at[begun], found[begun])
        return found[inverse]


_SLOTS = 1 << 16

# Odd random numbers, so that packets whose flows collide cannot be constructed.
_FACTORS = np.frombuffer(os.urandom(8 * 10), np.uint64) | np.uint64(1)

_SERVICES = np.zeros(256, np.uint64)
for _info in INFO.values():
    # A CNP belongs to the connection whose destination queue pair it has, usually RC.
    _SERVICES[_info.opcode] = 0 if _info.service is Service.CNP else _info.service

_ADDRESSES = ((outer.IPv4, 12, 2), (outer.IPv6, 8, 8), (h.GRH, 8, 8), (h.LRH, 0, 2))
"""Header, offset of its addresses, and how many words of 32 bits they are; of the LRH all of it."""
_LID = np.uint64(0xFFFF)
"""The address bits in each word of the LRH, without lanes and lengths."""


def _hashes(columns: Columns, rows: npt.NDArray[np.int64]) -> Keys:
    """(n,) equal for packets of one flow, different for different flows, except by chance."""
    frames = columns.frames
    if native is not None:
        found = np.empty(len(rows), np.uint64)
        headers = (h.BTH, h.DETH, *(header for header, _, _ in _ADDRESSES))
        positions = map(frames.position, headers)
        native.flow_hashes(frames.data, rows, _SERVICES, _FACTORS, *positions, found)
        return found
    of = Fields(columns, rows).of
    value: Keys = of(h.BTH)("dest_qp", np.uint64) << np.uint64(8)
    value |= _SERVICES[frames.opcode[rows]]
    value *= _FACTORS[0]
    value += of(h.DETH)("src_qp", np.uint64) * _FACTORS[1]
    is_open = np.ones(len(rows), np.bool_)
    for header, offset, count in _ADDRESSES:
        at = frames.position(header)[rows]
        have = np.flatnonzero((at >= 0) & is_open)  # only what `addresses` reads: one hash a key
        is_open[have] = False
        if len(have):
            words = gather(frames.data, at[have] + offset, ">", count).astype(np.uint64)
            if header is h.LRH:
                words &= _LID
            value[have] += words @ _FACTORS[2 : 2 + count]
    return value ^ value >> np.uint64(31)


_WIDE = (
    (outer.IPv6, ("ipv6.src", "ipv6.dst")),
    (h.GRH, ("grh.sgid", "grh.dgid")),
)


class _Fields(NamedTuple):
    """The fields of keys, by flow."""

    ends: list[tuple[str, str]]
    """Source and destination."""
    dst_qpn: list[int]
    service: list[int]
    src_qpn: list[int]
    """-1 where the packets of a flow do not name their sender."""

    def as_keys(self) -> Iterator[FlowKey]:
        """The keys."""
        for ends, dst_qpn, service, src_qpn in zip(*self, strict=True):
            sender = None if src_qpn < 0 else src_qpn
            yield _key_of((*ends, dst_qpn, _SERVICE_OF[service], sender))


def _fields(columns: Columns, rows: npt.NDArray[np.int64]) -> _Fields:
    """The key of each of these packets."""
    frames = columns.frames
    is_named = frames.position(h.DETH)[rows] >= 0
    senders = np.full(len(rows), -1, np.int64)
    if is_named.any():
        senders[is_named] = columns["deth.srcqp"][rows[is_named]]
    return _Fields(
        all_addresses(columns, rows),
        columns["bth.destqp"][rows].tolist(),
        _SERVICES[frames.opcode[rows]].tolist(),
        senders.tolist(),
    )


_SERVICE_OF = {int(service): service for service in Service}


def all_addresses(columns: Columns, rows: npt.NDArray[np.int64]) -> list[tuple[str, str]]:
    """Source and destination of each of these packets in words, as from `addresses`."""
    is_four = columns.frames.position(outer.IPv4)[rows] >= 0
    four = rows[is_four]
    ends = columns["ip.src"][four].tolist(), columns["ip.dst"][four].tolist()
    found = [(_ipv4(one), _ipv4(other)) for one, other in zip(*ends, strict=True)]
    if len(four) == len(rows):
        return found
    of_four = iter(found)
    return [
        next(of_four) if has_four else addresses(columns, row)
        for row, has_four in zip(rows.tolist(), is_four.tolist(), strict=True)
    ]


@lru_cache(maxsize=1 << 12)
def _ipv4(address: int) -> str:
    return str(ipaddress.IPv4Address(address))


@lru_cache(maxsize=1 << 12)
def _ipv6(address: bytes) -> str:
    return str(ipaddress.IPv6Address(address))


def addresses(columns: Columns, row: int) -> tuple[str, str]:
    """Source and destination of one packet in words."""
    frames = columns.frames
    if frames.position(outer.IPv4)[row] >= 0:
        source, destination = columns["ip.src"][row], columns["ip.dst"][row]
        return _ipv4(int(source)), _ipv4(int(destination))
    for header, names in _WIDE:
        if frames.position(header)[row] >= 0:
            source, destination = (columns[name][row].tobytes() for name in names)
            return _ipv6(source), _ipv6(destination)
    return f"LID {columns['lrh.slid'][row]}", f"LID {columns['lrh.dlid'][row]}"
