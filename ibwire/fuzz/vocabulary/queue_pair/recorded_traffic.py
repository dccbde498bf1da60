"""Cases that begin with a recording: the requests to its device, and of its device.

The requests of a recorded connection become messages that mean the same on every connection:
PSNs are relative to the expected one, addresses to the first in the recording, lengths fit the
path MTU and the memory of a case. Such messages are the correct traffic between the operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Generic, TypeVar

from ibwire.base.errors import CaptureError
from ibwire.connections.device_packets import (
    DeviceConnection,
    DevicePacket,
    read_device_connection,
)
from ibwire.fuzz.case import Connection, Packet, Post, Role, Step, Value
from ibwire.fuzz.stepper import Maker
from ibwire.fuzz.targets.emulated_device import INBOX, OUTBOX, SIZE, Emulation
from ibwire.fuzz.vocabulary.queue_pair.generator import Generator, Menu
from ibwire.fuzz.vocabulary.queue_pair.traffic import Traffic
from ibwire.rc.attributes import MTU_CODES
from ibwire.rc.work import WROpcode
from ibwire_layers import headers as h
from ibwire_layers import syndrome as aeth
from ibwire_layers.opcodes import INFO, OpCode, Operation, Position
from ibwire_layers.psn import MASK, distance
from ibwire_layers.syndrome import AckKind

Thing = TypeVar("Thing")

RECORDED = 0.8
"""How much of the right traffic is recorded; the rest is made."""

MAXIMUM_POSTS = 4
"""Requests of the device that follow each other."""


@dataclass(slots=True)
class Seeds:
    """What a recording has."""

    mtu: int
    messages: list[list[Packet]] = field(default_factory=list)
    """Requests to the device."""
    posts: list[Post] = field(default_factory=list)
    """Its own requests."""

    def roles(self, role: Role) -> tuple[Role, ...]:
        """The roles that it has requests for, of those selected: one role or `both`."""
        found = {Role.RESPONDER: self.messages, Role.REQUESTER: self.posts}
        return tuple(name for name in found if found[name] and role in (name, Role.BOTH))


def read_seeds(path: str, device: str, qpn: int | None = None) -> Seeds:
    """The requests of a connection of a device in a capture; `qpn` selects one of several.

    Raises `CaptureError` as `read_device_connection`, and for a recording without any request.
    """
    recorded = read_device_connection(path, device, qpn)
    mtu = next((each for each in MTU_CODES if each >= recorded.mtu), max(MTU_CODES))
    seeds = Seeds(mtu, _messages(recorded, mtu), _posts(recorded))
    if not seeds.messages and not seeds.posts:
        raise CaptureError(path, None, f"there are no requests on the connection of {device}")
    return seeds


def seeded(seeds: Seeds, seed: int, role: Role, ops: Sequence[str] = ()) -> Maker:
    """The generator of each case, by its number; role: one that `Seeds.roles` has, or `both`."""
    menu, roles = Menu(ops), seeds.roles(role)

    def make(number: int) -> Generator:
        chosen = roles[number % len(roles)]
        return Seeded(Random(f"{seed}:{chosen}:{number}"), chosen, menu, seeds)

    return make


class Seeded(Generator):
    """One case whose correct traffic is mostly recorded, from some position on."""

    def __init__(self, rng: Random, role: Role, menu: Menu, seeds: Seeds) -> None:
        super().__init__(rng, role, menu)
        self.connection = replace(self.connection, mtu=seeds.mtu, room=INBOX)
        self.traffic = _RecordedTraffic(rng, self.connection, seeds)
        self._posts = _Loop(rng, seeds.posts)

    def _mutate(self, reference: Emulation) -> Sequence[Step]:
        if self.role is Role.REQUESTER and not reference.qp.sends.wqes:
            return [self._posts.next() for _ in range(self.rng.randint(1, MAXIMUM_POSTS))]
        return super()._mutate(reference)


class _RecordedTraffic(Traffic):
    """Right traffic: recorded messages in their order, sometimes one that is made."""

    def __init__(self, rng: Random, connection: Connection, seeds: Seeds) -> None:
        super().__init__(rng, connection)
        self._loop = _Loop(rng, seeds.messages)

    def messages(self, reference: Emulation) -> list[Packet]:
        """The next message: its packets in order."""
        if self._loop.is_empty or self.rng.random() >= RECORDED:
            return super().messages(reference)
        return self._loop.next()


class _Loop(Generic[Thing]):
    """A recording that begins somewhere and goes round."""

    def __init__(self, rng: Random, things: Sequence[Thing]) -> None:
        self._things = things
        self._at = rng.randrange(len(things)) if things else 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing on it."""
        return not self._things

    def next(self) -> Thing:
        """What comes next."""
        thing = self._things[self._at % len(self._things)]
        self._at += 1
        return thing


# What the device received.


