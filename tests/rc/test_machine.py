"""Two devices under random verbs calls and random faults, against a simple model.

The model records what was posted and accepted, which objects use each other, and the
contents of each message. It does not model the protocol: the state of a queue pair is read,
not predicted, because a lost packet may end a connection at any time.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from examples import scaled
from ibwire.base.errors import VerbsError
from ibwire.base.node import Frame
from ibwire.base.units import MS, US, Time
from ibwire.fabric.sim import Simulator
from ibwire.rc.attributes import QPAttr, QPAttrMask, QPCap, QPState, QPType
from ibwire.rc.connect import ALL_ACCESS, connect
from ibwire.rc.cq import CompletionQueue
from ibwire.rc.device import Device
from ibwire.rc.memory import Access, MemoryRegion, MemoryWindow, ProtectionDomain
from ibwire.rc.profile import PROFILES
from ibwire.rc.qp import QPInit, QueuePair
from ibwire.rc.srq import SharedReceiveQueue
from ibwire.rc.states import TRANSITIONS
from ibwire.rc.work import (
    SGE,
    WC,
    MWBindInfo,
    RecvWR,
    SendFlags,
    SendWR,
    WCOpcode,
    WCStatus,
    WROpcode,
)
from ibwire_layers.psn import HALF, MASK

SLOT, SLOTS = 1024, 2048
"""Bytes of a message at most, and messages that one purpose has room for at a time."""

DEPTH = 12
"""Work requests of one queue."""

PURPOSES = ("constant", "source", "sink", "target", "receive")
"""What a side's memory is for: READs of the peer, own sends, own READs, WRITEs of the peer."""


@dataclass
class Posted:
    """A work request that was accepted."""

    wr_id: int
    signaled: bool = True
    check: Callable[[], None] | None = None
    """What must be true when it has succeeded."""


@dataclass
class End:
    """A queue pair as the model sees it."""

    qp: QueuePair
    side: Side
    pd: ProtectionDomain
    send_cq: CompletionQueue
    recv_cq: CompletionQueue
    srq: SharedReceiveQueue | None
    peer: End | None = None
    sends: deque[Posted] = field(default_factory=deque)
    receives: deque[Posted] = field(default_factory=deque)
    in_use: int = 0
    """Send requests accepted and not known to be finished."""
    failed: dict[str, bool] = field(default_factory=lambda: {"send": False, "recv": False})
    messages: list[bytes | None] = field(default_factory=list)
    """What it has sent that takes a receive request of the peer, since it is connected; `None`
    where the data goes elsewhere."""
    arrived: int = 0
    """Messages of the peer that it has received."""

    @property
    def is_reliable(self) -> bool:
        return self.qp.qp_type is QPType.RC

    @property
    def lost(self) -> bool:
        """Whether a completion of it may have been lost for lack of room."""
        return self.send_cq.error or self.recv_cq.error

    def forget(self) -> None:
        """RESET: whatever was posted never completes."""
        self.sends.clear()
        self.receives.clear()
        self.in_use = 0
        self.failed = {"send": False, "recv": False}


