"""Operators against a responder: what a hostile or broken requester sends.

Each takes right packets and changes them, relative to the state of the connection. The
table of all operators is `ibwire.fuzz.vocabulary.operators`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

from ibwire.fuzz.case import BAD, NONE, Packet, Pause, Receive, Step, Value
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.vocabulary.queue_pair.messages import FORMS, READ, message, read
from ibwire.fuzz.vocabulary.queue_pair.traffic import (
    KINDS,
    OPERANDS,
    Traffic,
    following,
    long_message,
)
from ibwire_layers import headers as h
from ibwire_layers.opcodes import INFO, OpCode, Operation
from ibwire_layers.schema import Header

_O = OpCode


def changed(packet: Packet, why: str, **fields: Value) -> Packet:
    """A packet with other fields; `__` stands for the dot."""
    given = {name.replace("__", "."): value for name, value in fields.items()}
    return packet.altered(fields={**packet.fields, **given}, why=why)


# Parser: packets that no device may accept.


def wrong_icrc(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """The ICRC is wrong, or missing."""
    packet = following(traffic, reference)
    icrc = traffic.rng.choice((BAD, BAD, NONE, 0, 0xFFFFFFFF))
    return [packet.altered(icrc=icrc, why="ICRC")]


def truncated(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """The packet ends early, with an ICRC that fits what is left."""
    packet = following(traffic, reference)
    whole = _size(packet)
    headers = whole - packet.length
    at = traffic.rng.randrange(headers if traffic.rng.random() < 0.7 else whole)
    return [packet.altered(cut=at, why="cut")]


def wrong_padding(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """The pad count differs from the padding."""
    rng = traffic.rng
    packet = following(traffic, reference)
    if rng.random() < 0.5:
        packet = packet.altered(length=rng.randrange(4))
    if rng.random() < 0.5:
        return [changed(packet, "pad count", bth__pad_count=rng.randrange(4))]
    return [packet.altered(pad=rng.randrange(4), more=rng.choice((0, 0, 1, 4)), why="padding")]


def wrong_outer_length(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """UDP or IP has another length."""
    rng = traffic.rng
    packet = following(traffic, reference)
    field = rng.choice(("udp__length", "ip__total_length"))
    right = 28 + _size(packet) + 4 if field == "ip__total_length" else 8 + _size(packet) + 4
    number = rng.choice((0, 7, 8, 20, right - 4, right - 1, right + 1, right + 4, 0xFFFF))
    return [changed(packet, "length of a lower layer", **{field: max(number, 0)})]


def other_destination(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """The packet has another queue pair, source, partition or version."""
    packet = following(traffic, reference)
    name, values = traffic.rng.choice(_FOREIGN)
    value = traffic.rng.choice(values)
    return [changed(packet, name.replace("__", "."), **{name: value})]


def other_service(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """The opcode belongs to UC, RD, UD, XRC, CNP or a manufacturer."""
    rng = traffic.rng
    packet = following(traffic, reference)
    opcode = packet.opcode & 0x1F | rng.randrange(1, 8) << 5
    if rng.random() < 0.3:
        return [changed(packet, "service", bth__opcode=opcode)]
    return [packet.altered(opcode=opcode, why="service")]


def reserved_opcode(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """An opcode that the service does not have."""
    packet = following(traffic, reference)
    return [changed(packet, "opcode", bth__opcode=traffic.rng.choice(_HOLES))]


def reserved_bits(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """Bits that no receiver looks at."""
    packet = following(traffic, reference)
    name = traffic.rng.choice(("bth__resv6a", "bth__resv7", "bth__mig_req", "bth__se", "bth__fecn"))
    return [changed(packet, name.replace("__", "."), **{name: traffic.rng.choice((1, 0, 0x3F))})]


# Lengths.


def wrong_packet_size(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """A packet of a message has another size than its position and the path MTU ask for."""
    rng = traffic.rng
    if rng.random() < 0.2:
        kind = rng.choice(KINDS)
        length = traffic.mtu + rng.choice((1, 4, 256, 3 * traffic.mtu))
        fields: dict[str, Value] = {"reth.dma_len": length} if kind.startswith("WRITE") else {}
        return [Packet(int(FORMS[kind][3]), length=length, fields=fields, why="longer than MTU")]
    parts = long_message(traffic)
    if rng.random() < 0.3:
        return [*parts[:-1], parts[-1].altered(length=0, why="empty LAST")]
    size = rng.choice((0, 0, 1, 4, traffic.mtu - 4, traffic.mtu - 1, traffic.mtu + 1))
    which = rng.randrange(len(parts) - (size < traffic.mtu))  # a LAST may be shorter
    parts[which] = parts[which].altered(length=size, why="size of a packet")
    return parts


def wrong_dma_length(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """A WRITE has more or fewer bytes than its RETH announces, by a little or by a lot."""
    rng = traffic.rng
    kind = rng.choice(("WRITE", "WRITE", "WRITE_IMM"))
    length = traffic.length()
    parts = message(kind, length, traffic.mtu, traffic.place(length))
    said = length + rng.choice((-256, -8, -4, -1, 1, 2, 3, 4, 8, traffic.mtu, 1 << 31))
    parts[0] = changed(parts[0], "DMA length", reth__dma_len=said & 0xFFFFFFFF)
    return parts


def missing_or_extra_part(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """A message ends before it is complete, or continues after its end."""
    rng = traffic.rng
    parts = long_message(traffic)
    if rng.random() < 0.5:
        del parts[rng.randrange(1, len(parts) - 1) if len(parts) > 2 else 0]
    else:
        middle = parts[-1].altered(opcode=_middle_of(parts[-1]), length=traffic.mtu)
        parts.insert(rng.randrange(1, len(parts)), middle)
    return [part.altered(why="parts of a message") for part in parts]


def longer_than_receive(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """A SEND is longer than the receive buffer."""
    room = reference.connection.room
    length = room + traffic.rng.choice((1, 1, 4, traffic.mtu))
    kind = traffic.rng.choice(("SEND", "SEND_IMM", "SEND_INV"))
    parts = message(kind, min(length, 8000), traffic.mtu, {})
    return [part.altered(why="longer than the receive") for part in parts]


def atomic_write_length(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """An ATOMIC WRITE that is not of eight bytes."""
    rng = traffic.rng
    length = rng.choice((0, 4, 7, 8, 9, 16))
    said = length if rng.random() < 0.5 else rng.choice((0, 8))
    place: dict[str, Value] = {"reth.dma_len": said, "reth.va": ("va", rng.choice((0, 8, 4)))}
    return [Packet(int(_O.RC_ATOMIC_WRITE), length=length, fields=place, why="length")]


# Order of opcodes.


def missing_first(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """A MIDDLE or LAST of a message that has not begun, or that is another."""
    rng = traffic.rng
    kind = rng.choice(KINDS)
    opcode = int(FORMS[kind][rng.choice((1, 2))])
    if reference.under_way is None or rng.random() < 0.5:
        return [Packet(opcode, length=traffic.mtu, why="no FIRST")]
    other = "SEND" if reference.under_way is Operation.WRITE else "WRITE"
    return [
        Packet(int(FORMS[other][rng.choice((1, 2))]), length=traffic.mtu, why="another message")
    ]


def interleaved(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """Another message begins inside of one, which then continues."""
    parts = long_message(traffic)
    other = traffic.messages(reference)
    at = traffic.rng.randrange(1, len(parts))
    foreign = [part.altered(why="inside a message") for part in other]
    return [*parts[:at], *foreign, *parts[at:]]


# Sequence numbers.


def psn_gap(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """Packets are missing; what comes then may be several."""
    rng = traffic.rng
    ahead = rng.choice((1, 1, 2, 3, 16, 255, 256, 1 << 16, (1 << 22), (1 << 23) - 1))
    steps = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        steps.append(following(traffic, reference).altered(psn=("expected", ahead), why="gap"))
        ahead += rng.choice((0, 1, -1))
    return [step for step in steps if step.psn[1] > 0]


def old_psn(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """A PSN of the duplicate region that was never used, or not by this packet."""
    back = traffic.rng.choice((-1, -2, -3, -16, -256, -(1 << 16), -(1 << 22), -(1 << 23)))
    return [following(traffic, reference).altered(psn=("expected", back), why="old PSN")]


# Duplicates.


def duplicate(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """One or several executed packets come again."""
    if not traffic.sent:
        return []
    rng = traffic.rng
    begin = rng.randrange(len(traffic.sent)) if rng.random() < 0.5 else len(traffic.sent) - 1
    count = rng.choice((1, 1, 1, 2, 4))
    return [
        repeated(packet, psn, reference, "duplicate")
        for packet, psn in traffic.sent[begin : begin + count]
    ]


def altered_duplicate(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """An executed packet comes again with other contents."""
    if not traffic.sent:
        return []
    rng = traffic.rng
    requests = [each for each in traffic.sent[-16:] if each[0].opcode == READ or rng.random() < 0.3]
    packet, psn = rng.choice(requests or traffic.sent)
    same = repeated(packet, psn, reference, "duplicate that differs")
    if packet.opcode == READ and rng.random() < 0.8:
        return [_other_read(same, traffic)]
    return [mutated(same, traffic, reference)]


def _other_read(packet: Packet, traffic: Traffic) -> Packet:
    """A READ of another part, or one that was never requested."""
    rng, mtu = traffic.rng, traffic.mtu
    length = _number_of(packet.fields.get("reth.dma_len", 0))
    name, offset = _symbol_of(packet.fields.get("reth.va", ("va", 0)))
    draw = rng.random()
    if draw < 0.45 and length > mtu:  # the rest, from a packet on
        skip = rng.randrange(1, -(-length // mtu))
        less = rng.choice((0, 0, 0, mtu, 1)) if length - skip * mtu > mtu else 0
        moved = changed(
            packet,
            "the rest of a READ",
            reth__va=(name, offset + skip * mtu),
            reth__dma_len=length - skip * mtu - less,
        )
        return moved.altered(psn=(packet.psn[0], packet.psn[1] + skip))
    if draw < 0.7:
        longer = length + rng.choice((1, 4, mtu, 4096, 1 << 30))
        return changed(packet, "duplicate READ of more", reth__dma_len=longer)
    if draw < 0.9:
        elsewhere = offset + rng.choice((-8, -1, 1, 8, mtu, 1 << 40))
        return changed(packet, "duplicate READ of something else", reth__va=(name, elsewhere))
    return changed(packet, "duplicate READ with another key", reth__rkey=("foreign.rkey", 0))


# Memory.


def out_of_bounds(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """An access that is not, or not wholly, inside what the key opens."""
    rng = traffic.rng
    length = rng.choice((1, 4, 8, 16, traffic.mtu, 2 * traffic.mtu, 0))
    va, rkey = rng.choice(_OUTSIDE)
    offset = rng.choice((0, 1, -1, 7, 1 - length, -length, length, 512 - length))
    where: Value = (va, offset) if va else (1 << 64) - rng.choice((1, 8, length or 1, 4096))
    place: dict[str, Value] = {"reth.va": where, "reth.rkey": (rkey, 0)}
    return _access(traffic, length, place, "out of bounds")


def wrong_key(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """A key of nothing, of another domain, or one that does not allow it."""
    rng = traffic.rng
    name, va = rng.choice(_KEYS)
    key: Value = (name, rng.choice((1, -1, 128, 256))) if name == "rkey" else (name, 0)
    if name == "":
        key = rng.choice((0, 0xFFFFFFFF, 1))
    length = rng.choice((0, 1, 4, 8, traffic.mtu, 2 * traffic.mtu))
    return _access(traffic, length, {"reth.rkey": key, "reth.va": (va, 0)}, "key")


def zero_length_access(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """Zero bytes, at any address under any key: that is allowed."""
    rng = traffic.rng
    place: dict[str, Value] = {
        "reth.va": rng.choice(((1 << 64) - 1, 0, ("end", 0), ("end", 4096))),
        "reth.rkey": rng.choice((0, 0xFFFFFFFF, ("foreign.rkey", 0), ("rkey", 1))),
    }
    return _access(traffic, 0, place, "no bytes")


def huge_length(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """A length around the largest message, or beyond what there is."""
    rng = traffic.rng
    length = rng.choice((8193, 1 << 16, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 31) + 1, 0xFFFFFFFF))
    if rng.random() < 0.5:
        return [changed(read(0, {}), "length", reth__dma_len=length)]
    first = Packet(int(_O.RC_RDMA_WRITE_FIRST), length=traffic.mtu)
    return [changed(first, "length", reth__dma_len=length, bth__ack_req=1)]


# Atomics.


def malformed_atomic(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """Not aligned, with a payload, at the edge or under a wrong key."""
    rng = traffic.rng
    packet = traffic.atomic(reference)
    draw = rng.random()
    if draw < 0.25:
        offset = rng.choice((1, 2, 4, 7, 12))
        if offset == 12:
            there: dict[str, Value] = {"reth.va": ("va", offset)}
            return [Packet(int(_O.RC_ATOMIC_WRITE), length=8, fields=there, why="alignment")]
        return [changed(packet, "alignment", atomiceth__va=("va", offset))]
    if draw < 0.35:
        return [packet.altered(length=rng.choice((1, 4, 8)), why="payload")]
    if draw < 0.5:
        offset = rng.choice((0, -4, -8, -7, 8))
        return [changed(packet, "bounds", atomiceth__va=("end", offset))]
    name, va = rng.choice((*_KEYS, ("mw.rkey", "mw.va"), ("mw.rkey", "mw.va")))
    key: Value = (name, rng.choice((0, 0, 0, 1))) if name else 0
    return [changed(packet, "key", atomiceth__rkey=key, atomiceth__va=(va, 0))]


def duplicate_atomic(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """Atomics to few words, and duplicates of them, also of those that are forgotten."""
    rng = traffic.rng
    count = rng.choice((1, 2, reference.connection.max_dest_rd_atomic + 1))
    fresh: list[Step] = [traffic.atomic(reference) for _ in range(min(count, 20))]
    back = rng.randrange(1, count + 1)
    last = fresh[-min(back, len(fresh))]
    assert isinstance(last, Packet)
    other = changed(last, "duplicate atomic", atomiceth__swap=rng.choice(OPERANDS))
    return [*fresh, replace(other if rng.random() < 0.3 else last, psn=("expected", -back))]


# Resources.


def repeated_request(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """The same request many times in a row, whatever the answer is."""
    rng = traffic.rng
    parts = traffic.messages(reference)
    packet = parts[0] if len(parts) == 1 else Packet(int(_O.RC_SEND_ONLY), length=8)
    count = rng.choice((3, 5, 9, 20, 40))
    return [packet.altered(why="many")] * count


def burst(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """Several requests arrive before the device has answered the first."""
    rng = traffic.rng
    steps: list[Step] = []
    for _ in range(rng.choice((2, 3, 6, reference.connection.max_dest_rd_atomic + 2))):
        if rng.random() < 0.5:
            length = traffic.length()
            steps.append(read(length, traffic.place(length)).altered(held=True))
        else:
            steps += [part.altered(held=True) for part in traffic.messages(reference)]
    last = steps[-1]
    assert isinstance(last, Packet)
    return [*steps[:-1], last.altered(held=False)]


def posted_receives(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """The application posts receives."""
    return [Receive(traffic.rng.choice((1, 1, 2, 8)))]


# Congestion.


def congestion_marks(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """CE, FECN, BECN: the packet is otherwise valid."""
    name, value = traffic.rng.choice((("ip__ecn", 3), ("ip__ecn", 1), ("bth__fecn", 1)))
    packet = following(traffic, reference)
    if traffic.rng.random() < 0.3:
        name, value = "bth__becn", 1
    return [changed(packet, name.replace("__", "."), **{name: value})]


def congestion_notifications(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """CNPs, right ones and others."""
    rng = traffic.rng
    packet = Packet(int(_O.CNP), more=rng.choice((0, 0, 0, 4)))
    fields: dict[str, Value] = {"bth.becn": 1, "bth.ack_req": 0}
    if rng.random() < 0.3:
        fields = {"bth.becn": 0}
    return [packet.altered(fields=fields, why="CNP")] * rng.choice((1, 1, 5))


def paused_requests(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """The port must stop, while something is lost or all is right, and go on or not."""
    return around(traffic.rng, [following(traffic, reference)])


def around(rng: Random, steps: Sequence[Step]) -> list[Step]:
    """PFC frames before these steps, and sometimes after them."""
    priorities = rng.choice((0xFF, 0x08, 0x01, 0x80, rng.getrandbits(8)))
    stop = Pause(priorities, rng.choice((0xFFFF, 0xFFFF, 1, 100)))
    return [stop, *steps, *[Pause(priorities, 0)] * rng.choice((0, 1))]


# Fields.


def any_field(traffic: Traffic, reference: Emulation) -> Sequence[Step]:
    """One field, or two, at an edge of what it can be."""
    packet = following(traffic, reference)
    packet = mutated(packet, traffic, reference)
    if traffic.rng.random() < 0.2:
        packet = mutated(packet, traffic, reference)
    return [packet]


def mutated(packet: Packet, traffic: Traffic, reference: Emulation) -> Packet:
    """A packet with one field at an edge."""
    rng = traffic.rng
    info = INFO.get(packet.opcode)
    kinds: tuple[type[Header], ...] = (h.BTH, *(info.headers if info else ()))
    kind = rng.choice(kinds)
    entry = rng.choice(kind.FIELDS)
    name = f"{kind.KEY}.{entry.name}"
    if name == "bth.psn":
        offset = rng.choice((-2, -1, 1, 2, 1 << 22, -(1 << 22)))
        return packet.altered(psn=(packet.psn[0], packet.psn[1] + offset), why="bth.psn")
    top = (1 << entry.width) - 1
    values: list[Value] = [0, 1, top, top >> 1, (top >> 1) + 1, rng.getrandbits(entry.width)]
    near = _NEAR.get(entry.name)
    if near is not None:
        values += [(symbol, offset) for symbol in near for offset in (-8, -1, 0, 1, 8)]
    return packet.altered(fields={**packet.fields, name: rng.choice(values)}, why=name)


def _access(
    traffic: Traffic, length: int, place: Mapping[str, Value], why: str
) -> Sequence[Packet]:
    """A WRITE, READ, FLUSH or ATOMIC WRITE of somewhere."""
    draw = traffic.rng.random()
    if draw < 0.45:
        return [read(length, place).altered(why=why)]
    if draw < 0.9:
        kind = traffic.rng.choice(("WRITE", "WRITE", "WRITE_IMM"))
        return [part.altered(why=why) for part in message(kind, length, traffic.mtu, place)]
    if draw < 0.95:
        return [Packet(int(_O.RC_FLUSH), fields={**place, "reth.dma_len": length}, why=why)]
    return [Packet(int(_O.RC_ATOMIC_WRITE), length=8, fields=place, why=why)]


def repeated(packet: Packet, psn: int, reference: Emulation, why: str) -> Packet:
    """An earlier packet, with its PSN relative to the one expected now."""
    back = psn - reference.qp.responder.epsn & 0xFFFFFF
    if back >= 1 << 23:
        back -= 1 << 24
    return packet.altered(psn=("expected", back), why=why)


def _size(packet: Packet) -> int:
    """Bytes from the BTH to the padding."""
    info = INFO.get(packet.opcode)
    headers = h.BTH.SIZE + sum(kind.SIZE for kind in (info.headers if info else ()))
    return headers + packet.length + (-packet.length & 3)


def _middle_of(packet: Packet) -> int:
    info = INFO[packet.opcode]
    return int(FORMS["SEND" if info.operation is Operation.SEND else "WRITE"][1])


def _number_of(value: Value) -> int:
    return value if isinstance(value, int) else value[1]


def _symbol_of(value: Value) -> tuple[str, int]:
    return value if isinstance(value, tuple) else ("va", 0)


_HOLES = (0x15, 0x18, 0x19, 0x1A, 0x1B, 0x1E, 0x1F)
"""Opcodes that RC does not have (IBA 9.2.1, annex A19)."""
_FOREIGN: Sequence[tuple[str, Sequence[Value]]] = (
    ("bth__dest_qp", (0, 1, 0xFFFFFF, ("qpn", 1), ("qpn", 1 << 16))),
    ("bth__pkey", (0x7FFF, 0, 0x8000, 0x1234, 0x9234)),
    ("bth__tver", (1, 15)),
    ("ip__src", (0x0A000009, 0)),
    ("ip__dst", (0x0A000009, 0xFFFFFFFF)),
    ("udp__dst_port", (4790, 0)),
)
_OUTSIDE = (
    ("end", "rkey"),
    ("va", "rkey"),
    ("end", "rkey"),
    ("mw.va", "mw.rkey"),
    ("mw.end", "mw.rkey"),
    ("readable.va", "readable.rkey"),
    ("", "rkey"),
    ("", "rkey"),
)
_KEYS = (
    ("rkey", "va"),
    ("rkey", "va"),
    ("", "va"),
    ("foreign.rkey", "foreign.va"),
    ("readable.rkey", "readable.va"),
    ("inbox.rkey", "inbox.va"),
    ("mw.rkey", "mw.va"),
    ("foreign.rkey", "va"),
)
_NEAR: Mapping[str, Sequence[str]] = {
    "va": ("va", "end", "mw.va", "mw.end"),
    "rkey": ("rkey", "mw.rkey", "readable.rkey", "foreign.rkey", "inbox.rkey"),
    "dest_qp": ("qpn",),
    "msn": ("ssn",),
    "dma_len": ("size",),
}
"""Symbols near which a field is interesting."""
