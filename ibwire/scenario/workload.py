"""Applications on devices: messages sent, received and compared byte by byte.

A `Flow` is one application at both ends of a connection, on two hosts (`ibwire.peer.Host`):
it posts messages in one direction, keeps receives posted at the far end, and compares every
byte of every message with the expected one. The data of a message is a piece of pseudo-random
bytes that differs from message to message, so data at a wrong place shows as well as a wrong
byte.

There is no protocol here: the device does everything between a post and its completion.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, NamedTuple, Protocol, TypeVar

from ibwire.base.units import Time
from ibwire.peer.end import QKEY
from ibwire.peer.host import WR_ID_MASK, Host
from ibwire.rc.attributes import AddressVector, QPState, QPType
from ibwire.rc.connect import ALL_ACCESS
from ibwire.rc.memory import MemoryRegion, ProtectionDomain
from ibwire.rc.qp import QueuePair
from ibwire.rc.work import SGE, WC, RecvWR, SendFlags, SendWR, WCFlags, WCStatus, WROpcode

CONSUMING = frozenset({WROpcode.SEND, WROpcode.SEND_WITH_IMM, WROpcode.RDMA_WRITE_WITH_IMM})
"""Operations that consume a receive request of the peer."""

ATOMICS = frozenset({WROpcode.ATOMIC_CMP_AND_SWP, WROpcode.ATOMIC_FETCH_AND_ADD})

FIXED_SIZES = {
    **dict.fromkeys(ATOMICS, 8),
    WROpcode.ATOMIC_WRITE: 8,
    WROpcode.FLUSH: 0,
}
"""Bytes of messages that have no other size."""

_IMMEDIATE = frozenset({WROpcode.SEND_WITH_IMM, WROpcode.RDMA_WRITE_WITH_IMM})

RECENT = 512
"""Messages of an unreliable service that are remembered: the most by which one may be late."""

GRH_ROOM = 40
"""Bytes before the payload in the receive buffer of a datagram (IBA 11.4.1.2)."""

Value = TypeVar("Value")


class Choice(Generic[Value]):
    """Values for the messages of a flow: in turn, or drawn with weights."""

    def __init__(self, values: Sequence[Value], weights: Sequence[int] | None = None) -> None:
        self.values = values
        self._total: list[int] = []
        if weights is not None:
            total = 0
            for weight in weights:
                total += weight
                self._total.append(total)

    def pick(self, number: int, draw: random.Random) -> Value:
        """The value of a message; `number` counts from 0."""
        if len(self.values) == 1:
            return self.values[0]
        if not self._total:
            return self.values[number % len(self.values)]
        return draw.choices(self.values, cum_weights=self._total)[0]

    def possible(self, number: int) -> Sequence[Value]:
        """The values that a message may get."""
        if not self._total:
            return [self.values[number % len(self.values)]]
        before = [0, *self._total]
        return [
            value
            for value, low, high in zip(self.values, before, self._total, strict=False)
            if low < high
        ]


class Sizes(Protocol):
    """Bytes of the messages of a flow."""

    values: Sequence[int]

    def pick(self, number: int, draw: random.Random) -> int:
        """The size of a message."""
        ...

    def possible(self, number: int) -> Sequence[int]:
        """The values that a message may get."""
        ...


class Between:
    """Sizes drawn from a range, both ends included."""

    def __init__(self, low: int, high: int) -> None:
        self.values: Sequence[int] = (low, high)

    def pick(self, number: int, draw: random.Random) -> int:
        """The size of a message."""
        low, high = self.values
        return draw.randint(low, high)

    def possible(self, number: int) -> Sequence[int]:
        """The least and the most that a message may get."""
        return self.values


@dataclass(frozen=True, slots=True)
class Mistake:
    """A message that the application posts wrongly on purpose."""

    kind: str
    """`rkey`: an invalid key; `bounds`: an address after the memory; `lkey`: the sender's own key
    is invalid.
    """
    message: int
    """Number of the message, from 0."""


@dataclass(frozen=True, slots=True)
class Receives:
    """How the far end keeps receives posted."""

    posted: int
    """Receive requests posted at the start."""
    start: Time = 0
    """When they are posted."""
    service: Time = 0
    """How long the application is busy with each message, one after the other, before it
    posts the receive again."""
    repost: bool = True
    size: int | None = None
    """Bytes of each buffer; `None` for those of the largest message."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a flow sends."""

    opcodes: Choice[WROpcode]
    sizes: Sizes
    count: int
    window: int
    """Messages posted and not completed, at most."""
    start: Time
    receives: Receives
    every: Time = 0
    """Least time between messages."""
    inline: bool = False
    mistake: Mistake | None = None
    traffic_class: int = 0
    """Traffic class of datagrams; a connection has one."""

    def later(self, delay: Time) -> Traffic:
        """The same, started later."""
        return replace(self, start=self.start + delay) if delay else self

    @property
    def largest(self) -> int:
        """Bytes of the largest message."""
        fixed = [FIXED_SIZES[each] for each in self.opcodes.values if each in FIXED_SIZES]
        free = self.sizes.values if len(fixed) < len(self.opcodes.values) else ()
        return max(*fixed, *free, 0, 0)

    @property
    def memory(self) -> int:
        """Bytes of memory that a flow of this traffic takes at both ends."""
        slot = _slot(self.largest)
        receives = self.receives.posted * _slot(self.receives.size or self.largest)
        return 2 * self.window * slot + receives + 3 * slot


