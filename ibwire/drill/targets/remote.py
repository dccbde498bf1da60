"""The verbs of a device on another host, which its agent carries out (`ibwire.drill.agent`)."""

from __future__ import annotations

import ipaddress
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ibwire.base.errors import PeerError, VerbsError
from ibwire.cm.states import EventKind
from ibwire.drill.targets.emulated import DEFAULTS, pkey_of
from ibwire.drill.targets.manager import MANAGER_DEFAULTS
from ibwire.drill.targets.queue_pair import ATTRIBUTES, UP
from ibwire.drill.targets.target import ManagerEvent, Unable
from ibwire.rc.attributes import (
    MTU_CODES,
    EventType,
    QPAttr,
    QPAttrMask,
    QPState,
    QPType,
)
from ibwire.rc.connect import ALL_ACCESS
from ibwire.rc.memory import Access
from ibwire.rc.states import mask_of
from ibwire.rc.work import SGE, WC, RecvWR, SendWR, WCOpcode, WCStatus, WROpcode

Ask = Callable[[dict[str, Any]], Any]
"""Sends a question to the agent and returns its reply; raises `PeerError`."""


@dataclass(slots=True)
class Region:
    """Memory of the device, or a window of it."""

    number: int
    va: int
    length: int
    rkey: int
    lkey: int | None
    """`None` for a window."""
    valid: bool = True


