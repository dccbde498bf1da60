"""Replies that a rule sends in place of the receiver or a switch: CNP, NAK, PFC.

A reply is sent in the other direction, to the sender of the frame; the frame itself passes.
An acknowledgement needs the requester's QP number, which a packet of a reliable connection
does not have: a rule gives it, or it is learned from the packets in the other direction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from ibwire.base.errors import DecodeError, EncodeError
from ibwire.base.node import Frame
from ibwire.base.units import Time
from ibwire.impair.columns import Columns
from ibwire.impair.match import RESPONSES, Pick
from ibwire.impair.stages import Passing
from ibwire_layers import headers as h
from ibwire_layers import outer, psn
from ibwire_layers.build import build
from ibwire_layers.opcodes import INFO, OpCode, Service
from ibwire_layers.packet import Packet, RoCEv1Route, RoCEv2Route
from ibwire_layers.syndrome import AckKind, NakCode

Make = Callable[[Frame], Frame | None]
"""Makes the reply to a frame; `None` when it cannot."""

Send = Callable[[Frame | None], None]
"""Takes replies; `None` stands for one that could not be made."""


class Answer:
    """Sends a reply to picked frames and lets all frames pass."""

    def __init__(self, pick: Pick, make: Make, send: Send) -> None:
        self.pick = pick
        self.hits = 0
        """Frames with a reply."""
        self.unanswered = 0
        """Picked frames without a reply: they are not RoCE packets, or the QP number of their
        sender is unknown.
        """
        self._make = make
        self._send = send

    def __call__(self, frame: Frame, now: Time) -> Passing:
        """Pass the frame and send its reply."""
        if self.pick(frame, now):
            answer = self._make(frame)
            if answer is None:
                self.unanswered += 1
            else:
                self.hits += 1
            self._send(answer)
        return ((0, frame),)


class Answering(NamedTuple):
    """The context of rules that reply."""

    send: Send
    partners: Partners


class Partners:
    """The newest PSN of every flow in one direction, to find the sender of a packet in the other.

    A response has the PSN of its request. So two queue pairs whose packets have opposite
    directions and nearly the same PSN are requester and responder of a connection.
    """

    LIMIT = 1 << 16
    """Pairs of queue pair and opcode that are kept; above it all are dropped."""
    NEAR = 4096
    """Largest PSN distance between a packet and the newest one of the other direction."""

    def __init__(self) -> None:
        self.wanted = False
        """Whether a reply depends on it."""
        self._newest: dict[int, tuple[int, int]] = {}
        """PSN, and the four bytes after the BTH, by destination QPN times 256 plus opcode."""

    def see(self, columns: Columns) -> None:
        """Record packets that have passed."""
        if len(self._newest) > self.LIMIT:
            self._newest.clear()
        self._newest.update(
            zip(columns.keys, zip(columns.psns, columns.behind, strict=True), strict=True)
        )

    def partner(self, packet: Packet) -> int | None:
        """The queue pair that sent a packet of the other direction; `None` if it is ambiguous."""
        wants_response = packet.bth.opcode not in RESPONSES
        near = {
            key >> 8
            for key, (newest, _) in self._newest.items()
            if key >= 0
            and key & 0xFF in INFO
            and key & 0xFF != OpCode.CNP
            and (key & 0xFF in RESPONSES) == wants_response
            and self._is_near(newest, packet.bth.psn)
        }
        return near.pop() if len(near) == 1 else None

    def msn(self, dest_qp: int) -> int:
        """The last MSN sent to a queue pair; 0 without any."""
        newest = self._newest
        keys = (dest_qp << 8 | opcode for opcode in _BEGIN_WITH_AETH)
        known = [newest[key] for key in keys if key in newest]
        if not known:
            return 0
        first = known[0][0]
        return max(known, key=lambda each: psn.distance(first, each[0]))[1] & psn.MASK

    def _is_near(self, one: int, other: int) -> bool:
        distance = one - other & psn.MASK
        return min(distance, psn.MASK + 1 - distance) <= self.NEAR


class QueuePairAnswer:
    """Makes CNPs or NAKs.

    to_qp: their destination QP number; `None`: that of the frame's sender, from `partners` or
    the DETH. dscp: of the reply; `None`: that of the frame.
    """

    def __init__(
        self,
        partners: Partners,
        *,
        to_qp: int | None = None,
        dscp: int | None = None,
        code: str | None = None,
        timer: int | None = None,
    ) -> None:
        """code: `None` for a CNP; otherwise a NAK: the name of a `NakCode`, or "RNR_NAK".

        timer: code of an RNR NAK, by default 12 (0.64 ms). Raises `EncodeError`.
        """
        self._partners = partners
        partners.wanted = partners.wanted or to_qp is None or code is not None
        self._to_qp = _within("to_qp", to_qp, psn.MASK)
        self._dscp = _within("dscp", dscp, 63)
        self._syndrome = None if code is None else _syndrome(code, timer)

    def __call__(self, frame: Frame) -> Frame | None:
        """The reply to a frame."""
        try:
            packet = Packet.parse(frame, strict=False)
        except DecodeError:
            return None
        to_qp = self._to_qp
        if to_qp is None:
            deth = packet.extension(h.DETH)
            to_qp = self._partners.partner(packet) if deth is None else deth.src_qp
        route = _back(packet, self._dscp)
        if to_qp is None or route is None:
            return None
        if self._syndrome is None:
            return build(OpCode.CNP, route=route, pkey=packet.bth.pkey, dest_qp=to_qp, becn=1)
        return build(
            _acknowledge(packet),
            route=route,
            pkey=packet.bth.pkey,
            dest_qp=to_qp,
            psn=packet.bth.psn,
            syndrome=self._syndrome,
            msn=self._partners.msn(to_qp),
        )


class PFCAnswer:
    """Makes PFC frames, which pause or resume priorities of the neighbour that sent the frame.

    priorities: 0 to 7, one or several. quanta: duration in 512 bit times of the link; 0
    resumes. Raises `EncodeError`.
    """

    def __init__(self, priorities: int | Sequence[int], quanta: int = 0xFFFF) -> None:
        several = priorities if isinstance(priorities, Sequence) else (priorities,)
        if not several or isinstance(several, str):
            raise EncodeError("priorities", priorities, "one number from 0 to 7 or several")
        meant = {_within("priorities", each, 7) for each in several}
        time = _within("quanta", quanta, 0xFFFF) or 0
        pfc = outer.PFC(
            class_enable=sum(1 << each for each in meant if each is not None),
            time=tuple(time if each in meant else 0 for each in range(8)),
        )
        self._body = pfc.pack().ljust(_SMALLEST - outer.Ethernet.SIZE, b"\0")

    def __call__(self, frame: Frame) -> Frame | None:
        """The PFC frame to the sender of a frame; its source is the frame's destination."""
        if len(frame) < outer.Ethernet.SIZE:
            return None
        neighbour = outer.Ethernet.unpack(frame)
        ethernet = outer.Ethernet(
            dst=outer.MAC_CONTROL_ADDRESS, src=neighbour.dst, type=outer.EtherType.MAC_CONTROL
        )
        return ethernet.pack() + self._body