def _messages(recorded: DeviceConnection, mtu: int) -> list[list[Packet]]:
    """Requests to the device by message; one that was not expected is by itself."""
    messages: list[list[Packet]] = []
    current: list[Packet] = []
    expected: int | None = None
    begin = _lowest_address(recorded)
    for each in recorded.packets:
        if not each.is_received:
            expected = _asked_again(each, expected)
            continue
        packet = _request(each, begin)
        if packet is None:
            continue
        psn = each.packet.bth.psn
        ahead = 0 if expected is None else distance(expected, psn)
        if ahead:
            messages.append([replace(packet, psn=("expected", ahead), why="recorded PSN")])
            continue
        expected = psn + _psns(each, recorded.mtu) & MASK
        position = INFO[packet.opcode].position
        if position in (Position.FIRST, Position.ONLY) or not current:
            current = []
            messages.append(current)
        current.append(packet)
    return [_fitting(message, mtu) for message in messages]


def _request(each: DevicePacket, begin: int) -> Packet | None:
    """A request that the device received, as a step; `None` for everything else."""
    bth, info = each.packet.bth, INFO.get(each.packet.bth.opcode)
    if info is None or info.is_response or bth.opcode == OpCode.CNP:
        return None
    fields: dict[str, Value] = {}
    if not bth.ack_req:
        fields["bth.ack_req"] = 0
    if bth.se:
        fields["bth.se"] = 1
    for header in each.packet.extensions:
        if isinstance(header, h.RETH):
            length = min(header.dma_len, SIZE)
            fields["reth.va"] = "va", (header.va - begin) % (SIZE - length + 1)
            fields["reth.dma_len"] = length
        elif isinstance(header, h.AtomicETH):
            fields["atomiceth.va"] = "va", (header.va - begin) % SIZE & ~7
            fields["atomiceth.swap"] = header.swap
            fields["atomiceth.compare"] = header.compare
        elif isinstance(header, h.ImmDt):
            fields["immdt.imm_data"] = header.imm_data
        elif isinstance(header, h.FETH):
            fields["feth.plt"], fields["feth.sel"] = header.plt, header.sel
    return Packet(bth.opcode, length=len(each.packet.payload), fields=fields)


def _fitting(message: list[Packet], mtu: int) -> list[Packet]:
    """A message that memory has room for: FIRST, LAST, and what fits of that between them."""
    most = SIZE // mtu
    if len(message) > most:
        message = [*message[: most - 1], message[-1]]
    total = sum(packet.length for packet in message)
    first = message[0]
    if "reth.dma_len" in first.fields and total:
        place = first.fields["reth.va"]
        assert isinstance(place, tuple)
        offset = min(place[1], SIZE - total)
        fields = {**first.fields, "reth.dma_len": total, "reth.va": ("va", offset)}
        message = [replace(first, fields=fields), *message[1:]]
    return message


def _asked_again(each: DevicePacket, expected: int | None) -> int | None:
    """What the device expects after it has sent a packet: NAKs name what comes again."""
    ack = each.packet.extension(h.AETH)
    if ack is None or aeth.kind(ack.syndrome) is AckKind.ACK:
        return expected
    return each.packet.bth.psn


def _psns(each: DevicePacket, mtu: int) -> int:
    """How many PSNs a request takes."""
    reth = each.packet.extension(h.RETH)
    if INFO[each.packet.bth.opcode].operation is Operation.READ and reth is not None:
        return max(-(-reth.dma_len // mtu), 1)
    return 1


def _lowest_address(recorded: DeviceConnection) -> int:
    found = [
        header.va
        for each in recorded.packets
        if each.is_received
        for header in each.packet.extensions
        if isinstance(header, h.RETH | h.AtomicETH)
    ]
    return min(found, default=0)


# The requests of the device.


def _posts(recorded: DeviceConnection) -> list[Post]:
    """The send requests of the device, each once, without retransmissions."""
    posts: list[Post] = []
    following: int | None = None
    length = 0
    for i in recorded.own_requests:
        each = recorded.packets[i]
        bth, info = each.packet.bth, INFO[each.packet.bth.opcode]
        if following is not None and distance(following, bth.psn):
            continue
        following = bth.psn + _psns(each, recorded.mtu) & MASK
        reth = each.packet.extension(h.RETH)
        length += len(each.packet.payload)
        if info.operation in (Operation.READ, Operation.FLUSH) and reth is not None:
            length = reth.dma_len
        if info.position in (Position.FIRST, Position.MIDDLE):
            continue
        opcode = _VERBS.get((info.operation, h.ImmDt in info.headers, h.IETH in info.headers))
        if opcode is not None:
            posts.append(Post(int(opcode), min(length, OUTBOX)))
        length = 0
    return posts


_VERBS = {
    (Operation.SEND, False, False): WROpcode.SEND,
    (Operation.SEND, True, False): WROpcode.SEND_WITH_IMM,
    (Operation.SEND, False, True): WROpcode.SEND_WITH_INV,
    (Operation.WRITE, False, False): WROpcode.RDMA_WRITE,
    (Operation.WRITE, True, False): WROpcode.RDMA_WRITE_WITH_IMM,
    (Operation.READ, False, False): WROpcode.RDMA_READ,
    (Operation.COMPARE_SWAP, False, False): WROpcode.ATOMIC_CMP_AND_SWP,
    (Operation.FETCH_ADD, False, False): WROpcode.ATOMIC_FETCH_AND_ADD,
    (Operation.FLUSH, False, False): WROpcode.FLUSH,
    (Operation.ATOMIC_WRITE, False, False): WROpcode.ATOMIC_WRITE,
}
"""Send requests by operation, immediate data and invalidation of their last packet."""