class Contents:
    """Pseudo-random bytes, of which every message is a piece."""

    SPAN = 1 << 20
    """Number of places where pieces begin: a power of two, so that an odd stride
    visits each before it repeats one.
    """

    def __init__(self, seed: int, largest: int) -> None:
        self.data = random.Random(f"{seed}/contents").randbytes(self.SPAN + largest)

    def place(self, flow: int, message: int) -> int:
        """Where the piece of a message begins."""
        return (flow * 0x9E3779B1 + message * 0x10DCD) & self.SPAN - 1


@dataclass(slots=True)
class Tally:
    """Counts of the messages of a flow."""

    messages: int
    """Messages to be posted."""
    posted: int = 0
    statuses: Counter[WCStatus] = field(default_factory=Counter)
    """Completions of sends."""
    verified: int = 0
    """Messages in which every byte was correct."""
    verified_bytes: int = 0
    wrong: int = 0
    """Messages with a wrong byte, length or immediate."""
    receive_errors: Counter[WCStatus] = field(default_factory=Counter)
    """Receives completed in error, except those flushed."""
    started: Time | None = None
    """When the first message was posted."""
    ended: Time = 0
    """When the last one completed or was verified."""

    @property
    def success(self) -> int:
        """Sends completed with success."""
        return self.statuses[WCStatus.SUCCESS]

    @property
    def failed(self) -> bool:
        """Whether the connection failed."""
        return len(self.statuses) > (WCStatus.SUCCESS in self.statuses)

    @property
    def unfinished(self) -> int:
        """Messages without a known result; those that a failed connection never posted do
        not count."""
        done = self.statuses.total()
        return (self.posted if self.failed else self.messages) - done

    def take_in(self, size: int, is_right: bool, now: Time) -> None:
        """Count a message that was compared."""
        self.ended = now
        if is_right:
            self.verified += 1
            self.verified_bytes += size
        else:
            self.wrong += 1


class Message(NamedTuple):
    """An outstanding message."""

    number: int
    opcode: WROpcode
    size: int
    place: int
    """Where its data begins in the contents; for an atomic, the expected original value."""


