"""Every value of what a requester can be answered, or made, in few ways.

What a requester ignores comes many at a time; what ends the connection comes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache

from ibwire.base.units import ACK_TIMEOUT_UNIT, MS, US, S
from ibwire.fuzz.case import GOOD, MAXIMUM_TIME, OUTBOX, Connection, Packet, Post, Step, Value, Wait
from ibwire.fuzz.targets.emulated_device import PKEYS, Emulation
from ibwire.fuzz.vocabulary.queue_pair.request_values import bits_of, with_field
from ibwire.fuzz.vocabulary.value_cases import ValueCase, fixed
from ibwire.rc.attributes import MTU_CODES
from ibwire.rc.work import WROpcode
from ibwire_layers.opcodes import INFO, OpCode
from ibwire_layers.psn import HALF, MASK
from ibwire_layers.syndrome import CREDITS, RNR_TIMER_US, AckKind, NakCode

_O, _W = OpCode, WROpcode
USUAL = Connection()
UNTIMED = Connection(timeout=0)
ASK = Post(int(_W.RDMA_WRITE), 8)
READ = Post(int(_W.RDMA_READ), 8)
ADD = Post(int(_W.ATOMIC_FETCH_AND_ADD), 8)


@cache
def response_values() -> Sequence[ValueCase]:
    """All cases against a requester."""
    return [case for made in _MAKERS for case in made()]


def acknowledge(syndrome: int = 0x1F, psn: tuple[str, int] = ("una", 0), why: str = "") -> Packet:
    """An ACK or NAK of the oldest request."""
    fields: dict[str, Value] = {"aeth.syndrome": syndrome, "aeth.msn": ("ssn", 0)}
    return Packet(int(_O.RC_ACKNOWLEDGE), psn, fields=fields, why=why)


ACK = acknowledge()
RESPONSE = Packet(
    int(_O.RC_RDMA_READ_RESPONSE_ONLY), ("una", 0), length=8, fields={"aeth.msn": ("ssn", 0)}
)


def _rnr_timers() -> Iterator[ValueCase]:
    """An RNR NAK with each timer, and more than its time (IBA 9.7.5.2.8)."""
    for code, time in enumerate(RNR_TIMER_US):
        over = Wait(2 * time * US + COARSE)
        yield fixed(UNTIMED, [ASK, acknowledge(_RNR | code, why="RNR NAK"), over, ACK])


def _syndromes() -> Iterator[ValueCase]:
    """Each syndrome: of NAKs alone, with each kind of request; of others in turn."""
    for verb in _VERBS:
        for reason in NakCode:
            yield fixed(USUAL, [Post(verb, 8), acknowledge(_NAK | reason, why="syndrome"), ACK])
    for code in range(32):
        yield fixed(USUAL, [ASK, acknowledge(_NAK | code, why="syndrome"), ACK])
        yield fixed(USUAL, [ASK, acknowledge(_RESERVED | code, why="syndrome"), ACK])
    for high in range(0x80, 0x100, 8):
        odd = [acknowledge(each, why="syndrome") for each in range(high, high + 8)]
        yield fixed(USUAL, [step for each in odd for step in (ASK, each)])
    for code in range(32):
        response = with_field(RESPONSE, "aeth.syndrome", code)
        yield fixed(USUAL, [READ, response])
        for kind in (_RNR, _RESERVED, _NAK):
            if code % 8 == kind >> 5:
                yield fixed(USUAL, [READ, with_field(RESPONSE, "aeth.syndrome", kind | code)])


def _credits() -> Iterator[ValueCase]:
    """Each code of credits, with an MSN that leaves room for a few messages of it."""
    send = Post(int(_W.SEND), 8)
    for code, granted in enumerate(CREDITS):
        ack = with_field(acknowledge(code), "aeth.msn", ("ssn", ROOM - granted))
        yield fixed(USUAL, [send, ack, *[send] * (ROOM + 3)])
        if granted < FEW_CREDITS:
            yield fixed(USUAL, [send, acknowledge(code), *[send] * (granted + 3)])


def _credit_limits() -> Iterator[ValueCase]:
    """An ACK of nothing new whose limit of credits is before or behind that of the one before it.

    What it grants shows in the requests that are sent afterwards: too few or too many.
    """
    send = Post(int(_W.SEND), 8)
    first = acknowledge(ROOM)  # for the messages 2 to 1 + ROOM
    distances = [sign * near for near in (1, 2 * ROOM, 1 << 12, HALF - 1) for sign in (1, -1)]
    for distance in (*distances, HALF):
        yield fixed(USUAL, [send, first, _limit(distance), *[send] * (ROOM + 3)])
    # A limit that has gone nearly all the way round holds requests back, and then across the wrap.
    behind = [_limit(HALF - 1), _limit(-2 * ROOM)]
    yield fixed(USUAL, [send, first, *behind, send, send, _limit(0), *[send] * (ROOM + 3)])


def _limit(distance: int) -> Packet:
    """An ACK of an older request whose limit is so many messages behind message 1 + ROOM."""
    msn = 1 + ROOM + distance - 1 & MASK
    return with_field(acknowledge(1, ("una", -1), why="credits"), "aeth.msn", msn)


def _opcodes() -> Iterator[ValueCase]:
    """Each opcode as a response: those of RC to each kind of request, all others in turn."""
    for post in (ASK, READ, ADD):
        for opcode in range(0x20):
            if opcode not in INFO or INFO[opcode].is_response:
                length = 8 if opcode in _WITH_DATA else 0
                yield fixed(USUAL, [post, Packet(opcode, ("una", 0), length, why="opcode")])
    for service in range(1, 8):
        others = [Packet(service << 5 | each, ("una", 0), why="service") for each in range(0x20)]
        yield fixed(USUAL, [ASK, *others, ACK])


def _timeouts() -> Iterator[ValueCase]:
    """Each timeout, each number of retries (IBA 9.7.6.1.3, 9.7.5.2.8)."""
    for code in range(32):
        time = min(3 * (ACK_TIMEOUT_UNIT << code), MAXIMUM_TIME) if code else 100 * S
        yield fixed(Connection(timeout=code, retry_cnt=1), [ASK, Wait(time)])
    for count in range(8):
        connection = Connection(retry_cnt=count, timeout=8)
        over = Wait((ACK_TIMEOUT_UNIT << 8) + 1 * US)
        yield fixed(connection, [ASK, *[over] * (count + 2)])
        nak = acknowledge(_NAK | NakCode.PSN_SEQUENCE_ERROR, why="sequence NAK")
        again: tuple[Step, ...] = (nak, over)
        yield fixed(connection, [ASK, *again * (count + 1)])
        wait = Wait(2 * RNR_TIMER_US[1] * US + COARSE)
        refused: tuple[Step, ...] = (acknowledge(_RNR | 1, why="RNR NAK"), wait)
        untimed = Connection(timeout=0, rnr_retry=count)
        yield fixed(untimed, [ASK, *refused * (count + 2)])


def _retries_beside_rnr_naks() -> Iterator[ValueCase]:
    """Timeouts up to the last one, then an RNR NAK, which gives none of them back."""
    over = Wait((ACK_TIMEOUT_UNIT << 8) + 1 * US)
    for count in (1, 2):
        connection = Connection(timeout=8, retry_cnt=count)
        refused = acknowledge(_RNR | 1, why="RNR NAK")
        waited = Wait(RNR_TIMER_US[1] * US)
        yield fixed(connection, [ASK, *[over] * count, refused, waited, over, over])


def _two_waits() -> Iterator[ValueCase]:
    """Two queue pairs that wait after RNR NAKs, one for a short and one for a long time."""
    connection = Connection(timeout=0, pairs=2)
    other = replace(ASK, pair=1)
    for codes in ((5, 20), (20, 5)):
        refused = [acknowledge(_RNR | code, why="RNR NAK") for code in codes]
        overs = [Wait(2 * RNR_TIMER_US[code] * US + COARSE) for code in sorted(codes)]
        yield fixed(connection, [ASK, refused[0], other, refused[1].altered(pair=1), *overs])


def _failures_under_way() -> Iterator[ValueCase]:
    """A request that fails while a message of the peer is under way, which is in a receive request
    of the queue pair or of a shared queue.
    """
    first = Packet(int(_O.RC_SEND_FIRST), length=USUAL.mtu)
    for shared in (0, 1):
        for refused in (_NAK | int(NakCode.REMOTE_ACCESS_ERROR), _RNR | 1):
            connection = Connection(srq=shared, rnr_retry=0)
            yield fixed(connection, [ASK, first, acknowledge(refused, why="NAK"), ACK])


def _reads() -> Iterator[ValueCase]:
    """As many READs and atomics as a requester may have under way, and one more."""
    for count in range(1, 17):
        connection = Connection(max_rd_atomic=count)
        yield fixed(connection, [*[READ] * (count + 1), ADD, RESPONSE, RESPONSE])


def _sizes() -> Iterator[ValueCase]:
    """Requests around each path MTU; the response to a READ of three packets."""
    for mtu in MTU_CODES:
        connection = Connection(mtu=mtu)
        lengths = [each for each in (mtu - 1, mtu, mtu + 1, 2 * mtu) if each <= OUTBOX]
        verbs = _W.SEND, _W.RDMA_WRITE, _W.RDMA_WRITE_WITH_IMM, _W.RDMA_READ
        for verb in verbs:
            yield fixed(connection, [Post(int(verb), each) for each in lengths])
        if 2 * mtu < 4096:
            read = Post(int(_W.RDMA_READ), 2 * mtu + 8)
            yield fixed(connection, [read, *_read_of_three(mtu)])
    for verb in (_W.SEND, _W.RDMA_WRITE):
        yield fixed(USUAL, [Post(int(verb), each) for each in range(18)])
    datagrams = [Post(int(_W.SEND), each) for each in (4096, 4097, OUTBOX, 8)]
    yield fixed(Connection(service="UD"), datagrams)
    for length in range(18):
        answer = RESPONSE.altered(length=length)
        yield fixed(USUAL, [Post(int(_W.RDMA_READ), length), answer])


def _read_of_three(mtu: int) -> Sequence[Packet]:
    msn: dict[str, Value] = {"aeth.msn": ("ssn", 0)}
    return [
        Packet(int(_O.RC_RDMA_READ_RESPONSE_FIRST), ("una", 0), mtu, fields=msn),
        Packet(int(_O.RC_RDMA_READ_RESPONSE_MIDDLE), ("una", 0), mtu, at=mtu),
        Packet(int(_O.RC_RDMA_READ_RESPONSE_LAST), ("una", 0), 8, at=2 * mtu, fields=msn),
    ]


def _psns() -> Iterator[ValueCase]:
    """PSNs at each power of two; how far behind or ahead of the oldest one an ACK is."""
    for bit in range(1, 24):
        connection = Connection(sq_psn=(1 << bit) - 2 & MASK)
        long = Post(int(_W.RDMA_WRITE), 3 * USUAL.mtu)
        yield fixed(connection, [ASK, long, acknowledge(psn=("una", 3)), ASK, ACK])
    far = [sign << bit for bit in range(23) for sign in (1, -1)]
    wrong = [acknowledge(psn=("una", each), why="bth.psn") for each in (*far, 1 << 23)]
    yield fixed(USUAL, [ASK, *wrong, ACK])


def _partitions() -> Iterator[ValueCase]:
    """P_Keys for each place in the table: full and limited members, each bit flipped."""
    for index in range(len(PKEYS)):
        own = PKEYS[index]
        keys = [*PKEYS, 0, 0x8000, *(own ^ 1 << bit for bit in range(16))]
        wrong = [with_field(ACK, "bth.pkey", key) for key in keys]
        yield fixed(Connection(pkey_index=index), [step for each in wrong for step in (ASK, each)])


def _ignored_fields() -> Iterator[ValueCase]:
    """Fields that a requester does not look at, in each bit; what it checks before it looks."""
    names = ("bth.resv6a", 6), ("bth.resv7", 7), ("bth.fecn", 1), ("bth.becn", 1), ("bth.se", 1)
    odd = [with_field(ACK, name, 1 << bit) for name, width in names for bit in range(width)]
    odd += [with_field(ACK, "bth.mig_req", bit) for bit in (0, 1)]
    odd += [with_field(ACK, "bth.ack_req", bit) for bit in (0, 1)]
    odd += [with_field(ACK, "ip.ecn", each) for each in range(4)]
    yield fixed(USUAL, [step for each in odd for step in (ASK, each)])
    wrong = [with_field(ACK, "bth.tver", each) for each in range(1, 16)]
    yield fixed(USUAL, [ASK, *wrong, ACK])
    yield fixed(USUAL, [ASK, *(with_field(ACK, "bth.pad_count", each) for each in (1, 2, 3)), ACK])
    yield fixed(
        USUAL, [ASK, *(ACK.altered(icrc=GOOD | 1 << bit, why="ICRC") for bit in range(32)), ACK]
    )

    def other_pairs(reference: Emulation) -> list[Step]:
        flipped = bits_of("qpn", 24, reference)
        return [ASK, *(with_field(ACK, "bth.dest_qp", each) for each in flipped), ACK]

    yield ValueCase(USUAL, other_pairs)


def _pieces() -> Iterator[ValueCase]:
    """Requests of each number of SGEs, and with each of these wrong."""
    for verb in (_W.SEND, _W.RDMA_WRITE):
        yield fixed(USUAL, [Post(int(verb), 1000, sges=count) for count in range(1, 17)])
    for count in range(1, 17):
        read = Post(int(_W.RDMA_READ), 2 * USUAL.mtu + 8, sges=count)
        yield fixed(USUAL, [read, *_read_of_three(USUAL.mtu)])
        yield fixed(USUAL, [Post(int(_W.SEND), 1000, sges=16, wrong_lkey=count)])


def _results() -> Iterator[ValueCase]:
    """Results of atomics of one bit; all flags of all requests."""
    steps: list[Step] = []
    for bit in range(64):
        result = Packet(int(_O.RC_ATOMIC_ACKNOWLEDGE), ("una", 0))
        result = with_field(result, "atomicacketh.orig", 1 << bit)
        steps += [ADD, with_field(result, "aeth.msn", ("ssn", 0)).altered(why="")]
    yield fixed(USUAL, steps)
    for verb in _VERBS:
        flags = [(fence, solicited) for fence in (False, True) for solicited in (False, True)]
        yield fixed(
            USUAL, [Post(verb, 8, fence=fence, solicited=solicited) for fence, solicited in flags]
        )


def _local_invalidates() -> Iterator[ValueCase]:
    """A window that the device itself invalidates: behind other requests, and with data behind."""
    window: dict[str, Value] = {"reth.rkey": ("mw.rkey", 0), "reth.va": ("mw.va", 0)}
    write = Packet(int(_O.RC_RDMA_WRITE_ONLY), length=8, fields=window)
    read = Packet(int(_O.RC_RDMA_READ_REQUEST), fields={**window, "reth.dma_len": 8})
    said = {**window, "reth.dma_len": USUAL.mtu + 8}
    first = Packet(int(_O.RC_RDMA_WRITE_FIRST), length=USUAL.mtu, fields=said)
    last = Packet(int(_O.RC_RDMA_WRITE_LAST), length=8)
    local = [Post(int(_W.LOCAL_INV), signaled=each, fence=each) for each in (False, True)]
    for invalidate in local:
        yield fixed(USUAL, [write, invalidate, write])
        yield fixed(USUAL, [invalidate, read])
        yield fixed(USUAL, [first, invalidate, last])
        other = first.altered(fields={"reth.dma_len": USUAL.mtu + 8})
        yield fixed(USUAL, [other, invalidate, last])  # it is in the region, whose key stays
        yield fixed(USUAL, [ASK, invalidate, write, ACK, write])
        yield fixed(USUAL, [READ, ASK, invalidate, ASK, RESPONSE, ACK, ACK, write])
        yield fixed(USUAL, [invalidate, ASK, READ, ACK, RESPONSE])


COARSE = 8 * MS
"""More than the steps in which a device may count time (the choice `rnr_granularity`)."""

ROOM = 3
"""Messages that credits leave room for."""

FEW_CREDITS = 100
"""Fewer credits than a send queue has room for requests."""

_NAK, _RNR, _RESERVED = AckKind.NAK << 5, AckKind.RNR_NAK << 5, AckKind.RESERVED << 5
_VERBS = tuple(
    int(each)
    for each in (
        *(_W.SEND, _W.SEND_WITH_IMM, _W.SEND_WITH_INV, _W.RDMA_WRITE, _W.RDMA_WRITE_WITH_IMM),
        *(_W.RDMA_READ, _W.ATOMIC_CMP_AND_SWP, _W.ATOMIC_FETCH_AND_ADD, _W.FLUSH),
        _W.ATOMIC_WRITE,
    )
)
_WITH_DATA = (
    _O.RC_RDMA_READ_RESPONSE_FIRST,
    _O.RC_RDMA_READ_RESPONSE_MIDDLE,
    _O.RC_RDMA_READ_RESPONSE_LAST,
    _O.RC_RDMA_READ_RESPONSE_ONLY,
)

_MAKERS: Sequence[Callable[[], Iterator[ValueCase]]] = (
    _rnr_timers,
    _syndromes,
    _credits,
    _credit_limits,
    _opcodes,
    _timeouts,
    _reads,
    _sizes,
    _psns,
    _partitions,
    _ignored_fields,
    _pieces,
    _results,
    _local_invalidates,
    _retries_beside_rnr_naks,
    _two_waits,
    _failures_under_way,
)
