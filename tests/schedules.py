"""Runs of two connected queue pairs by a schedule, and everything that could be seen of them.

A `Schedule` says what is posted on both ends, when receive requests come, and what
the wire does to which frame. A `Run` carries it out in virtual time and writes down,
in order, what an outsider sees: frames that leave and arrive, requests posted and
completions. The laws in `laws.py` read nothing else.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from ibwire.base.node import OPEN, Frame, Grant, Stage
from ibwire.base.units import GBPS, US, S, Time
from ibwire.fabric.sim import Outcome, Simulator
from ibwire.rc.attributes import QPType
from ibwire.rc.connect import connect
from ibwire.rc.memory import Access, MemoryWindow
from ibwire.rc.profile import PROFILES, Profile
from ibwire.rc.qp import QPInit
from ibwire.rc.work import (
    WC,
    MWBindInfo,
    RecvWR,
    SendFlags,
    SendWR,
    WCStatus,
    WROpcode,
)
from ibwire.testing import End
from ibwire_layers import headers as h
from ibwire_layers.errors import DecodeError
from ibwire_layers.packet import CrcStatus, Packet, RoCEv2Route

WORDS = 4
"""Numbers of eight bytes at each end, for atomics."""
SLOTS = 4
"""Pieces of memory at each end that the peer writes to and reads from; the last is only read."""
TAKES_RECEIVE = frozenset(
    {
        WROpcode.SEND,
        WROpcode.SEND_WITH_IMM,
        WROpcode.SEND_WITH_INV,
        WROpcode.RDMA_WRITE_WITH_IMM,
    }
)
WRITES = frozenset({WROpcode.RDMA_WRITE, WROpcode.RDMA_WRITE_WITH_IMM})
ATOMICS = frozenset({WROpcode.ATOMIC_CMP_AND_SWP, WROpcode.ATOMIC_FETCH_AND_ADD})
LOCAL = frozenset({WROpcode.BIND_MW, WROpcode.LOCAL_INV})
CARRIES_DATA = frozenset({*TAKES_RECEIVE, *WRITES})
ALL_OPCODES = tuple(WROpcode)


class Bad(StrEnum):
    """What can be wrong with a work request."""

    RKEY = "an R_Key that nobody has"
    BOUNDS = "one byte more than the peer's memory has"
    LKEY = "an L_Key that nobody has, for the last piece"


@dataclass(frozen=True, slots=True)
class Work:
    """A send work request. Its own memory is a place that no other uses."""

    opcode: WROpcode = WROpcode.SEND
    length: int = 0
    place: int = 0
    """Slot or word at the peer."""
    operand: int = 1
    signaled: bool = True
    fence: bool = False
    solicited: bool = False
    inline: bool = False
    pieces: int = 1
    """SGEs."""
    after: Time = 0
    """Since the one before was posted."""
    bad: Bad | None = None

    @property
    def swap(self) -> int:
        """What a COMPARE SWAP stores where it finds the operand."""
        return self.operand + 1 & 0xFFFF_FFFF_FFFF_FFFF


class Harm(StrEnum):
    """What a wire does to a frame."""

    DROP = "drop"
    DUPLICATE = "duplicate"
    CORRUPT = "corrupt"
    DELAY = "delay"


@dataclass(frozen=True, slots=True)
class Fault:
    """Harm to one frame."""

    sender: str
    number: int
    """Among the frames of that sender, from 1."""
    harm: Harm = Harm.DROP
    amount: int = 0
    """Picoseconds for DUPLICATE and DELAY, a bit of the frame for CORRUPT."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """What is to happen between `a` and `b`."""

    works: tuple[Work, ...] = ()
    """Posted at `a`."""
    back: tuple[Work, ...] = ()
    """Posted at `b`."""
    faults: tuple[Fault, ...] = ()
    receives: tuple[tuple[Time, int], ...] = ((0, 32),)
    """When how many receive requests are posted, at both ends."""
    receive_size: int | None = None
    """Bytes of each; `None` for as many as the longest message has."""
    receive_pieces: int = 1
    profiles: tuple[str, str] = ("spec", "spec")
    burst_packets: int | None = None
    """Of both devices; `None` for those of their profiles."""
    mtu: int = 256
    psns: tuple[int, int] = (0, 0)
    msn: int = 0
    """Messages that count as exchanged already, in both directions."""
    timeout: int = 10
    retry_cnt: int = 7
    rnr_retry: int = 7
    min_rnr_timer: int = 1
    max_rd_atomic: int = 4
    max_dest_rd_atomic: int = 4
    rates_gbps: tuple[int, int] = (100, 100)
    """Of the line from `a` and of the one from `b`: on a slow one things queue up."""
    delay: Time = 1 * US
    """Of the wire."""
    credits_say_zero: bool = False
    """Whether every ACK that arrives says credit code 0, whatever was meant."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that an outsider has seen."""

    time: Time
    end: str
    kind: str
    """`sent`, `arrived` (only frames with a good ICRC), `receive` (a receive request was
    posted), `posted` (a send request), `completed` and `received` (completions)."""
    frame: Frame = b""
    packet: Packet | None = None
    wc: WC | None = None
    number: int = 0
    """Index of the work or receive request."""