class Flow:
    """Messages of one application from one end of a connection to the other."""

    def __init__(
        self,
        number: int,
        traffic: Traffic,
        contents: Contents,
        sender: Host,
        qp: QueuePair,
        receiver: Host,
        peer: QueuePair,
        seed: int,
    ) -> None:
        """number: of the flow in the run; data and random draws depend on it."""
        self.number = number
        self.traffic = traffic
        self.qp = qp
        self.peer = peer
        self.tally = Tally(traffic.count)
        self._sender = sender
        self._contents = contents
        self._seed = seed
        self._random = random.Random(f"{seed}/flow/{number}")
        self._first_wr_id = sender.add_handler(self._sent)
        self._slot = _slot(traffic.largest)
        self._is_late = False
        """Whether a wake for the next message is planned."""
        size = traffic.window * self._slot
        self._local = _register(qp.pd, size)
        self._remote = _register(peer.pd, size)
        self._counter = _register(peer.pd, 8)
        self._expected_count = 0
        """Value of the atomics counter after all posted operations."""
        self._under_way: deque[Message] = deque()
        self._receiving: Receiving | None = None
        if any(opcode in CONSUMING for opcode in traffic.opcodes.values):
            self._receiving = Receiving(self, receiver)
        sender.at(traffic.start, self._post)

    def expects(self, message: Message) -> bool:
        """Whether the peer's memory holds the data of a WRITE with immediate."""
        return self._holds(self._remote, message)

    def data(self, message: Message) -> bytes:
        """The data of a message."""
        return self._contents.data[message.place : message.place + message.size]

    def posted_messages(self) -> Iterator[tuple[WROpcode, int]]:
        """Opcode and bytes of each message that was posted, drawn again."""
        draw = random.Random(f"{self._seed}/flow/{self.number}")
        for number in range(self.tally.posted):
            opcode = self.traffic.opcodes.pick(number, draw)
            size = FIXED_SIZES.get(opcode)
            yield opcode, self.traffic.sizes.pick(number, draw) if size is None else size

    def finish(self) -> None:
        """Check what is certain only at the end of a run."""
        tally = self.tally
        if tally.success == tally.posted and self._counter.load64(0) != self._expected_count:
            tally.wrong += 1

    def _post(self, now: Time) -> None:
        """Post messages up to the limits of count, window, pace and send queue."""
        tally, traffic = self.tally, self.traffic
        if tally.started is None:
            tally.started = now
        while (
            tally.posted < traffic.count
            and len(self._under_way) < traffic.window
            and self.qp.state is QPState.RTS
        ):
            due = traffic.start + tally.posted * traffic.every
            if due > now:
                if not self._is_late:
                    self._is_late = True
                    self._sender.at(due, self._resume)
                return
            self._post_one(tally.posted)

    def _resume(self, now: Time) -> None:
        self._is_late = False
        self._post(now)

    def _post_one(self, number: int) -> None:
        traffic = self.traffic
        opcode = traffic.opcodes.pick(number, self._random)
        size = FIXED_SIZES.get(opcode, -1)
        if size < 0:
            size = traffic.sizes.pick(number, self._random)
        place = self._contents.place(self.number, number)
        message = Message(number, opcode, size, place)
        start = number % traffic.window * self._slot
        wr = SendWR(
            opcode,
            [SGE(self._local.iova + start, size, self._local.lkey)] if size else (),
            _INLINE if traffic.inline and opcode in _COPIED else SendFlags.SIGNALED,
            self._first_wr_id + number,
            remote_addr=self._remote.iova + start,
            rkey=self._remote.rkey,
        )
        if opcode in ATOMICS:
            message = self._prepare_atomic(wr, message)
        elif opcode is WROpcode.RDMA_READ:
            self._remote.buffer[start : start + size] = self.data(message)
        elif opcode is WROpcode.ATOMIC_WRITE:
            wr.atomic_data = self.data(message)
        elif opcode is WROpcode.FLUSH:
            wr.length = self._slot
        else:
            self._local.buffer[start : start + size] = self.data(message)
            if opcode in _IMMEDIATE:
                wr.imm_data = number & 0xFFFFFFFF
        if self.qp.qp_type is QPType.UD:
            wr.ah = AddressVector(
                dgid=self.peer.device.gids[0],
                dlid=self.peer.device.lid,
                traffic_class=traffic.traffic_class,
                is_global=self.qp.device.link != "ib",
            )
            wr.remote_qpn, wr.remote_qkey = self.peer.number, QKEY
        if traffic.mistake is not None and traffic.mistake.message == number:
            self._err(wr, traffic.mistake.kind)
        self._under_way.append(message)
        self.tally.posted += 1
        if self._receiving is not None and opcode in CONSUMING:
            self._receiving.expected.append(message)
        self.qp.post_send(wr)

    def _prepare_atomic(self, wr: SendWR, message: Message) -> Message:
        before = self._expected_count
        wr.remote_addr = self._counter.iova
        wr.rkey = self._counter.rkey
        operand = int.from_bytes(self.data(message), "little")
        if message.opcode is WROpcode.ATOMIC_FETCH_AND_ADD:
            wr.compare_add = operand
            self._expected_count = before + operand & 0xFFFF_FFFF_FFFF_FFFF
        else:
            wr.compare_add, wr.swap = before, operand
            self._expected_count = operand
        return message._replace(place=before)

    def _err(self, wr: SendWR, kind: str) -> None:
        if kind == "rkey":
            wr.rkey ^= 0xFF
        elif kind == "bounds":
            wr.remote_addr = self._remote.iova + self._remote.length
        else:
            wr.sg_list = [SGE(sge.addr, sge.length, sge.lkey ^ 0xFF) for sge in wr.sg_list]

    def _sent(self, wc: WC, now: Time) -> None:
        """Handle the completion of a send; sends complete in order."""
        tally = self.tally
        message = self._under_way.popleft()
        tally.statuses[wc.status] += 1
        tally.ended = now
        if wc.status is not WCStatus.SUCCESS:
            return
        opcode = message.opcode
        if message.number != wc.wr_id & WR_ID_MASK:
            tally.wrong += 1
        elif opcode in ATOMICS:
            start = message.number % self.traffic.window * self._slot
            tally.take_in(8, self._local.load64(start) == message.place, now)
        elif opcode is WROpcode.RDMA_READ:
            tally.take_in(message.size, self._holds(self._local, message), now)
        elif opcode not in CONSUMING:
            tally.take_in(message.size, self._holds(self._remote, message), now)
        self._post(now)

    def _holds(self, region: MemoryRegion, message: Message) -> bool:
        start = message.number % self.traffic.window * self._slot
        return bytes(region.buffer[start : start + message.size]) == self.data(message)


