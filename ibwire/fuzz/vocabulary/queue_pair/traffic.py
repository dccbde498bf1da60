"""Right traffic to a responder: what operators start from, and bring connections into states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from random import Random
from typing import TypeVar

from ibwire.fuzz.case import Connection, Packet, Value
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.vocabulary.queue_pair.messages import ATOMICS, FORMS, message, read
from ibwire.rc.memory import Access
from ibwire_layers.opcodes import OpCode, Operation

_O = OpCode
_T = TypeVar("_T")

KINDS = ("SEND", "SEND", "SEND_IMM", "SEND_INV", "WRITE", "WRITE", "WRITE", "WRITE_IMM")
"""Kinds of messages of several packets, repeated by frequency."""

OPERANDS = (0, 1, 5, (1 << 63), (1 << 64) - 1, 0x0102030405060708)
"""Of atomics: edges, and few others, so that a compare may succeed."""


class Traffic:
    """Right traffic of a case, and what has been sent so far."""

    def __init__(self, rng: Random, connection: Connection) -> None:
        self.rng = rng
        self.mtu = connection.mtu
        self._room = connection.room
        self._kinds = _kinds(connection.access, connection.max_dest_rd_atomic > 0)
        self.sent: list[tuple[Packet, int]] = []
        """Executed packets, each with its PSN, for retransmission."""
        self.others: Sequence[Sequence[tuple[Packet, int]]] = ()
        """Those of the other queue pairs of the device."""

    def below(self, limit: int) -> int:
        """A number from 0; twice as fast as `randrange`."""
        return int(self.rng.random() * limit)

    def one_of(self, options: Sequence[_T]) -> _T:
        """One of them, as `choice` gives it."""
        return options[int(self.rng.random() * len(options))]

    def length(self) -> int:
        """Bytes of a message; mostly where something changes."""
        draw, mtu = self.rng.random(), self.mtu
        if draw < 0.35:
            return self.one_of(_SHORT)
        if draw < 0.7:
            return mtu * (1 + self.below(3)) + self.one_of((-1, 0, 0, 1, 5))
        return self.below(4 * mtu)

    def place(self, length: int) -> Mapping[str, Value]:
        """Where in memory, inside what the key opens."""
        draw = self.rng.random()
        if draw < 0.3:
            return {}
        if draw < 0.5:
            return {"reth.va": ("end", -length)}
        if draw < 0.6 and length <= 512:
            return {"reth.va": ("mw.end", -length), "reth.rkey": ("mw.rkey", 0)}
        return {"reth.va": ("va", self.below(8192 - length))}

    def messages(self, reference: Emulation) -> list[Packet]:
        """A right message: its packets in order."""
        kind = self.one_of(self._kinds)
        if kind in FORMS:
            length = self.length()
            if kind.startswith("SEND"):
                length = min(length, self._room)
            place = self.place(length) if kind.startswith("WRITE") else {}
            at, asks = self.below(1 << 16), self.rng.random() < 0.5
            return message(kind, length, self.mtu, place, at, asks)
        if kind == "READ":
            length = min(self.length(), self.one_of((self.mtu, 4 * self.mtu)))
            return [read(length, self.place(length))]
        if kind == "ATOMIC":
            return [self.atomic(reference)]
        if kind == "ATOMIC_WRITE":
            place = {"reth.va": ("va", self.word())}
            return [Packet(int(_O.RC_ATOMIC_WRITE), length=8, fields=place)]
        return [_flush(self.length())]

    def atomic(self, reference: Emulation) -> Packet:
        """A right COMPARE SWAP or FETCH ADD; it compares with what is there, or nearly."""
        offset = self.word()
        fields: dict[str, Value] = {
            "atomiceth.va": ("va", offset),
            "atomiceth.swap": self.one_of(OPERANDS),
        }
        opcode = self.one_of(ATOMICS)
        if opcode is _O.RC_COMPARE_SWAP:
            there = reference.region.load64(offset)
            near = there, there, there ^ 1 << self.below(64), self.one_of(OPERANDS)
            fields["atomiceth.compare"] = self.one_of(near)
        return Packet(int(opcode), fields=fields)

    def word(self) -> int:
        """The offset of an aligned word; few, so that the same are hit again."""
        return self.below(8) * 8


@lru_cache(maxsize=256)
def _kinds(access: int, has_reads: bool) -> Sequence[str]:
    """Kinds of messages that a queue pair allows, and once each of the others."""
    if not has_reads:
        return [*("SEND", "WRITE") * 40, *_NEEDS]
    allowed = [kind for kind, right in _NEEDS.items() if access & right]
    return [*allowed * 8, *_NEEDS]


def _flush(length: int) -> Packet:
    """A right FLUSH: of one placement or both, of a range, or of the region wherever that ends."""
    fields: dict[str, Value] = {"reth.dma_len": length, "feth.plt": 1 + length % 3}
    if length & 1:
        fields |= {"feth.sel": 1, "reth.va": ("end", 0)}
    return Packet(int(_O.RC_FLUSH), fields=fields)


def following(traffic: Traffic, reference: Emulation) -> Packet:
    """A packet that would be right now, of the message under way if there is one."""
    if reference.under_way is not None:
        kind = "SEND" if reference.under_way is Operation.SEND else "WRITE"
        rest = reference.qp.responder.missing
        if kind == "WRITE" and rest <= traffic.mtu:
            return Packet(int(FORMS[kind][2]), length=rest)
        receives = reference.qp.receives
        room = traffic.mtu if kind == "WRITE" else receives.room - receives.filled
        if kind == "WRITE" or (room > traffic.mtu and traffic.rng.random() < 0.5):
            return Packet(int(FORMS[kind][1]), length=traffic.mtu)
        return Packet(
            int(FORMS[kind][2]), length=1 + int(traffic.rng.random() * min(room, traffic.mtu))
        )
    return traffic.messages(reference)[0]


def long_message(traffic: Traffic) -> list[Packet]:
    """A message of two to four packets."""
    rng = traffic.rng
    length = traffic.mtu * rng.randrange(1, 4) + rng.choice((1, 4, traffic.mtu))
    return message(rng.choice(KINDS), length, traffic.mtu, {}, rng.randrange(1 << 16))


_SHORT = (0, 0, 1, 2, 3, 4, 5, 7, 8, 16)
_NEEDS: Mapping[str, int] = {
    **dict.fromkeys(("SEND", "SEND_IMM", "SEND_INV"), -1),
    **dict.fromkeys(("WRITE", "WRITE_IMM", "ATOMIC_WRITE"), int(Access.REMOTE_WRITE)),
    "READ": int(Access.REMOTE_READ),
    "ATOMIC": int(Access.REMOTE_ATOMIC),
    "FLUSH": int(Access.FLUSH_GLOBAL),
}
"""Which right of the queue pair a message needs."""