class Remote:
    """A queue pair that an agent has made.

    given: attributes by the words of a script; gids: of the device and of its peer. Raises
    `VerbsError` for what the device refuses, `Unable` for what it has not got.
    """

    def __init__(
        self, ask: Ask, given: Mapping[str, int], gids: tuple[int, int], peer_qpn: int
    ) -> None:
        self._ask_agent = ask
        self._gids = tuple(map(_text, gids))
        settings = {**DEFAULTS, **given}
        if settings["mtu"] not in MTU_CODES:
            raise Unable(f"path MTU {settings['mtu']}, not one of {list(MTU_CODES)}")
        self.known_access = self._number(self._ask("about"), "access")
        """Access flags that the device's library has."""
        self._attr = QPAttr(
            port_num=1,
            path_mtu=MTU_CODES[settings["mtu"]],
            dest_qp_num=peer_qpn,
            rq_psn=settings["rq_psn"],
            sq_psn=settings["sq_psn"],
        )
        self._type = QPType(settings["type"])
        if self._type not in (QPType.RC, QPType.UC):
            raise Unable(f"needs a queue pair of type {self._type.name}: the agent makes RC and UC")
        if settings["rearm"]:
            raise Unable("needs an alternate path, which the agent does not set")
        self._pkey = pkey_of(settings)
        made = self._ask(
            "create",
            type=settings["type"],
            size=settings["size"],
            srq=bool(settings["srq"]),
            access=self._access(int(ALL_ACCESS | Access.MW_BIND)),
            **{name: settings[name] for name in _CAPACITIES},
            # Only what a script says, as an agent of an older version knows nothing of it.
            **{name: given[name] for name in ("max_send_sge", "max_recv_sge") if name in given},
        )
        self.qpn = self._number(made, "qpn")
        self.regions: dict[str, Region] = {"mr": self._region(made, settings["size"])}
        self._manager = RemoteManager(self._ask, *self._gids)
        # The agent finds the index of the P_Key, and its queue pairs have no Q_Key.
        names = [name for name in ATTRIBUTES if name not in ("pkey_index", "qkey")]
        attributes = {name: settings[name] for name in names if name in settings}
        self._modify(attributes, QPState.RESET, None)
        self._climb(QPState(settings["state"]))

    @property
    def symbols(self) -> dict[str, int]:
        """Values of the symbols of a script for memory."""
        found: dict[str, int] = {}
        for name, region in self.regions.items():
            prefix = "" if name == "mr" else f"{name}."
            found |= {
                f"{prefix}va": region.va,
                f"{prefix}rkey": region.rkey,
                f"{prefix}size": region.length,
                f"{prefix}end": region.va + region.length,
            }
            if region.lkey is not None:
                found[f"{prefix}lkey"] = region.lkey
        return found

    def manager(self) -> RemoteManager:
        """The connection manager of its host."""
        return self._manager

    # The verbs.

    def register(self, name: str, length: int, access: int, *, other_pd: bool = False) -> None:
        """Register memory under a name."""
        access = self._access(access)
        made = self._ask("register", len=length, access=access, other_pd=other_pd)
        self.regions[name] = self._region(made, length)

    def bind(
        self, name: str, va: int, length: int, access: int, owner: str = "", *, kind: int = 2
    ) -> None:
        """Bind a type 2 window of the first region under a name."""
        if kind != 2:
            raise Unable("needs a window of type 1: the agent binds those of type 2")
        number = self.regions["mr"].number
        access = self._access(access)
        made = self._ask("bind", region=number, address=va, len=length, access=access)
        self.regions[name] = Region(number, va, length, self._number(made, "rkey"), None)

    def window_request(self, name: str, va: int, length: int, access: int) -> SendWR:
        """The agent has none: raises `Unable`."""
        raise Unable("needs to post the request that binds a window: the agent binds at once")

    def pause(self, priorities: int, quanta: int) -> None:
        """Scripts send no PFC frames on a link: raises `Unable`."""
        raise Unable("needs PFC frames, which scripts do not send on a link")

    def create(self, name: str, given: Mapping[str, int]) -> None:
        """The agent makes one queue pair: raises `Unable`."""
        raise Unable("needs several queue pairs: the agent makes one")

    def queue_pair(self, name: str) -> Remote:
        """The only one."""
        return self

    def reconnect(self, name: str, given: Mapping[str, int]) -> None:
        """Our end would not follow: raises `Unable`."""
        raise Unable("needs to connect again, which scripts do not do on a link")

    def notify(self, queue: str, *, solicited_only: bool) -> None:
        """The agent has no completion channel: raises `Unable`."""
        raise Unable("needs events of completion queues, which the agent does not have")

    def limit(self, limit: int) -> None:
        """The agent does not set it: raises `Unable`."""
        raise Unable("needs the limit of a shared receive queue, which the agent does not set")

    def deregister(self, name: str) -> None:
        """Deregister memory."""
        self._ask("deregister", region=self.regions[name].number)
        self.regions[name].valid = False

    def modify(self, given: Mapping[str, int], state: QPState | None) -> None:
        """Set attributes; with a state, also those that the transition requires, unchanged."""
        self._modify(given, self.state, state)

    def _climb(self, state: QPState) -> None:
        """Bring the queue pair from RESET to a state, through those on the way to it."""
        before = QPState.RESET
        while before is not state:
            after = UP[UP.index(before) + 1] if before in UP[:-1] else state
            self._modify({}, before, after)
            before = after

    def _modify(self, given: Mapping[str, int], before: QPState, state: QPState | None) -> None:
        settings = dict(given)
        for name in ("pkey_index", "qkey"):
            if name in settings:
                raise Unable(f"needs modify {name}=, which the agent does not set")
        if "access" in settings:
            settings["access"] = self._access(settings["access"])
        fields: dict[str, Any] = {_FIELDS[ATTRIBUTES[name]]: settings[name] for name in settings}
        wanted = replace(self._attr, **fields)
        if state is None and before is QPState.RESET:
            self._attr = wanted
            return
        mask = sum(int(ATTRIBUTES[name]) for name in given)
        if state is not None:
            wanted = replace(wanted, qp_state=state)
            mask |= mask_of(self._type, before, state)
        self._ask(
            "modify",
            mask=int(mask),
            fields={name: getattr(wanted, name) for bit, name in _FIELDS.items() if mask & bit},
            own_gid=self._gids[0],
            peer_gid=self._gids[1],
            pkey=self._pkey,
        )
        self._attr = wanted

    def post_send(self, wr: SendWR) -> None:
        """Post a send request."""
        more: dict[str, Any] = {}
        if wr.opcode == WROpcode.FLUSH:
            more = {"length": wr.length, "flush_type": int(wr.flush_type)}
            more["flush_level"] = int(wr.flush_level)
        elif wr.opcode == WROpcode.ATOMIC_WRITE:
            more = {"atomic_data": wr.atomic_data.hex()}
        self._ask(
            "post_send",
            opcode=int(wr.opcode),
            wr_id=wr.wr_id,
            sge=_piece(wr.sg_list),
            flags=int(wr.send_flags),
            remote_addr=wr.remote_addr,
            rkey=wr.rkey,
            imm_data=wr.imm_data,
            invalidate_rkey=wr.invalidate_rkey,
            compare_add=wr.compare_add,
            swap=wr.swap,
            **more,
        )

    def post_recv(self, wr: RecvWR) -> None:
        """Post a receive request, to the shared queue if there is one."""
        self._ask("post_recv", wr_id=wr.wr_id, sge=_piece(wr.sg_list))

    def write(self, address: int, data: bytes) -> None:
        """Write to memory."""
        region, offset = self._region_at(address, len(data))
        self._ask("write", region=region, offset=offset, data=data.hex())

    def read(self, address: int, length: int) -> bytes:
        """Read memory."""
        region, offset = self._region_at(address, length)
        answer = self._ask("read", region=region, offset=offset, len=length)
        try:
            return bytes.fromhex(answer)
        except (TypeError, ValueError):
            raise PeerError(f"the agent reads {answer!r}, which are not bytes") from None

    def gather(self) -> tuple[dict[tuple[str, str], list[WC]], list[EventType], list[str]]:
        """Completions of the only queue pair by queue, and asynchronous events."""
        completions, events = self.collect()
        return {("", name): found for name, found in completions.items()}, events, []

    def collect(self) -> tuple[dict[str, list[WC]], list[EventType]]:
        """Completions by queue, and events, since the last call."""
        answer = self._ask("collect")
        try:
            found = {name: [_completion(each) for each in answer[name]] for name in _QUEUES}
            return found, [EventType(each) for each in answer["events"]]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise PeerError(f"the agent has found {answer!r}: {error}") from None

    @property
    def state(self) -> QPState:
        """The state of the queue pair."""
        answer = self._ask("state")
        try:
            return QPState(answer)
        except ValueError:
            raise PeerError(f"the agent's queue pair is in state {answer!r}") from None

    # The agent.

    def _ask(self, what: str, **wish: Any) -> Any:
        answer = self._ask_agent({"do": what, **wish})
        match answer:
            case {"ok": found}:
                return found
            case {"errno": int(code), "reason": str(reason)}:
                raise VerbsError(code, reason)
            case {"unable": str(reason)}:
                raise Unable(f"needs {what}: {reason}")
        raise PeerError(f"the agent answers {answer!r}")

    @staticmethod
    def _number(answer: Any, name: str) -> int:
        number = answer.get(name) if isinstance(answer, dict) else None
        if not isinstance(number, int):
            raise PeerError(f"the reply of the agent has no {name}: {answer!r}")
        return number

    def _region(self, made: Any, length: int) -> Region:
        number, va, rkey, lkey = (
            self._number(made, name) for name in ("region", "va", "rkey", "lkey")
        )
        return Region(number, va, length, rkey, lkey)

    def _region_at(self, va: int, length: int) -> tuple[int, int]:
        """Number of the region with these bytes, and their offset."""
        for region in self.regions.values():
            is_memory = region.lkey is not None and region.valid
            if is_memory and region.va <= va and va + length <= region.va + region.length:
                return region.number, va - region.va
        raise Unable(f"no memory for {length} bytes at {va:#x}")

    def _access(self, access: int) -> int:
        """Access flags; of all flags those that the device supports."""
        missing = access & ~self.known_access
        if missing and access & ALL_ACCESS != ALL_ACCESS:
            names = "+".join(each.name or "" for each in Access if missing & each)
            raise Unable(f"needs {names}: the agent does not know it")
        return access & ~missing


