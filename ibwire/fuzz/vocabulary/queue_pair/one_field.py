"""Cases of few packets: a valid exchange with a queue pair in which one field is changed.

They are the simplest that there are, and meet what depends on one field alone long before the
longer cases do, in which most packets meet a state that others have made.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import islice
from random import Random

from ibwire.base.units import MS, US
from ibwire.fuzz.case import GOOD, Connection, Packet, Post, Role, Step, Value, Wait
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.vocabulary.deck import Card, Change, Deck, Order, changes_of
from ibwire.fuzz.vocabulary.queue_pair.messages import ATOMICS, FORMS, READ, answers
from ibwire.fuzz.vocabulary.queue_pair.response_mutators import in_turn
from ibwire.rc.work import WROpcode
from ibwire_layers import headers as h
from ibwire_layers.opcodes import INFO, OpCode, Position
from ibwire_layers.psn import MASK
from ibwire_layers.schema import Header

MTU = Connection().mtu
LENGTH = 64
"""Bytes of a message of one packet."""

LONG_WAIT = 100 * MS
"""Longer than the ACK timeout of a connection with the usual attributes."""


COARSE = 8 * MS
"""More than the steps in which a device may count time (the choice `rnr_granularity`)."""


class OneField:
    """One case of a deck. rng: of this case alone."""

    def __init__(self, rng: Random, role: Role, card: Card) -> None:
        self._card = card
        self._role = role
        self.connection = Connection(rq_psn=_first_psn(rng), sq_psn=_first_psn(rng))
        """The connection that the case begins with."""
        self._steps: deque[Step] = deque()
        self._is_changed = False
        self._waits = 0
        """Waits that are left: the first one until soon after the next timer."""
        if role is Role.RESPONDER:
            opcode = REQUESTS[card.exchange]
            if card.turn >= BARE and card.turn % 2 and opcode in _FIRSTS:
                self._steps.append(request(_FIRSTS[opcode]))
        else:
            self._steps.append(Post(*WISHES[card.exchange]))

    def next(self, reference: Emulation) -> Step | None:
        """The next step, `None` at the end of the case."""
        if not self._steps and not self._is_changed:
            self._is_changed = True
            self._steps.extend(self._changed(reference))
        if self._steps:
            return self._steps.popleft()
        self._waits -= 1
        return self._wait(reference) if self._waits >= 0 else None

    def _wait(self, reference: Emulation) -> Step:
        due = reference.node.poll_timeout() if self._waits else None
        if due is None or due - reference.now >= LONG_WAIT:
            self._waits = 0
            return Wait(LONG_WAIT)
        return Wait(max(due - reference.now, 0) // US * US + COARSE)

    def _changed(self, reference: Emulation) -> Sequence[Step]:
        """The packet with another value in one field, and sometimes what shows its effect."""
        card, symbols = self._card, reference.symbols
        if self._role is Role.RESPONDER:
            packet = changed(request(REQUESTS[card.exchange]), card, symbols)
            return [packet, request(PROBE)] if _has_another(card) else [packet]
        right = in_turn(islice(answers(reference), 2 if _has_another(card) else 1))
        if card.turn % 2 or not right:
            self._waits = 2
        return [changed(right[0], card, symbols), *right[1:]] if right else []


def _first_psn(rng: Random) -> int:
    """Any PSN, or one at which the PSNs soon wrap or have just wrapped."""
    return rng.getrandbits(24) if rng.random() < 0.5 else rng.randrange(-4, 4) & MASK


def _has_another(card: Card) -> bool:
    """Whether another packet follows the one that is changed."""
    return card.turn >= BARE and card.turn % 4 == PROBED


def deck(seed: int, role: Role) -> Deck:
    """The deck of a role of a queue pair."""
    opcodes = REQUESTS if role is Role.RESPONDER else [_answer_to(*wish) for wish in WISHES]
    return Deck(
        f"{seed}:{role}",
        [fields_of(opcode) for opcode in opcodes],
        changes_for,
        order_of(opcodes, Random(f"{seed}:{role}:order")),
    )


def changed(packet: Packet, card: Card, symbols: Mapping[str, int]) -> Packet:
    """A packet with another value in the field of a card."""
    name, change = card.field, card.change
    if name == PAYLOAD:
        return packet.altered(length=change.number, why=name)
    if name == TAIL:
        return packet.altered(**_TAILS[change.number], why=name)
    if name == "icrc":
        return packet.altered(icrc=GOOD | change.number, why="ICRC")
    if name == "bth.psn":
        base, offset = packet.psn
        return packet.altered(psn=(base, offset + change.number), why=name)
    right = packet.fields.get(name, _RIGHT.get(name, 0))
    if name == "bth.opcode":
        right = packet.opcode
    if name == "reth.dma_len" and name not in packet.fields:
        right = packet.length
    fields = {**packet.fields, name: change.of(right, symbols)}
    return packet.altered(fields=fields, why=name)


@cache
def fields_of(opcode: int) -> Sequence[str]:
    """What is changed in a packet: the fields of its headers, its payload, what is after it.

    Twice as often: the PSN, the payload, and the fields that few packets have.
    """
    extended = INFO[opcode].headers
    own = [f"{kind.KEY}.{entry.name}" for kind in extended for entry in kind.FIELDS]
    return [*(f"{h.BTH.KEY}.{entry.name}" for entry in h.BTH.FIELDS), *own, *own, *_OTHERS]


def order_of(opcodes: Sequence[int], rng: Random) -> Order:
    """One part of a message, then two whole ones, and of each what it shows best.

    A part is out of its place when it comes alone, which shows as long as it is not dropped for
    something else. A whole message shows best whether what is checked first is checked; half of
    them begin with what is ignored, which shows whether a right message is executed at all.
    """
    is_part = [_is_part(each) for each in opcodes]
    is_executed = [rng.random() < 0.4 for _ in opcodes]

    def exchanges(shuffled: Sequence[int]) -> Sequence[int]:
        parts = [each for each in shuffled if is_part[each]]
        whole = [each for each in shuffled if not is_part[each]]
        arranged: list[int] = []
        for place in range(len(shuffled)):
            arranged += [*parts[place : place + 1], *whole[2 * place : 2 * place + 2]]
        return arranged

    def is_early(exchange: int, name: str) -> bool:
        if is_executed[exchange] and not is_part[exchange]:
            return name in _IGNORED
        return (name in _CHECKED) is not is_part[exchange] and name != "bth.ack_req"

    return Order(exchanges, is_early)


def _is_part(opcode: int) -> bool:
    """Whether a packet is only a part of a message."""
    return INFO[opcode].position not in (Position.ONLY, None)


@cache
def changes_for(name: str) -> Sequence[Change]:
    """What a field may become."""
    if name in _CHANGES:
        return _CHANGES[name]
    part, _, key = name.partition(".")
    (width,) = (entry.size for entry in _HEADERS[part].FIELDS if entry.name == key)
    return changes_of(min(width, 64))


def request(opcode: int) -> Packet:
    """A right request of one packet, or the part of a longer one."""
    fields: dict[str, Value] = {}
    length = LENGTH if INFO[opcode].position in (Position.ONLY, Position.LAST) else MTU
    if opcode in (READ, OpCode.RC_FLUSH):
        length, fields = 0, {"reth.dma_len": LENGTH}
    elif opcode in ATOMICS:
        length, fields = 0, {"atomiceth.swap": 1}
    elif opcode == OpCode.RC_ATOMIC_WRITE:
        length = 8
    elif opcode == OpCode.RC_RDMA_WRITE_FIRST:
        fields = {"reth.dma_len": MTU + LENGTH}
    return Packet(opcode, length=length, fields=fields)


def _answer_to(verb: int, length: int) -> int:
    """The opcode of the first packet that answers a request."""
    if verb == WROpcode.RDMA_READ:
        read = OpCode.RC_RDMA_READ_RESPONSE_ONLY if length <= MTU else _READ_FIRST
        return int(read)
    if verb in (WROpcode.FLUSH, WROpcode.ATOMIC_WRITE):
        return int(OpCode.RC_RDMA_READ_RESPONSE_ONLY)
    is_atomic = verb in (WROpcode.ATOMIC_CMP_AND_SWP, WROpcode.ATOMIC_FETCH_AND_ADD)
    return int(OpCode.RC_ATOMIC_ACKNOWLEDGE if is_atomic else OpCode.RC_ACKNOWLEDGE)


_READ_FIRST = OpCode.RC_RDMA_READ_RESPONSE_FIRST

PAYLOAD, TAIL = "payload", "tail"
_OTHERS = ("bth.psn", PAYLOAD, PAYLOAD, TAIL, "icrc")
_CHECKED = (
    *("bth.opcode", "bth.pad_count", "bth.tver", "bth.pkey", "bth.dest_qp"),
    *(TAIL, "icrc"),
)
"""What decides whether a packet is taken at all (IBA 9.6)."""

_IGNORED = ("bth.resv6a", "bth.resv7", "bth.fecn", "bth.becn", "bth.se", "bth.mig_req")
"""What makes no difference for how a packet is executed."""

PROBE = int(OpCode.RC_RDMA_WRITE_ONLY)
PROBED = 3
"""Of four cases of an exchange this one has another packet after the one that is changed."""

BARE = 3
"""The first cases of each exchange have no packet but the one that is changed: what that shows
alone is found soonest.
"""

_HEADERS: Mapping[str, type[Header]] = {
    h.BTH.KEY: h.BTH,
    **{kind.KEY: kind for info in INFO.values() for kind in info.headers},
}
_RIGHT: Mapping[str, Value] = {
    "bth.pkey": ("pkey", 0),
    "bth.dest_qp": ("qpn", 0),
    "bth.ack_req": 1,
    "reth.va": ("va", 0),
    "reth.rkey": ("rkey", 0),
    "atomiceth.va": ("va", 0),
    "atomiceth.rkey": ("rkey", 0),
    "ieth.rkey": ("mw.rkey", 0),
    "aeth.syndrome": 0x1F,
    "feth.plt": 1,
}
"""Values that a packet has without naming them (`encoding`), where they are not 0."""

_TAILS: Sequence[dict[str, int]] = (
    *({"pad": pad} for pad in (1, 2, 3)),
    *({"more": more} for more in (1, 4)),
    *({"cut": cut} for cut in (0, 4, 8, 11, 12, 15, 16, 20, 27, 28, 32, 40)),
)
"""What is after the headers, and where a packet is cut."""

_LENGTHS = (
    *(0, 1, 2, 3, 4, 7, 8, LENGTH - 4, LENGTH - 1, LENGTH + 1, LENGTH + 4, 100, 2 * LENGTH),
    *(MTU - 1, MTU, MTU + 1, MTU + 4, 1000, 1024, 1025, 4096),
)
_DISTANCES = (
    *(1, 1, 2, 3, -1, -1, -1, -2, -2, -3, 16, -16, 255, 256, -256, 1 << 16, -(1 << 16)),
    *(1 << 22, -(1 << 22), (1 << 23) - 1, 1 << 23, -(1 << 23) + 1),
)
_SERVICES = (*[0x20] * 128, *[0x60] * 32, *[0xA0] * 16, *[0x40] * 8)
"""Bits of an opcode in which UC, UD, XRC and RD differ from RC, each as often as it is tried."""

_SYNDROMES = (
    *(0x60, 0x61, 0x61, 0x62, 0x62, 0x63, 0x63, 0x64, 0x65, 0x7F),
    *(0x20, 0x2C, 0x33, 0x3F, 0x40, 0x47, 0x5F, 0x00, 0x01, 0x1E, 0x80, 0xFF),
)
"""NAKs, of which some end the connection, RNR NAKs, reserved values, credits (IBA 9.7.5.2)."""

_CHANGES: Mapping[str, Sequence[Change]] = {
    PAYLOAD: [Change(each) for each in _LENGTHS],
    TAIL: [Change(each) for each in range(len(_TAILS))],
    "icrc": [Change(1 << bit) for bit in range(32)],
    "bth.pkey": [*(Change(1 << bit, flips=True) for bit in range(16)), Change(0), Change(0x1234)],
    "bth.psn": [Change(each) for each in _DISTANCES],
    "aeth.syndrome": [
        *(Change(1 << bit, flips=True) for bit in range(8)),
        *map(Change, _SYNDROMES),
    ],
    "bth.opcode": [
        *(Change(service, flips=True) for service in _SERVICES),
        *(Change(each) for each in (*range(0x20), *range(0x100))),
    ],
}
"""Changes of what is not a plain number; opcodes of RC more often than others, and most often
the same operation of another service.
"""

_RC = [int(opcode) for opcode in INFO if opcode < 0x20]
REQUESTS = [opcode for opcode in _RC if not INFO[opcode].is_response]
"""Opcodes of requests."""

_FIRSTS = {int(later): int(form[0]) for form in FORMS.values() for later in (form[1], form[2])}
"""What has to come before a MIDDLE or LAST."""

_W = WROpcode
_SHORT = (
    *(_W.SEND, _W.SEND_WITH_IMM, _W.SEND_WITH_INV, _W.RDMA_WRITE, _W.RDMA_WRITE_WITH_IMM),
    *(_W.RDMA_READ, _W.FLUSH),
)
WISHES: Sequence[tuple[int, int]] = (
    *((int(verb), LENGTH) for verb in _SHORT),
    *((int(verb), 8) for verb in (_W.ATOMIC_CMP_AND_SWP, _W.ATOMIC_FETCH_AND_ADD)),
    (int(_W.ATOMIC_WRITE), 8),
    *((int(verb), 3 * MTU) for verb in (_W.SEND, _W.RDMA_WRITE, _W.RDMA_READ)),
    (int(_W.RDMA_READ), 8),
)
"""What a requester is made to ask for: verbs, and bytes of each."""
