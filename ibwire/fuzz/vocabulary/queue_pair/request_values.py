"""Every value of what a responder can be asked, or made, in few ways.

What a responder drops or executes comes many at a time; what ends the connection comes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import product

from ibwire.fuzz.case import GOOD, NONE, Connection, Packet, Receive, Step, Value
from ibwire.fuzz.targets.emulated_device import PKEYS, Emulation
from ibwire.fuzz.vocabulary.queue_pair.messages import FORMS, message, read
from ibwire.fuzz.vocabulary.value_cases import ValueCase, fixed
from ibwire.rc.attributes import MTU_CODES
from ibwire.rc.memory import Access
from ibwire_layers.opcodes import OpCode, Service
from ibwire_layers.psn import MASK
from ibwire_layers.syndrome import CREDITS

_O = OpCode
USUAL = Connection()
WRITE = Packet(int(_O.RC_RDMA_WRITE_ONLY), length=8)
SEND = Packet(int(_O.RC_SEND_ONLY), length=8)


@cache
def request_values() -> Sequence[ValueCase]:
    """All cases against a responder."""
    return [case for made in _MAKERS for case in made()]


def with_field(packet: Packet, name: str, value: Value) -> Packet:
    """A packet with another value in a field."""
    return packet.altered(fields={**packet.fields, name: value}, why=name)


def bits_of(symbol: str, width: int, reference: Emulation) -> list[Value]:
    """What a symbol stands for, with each of so many low bits flipped."""
    known = reference.symbols[symbol]
    return [(symbol, (known ^ 1 << bit) - known) for bit in range(width)]


def _rnr_timers() -> Iterator[ValueCase]:
    """Each RNR timer of the queue pair (IBA 9.7.5.2.8)."""
    for code in range(32):
        yield fixed(Connection(min_rnr_timer=code, receives=0), [SEND])


def _opcodes() -> Iterator[ValueCase]:
    """Each opcode: of RC and XRC alone, others one after the other, which change nothing."""
    for service in (Service.RC, Service.XRC):
        connection = Connection(service="XRC_RECV" if service is Service.XRC else "RC")
        for opcode in _opcodes_of(service):
            yield fixed(connection, [Packet(opcode, length=8)])
    for number in _OTHER_SERVICES:
        others = [Packet(each, length=8, why="service") for each in _opcodes_of(number)]
        yield fixed(USUAL, [*others, WRITE])
    for service in (Service.UC, Service.UD):
        connection = Connection(service=service.name, receives=32)
        yield fixed(connection, [Packet(each, length=8) for each in _opcodes_of(service)])


def _opcodes_of(service: int) -> Sequence[int]:
    return range(service << 5, (service << 5) + 0x20)


def _ignored_fields() -> Iterator[ValueCase]:
    """Fields that a responder does not look at, in each bit; a wrong version of the transport."""
    names = ("bth.resv6a", 6), ("bth.resv7", 7), ("bth.fecn", 1), ("bth.becn", 1), ("bth.se", 1)
    steps = [with_field(WRITE, name, bit) for name, width in names for bit in _bits(width)]
    steps += [with_field(WRITE, "bth.mig_req", bit) for bit in (0, 1)]
    yield fixed(USUAL, steps)
    yield fixed(USUAL, [*(with_field(WRITE, "bth.tver", each) for each in range(1, 16)), WRITE])
    flush = Packet(int(_O.RC_FLUSH), fields={"reth.dma_len": 8})
    yield fixed(USUAL, [with_field(flush, "feth.reserved", bit) for bit in _bits(26)])
    srq = Packet(int(_O.XRC_RDMA_WRITE_ONLY), length=8)
    steps = [with_field(srq, "xrceth.reserved", bit) for bit in _bits(8)]
    yield fixed(Connection(service="XRC_RECV"), steps)
    datagram = Packet(int(_O.UD_SEND_ONLY), length=8)
    steps = [with_field(datagram, "deth.reserved", bit) for bit in _bits(8)]
    steps += [with_field(datagram, "deth.src_qp", bit) for bit in _bits(24)]
    yield fixed(Connection(service="UD", receives=40), steps)
    steps = [with_field(WRITE, "ip.ecn", each) for each in range(4)]
    steps += [with_field(WRITE, "ip.ttl", each) for each in (0, 1, 2, 255)]
    yield fixed(USUAL, steps)


def _bits(width: int) -> Sequence[int]:
    return [*(1 << bit for bit in range(width)), (1 << width) - 1]


def _partitions() -> Iterator[ValueCase]:
    """P_Keys for each place in the table: full and limited members, each bit flipped."""
    for index in range(len(PKEYS)):
        own = PKEYS[index]
        keys = [*PKEYS, 0, 0x8000, *(own ^ 1 << bit for bit in range(16))]
        steps = [with_field(WRITE, "bth.pkey", key) for key in keys]
        yield fixed(Connection(pkey_index=index), [*steps, WRITE])


def _dropped_bits() -> Iterator[ValueCase]:
    """One bit wrong in what is checked before anything else: ICRC, queue pair, Q_Key."""
    steps = [WRITE.altered(icrc=GOOD | 1 << bit, why="ICRC") for bit in range(32)]
    yield fixed(USUAL, [*steps, WRITE])

    def with_bits(
        packet: Packet, name: str, symbol: str, width: int, ours: Emulation
    ) -> list[Step]:
        flipped = bits_of(symbol, width, ours)
        return [*(with_field(packet, name, value) for value in flipped), packet]

    yield ValueCase(USUAL, partial(with_bits, WRITE, "bth.dest_qp", "qpn", 24))
    datagram = Packet(int(_O.UD_SEND_ONLY), length=8)
    wrong_qkeys = partial(with_bits, datagram, "deth.qkey", "qkey", 32)
    yield ValueCase(Connection(service="UD"), wrong_qkeys)


def _operands() -> Iterator[ValueCase]:
    """Atomics with operands of one bit, and compares that fail in one bit, each at its own word."""

    def compares(reference: Emulation) -> list[Step]:
        there = [reference.region.load64(8 * bit) for bit in range(64)]
        return [_swap(bit, word ^ 1 << bit, 0) for bit, word in enumerate(there)]

    def swaps(reference: Emulation) -> list[Step]:
        there = [reference.region.load64(8 * bit) for bit in range(64)]
        return [_swap(bit, word, 1 << bit) for bit, word in enumerate(there)]

    yield ValueCase(USUAL, compares)
    yield ValueCase(USUAL, swaps)
    whole = (1 << 64) - 1
    numbers = [*(1 << bit for bit in range(64)), 0, whole, whole >> 1, (1 << 32) - 1, whole - 1]
    adds = [_atomic(_O.RC_FETCH_ADD, place, number) for place, number in enumerate(numbers)]
    carries = [_atomic(_O.RC_FETCH_ADD, 80, (1 << bit) - 1) for bit in range(1, 65)]
    yield fixed(USUAL, adds)
    yield fixed(USUAL, carries)


def _swap(place: int, compare: int, swap: int) -> Packet:
    return with_field(_atomic(_O.RC_COMPARE_SWAP, place, swap), "atomiceth.compare", compare)


def _atomic(opcode: OpCode, place: int, swap: int) -> Packet:
    fields: dict[str, Value] = {"atomiceth.va": ("va", 8 * place), "atomiceth.swap": swap}
    return Packet(int(opcode), fields=fields)


def _rights() -> Iterator[ValueCase]:
    """Each set of rights of the queue pair: all that it allows, then one thing that it does not."""
    flags = _RIGHTS
    for number in range(1 << len(flags)):
        access = int(Access.LOCAL_WRITE)
        access |= sum(flag for bit, flag in enumerate(flags) if number >> bit & 1)
        connection = Connection(access=access)
        allowed = [packet for packet, needed in _NEEDS if not needed & ~access]
        denied = [packet for packet, needed in _NEEDS if needed & ~access]
        yield fixed(connection, [*allowed, *denied[:1]])
        for packet in denied[1:]:
            yield fixed(connection, [packet])


def _flushes() -> Iterator[ValueCase]:
    """Each placement type and selectivity level of a FLUSH."""
    for level in range(4):
        for kind in range(16):
            fields: dict[str, Value] = {"reth.dma_len": 8, "feth.sel": level, "feth.plt": kind}
            yield fixed(USUAL, [Packet(int(_O.RC_FLUSH), fields=fields)])


def _sizes() -> Iterator[ValueCase]:
    """Messages around each path MTU, and parts of a message that are longer or shorter."""
    for mtu in MTU_CODES:
        connection = Connection(mtu=mtu, receives=2, room=4096)
        steps: list[Step] = [Receive(2)]
        for length in (mtu - 1, mtu, mtu + 1, 2 * mtu):
            if length <= 4096:
                steps += message("SEND", length, mtu, {})
            steps += [*message("WRITE", length, mtu, {}), read(length, {})]
        yield fixed(connection, steps)
        for length in (mtu - 4, mtu - 1, mtu + 1, mtu + 4):
            for first in (_O.RC_SEND_FIRST, _O.RC_RDMA_WRITE_FIRST):
                said: dict[str, Value] = {}
                if first is _O.RC_RDMA_WRITE_FIRST:
                    said = {"reth.dma_len": mtu + 8}
                yield fixed(connection, [Packet(int(first), length=length, fields=said)])
        yield fixed(connection, [Packet(int(_O.RC_SEND_ONLY), length=mtu + 4, why="size")])
    lengths = range(18)
    yield fixed(USUAL, [Packet(int(_O.RC_RDMA_WRITE_ONLY), length=each) for each in lengths])
    yield fixed(USUAL, [read(each, {}) for each in lengths])
    receives = Connection(receives=18)
    yield fixed(receives, [Packet(int(_O.RC_SEND_ONLY), length=each) for each in lengths])
    for pad in range(1, 4):
        for length in range(4):
            packet = Packet(int(_O.RC_RDMA_WRITE_ONLY), length=8 + length)
            yield fixed(USUAL, [with_field(packet, "bth.pad_count", (-length & 3) ^ pad)])
        yield fixed(USUAL, [with_field(SEND, "bth.pad_count", pad)])


def _resources() -> Iterator[ValueCase]:
    """As many READs and atomics as a responder keeps, and one more."""
    for count in range(17):
        connection = Connection(max_dest_rd_atomic=count)
        held = [read(8, {}).altered(held=True)] * count
        yield fixed(connection, [*held, read(8, {})])
        if count:
            fresh = [_atomic(_O.RC_FETCH_ADD, 0, 1 + each) for each in range(count + 1)]
            again = [
                fresh[-back].altered(psn=("expected", -back), why="duplicate")
                for back in (count, count + 1)
            ]
            yield fixed(connection, [*fresh, *again])


def _credits() -> Iterator[ValueCase]:
    """Numbers of receive requests at each step of the credits (IBA 9.7.7.2)."""
    counts = {each - less for each in CREDITS[: CODES + 1] for less in (0, 1) if each >= less}
    for count in sorted(counts):
        yield fixed(Connection(receives=count, room=0), [WRITE])


def _psns() -> Iterator[ValueCase]:
    """PSNs at each power of two; how far behind or ahead of what is expected a PSN is."""
    for bit in range(1, 24):
        connection = Connection(rq_psn=(1 << bit) - 2 & MASK)
        ahead = WRITE.altered(psn=("expected", 1), why="bth.psn")
        yield fixed(connection, [WRITE, WRITE, WRITE, ahead])
        steps = [WRITE, read(3 * USUAL.mtu, {}), ahead]
        yield fixed(connection, steps)
    far = [1 << bit for bit in range(23)]
    behind = [WRITE.altered(psn=("expected", -each), why="bth.psn") for each in (*far, 1 << 23)]
    gaps = [WRITE.altered(psn=("expected", each), why="bth.psn") for each in far]
    yield fixed(USUAL, [WRITE, *behind])
    yield fixed(USUAL, [step for gap in gaps for step in (gap, WRITE)])


def _immediates() -> Iterator[ValueCase]:
    """Immediate data with each bit, in a SEND and in a WRITE."""
    connection = Connection(receives=64)
    for kind in ("SEND_IMM", "WRITE_IMM"):
        packet = Packet(FORMS[kind][3], length=8)
        steps = [with_field(packet, "immdt.imm_data", 1 << bit) for bit in range(32)]
        yield fixed(connection, steps)


def _pieces() -> Iterator[ValueCase]:
    """Receive requests of each number of SGEs, and with each of these wrong."""
    for count in range(1, 17):
        connection = Connection(sges=count, receives=2, room=1000)
        whole = message("SEND", 1000, USUAL.mtu, {})
        yield fixed(connection, [*whole, Packet(int(_O.RC_SEND_ONLY), length=100)])
    for wrong in range(1, 17):
        connection = Connection(sges=16, wrong_lkey=wrong, room=1000)
        yield fixed(connection, message("SEND", 1000, USUAL.mtu, {}))


def _memory_bits() -> Iterator[ValueCase]:
    """One bit wrong in a key, an address or a length."""
    window: dict[str, Value] = {"reth.rkey": ("mw.rkey", 0), "reth.va": ("mw.va", 0)}
    right = (
        (Packet(int(_O.RC_RDMA_WRITE_ONLY), length=8), "reth.rkey", "rkey", 32),
        (read(8, window), "reth.rkey", "mw.rkey", 32),
        (_atomic(_O.RC_FETCH_ADD, 0, 1), "atomiceth.rkey", "rkey", 32),
        (Packet(FORMS["SEND_INV"][3], length=8), "ieth.rkey", "mw.rkey", 32),
        (read(8, {}), "reth.va", "va", 64),
        (Packet(int(_O.XRC_SEND_ONLY), length=8), "xrceth.xrc_srq", "srqn", 24),
    )
    for packet, name, symbol, width in right:
        connection = Connection(service="XRC_RECV") if symbol == "srqn" else USUAL
        for bit in range(width):

            def flipped(
                reference: Emulation,
                packet: Packet = packet,
                name: str = name,
                symbol: str = symbol,
                bit: int = bit,
            ) -> Sequence[Step]:
                known = reference.symbols[symbol]
                return [with_field(packet, name, (symbol, (known ^ 1 << bit) - known))]

            yield ValueCase(connection, flipped)
    for bit in range(32):
        yield fixed(USUAL, [with_field(WRITE, "reth.dma_len", 8 ^ 1 << bit)])


def _kept_responses() -> Iterator[ValueCase]:
    """A READ and an atomic again with PSNs of long ago, each bit of the distance: nothing is kept
    for those.
    """
    for packet in (read(8, {}), _atomic(_O.RC_FETCH_ADD, 0, 1)):
        far = [-1 - (1 << bit) for bit in range(1, 22)]
        again = [packet.altered(psn=("expected", each), why="bth.psn") for each in far]
        yield fixed(USUAL, [packet, *again, WRITE])


def _first_requests() -> Iterator[ValueCase]:
    """Each request as the first one that a queue pair in RTR receives, then another one."""
    connection = Connection(rtr=1)
    firsts = [(packet, needed) for packet, needed in _NEEDS if needed in _RIGHTS]
    for packet in (SEND, WRITE.altered(icrc=NONE), *(packet for packet, _ in firsts)):
        yield fixed(connection, [packet, SEND])
    for kind in ("SEND", "WRITE"):
        yield fixed(connection, [*message(kind, USUAL.mtu + 8, USUAL.mtu, {}), SEND])
    ahead = WRITE.altered(psn=("expected", 1), why="bth.psn")
    yield fixed(connection, [ahead, WRITE, read(8, {})])
    yield fixed(connection, [WRITE, WRITE.altered(psn=("expected", -1), why="duplicate"), SEND])


def _three_at_once() -> Iterator[ValueCase]:
    """Three requests that arrive before the first is answered: each kind in each place."""
    kinds = (SEND, read(8, {}), read(USUAL.mtu + 8, {}), _atomic(_O.RC_FETCH_ADD, 0, 1))
    for *others, last in product(kinds, repeat=3):
        yield fixed(USUAL, [*(each.altered(held=True) for each in others), last])


CODES = 18
"""Credit codes up to which receive requests are posted: 512 of them."""

_OTHER_SERVICES = range(1, 8)
"""The highest three bits of opcodes that are not of RC."""
_RIGHTS = tuple(
    map(
        int,
        (
            Access.REMOTE_WRITE,
            Access.REMOTE_READ,
            Access.REMOTE_ATOMIC,
            Access.FLUSH_GLOBAL,
            Access.FLUSH_PERSISTENT,
        ),
    )
)


def _flush(kind: int) -> Packet:
    return Packet(int(_O.RC_FLUSH), fields={"reth.dma_len": 8, "feth.plt": kind})


_NEEDS: Sequence[tuple[Packet, int]] = (
    (WRITE, _RIGHTS[0]),
    (Packet(FORMS["WRITE_IMM"][3], length=8), _RIGHTS[0]),
    (Packet(int(_O.RC_ATOMIC_WRITE), length=8), _RIGHTS[0]),
    (read(8, {}), _RIGHTS[1]),
    (_atomic(_O.RC_FETCH_ADD, 0, 1), _RIGHTS[2]),
    (_atomic(_O.RC_COMPARE_SWAP, 0, 1), _RIGHTS[2]),
    (_flush(1), _RIGHTS[3]),
    (_flush(2), _RIGHTS[4]),
    (_flush(3), _RIGHTS[3] | _RIGHTS[4]),
)
"""Operations, each with the rights that it needs."""

_MAKERS: Sequence[Callable[[], Iterator[ValueCase]]] = (
    _rnr_timers,
    _opcodes,
    _ignored_fields,
    _partitions,
    _dropped_bits,
    _operands,
    _rights,
    _flushes,
    _sizes,
    _resources,
    _credits,
    _psns,
    _immediates,
    _pieces,
    _memory_bits,
    _kept_responses,
    _first_requests,
    _three_at_once,
)
