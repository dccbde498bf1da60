"""A connection with an emulated device: the reference of a fuzzer, or its target.

There is no network between fuzzer and device: a packet arrives at the moment it is sent,
and time passes only where a case says so. Two emulations of the same connection use the
same numbers, so their responses can be compared byte by byte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ibwire.base.compiled import mypyc_attr
from ibwire.base.errors import VerbsError
from ibwire.base.node import Frame, Node
from ibwire.base.units import Time
from ibwire.drill.packets import pattern
from ibwire.drill.targets.queue_pair import PEER_SRQN
from ibwire.fuzz.case import (
    MAXIMUM_SGES,
    MAXIMUM_SHARED,
    CaseError,
    Command,
    Connection,
    Packet,
    Post,
    Receive,
    RunsAway,
    Step,
    length_of,
)
from ibwire.fuzz.case import OUTBOX as OUTBOX
from ibwire.fuzz.sge_sizes import sizes_of_sges
from ibwire.peer import QKEY, End, timeouts_until
from ibwire.rc.attributes import (
    MTU_CODES,
    AddressVector,
    MigState,
    QPAttr,
    QPAttrMask,
    QPCap,
    QPState,
    QPType,
)
from ibwire.rc.completion import WCFlags, WCOpcode
from ibwire.rc.connect import ALL_ACCESS, bring_up, move
from ibwire.rc.device import gid_of
from ibwire.rc.memory import Access, MemoryRegion, MemoryWindow, WindowState
from ibwire.rc.path import Arrivals
from ibwire.rc.profile import Profile
from ibwire.rc.qp import QPInit, QueuePair
from ibwire.rc.srq import SharedReceiveQueue
from ibwire.rc.work import SGE, WC, MWBindInfo, RecvWR, SendFlags, SendWR, WCStatus, WROpcode
from ibwire_layers.opcodes import Operation

ADDRESSES: Mapping[int, tuple[str, str]] = {4: ("10.0.0.2", "10.0.0.1"), 6: ("fd00::2", "fd00::1")}
"""Of the device under test and of the fuzzer, by version of IP: those of drill scripts."""

ADDRESS, PEER_ADDRESS = ADDRESSES[4]

PEER_QPN = 0x77
PEER_VA, PEER_RKEY = 0x5000, 0x1234
"""The memory that the fuzzer pretends to have."""

SIZE = 8192
"""Bytes of the region that the peer may use."""

SMALL = 512
"""Bytes of the regions beside it."""

INBOX = 8192
"""Bytes for what it receives."""

MAXIMUM_ANSWERS = 2048
"""Frames after one step: a device that sends more does not stop by itself."""

MAXIMUM_TIMEOUTS = 512
"""Timeouts of each queue pair in one wait."""

Completion = tuple[int, ...]
"""A completion as plain numbers: queue, wr_id, status, opcode, byte_len, imm_data, flags."""

SENDS, RECEIVES = 0, 1
"""Its queue."""

QP_NUM = 8
"""Index of the number of the queue pair in one from `whole_numbers_of`."""

HAS_IMM = int(WCFlags.WITH_IMM | WCFlags.WITH_INV)
"""Flags of a completion whose `imm_data` is valid."""


WINDOW_START = 2 * SMALL
"""Where in the first region the window begins."""

WINDOW_SIZE = SMALL - 3
"""Bytes of the window: no multiple of any other number, to which a device may round."""

WINDOW_ACCESS = int(Access.REMOTE_WRITE | Access.REMOTE_READ)

PKEYS = (0xFFFF, 0x7FFF, 0x9234, 0x1234)
"""The table of the device's port for a case that has another P_Key than the first: full and
limited member of two partitions."""

_ALL = int(ALL_ACCESS)

OWN_QKEY_OF_POST = 8
"""In `remote` of a posted datagram, which has no remote address: it has `OWN_QKEY`."""

OWN_QKEY = 1 << 31
"""In place of the Q_Key of a send request: that of the queue pair."""

_NO_KEY = 1 << 24
"""Added to a key, one that no region has."""

_CAP = QPCap(128, 4096, max_send_sge=MAXIMUM_SGES, max_recv_sge=MAXIMUM_SGES)
_ALTERNATE = int(QPAttrMask.ALT_PATH | QPAttrMask.PATH_MIG_STATE)

REGIONS: Mapping[str, tuple[int, int]] = {
    "mr": (SIZE, int(_ALL | Access.MW_BIND)),
    "readable": (SMALL, int(Access.LOCAL_WRITE | Access.REMOTE_READ)),
    "foreign": (SMALL, int(_ALL)),
    "outbox": (OUTBOX, int(Access.LOCAL_WRITE)),
    "inbox": (INBOX, int(Access.LOCAL_WRITE)),
}
"""What is registered: bytes and access. `foreign` belongs to another protection domain."""

_START = {
    name: sum(size for size, _ in list(REGIONS.values())[:place])
    for place, name in enumerate(REGIONS)
}
"""Where in the memory of an emulation each of them begins."""

OUTBOX_START = _START["outbox"]

CONTENT = pattern(0, sum(size for size, _ in REGIONS.values()))
"""What all of it holds at the beginning, region after region."""


_ARRIVALS = Arrivals()
"""Headers that emulations have read: each new one gets the same as those before it."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers of a device that is elsewhere, which a reference takes over."""

    qpn: int
    peer_qpn: int
    keys: Mapping[str, tuple[int, int]]
    """Address and key of each of `REGIONS`."""
    window: int | None
    """Key of a window, if the device has any."""
    address: str
    peer_address: str
    macs: tuple[bytes, bytes]
    """Of the device and of its peer."""


