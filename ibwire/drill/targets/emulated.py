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
from ibwire.drill.language.cursor import OWNED, own_symbols
from ibwire.drill.language.expressions import Scope
from ibwire.drill.language.impairments import Impaired
from ibwire.drill.language.literals import Literal
from ibwire.drill.language.steps import Impair
from ibwire.drill.packets import Wire, build, pause_frame
from ibwire.drill.targets.manager import Exchange, Exchanges, Manager, message_in
from ibwire.drill.targets.queue_pair import XRC, DeviceQueuePair
from ibwire.drill.targets.target import LONGEST, Damage, TooBusy
from ibwire.peer import events_of, frames_from, timeouts_until
from ibwire.rc.attributes import MTU_BYTES, EventType, QPState, QPType
from ibwire.rc.connect import ALL_ACCESS
from ibwire.rc.cq import CompletionQueue
from ibwire.rc.device import Device, gid_of, mac_of
from ibwire.rc.memory import Access, MemoryRegion, MemoryWindow
from ibwire.rc.profile import Profile
from ibwire.rc.srq import SharedReceiveQueue
from ibwire.rc.work import WC, MWBindInfo, SendWR, WROpcode
from ibwire.rc.xrc import XRCDomain
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
    "max_send_sge": 16,
    "max_recv_sge": 16,
    "srq": 0,
    "version": 4,
    "qkey": 0x11111111,
    "pkey_index": 0,
    "pkey_1": 0,
    "pkey_2": 0,
    "pkey_3": 0,
    "rearm": 0,
}
"""Defaults of `qp`. The path MTU is small, so that messages of many packets are short; the
timeout is a second, so that no packet is retransmitted unless a script waits for it."""

PKEYS = ("pkey_1", "pkey_2", "pkey_3")
"""Entries of the P_Key table behind the first one."""

OF_DEVICE = ("size", "version", "pkey", *PKEYS)
"""What `qp` says of the device; only the first one may."""

