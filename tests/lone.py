"""One queue pair whose peer is the test: it says a packet and hears the answers.

What is said is built from `ibwire_layers`, header by header, so wrong packets are as
easy as right ones; what is heard is parsed by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from ibwire.base.units import Time
from ibwire.rc.attributes import (
    MTU_CODES,
    AddressVector,
    EventType,
    QPAttr,
    QPAttrMask,
    QPCap,
    QPState,
    QPType,
)
from ibwire.rc.connect import ALL_ACCESS, bring_up
from ibwire.rc.device import Device, gid_of, mac_of
from ibwire.rc.path import ethernet_route
from ibwire.rc.profile import SPEC, Profile
from ibwire.rc.qp import QPInit
from ibwire.rc.states import TRANSITIONS
from ibwire.rc.work import SGE, RecvWR, SendFlags, SendWR, WCStatus, WROpcode
from ibwire_layers import headers as h
from ibwire_layers.opcodes import INFO, OpCode
from ibwire_layers.packet import Packet, with_lengths
from ibwire_layers.schema import Header

OWN, PEER = "10.0.0.22", "10.0.0.1"

PEER_QPN = 0x77


class Lone:
    """A queue pair in RTS. It expects requests from `epsn` on and sends its own from `psn` on."""

    def __init__(
        self,
        *,
        profile: Profile = SPEC,
        qp_type: QPType = QPType.RC,
        mtu: int = 256,
        epsn: int = 100,
        psn: int = 500,
        size: int = 4096,
        pkey: int = 0xFFFF,
        with_srq: bool = False,
        addresses: Sequence[str] = (OWN,),
        init: dict[str, Any] | None = None,
        **attr: Any,
    ) -> None:
        self.now: Time = 0
        self.device = Device("lone", addresses, profile=profile, key_start=40)
        self.device.pkeys[0] = pkey
        self.pd = self.device.alloc_pd()
        self.mr = self.pd.register(size, int(ALL_ACCESS))
        self.send_cq = self.device.create_cq(256)
        self.recv_cq = self.device.create_cq(256)
        parts: dict[str, Any] = {
            "pd": self.pd,
            "send_cq": self.send_cq,
            "recv_cq": self.recv_cq,
            "cap": QPCap(max_inline_data=256),
            "srq": self.device.create_srq(self.pd) if with_srq else None,
            **(init or {}),
        }
        self.qp = self.device.create_qp(QPInit(qp_type, **parts))
        bring_up(
            self.qp,
            AddressVector(dgid=gid_of(PEER)),
            dest_qp_num=PEER_QPN,
            sq_psn=psn,
            rq_psn=epsn,
            path_mtu=MTU_CODES[mtu],
            **attr,
        )
        self._attr = replace(self.qp.query(), cur_qp_state=QPState.RTS)

    def become(self, state: QPState) -> None:
        """Go to a state, by RESET and all those between; to SQE by a fault."""
        self.qp.modify(QPAttr(), QPAttrMask.STATE)
        before = QPState.RESET
        for step in _WAYS[state]:
            mask = TRANSITIONS[self.qp.qp_type][before, step].required | QPAttrMask.STATE
            self.qp.modify(replace(self._attr, qp_state=step), mask)
            before = step
        if state is QPState.SQE:
            wr = SendWR(WROpcode.SEND, [SGE(1, 1, 1)], ah=self._attr.ah_attr)
            self.qp.post_send(wr)
            self.hear()
            self.send_cq.poll(1)
        assert self.qp.state is state

    def sge(self, offset: int = 0, length: int = 256) -> SGE:
        """A piece of its memory."""
        return SGE(self.mr.iova + offset, length, self.mr.lkey)

    def post_recv(self, length: int = 256, wr_id: int = 0) -> None:
        """Post a receive request at the start of its memory."""
        self.qp.post_recv(RecvWR([self.sge(0, length)] if length else [], wr_id))

    def post(
        self,
        opcode: WROpcode = WROpcode.SEND,
        length: int = 8,
        *,
        wr_id: int = 0,
        flags: int = SendFlags.SIGNALED,
        **said: Any,
    ) -> list[Packet]:
        """Post a send request; what leaves because of it."""
        said = {"remote_addr": 0x5000, "rkey": 0x99, **said}
        self.qp.post_send(SendWR(opcode, [self.sge(0, length)], flags, wr_id, **said))
        return self.hear()

    def say(self, opcode: int, psn: int, payload: bytes = b"", **said: Any) -> list[Packet]:
        """Send it a packet; what leaves because of it.

        said: fields of the BTH and of the extension headers, and source, destination
        (addresses), traffic_class and padding.
        """
        return self.give(self.packet(opcode, psn, payload, **said).build())

    def packet(self, opcode: int, psn: int, payload: bytes = b"", **said: Any) -> Packet:
        """A packet of its peer, right in what `said` does not make wrong."""
        said = {"pkey": 0xFFFF, "dest_qp": self.qp.number, "mig_req": 1, **said}
        padding = said.pop("padding", bytes(-len(payload) % 4))
        said.setdefault("pad_count", len(padding))
        route = ethernet_route(
            source=gid_of(said.pop("source", PEER)),
            destination=gid_of(said.pop("destination", OWN)),
            source_mac=mac_of(gid_of(PEER)),
            destination_mac=mac_of(gid_of(OWN)),
            source_port=0xC000,
            traffic_class=said.pop("traffic_class", 0),
        )
        info = INFO.get(opcode)
        kinds: tuple[type[Header], ...] = info.headers if info else ()
        if h.RETH in kinds or h.AtomicETH in kinds:
            said.setdefault("rkey", self.mr.rkey)
            said.setdefault("va", self.mr.iova)
        if h.RETH in kinds:
            said.setdefault("dma_len", len(payload))
        bth = h.BTH(opcode, psn=psn, **_of(h.BTH, said))
        extensions = tuple(kind(**_of(kind, said)) for kind in kinds)
        headers: tuple[type[Header], ...] = (h.BTH, *kinds)
        known = {name for kind in headers for name in _of(kind, said)}
        assert known == set(said), set(said) - known
        size = sum(header.SIZE for header in (bth, *extensions)) + len(payload) + len(padding)
        return Packet(with_lengths(route, size), bth, extensions, payload, padding)

    def ack(self, psn: int, *, syndrome: int = 0x1F, msn: int = 0) -> list[Packet]:
        """Send it an acknowledgement or a NAK."""
        return self.say(OpCode.RC_ACKNOWLEDGE, psn, syndrome=syndrome, msn=msn)

    def give(self, frame: bytes) -> list[Packet]:
        """Let a frame arrive; what leaves because of it."""
        self.device.receive(frame, self.now)
        return self.hear()

    def hear(self) -> list[Packet]:
        """What leaves at this time."""
        heard = []
        while (frame := self.device.poll_transmit(self.now)) is not None:
            heard.append(Packet.parse(frame))
        return heard

    def wait(self, time: Time) -> list[Packet]:
        """Let time pass; what leaves when timers expire."""
        end = self.now + time
        heard = []
        while (due := self.device.poll_timeout()) is not None and due <= end:
            self.now = max(due, self.now)
            self.device.handle_timeout(self.now)
            heard += self.hear()
        self.now = end
        return heard

    @property
    def sends(self) -> list[tuple[int, WCStatus]]:
        """Completions of its sends since last asked: wr_id and status."""
        return [(wc.wr_id, wc.status) for wc in self.send_cq.poll(256)]

    @property
    def receives(self) -> list[tuple[int, WCStatus]]:
        """Completions of its receives since last asked: wr_id and status."""
        return [(wc.wr_id, wc.status) for wc in self.recv_cq.poll(256)]

    @property
    def events(self) -> list[EventType]:
        """Asynchronous events since last asked."""
        found = []
        while (event := self.device.poll_event()) is not None:
            found.append(event.event_type)
        return found

    @property
    def memory(self) -> bytes:
        """All of its memory."""
        return self.mr.read(self.mr.iova, self.mr.length)


def words(packets: list[Packet]) -> list[str]:
    """Packets in words: opcode without the service, PSN, and the syndrome where there is one."""
    said = []
    for packet in packets:
        aeth = packet.extension(h.AETH)
        name = packet.opcode_name.split("_", 1)[1]
        syndrome = "" if aeth is None else f" {aeth.syndrome:#04x}"
        said.append(f"{name} {packet.bth.psn}{syndrome}")
    return said


def _of(kind: type[Header], said: dict[str, Any]) -> dict[str, Any]:
    """What is said about the fields of one header."""
    names = {field.name for field in fields(kind)} - {"opcode", "psn"}
    return {name: value for name, value in said.items() if name in names}


_UP = [QPState.INIT, QPState.RTR, QPState.RTS]

_WAYS: dict[QPState, list[QPState]] = {
    QPState.RESET: [],
    QPState.INIT: _UP[:1],
    QPState.RTR: _UP[:2],
    QPState.RTS: _UP,
    QPState.SQD: [*_UP, QPState.SQD],
    QPState.SQE: _UP,
    QPState.ERR: [*_UP, QPState.ERR],
}
