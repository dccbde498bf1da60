"""Fields that keep one value in all packets of a connection, for each direction.

Requests and responses of one end are compared apart from each other: an adapter may fill
them in different ways. CNPs have a priority of their own, management datagrams a path of
their own; neither is compared. Nothing is reported where the queue pair was reset or its
path migrated.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ibwire.rules.findings import Rule, Severity
from ibwire.rules.packet import GOOD, Chunk, opcodes_where
from ibwire_layers import headers as h
from ibwire_layers import outer
from ibwire_layers.opcodes import INFO, OpCode, Position, Service, name_of

P_KEY = Rule(
    "constant.p-key",
    "All packets that a queue pair sends have its P_Key.",
    Severity.ERROR,
    "IBA 9.6.1.1, 10.9.2",
    "docs/reference/wire-formats.md#constant-fields",
)
SOURCE_PORT = Rule(
    "constant.source-port",
    "All packets that a queue pair sends have one UDP source port, except those of adapters that"
    " spread messages over several paths on purpose.",
    Severity.NOTE,
    "IBA annex A17",
    "docs/reference/wire-formats.md#udp-source-port",
)
MESSAGE_PORT = Rule(
    "constant.message-port",
    "All packets of a message have one UDP source port: otherwise they may take different paths"
    " and arrive in another order.",
    Severity.WARNING,
    "IBA annex A17",
    "docs/reference/wire-formats.md#udp-source-port",
)
DSCP = Rule(
    "constant.dscp",
    "All packets that a queue pair sends have one DSCP or traffic class, unless a switch on the way"
    " changes it.",
    Severity.NOTE,
    "IBA 9.6.1.2, annex A17",
    "docs/reference/wire-formats.md#constant-fields",
)
RESERVED = Rule(
    "constant.reserved",
    "The 6 reserved bits beside FECN and BECN do not change.",
    Severity.WARNING,
    "IBA 9.2, annex A17.3.3",
    "docs/reference/wire-formats.md#reserved-bits",
    least=4,
)
MIG_REQ = Rule(
    "constant.mig-req",
    "MigReq changes when path migration is armed or takes place, and not for one packet.",
    Severity.NOTE,
    "IBA 17.2.8",
    "docs/reference/transport.md#migration",
)

RULES: tuple[Rule, ...] = (P_KEY, SOURCE_PORT, MESSAGE_PORT, DSCP, RESERVED, MIG_REQ)

KEEP = 256
"""Changes that are kept of one direction."""
KEEP_ALL = 1 << 16
"""Changes that are kept in all."""

_MANAGEMENT_QPS = 2

_RESPONSES = opcodes_where(lambda info: info.is_response)
_UD = opcodes_where(lambda info: info.service is Service.UD)
_INSIDE = frozenset(
    code for code, info in INFO.items() if info.position in (Position.MIDDLE, Position.LAST)
)


@dataclass(frozen=True, slots=True)
class _Field:
    """Bits of the number that holds all fields of a packet."""

    label: str
    digits: str
    shift: int
    width: int

    def of(self, value: int) -> int:
        return value >> self.shift & (1 << self.width) - 1

    @property
    def mask(self) -> int:
        return (1 << self.width) - 1 << self.shift


_P_KEY = _Field("P_Key", "0x{:04x}", 0, 16)
_PORT = _Field("UDP source port", "{}", 16, 16)
_DSCP = _Field("DSCP", "{}", 32, 6)
_RESERVED = _Field("reserved bits", "0x{:x}", 38, 6)
_MIG_REQ = _Field("MigReq", "{}", 44, 1)

_OF_DATAGRAMS = _P_KEY.mask | _RESERVED.mask
"""The rest depends on the address handle of each datagram."""

_NONE = np.uint64((1 << 64) - 1)


@dataclass(frozen=True, slots=True)
class _Change:
    """Two packets of one place, one after the other, with different values."""

    before: int
    """Number of the first."""
    number: int
    """Of the second."""
    old: int
    new: int
    opcode: int
    verified: bool


class Constants:
    """Finds changes while a capture is read, and judges them at its end."""

    def __init__(self) -> None:
        # By place: twice the flow, plus 1 for responses.
        self._last = np.full(1024, _NONE, np.uint64)
        self._number = np.zeros(1024, np.int64)
        self._changes: dict[int, list[_Change]] = {}
        self._kept = 0

    def take(self, chunk: Chunk, flow: npt.NDArray[np.int32]) -> None:
        """Compare the packets of a chunk with those before them.

        flow: (n,) of the packets of the chunk, -1 without.
        """
        kept = (flow >= 0) & (chunk["bth.destqp"] >= _MANAGEMENT_QPS) & (chunk.opcode != OpCode.CNP)
        rows = np.flatnonzero(kept)
        if not len(rows):
            return
        place = flow[rows].astype(np.int64) * 2 + chunk.are(_RESPONSES)[rows]
        value = self._values(chunk)[rows]
        self._grow(int(place.max()) + 1)
        if not (self._last[place] == value).all():
            self._compare(chunk, rows, place, value)
            self._last[place] = value
        self._number[place] = chunk.numbers[rows]

    @staticmethod
    def _values(chunk: Chunk) -> npt.NDArray[np.uint64]:
        """(n,) all fields of a packet as one number."""

        def put(name: str, field: _Field, right: int = 0) -> npt.NDArray[np.uint64]:
            return chunk[name].astype(np.uint64) >> np.uint64(right) << np.uint64(field.shift)

        value = put("bth.p_key", _P_KEY) | put("bth.resv6a", _RESERVED) | put("bth.m", _MIG_REQ)
        for header, name, field, right in (
            (outer.UDP, "udp.srcport", _PORT, 0),
            (outer.IPv4, "ip.dsfield.dscp", _DSCP, 0),
            (outer.IPv6, "ipv6.tclass.dscp", _DSCP, 0),
            (h.GRH, "grh.tclass", _DSCP, 2),
        ):
            if (chunk.columns.frames.position(header) >= 0).any():
                value |= put(name, field, right)
        datagrams = chunk.are(_UD)
        if datagrams.any():
            value[datagrams] &= np.uint64(_OF_DATAGRAMS)
        return value

    def _grow(self, places: int) -> None:
        if places > len(self._last):
            more = max(places, 2 * len(self._last)) - len(self._last)
            self._last = np.pad(self._last, (0, more), constant_values=_NONE)
            self._number = np.pad(self._number, (0, more))

    def _compare(
        self,
        chunk: Chunk,
        rows: npt.NDArray[np.int64],
        place: npt.NDArray[np.int64],
        value: npt.NDArray[np.uint64],
    ) -> None:
        order = np.argsort(place, kind="stable")
        place, value, rows = place[order], value[order], rows[order]
        is_first = np.diff(place, prepend=-1) != 0
        numbers = chunk.numbers[rows]
        old = np.where(is_first, self._last[place], np.roll(value, 1))
        before = np.where(is_first, self._number[place], np.roll(numbers, 1))
        changed = np.flatnonzero((old != value) & (old != _NONE))
        good = chunk["icrc.status"][rows] == GOOD
        for at in changed.tolist():
            changes = self._changes.setdefault(int(place[at]), [])
            if len(changes) >= KEEP or self._kept >= KEEP_ALL:
                continue
            self._kept += 1
            changes.append(
                _Change(
                    before=int(before[at]),
                    number=int(numbers[at]),
                    old=int(old[at]),
                    new=int(value[at]),
                    opcode=int(chunk.opcode[rows[at]]),
                    verified=bool(good[at]),
                )
            )

    @property
    def flows(self) -> set[int]:
        """Flows with a change."""
        return {place >> 1 for place in self._changes}

    def found(
        self, flow: int, restarts: Sequence[int]
    ) -> Iterator[tuple[Rule, list[int], str, bool]]:
        """What changed in a flow: rule, packets, words, and whether an ICRC was checked.

        restarts: numbers of the packets with which its connection began anew, ascending.
        """
        for place in (2 * flow, 2 * flow + 1):
            changes = [
                each
                for each in self._changes.get(place, ())
                if bisect_right(restarts, each.before) == bisect_right(restarts, each.number)
            ]
            yield from _judge(MIG_REQ, _MIG_REQ, _passing(changes))
            changes = [each for each in changes if _MIG_REQ.of(each.old) == _MIG_REQ.of(each.new)]
            yield from _judge(P_KEY, _P_KEY, changes)
            inside = [each for each in changes if each.opcode in _INSIDE]
            if any(_PORT.of(each.old) != _PORT.of(each.new) for each in inside):
                yield from _judge(MESSAGE_PORT, _PORT, inside)
            else:
                yield from _judge(SOURCE_PORT, _PORT, changes)
            yield from _judge(DSCP, _DSCP, changes)
            yield from _judge(RESERVED, _RESERVED, changes)


def _passing(changes: list[_Change]) -> list[_Change]:
    """Those to another MigReq that the next packet takes back."""
    migrations = [each for each in changes if _MIG_REQ.of(each.old) != _MIG_REQ.of(each.new)]
    return [
        each
        for each, following in pairwise(migrations)
        if following.before == each.number and _MIG_REQ.of(following.new) == _MIG_REQ.of(each.old)
    ]


def _judge(
    rule: Rule, field: _Field, changes: list[_Change]
) -> Iterator[tuple[Rule, list[int], str, bool]]:
    """The changes of one field, except those back to the value that it had at first."""
    changes = [each for each in changes if field.of(each.old) != field.of(each.new)]
    if not changes:
        return
    usual = field.of(changes[0].old)
    away = [each for each in changes if field.of(each.new) != usual]
    if rule is P_KEY and _UD[away[0].opcode] and len(away) == len(changes):
        return  # a queue pair of datagrams shows nowhere that its number is used again
    first = away[0]
    found = f"{name_of(first.opcode)} with {field.label} {field.digits.format(field.of(first.new))}"
    words = f"{found}, but {field.digits.format(usual)} in packet {first.before}"
    yield rule, [each.number for each in away], words, any(each.verified for each in away)
