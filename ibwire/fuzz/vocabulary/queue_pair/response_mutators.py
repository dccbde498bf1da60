"""Mutators of responses: what a hostile or broken responder sends to a requester.

Each takes the correct responses to the device's requests and changes them. The table
of all operators is `ibwire.fuzz.vocabulary.operators`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

from ibwire.base.units import ACK_TIMEOUT_UNIT, MS, NS, US, Time
from ibwire.fuzz.case import BAD, Connection, Packet, Post, Step, Value, Wait
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.vocabulary.queue_pair.request_operators import around, changed
from ibwire.rc.work import WROpcode
from ibwire_layers import headers as h
from ibwire_layers.opcodes import INFO, OpCode
from ibwire_layers.syndrome import RNR_TIMER_US, AckKind, NakCode

_O = OpCode
ACK, READ_ONLY, ATOMIC_ACK = (
    int(_O.RC_ACKNOWLEDGE),
    int(_O.RC_RDMA_READ_RESPONSE_ONLY),
    int(_O.RC_ATOMIC_ACKNOWLEDGE),
)
READ_FIRST, READ_MIDDLE, READ_LAST = (
    int(_O.RC_RDMA_READ_RESPONSE_FIRST),
    int(_O.RC_RDMA_READ_RESPONSE_MIDDLE),
    int(_O.RC_RDMA_READ_RESPONSE_LAST),
)


def posts(rng: Random, reference: Emulation) -> Sequence[Step]:
    """What the application of the device asks for."""
    steps = []
    mtu = reference.qp.mtu
    lengths = 0, 1, 8, 8, mtu - 1, mtu, mtu, mtu + 1, 3 * mtu + 5
    reads = (
        0,
        1,
        8,
        mtu - 1,
        mtu,
        mtu + 1,
        2 * mtu,
        3 * mtu + 5,
        4 * mtu,
        8 * mtu,
        12 * mtu,
        16 * mtu,
    )
    for _ in range(rng.choice((1, 1, 2, 2, 3))):
        opcode = rng.choice(_VERBS)
        # What a READ brings is of the fuzzer, and many right answers for one request;
        # a long message of the device adds little.
        length = rng.choice(reads if opcode == _READ else lengths)
        steps.append(Post(opcode, length, rng.randrange(64) * 8, rng.random() < 0.8))
    return steps


def waits(rng: Random, reference: Emulation) -> Sequence[Step]:
    """Time passes: nearly to, just over, or well over the times that count."""
    connection = reference.connection
    timeout = _timeout(connection)
    times = [1 * US, 1 * MS, timeout // 2, timeout - 1 * NS, timeout, timeout + 1 * NS]
    due = reference.device.poll_timeout()
    if due is not None:
        left = max(due - reference.now, 1)
        times += [left, left - 1, left + 1, left // 2]
    return [Wait(max(rng.choice(times), 1))]


def other_psn(rng: Random, reference: Emulation, right: list[Packet]) -> Sequence[Step]:
    """An answer to what was answered, to something later, or to what was never sent."""
    packet = _one_of(rng, right)
    sends = reference.qp.sends
    sent = sends.next_psn - sends.una & 0xFFFFFF
    offsets = (-1, -2, 0, 1, sent - 1, sent, sent + 1, 1 << 22, (1 << 23) - 1, 1 << 23, -(1 << 22))
    return [packet.altered(psn=("una", rng.choice(offsets)), why="PSN")]


def sequence_nak(rng: Random, reference: Emulation, right: list[Packet]) -> Sequence[Step]:
    """A sequence NAK: of something on its way, acknowledged, or never sent; one or several."""
    sends = reference.qp.sends
    sent = sends.next_psn - sends.una & 0xFFFFFF
    offset = rng.choice((0, 0, 1, sent - 1, sent, sent + 1, -1, 1 << 22))
    nak = _ack(("una", offset), AckKind.NAK << 5 | NakCode.PSN_SEQUENCE_ERROR, "sequence NAK")
    return [nak] * rng.choice((1, 1, 1, 2, 3, 9))


def rnr_nak(rng: Random, reference: Emulation, right: list[Packet]) -> Sequence[Step]:
    """An RNR NAK, with any timer; then the time until it comes again, or not quite."""
    code = rng.choice((1, 1, 2, 5, 10, 12, 14, rng.randrange(32)))
    offset = rng.choice((0, 0, 1, 2, -1, 3))
    nak = _ack(("una", offset), AckKind.RNR_NAK << 5 | code, "RNR NAK")
    time = RNR_TIMER_US[code] * US
    steps: list[Step] = [nak] * rng.choice((1, 1, 1, 2))
    if rng.random() < 0.7:
        well_over = int(time) + 8 * MS  # for devices that count in jiffies, too
        late = rng.choice((-1, 0, 1, -int(time) // 2, well_over, well_over, well_over))
        steps.append(Wait(int(time) + late))
    return steps


def rnr_until_error(rng: Random, reference: Emulation, right: list[Packet]) -> Sequence[Step]:
    """RNR NAKs of the oldest request until it is given up, or one less; 7 retries never end."""
    retries = reference.connection.rnr_retry
    longest = 7 if rng.random() < 0.2 else 4
    count = min(retries, longest) + rng.choice((0, 1, 1, 2))
    nak = _ack(("una", 0), AckKind.RNR_NAK << 5 | 1, "never ready")
    return [nak, Wait(int(RNR_TIMER_US[1] * US) + 1)] * count


def timeout_until_error(rng: Random, reference: Emulation, right: list[Packet]) -> Sequence[Step]:
    """No responses for as many timeouts as a requester needs to give up, or one less.

    Requesters with more than four retries are given fewer than that.
    """
    connection = reference.connection
    count = min(connection.retry_cnt, 4) + rng.choice((0, 1, 1, 2))
    return [Wait(_timeout(connection) + 1)] * count


def any_syndrome(rng: Random, reference: Emulation, right: list[Packet]) -> Sequence[Step]:
    """NAKs that end the connection, reserved codes, other credits."""
    packet = _one_of(rng, right)
    draw = rng.random()
    if draw < 0.3:
        syndrome = AckKind.NAK << 5 | rng.randrange(1, 5)
    elif draw < 0.5:
        syndrome = AckKind.NAK << 5 | rng.randrange(5, 32)
    elif draw < 0.7:
        syndrome = rng.randrange(0x40, 0x60)
    elif draw < 0.8:
        syndrome = rng.randrange(0x80, 0x100)
    else:
        syndrome = rng.randrange(0x20)
    if h.AETH not in INFO[packet.opcode].headers:
        return [_ack(packet.psn, syndrome, "syndrome")]
    return [changed(packet, "syndrome", aeth__syndrome=syndrome)]


def other_response(rng: Random, reference: Emulation, right: list[Packet]) -> Sequence[Step]:
    """An answer of a kind that the request does not have."""
    packet = _one_of(rng, right)
    opcode = rng.choice((ACK, READ_ONLY, READ_FIRST, READ_MIDDLE, READ_LAST, ATOMIC_ACK))
    length = 0
    if opcode in (READ_FIRST, READ_MIDDLE):
        length = reference.qp.mtu
    elif opcode in (READ_ONLY, READ_LAST):
        length = rng.choice((0, 1, 8, packet.length, reference.qp.mtu))
    fields: dict[str, Value] = {} if opcode == READ_MIDDLE else {"aeth.msn": ("ssn", 0)}
    return [Packet(opcode, packet.psn, length, fields=fields, why="kind of answer")]


def wrong_length(rng: Random, reference: Emulation, right: list[Packet]) -> Sequence[Step]:
    """A response with more or fewer bytes than requested; the following ones are sent, too."""
    mtu = reference.qp.mtu
    which = rng.randrange(len(right))
    packet = right[which]
    sizes = (0, 1, 4, mtu - 4, mtu, mtu + 4, 2 * mtu, packet.length + 1, packet.length + 4)
    packet = packet.altered(length=max(rng.choice(sizes), 0), why="size")
    return [*right[:which], packet, *_at_una(right[which + 1 :])]


def excess_read_responses(rng: Random, reference: Emulation, right: list[Packet]) -> Sequence[Step]:
    """A READ gets more response packets than it requested."""
    mtu = reference.qp.mtu
    reads = [packet for packet in right if READ_FIRST <= packet.opcode <= READ_ONLY]
    if not reads:
        return []
    begin = reads[0]
    count = len(reads) + rng.choice((1, 1, 2, 8))
    fields: dict[str, Value] = {"aeth.msn": ("ssn", 0)}
    steps = [Packet(READ_FIRST, begin.psn, mtu, at=7, fields=fields, why="longer")]
    steps += [
        Packet(READ_MIDDLE, ("una", 0), mtu, at=7 + i * mtu, why="longer")
        for i in range(1, count - 1)
    ]
    return [
        *steps,
        Packet(READ_LAST, ("una", 0), rng.choice((1, mtu)), fields=fields, why="longer"),
    ]


def lost_or_reordered(rng: Random, reference: Emulation, right: list[Packet]) -> Sequence[Step]:
    """Answers are lost, come twice, or in another order."""
    fixed = list(right)
    draw = rng.random()
    which = rng.randrange(len(fixed))
    if draw < 0.4 and len(fixed) > 1:
        gone = fixed.pop(which)
        return [p.altered(why=f"without {p.psn[1] - gone.psn[1]:+d}") for p in fixed[which:][:1]]
    if draw < 0.7:
        twice = fixed[which]
        # The second one is beyond what has been acknowledged by then.
        return [twice, twice.altered(psn=("una", -1), why="twice")]
    return [packet.altered(why="order") for packet in reversed(fixed[:3])]


def duplicate_ack(rng: Random, reference: Emulation, right: list[Packet]) -> Sequence[Step]:
    """An ACK of what was acknowledged, with other credits and another MSN."""
    msn: Value = ("ssn", rng.choice((-1, 0, 1, 100)))
    packet = _ack(("una", -1), rng.choice((0, 1, 5, 0x1F)), "ghost ACK")
    return [changed(packet, "ghost ACK", aeth__msn=msn)]


def other_msn(rng: Random, reference: Emulation, right: list[Packet]) -> Sequence[Step]:
    """The MSN is another one."""
    packet = _one_of(rng, right)
    msn: Value = rng.choice((0, 0xFFFFFF, ("ssn", -1), ("ssn", 1), ("ssn", 5)))
    if h.AETH not in INFO[packet.opcode].headers:
        return []
    return [changed(packet, "MSN", aeth__msn=msn, aeth__syndrome=rng.choice((0x1F, 0, 3)))]


def malformed_response(rng: Random, reference: Emulation, right: list[Packet]) -> Sequence[Step]:
    """An answer that no requester may take: cut, padded, foreign, with a wrong ICRC."""
    packet = _one_of(rng, right)
    draw = rng.random()
    headers = h.BTH.SIZE + sum(kind.SIZE for kind in INFO[packet.opcode].headers)
    if draw < 0.3:
        return [packet.altered(cut=rng.randrange(headers), why="cut")]
    if draw < 0.5:
        return [packet.altered(icrc=BAD, why="ICRC")]
    if draw < 0.7:
        return [changed(packet, "pad count", bth__pad_count=rng.randrange(1, 4))]
    if draw < 0.85:
        return [changed(packet, "P_Key", bth__pkey=rng.choice((0x7FFF, 0x1234, 0)))]
    return [changed(packet, "stranger", ip__src=0x0A000009)]


def paused_responses(rng: Random, reference: Emulation, right: list[Packet]) -> Sequence[Step]:
    """The port must stop, while a sequence NAK or a right response arrives."""
    steps = sequence_nak(rng, reference, right) if rng.random() < 0.5 else in_turn(right[:1])
    return around(rng, steps)


def _one_of(rng: Random, right: Sequence[Packet]) -> Packet:
    """One of them, and not mostly from the middle of a long READ."""
    packet = rng.choice(right)
    return rng.choice(right) if packet.opcode == READ_MIDDLE else packet


def _at_una(packets: Sequence[Packet]) -> list[Packet]:
    """Packets that are sent one after the other, each answering what is oldest then."""
    return [packet.altered(psn=("una", 0)) for packet in packets]


def in_turn(right: Iterable[Packet]) -> list[Packet]:
    """Right answers, to be sent one after the other: what was acknowledged moves `una` on.

    They are changed in place.
    """
    begin, moved = 0, list(right)
    for packet in moved:
        ahead = packet.psn[1]
        packet.psn = "una", ahead - begin
        begin = ahead + 1
    return moved


def _timeout(connection: Connection) -> Time:
    """How long a requester waits for an answer (IBA 9.7.6.1.3)."""
    return ACK_TIMEOUT_UNIT << connection.timeout


def _ack(psn: tuple[str, int], syndrome: int, why: str) -> Packet:
    fields: dict[str, Value] = {"aeth.syndrome": syndrome, "aeth.msn": ("ssn", -1)}
    return Packet(ACK, psn, fields=fields, why=why)


_W = WROpcode
_READ = int(_W.RDMA_READ)
_VERBS = tuple(
    int(each)
    for each in (
        _W.SEND,
        _W.SEND,
        _W.SEND_WITH_IMM,
        _W.SEND_WITH_INV,
        _W.RDMA_WRITE,
        _W.RDMA_WRITE,
        _W.RDMA_WRITE_WITH_IMM,
        _W.RDMA_READ,
        _W.RDMA_READ,
        _W.RDMA_READ,
        _W.RDMA_READ,
        _W.RDMA_READ,
        _W.ATOMIC_CMP_AND_SWP,
        _W.ATOMIC_FETCH_AND_ADD,
        _W.FLUSH,
        _W.ATOMIC_WRITE,
    )
)