@dataclass(frozen=True, slots=True)
class RemoteEvent:
    """An event of a connection manager, from an agent."""

    kind: EventKind
    reason: int


class RemoteManager:
    """A connection manager commanded through an agent."""

    def __init__(self, ask: Callable[..., Any], gid: str, peer_gid: str) -> None:
        self._ask = ask
        self._addresses: Mapping[str, Mapping[str, str]] = {
            "listen": {"gid": gid},
            "connect": {"gid": peer_gid, "own_gid": gid},
        }
        self._events: deque[ManagerEvent] = deque()

    @property
    def events(self) -> Mapping[str, deque[ManagerEvent]]:
        """Events that no line of the script has expected yet; there is one queue pair."""
        found = self._ask("cm_events")
        if not isinstance(found, list):
            raise PeerError(f"the events of the agent are {found!r}, not a list")
        self._events += map(_remote_event, found)
        return {"": self._events}

    def do(self, verb: str, given: Mapping[str, int], owner: str = "") -> None:
        """Carry a command out; raises `VerbsError` and `Unable`."""
        if verb == "resolve":
            raise Unable("needs resolve at the device: the agent's rdma_cm makes connections")
        self._ask(
            verb, **{**MANAGER_DEFAULTS.get(verb, {}), **given, **self._addresses.get(verb, {})}
        )


