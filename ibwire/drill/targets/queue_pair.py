"""A queue pair of the emulated device of a script, with its completion queues and its wire."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import replace

from ibwire.base.errors import VerbsError
from ibwire.drill.packets import Wire
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
from ibwire.rc.cq import CompletionQueue
from ibwire.rc.device import Device, mac_of
from ibwire.rc.memory import MemoryRegion, MemoryWindow, ProtectionDomain
from ibwire.rc.path import ethernet_route
from ibwire.rc.qp import QPInit
from ibwire.rc.srq import SharedReceiveQueue
from ibwire.rc.states import mask_of
from ibwire.rc.work import WC, MWBindInfo, RecvWR, SendWR
from ibwire.rc.xrc import XRCDomain

ATTRIBUTES = {
    "access": QPAttrMask.ACCESS_FLAGS,
    "timeout": QPAttrMask.TIMEOUT,
    "retry_cnt": QPAttrMask.RETRY_CNT,
    "rnr_retry": QPAttrMask.RNR_RETRY,
    "min_rnr_timer": QPAttrMask.MIN_RNR_TIMER,
    "max_rd_atomic": QPAttrMask.MAX_QP_RD_ATOMIC,
    "max_dest_rd_atomic": QPAttrMask.MAX_DEST_RD_ATOMIC,
    "sqd_event": QPAttrMask.EN_SQD_ASYNC_NOTIFY,
    "qkey": QPAttrMask.QKEY,
    "pkey_index": QPAttrMask.PKEY_INDEX,
}
"""The attribute that each argument of `modify` sets."""

_FIELDS = {"access": "qp_access_flags", "sqd_event": "en_sqd_async_notify"}

UP = (QPState.RESET, QPState.INIT, QPState.RTR, QPState.RTS)
"""The states of a queue pair up to a connection, in order."""

PEER_SRQN = 0x55
"""Number of the peer's shared receive queue, for XRC."""

XRC = (QPType.XRC_SEND, QPType.XRC_RECV)


