"""The emulator as the device under test, in virtual time, with its application.

There is no network between script and device: a frame arrives at the time it is sent, and the
frames of the device are read at once. So the times in a script are those of the device alone.
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
from ibwire.peer import End, frames_from, timeouts_until
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
from ibwire.rc.device import gid_of, mac_of
from ibwire.rc.memory import Access, MemoryRegion, MemoryWindow
from ibwire.rc.path import ethernet_route
from ibwire.rc.states import mask_of
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
"""Defaults of `qp`. The path MTU is small, so that messages of many packets are short; the
timeout is a second, so that no packet is retransmitted unless a script waits for it."""

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
"""Frames that a device sends in a run; more is a failure."""

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
"""The attribute that each argument of `modify` sets."""

_FIELDS = {"access": "qp_access_flags", "sqd_event": "en_sqd_async_notify"}

UP = (QPState.RESET, QPState.INIT, QPState.RTR, QPState.RTS)
"""The states of a queue pair up to a connection, in order."""


class Emulated:
    """A queue pair of an emulated device. Raises `VerbsError` for impossible attributes."""

    is_recorded = False
    slack: Time = 0
    end = LONGEST

    def __init__(self, profile: str, given: Mapping[str, int]) -> None:
        settings = {**DEFAULTS, **given}
        own, peer = ADDRESSES[settings["version"]]
        self.now: Time = 0
        self.outbound: deque[tuple[Time, Frame]] = deque()
        """Frames of the device that no line has expected yet."""
        self._frames = self._timeouts = 0
        self._end = End(
            "device",
            own,
            qp_type=QPType(settings["type"]),
            size=settings["size"],
            access=int(ALL_ACCESS | Access.MW_BIND),
            send_cqe=settings["send_cqe"],
            recv_cqe=settings["recv_cqe"],
            srq=bool(settings["srq"]),
            init={
                "cap": QPCap(settings["max_send_wr"], settings["max_recv_wr"], max_inline_data=1024)
            },
            profile=profile,
            key_start=40,
        )
        self.device, self.qp = self._end.device, self._end.qp
        self.device.pkeys[0] = settings["pkey"]
        self.way = Impaired(self.device)
        """To the device and back."""
        gids = gid_of(own), gid_of(peer)
        self.exchange = Exchange(*gids, ca_guid(mac_of(gids[0])), ca_guid(mac_of(gids[1])))
        self._manager: Manager | None = None
        self.regions: dict[str, MemoryRegion] = {"mr": self._end.mr}
        self._registered: int = settings["size"]
        self.windows: dict[str, MemoryWindow] = {}
        if settings["mtu"] not in MTU_CODES:
            raise VerbsError(errno.EINVAL, f"mtu {settings['mtu']}, not one of {list(MTU_CODES)}")
        self._attr = QPAttr(
            path_mtu=MTU_CODES[settings["mtu"]],
            ah_attr=AddressVector(dgid=gids[1]),
            dest_qp_num=PEER_QPN,
            rq_psn=settings["rq_psn"],
            sq_psn=settings["sq_psn"],
        )
        self.modify({name: settings[name] for name in ATTRIBUTES if name in settings}, None)
        self._climb(QPState(settings["state"]))
        self.wire = self._make_wire(peer_gid=gids[1], settings=settings)

    def _make_wire(self, *, peer_gid: int, settings: Mapping[str, int]) -> Wire:
        """The constant parts of the packets from the peer."""
        route = ethernet_route(
            source=peer_gid,
            destination=self.device.gids[0],
            source_mac=mac_of(peer_gid),
            destination_mac=self.device.mac,
            source_port=0xC000,
        )
        return Wire(
            route,
            qpn=self.qp.number,
            peer_qpn=PEER_QPN,
            pkey=settings["pkey"],
            mtu=settings["mtu"],
            rq_psn=settings["rq_psn"],
            sq_psn=settings["sq_psn"],
            va=self._end.mr.iova,
            rkey=self._end.mr.rkey,
        )

    @property
    def symbols(self) -> dict[str, int]:
        """Values of the symbols of a script."""
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

    def inject(self, literal: Literal, scope: Scope) -> tuple[Time, Frame, list[str]]:
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
        """Read the frames that the device sends now."""
        for frame in frames_from(self.way, self.now):
            if self._manager is not None:
                self.exchange.note(frame, from_device=True)
            self.outbound.append((self.now, frame))
            self._frames += 1
            if self._frames > MAXIMUM_FRAMES:
                raise TooBusy(f"more than {MAXIMUM_FRAMES} packets")
        if self._manager is not None:
            self._manager.settle()

    def deliver(self) -> None:
        """Do nothing: a frame arrives at once."""

    def advance(self, until: Time, stop: Callable[[], bool]) -> None:
        """Let time pass until a time, or until `stop` is true; called after each event."""
        self.settle()
        if stop():
            return
        for now in timeouts_until(self.way, self.now, until):
            self.now = now
            self.settle()
            self._timeouts += 1
            if self._timeouts > MAXIMUM_TIMEOUTS:
                raise TooBusy(f"more than {MAXIMUM_TIMEOUTS} timeouts")
            if stop():
                return
        self.now = max(self.now, until)

    def impair(self, step: Impair, scope: Scope) -> None:
        """Begin a rule, or end all rules."""
        self.way.impair(step, scope, self.now)

    def poll_damage(self) -> Damage | None:
        """The next frame that a rule has acted on."""
        return self.way.damage.popleft() if self.way.damage else None

    # The connection manager.

    @property
    def manager(self) -> Manager:
        """The device's connection manager, made when a script first needs it."""
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
        """Register memory under a name; raises ENOMEM beyond the limit of a script."""
        self._registered += length
        if self._registered > MAXIMUM_REGISTERED:
            raise VerbsError(errno.ENOMEM, f"more than {MAXIMUM_REGISTERED} bytes of memory")
        pd = self.device.alloc_pd() if other_pd else self._end.pd
        self.regions[name] = pd.register(length, access)

    def bind(self, name: str, va: int, length: int, access: int) -> None:
        """Bind a type 2 window under a name; raises EINVAL for one that cannot be bound."""
        window = self._end.pd.allocate_window(2)
        region = self._region_at(va, length)
        info = MWBindInfo(region, va, length, access)
        if not self.device.keys.bind(window, self.qp.number, self._end.pd, info, window.rkey + 1):
            raise VerbsError(errno.EINVAL, "the window cannot be bound")
        self.windows[name] = window

    def deregister(self, name: str) -> None:
        """Deregister memory."""
        self.regions[name].deregister()

    def write(self, address: int, data: bytes) -> None:
        """Write to memory; raises EFAULT outside of every region."""
        self._region_at(address, len(data)).write(address, data)

    def read(self, address: int, length: int) -> bytes:
        """Read memory; raises EFAULT outside of every region."""
        return self._region_at(address, length).read(address, length)

    def _region_at(self, va: int, length: int) -> MemoryRegion:
        for region in self.regions.values():
            if region.valid and region.iova <= va and va + length <= region.iova + region.length:
                return region
        raise VerbsError(errno.EFAULT, f"no memory for {length} bytes at {va:#x}")

    def modify(self, given: Mapping[str, int], state: QPState | None) -> None:
        """Set attributes; with a state, also those that the transition requires, unchanged.

        In RESET, without a state, they are kept for the transitions that follow.
        """
        fields = {_FIELDS.get(name, name): value for name, value in given.items()}
        wanted = replace(self._attr, **fields)  # type: ignore[arg-type]
        if state is None and self.qp.state is QPState.RESET:
            self._attr = wanted
            return
        mask = sum(int(ATTRIBUTES[name]) for name in given)
        if state is not None:
            wanted = replace(wanted, qp_state=state)
            mask |= mask_of(self.qp.qp_type, self.qp.state, state)
        self.qp.modify(wanted, mask)
        self._attr = wanted

    def _climb(self, state: QPState) -> None:
        """Bring the queue pair to a state, through the states on the way to it."""
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
        queue = self.qp if self._end.srq is None else self._end.srq
        queue.post_recv(wr)

    def collect(self) -> tuple[dict[str, list[WC]], list[EventType]]:
        """Completions by queue, and events, since the last call."""
        end = self._end
        return {"send": end.poll_send_cq(), "recv": end.poll_recv_cq()}, end.poll_events()

    @property
    def state(self) -> QPState:
        """The state of the queue pair."""
        return self.qp.state
