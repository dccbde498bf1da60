"""The emulator as the device under test, in virtual time, with its application.

Nothing lies between the script and the device: a frame arrives in the moment in which it
is sent, and what the device has to say is heard at once. So times in a script are those
of the device alone.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace

from ibwire.base.errors import VerbsError
from ibwire.base.node import Frame
from ibwire.base.units import Time
from ibwire.cm.connection import Connection
from ibwire.cm.node import ca_guid
from ibwire.drill.language.expressions import Scope
from ibwire.drill.language.impairments import Impaired
from ibwire.drill.language.literals import Literal
from ibwire.drill.language.steps import Impair
from ibwire.drill.packets import Wire, build
from ibwire.drill.targets.manager import Exchange, Manager
from ibwire.drill.targets.target import LONGEST, Damage, TooBusy
from ibwire.rc.attributes import (
    MTU_BYTES,
    MTU_CODES,
    AddressVector,
    EventType,
    QPAttr,
    QPAttrMask,
    QPCap,
    QPState,
    QPType,
)
from ibwire.rc.connect import ALL_ACCESS
from ibwire.rc.cq import CompletionQueue
from ibwire.rc.device import Device, gid_of, mac_of
from ibwire.rc.memory import Access, MemoryRegion, MemoryWindow
from ibwire.rc.path import ethernet_route
from ibwire.rc.qp import QPInit
from ibwire.rc.states import TRANSITIONS
from ibwire.rc.work import WC, MWBindInfo, RecvWR, SendWR
from ibwire_layers.cm import REP, REQ

ADDRESSES = {4: ("10.0.0.2", "10.0.0.1"), 6: ("fd00::2", "fd00::1")}
"""Of the device and of its peer, which is the script."""

PEER_QPN = 0x77

DEFAULTS: Mapping[str, int] = {
    "mtu": 256,
    "rq_psn": 100,
    "sq_psn": 500,
    "pkey": 0xFFFF,
    "size": 1 << 16,
    "access": int(ALL_ACCESS),
    "type": QPType.RC,
    "state": QPState.RTS,
    "timeout": 18,
    "retry_cnt": 7,
    "rnr_retry": 7,
    "min_rnr_timer": 12,
    "max_rd_atomic": 16,
    "max_dest_rd_atomic": 16,
    "max_send_wr": 128,
    "max_recv_wr": 128,
    "send_cqe": 256,
    "recv_cqe": 256,
    "srq": 0,
    "version": 4,
}
"""What `qp` does not say. The path MTU is small, so that messages of many packets are short; the
timeout is a second, so that nothing is sent again while a script looks at something else."""

LIMITS: Mapping[str, tuple[int, int]] = {
    "rq_psn": (0, 0xFFFFFF),
    "sq_psn": (0, 0xFFFFFF),
    "pkey": (0, 0xFFFF),
    "size": (4096, 1 << 22),
    "max_send_wr": (1, 1 << 12),
    "max_recv_wr": (1, 1 << 12),
    "send_cqe": (1, 1 << 12),
    "recv_cqe": (1, 1 << 12),
    "srq": (0, 1),
    "mtu": (256, 4096),
}

MAXIMUM_FRAMES = 20_000
"""Frames that a device sends in a run: one that sends for ever is a failure."""

MAXIMUM_TIMEOUTS = 100_000
"""Timeouts that it handles in a run."""

MAXIMUM_REGISTERED = 1 << 24
"""Bytes of memory that a script registers in all."""

ATTRIBUTES = {
    "access": QPAttrMask.ACCESS_FLAGS,
    "timeout": QPAttrMask.TIMEOUT,
    "retry_cnt": QPAttrMask.RETRY_CNT,
    "rnr_retry": QPAttrMask.RNR_RETRY,
    "min_rnr_timer": QPAttrMask.MIN_RNR_TIMER,
    "max_rd_atomic": QPAttrMask.MAX_QP_RD_ATOMIC,
    "max_dest_rd_atomic": QPAttrMask.MAX_DEST_RD_ATOMIC,
    "sqd_event": QPAttrMask.EN_SQD_ASYNC_NOTIFY,
}
"""What a modify sets, by the words of a script."""

_FIELDS = {"access": "qp_access_flags", "sqd_event": "en_sqd_async_notify"}

UP = (QPState.RESET, QPState.INIT, QPState.RTR, QPState.RTS)
"""The way to a connection."""


class Emulated:
    """A queue pair of an emulated device. Raises `VerbsError` for attributes that cannot be."""

    is_recorded = False
    slack: Time = 0
    end = LONGEST

    def __init__(self, profile: str, given: Mapping[str, int]) -> None:
        told = {**DEFAULTS, **given}
        own, peer = ADDRESSES[told["version"]]
        self.now: Time = 0
        self.heard: deque[tuple[Time, Frame]] = deque()
        """What the device has sent and nobody has expected yet."""
        self._frames = self._timeouts = self._registered = 0
        self.device = Device("device", own, profile=profile, key_start=40)
        self.device.pkeys[0] = told["pkey"]
        self.way = Impaired(self.device)
        """To the device and back."""
        gids = gid_of(own), gid_of(peer)
        self.exchange = Exchange(*gids, ca_guid(mac_of(gids[0])), ca_guid(mac_of(gids[1])))
        self._manager: Manager | None = None
        self.pd = self.device.alloc_pd()
        self.regions: dict[str, MemoryRegion] = {}
        self.windows: dict[str, MemoryWindow] = {}
        self.register("mr", told["size"], int(ALL_ACCESS | Access.MW_BIND))
        self.queues = {
            "send": self.device.create_cq(told["send_cqe"]),
            "recv": self.device.create_cq(told["recv_cqe"]),
        }
        self.srq = self.device.create_srq(self.pd) if told["srq"] else None
        cap = QPCap(told["max_send_wr"], told["max_recv_wr"], max_inline_data=1024)
        self.qp = self.device.create_qp(
            QPInit(
                *(QPType(told["type"]), self.pd, self.queues["send"], self.queues["recv"]),
                srq=self.srq,
                cap=cap,
            )
        )
        if told["mtu"] not in MTU_CODES:
            raise VerbsError(errno.EINVAL, f"mtu {told['mtu']}, not one of {list(MTU_CODES)}")
        self._attr = QPAttr(
            path_mtu=MTU_CODES[told["mtu"]],
            ah_attr=AddressVector(dgid=gid_of(peer)),
            dest_qp_num=PEER_QPN,
            rq_psn=told["rq_psn"],
            sq_psn=told["sq_psn"],
        )
        self.modify({name: told[name] for name in ATTRIBUTES if name in told}, None)
        self._climb(QPState(told["state"]))
        route = ethernet_route(
            source=gid_of(peer),
            destination=gid_of(own),
            source_mac=mac_of(gid_of(peer)),
            destination_mac=self.device.mac,
            source_port=0xC000,
        )
        region = self.regions["mr"]
        self.wire = Wire(
            route,
            *(self.qp.number, PEER_QPN, told["pkey"], told["mtu"]),
            *(told["rq_psn"], told["sq_psn"], region.iova, region.rkey),
        )

    @property
    def symbols(self) -> dict[str, int]:
        """What the names in a script stand for."""
        wire = self.wire
        found = {
            "rq_psn": wire.rq_psn,
            "sq_psn": wire.sq_psn,
            "qpn": wire.qpn,
            "peer_qpn": wire.peer_qpn,
            "mtu": wire.mtu,
            "pkey": wire.pkey,
            **self.exchange.symbols,
        }
        for name, region in self.regions.items():
            prefix = "" if name == "mr" else f"{name}."
            found |= {
                f"{prefix}va": region.iova,
                f"{prefix}rkey": region.rkey,
                f"{prefix}lkey": region.lkey,
                f"{prefix}size": region.length,
                f"{prefix}end": region.iova + region.length,
            }
        for name, window in self.windows.items():
            found |= {
                f"{name}.va": window.iova,
                f"{name}.rkey": window.rkey,
                f"{name}.size": window.length,
                f"{name}.end": window.iova + window.length,
            }
        return found

    # The wire.

    def say(self, literal: Literal, scope: Scope) -> tuple[Time, Frame, list[str]]:
        """Let a packet arrive."""
        frame = build(literal, self.wire, scope)
        manager = self._manager if literal.form is None else self.manager
        if manager is not None:
            self.exchange.note(frame, from_device=False)
        self.way.receive(frame, self.now)
        if manager is not None:
            manager.settle()
        return self.now, frame, []

    def settle(self) -> None:
        """Hear what the device has to send now."""
        while (frame := self.way.poll_transmit(self.now)) is not None:
            if self._manager is not None:
                self.exchange.note(frame, from_device=True)
            self.heard.append((self.now, frame))
            self._frames += 1
            if self._frames > MAXIMUM_FRAMES:
                raise TooBusy(f"more than {MAXIMUM_FRAMES} packets")
        if self._manager is not None:
            self._manager.settle()

    def deliver(self) -> None:
        """It has it already."""

    def advance(self, until: Time, stop: Callable[[], bool]) -> None:
        """Let time pass until a time, or until `stop` is true; asked after each event."""
        self.settle()
        while not stop():
            due = self.way.poll_timeout()
            if due is None or due > until:
                self.now = max(self.now, until)
                return
            self.now = max(self.now, due)
            self.way.handle_timeout(self.now)
            self.settle()
            self._timeouts += 1
            if self._timeouts > MAXIMUM_TIMEOUTS:
                raise TooBusy(f"more than {MAXIMUM_TIMEOUTS} timeouts")

    def impair(self, step: Impair, scope: Scope) -> None:
        """Begin a rule, or end those that there are."""
        self.way.impair(step, scope, self.now)

    def poll_damage(self) -> Damage | None:
        """The next thing that a rule has done."""
        return self.way.damage.popleft() if self.way.damage else None

    # The connection manager.

    @property
    def manager(self) -> Manager:
        """The device's, which it has from the first time on that a script needs it."""
        if self._manager is None:
            self._manager = Manager(self)
            self.way.inner = self._manager.node
        return self._manager

    def join(self, connection: Connection, state: QPState) -> None:
        """Bring the queue pair to a state with the attributes of a connection."""
        address, attributes = connection.queue_pair_attributes()
        self._attr = replace(self._attr, ah_attr=address, **attributes)
        if state is QPState.RTS and self.qp.state is QPState.RTR:
            self.modify({}, state)
        else:
            self._climb(state)
        request, answer = connection.request, connection.reply
        assert isinstance(request, REQ)
        assert isinstance(answer, REP)
        own, other = (request, answer) if connection.is_active else (answer, request)
        self.wire = replace(
            self.wire,
            peer_qpn=other.local_qpn,
            mtu=MTU_BYTES[request.path_packet_payload_mtu],
            rq_psn=own.starting_psn,
            sq_psn=other.starting_psn,
        )

    # The application.

    def register(self, name: str, length: int, access: int, *, other_pd: bool = False) -> None:
        """Register memory under a name; raises ENOMEM for more than a script may have."""
        self._registered += length
        if self._registered > MAXIMUM_REGISTERED:
            raise VerbsError(errno.ENOMEM, f"more than {MAXIMUM_REGISTERED} bytes of memory")
        pd = self.device.alloc_pd() if other_pd else self.pd
        self.regions[name] = pd.register(length, access)

    def bind(self, name: str, va: int, length: int, access: int) -> None:
        """Bind a type 2 window under a name; raises EINVAL if it cannot be."""
        window = self.pd.allocate_window(2)
        region = self._region_at(va, length)
        info = MWBindInfo(region, va, length, access)
        if not self.device.keys.bind(window, self.qp.number, self.pd, info, window.rkey + 1):
            raise VerbsError(errno.EINVAL, "the window cannot be bound")
        self.windows[name] = window

    def deregister(self, name: str) -> None:
        """Deregister memory."""
        self.regions[name].deregister()

    def write(self, address: int, data: bytes) -> None:
        """Write to memory; raises EFAULT where there is none."""
        self._region_at(address, len(data)).write(address, data)

    def read(self, address: int, length: int) -> bytes:
        """What memory holds; raises EFAULT where there is none."""
        return self._region_at(address, length).read(address, length)

    def _region_at(self, va: int, length: int) -> MemoryRegion:
        for region in self.regions.values():
            if region.valid and region.iova <= va and va + length <= region.iova + region.length:
                return region
        raise VerbsError(errno.EFAULT, f"no memory for {length} bytes at {va:#x}")

    def modify(self, given: Mapping[str, int], state: QPState | None) -> None:
        """Set attributes; with a state, also those that the transition needs, as they were.

        Without a queue pair that could take them yet they are only remembered.
        """
        fields = {_FIELDS.get(name, name): value for name, value in given.items()}
        wanted = replace(self._attr, **fields)  # type: ignore[arg-type]
        if state is None and self.qp.state is QPState.RESET:
            self._attr = wanted
            return
        mask = sum(int(ATTRIBUTES[name]) for name in given)
        if state is not None:
            wanted = replace(wanted, qp_state=state)
            move = TRANSITIONS[self.qp.qp_type].get((self.qp.state, state))
            mask |= QPAttrMask.STATE | (move.required if move else 0)
        self.qp.modify(wanted, mask)
        self._attr = wanted

    def _climb(self, state: QPState) -> None:
        """From RESET to a state, by those between."""
        for step in UP[1:]:
            if self.qp.state is state or state is QPState.RESET:
                return
            self.modify({}, step)
        if self.qp.state is not state:
            self.modify({}, state)

    def post_send(self, wr: SendWR) -> None:
        """Post a send request."""
        self.qp.post_send(wr)

    def post_recv(self, wr: RecvWR) -> None:
        """Post a receive request, to the shared queue if there is one."""
        if self.srq is not None:
            self.srq.post_recv(wr)
        else:
            self.qp.post_recv(wr)

    def collect(self) -> tuple[dict[str, list[WC]], list[EventType]]:
        """Completions by queue, and events, since the last time."""
        events = []
        while (event := self.device.poll_event()) is not None:
            events.append(event.event_type)
        return {name: _all(queue) for name, queue in self.queues.items()}, events

    @property
    def state(self) -> QPState:
        """The state of the queue pair."""
        return self.qp.state


def _all(queue: CompletionQueue) -> list[WC]:
    found: list[WC] = []
    while batch := queue.poll(_BATCH):
        found += batch
    return found


_BATCH = 64