def _back(packet: Packet, dscp: int | None) -> RoCEv2Route | RoCEv1Route | None:
    """The route back to the sender of a packet, without invalid header values of it."""
    route = packet.route
    if not isinstance(route, RoCEv1Route | RoCEv2Route) or route.eth is None or route.prefix:
        return None
    eth = replace(route.eth, dst=route.eth.src, src=route.eth.dst)
    if isinstance(route, RoCEv1Route):
        grh = h.GRH(sgid=route.grh.dgid, dgid=route.grh.sgid, hop_lmt=_HOPS)
        return RoCEv1Route(grh, eth, route.vlans)
    ip = route.ip
    dscp = ip.dscp if dscp is None else dscp
    back: outer.IPv4 | outer.IPv6
    if isinstance(ip, outer.IPv4):
        back = outer.IPv4(src=ip.dst, dst=ip.src, dscp=dscp, ttl=_HOPS)
    else:
        back = outer.IPv6(src=ip.dst, dst=ip.src, dscp=dscp, hop_limit=_HOPS)
    udp = outer.UDP(src_port=route.udp.src_port, dst_port=outer.ROCEV2_PORT)
    return RoCEv2Route(back, udp, eth, route.vlans)


def _acknowledge(packet: Packet) -> int:
    """The opcode of an acknowledgement in the service of a packet."""
    info = INFO.get(packet.bth.opcode)
    return OpCode.XRC_ACKNOWLEDGE if info and info.service is Service.XRC else OpCode.RC_ACKNOWLEDGE


def _syndrome(code: object, timer: object) -> int:
    if code == AckKind.RNR_NAK.name:
        number = _within("timer", timer, 31)
        return AckKind.RNR_NAK << 5 | (_DEFAULT_TIMER if number is None else number)
    if not isinstance(code, str) or code not in NakCode.__members__:
        names = ", ".join([*NakCode.__members__, AckKind.RNR_NAK.name])
        raise EncodeError("code", code, f"one of {names}")
    if timer is not None:
        raise EncodeError("timer", timer, f"none: only an {AckKind.RNR_NAK.name} has one")
    return AckKind.NAK << 5 | NakCode[code]


def _within(field: str, value: object, high: int) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= high:
        raise EncodeError(field, value, f"an integer 0 to {high}")
    return value


_BEGIN_WITH_AETH = [code for code, info in INFO.items() if info.headers[:1] == (h.AETH,)]
_DEFAULT_TIMER = 12
"""0.64 ms (IBA 9.7.5.2.4), as in scenarios."""
_HOPS = 64
"""Hop limit of a reply, as rxe sends it (captures/rc-pingpong.pcap)."""
_SMALLEST = 60
"""Bytes of the smallest Ethernet frame, without FCS (IEEE 802.3 4.4.2)."""