def _text(gid: int) -> str:
    """With all of its digits, as pyverbs has it."""
    # Not `exploded`: from Python 3.13 on, it ends ::ffff:a.b.c.d with an IPv4 address.
    return ipaddress.IPv6Address(gid).packed.hex(":", 2)


def _piece(sges: Sequence[SGE]) -> list[int] | None:
    return [number for each in sges for number in (each.addr, each.length, each.lkey)] or None


def _remote_event(found: object) -> RemoteEvent:
    match found:
        case {"event": int(number), "status": int(status)}:
            if number in _EVENTS:
                kind = EventKind[_EVENTS[number]]
                # Linux reports the reason of a REJ, and otherwise an errno (`cma_ib_handler`).
                return RemoteEvent(kind, status if kind is EventKind.REJECTED else 0)
            if 0 <= number <= _LAST_EVENT:
                raise Unable(f"the agent has received event {number}, which has no name in scripts")
    raise PeerError(f"the agent has received {found!r}")


def _completion(found: dict[str, int]) -> WC:
    return WC(
        found["wr_id"],
        WCStatus(found["status"]),
        WCOpcode(found.get("opcode", 0)),
        0,
        byte_len=found.get("byte_len", 0),
        imm_data=found.get("imm_data", 0),
        wc_flags=found.get("flags", 0),
    )


_QUEUES = ("send", "recv")

_EVENTS = {
    4: "CONNECT_REQUEST",
    5: "CONNECT_RESPONSE",
    7: "UNREACHABLE",
    8: "REJECTED",
    9: "ESTABLISHED",
    10: "DISCONNECTED",
    15: "TIMEWAIT_EXIT",
}
"""`rdma_cm_event_type` (rdma/rdma_cma.h), as far as scripts are about it."""

_LAST_EVENT = 19
"""RDMA_CM_EVENT_INTERNAL."""

_CAPACITIES = ("max_send_wr", "max_recv_wr", "send_cqe", "recv_cqe")

_FIELDS = {
    QPAttrMask.STATE: "qp_state",
    QPAttrMask.PKEY_INDEX: "pkey_index",
    QPAttrMask.PORT: "port_num",
    QPAttrMask.ACCESS_FLAGS: "qp_access_flags",
    QPAttrMask.PATH_MTU: "path_mtu",
    QPAttrMask.DEST_QPN: "dest_qp_num",
    QPAttrMask.RQ_PSN: "rq_psn",
    QPAttrMask.SQ_PSN: "sq_psn",
    QPAttrMask.TIMEOUT: "timeout",
    QPAttrMask.RETRY_CNT: "retry_cnt",
    QPAttrMask.RNR_RETRY: "rnr_retry",
    QPAttrMask.MIN_RNR_TIMER: "min_rnr_timer",
    QPAttrMask.MAX_QP_RD_ATOMIC: "max_rd_atomic",
    QPAttrMask.MAX_DEST_RD_ATOMIC: "max_dest_rd_atomic",
    QPAttrMask.EN_SQD_ASYNC_NOTIFY: "en_sqd_async_notify",
}
"""Which field of the attributes a bit of the mask is about."""