class Side:
    """A device with all that was made on it."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.store = bytearray(SLOT * SLOTS * len(PURPOSES))
        constant = self.place("constant", 0)
        self.store[constant : constant + SLOT * SLOTS] = Random(1).randbytes(SLOT * SLOTS)
        self.additions_tried = self.additions_done = 0
        """To the first eight bytes of what the peer writes to."""
        self.pds: list[ProtectionDomain] = [device.alloc_pd()]
        self.cqs: list[CompletionQueue] = [device.create_cq(1 << 12)]
        self.mrs: list[MemoryRegion] = []
        self.windows: list[MemoryWindow] = []
        self.srqs: list[SharedReceiveQueue] = []
        self.shared: dict[int, deque[int]] = {}
        """Requests posted to each SRQ, by its number."""
        self.ends: list[End] = []
        self.used = 0
        self.register(self.pds[0])

    def count_addition(self) -> None:
        self.additions_done += 1

    def register(self, pd: ProtectionDomain) -> None:
        access = int(ALL_ACCESS | Access.MW_BIND)
        self.mrs.append(pd.register(self.store, access, iova=1 << 20))

    def place(self, purpose: str, slot: int) -> int:
        """Offset into the memory."""
        return (PURPOSES.index(purpose) * SLOTS + slot % SLOTS) * SLOT

    def users_of(self, thing: ProtectionDomain | CompletionQueue | SharedReceiveQueue) -> int:
        """How many live objects use it."""
        users = [each.pd for each in (*self.mrs, *self.windows, *self.srqs)]  # type: ignore[attr-defined]
        parts = [p for e in self.ends for p in (e.pd, e.send_cq, e.recv_cq, e.srq)]
        return sum(each is thing for each in (*users, *parts))


class Wire:
    """A pipe that applies the given faults to frames."""

    def __init__(self) -> None:
        self.fault = "none"
        self.random = Random(7)

    def __call__(self, frame: Frame, now: Time) -> list[tuple[Time, Frame]]:
        if self.fault == "none" or self.random.random() < 0.8:
            return [(0, frame)] if self.fault != "cut" else []
        if self.fault in ("loss", "cut"):
            return []
        if self.fault == "copies":
            return [(0, frame), (self.random.randrange(20 * US), frame)]
        if self.fault == "delay":
            return [(self.random.randrange(20 * US), frame)]
        position = self.random.randrange(42, len(frame))
        return [(0, frame[:position] + bytes([frame[position] ^ 16]) + frame[position + 1 :])]


def refused(code: int, call: Callable[[], object]) -> None:
    """The call must fail so."""
    with pytest.raises(VerbsError) as caught:
        call()
    assert caught.value.errno == code


choices = st.integers(0, 1 << 16)
"""Which of the objects that there are: the number counts modulo how many."""

OPERATIONS = (
    WROpcode.SEND,
    WROpcode.SEND_WITH_IMM,
    WROpcode.RDMA_WRITE,
    WROpcode.RDMA_WRITE_WITH_IMM,
    WROpcode.RDMA_READ,
    WROpcode.ATOMIC_FETCH_AND_ADD,
)


class TwoDevices(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.random = Random(3)
        self.wr_id = 0
        self.slot_of: dict[int, int] = {}
        """Where the data of each receive request goes."""
        self.sim = Simulator()
        self.wire = Wire()
        self.sides: list[Side] = []

    # The world.

    def _begin(self, profiles: tuple[str, str]) -> None:
        for index, name in enumerate(profiles):
            address, start = f"10.0.0.{index + 1}", index * 100
            device = Device(f"d{index}", address, profile=PROFILES[name], key_start=start)
            self.sides.append(Side(device))
        a, b = (side.device for side in self.sides)
        self.sim.connect(a, b, delay=US, a_to_b=self.wire, b_to_a=self.wire)

    @precondition(lambda self: not self.sides)
    @rule(names=st.tuples(*[st.sampled_from(sorted(PROFILES))] * 2))
    def begin(self, names: tuple[str, str]) -> None:
        self._begin(names)
        self._connect(*(self._make(side, QPType.RC, 0, 0) for side in self.sides))

    @precondition(lambda self: self.sides)
    @rule(fault=st.sampled_from(("none", "none", "loss", "copies", "delay", "flips", "cut")))
    def turn(self, fault: str) -> None:
        self.wire.fault = fault

    @precondition(lambda self: self.sides)
    @rule(time=st.sampled_from((US, 5 * US, 50 * US, 2 * MS, 50 * MS)))
    def run(self, time: Time) -> None:
        self.sim.run(until=self.sim.now + time)

    # Objects come and go.

    @precondition(lambda self: self.sides)
    @rule(where=choices, what=st.sampled_from(("pd", "cq", "tiny cq", "mr", "mw", "srq")))
    def create(self, where: int, what: str) -> None:
        side = self.sides[where % 2]
        pd = side.pds[where // 2 % len(side.pds)] if side.pds else None
        if what == "pd":
            side.pds.append(side.device.alloc_pd())
        elif what.endswith("cq"):
            side.cqs.append(side.device.create_cq(1 << 12 if what == "cq" else 3))
        elif pd is None:
            pass
        elif what == "mr":
            side.register(pd)
        elif what == "mw":
            side.windows.append(pd.allocate_window(1 + where // 2 % 2))
        else:
            side.srqs.append(side.device.create_srq(pd, max_wr=DEPTH))

    @precondition(lambda self: self.sides)
    @rule(pick=choices, kind=st.sampled_from((QPType.RC, QPType.RC, QPType.UC)), shared=choices)
    def create_pair(self, pick: int, kind: QPType, shared: int) -> None:
        if all(side.pds and side.cqs and len(side.ends) < 4 for side in self.sides):
            a, b = (self._make(side, kind, pick, shared) for side in self.sides)
            self._connect(a, b)

    def _make(self, side: Side, kind: QPType, pick: int, shared: int) -> End:
        pd = side.pds[pick % len(side.pds)]
        send_cq, recv_cq = (side.cqs[n % len(side.cqs)] for n in (pick // 3, pick // 7))
        srq = side.srqs[shared % len(side.srqs)] if side.srqs and shared % 3 == 0 else None
        cap = QPCap(DEPTH, DEPTH, 2, 2, 64)
        qp = side.device.create_qp(QPInit(kind, pd, send_cq, recv_cq, srq, cap))
        end = End(qp, side, pd, send_cq, recv_cq, srq)
        side.ends.append(end)
        return end

    def _connect(self, a: End, b: End) -> None:
        a.peer, b.peer = b, a
        psns = self.random.choice((0, HALF - 2, MASK, 99)), self.random.choice((5, MASK - 1))
        kwargs = {"timeout": 8, "retry_cnt": 4, "max_rd_atomic": 2, "max_dest_rd_atomic": 2}
        connect(a.qp, b.qp, psn_a=psns[0], psn_b=psns[1], mtu=256, min_rnr_timer=14, **kwargs)

    @precondition(lambda self: self.sides)
    @rule(where=choices, what=st.sampled_from(("pd", "cq", "mr", "mw", "srq", "qp")))
    def close(self, where: int, what: str) -> None:
        self._drain()
        side = self.sides[where % 2]
        lists = {"pd": side.pds, "cq": side.cqs, "mr": side.mrs, "mw": side.windows}
        lists |= {"srq": side.srqs, "qp": side.ends}
        things: list[object] = lists[what]  # type: ignore[assignment]
        if not things:
            return
        thing = things[where // 2 % len(things)]
        if isinstance(thing, End):
            thing.qp.close()
            thing.qp.close()
            refused(errno.EINVAL, lambda: thing.qp.post_recv(RecvWR()))
            if thing.peer is not None:
                thing.peer.peer = None
        elif isinstance(thing, MemoryRegion):
            if any(window.region is thing for window in side.windows):
                refused(errno.EINVAL, thing.deregister)
                return
            thing.deregister()
        elif isinstance(thing, MemoryWindow):
            thing.deallocate()
        elif isinstance(thing, ProtectionDomain | CompletionQueue | SharedReceiveQueue):
            if side.users_of(thing):
                refused(errno.EBUSY, thing.close)
                return
            thing.close()
        things.remove(thing)

    # States.

    @precondition(lambda self: self.sides)
    @rule(
        where=choices,
        to=st.sampled_from([*QPState, QPState.SQD, QPState.RTS]),
        mask=st.sampled_from((0, 0, 0, QPAttrMask.ACCESS_FLAGS, QPAttrMask.CAP, QPAttrMask.PORT)),
        access=st.sampled_from((0, int(ALL_ACCESS), int(ALL_ACCESS))),
    )
    def modify(self, where: int, to: QPState, mask: int, access: int) -> None:
        end = self._pick(where)
        if end is None:
            return
        self._drain()
        qp, state = end.qp, end.qp.state
        mask |= QPAttrMask.STATE
        attr = QPAttr(qp_state=to, qp_access_flags=access)
        move = TRANSITIONS[qp.qp_type].get((state, to))
        allowed = move is not None and not move.required & ~mask
        allowed = allowed and not mask & ~(move.required | move.optional | QPAttrMask.STATE)
        if qp.query().sq_draining and to is not QPState.ERR:
            allowed = False
        if not allowed:
            before = qp.query()
            refused(errno.EINVAL, lambda: qp.modify(attr, mask))
            assert qp.query() == before
            return
        qp.modify(attr, mask)
        assert qp.state is to
        if to is QPState.RESET:
            end.forget()

    @precondition(lambda self: self.sides)
    @rule(where=choices)
    def reconnect(self, where: int) -> None:
        """Both ends to RESET and, when nothing of the past is on its way, to RTS again."""
        end = self._pick(where)
        if end is None or end.peer is None:
            return
        self._drain()
        for each in (end, end.peer):
            if each.qp.query().sq_draining:
                each.qp.modify(QPAttr(qp_state=QPState.ERR), QPAttrMask.STATE)
                self._drain()
            each.qp.modify(QPAttr(qp_state=QPState.RESET), QPAttrMask.STATE)
            each.forget()
        self.sim.run(until=self.sim.now + MS)
        for each in (end, end.peer):
            each.messages.clear()
            each.arrived = 0
        self._connect(end, end.peer)

    def _pick(self, where: int) -> End | None:
        ends = [end for side in self.sides for end in side.ends]
        return ends[where % len(ends)] if ends else None

    # Work.

    @precondition(lambda self: self.sides)
    @rule(
        where=choices,
        opcode=st.sampled_from(OPERATIONS),
        length=st.sampled_from((0, 1, 8, 255, 256, 257, 512, 700)),
        flags=st.sampled_from((SendFlags.SIGNALED, SendFlags.SIGNALED, 0, SendFlags.FENCE | 2)),
        count=st.integers(1, 4),
    )
    def send(self, where: int, opcode: WROpcode, length: int, flags: int, count: int) -> None:
        end = self._pick(where)
        for _ in range(count):
            self._send_from(end, where, opcode, length, flags)

    def _send_from(
        self, end: End | None, where: int, opcode: WROpcode, length: int, flags: int
    ) -> None:
        if end is None or not end.side.mrs or end.peer is None or not end.peer.side.mrs:
            return
        self._drain()
        side, far = end.side, end.peer.side
        mr = side.mrs[where // 5 % len(side.mrs)]
        remote = far.mrs[where // 9 % len(far.mrs)]
        self.wr_id += 1
        side.used += 1
        slot, posted = side.used, Posted(self.wr_id, bool(flags & SendFlags.SIGNALED))
        wr = SendWR(
            opcode, send_flags=flags, wr_id=self.wr_id, imm_data=self.wr_id, rkey=remote.rkey
        )
        data = Random(self.wr_id).randbytes(length)
        near = side.place("source", slot)
        if opcode is WROpcode.RDMA_READ:
            near, there = side.place("sink", slot), far.place("constant", slot)
            expected = bytes(far.store[there : there + length])
            posted.check = lambda: _same(side.store, near, expected)
        elif opcode is WROpcode.ATOMIC_FETCH_AND_ADD:
            near, length = side.place("sink", slot), 8
            there, wr.compare_add = far.place("target", 0), 1
            posted.check = far.count_addition
        else:
            there = far.place("target", 1 + slot % (SLOTS - 1))
            side.store[near : near + length] = data
            is_write = opcode in (WROpcode.RDMA_WRITE, WROpcode.RDMA_WRITE_WITH_IMM)
            if is_write and end.is_reliable:
                posted.check = lambda: _same(far.store, there, data)
        wr.remote_addr = remote.iova + there
        cut = length // 2
        wr.sg_list = [
            SGE(mr.iova + near, cut, mr.lkey),
            SGE(mr.iova + near + cut, length - cut, mr.lkey),
        ]
        state = end.qp.state
        unfit = not end.is_reliable and opcode in OPERATIONS[4:]
        if unfit or state in (QPState.RESET, QPState.INIT, QPState.RTR):
            refused(errno.EINVAL, lambda: end.qp.post_send(wr))
        elif end.in_use >= DEPTH and not end.lost:
            refused(errno.ENOMEM, lambda: end.qp.post_send(wr))
        elif end.lost:
            return  # what arrives of it could not be distinguished from wrong packets
        else:
            end.qp.post_send(wr)
            end.in_use += 1
            end.sends.append(posted)
            far.additions_tried += opcode is WROpcode.ATOMIC_FETCH_AND_ADD
            if opcode in (*OPERATIONS[:2], WROpcode.RDMA_WRITE_WITH_IMM):
                end.messages.append(None if opcode is WROpcode.RDMA_WRITE_WITH_IMM else data)

    @precondition(lambda self: self.sides)
    @rule(where=choices, seed=choices, fault=st.sampled_from(("none", "loss", "copies", "delay")))
    def exchange(self, where: int, seed: int, fault: str) -> None:
        """Much of both on one connection, most of it right."""
        end, rnd = self._pick(where), Random(seed)
        if end is None or end.peer is None:
            return
        self.wire.fault = fault
        for _ in range(30):
            near, far = (end, end.peer) if rnd.random() < 0.8 else (end.peer, end)
            if far.side.mrs and rnd.random() < 0.7:
                self._receive(far, 0, SLOT)
            opcode = rnd.choice(OPERATIONS if end.is_reliable else OPERATIONS[:4])
            length, flags = rnd.choice((0, 8, 256, 300, 700)), rnd.choice((2, 2, 2, 0, 3))
            self._send_from(near, 0, opcode, length, flags)
            self.sim.run(until=self.sim.now + rnd.choice((0, 0, US, 3 * US, 2 * MS)))

    @precondition(lambda self: self.sides)
    @rule(where=choices, count=st.integers(1, 6), length=st.sampled_from((0, 300, 1024, 1024)))
    def receive(self, where: int, count: int, length: int) -> None:
        end = self._pick(where)
        if end is not None and end.side.mrs:
            for _ in range(count):
                self._receive(end, where, length)

    def _receive(self, end: End, where: int, length: int) -> None:
        self._drain()
        side = end.side
        mr = side.mrs[where // 5 % len(side.mrs)]
        self.wr_id += 1
        side.used += 1
        near = side.place("receive", side.used)
        wr = RecvWR([SGE(mr.iova + near, length, mr.lkey)], self.wr_id)
        self.slot_of[self.wr_id] = near
        if end.srq is not None:
            queue = side.shared.setdefault(end.srq.number, deque())
            refused(errno.EINVAL, lambda: end.qp.post_recv(wr))
            if len(end.srq) >= DEPTH:
                refused(errno.ENOMEM, lambda: end.srq and end.srq.post_recv(wr))
            else:
                end.srq.post_recv(wr)
                queue.append(wr.wr_id)
        elif end.qp.state is QPState.RESET:
            refused(errno.EINVAL, lambda: end.qp.post_recv(wr))
        elif len(end.receives) >= DEPTH and not end.lost:
            # One that a message is filling has left the queue already.
            _may_refuse(lambda: (end.qp.post_recv(wr), end.receives.append(Posted(wr.wr_id))))
        elif end.lost:
            return
        else:
            end.qp.post_recv(wr)
            end.receives.append(Posted(wr.wr_id))

    @precondition(lambda self: self.sides)
    @rule(where=choices, length=st.sampled_from((0, 64, 4096, 1 << 30)))
    def bind(self, where: int, length: int) -> None:
        end = self._pick(where)
        if end is None or not end.side.windows or not end.side.mrs:
            return
        self._drain()
        windows, mrs = end.side.windows, end.side.mrs
        window, mr = windows[where // 4 % len(windows)], mrs[where // 5 % len(mrs)]
        self.wr_id += 1
        info = MWBindInfo(mr, mr.iova, length, int(Access.REMOTE_WRITE | Access.REMOTE_READ))
        wr = SendWR(WROpcode.BIND_MW, wr_id=self.wr_id, mw=window, bind_info=info, rkey=where)
        if where % 3 == 0:
            wr = SendWR(WROpcode.LOCAL_INV, wr_id=self.wr_id, invalidate_rkey=window.rkey)
        if end.qp.state in (QPState.RESET, QPState.INIT, QPState.RTR):
            refused(errno.EINVAL, lambda: end.qp.post_send(wr))
        elif end.in_use < DEPTH and not end.lost:
            end.qp.post_send(wr)
            end.in_use += 1
            end.sends.append(Posted(wr.wr_id))

    @precondition(lambda self: self.sides)
    @rule(where=choices, wrong=st.integers(0, 7))
    def send_nonsense(self, where: int, wrong: int) -> None:
        end = self._pick(where)
        if end is not None:
            sge = SGE(0, 1, 0)
            wrs = (
                SendWR(WROpcode.SEND, [sge] * 3),
                SendWR(WROpcode.SEND, [SGE(0, (1 << 31) + 1, 0)]),
                SendWR(WROpcode.SEND, send_flags=SendFlags.INLINE, inline_data=bytes(65)),
                SendWR(WROpcode.RDMA_READ, [sge], SendFlags.INLINE),
                SendWR(WROpcode.ATOMIC_FETCH_AND_ADD, [SGE(0, 8, 0)], remote_addr=4),
                SendWR(WROpcode.SEND_WITH_IMM, imm_data=1 << 32),
                SendWR(WROpcode.ATOMIC_WRITE, atomic_data=b"1234"),
                SendWR(WROpcode.RDMA_WRITE, [sge], remote_addr=-1),
            )
            refused(errno.EINVAL, lambda: end.qp.post_send(wrs[wrong]))

    # What must be true.

    @invariant()
    def completions_fit(self) -> None:
        self._drain()

    @invariant()
    def users_are_counted(self) -> None:
        for side in self.sides:
            for thing in (*side.pds, *side.cqs, *side.srqs):
                assert thing.users == side.users_of(thing)  # type: ignore[attr-defined]

    def _drain(self) -> None:
        """Take all completions and hold each against what was posted."""
        for side in self.sides:
            ends = {end.qp.number: end for end in side.ends}
            for cq in side.cqs:
                for wc in cq.poll(1 << 12):
                    end = ends[wc.qp_num]
                    is_receive = wc.wr_id in self.slot_of
                    if end.lost and wc.wr_id not in {p.wr_id for p in (*end.sends, *end.receives)}:
                        continue
                    if is_receive:
                        self._received(end, wc)
                    else:
                        self._sent(end, wc.wr_id, wc.status)

    def _sent(self, end: End, wr_id: int, status: WCStatus) -> None:
        self._one_error(end, "send", status)
        while True:
            posted = end.sends.popleft()
            end.in_use -= 1
            if posted.wr_id == wr_id:
                break
            assert not posted.signaled, "a completion is missing"
            if posted.check is not None:
                posted.check()
        if status is WCStatus.SUCCESS and posted.check is not None:
            posted.check()

    def _received(self, end: End, wc: WC) -> None:
        if end.srq is None:
            assert end.receives.popleft().wr_id == wc.wr_id
            if end.is_reliable:
                self._one_error(end, "recv", wc.status)
        else:
            end.side.shared[end.srq.number].remove(wc.wr_id)
        if wc.status is not WCStatus.SUCCESS or end.peer is None:
            return
        near = self.slot_of[wc.wr_id]
        found = bytes(end.side.store[near : near + wc.byte_len]) if not _is_write(wc) else None
        messages = end.peer.messages
        if not end.is_reliable:
            # Copies begin a message whatever their PSN, so it may come twice and late.
            assert found in messages
            return
        message = messages[end.arrived]
        end.arrived += 1
        assert message == found, "a message is missing, damaged or there twice"

    def _one_error(self, end: End, half: str, status: WCStatus) -> None:
        """After an error there are only flushed ones."""
        if end.qp.qp_type is QPType.RC:
            assert not end.failed[half] or status is WCStatus.WR_FLUSH_ERR
            end.failed[half] |= status is not WCStatus.SUCCESS

    def teardown(self) -> None:
        """Healed and given enough receive requests, everything comes to an end."""
        if not self.sides:
            return
        self.wire.fault = "none"
        self.sim.run(until=self.sim.now + 100 * MS)
        for _ in range(8):
            self._drain()
            for side in self.sides:
                for end in side.ends:
                    self._feed(end)
            self.sim.run(until=self.sim.now + 100 * MS)
        self._drain()
        for side in self.sides:
            for end in side.ends:
                self._is_at_rest(end)
        for side in self.sides:
            start = side.place("target", 0)
            total = int.from_bytes(side.store[start : start + 8], "little")
            assert side.additions_done <= total <= side.additions_tried

    def _feed(self, end: End) -> None:
        """As many receive requests as fit; what they need was perhaps taken away."""
        if not end.side.mrs:
            end.side.register(end.side.pds[0] if end.side.pds else end.side.device.alloc_pd())
        state = end.qp.state
        count = DEPTH - (len(end.receives) if end.srq is None else len(end.srq))
        if state in (QPState.RTR, QPState.RTS, QPState.SQD):
            for _ in range(count):
                self._receive(end, 0, 1024)
        if state is QPState.SQD and not end.qp.query().sq_draining:
            end.qp.modify(QPAttr(qp_state=QPState.RTS), QPAttrMask.STATE)

    def _is_at_rest(self, end: End) -> None:
        qp = end.qp
        waiting = qp.sends.wqes
        if qp.state is QPState.ERR:
            assert not waiting
            assert not qp.receives.waiting or not qp.profile.flushes_late_receives
            assert end.lost or not any(p.signaled for p in end.sends)
        elif qp.state in (QPState.RTS, QPState.SQD, QPState.SQE):
            assert not waiting, f"{qp.state.name} hangs with {waiting[0].wr}"
            assert end.lost or not any(p.signaled for p in end.sends)
            assert qp.poll_timeout() is None or qp.profile.keeps_pending_timer
        assert qp.sends.reads == 0


def _is_write(wc: WC) -> bool:
    return wc.opcode is WCOpcode.RECV_RDMA_WITH_IMM


def _same(store: bytearray, start: int, expected: bytes) -> None:
    assert bytes(store[start : start + len(expected)]) == expected


def _may_refuse(call: Callable[[], object]) -> None:
    """For what depends on a state that the model does not follow."""
    with suppress(VerbsError):
        call()


TestTwoDevices = TwoDevices.TestCase
TestTwoDevices.settings = settings(
    max_examples=scaled(60),
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