class Application(Protocol):
    """What a device does beside its connection: the part of an emulation that a vocabulary adds."""

    @property
    def state(self) -> str:
        """The state of the subject of a case, as far as a peer could know it."""
        ...

    @property
    def qp(self) -> QueuePair:
        """The queue pair that PSNs of a case count from."""
        ...

    def begin(self) -> None:
        """Begin with a new connection beside."""
        ...

    def end(self) -> None:
        """End what a case has left."""
        ...

    def prepare(self, step: Step) -> None:
        """Let symbols and PSNs be about what a step is about."""
        ...

    def act(self) -> bool:
        """React to what has happened; whether the device may have more to send now."""
        ...

    def command(self, command: Command) -> bool:
        """Carry out a command of a case; whether the state allowed it."""
        ...

    def completions(self) -> list[Completion]:
        """The events of the application since the last call."""
        ...

    def events(self) -> Sequence[object]:
        """What stands in its tables."""
        ...


@mypyc_attr(allow_interpreted_subclasses=True)  # for devices that are wrong on purpose
class Emulation:
    """The device under test, its connection and its application.

    numbers: what it shall be called instead of what an emulated device chooses. application:
    makes what it does beside its connection, if it does anything.
    """

    def __init__(
        self,
        connection: Connection,
        profile: Profile | str = "spec",
        numbers: Numbers | None = None,
        application: Callable[[Emulation], Application] | None = None,
    ) -> None:
        self.now: Time = 0
        self._given = numbers
        own, other = ADDRESSES[connection.version]
        self.memory = bytearray(CONTENT)
        """All that it has registered, region after region."""
        views = _views(self.memory)
        self.end = end = self._new_end(own, views["mr"], profile)
        self.device = end.device
        self.qp = end.qp
        """The queue pair that the current step is about."""
        self.pairs = [end.qp]
        """Those of the connection."""
        self._made = {("RC", 0): end.qp}
        """All that were made, by service and number; those of other cases are in RESET."""
        self._xrc_domain = end.device.open_xrc_domain()
        self._shared: SharedReceiveQueue | None = None
        """The receive queue of all queue pairs, if they have none of their own."""
        self.node: Node = end.device
        """What is on the wire."""
        self._queues = end.send_cq, end.recv_cq
        self._polled: list[tuple[int, WC]] = []
        """What `completions` has returned and `details` has not."""
        peer = gid_of(numbers.peer_address if numbers else other)
        self._version = connection.version
        self._address = AddressVector(dgid=peer)
        if numbers:
            end.device.neighbours[peer] = numbers.macs[1]
        self.region = end.mr
        """What the peer may use."""
        self.regions = {"mr": end.mr} | {
            name: self._register(name, view) for name, view in views.items() if name != "mr"
        }
        self._outbox, self._inbox = self.regions["outbox"], self.regions["inbox"]
        self._kind = 0, 0, 0
        """Bytes and SGEs of receive requests, and which of these has a wrong key."""
        self._slots: dict[int, list[SGE]] = {}
        """The SGEs of those that were posted, by their place in the inbox."""
        self._reading: dict[int, Sequence[SGE]] = {}
        """The SGEs of send requests that read, by number."""
        self._window = end.pd.allocate_window(2, key=numbers.window if numbers else None)
        self.symbols = self._name_numbers()
        """What the symbols of a case stand for on this connection."""
        self._connect(connection)
        self.application = application(self) if application is not None else None
        """`None` in a case about the connection alone, which is what most are."""

    def _new_end(self, address: str, memory: memoryview, profile: Profile | str) -> End:
        """The device with its first region and queue pair."""
        numbers = self._given
        iova, key = self._address_and_key("mr")
        return End(
            "target",
            numbers.address if numbers else address,
            memory=memory,
            access=REGIONS["mr"][1],
            iova=iova,
            key=key,
            send_cqe=1 << 14,
            recv_cqe=1 << 14,
            qpn=numbers.qpn if numbers else None,
            init={"cap": _CAP},
            profile=profile,
            key_start=40,
            mac=numbers.macs[0] if numbers else None,
            arrivals=_ARRIVALS,
        )

    def reconnect(self, connection: Connection) -> None:
        """End the connection and make another; memory is as at the beginning."""
        if self.application is not None:
            self.application.end()
        for qp in self.pairs:
            move(qp, QPState.RESET)
        if self._shared is not None:
            self._unshare(self._shared)
        self.completions()
        self.events()
        self._polled.clear()
        self.memory[:] = CONTENT
        self._connect(connection)
        if self.application is not None:
            self.application.begin()

    def _connect(self, connection: Connection) -> None:
        self.connection = connection
        numbers = self._given
        if connection.version != self._version and numbers is None:
            raise CaseError(f"a connection over IPv{connection.version} after one over another")
        service, index = connection.service, connection.pkey_index
        self.device.pkeys[:] = PKEYS if index else PKEYS[:1]
        if connection.shares_receive_queue:
            self._shared = self._share(connection)
        self.symbols["srqn"] = 0 if self._shared is None else self._shared.number
        self.pairs = [self._pair(service, number) for number in range(connection.pairs)]
        for number, qp in enumerate(self.pairs):
            bring = _begin_to_receive if connection.rtr else bring_up
            bring(
                qp,
                self._address,
                dest_qp_num=(numbers.peer_qpn if numbers else PEER_QPN) + number,
                sq_psn=connection.sq_psn,
                rq_psn=connection.rq_psn,
                path_mtu=MTU_CODES[connection.mtu],
                qp_access_flags=connection.access,
                max_rd_atomic=connection.max_rd_atomic,
                max_dest_rd_atomic=connection.max_dest_rd_atomic,
                min_rnr_timer=connection.min_rnr_timer,
                timeout=connection.timeout,
                retry_cnt=connection.retry_cnt,
                rnr_retry=connection.rnr_retry,
                pkey_index=index,
                qkey=QKEY,
            )
            if connection.rearmed and service != "UD":
                there = QPAttr(
                    alt_ah_attr=self._address,
                    alt_pkey_index=index,
                    path_mig_state=MigState.REARM,
                )
                qp.modify(there, _ALTERNATE)
        self.qp = self.pairs[0]
        self.symbols |= {"pkey": PKEYS[index] | 0x8000, "qkey": QKEY}
        self.focus(0)
        self._posted = self._received = 0
        self._reading.clear()
        has_window = numbers is None or numbers.window is not None
        self._take_window_back()
        if self._window.state is WindowState.FREE and has_window:
            start = self.region.iova + WINDOW_START
            info = MWBindInfo(self.region, start, WINDOW_SIZE, WINDOW_ACCESS)
            key = numbers.window if numbers and numbers.window else self._window.rkey + 1
            self.device.keys.bind(self._window, self.qp.number, self.end.pd, info, key)
            end = start + WINDOW_SIZE
            self.symbols |= {"mw.rkey": self._window.rkey, "mw.va": start, "mw.end": end}
        self.symbols["mtu"] = connection.mtu
        for number in range(connection.pairs):
            self.post_recv(connection.receives, number)

    def _take_window_back(self) -> None:
        """Free the window where the queue pair of most cases, or a new one, shall have it.

        Those with a shared receive queue are new for each connection. Without this the
        first queue pair to bind the window on these devices would keep it, even when it is gone.
        """
        window, owner = self._window, self._window.qp_num
        takes = self._shared is not None or self.connection.service == "RC"
        is_kept = owner in self.device.qps and not takes
        if owner is not None and owner != self.qp.number and not is_kept:
            self.device.keys.invalidate(window.rkey, self.end.pd, owner)

    def _pair(self, service: str, number: int) -> QueuePair:
        """A queue pair that is in RESET: one made for an earlier case, or a new one.

        One with a shared receive queue is always new, as that is.
        """
        made = None if self._shared is not None else self._made.get((service, number))
        if made is None:
            made = self.device.create_qp(self._creation(QPType[service]))
            if self._shared is None:
                self._made[service, number] = made
        return made

    def _creation(self, kind: QPType) -> QPInit:
        """What a queue pair of a type is made of."""
        end = self.end
        if kind is QPType.XRC_RECV:
            return QPInit(kind, cap=_CAP, xrc_domain=self._xrc_domain)
        if kind is QPType.XRC_SEND:
            return QPInit(kind, end.pd, end.send_cq, cap=_CAP, xrc_domain=self._xrc_domain)
        return QPInit(kind, end.pd, end.send_cq, end.recv_cq, self._shared, _CAP)

    def _share(self, connection: Connection) -> SharedReceiveQueue:
        """A receive queue for all queue pairs of a connection."""
        if self._given is not None:
            raise CaseError("a device that is elsewhere has no shared receive queue in a case")
        return self.device.create_srq(
            self.end.pd,
            max_wr=MAXIMUM_SHARED,
            max_sge=MAXIMUM_SGES,
            limit=connection.srq_limit,
            xrc_domain=self._xrc_domain if connection.is_xrc else None,
            cq=self.end.recv_cq if connection.is_xrc else None,
        )

    def _unshare(self, shared: SharedReceiveQueue) -> None:
        """Destroy the receive queue of all queue pairs, with these."""
        for qp in self.pairs:
            qp.close()
        shared.close()
        self._shared = None

    def focus(self, pair: int) -> None:
        """Let `qp` and the symbols be those of a queue pair, counted modulo how many there are."""
        number = pair % len(self.pairs)
        self.qp = self.pairs[number]
        symbols = self.symbols
        symbols["qpn"] = self.qp.number
        symbols["peer_qpn"] = (self._given.peer_qpn if self._given else PEER_QPN) + number

    def _name_numbers(self) -> dict[str, int]:
        region = self.region
        names: dict[str, int] = {}
        for name in ("readable", "foreign", "inbox"):
            names |= {
                f"{name}.rkey": self.regions[name].rkey,
                f"{name}.va": self.regions[name].iova,
            }
        return {
            "va": region.iova,
            "end": region.iova + region.length,
            "size": region.length,
            "rkey": region.rkey,
            **names,
            "qpn": self.qp.number,
            "peer_qpn": self._given.peer_qpn if self._given else PEER_QPN,
            "pkey": 0xFFFF,
        }

    def _register(self, name: str, memory: memoryview) -> MemoryRegion:
        """Register one of `REGIONS`; the first is that of the end."""
        pd = self.device.alloc_pd() if name == "foreign" else self.end.pd
        iova, key = self._address_and_key(name)
        return pd.register(memory, REGIONS[name][1], iova=iova, key=key)

    def _address_and_key(self, region: str) -> tuple[int | None, int | None]:
        """Those of a region that are given; the device chooses others."""
        return (None, None) if self._given is None else self._given.keys[region]

    def prepare(self, step: Step) -> None:
        """Let `symbols` stand for what a step is about."""
        if len(self.pairs) > 1 and isinstance(step, _OF_A_PAIR):
            self.focus(step.pair)
        if self.application is not None:
            self.application.prepare(step)
        if isinstance(step, Packet) and "aeth.msn" in step.fields:
            self.symbols["ssn"] = self.oldest_ssn

    # The wire.

    def receive(self, frame: Frame) -> None:
        """Let a frame arrive."""
        self.node.receive(frame, self.now)

    def answers(self) -> list[Frame]:
        """What it sends now; raises `RunsAway` when that does not end."""
        return self._sent_now()

    def _sent_now(self) -> list[Frame]:
        application = self.application
        if application is None:
            return self._sent_by_device()
        poll, now = self.node.poll_transmit, self.now
        found: list[Frame] = []
        while True:
            most = len(found) + MAXIMUM_ANSWERS
            while (frame := poll(now)) is not None:
                found.append(frame)
                if len(found) > most:
                    raise _never_stops()
            if not application.act():
                return found

    def _sent_by_device(self) -> list[Frame]:
        """What a device with nothing beside its connection sends, asked only while it is ready."""
        found: list[Frame] = []
        ready, poll, now = self.device.ready_ports, self.device.poll_transmit, self.now
        while ready:
            ready.clear()
            frame = poll(now)
            if frame is None:
                break
            found.append(frame)
            if len(found) > MAXIMUM_ANSWERS:
                raise _never_stops()
        return found

    def wait(self, time: Time) -> list[tuple[Time, Frame]]:
        """Let time pass, in ps: what it sends meanwhile, and when."""
        until = self.now + time
        found = [(self.now, frame) for frame in self._sent_now()]  # to a packet that was held
        most = MAXIMUM_TIMEOUTS * len(self.pairs)
        for handled, now in enumerate(timeouts_until(self.node, self.now, until), 1):
            self.now = now
            found += [(now, frame) for frame in self._sent_now()]
            if handled == most:
                limit = f"more than {most} timeouts within {time / 1e9:g} ms"
                raise RunsAway(limit)
        self.now = until
        return found

    # The application.

    def post_recv(self, count: int, pair: int = 0) -> None:
        """Post receive requests, round the inbox; those that find no room are left out."""
        connection, inbox = self.connection, self._inbox
        room = min(connection.room, INBOX)
        slots = INBOX // room if room else 1
        queue = self.pairs[pair % len(self.pairs)] if self._shared is None else self._shared
        kind = room, connection.sges, connection.wrong_lkey
        if kind != self._kind:
            self._kind = kind
            self._slots.clear()
        for _ in range(count):
            slot = self._received % slots
            sges = self._slots.get(slot)
            if sges is None:
                start = inbox.iova + slot * room
                sges = pieces(start, room, inbox.lkey, connection.sges, connection.wrong_lkey)
                self._slots[slot] = sges
            try:
                queue.post_recv(RecvWR(sges, self._received))
            except VerbsError:
                return
            self._received += 1

    def post_send(self, post: Post) -> bool:
        """Post a send request; whether it was taken."""
        window = self.symbols.get("mw.rkey", 0)
        wr = send_request(post, self._posted, self._outbox.iova, self._outbox.lkey, window)
        number = post.pair % len(self.pairs)
        if self.connection.service == "UD":
            wr.ah, wr.remote_qpn = self._address, PEER_QPN + number
            # With the highest bit set, the Q_Key of the queue pair is sent.
            wr.remote_qkey = OWN_QKEY if post.remote & OWN_QKEY_OF_POST else QKEY + post.remote
        try:
            self.pairs[number].post_send(wr)
        except VerbsError:
            return False
        if post.opcode in READING:
            self._reading[self._posted] = wr.sg_list
        self._posted += 1
        return True

    @property
    def posted(self) -> int:
        """How many send requests were posted on this connection: the number of the next one."""
        return self._posted

    def buffer_of(self, queue: int, number: int) -> list[slice]:
        """Where in `memory` what a receive request receives is stored, or what a request reads."""
        if queue == RECEIVES:
            room = self._kind[0]
            region, name = self._inbox, "inbox"
            sges: Sequence[SGE] = self._slots.get(number % (INBOX // room if room else 1), [])
        else:
            region, name = self._outbox, "outbox"
            sges = self._reading.get(number, [])
        shift = _START[name] - region.iova
        return [slice(sge.addr + shift, sge.addr + shift + sge.length) for sge in sges]

    def command(self, command: Command) -> bool:
        """Have the application call its connection manager; whether the state allowed it."""
        return self.application is not None and self.application.command(command)

    def completions(self) -> list[Completion]:
        """Completions and events of the application since the last call."""
        found = [] if self.application is None else self.application.completions()
        sends, receives = self._queues
        if not sends.entries and not receives.entries:
            return found
        polled = [(SENDS, wc) for wc in sends.poll(sends.cqe)]
        polled += [(RECEIVES, wc) for wc in receives.poll(receives.cqe)]
        self._polled += polled
        return [numbers_of(number, wc) for number, wc in polled] + found

    def details(self) -> list[Completion]:
        """The completions since the last call, as far as `completions` has returned them, whole."""
        is_datagram = self.connection.service == "UD"
        found = [
            whole_numbers_of(number, wc, is_datagram=is_datagram) for number, wc in self._polled
        ]
        self._polled.clear()
        return found

    def events(self) -> Sequence[object]:
        """Asynchronous events since the last call, and what stands in the application's tables."""
        found = [] if self.application is None else self.application.events()
        return [*self.raised(), *found] if self.device.events else found

    def raised(self) -> list[int]:
        """Asynchronous events since the last call: `ibv_event_type`."""
        found = self.device.events
        if not found:
            return []
        numbers = [int(event.event_type) for event in found]
        found.clear()
        return numbers

    # What a generator and a coverage table look at.

    @property
    def state(self) -> str:
        """The state of the subject of a case, as far as a peer could know it."""
        if self.application is None:
            return connection_state(self.qp)
        return self.application.state

    @property
    def connection_state(self) -> str:
        """The state of the connection, as far as a peer could know it."""
        return connection_state(self.qp)

    @property
    def oldest_ssn(self) -> int:
        """Number of the oldest request that is not complete."""
        sends = self.qp.sends
        return sends.wqes[0].ssn if sends.wqes else sends.ssn + 1

    @property
    def is_alive(self) -> bool:
        """Whether the queue pair of the current step still takes requests."""
        return self.qp.accepts_requests and not self.qp.responder.failed

    @property
    def window(self) -> MemoryWindow:
        """The memory window."""
        return self._window

    def accepts_pkey(self, pkey: int) -> bool:
        """Whether a packet with a P_Key is of the partition, and at least one end a full member."""
        own = PKEYS[self.connection.pkey_index]
        return not (pkey ^ own) & 0x7FFF and bool((pkey | own) & 0x8000)

    @property
    def owns_window(self) -> bool:
        """Whether the memory window is bound to the queue pair of the current step."""
        return self._window.qp_num == self.qp.number

    @property
    def may_free_window(self) -> bool:
        """Whether a SEND to it may invalidate the window, which may be free already."""
        return self.owns_window or self._window.state is WindowState.FREE

    @property
    def unpolled(self) -> tuple[int, int]:
        """How many completions of sends, and of receives, wait to be polled."""
        sends, receives = self._queues
        return len(sends.entries), len(receives.entries)

    @property
    def living(self) -> list[int]:
        """Numbers of the queue pairs that still take requests."""
        return [
            number
            for number, qp in enumerate(self.pairs)
            if qp.accepts_requests and not qp.responder.failed
        ]

    @property
    def waiting_receives(self) -> int:
        """How many receive requests wait for the queue pair of the current step."""
        return len(self.qp.receives.waiting if self._shared is None else self._shared)

    @property
    def under_way(self) -> Operation | None:
        """The message of several packets that it is receiving: SEND, WRITE or none."""
        return self.qp.responder.under_way

    def psn(self, base: str) -> int:
        """What PSNs of a case count from."""
        return psn_of(self.qp if self.application is None else self.application.qp, base)


def _never_stops() -> RunsAway:
    return RunsAway(f"more than {MAXIMUM_ANSWERS} packets without a pause")


def _views(memory: bytearray) -> dict[str, memoryview]:
    """The bytes of each of `REGIONS`."""
    view, start = memoryview(memory), 0
    found: dict[str, memoryview] = {}
    for name, (size, _) in REGIONS.items():
        found[name] = view[start : start + size]
        start += size
    return found


def connection_state(qp: QueuePair) -> str:
    """The state of a queue pair, as far as a peer could know it."""
    if not qp.accepts_requests or qp.responder.failed:
        return "ERROR"
    sends = qp.sends
    if sends.wqes:
        return "RNR WAIT" if sends.timers.rnr is not None else "WAITING"
    message = qp.responder.under_way
    return "IDLE" if message is None else "SEND" if message is _SEND else "WRITE"


def psn_of(qp: QueuePair, base: str) -> int:
    """What PSNs of a case count from, at a queue pair."""
    if base == "expected":
        return qp.responder.epsn
    if base == "una":
        return qp.sends.una
    if base == "next":
        return qp.sends.next_psn
    return qp.attr.rq_psn if base == "first" else qp.attr.sq_psn


def numbers_of(queue: int, wc: WC) -> Completion:
    """What counts of a completion: after an error little, of a send not its length.

    Fields that are not valid are 0 (reference/transport#completion-fields).
    """
    if wc.status is not _SUCCESS:
        return queue, wc.wr_id, int(wc.status)
    kind = queue, wc.wr_id, 0, int(wc.opcode)
    return (*kind, wc.byte_len, _immediate(wc), int(wc.wc_flags)) if queue == RECEIVES else kind


def whole_numbers_of(queue: int, wc: WC, *, is_datagram: bool) -> Completion:
    """All of a completion that is valid, with what a device on a link does not report.

    After the numbers of `numbers_of` whether it is solicited, queue pair, and of datagrams the
    source; of an error only status and queue pair. The P_Key index is valid for queue pair 1 only.
    """
    if wc.status is not _SUCCESS:
        return queue, wc.wr_id, int(wc.status), 0, 0, 0, 0, 0, wc.qp_num, 0
    return (
        queue,
        wc.wr_id,
        0,
        int(wc.opcode),
        wc.byte_len if queue == RECEIVES or wc.opcode in _WITH_LENGTH else 0,
        _immediate(wc),
        int(wc.wc_flags),
        int(wc.solicited),
        wc.qp_num,
        wc.src_qp if is_datagram and queue == RECEIVES else 0,
    )


def _immediate(wc: WC) -> int:
    """Immediate data or an invalidated key, if the flags say that there is one."""
    return wc.imm_data if int(wc.wc_flags) & HAS_IMM else 0


def pieces(start: int, length: int, lkey: int, count: int = 1, wrong: int = 0) -> list[SGE]:
    """Bytes of memory in this many SGEs, the first of them at the end of the memory.

    Their lengths differ; of four or more the second is empty. wrong: the number, from 1, of the
    one whose key opens nothing.
    """
    if count == 1 and not wrong:
        return [SGE(start, length, lkey)] if length else []
    found, at = [], start + length
    for number, size in enumerate(sizes_of_sges(length, count), 1):
        at -= size
        found.append(SGE(at, size, lkey + (_NO_KEY if number == wrong else 0)))
    return found


def is_empty_piece(length: int, count: int, number: int) -> bool:
    """Whether the SGE with this number, from 1, has no bytes."""
    found = pieces(0, length, 0, count, number)
    return number <= len(found) and not found[number - 1].length


def length_of_whole_pieces(size: int, count: int) -> int:
    """The bytes of which each of two or three `pieces`, but the last, has this size."""
    return count * (size + 3)


def send_request(post: Post, number: int, outbox: int, lkey: int, window: int = 0) -> SendWR:
    """The send request of a step.

    number: how many were posted before. outbox: its address. window: the key that a local
    invalidate is about.
    """
    opcode = post.opcode
    if opcode == _LOCAL_INV:
        return SendWR(_OPCODES[opcode], [], _flags(post), wr_id=number, invalidate_rkey=window)
    length = length_of(post)
    start = outbox + (number * 256) % (OUTBOX - length + 1)
    return SendWR(
        _OPCODES[opcode],
        pieces(start & ~7, length, lkey, post.sges, post.wrong_lkey),
        _flags(post),
        wr_id=number,
        imm_data=0x1A2B3C4D,
        invalidate_rkey=PEER_RKEY,
        remote_addr=PEER_VA + post.remote,
        rkey=PEER_RKEY,
        compare_add=3,
        swap=5,
        atomic_data=_EIGHT if opcode == _ATOMIC_WRITE else b"",
        remote_srqn=PEER_SRQN,
    )


def _begin_to_receive(qp: QueuePair, address: AddressVector, **attr: Any) -> None:
    """Bring a queue pair from RESET to RTR."""
    wanted = QPAttr(ah_attr=address, **attr)
    for state in (QPState.INIT, QPState.RTR):
        move(qp, state, wanted)


def _flags(post: Post) -> int:
    return _SIGNALED * post.signaled | _FENCE * post.fence | _SOLICITED * post.solicited


_WITH_LENGTH = (
    WCOpcode.RDMA_READ,
    WCOpcode.COMP_SWAP,
    WCOpcode.FETCH_ADD,
)
"""Sends whose completion has a valid length."""

# Plain numbers and members by themselves: reaching through an enumeration is slow.
_SUCCESS = WCStatus.SUCCESS
_OPCODES = {int(each): each for each in WROpcode}
_ATOMICS = int(WROpcode.ATOMIC_CMP_AND_SWP), int(WROpcode.ATOMIC_FETCH_AND_ADD)
READING = int(WROpcode.RDMA_READ), *_ATOMICS
"""Send requests that store what they read."""
_ATOMIC_WRITE = int(WROpcode.ATOMIC_WRITE)
_LOCAL_INV = int(WROpcode.LOCAL_INV)
_SIGNALED = int(SendFlags.SIGNALED)
_FENCE, _SOLICITED = int(SendFlags.FENCE), int(SendFlags.SOLICITED)
_EIGHT = bytes(range(8))
_SEND = Operation.SEND
_OF_A_PAIR = (Packet, Post, Receive)
"""Steps that name a queue pair; a tuple is faster than a union, which is made at each use."""
