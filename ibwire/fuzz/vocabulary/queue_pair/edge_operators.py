"""Operators at the edges of numbers: bits of keys and of the ICRC, whole path MTUs, partitions.

They are used in combined cases only, so that all other cases of a seed stay what they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from ibwire.base.units import ACK_TIMEOUT_UNIT, US, Time
from ibwire.fuzz.case import GOOD, SWAPPED, Packet, Post, Step, Value, Wait
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.vocabulary.queue_pair.messages import ATOMICS, FORMS, READ, message, read
from ibwire.fuzz.vocabulary.queue_pair.request_operators import changed, repeated
from ibwire.fuzz.vocabulary.queue_pair.traffic import KINDS, Traffic, following
from ibwire.rc.work import WROpcode
from ibwire_layers.opcodes import INFO, OpCode, Operation
from ibwire_layers.psn import HALF, MASK
from ibwire_layers.syndrome import RNR_TIMER_US, AckKind


def icrc_bits(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """The ICRC is wrong: in one bit, in any of a half or byte, or in the order of its bytes."""
    packet, rng = following(traffic, reference), traffic.rng
    if rng.random() < 0.3:
        return [_flipped(packet, rng)]
    bits = rng.sample(range(32), 8)
    wrong = [*(GOOD | 1 << bit for bit in bits), SWAPPED]
    return [packet.altered(icrc=each, why="ICRC") for each in wrong]


def partition_key(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """The P_Key of a limited member, of another partition, or with one bit more or less."""
    packet = following(traffic, reference)
    return [changed(packet, "P_Key", bth__pkey=_other_pkey(traffic.rng, reference))]


def key_bit(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """A key, a number of a queue pair or an address with one bit more or less."""
    rng = traffic.rng
    packet = following(traffic, reference)
    names = [name for part in _parts(packet) for name in _KEYS.get(part, ())]
    name, symbol = rng.choice(names)
    bit = 1 << rng.randrange(40 if symbol == "va" else 24)
    return [changed(packet, name, **{name.replace(".", "__"): (symbol, rng.choice((bit, -bit)))})]


def whole_packets(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """A message of exactly so many path MTUs, or one byte more or less."""
    rng, mtu = traffic.rng, traffic.mtu
    length = mtu * rng.randrange(1, 5) + rng.choice((-1, 0, 0, 0, 1, 1))
    place = traffic.place(length)
    if rng.random() < 0.4:
        return [read(length, place)]
    return message(rng.choice(("WRITE", "WRITE_IMM")), length, mtu, place, traffic.below(1 << 16))


def whole_receive(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """A SEND that fills its receive request, or leaves one byte."""
    rng, connection = traffic.rng, reference.connection
    room = max(connection.room - rng.choice((0, 0, 0, 1, 3)), 0)
    kind = rng.choice(("SEND", "SEND", "SEND_IMM", "SEND_INV"))
    return message(kind, room, traffic.mtu, {}, traffic.below(1 << 16))


def empty_part(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """An empty FIRST, MIDDLE or LAST; or a LAST behind all bytes of its message."""
    rng, mtu = traffic.rng, traffic.mtu
    kind = rng.choice(KINDS)
    parts = message(kind, mtu * rng.randrange(2, 5), mtu, {}, traffic.below(1 << 16))
    which = rng.randrange(len(parts))
    if rng.random() < 0.5:
        parts[which] = parts[which].altered(length=0, why="empty part")
        return parts
    middle = int(FORMS[kind][1])
    parts.insert(rng.randrange(1, len(parts)), Packet(middle, length=0, why="empty MIDDLE"))
    if kind.startswith("WRITE") and rng.random() < 0.3:
        parts[0] = changed(parts[0], "DMA length", reth__dma_len=mtu)
    return parts


def rest_of_a_read(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """A READ of several packets, and duplicates of its rest from one packet or another on."""
    rng, mtu = traffic.rng, traffic.mtu
    count = rng.randrange(2, 5)
    length = mtu * count - rng.choice((0, 0, 1, mtu - 1))
    offset = traffic.below(8192 - length)
    steps = [read(length, {"reth.va": ("va", offset)})]
    for _ in range(rng.choice((1, 1, 2))):
        steps.append(_rest(rng.randrange(1, count), count, mtu, length, offset, behind=0))
    return steps


def lost_answers(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """A READ or atomic, requests until there is no receive, and the first one again."""
    rng, mtu = traffic.rng, traffic.mtu
    waiting = reference.waiting_receives
    if waiting > FEW or reference.under_way is not None:
        return []
    kind = rng.choice(("SEND", "SEND_IMM", "WRITE_IMM"))
    sends: list[Step] = [Packet(int(FORMS[kind][3])) for _ in range(waiting + 1)]
    if rng.random() < 0.3:
        first = traffic.atomic(reference)
        return [first, *sends, first.altered(psn=("expected", -1 - waiting), why="answer lost")]
    count = rng.randrange(1, 4)
    length = mtu * count - rng.choice((0, 1))
    offset = traffic.below(8192 - length)
    again = _rest(rng.randrange(count), count, mtu, length, offset, behind=waiting)
    return [read(length, {"reth.va": ("va", offset)}), *sends, again]


def _rest(begin: int, count: int, mtu: int, length: int, offset: int, *, behind: int) -> Packet:
    """A READ of this many packets again, from one on. behind: PSNs that were executed after it."""
    place: dict[str, Value] = {"reth.va": ("va", offset + begin * mtu)}
    again = read(length - begin * mtu, place)
    return again.altered(psn=("expected", begin - count - behind), why="rest of a READ")


def long_gap(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """Several packets behind a gap, between which other queue pairs go on."""
    rng = traffic.rng
    begin = rng.choice((1, 1, 2, 5))
    packet = following(traffic, reference)
    return [
        packet.altered(psn=("expected", begin + i), why="behind a gap")
        for i in range(rng.choice((2, 3, 4)))
    ]


def reordered_requests(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """Requests of which one arrives late, all before the device has answered the first.

    Of three the late one asks for no ACK, so that those before it must be acknowledged.
    """
    rng = traffic.rng
    if reference.under_way is not None:
        return []
    order = list(range(rng.choice((2, 3, 3, 4))))
    late = order.pop(rng.randrange(len(order) - 1) if len(order) < 3 or rng.random() < 0.3 else 1)
    order.insert(late + rng.choice((1, 1, 2)), late)
    kinds = ("WRITE", "SEND", "WRITE_IMM") if reference.waiting_receives >= FEW else ("WRITE",)
    requests = [_plain(traffic, reference, kinds) for _ in order]
    if len(order) == 3:
        requests[late] = _unasked(requests[late])
    steps, executed = [], 0
    for place in order:
        psn = "expected", place - executed
        steps.append(requests[place].altered(psn=psn, held=True, why="reordered"))
        executed += place == executed
    return [*steps[:-1], steps[-1].altered(held=False)]


def _unasked(request: Packet) -> Packet:
    """A SEND or WRITE without AckReq; others must be answered."""
    if INFO[request.opcode].operation not in (Operation.SEND, Operation.WRITE):
        return request
    return request.altered(fields={**request.fields, "bth.ack_req": 0})


def _plain(traffic: Traffic, reference: Emulation, kinds: Sequence[str]) -> Packet:
    """A request of one packet, mostly a message of one of these kinds."""
    draw = traffic.rng.random()
    if draw < 0.6:
        return Packet(int(FORMS[traffic.one_of(kinds)][3]), length=8)
    return read(8, {}) if draw < 0.8 else traffic.atomic(reference)


def long_last(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """A SEND of which the LAST is longer than the path MTU, and fits its receive request."""
    rng, mtu = traffic.rng, traffic.mtu
    kind = rng.choice(("SEND", "SEND", "SEND_IMM", "SEND_INV"))
    parts = message(kind, mtu + 1, mtu, {}, traffic.below(1 << 16))
    length = mtu + rng.choice((1, 2, 4, 4, mtu))
    return [*parts[:-1], parts[-1].altered(length=length, why="long LAST")]


def window_right(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """An operation that a memory window does not permit, although its region does."""
    rng = traffic.rng
    offset = rng.choice((0, 0, 8, 64))
    place: dict[str, Value] = {"va": ("mw.va", offset), "rkey": ("mw.rkey", 0)}
    opcode = rng.choice((*ATOMICS, *ATOMICS, OpCode.RC_FLUSH))
    part = "reth" if opcode is OpCode.RC_FLUSH else "atomiceth"
    fields = {f"{part}.{name}": value for name, value in place.items()}
    if opcode is OpCode.RC_FLUSH:
        fields["reth.dma_len"] = 8
    return [Packet(int(opcode), fields=fields, why="right of a window")]


def window_range(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """A READ or WRITE that leaves a memory window, and not the region of that."""
    rng, mtu = traffic.rng, traffic.mtu
    length = rng.choice((1, 8, 64, mtu, mtu + 1))
    va = rng.choice((("mw.va", -1), ("mw.va", -8), ("mw.end", 1 - length), ("mw.end", 0)))
    place: dict[str, Value] = {"reth.va": va, "reth.rkey": ("mw.rkey", 0)}
    if rng.random() < 0.4:
        return [read(length, place)]
    return message("WRITE", length, mtu, place, traffic.below(1 << 16))


def duplicate_of_another(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """What another queue pair has executed, with a PSN that this one takes for a duplicate.

    If its response is kept there, this one first executes what it takes to be as far.
    """
    expected = reference.psn("expected")
    kept = _kept_elsewhere(traffic, reference) if reference.under_way is None else []
    if kept and traffic.rng.random() < 0.8:
        packet, psn = traffic.one_of(kept)
        ahead = psn + 1 - expected & MASK
        count = ahead if ahead < HALF else 0
        again = packet.altered(
            psn=("expected", _signed(psn - expected - count)), why="of another queue pair"
        )
        return [*[Packet(int(FORMS["WRITE"][3]), length=8)] * count, again]
    known = [each for other in traffic.others for each in other[-RECENT:]]
    behind = [(packet, psn) for packet, psn in known if psn - expected & MASK >= HALF]
    if not behind:
        return []
    packet, psn = traffic.one_of(behind)
    return [repeated(packet, psn, reference, "of another queue pair")]


def _kept_elsewhere(traffic: Traffic, reference: Emulation) -> list[tuple[Packet, int]]:
    """The READs and atomics that only other queue pairs keep, with their PSNs.

    Not those that are far ahead of what this queue pair expects.
    """
    own = {each.psn for each in reference.qp.responder.resources}
    others = {each.psn for qp in reference.pairs for each in qp.responder.resources}
    wanted = others - own
    if not wanted:
        return []
    expected = reference.psn("expected")
    return [
        (packet, psn)
        for other in traffic.others
        for packet, psn in other
        if psn in wanted and packet.opcode in _ANSWERED and _signed(psn - expected) < RECENT
    ]


def _signed(distance: int) -> int:
    """A distance between PSNs, negative for an older one."""
    distance &= MASK
    return distance - MASK - 1 if distance >= HALF else distance


def duplicates_meanwhile(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """Duplicates of READs and atomics while the response to a newer request waits.

    Where PSNs are about to wrap, or have just wrapped, the newer request is behind the wrap and
    its duplicates are of requests before it.
    """
    rng, mtu, connection = traffic.rng, traffic.mtu, reference.connection
    is_answered = connection.is_reliable and connection.max_dest_rd_atomic
    if not is_answered or reference.under_way is not None:
        return []
    expected = reference.psn("expected")
    kept = [each for each in traffic.sent if each[0].opcode in _ANSWERED]
    kept = kept[-connection.max_dest_rd_atomic :]
    steps: list[Step] = []
    left = MASK + 1 - expected
    if left * mtu <= READABLE or not kept:
        older = read(left * mtu if left * mtu <= READABLE else rng.choice((8, 2 * mtu)), {})
        steps, kept = [older], [(older, expected)]
    newer = rng.choice(
        (
            read(rng.choice((8, 2 * mtu)), {}),
            traffic.atomic(reference),
            Packet(int(FORMS["WRITE"][3]), length=8),
        )
    )
    taken = sum(_psns_of(each, mtu) for each in (*steps, newer) if isinstance(each, Packet))
    steps.append(newer.altered(held=True))
    before_wrap = [each for each in kept if each[1] > expected]
    known = before_wrap or kept
    for packet, psn in rng.sample(known, min(len(known), rng.choice((1, 1, 2)))):
        again = repeated(packet, psn, reference, "duplicate meanwhile")
        # What comes before it moves what is expected on.
        steps.append(again.altered(psn=(again.psn[0], again.psn[1] - taken), held=True))
    last = steps[-1]
    assert isinstance(last, Packet)
    return [*steps[:-1], last.altered(held=False)]


def _psns_of(packet: Packet, mtu: int) -> int:
    """PSNs that a request takes."""
    length = packet.fields.get("reth.dma_len", 0) if packet.opcode == READ else 0
    assert isinstance(length, int)
    return max(-(-length // mtu), 1)


READABLE = 8192
"""Bytes of memory that a READ can ask for."""

RECENT = 8
"""Packets that were executed last."""

_ANSWERED = (int(READ), *map(int, ATOMICS))

FEW = 4
"""Receive requests that are used up before one is missing."""


def migration_bit(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """Requests without MigReq, and then one with it: a path is armed, and taken."""
    rng = traffic.rng
    bits = rng.choice(((0,), (0, 0, 1), (0, 1), (1,)))
    packet = Packet(int(FORMS["WRITE"][3]), length=rng.choice((0, 1, 8)))
    return [changed(packet, "MigReq", bth__mig_req=bit) for bit in bits]


def odd_response(rng: Random, reference: Emulation, right: list[Packet]) -> Sequence[Step]:
    """A response with some wrong bits of the ICRC, another P_Key, or without MigReq."""
    packet = rng.choice(right)
    draw = rng.random()
    if draw < 0.4:
        return [_flipped(packet, rng)]
    if draw < 0.8:
        return [changed(packet, "P_Key", bth__pkey=_other_pkey(rng, reference))]
    return [changed(packet, "MigReq", bth__mig_req=rng.choice((0, 1)))]


def request_meanwhile(rng: Random, reference: Emulation, right: list[Packet]) -> Sequence[Step]:
    """The device receives requests while it waits after an RNR NAK, or for a response."""
    time: Time
    steps: list[Step] = []
    if rng.random() < 0.6:
        code = rng.choice((1, 2, 5, 12))
        fields: dict[str, Value] = {
            "aeth.syndrome": AckKind.RNR_NAK << 5 | code,
            "aeth.msn": ("ssn", -1),
        }
        steps = [Packet(int(OpCode.RC_ACKNOWLEDGE), ("una", 0), fields=fields, why="RNR NAK")]
        time = RNR_TIMER_US[code] * US
    else:
        time = ACK_TIMEOUT_UNIT << reference.connection.timeout
    mtu = reference.qp.mtu
    requests = (
        message("WRITE", rng.choice((0, 8, 2 * mtu)), mtu, {}),
        message("SEND", rng.choice((0, 8)), mtu, {}),
        [read(rng.choice((8, 2 * mtu)), {})],
        [Packet(int(OpCode.RC_FETCH_ADD))],
        [Packet(int(OpCode.RC_RDMA_WRITE_MIDDLE), length=8, why="no FIRST")],
    )
    weights = (4, 4, 4, 2, 1)
    part = int(time) // rng.choice((2, 3))
    (requested,) = rng.choices(requests, weights)
    return [*steps, Wait(max(part, 1)), *requested, Wait(max(int(time) - part, 1)), Wait(1 * US)]


def ignored_meanwhile(rng: Random, reference: Emulation, right: list[Packet]) -> Sequence[Step]:
    """Something that counts for no timer and no retry comes during a wait, or between two."""
    connection = reference.connection
    ignored: Sequence[Step] = (
        _acknowledge(("una", -1), "ghost ACK"),
        _acknowledge(("una", -1), "ghost ACK"),
        _acknowledge(("next", rng.choice((0, 1))), "PSN"),
        right[0].altered(icrc=GOOD | 1 << rng.randrange(32), why="ICRC"),
        Post(int(WROpcode.RDMA_WRITE), 8),
    )
    step = rng.choice(ignored)
    time: Time = ACK_TIMEOUT_UNIT << connection.timeout
    draw = rng.random()
    if draw < 0.4:
        retries = min(connection.retry_cnt, 3)
        before = rng.randrange(retries + 1)
        over = Wait(int(time) + 1)
        return [*[over] * before, step, *[over] * (retries + 1 - before)]
    steps: list[Step] = []
    if draw < 0.6:
        code = rng.choice((1, 2, 5, 12))
        steps = [_acknowledge(("una", 0), "RNR NAK", AckKind.RNR_NAK << 5 | code)]
        time = RNR_TIMER_US[code] * US
    part = max(int(time) // rng.choice((2, 3)), 1)
    return [*steps, Wait(part), step, Wait(max(int(time) - part, 1)), Wait(1 * US)]


def _acknowledge(psn: tuple[str, int], why: str, syndrome: int = 0x1F) -> Packet:
    fields: dict[str, Value] = {"aeth.syndrome": syndrome, "aeth.msn": ("ssn", -1)}
    return Packet(int(OpCode.RC_ACKNOWLEDGE), psn, fields=fields, why=why)


def _flipped(packet: Packet, rng: Random) -> Packet:
    kind = rng.randrange(6)
    if kind == 0:
        bits = 1 << rng.randrange(32)
    elif kind == 1:
        bits = rng.randrange(1, 1 << 16) << rng.choice((0, 16))
    elif kind == 2:
        bits = rng.randrange(1, 1 << 8) << rng.choice((0, 8, 16, 24))
    elif kind == 3:
        bits = rng.choice((0xFFFF, 0xFFFF << 16, 0xFFFFFFFF))
    elif kind == 4:
        bits = rng.randrange(1, 1 << 16) * 0x10001  # the same in both halves
    else:
        bits = rng.randrange(1, 1 << 32)
    return packet.altered(icrc=GOOD | bits, why="ICRC")


def _other_pkey(rng: Random, reference: Emulation) -> Value:
    draw = rng.random()
    if draw < 0.45:
        return "pkey", -0x8000
    if draw < 0.65:
        return rng.choice((0xFFFF, 0x7FFF, 0x9234, 0x1234, 0x8000, 0))
    bit = 1 << rng.randrange(15)
    own = reference.symbols["pkey"] & 0x7FFF
    return (own ^ bit) | rng.choice((0, 0x8000))


def _parts(packet: Packet) -> Sequence[str]:
    info = INFO.get(packet.opcode)
    return ["bth", *(kind.KEY for kind in (info.headers if info else ()))]


_KEYS = {
    "bth": [("bth.dest_qp", "qpn")],
    "reth": [("reth.rkey", "rkey"), ("reth.rkey", "rkey"), ("reth.va", "va")],
    "atomiceth": [("atomiceth.rkey", "rkey"), ("atomiceth.va", "va")],
    "ieth": [("ieth.rkey", "mw.rkey")],
    "deth": [("deth.qkey", "qkey")] * 3,
}
"""Fields by header, each with the symbol of its right value."""