class Receiving:
    """The far end of a flow: receives posted, and messages compared as they come in."""

    def __init__(self, flow: Flow, host: Host) -> None:
        self._is_reliable = flow.peer.qp_type is QPType.RC
        self.expected: deque[Message] = deque(maxlen=None if self._is_reliable else RECENT)
        """Messages posted and not yet received; of an unreliable service, those posted lately."""
        self._seen: deque[Message] = deque(maxlen=RECENT)
        """Messages of an unreliable service received lately."""
        self._flow = flow
        self._host = host
        self._qp = flow.peer
        self._receives = flow.traffic.receives
        self._first_wr_id = host.add_handler(self._received)
        self._skip = GRH_ROOM if flow.peer.qp_type is QPType.UD else 0
        size = self._receives.size
        self._size = self._skip + (flow.traffic.largest if size is None else size)
        self._slot = _slot(self._size)
        self._memory = _register(self._qp.pd, self._receives.posted * self._slot)
        self._posted = 0
        self._busy_until: Time = 0
        host.at(self._receives.start, self._open)

    def _open(self, now: Time) -> None:
        for _ in range(self._receives.posted):
            self._post(now)

    def _post(self, now: Time) -> None:
        if self._qp.state in (QPState.RESET, QPState.ERR):
            return
        start = self._posted % self._receives.posted * self._slot
        sges = [SGE(self._memory.iova + start, self._size, self._memory.lkey)]
        wr_id = self._first_wr_id + self._posted
        self._posted += 1
        self._qp.post_recv(RecvWR(sges if self._size else (), wr_id))

    def _received(self, wc: WC, now: Time) -> None:
        tally = self._flow.tally
        if wc.status is not WCStatus.SUCCESS:
            if wc.status is not WCStatus.WR_FLUSH_ERR:
                tally.receive_errors[wc.status] += 1
            return
        message = self._find(wc)
        if message is not None:
            tally.take_in(message.size, True, now)
        elif not any(self._is(each, wc) for each in self._seen):
            tally.take_in(0, False, now)
        receives = self._receives
        if not receives.repost:
            return
        if not receives.service:
            self._post(now)
        else:
            self._busy_until = max(self._busy_until, now) + receives.service
            self._host.at(self._busy_until, self._post)

    def _find(self, wc: WC) -> Message | None:
        """The received message: the next one, or on an unreliable service any.

        An unreliable service may lose, duplicate and reorder messages.
        """
        expected = self.expected
        if self._is_reliable:
            if not expected:
                return None
            message = expected.popleft()
            return message if self._is(message, wc) else None
        for message in expected:
            if self._is(message, wc):
                expected.remove(message)
                self._seen.append(message)
                return message
        return None

    def _is(self, message: Message, wc: WC) -> bool:
        """Whether a receive completion is of this message, and its data right."""
        has_imm = message.opcode in _IMMEDIATE
        if wc.byte_len != message.size + self._skip or bool(wc.wc_flags & WCFlags.WITH_IMM) != (
            has_imm
        ):
            return False
        if has_imm and wc.imm_data != message.number & 0xFFFFFFFF:
            return False
        if message.opcode is WROpcode.RDMA_WRITE_WITH_IMM:
            return self._flow.expects(message)
        start = (wc.wr_id & WR_ID_MASK) % self._receives.posted * self._slot + self._skip
        return bytes(self._memory.buffer[start : start + message.size]) == self._flow.data(message)


def _register(pd: ProtectionDomain, size: int) -> MemoryRegion:
    return pd.register(size, int(ALL_ACCESS))


def _slot(size: int) -> int:
    """Bytes of a message slot: a multiple of eight, so that atomics are aligned."""
    return max(-(-size // 8) * 8, 8)


_INLINE = int(SendFlags.SIGNALED | SendFlags.INLINE)
_COPIED = frozenset(
    {
        WROpcode.SEND,
        WROpcode.SEND_WITH_IMM,
        WROpcode.RDMA_WRITE,
        WROpcode.RDMA_WRITE_WITH_IMM,
    }
)
"""Operations whose data can be inline."""
