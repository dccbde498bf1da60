"""Bits that every packet has to get right: ICRC, padding, versions, reserved fields, keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from ibwire.rules.aspects import Aspect
from ibwire.rules.findings import EXAMPLES, Rule, Severity
from ibwire.rules.packet import BAD, GOOD, Chunk, Mask, PacketRule, opcodes_where
from ibwire_layers.headers import ImmDt
from ibwire_layers.opcodes import OpCode, Operation, Position, Service, name_of
from ibwire_layers.outer import ROCEV2_PORT

ICRC = Rule(
    "integrity.icrc",
    "Packets are sent with a correct ICRC.",
    Severity.ERROR,
    "IBA 7.8.1, annex A17.3.3",
    "docs/reference/wire-formats.md#icrc; all captures but frames damaged on purpose",
)
DAMAGED = Rule(
    "integrity.damaged",
    "Packets arrive as they were sent; a receiver drops damaged packets.",
    Severity.NOTE,
    "IBA 7.8.1",
    "docs/reference/transport.md#check-icrc; corrupt-both-3pc",
)
PAD_BYTES = Rule(
    "integrity.pad-bytes",
    "Padding bytes are 0.",
    Severity.WARNING,
    "IBA 9.2.4",
    "docs/reference/wire-formats.md#padding; rcx-all-ops",
)
TVER = Rule(
    "integrity.tver",
    "The transport version is 0.",
    Severity.ERROR,
    "IBA 9.2.5, 9.6.1.1",
    "docs/reference/wire-formats.md#transport-version; dropped in probe-odd-frames",
)
RESERVED = Rule(
    "integrity.reserved",
    "The 7 reserved bits beside AckReq are 0.",
    Severity.WARNING,
    "IBA 9.2",
    "docs/reference/wire-formats.md#reserved-bits; accepted by rxe: probe-odd-frames",
)
EXTENSION = Rule(
    "integrity.extension",
    "The reserved bits of DETH, XRCETH, RDETH and FETH are 0.",
    Severity.WARNING,
    "IBA 9.3, annex A14, annex A19",
    "docs/reference/wire-formats.md#reserved-bits",
)
BYTE_4 = Rule(
    "integrity.byte-4",
    "The 6 reserved bits beside FECN and BECN are 0.",
    Severity.WARNING,
    "IBA 9.2, annex A17.3.3",
    "docs/reference/wire-formats.md#reserved-bits; docs/reference/habits.md#hns-headers",
    ("hns",),
    is_trait=True,
    least=4,
)
MIG_REQ = Rule(
    "integrity.mig-req",
    "MigReq is 1 unless path migration is armed.",
    Severity.WARNING,
    "IBA 17.2.8",
    "docs/reference/transport.md#migration; docs/reference/habits.md#mig-req",
    ("rxe", "e810"),
    is_trait=True,
)
P_KEY = Rule(
    "integrity.p-key",
    "The lower 15 bits of a P_Key are not all 0.",
    Severity.ERROR,
    "IBA 10.9.2",
    "docs/reference/wire-formats.md#partition-key; dropped by rxe: probe-odd-frames",
)
SOLICITED = Rule(
    "integrity.se",
    "The solicited event bit is set only in the last packet of a SEND or WRITE with "
    "immediate data.",
    Severity.WARNING,
    "IBA 9.2.3",
    "docs/reference/transport.md#solicited-event; rcx-all-ops",
)

DEST_QP = Rule(
    "integrity.dest-qp",
    "Only datagrams have the destination queue pairs 0, 1 and 0xFFFFFF (multicast).",
    Severity.ERROR,
    "IBA 9.6.1.1, 10.5.2",
    "docs/reference/wire-formats.md#special-queue-pairs",
)
UDP_PORT = Rule(
    "integrity.udp-port",
    "The UDP destination port is 4791 in both directions.",
    Severity.WARNING,
    "IBA annex A17.3",
    "docs/reference/wire-formats.md#rocev2",
)

RULES: tuple[Rule, ...] = (
    ICRC,
    DAMAGED,
    PAD_BYTES,
    TVER,
    RESERVED,
    EXTENSION,
    BYTE_4,
    MIG_REQ,
    P_KEY,
    SOLICITED,
    DEST_QP,
    UDP_PORT,
)

SYSTEMATIC = 4
"""From this many wrong ICRCs on, without a correct one, it is the sender and not the network."""

_RESERVED = {
    "deth.reserved": "DETH",
    "xrceth.reserved": "XRCETH",
    "rdeth.reserved": "RDETH",
    "feth.reserved": "FETH",
}
_MULTICAST = 0xFFFFFF
_CONNECTED = opcodes_where(lambda info: info.service in (Service.RC, Service.UC, Service.XRC))
_SOLICITING = opcodes_where(
    lambda info: (
        info.position in (Position.LAST, Position.ONLY)
        and (
            info.operation is Operation.SEND
            or (info.operation is Operation.WRITE and ImmDt in info.headers)
        )
    )
)


def _has_padding(chunk: Chunk) -> Mask:
    frames = chunk.columns.frames
    pad = chunk["bth.padcnt"].astype(np.int64)
    end = frames.payload_end[chunk.rows]
    limit = frames.limit[chunk.rows]
    mask = np.zeros(len(chunk), np.bool_)
    for back in (1, 2, 3):
        held = np.flatnonzero((pad >= back) & (end <= limit))
        mask[held] |= frames.data[end[held] - back] != 0
    return mask


def _padding(chunk: Chunk, row: int) -> str:
    end = int(chunk.columns.frames.payload_end[chunk.rows[row]])
    found = chunk.columns.frames.data[end - int(chunk["bth.padcnt"][row]) : end]
    return f"{name_of(int(chunk.opcode[row]))} padded with {found.tobytes().hex(' ')}, expected 00"


def _says(field: str, label: str, expected: str) -> Callable[[Chunk, int], str]:
    """Words for a field that has to have one value."""

    def words(chunk: Chunk, row: int) -> str:
        found = f"{label} 0x{chunk[field][row]:x}"
        return f"{name_of(int(chunk.opcode[row]))} with {found}, expected {expected}"

    return words


def _is_set(field: str) -> Callable[[Chunk], Mask]:
    """Condition for a field that has to be 0."""
    return lambda chunk: np.asarray(chunk[field] != 0, np.bool_)


PACKET_RULES: tuple[PacketRule, ...] = (
    PacketRule(PAD_BYTES, _has_padding, _padding, aspect=Aspect.PAD_BYTES),
    PacketRule(
        TVER,
        lambda chunk: chunk["bth.tver"] != 0,
        _says("bth.tver", "TVer", "0"),
        aspect=Aspect.VERSION,
    ),
    PacketRule(
        RESERVED,
        lambda chunk: chunk["bth.reserved7"] != 0,
        _says("bth.reserved7", "reserved bits", "0"),
        aspect=Aspect.RESERVED,
    ),
    *(
        PacketRule(
            EXTENSION,
            _is_set(field),
            _says(field, f"reserved bits of the {header}", "0"),
            aspect=Aspect.EXTENSION,
        )
        for field, header in _RESERVED.items()
    ),
    PacketRule(
        BYTE_4,
        lambda chunk: chunk["bth.resv6a"] != 0,
        _says("bth.resv6a", "reserved bits", "0"),
        aspect=Aspect.BYTE_4,
    ),
    PacketRule(
        MIG_REQ,
        lambda chunk: chunk.are(_CONNECTED) & (chunk["bth.m"] == 0),
        _says("bth.m", "MigReq", "1"),
        aspect=Aspect.MIG_REQ,
    ),
    PacketRule(
        P_KEY,
        lambda chunk: (chunk["bth.p_key"] & 0x7FFF == 0) & (chunk.opcode != OpCode.CNP),
        _says("bth.p_key", "P_Key", "a partition"),
        aspect=Aspect.P_KEY,
    ),
    PacketRule(
        SOLICITED,
        lambda chunk: (
            ~chunk.are(_SOLICITING) & (chunk["bth.se"] != 0) & (chunk.opcode != OpCode.CNP)
        ),
        _says("bth.se", "SE", "0"),
        aspect=Aspect.SOLICITED,
    ),
    PacketRule(
        DEST_QP,
        lambda chunk: (
            chunk.are(_CONNECTED)
            & ((chunk["bth.destqp"] <= 1) | (chunk["bth.destqp"] == _MULTICAST))
        ),
        _says("bth.destqp", "destination queue pair", "one of a connection"),
        aspect=Aspect.DEST_QP,
    ),
    PacketRule(
        UDP_PORT,
        lambda chunk: (chunk["udp.dstport"] != ROCEV2_PORT) & (chunk["udp.dstport"] != 0),
        lambda chunk, row: (
            f"{name_of(int(chunk.opcode[row]))} from UDP port {chunk['udp.srcport'][row]} to "
            f"{chunk['udp.dstport'][row]}, expected to {ROCEV2_PORT}"
        ),
        aspect=Aspect.UDP_PORT,
    ),
)


class Tally:
    """Correct and wrong ICRCs, by flow and kind of packet.

    A frame damaged on the way is not an error of its sender; a sender that computes the ICRC
    wrongly does so always, or always for packets of one kind.
    """

    def __init__(self) -> None:
        self._keys = np.zeros(0, np.int64)
        """Flow, opcode and pad count as one number, ascending."""
        self._counts = np.zeros((0, 2), np.int64)
        """(keys, 2) right ones, wrong ones."""
        self._numbers: dict[int, list[int]] = {}
        """The first wrong ones of a flow."""

    def take(
        self,
        flow: npt.NDArray[np.int32],
        opcode: npt.NDArray[np.uint8],
        pad: npt.NDArray[np.uint8],
        status: npt.NDArray[np.uint8],
        number: npt.NDArray[np.int64],
    ) -> None:
        """Count some packets, all (n,)."""
        key = flow.astype(np.int64) << _KIND_BITS | opcode.astype(np.int64) << 2 | pad
        for column, value in enumerate((GOOD, BAD)):
            self._add(column, *np.unique(key[status == value], return_counts=True))
        for row in np.flatnonzero(status == BAD).tolist():
            numbers = self._numbers.setdefault(int(flow[row]), [])
            if len(numbers) < EXAMPLES:
                numbers.append(int(number[row]))

    def _add(self, column: int, keys: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> None:
        """Add to the counts of different keys (n,), ascending."""
        at = np.searchsorted(self._keys, keys)
        is_new = np.append(self._keys, -1)[at] != keys
        if is_new.any():
            self._keys = np.insert(self._keys, at[is_new], keys[is_new])
            self._counts = np.insert(self._counts, at[is_new], 0, axis=0)
            at = np.searchsorted(self._keys, keys)
        self._counts[at, column] += counts

    def _of(self, flow: int) -> slice:
        """Where the keys of a flow are."""
        first, end = np.searchsorted(self._keys, (flow << _KIND_BITS, flow + 1 << _KIND_BITS))
        return slice(int(first), int(end))

    def totals(self) -> dict[int, list[int]]:
        """Right and wrong ones by flow."""
        if not len(self._keys):
            return {}
        flow = self._keys >> _KIND_BITS
        starts = np.flatnonzero(np.diff(flow, prepend=-1))
        sums = np.add.reduceat(self._counts, starts)
        return dict(zip(flow[starts].tolist(), sums.tolist(), strict=True))

    def move(self, flow: int, home: int) -> None:
        """Count a flow as part of another one: the damage was in distinguishing fields."""
        old = self._of(flow)
        keys, wrong = self._keys[old], self._counts[old, 1].copy()
        self._counts[old] = 0
        self._add(1, keys + (home - flow << _KIND_BITS), wrong)
        numbers = self._numbers.setdefault(home, [])
        numbers[:] = sorted(numbers + self._numbers.pop(flow))[:EXAMPLES]

    def found(self) -> Iterator[tuple[Rule, int, list[int], int, str]]:
        """Rule, flow, packets, how many they are, and words."""
        for flow, numbers in self._numbers.items():
            at = self._of(flow)
            good, bad = self._counts[at].sum(axis=0).tolist()
            always = [
                key >> 2 & 0xFF
                for key, (right, wrong) in zip(
                    self._keys[at].tolist(), self._counts[at].tolist(), strict=True
                )
                if wrong >= SYSTEMATIC and not right
            ]
            words = f"{bad} of {good + bad} packets have a wrong ICRC"
            if always and good:
                names = ", ".join(sorted({name_of(opcode) for opcode in always}))
                words += f", among them every {names} of the same padding"
            if always or (bad >= SYSTEMATIC and bad >= good):
                yield ICRC, flow, numbers, bad, words
            else:
                yield DAMAGED, flow, numbers, bad, words


_KIND_BITS = 10
"""Bits of an opcode and a pad count in the key of a count."""
