"""Frames that a rule makes as if the receiver, or a switch, had answered: CNP, NAK, PFC.

An answer goes to where the frame came from, so it leaves by the other direction; the
frame itself passes. An acknowledgement names the queue pair that asked, and a packet of a
reliable connection does not say which one sent it: a rule names it, or it is known by
what goes the other way.
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
"""Makes the answer to a frame; `None` when it cannot."""

Send = Callable[[Frame | None], None]
"""Takes answers; `None` stands for one that could not be made."""


class Answer:
    """Frames are answered, and pass."""

    def __init__(self, pick: Pick, make: Make, send: Send) -> None:
        self.pick = pick
        self.hits = 0
        """Frames that were answered."""
        self.unanswered = 0
        """Frames that were meant and for which there was no answer: they are no RoCE packets,
        or it is not known which queue pair sent them."""
        self._make = make
        self._send = send

    def __call__(self, frame: Frame, now: Time) -> Passing:
        """The frame; its answer goes to `send`."""
        if self.pick(frame, now):
            answer = self._make(frame)
            if answer is None:
                self.unanswered += 1
            else:
                self.hits += 1
            self._send(answer)
        return ((0, frame),)


class Answering(NamedTuple):
    """What rules that answer need."""

    send: Send
    partners: Partners


class Partners:
    """The newest PSN of every sequence that goes one way: what goes the other way belongs to it.

    A response carries the PSN of the request that it answers. So of two queue pairs whose
    packets go opposite ways and have nearly the same PSN, one asks and the other answers.
    """

    LIMIT = 1 << 16
    """Queue pairs and opcodes that are remembered; they are all forgotten then."""
    NEAR = 4096
    """PSNs that may be between a packet and the newest one of the other direction."""

    def __init__(self) -> None:
        self.wanted = False
        """Whether an answer depends on it."""
        self._newest: dict[int, tuple[int, int]] = {}
        """PSN, and what is behind the BTH, by destination QPN times 256 plus opcode."""

    def see(self, columns: Columns) -> None:
        """Packets have passed."""
        if len(self._newest) > self.LIMIT:
            self._newest.clear()
        self._newest.update(
            zip(columns.keys, zip(columns.psns, columns.behind, strict=True), strict=True)
        )

    def partner(self, packet: Packet) -> int | None:
        """The queue pair that sent a packet of the other direction; `None` when it is not sure."""
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
        """The MSN that a queue pair was told last, 0 when none was."""
        newest = self._newest
        keys = (dest_qp << 8 | opcode for opcode in _BEGIN_WITH_AETH)
        told = [newest[key] for key in keys if key in newest]
        if not told:
            return 0
        first = told[0][0]
        return max(told, key=lambda each: psn.distance(first, each[0]))[1] & psn.MASK

    def _is_near(self, one: int, other: int) -> bool:
        distance = one - other & psn.MASK
        return min(distance, psn.MASK + 1 - distance) <= self.NEAR


class QueuePairAnswer:
    """Makes CNPs or NAKs.

    to_qp: the queue pair they go to; `None`: the one that sent the frame, as `partners` or
    the frame itself says. dscp: of the answer; `None`: that of the frame.
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
        """A CNP when `code` is `None`; else a NAK: the name of a `NakCode`, or "RNR_NAK".

        timer: of an RNR NAK, its code, 12 (0.64 ms) when nothing is said. Raises `EncodeError`.
        """
        self._partners = partners
        partners.wanted = partners.wanted or to_qp is None or code is not None
        self._to_qp = _within("to_qp", to_qp, psn.MASK)
        self._dscp = _within("dscp", dscp, 63)
        self._syndrome = None if code is None else _syndrome(code, timer)

    def __call__(self, frame: Frame) -> Frame | None:
        """The answer to a frame."""
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
    """Makes PFC frames, which stop or resume priorities of the frame's last sender.

    priorities: 0 to 7, one or several. quanta: how long, in 512 bit times of the link; 0
    lets them go on. Raises `EncodeError`.
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
        """The PFC frame for whoever sent a frame: it comes from where the frame went."""
        if len(frame) < outer.Ethernet.SIZE:
            return None
        neighbour = outer.Ethernet.unpack(frame)
        ethernet = outer.Ethernet(
            dst=outer.MAC_CONTROL_ADDRESS, src=neighbour.dst, type=outer.EtherType.MAC_CONTROL
        )
        return ethernet.pack() + self._body


def _back(packet: Packet, dscp: int | None) -> RoCEv2Route | RoCEv1Route | None:
    """The route back to the sender of a packet; nothing odd in its headers is repeated."""
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
        return AckKind.RNR_NAK << 5 | (_USUAL_TIMER if number is None else number)
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
_USUAL_TIMER = 12
"""0.64 ms (IBA 9.7.5.2.4): what scenarios have too."""
_HOPS = 64
"""Hops of an answer: those that rxe gives its packets (captures/rc-pingpong.pcap)."""
_SMALLEST = 60
"""Bytes of the smallest Ethernet frame, without FCS (IEEE 802.3 4.4.2)."""
