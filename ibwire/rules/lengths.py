"""How many bytes a packet may hold: by its opcode, the path MTU, and the length in the RETH."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Self

import numpy as np

from ibwire.base.membership import are_among
from ibwire.connections.connection import MTUS
from ibwire.connections.packets import TransportPacket
from ibwire.connections.runs import Index
from ibwire.connections.states import PacketStatus
from ibwire.rules.aspects import Aspect
from ibwire.rules.findings import Rule, Severity
from ibwire.rules.history import (
    ENDS,
    FULL,
    IS_END,
    IS_FULL,
    IS_READ,
    READ_REQUESTS,
    ConnectionCheck,
    RequestHistory,
    Violation,
    known_mtu,
    knows_mtu,
)
from ibwire.rules.packet import Chunk, Mask, PacketRule, intact, opcodes_where
from ibwire.rules.regular import Regular
from ibwire_layers.errors import Fault
from ibwire_layers.headers import RETH
from ibwire_layers.opcodes import INFO, Operation, Payload, Position, name_of
from ibwire_layers.psn import MASK

NONE = Rule(
    "lengths.none",
    "READ requests, atomics, FLUSH, ACKs and CNPs carry no payload.",
    Severity.ERROR,
    "IBA 9.2.1",
    "docs/reference/wire-formats.md#opcodes",
)
FULL_SIZE = Rule(
    "lengths.full",
    "FIRST and MIDDLE packets carry exactly the path MTU: 256, 512, 1024, 2048 or 4096 bytes.",
    Severity.ERROR,
    "IBA 9.7.4, C9-92",
    "docs/reference/transport.md#segmentation; rxe_resp.c rxe_resp_check_length; probe-odd-frames",
)
LAST_EMPTY = Rule(
    "lengths.last",
    "A LAST packet carries at least one byte.",
    Severity.ERROR,
    "IBA 9.7.4, C9-92",
    "docs/reference/transport.md#segmentation; rxe_req.c next_opcode",
)
LIMIT = Rule(
    "lengths.limit",
    "No packet carries more than 4096 bytes.",
    Severity.ERROR,
    "IBA 9.7.4",
    "docs/reference/wire-formats.md#path-mtu",
)
PATH_MTU = Rule(
    "lengths.path-mtu",
    "All FIRST and MIDDLE packets of a connection have one size, and no packet is larger.",
    Severity.ERROR,
    "IBA 9.7.4, C9-92",
    "docs/reference/transport.md#packet-length; not checked by rxe 6.1: probe-odd-frames",
)
PADDING = Rule(
    "lengths.padding",
    "Payload and padding together are a multiple of 4 bytes.",
    Severity.ERROR,
    "IBA 9.2.4",
    "docs/reference/wire-formats.md#padding; rcx-all-ops, probe-odd-frames",
)
MESSAGE = Rule(
    "lengths.message",
    "A RETH asks for at most 2^31 bytes.",
    Severity.ERROR,
    "IBA 9.7.4, C9-94",
    "docs/reference/transport.md#message-size",
)
WRITE = Rule(
    "lengths.write",
    "The packets of an RDMA WRITE hold as many bytes together as its RETH says.",
    Severity.ERROR,
    "IBA 9.7.4",
    "docs/reference/transport.md#write-length; rxe_resp.c check_rkey; NAK 0x61 in probe-odd-frames",
)
EIGHT = Rule(
    "lengths.atomic-write",
    "An ATOMIC WRITE carries 8 bytes, and its RETH says 8.",
    Severity.ERROR,
    "IBA annex A19",
    "docs/reference/transport.md#atomic-write",
)
HEADERS = Rule(
    "lengths.headers",
    "The lengths in IP, UDP and LRH agree, and leave room for the headers of the opcode.",
    Severity.ERROR,
    "IBA 9.6.1, annex A17",
    "docs/reference/wire-formats.md#minimum-length; rxe_recv.c rxe_rcv",
)

RULES: tuple[Rule, ...] = (
    NONE,
    FULL_SIZE,
    LAST_EMPTY,
    LIMIT,
    PATH_MTU,
    PADDING,
    MESSAGE,
    WRITE,
    EIGHT,
    HEADERS,
)

LARGEST = MTUS[-1]
LARGEST_MESSAGE: Final = 1 << 31
"""Bytes (IBA 9.7.2)."""

_EMPTY = opcodes_where(lambda info: info.payload is Payload.NONE)
_FULL = opcodes_where(lambda info: info.payload is Payload.PMTU)
_SOME = opcodes_where(lambda info: info.payload is Payload.SOME)
_UPTO = opcodes_where(lambda info: info.payload in (Payload.SOME, Payload.ANY))
_EIGHT = opcodes_where(lambda info: info.payload is Payload.EIGHT)
_WRITE_ONLY = opcodes_where(
    lambda info: info.operation is Operation.WRITE and info.position is Position.ONLY
)
_RETH = opcodes_where(lambda info: RETH in info.headers)
_WRITE_FIRST = frozenset(
    code
    for code, info in INFO.items()
    if info.operation is Operation.WRITE and info.position is Position.FIRST
)
_IS_WRITE_FIRST = opcodes_where(lambda info: info.opcode in _WRITE_FIRST)
_IS_WRITE_PART = opcodes_where(
    lambda info: info.operation is Operation.WRITE and info.position is not Position.ONLY
)
_LENGTH_FAULTS = (Fault.LENGTH, Fault.UDP_LENGTH, Fault.PAD_COUNT)


def _size(chunk: Chunk) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return chunk["payload.len"]


def _is_partial(chunk: Chunk) -> Mask:
    size = _size(chunk)
    mask: Mask = chunk.are(_FULL) & ~are_among(size, MTUS)
    return mask


def _payload(chunk: Chunk, row: int) -> str:
    return f"{name_of(int(chunk.opcode[row]))} with {_size(chunk)[row]} bytes of payload"


def _pad(chunk: Chunk, row: int) -> str:
    return f"{_payload(chunk, row)} and PadCnt {chunk['bth.padcnt'][row]}"


def _dma(chunk: Chunk, row: int) -> str:
    return f"{_payload(chunk, row)} and DMALen {chunk['reth.dmalen'][row]}"


def _has_faulty_length(chunk: Chunk) -> Mask:
    mask: Mask = are_among(chunk.columns.frames.fault[chunk.rows], _LENGTH_FAULTS)
    return mask


def _fault(chunk: Chunk, row: int) -> str:
    fault = Fault(int(chunk.columns.frames.fault[chunk.rows[row]]))
    what = {
        Fault.LENGTH: "a length contradicts the frame or leaves no room for the headers",
        Fault.UDP_LENGTH: "the UDP length disagrees with the IP length",
        Fault.PAD_COUNT: "PadCnt is larger than what follows the headers",
    }
    return f"{name_of(int(chunk.opcode[row]))}: {what[fault]}, and the ICRC is correct"


PACKET_RULES: tuple[PacketRule, ...] = (
    PacketRule(
        NONE,
        lambda chunk: chunk.are(_EMPTY) & (_size(chunk) > 0),
        lambda chunk, row: f"{_payload(chunk, row)}, expected none",
        aspect=Aspect.SIZE,
    ),
    PacketRule(
        FULL_SIZE,
        _is_partial,
        lambda chunk, row: f"{_payload(chunk, row)}, which is not a path MTU",
        aspect=Aspect.SIZE,
    ),
    PacketRule(
        LAST_EMPTY,
        lambda chunk: chunk.are(_SOME) & (_size(chunk) == 0),
        lambda chunk, row: f"{_payload(chunk, row)}, expected at least 1",
        aspect=Aspect.SIZE,
    ),
    PacketRule(
        LIMIT,
        lambda chunk: chunk.are(_UPTO) & (_size(chunk) > LARGEST),
        lambda chunk, row: f"{_payload(chunk, row)}, expected at most {LARGEST}",
        aspect=Aspect.SIZE,
    ),
    PacketRule(
        PADDING,
        lambda chunk: (_size(chunk) + chunk["bth.padcnt"]) & 3 != 0,
        lambda chunk, row: f"{_pad(chunk, row)}, expected {-int(_size(chunk)[row]) % 4}",
        aspect=Aspect.SIZE,
    ),
    PacketRule(
        MESSAGE,
        lambda chunk: chunk.are(_RETH) & (chunk["reth.dmalen"] > LARGEST_MESSAGE),
        lambda chunk, row: f"{_dma(chunk, row)}, expected at most 2^31",
        aspect=Aspect.SIZE,
    ),
    PacketRule(
        WRITE,
        lambda chunk: chunk.are(_WRITE_ONLY) & (_size(chunk) != chunk["reth.dmalen"]),
        lambda chunk, row: f"{_dma(chunk, row)}, expected equal numbers",
        aspect=Aspect.SIZE,
    ),
    PacketRule(
        EIGHT,
        lambda chunk: chunk.are(_EIGHT) & ((_size(chunk) != 8) | (chunk["reth.dmalen"] != 8)),
        lambda chunk, row: f"{_dma(chunk, row)}, expected 8 and 8",
        aspect=Aspect.SIZE,
    ),
    PacketRule(HEADERS, _has_faulty_length, _fault, intact),
)


class PathMtu(ConnectionCheck):
    """One size for all packets that have to be full."""

    __slots__ = ()

    def request(self, packet: TransportPacket, status: PacketStatus) -> Iterable[Violation]:
        """Compare its size with the path MTU."""
        mtu = self.history.mtu
        if mtu is None or packet.size == mtu:
            return ()
        if packet.size < mtu and packet.opcode not in FULL:
            return ()
        return self._compare(packet, mtu)

    @staticmethod
    def _compare(packet: TransportPacket, mtu: int) -> Iterable[Violation]:
        """A packet of another size than the path MTU."""
        if packet.opcode in FULL and packet.size in MTUS:
            yield (
                PATH_MTU,
                f"{name_of(packet.opcode)} with {packet.size} bytes, earlier ones with {mtu}",
                packet,
            )
        elif packet.opcode not in FULL and mtu < packet.size <= LARGEST:
            found = f"{name_of(packet.opcode)} with {packet.size} bytes"
            yield PATH_MTU, f"{found}, but the path MTU is {mtu}", packet

    def response(self, packet: TransportPacket, status: PacketStatus) -> Iterable[Violation]:
        """The same of a response."""
        return self.request(packet, status)

    @classmethod
    def mark_alone(cls, checks: Sequence[Self], run: Regular) -> None:
        """Packets that are larger than the path MTU."""
        histories = [each.history for each in checks]
        known = known_mtu(histories, run)
        mtu = np.where(known > 0, known, run.mtu)
        asked = run.size > mtu[run.key]
        asked &= ~IS_FULL[run.opcode] & (run.size <= LARGEST)
        answered = run.answer_size > mtu[run.answer_key]
        answered &= ~IS_FULL[run.answer_opcode] & (run.answer_size <= LARGEST)
        if not asked.any() and not answered.any():
            return
        knows = knows_mtu(histories, run)
        run.mark_requests(knows & asked)
        knew = np.concatenate([[False], knows | IS_FULL[run.opcode]])[run.before]
        is_first = run.before == run.starts[run.answer_key]
        knew = np.where(is_first, known[run.answer_key] > 0, knew)
        run.mark_responses(knew & answered)


class Write(ConnectionCheck):
    """The RETH of a WRITE fixes the opcode and the size of every packet that follows it.

    The last RETH is compared with whatever comes under the PSNs that it takes, so
    neither loss nor sending again matters.
    """

    __slots__ = ("first",)

    def __init__(self, history: RequestHistory) -> None:
        super().__init__(history)
        self.first: TransportPacket | None = None

    def request(self, packet: TransportPacket, status: PacketStatus) -> Iterable[Violation]:
        """Compare with the RETH that it belongs to."""
        if packet.opcode in _WRITE_FIRST:
            self.first = packet
            if packet.dma_len <= packet.size and packet.size in MTUS:
                found = f"{name_of(packet.opcode)} with DMALen {packet.dma_len}"
                words = f"{found}, expected more than its own {packet.size} bytes"
                return [(WRITE, words, packet)]
            return ()
        first = self.first
        if first is None:
            return ()
        place = (packet.psn - first.psn) & MASK
        if not 0 < place * first.size < first.dma_len:
            return ()
        return self._compare(first, place, packet)

    def _compare(
        self, first: TransportPacket, place: int, packet: TransportPacket
    ) -> Iterable[Violation]:
        """A request with a PSN that the RETH takes, `place` behind it."""
        if packet.opcode in READ_REQUESTS or first.size not in MTUS:
            return ()
        info = INFO[packet.opcode]
        count = -(-first.dma_len // first.size)
        if info.operation is not Operation.WRITE or info.position is Position.ONLY:
            # If the order itself is wrong, the check of order reports it.
            self.first = None
            return ()
        size = first.size if place < count - 1 else first.dma_len - place * first.size
        is_last = place == count - 1
        if (packet.opcode in ENDS) == is_last and packet.size == size:
            return ()
        expected = f"{'LAST' if is_last else 'MIDDLE'} with {size}"
        found = f"{info.opcode.name} with {packet.size} bytes"
        where = f"packet {place + 1} of {count} of a WRITE of {first.dma_len} bytes"
        return [(WRITE, f"{found} as {where}, expected {expected}", packet)]

    @classmethod
    def mark_alone(cls, checks: Sequence[Self], run: Regular) -> None:
        """Packets that do not belong to the RETH before them."""
        opcode, size, psn = run.opcode, run.size, run.psn & MASK
        is_first = _IS_WRITE_FIRST[opcode]
        old = np.array(
            [
                (0, 0, 0)
                if (first := each.first) is None
                else (first.psn, first.size, first.dma_len)
                for each in checks
            ],
            np.int64,
        ).reshape(-1, 3)
        if not is_first.any() and not old.any():
            return
        run.mark_requests(is_first & (run.dma_len <= size) & _are_mtus(size))
        # The newest RETH before each packet: here, or from before these packets.
        newest = np.maximum.accumulate(np.where(is_first, np.arange(len(opcode)), -1))
        is_old = newest < run.starts[run.key]
        before = old[run.key]
        first_psn = np.where(is_old, before[:, 0], psn[newest])
        full = np.where(is_old, before[:, 1], size[newest])
        whole = np.where(is_old, before[:, 2], run.dma_len[newest])
        place = (psn - first_psn) & MASK
        count = -(-whole // np.maximum(full, 1))
        inside = ~is_first & ~IS_READ[opcode] & _are_mtus(full) & (place > 0) & (place < count)
        is_last = place == count - 1
        expected = np.where(is_last, whole - place * full, full)
        fits = _IS_WRITE_PART[opcode] & (IS_END[opcode] == is_last) & (size == expected)
        run.mark_requests(inside & ~fits)

    @classmethod
    def run(cls, checks: Sequence[Self], run: Regular) -> None:
        """Remember the last RETH of each exchange."""
        last = run.last_marked(_IS_WRITE_FIRST[run.opcode])
        have = [place for place, index in enumerate(last) if index >= 0]
        packets = run.packets(run.requests[[last[place] for place in have]])
        for place, packet in zip(have, packets, strict=True):
            checks[place].first = packet


def _are_mtus(size: Index) -> Mask:
    """(n,) which sizes are a path MTU: a power of two within the range; faster than `np.isin`."""
    found: Mask = (size & size - 1 == 0) & (size >= MTUS[0]) & (size <= MTUS[-1])
    return found