class DeviceQueuePair:
    """A queue pair, connected as a script wants it. Raises `VerbsError` for impossible attributes.

    srq: that it receives through, if any. settings: attributes by the words of scripts.
    """

    def __init__(
        self,
        device: Device,
        pd: ProtectionDomain,
        region: MemoryRegion,
        settings: Mapping[str, int],
        *,
        peer_gid: int,
        peer_qpn: int,
        srq: SharedReceiveQueue | None,
        xrc_domain: XRCDomain | None,
        recv_cq: CompletionQueue,
        send_cq: CompletionQueue,
    ) -> None:
        self._device = device
        self._pd = pd
        self.send_cq, self.recv_cq = send_cq, recv_cq
        self.srq = srq
        kind = QPType(settings["type"])
        self._settings = settings
        init = _creation(kind, pd, settings, send_cq, recv_cq, srq, xrc_domain)
        self.qp = device.create_qp(init)
        self._made = {kind: self.qp}
        """Those that were in its place, by type; all but the one that is there are in RESET."""
        self._attr = QPAttr(
            path_mtu=_mtu_code(settings["mtu"]),
            ah_attr=AddressVector(dgid=peer_gid),
            dest_qp_num=peer_qpn,
            rq_psn=settings["rq_psn"],
            sq_psn=settings["sq_psn"],
        )
        self.modify({name: settings[name] for name in ATTRIBUTES if name in settings}, None)
        self.climb(QPState(settings["state"]))
        self._rearms = bool(settings["rearm"])
        self._rearm()
        route = ethernet_route(
            source=peer_gid,
            destination=device.gids[0],
            source_mac=mac_of(peer_gid),
            destination_mac=device.mac,
            source_port=0xC000,
        )
        self.wire = Wire(
            route,
            qpn=self.qp.number,
            peer_qpn=peer_qpn,
            pkey=device.pkeys[settings["pkey_index"]],
            mtu=settings["mtu"],
            rq_psn=settings["rq_psn"],
            sq_psn=settings["sq_psn"],
            va=region.iova,
            rkey=region.rkey,
            qkey=settings["qkey"],
            is_datagram=kind is QPType.UD,
            srqn=0 if srq is None else srq.number,
        )

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

    def climb(self, state: QPState) -> None:
        """Bring the queue pair to a state, through the states on the way to it."""
        for step in UP[1:]:
            if self.qp.state is state or state is QPState.RESET:
                return
            self.modify({}, step)
        if self.qp.state is not state:
            self.modify({}, state)

    def _rearm(self) -> None:
        """Give it an alternate path, the same as its path, which waits to be armed (IBA 17.2.8)."""
        if self._rearms and self.qp.state is QPState.RTS and self.qp.qp_type is not QPType.UD:
            here = self._attr
            there = replace(
                here,
                alt_ah_attr=here.ah_attr,
                alt_pkey_index=here.pkey_index,
                path_mig_state=MigState.REARM,
            )
            self.qp.modify(there, int(QPAttrMask.ALT_PATH | QPAttrMask.PATH_MIG_STATE))

    def join(self, state: QPState, address: AddressVector, attributes: Mapping[str, int]) -> None:
        """Bring it to a state with attributes that a connection manager has agreed on."""
        self._attr = replace(self._attr, ah_attr=address, **attributes)  # type: ignore[arg-type]
        if state is QPState.RTS and self.qp.state is QPState.RTR:
            self.modify({}, state)
        else:
            self.climb(state)

    def reconnect(self, given: Mapping[str, int]) -> None:
        """Reset it and connect it again; attributes that are not given keep their values.

        Of another type, a queue pair of that type takes its place.
        """
        self.modify({}, QPState.RESET)
        for queue in (self.send_cq, self.recv_cq):
            queue.discard(self.qp.number)
        if "type" in given:
            self._take(QPType(given["type"]))
        self._rearms = bool(given.get("rearm", self._rearms))
        wire = self.wire
        mtu = given.get("mtu", wire.mtu)
        rq_psn, sq_psn = given.get("rq_psn", wire.rq_psn), given.get("sq_psn", wire.sq_psn)
        self._attr = replace(self._attr, path_mtu=_mtu_code(mtu), rq_psn=rq_psn, sq_psn=sq_psn)
        self.modify({name: given[name] for name in ATTRIBUTES if name in given}, None)
        self.climb(QPState.RTS)
        self._rearm()
        self.wire = replace(
            wire,
            qpn=self.qp.number,
            pkey=self._device.pkeys[self._attr.pkey_index],
            mtu=mtu,
            rq_psn=rq_psn,
            sq_psn=sq_psn,
            qkey=self._attr.qkey,
            is_datagram=self.qp.qp_type is QPType.UD,
        )

    def _take(self, kind: QPType) -> None:
        """Let the queue pair of a type be the one in RESET that is connected next."""
        before = self.qp.qp_type
        if kind is not before and (kind in XRC or before in XRC or self.srq is not None):
            change = f"{before.name} to {kind.name}"
            reason = (
                "a queue pair with a receive queue of its own type or a shared one keeps its type"
            )
            raise VerbsError(errno.EINVAL, f"{change}: {reason}")
        if kind not in self._made:
            queues = self.send_cq, self.recv_cq
            init = _creation(kind, self._pd, self._settings, *queues, None, None)
            self._made[kind] = self._device.create_qp(init)
        self.qp = self._made[kind]

    @property
    def state(self) -> QPState:
        """Its state."""
        return self.qp.state

    def post_send(self, wr: SendWR) -> None:
        """Post a send request; of a datagram queue pair to the peer."""
        if self.wire.is_datagram and wr.ah is None:
            wr = replace(wr, ah=self._attr.ah_attr)
        self.qp.post_send(wr)

    def post_recv(self, wr: RecvWR) -> None:
        """Post a receive request, to the shared queue if there is one."""
        queue = self.qp if self.srq is None else self.srq
        queue.post_recv(wr)

    def bind(self, window: MemoryWindow, info: MWBindInfo) -> bool:
        """Bind a window to the queue pair at once, without a completion."""
        keys = self._device.keys
        return keys.bind(window, self.qp.number, self._pd, info, window.rkey + 1)

    def completions(self) -> dict[str, list[WC]]:
        """Completions by queue since the last call."""
        return {
            "send": self.send_cq.poll(self.send_cq.cqe),
            "recv": self.recv_cq.poll(self.recv_cq.cqe),
        }

    def notify(self, queue: str, *, solicited_only: bool) -> None:
        """Request one event of a completion queue."""
        (self.send_cq if queue == "send" else self.recv_cq).arm(solicited_only)

    def limit(self, limit: int) -> None:
        """Request an event when fewer receive requests than this are in the shared queue."""
        if self.srq is None:
            raise VerbsError(errno.EINVAL, "the queue pair has no shared receive queue")
        self.srq.modify(limit=limit)


def _creation(
    kind: QPType,
    pd: ProtectionDomain,
    settings: Mapping[str, int],
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    srq: SharedReceiveQueue | None,
    xrc_domain: XRCDomain | None,
) -> QPInit:
    """What a queue pair of a type is made of."""
    cap = QPCap(
        settings["max_send_wr"],
        settings["max_recv_wr"],
        settings["max_send_sge"],
        settings["max_recv_sge"],
        max_inline_data=1024,
    )
    if kind is QPType.XRC_RECV:
        return QPInit(kind, cap=cap, xrc_domain=xrc_domain)
    if kind is QPType.XRC_SEND:
        return QPInit(kind, pd, send_cq, cap=cap, xrc_domain=xrc_domain)
    return QPInit(kind, pd, send_cq, recv_cq, srq, cap)


def _mtu_code(mtu: int) -> int:
    if mtu not in MTU_CODES:
        raise VerbsError(errno.EINVAL, f"mtu {mtu}, not one of {list(MTU_CODES)}")
    return MTU_CODES[mtu]