LIMITS: Mapping[str, tuple[int, int]] = {
    "rq_psn": (0, 0xFFFFFF),
    "sq_psn": (0, 0xFFFFFF),
    **dict.fromkeys(("pkey", *PKEYS), (0, 0xFFFF)),
    "pkey_index": (0, len(PKEYS)),
    "rearm": (0, 1),
    "qkey": (0, 0xFFFFFFFF),
    "max_send_sge": (1, 32),
    "max_recv_sge": (1, 32),
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


def pkey_of(settings: Mapping[str, int]) -> int:
    """The P_Key of a queue pair with these attributes."""
    return settings[("pkey", *PKEYS)[settings["pkey_index"]]]


class Emulated:
    """An emulated device and its queue pairs. Raises `VerbsError` for impossible attributes."""

    is_recorded = False
    slack: Time = 0
    end = LONGEST

    def __init__(self, profile: Profile | str, given: Mapping[str, int]) -> None:
        settings = {**DEFAULTS, **given}
        own, peer = ADDRESSES[settings["version"]]
        self.now: Time = 0
        self.outbound: deque[tuple[Time, Frame]] = deque()
        """Frames of the device that no line has expected yet."""
        self._frames = self._timeouts = 0
        self.device = Device("device", own, profile=profile, key_start=40)
        self._pd = self.device.alloc_pd()
        access = int(ALL_ACCESS | Access.MW_BIND)
        self._region = self._pd.register(settings["size"], access)
        self.device.pkeys = [settings["pkey"], *(settings[name] for name in PKEYS)]
        self.way = Impaired(self.device)
        """To the device and back."""
        gids = gid_of(own), gid_of(peer)
        guids = ca_guid(mac_of(gids[0])), ca_guid(mac_of(gids[1]))
        self.exchanges = Exchanges(Exchange(*gids, *guids))
        self._manager: Manager | None = None
        self.regions: dict[str, MemoryRegion] = {"mr": self._region}
        self._registered: int = settings["size"]
        self.windows: dict[str, MemoryWindow] = {}
        self._bound: dict[str, tuple[int, int]] = {}
        """Address and bytes of each when it was bound last: an invalidated window has none."""
        self._peer_gid = gids[1]
        self._channel = self.device.create_channel()
        self._xrc_domain: XRCDomain | None = None
        self.queue_pairs: dict[str, DeviceQueuePair] = {}
        """By name; the first one has none."""
        self._settings = settings
        self.create("", {})

    @property
    def wire(self) -> Wire:
        """The constant parts of the packets of the first queue pair."""
        return self.queue_pairs[""].wire

    @wire.setter
    def wire(self, wire: Wire) -> None:
        self.queue_pairs[""].wire = wire

    @property
    def wires(self) -> Mapping[str, Wire]:
        """Those of the other queue pairs, by their names."""
        return {name: each.wire for name, each in self.queue_pairs.items() if name}

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
            "srqn": wire.srqn,
            **self.exchanges[""].symbols,
        }
        for name, other in self.wires.items():
            found |= {f"{name}.{part}": getattr(other, part) for part in OWNED}
            own = self.exchanges[name].symbols
            found |= {f"{name}.{part}": number for part, number in own.items()}
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
            if window.length:
                self._bound[name] = window.iova, window.length
            start, length = self._bound[name]
            found |= {
                f"{name}.va": start,
                f"{name}.rkey": window.rkey,
                f"{name}.size": length,
                f"{name}.end": start + length,
            }
        return found

    # The wire.

    def inject(
        self, literal: Literal, scope: Scope, owner: str = ""
    ) -> tuple[Time, Frame, list[str]]:
        """Let a packet arrive."""
        frame = build(literal, self.queue_pairs[owner].wire, scope)
        manager = self._manager if literal.form is None else self.manager
        if manager is not None:
            self.exchanges.choose(owner).note(frame, from_device=False)
        self.way.receive(frame, self.now)
        if manager is not None:
            manager.settle()
        return self.now, frame, []

    def settle(self) -> None:
        """Read the frames that the device sends now."""
        for frame in frames_from(self.way, self.now):
            if self._manager is not None:
                self.exchanges.note(frame)
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

    def symbols_of(self, owner: str) -> Mapping[str, int]:
        """Values of the symbols in a line of a queue pair."""
        return own_symbols(self.symbols, owner)

    def manager_owner(self, frame: Frame) -> str:
        """The queue pair of whose exchange a message of the connection manager is."""
        found = message_in(frame)
        return "" if found is None else self.exchanges.owner_of(found.message)

    def state_of(self, owner: str) -> QPState:
        """The state of a queue pair."""
        return self.queue_pairs[owner].state

    def choose(self, connection: Connection, owner: str | None) -> str:
        """Take the connection that a queue pair is for; its exchange has the ID of the peer."""
        if owner is None:
            names = [each for each in self.exchanges if self._is_asked(each, connection)]
            owner = names[-1] if names else ""
        self.exchanges.choose(owner).chosen_cm_id = connection.local_id
        return owner

    def _is_asked(self, owner: str, connection: Connection) -> bool:
        return self.exchanges[owner].peer_cm_id == connection.remote_id

    def join(self, connection: Connection, state: QPState, owner: str) -> None:
        """Bring a queue pair to a state with the attributes of a connection."""
        address, attributes = connection.queue_pair_attributes()
        joined = self.queue_pairs[owner]
        joined.join(state, address, attributes)
        request, answer = connection.request, connection.reply
        assert isinstance(request, REQ)
        assert isinstance(answer, REP)
        own, other = (request, answer) if connection.is_active else (answer, request)
        joined.wire = replace(
            joined.wire,
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
        pd = self.device.alloc_pd() if other_pd else self._pd
        self.regions[name] = pd.register(length, access)

    def bind(
        self, name: str, va: int, length: int, access: int, owner: str = "", *, kind: int = 2
    ) -> None:
        """Bind a window under a name; raises EINVAL for one that cannot be bound."""
        window = self._pd.allocate_window(kind)
        info = MWBindInfo(self._region_at(va, length), va, length, access)
        if not self.queue_pairs[owner].bind(window, info):
            raise VerbsError(errno.EINVAL, "the window cannot be bound")
        self.windows[name] = window
        self._bound[name] = window.iova, window.length

    def window_request(self, name: str, va: int, length: int, access: int) -> SendWR:
        """The send request that binds a window again; of one of no bytes, that unbinds it."""
        window = self.windows.get(name)
        if window is None:
            raise VerbsError(errno.EINVAL, f"{name} is a region, not a window")
        region = self._region_at(va, length) if length else self._region
        info = MWBindInfo(region, va, length, access)
        rkey = window.rkey & ~0xFF | window.rkey + 1 & 0xFF
        return SendWR(WROpcode.BIND_MW, rkey=rkey, mw=window, bind_info=info)

    def deregister(self, name: str) -> None:
        """Deregister memory."""
        region = self.regions.get(name)
        if region is None:
            raise VerbsError(errno.EINVAL, f"{name} is a window, not a region")
        region.deregister()

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

    def pause(self, priorities: int, quanta: int) -> None:
        """Receive a PFC frame."""
        self.way.receive(pause_frame(mac_of(self._peer_gid), priorities, quanta), self.now)

    def create(self, name: str, given: Mapping[str, int]) -> None:
        """Make a queue pair under a name; what is not given is as in the first one."""
        number = len(self.queue_pairs)
        if name:
            self.exchanges.add(name, number)
        base = dict(self._settings)
        if name:  # other PSNs, so that a packet for another queue pair is noticed
            base |= {"rq_psn": DEFAULTS["rq_psn"] + 1000 * number}
            base |= {"sq_psn": DEFAULTS["sq_psn"] + 1000 * number}
        settings = {**base, **given}
        recv_cq = self.device.create_cq(settings["recv_cqe"], self._channel)
        send_cq = self.device.create_cq(settings["send_cqe"], self._channel)
        is_xrc = settings["type"] in XRC
        if is_xrc and self._xrc_domain is None:
            self._xrc_domain = self.device.open_xrc_domain()
        srq = self._srq_of(settings, recv_cq) if settings["srq"] or is_xrc else None
        self.queue_pairs[name] = DeviceQueuePair(
            self.device,
            self._pd,
            self._region,
            settings,
            peer_gid=self._peer_gid,
            peer_qpn=PEER_QPN + number,
            srq=srq,
            xrc_domain=self._xrc_domain,
            recv_cq=srq.cq if srq is not None and srq.cq is not None else recv_cq,
            send_cq=send_cq,
        )

    def _srq_of(
        self, settings: Mapping[str, int], recv_cq: CompletionQueue
    ) -> SharedReceiveQueue | None:
        """The shared receive queue for queue pairs of this kind, made when first needed."""
        if settings["type"] == QPType.XRC_SEND:
            return None
        is_xrc = settings["type"] == QPType.XRC_RECV
        for srq in self.device.srqs.values():
            if (srq.xrc_domain is not None) == is_xrc:
                return srq
        return self.device.create_srq(
            self._pd,
            max_wr=settings["max_recv_wr"],
            max_sge=settings["max_recv_sge"],
            xrc_domain=self._xrc_domain if is_xrc else None,
            cq=recv_cq if is_xrc else None,
        )

    def queue_pair(self, name: str) -> DeviceQueuePair:
        """The queue pair of a name; the first one has none."""
        return self.queue_pairs[name]

    def reconnect(self, name: str, given: Mapping[str, int]) -> None:
        """Reset a queue pair and connect it again."""
        self.queue_pairs[name].reconnect(given)

    def gather(self) -> tuple[dict[tuple[str, str], list[WC]], list[EventType], list[str]]:
        """Completions by queue pair and queue, asynchronous events, and queues with an event."""
        found: dict[tuple[str, str], list[WC]] = {}
        for name, each in self.queue_pairs.items():
            for queue, completions in each.completions().items():
                found[name, queue] = completions
        raised: list[str] = []
        while (cq := self._channel.poll_event()) is not None:
            raised += self._names_of(cq)
        return found, events_of(self.device), raised

    def _names_of(self, cq: CompletionQueue) -> list[str]:
        for name, each in self.queue_pairs.items():
            if cq is each.send_cq:
                return [f"{name} send".strip()]
            if cq is each.recv_cq:
                return [f"{name} recv".strip()]
        return []

    @property
    def state(self) -> QPState:
        """The state of the first queue pair."""
        return self.queue_pairs[""].state
