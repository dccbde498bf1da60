"""One emulated end whose peer is the caller: packets in, packets out, in the caller's time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ibwire.base.node import Frame
from ibwire.base.trace import RECEIVED, SENT
from ibwire.base.units import Time
from ibwire.peer.end import QKEY, End
from ibwire.peer.log import LoggedFrame, link_type_of
from ibwire.peer.waiting import frames_from, timeouts_until
from ibwire.rc.attributes import AddressVector, QPType
from ibwire.rc.device import gid_of, mac_of
from ibwire.rc.path import ethernet_route, ib_route
from ibwire.rc.profile import Profile
from ibwire.rc.work import WROpcode
from ibwire_layers.build import build_packet
from ibwire_layers.opcodes import INFO, OpCode
from ibwire_layers.packet import Packet, Route

REMOTE_ADDRESS, REMOTE_KEY = 0x5000, 0x99
"""Address and R_Key of the memory that the caller pretends to have."""


class Peer(End):
    """A device with one queue pair in RTS, whose peer is the caller.

    Its requests begin with `psn`, and it expects `peer_psn` first. Its peer has the QPN
    `peer_qpn` and the address `peer_address`; `mac` is the device's and `peer_mac` its peer's,
    by default those that `ibwire.rc.device.mac_of` makes of the addresses. pkey: of its
    partition. srq: whether it receives through a shared receive queue. The rest is as for
    `Pair`.

    Each of `receive`, `request`, `wait` and `transmit` returns the packets that the device has
    sent since the last of these calls. Time passes only in `wait`. Raises `VerbsError` for
    values that no device accepts.
    """

    def __init__(
        self,
        *,
        profile: Profile | str = "spec",
        link: str = "rocev2",
        mtu: int = 1024,
        psn: int = 500,
        peer_psn: int = 100,
        qpn: int = 0x11,
        peer_qpn: int = 0x77,
        address: str | Sequence[str] = "10.0.0.2",
        peer_address: str = "10.0.0.1",
        mac: bytes | None = None,
        peer_mac: bytes | None = None,
        pkey: int = 0xFFFF,
        size: int = 1 << 16,
        srq: bool = False,
        qp_type: QPType = QPType.RC,
        init: dict[str, Any] | None = None,
        **attr: Any,
    ) -> None:
        super().__init__(
            "device",
            address,
            qp_type=qp_type,
            size=size,
            srq=srq,
            qpn=qpn,
            init=init,
            profile=profile,
            link=link,
            mac=mac,
            lid=2,
            key_start=40,
        )
        self.device.pkeys[0] = pkey
        self.remote = {"remote_addr": REMOTE_ADDRESS, "rkey": REMOTE_KEY}
        self.link_type = link_type_of(link)
        self.now: Time = 0
        self.psn, self.peer_psn, self.peer_qpn = psn, peer_psn, peer_qpn
        self.log: list[LoggedFrame] = []
        """Every frame that it has received or sent."""
        self._returned = 0
        """Entries of the log before the first whose packet has not been returned."""
        gid = gid_of(peer_address)
        peer_mac = mac_of(gid) if peer_mac is None else peer_mac
        ah = AddressVector(dgid=gid, dlid=1, is_global=link != "ib", dmac=peer_mac)
        self.connect_to(ah, peer_qpn, psn=psn, peer_psn=peer_psn, mtu=mtu, **attr)
        self._route = self._route_from(gid, peer_mac)

    def _route_from(self, gid: int, mac: bytes) -> Route:
        """The headers before the BTH of packets to the device."""
        own = self.device.gids[0]
        if self.device.link == "ib":
            return ib_route(source=gid, destination=own, slid=1, dlid=2)
        return ethernet_route(
            source=gid,
            destination=own,
            source_mac=mac,
            destination_mac=self.device.mac,
            source_port=0xC000,
            version=1 if self.device.link == "rocev1" else 2,
        )

    def packet(
        self,
        opcode: int,
        psn: int | None = None,
        payload: bytes = b"",
        *,
        padding: bytes | None = None,
        **fields: int,
    ) -> Packet:
        """A packet to the device; fields that are not given have correct values.

        psn: by default the first that the device expects, of a response the first of its own
        requests. padding: as much as the payload needs. fields: of the headers, named as in
        `ibwire_layers.build`; keys and addresses are those of the device's memory, lengths
        those of the payload.

        Raises `EncodeError` for a field that the packet does not have.
        """
        info = INFO.get(opcode)
        if psn is None:
            psn = self.psn if info and info.is_response else self.peer_psn
        defaults = {
            "mig_req": 1,
            "dest_qp": self.qp.number,
            "rkey": self.mr.rkey,
            "va": self.mr.iova,
            "qkey": QKEY,
            "src_qp": self.peer_qpn,
        }
        return build_packet(
            opcode,
            route=self._route,
            payload=payload,
            padding=padding,
            defaults=defaults,
            psn=psn,
            **fields,
        )

    def receive(self, packet: Packet | Frame) -> list[Packet]:
        """Let a packet, or a frame of any bytes, arrive at the device."""
        frame = packet.build() if isinstance(packet, Packet) else bytes(packet)
        self._log(RECEIVED, frame)
        self.device.receive(frame, self.now)
        return self.transmit()

    def receive_packet(
        self, opcode: int, psn: int | None = None, payload: bytes = b"", **fields: Any
    ) -> list[Packet]:
        """Let a packet with these fields, as of `packet`, arrive at the device."""
        return self.receive(self.packet(opcode, psn, payload, **fields))

    def receive_ack(self, psn: int, *, syndrome: int = 0x1F, msn: int = 0) -> list[Packet]:
        """Let an acknowledgement or a NAK arrive at the device."""
        return self.receive_packet(OpCode.RC_ACKNOWLEDGE, psn, syndrome=syndrome, msn=msn)

    def request(
        self, opcode: WROpcode = WROpcode.SEND, length: int = 0, **given: Any
    ) -> list[Packet]:
        """Post a send request, with the arguments of `post_send`."""
        self.post_send(opcode, length, **given)
        return self.transmit()

    def transmit(self) -> list[Packet]:
        """The packets that the device has sent and that were not returned before."""
        self._drain()
        new, self._returned = self.log[self._returned :], len(self.log)
        return [entry.packet for entry in new if entry.event == SENT]

    def packets(self) -> list[Packet]:
        """All packets that the device has sent, in order."""
        self._drain()
        return [entry.packet for entry in self.log if entry.event == SENT]

    def wait(self, time: Time) -> list[Packet]:
        """Let time pass, picoseconds, with every timeout of the device that falls into it."""
        until = self.now + time
        self._drain()
        for now in timeouts_until(self.device, self.now, until):
            self.now = now
            self._drain()
        self.now = max(self.now, until)
        return self.transmit()

    def _drain(self) -> None:
        for frame in frames_from(self.device, self.now):
            self._log(SENT, frame)

    def _log(self, event: str, frame: Frame) -> None:
        self.log.append(LoggedFrame(self.now, self.name, event, frame, self.link_type))
