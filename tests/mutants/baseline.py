"""What a block-based fuzzer such as boofuzz makes: the generator that ours is measured by.

Each kind of message is made of blocks, with an integer primitive for every field of its
headers and a byte string for the payload. What stands in one block because of another fits
(padding, DMA length, ICRC), and PSNs, keys and IDs are those of the connection. A case is a
path through a graph of messages on a new connection: messages that are right, then one in
which a primitive, seldom two, has a value of its library, and after it a right one, to see
whether the device still lives. As a server it answers what the device has asked for, the
last of the answers has such a value, and then it waits.

Without the paths it is the simplest that people write: one message on a new connection, with
one primitive that has a value of its library.

Source: boofuzz 0.4.2, `primitives/bit_field.py` and `primitives/bytes.py`: the values;
`sessions/session.py`: paths of which the last message is fuzzed, combinations by depth.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

from ibwire.base.units import MS
from ibwire.fuzz.case import Command, Connection, Mad, Packet, Post, Step, Value, Wait
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.vocabulary.cm.encoding import FORMS as MESSAGES
from ibwire.fuzz.vocabulary.queue_pair.messages import ATOMICS, FORMS, READ, answers
from ibwire.fuzz.vocabulary.queue_pair.response_mutators import in_turn
from ibwire.rc.work import WROpcode
from ibwire_layers import headers as h
from ibwire_layers.mad import MAD
from ibwire_layers.opcodes import INFO, OpCode, Position
from ibwire_layers.schema import Header

SIZES = (0, 1, 10, 100, 1000, 4096)
"""Bytes of payload in the library; what is longer than a packet can be is cut to `max_len`."""

TIMES = (2, 10, 100)
"""A payload is repeated so often."""

PATIENCE = 100 * MS
"""How long the device may take to send again: more than the timeout of a usual connection."""

WIDEST = 64
"""Bits of an integer primitive; what is longer is fuzzed in its first bytes."""


def library(width: int) -> list[int]:
    """The values of an integer primitive of some bits: around fractions of what it can hold."""
    top = 1 << width
    middles = [0, top, *(top // part for part in (2, 3, 4, 8, 16, 32))]
    near = {middle + i for middle in middles for i in range(-10, 10)}
    return sorted(value for value in near if 0 <= value < top)


class Baseline:
    """One case. rng: of this case alone. has_paths: or one message alone."""

    def __init__(self, rng: Random, role: str, *, has_paths: bool = True) -> None:
        self.rng = rng
        self._has_paths = has_paths
        self.connection = Connection(rq_psn=rng.getrandbits(24), sq_psn=rng.getrandbits(24))
        self._left: deque[Step] = deque()
        self._last: Packet | None = None
        self._after: Sequence[Step] = ()
        if role == "responder":
            *before, self._last = _path(rng) if has_paths else [_request(rng.choice(_REQUESTS))]
            self._left.extend(before)
            self._after = [_request(_PROBE)]
        elif role == "requester":
            self._left.extend(_wishes(rng) if has_paths else _wishes(rng)[:1])
            self._after = [Wait(PATIENCE)]
        else:
            said, name, self._after = rng.choice(_TALKS if has_paths else _TALKS[:2])
            self._left.extend(said)
            self._last = Mad(message=name)
        if not has_paths:
            self._after = ()
        self._is_over = False

    def next(self, reference: Emulation) -> Step | None:
        """The next step, `None` at the end of the case."""
        if not self._left and not self._is_over:
            self._is_over = True
            self._left.extend(self._fuzzed(reference))
            self._left.extend(self._after)
        return self._left.popleft() if self._left else None

    def _fuzzed(self, reference: Emulation) -> list[Packet]:
        """The message that is fuzzed; before it what else is answered."""
        if self._last is not None:
            return [self._with_a_value(self._last, reference)]
        right = in_turn(answers(reference))
        if right:
            del right[self.rng.randrange(len(right)) + 1 if self._has_paths else 1 :]
            right[-1] = self._with_a_value(right[-1], reference)
        return right

    def _with_a_value(self, packet: Packet, reference: Emulation) -> Packet:
        if self._has_paths:
            return fuzzed(packet, self.rng, reference)
        return _mutation(packet, self.rng, reference)


def fuzzed(packet: Packet, rng: Random, reference: Emulation) -> Packet:
    """A message with one primitive at a value of its library, or with two."""
    for _ in range(1 if rng.random() < 0.8 else 2):
        packet = _mutation(packet, rng, reference)
    return packet


def _mutation(packet: Packet, rng: Random, reference: Emulation) -> Packet:
    kind = packet.message if isinstance(packet, Mad) else packet.opcode
    name, width = rng.choice(_PRIMITIVES[kind])
    if name == _PAYLOAD:
        return _other_payload(packet, rng)
    value = rng.choice(_VALUES[width])
    if name == "bth.psn":
        base = reference.psn(packet.psn[0])
        return replace(packet, psn=(packet.psn[0], value - base), why=name)
    return replace(packet, fields={**packet.fields, name: value}, why=name)


def _other_payload(packet: Packet, rng: Random) -> Packet:
    """Another payload: the blocks that hold its size fit, or its bytes alone are others."""
    sizes = [*SIZES, *(min(packet.length * times, SIZES[-1]) for times in TIMES), packet.length]
    return replace(packet, length=rng.choice(sizes), at=rng.choice((0, 1, 255)), why="payload")


def _path(rng: Random) -> list[Packet]:
    """Requests from the beginning of the graph to the one that is fuzzed."""
    path = [_request(rng.choice(_ROOTS))] if rng.random() < 0.5 else []
    last = rng.choice(_REQUESTS)
    if last in _BEFORE:
        first, middle = _BEFORE[last]
        middles = int(rng.random() < 0.2)
        path += [_request(first, middles), *[_request(middle)] * middles]
    return [*path, _request(last)]


def _request(opcode: int, middles: int = 0) -> Packet:
    """A request with all its primitives as the user wrote them.

    middles: what follows a FIRST besides the LAST.
    """
    mtu = Connection().mtu
    fields: dict[str, Value] = {}
    length = 64 if INFO[opcode].position in (Position.ONLY, Position.LAST) else mtu
    if opcode == READ:
        length, fields = 0, {"reth.dma_len": 64}
    elif opcode == OpCode.RC_FLUSH:
        length, fields = 0, {"reth.dma_len": 64, "feth.plt": 1}
    elif opcode == OpCode.RC_ATOMIC_WRITE:
        length = 8
    elif opcode in ATOMICS:
        length, fields = 0, {"atomiceth.swap": 1}
    elif opcode == OpCode.RC_RDMA_WRITE_FIRST:
        fields = {"reth.dma_len": (1 + middles) * mtu + 64}
    return Packet(opcode, length=length, fields=fields)


def _wishes(rng: Random) -> list[Post]:
    """What the device is made to ask for, to answer it."""
    lengths = (8, 64, Connection().mtu, 3 * Connection().mtu)
    count = 1 if rng.random() < 0.7 else 2
    return [Post(int(rng.choice(_VERBS)), rng.choice(lengths)) for _ in range(count)]


def _integers(kind: type[Header]) -> list[tuple[str, int]]:
    """The primitives of a header: their names and bits."""
    part = kind.KEY.rpartition(".")[2]
    return [(f"{part}.{entry.name}", min(entry.size, WIDEST)) for entry in kind.FIELDS]


def _primitives(*kinds: type[Header]) -> list[tuple[str, int]]:
    return [each for kind in kinds for each in _integers(kind)] + [(_PAYLOAD, 0)]


_PAYLOAD = "payload"
_VALUES: Mapping[int, list[int]] = {width: library(width) for width in range(1, WIDEST + 1)}
_PRIMITIVES: Mapping[int | str, list[tuple[str, int]]] = {
    **{int(opcode): _primitives(h.BTH, *info.headers) for opcode, info in INFO.items()},
    **{name: _primitives(h.BTH, h.DETH, MAD, form.kind) for name, form in MESSAGES.items()},
}
"""Of requests and answers by opcode, and of messages of connection management by name."""

_RC = [int(opcode) for opcode in INFO if opcode < 0x20]
_REQUESTS = [opcode for opcode in _RC if not INFO[opcode].is_response]
_ROOTS = [opcode for opcode in _REQUESTS if INFO[opcode].position is Position.ONLY]
_PROBE = int(OpCode.RC_RDMA_WRITE_ONLY)
_BEFORE = {
    int(later): (int(first), int(middle))
    for first, middle, last, _ in FORMS.values()
    for later in (middle, last)
}
"""FIRST and MIDDLE of what comes before a message in the graph."""
_VERBS = (
    WROpcode.SEND,
    WROpcode.SEND_WITH_IMM,
    WROpcode.SEND_WITH_INV,
    WROpcode.RDMA_WRITE,
    WROpcode.RDMA_WRITE_WITH_IMM,
    WROpcode.RDMA_READ,
    WROpcode.ATOMIC_CMP_AND_SWP,
    WROpcode.ATOMIC_FETCH_AND_ADD,
    WROpcode.FLUSH,
    WROpcode.ATOMIC_WRITE,
)

_REQ, _ACCEPT, _CONNECT = Mad(message="REQ"), Command("accept"), Command("connect")
_LIVES = (Mad(message="REQ", exchange=1),)
_ANSWERED = (_ACCEPT, *_LIVES)
_ACTIVE = (_CONNECT, Mad(message="REP"), Command("ready"))
_PASSIVE = (_REQ, _ACCEPT, Mad(message="RTU"))
_TALKS: Sequence[tuple[Sequence[Step], str, Sequence[Step]]] = (
    ((), "REQ", _ANSWERED),
    ((), "SIDR_REQ", _ANSWERED),
    ((_REQ,), "REJ", _LIVES),
    ((_REQ, _ACCEPT), "RTU", _LIVES),
    ((_REQ, _ACCEPT), "REJ", _LIVES),
    ((_REQ, _ACCEPT), "MRA", _LIVES),
    (_PASSIVE, "DREQ", _LIVES),
    (_PASSIVE, "LAP", _LIVES),
    ((*_PASSIVE, Command("disconnect")), "DREP", _LIVES),
    ((_CONNECT,), "REP", (Command("ready"), *_LIVES)),
    ((_CONNECT,), "REJ", _LIVES),
    ((_CONNECT,), "MRA", _LIVES),
    (_ACTIVE, "DREQ", _LIVES),
    ((Command("resolve"),), "SIDR_REP", _LIVES),
)
"""Paths of connection management: what comes before, the message that is fuzzed, what after."""