@dataclass(frozen=True, slots=True)
class Message:
    """A work request with the numbers that the wire knows it by, counted by hand."""

    work: Work
    index: int
    start: int
    """Its first PSN, not wrapped."""
    count: int
    ssn: int

    @property
    def end(self) -> int:
        """The first PSN after it, not wrapped."""
        return self.start + self.count


@dataclass(slots=True)
class Flow:
    """One direction of a run: requests of one end, responses of the other."""

    run: Run
    requester: str
    responder: str
    works: tuple[Work, ...]
    psn: int
    messages: list[Message] = field(default_factory=list)
    """Of the works that use the wire."""

    def __post_init__(self) -> None:
        psn = self.psn
        mtu = self.run.schedule.mtu
        for index, work in enumerate(self.works):
            if work.opcode in LOCAL:
                continue
            cut = work.opcode in CARRIES_DATA or work.opcode is WROpcode.RDMA_READ
            count = max(1, -(-work.length // mtu)) if cut else 1
            self.messages.append(Message(work, index, psn, count, len(self.messages) + 1))
            psn += count

    @property
    def end_psn(self) -> int:
        """The first PSN after all messages, not wrapped."""
        return self.messages[-1].end if self.messages else self.psn

    def unwrap(self, psn: int) -> int:
        """The number that a PSN of a packet stands for: at most 2^23 from the middle."""
        return self.psn + ((psn - self.psn + (1 << 22)) & 0xFFFFFF) - (1 << 22)

    def message_at(self, psn: int) -> Message | None:
        """The message that an unwrapped PSN belongs to."""
        for message in self.messages:
            if message.start <= psn < message.end:
                return message
        return None

    def profile(self, end: str) -> Profile:
        """How one of the ends behaves."""
        return PROFILES[self.run.schedule.profiles[end == "b"]]

    @property
    def sent(self) -> list[WC]:
        """Completions of the send requests."""
        return self.run.completions(self.requester, "completed")

    @property
    def received(self) -> list[WC]:
        """Completions of the receive requests at the other end."""
        return self.run.completions(self.responder, "received")

    @property
    def failed(self) -> bool:
        """Whether a send request ended with an error."""
        return any(wc.status is not WCStatus.SUCCESS for wc in self.sent)


class Station:
    """A device as its cable sees it."""

    def __init__(self, name: str, end: End, run: Run) -> None:
        self.name = name
        self.end = end
        self.run = run

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        packet = self.run.read(frame)
        if packet is not None:
            self.run.note(now, self.name, "arrived", frame=frame, packet=packet)
        self.end.device.receive(frame, now, port)
        self.look(now)

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | None:
        frame = self.end.device.poll_transmit(now, port, grant)
        if frame is not None:
            self.run.note(now, self.name, "sent", frame=frame, packet=Packet.parse(frame))
        self.look(now)
        return frame

    def poll_timeout(self) -> Time | None:
        return self.end.device.poll_timeout()

    def handle_timeout(self, now: Time) -> None:
        self.end.device.handle_timeout(now)
        self.look(now)

    def look(self, now: Time) -> None:
        """Take the completions that are there."""
        for kind, cq in (("completed", self.end.send_cq), ("received", self.end.recv_cq)):
            for wc in cq.poll(len(cq)):
                self.run.note(now, self.name, kind, wc=wc)
        self.run.limits[self.name].append(self.end.qp.sends.credits.lsn)


class Run:
    """A schedule that has been carried out."""

    MAXIMUM_FRAMES = 20_000
    """No schedule here needs a tenth of them: an end that sends more will never stop."""

    def __init__(self, schedule: Schedule, station: type[Station] = Station) -> None:
        self.schedule = schedule
        self.history: list[Event] = []
        self._packets: dict[Frame, Packet | None] = {}
        self._counts: Counter[str] = Counter()
        self._faults: dict[tuple[str, int], list[Fault]] = {}
        for fault in schedule.faults:
            self._faults.setdefault((fault.sender, fault.number), []).append(fault)
        works = (*schedule.works, *schedule.back)
        longest = max([work.length for work in works], default=0)
        self.receive_size = longest if schedule.receive_size is None else schedule.receive_size
        self.span = 16 * (max(longest, self.receive_size) // 16 + 4)
        """Bytes between two places in memory: some more than any message has."""
        self.receives = sum(count for _, count in schedule.receives)
        self.ends = {name: self._end(name) for name in ("a", "b")}
        self.limits: dict[str, list[int]] = {"a": [], "b": []}
        """The credit limit of each requester after every event, which is not visible outside."""
        self.windows: dict[tuple[str, int], MemoryWindow] = {}
        """The window that a work request of that end binds or invalidates."""
        self.initial = {name: bytes(end.mr.buffer) for name, end in self.ends.items()}
        a, b = self.ends["a"], self.ends["b"]
        connect(
            a.qp,
            b.qp,
            psn_a=schedule.psns[0],
            psn_b=schedule.psns[1],
            mtu=schedule.mtu,
            timeout=schedule.timeout,
            retry_cnt=schedule.retry_cnt,
            rnr_retry=schedule.rnr_retry,
            min_rnr_timer=schedule.min_rnr_timer,
            max_rd_atomic=schedule.max_rd_atomic,
            max_dest_rd_atomic=schedule.max_dest_rd_atomic,
        )
        for end in (a, b):
            # There is no way from outside to have exchanged 2^24 messages in a test.
            end.qp.responder.msn = end.qp.responder._advertised = schedule.msn
            end.qp.sends.ssn = end.qp.sends.credits.lsn = schedule.msn
        self.flows = (
            Flow(self, "a", "b", schedule.works, schedule.psns[0]),
            Flow(self, "b", "a", schedule.back, schedule.psns[1]),
        )
        self.sim = Simulator()
        self.stations = {name: station(name, end, self) for name, end in self.ends.items()}
        self.sim.connect(
            self.stations["a"],
            self.stations["b"],
            rate_bps=(schedule.rates_gbps[0] * GBPS, schedule.rates_gbps[1] * GBPS),
            delay=schedule.delay,
            a_to_b=self._stage("a"),
            b_to_a=self._stage("b"),
        )
        self.outcome = self._carry_out()

    # Where things are.

    @property
    def _places(self) -> int:
        """How many pieces of memory come before the receive buffers."""
        return max(len(self.schedule.works), len(self.schedule.back))

    def own(self, index: int) -> int:
        """Offset of the memory of a send request."""
        return index * self.span

    def buffer(self, index: int) -> int:
        """Offset of a receive buffer."""
        return (self._places + index) * self.span

    def slot(self, place: int) -> int:
        """Offset of a slot for the peer."""
        return (self._places + self.receives + place) * self.span

    def word(self, place: int) -> int:
        """Offset of a number for atomics."""
        return self.slot(SLOTS) + 8 * place

    @staticmethod
    def pieces(offset: int, length: int, count: int) -> list[tuple[int, int]]:
        """A place as SGEs, (offset, length) each: in reverse order in memory."""
        cuts = [length * i // count for i in range(count + 1)]
        sizes = [cuts[i + 1] - cuts[i] for i in range(count)]
        return [(offset + sum(sizes[i + 1 :]), size) for i, size in enumerate(sizes)]

    def read(self, frame: Frame) -> Packet | None:
        """The packet of a frame that has arrived, `None` if it is damaged."""
        if frame not in self._packets:
            try:
                packet: Packet | None = Packet.parse(frame)
            except DecodeError:
                packet = None
            self._packets[frame] = packet if packet is None or is_sound(packet) else None
        return self._packets[frame]

    def memory(self, end: str) -> memoryview:
        """What the memory of an end holds now."""
        return self.ends[end].mr.buffer

    def placed(self, memory: bytes | memoryview, pieces: list[tuple[int, int]]) -> bytes:
        """The bytes of SGEs one after the other."""
        return b"".join(bytes(memory[start : start + size]) for start, size in pieces)

    def own_pieces(self, index: int, work: Work) -> list[tuple[int, int]]:
        """The SGEs of a send request."""
        length = 8 if work.opcode in ATOMICS else work.length
        return self.pieces(self.own(index), length, work.pieces)

    def packets(self, end: str) -> list[Packet]:
        """What an end has sent, in order."""
        sent = [each for each in self.history if (each.end, each.kind) == (end, "sent")]
        return [each.packet for each in sent if each.packet is not None]

    def note(self, now: Time, end: str, kind: str, **what: Any) -> None:
        """Write an event down."""
        self.history.append(Event(now, end, kind, **what))

    def completions(self, end: str, kind: str) -> list[WC]:
        """The completions of one queue, in order."""
        return [
            event.wc
            for event in self.history
            if event.wc and (event.end, event.kind) == (end, kind)
        ]

    # How it goes.

    def _end(self, name: str) -> End:
        schedule = self.schedule
        size = self.word(WORDS) + 64
        profile = PROFILES[schedule.profiles[name == "b"]]
        if schedule.burst_packets is not None:
            profile = replace(profile, burst_packets=schedule.burst_packets)
        address, key_start = ("10.0.0.1", 10) if name == "a" else ("10.0.0.22", 20)
        end = End(name, address, key_start=key_start, profile=profile, size=size)
        if name == "b":  # else both queue pairs had the same number
            parts = QPInit(QPType.RC, end.pd, end.send_cq, end.recv_cq, cap=replace(end.qp.cap))
            end.qp = end.device.create_qp(parts, number=0xABCDEF)
        end.mr.buffer[:] = random.Random(f"{name}").randbytes(size)
        for place in range(WORDS):
            end.mr.store64(self.word(place), 1)
        return end

    def _stage(self, sender: str) -> Stage | None:
        return lambda frame, now: self._pass(sender, frame)

    def _pass(self, sender: str, frame: Frame) -> list[tuple[Time, Frame]]:
        self._counts[sender] += 1
        if self.schedule.credits_say_zero:
            frame = without_credits(frame)
        passing = [(0, frame)]
        for fault in self._faults.get((sender, self._counts[sender]), ()):
            delay, data = passing[0]
            if fault.harm is Harm.DROP:
                return []
            if fault.harm is Harm.DUPLICATE:
                passing.append((fault.amount, frame))
            elif fault.harm is Harm.DELAY:
                passing[0] = delay + fault.amount, data
            else:
                bit = fault.amount % (8 * len(data))
                damaged = bytearray(data)
                damaged[bit // 8] ^= 1 << bit % 8
                passing[0] = delay, bytes(damaged)
        return passing

    def _carry_out(self) -> Outcome:
        timeline: list[tuple[Time, str, str, int]] = []
        for flow in self.flows:
            time = 0
            for index, work in enumerate(flow.works):
                time += work.after
                timeline.append((time, "send", flow.requester, index))
        for end in self.ends:
            number = 0
            for time, count in sorted(self.schedule.receives):
                for _ in range(count):
                    timeline.append((time, "receive", end, number))
                    number += 1
        for time, kind, name, index in sorted(timeline):
            if time > self.sim.now:
                self._run(time)
            if kind == "receive":
                self._post_receive(name, index)
            else:
                self._post(self.flows[name == "b"], index)
            self.stations[name].look(self.sim.now)
        return self._run(self.sim.now + 1000 * S)

    def _run(self, until: Time) -> Outcome:
        """Let the network go on."""
        return self.sim.run(until=until, max_frames=self.MAXIMUM_FRAMES)

    def _post_receive(self, name: str, index: int) -> None:
        end = self.ends[name]
        pieces = self.pieces(self.buffer(index), self.receive_size, self.schedule.receive_pieces)
        self.note(self.sim.now, name, "receive", number=index)
        end.qp.post_recv(RecvWR([end.sge(*piece) for piece in pieces], index))

    def _post(self, flow: Flow, index: int) -> None:
        work = flow.works[index]
        end, peer = self.ends[flow.requester], self.ends[flow.responder]
        flags = SendFlags(0)
        for flag, wanted in (
            (SendFlags.SIGNALED, work.signaled),
            (SendFlags.FENCE, work.fence),
            (SendFlags.SOLICITED, work.solicited),
            (SendFlags.INLINE, work.inline),
        ):
            if wanted:
                flags |= flag
        pieces = self.own_pieces(index, work)
        wr = SendWR(work.opcode, [end.sge(*piece) for piece in pieces], flags, index)
        if work.opcode in (*ATOMICS, WROpcode.ATOMIC_WRITE):
            wr.remote_addr = peer.mr.iova + self.word(work.place)
        else:
            wr.remote_addr = peer.mr.iova + self.slot(work.place)
        wr.rkey = peer.mr.rkey
        wr.imm_data = imm_data(index)
        wr.compare_add, wr.swap = work.operand, work.swap
        wr.atomic_data = work.operand.to_bytes(8)
        wr.length = 8
        if work.opcode is WROpcode.ATOMIC_WRITE:
            wr.sg_list = []
        if work.opcode in (*LOCAL, WROpcode.SEND_WITH_INV):
            self._make_window(flow, index, wr)
        if work.bad is Bad.RKEY:
            wr.rkey = wr.invalidate_rkey = 0xBAD0BAD
            wr.mw = None
        elif work.bad is Bad.BOUNDS:
            wr.remote_addr = peer.mr.iova + peer.mr.length - max(work.length, 1) + 1
        elif work.bad is Bad.LKEY:
            wr.sg_list[-1].lkey = 0xBAD0BAD
        self.note(self.sim.now, flow.requester, "posted", number=index)
        end.qp.post_send(wr)
        if work.inline:  # it is the application's again
            for start, size in pieces:
                end.mr.buffer[start : start + size] = bytes(size)

    def _make_window(self, flow: Flow, index: int, wr: SendWR) -> None:
        """Give a request that binds or invalidates a window of its own."""
        owner = self.ends[flow.requester if wr.opcode in LOCAL else flow.responder]
        region = owner.pd.register(64, int(Access.LOCAL_WRITE | Access.MW_BIND))
        window = owner.pd.allocate_window(2)
        info = MWBindInfo(region, region.iova, 64, int(Access.REMOTE_READ))
        self.windows[flow.requester, index] = window
        if wr.opcode is WROpcode.BIND_MW:
            wr.mw, wr.bind_info, wr.rkey = window, info, window.rkey + 1
        else:
            assert owner.device.keys.bind(window, owner.qp.number, owner.pd, info, window.rkey)
            wr.invalidate_rkey = window.rkey


def is_sound(packet: Packet) -> bool:
    """Whether every checksum of a packet is right; the ICRC covers no other."""
    route = packet.route
    assert isinstance(route, RoCEv2Route)
    header = route.ip.pack()
    # RFC 1071: the sum of a right header is a multiple of 0xFFFF. A UDP checksum that is not 0
    # is wrong here, where everyone sends 0.
    right = int.from_bytes(header) % 0xFFFF == 0 and route.udp.checksum == 0
    return right and packet.icrc_status() is CrcStatus.GOOD


def imm_data(index: int) -> int:
    """The immediate data of a work request."""
    return 0xA0B0C000 + index


def without_credits(frame: Frame) -> Frame:
    """The same packet with credit code 0 in its AETH, if that is an ACK."""
    packet = Packet.parse(frame)
    found = packet.extension(h.AETH)
    if found is None or found.syndrome >> 5:
        return frame
    extensions = tuple(
        replace(each, syndrome=0) if isinstance(each, h.AETH) else each
        for each in packet.extensions
    )
    return replace(packet, extensions=extensions).repaired().build()
