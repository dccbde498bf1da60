"""A recorded exchange as the device under test: does it satisfy a script?

The packets of one connection are taken as the device received and sent them. `<` lines are
patterns for the next packet that it received, `>` lines for the next that it sent; both keep
their own order, since a recording does not show in which one the device saw them. Verbs are
passed over: a recording has no application. A script may begin at any packet, and the first
place where all of it fits counts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ibwire.base.errors import CaptureError, DecodeError
from ibwire.base.node import Frame
from ibwire.base.units import NS, Time
from ibwire.capture import open_capture
from ibwire.drill.language.expressions import Scope
from ibwire.drill.language.literals import Literal
from ibwire.drill.language.steps import Case, Impair, Say, Script, Step, Verb
from ibwire.drill.packets import Wire, differences
from ibwire.drill.runner import carry_out
from ibwire.drill.targets.target import LONGEST, Damage, Unable
from ibwire.drill.verdict import Failure, Verdict
from ibwire.rc.device import gid_of
from ibwire_layers import headers as h
from ibwire_layers.opcodes import INFO, Payload, Service
from ibwire_layers.outer import LinkType
from ibwire_layers.packet import CrcStatus, Packet, RoCEv2Route

MAXIMUM_PACKETS = 20_000
"""Packets of a connection: a script is tried at each of them."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A packet of the connection."""

    time: Time
    """From the first one on."""
    frame: Frame
    packet: Packet
    is_received: bool
    """By the device."""


class Exchange:
    """The packets of one connection of the device, in the order of the capture."""

    def __init__(self, packets: Sequence[Recorded], qpn: int, peer_qpn: int) -> None:
        self.packets = packets
        self.qpn = qpn
        self.peer_qpn = peer_qpn
        self.mtu = _mtu(packets)
        self.received = [i for i, each in enumerate(packets) if each.is_received]
        self.sent = [i for i, each in enumerate(packets) if not each.is_received]
        self.requests = [i for i in self.received if _is_request(packets[i])]
        self.own_requests = [i for i in self.sent if _is_request(packets[i])]
        self.addressed = [i for i in self.received if packets[i].packet.extension(h.RETH)]
        """Where the device was told an address."""


def read_exchange(path: str, device: str, qpn: int | None = None) -> Exchange:
    """The connection of a device in a capture; `qpn` says which of several.

    device: its address. Raises `CaptureError` for a file that cannot be read and for one
    that does not hold exactly one such connection.
    """
    own = gid_of(device)
    found: list[Recorded] = []
    start: int | None = None
    with open_capture(path) as reader:
        for record in reader.records():
            packet = _packet(record.data, record.link_type)
            if packet is None:
                continue
            assert isinstance(packet.route, RoCEv2Route)
            source, destination = packet.route.ip.src, packet.route.ip.dst
            low = own if own >> 32 != 0xFFFF else own & 0xFFFFFFFF
            if low not in (source, destination):
                continue
            start = record.time_ns if start is None else start
            time = max(record.time_ns - start, 0) * NS
            if destination == low and packet.icrc_status() is CrcStatus.BAD:
                continue  # damaged on the way: the device has not received it
            found.append(Recorded(time, record.data, packet, destination == low))
            if len(found) > MAXIMUM_PACKETS:
                reason = f"more than {MAXIMUM_PACKETS} RDMA packets of {device}: cut the capture"
                raise CaptureError(path, None, reason)
    received = {each.packet.bth.dest_qp for each in found if each.is_received}
    if not received:
        reason = f"no RoCEv2 packet of a connection for {device} on Ethernet"
        raise CaptureError(path, None, reason)
    if qpn is None and len(received) > 1:
        listed = ", ".join(map(hex, sorted(received)[:_MOST_LISTED]))
        reason = f"which queue pair of {device}? it has packets for {listed}"
        raise CaptureError(path, None, reason)
    own_qpn = received.pop() if qpn is None else qpn
    if qpn is not None and qpn not in received:
        raise CaptureError(path, None, f"no packet for queue pair {qpn:#x} of {device}")
    peers = {
        each.packet.bth.dest_qp
        for each in found
        if not each.is_received and each.packet.icrc_status() is not CrcStatus.BAD
    }
    if len(peers) > 1:
        raise CaptureError(
            path, None, f"{device} answers {len(peers)} queue pairs: cut the capture"
        )
    kept = [each for each in found if not each.is_received or each.packet.bth.dest_qp == own_qpn]
    return Exchange(kept, own_qpn, peers.pop() if peers else 0)


def judge(script: Script, case: Case, exchange: Exchange, profile: str = "spec") -> Verdict:
    """Whether a case of a script, parsed as `recorded`, fits somewhere in the exchange.

    If not, the verdict is that of the place where most of it did.
    """
    steps = [step for step in case.steps if not isinstance(step, Verb)]
    if not steps:
        verdict = Verdict(script.path, case.name, script.rule, script.section, profile)
        verdict.skipped = "says nothing of packets, and a recording has nothing else"
        return verdict
    best: Verdict | None = None
    for start in _starts(steps, exchange):
        verdict = Verdict(script.path, case.name, script.rule, script.section, profile)
        carry_out(script, steps, _Recording(exchange, start), verdict, None, Scope(script.path, {}))
        if verdict.passed:
            return verdict
        if best is None or _matched(verdict) > _matched(best):
            best = verdict
    if best is None:
        best = Verdict(script.path, case.name, script.rule, script.section, profile)
        best.failure = Failure(steps[0].line, "a packet", "nothing: the recording has none")
    return best


class _Recording:
    """The rest of an exchange, as a target."""

    is_recorded = True
    slack: Time = 0
    end = LONGEST

    def __init__(self, exchange: Exchange, start: int) -> None:
        packets = exchange.packets
        self._exchange = exchange
        self._received = bisect_left(exchange.received, start)
        self._sent = bisect_left(exchange.sent, start)
        self.heard: deque[tuple[Time, Frame]] = deque()
        self.now: Time = packets[start].time
        named = _next(exchange.addressed, start, packets)
        reth = named.packet.extension(h.RETH) if named else None
        requests = (exchange.requests, exchange.own_requests)
        first, own = (_next(each, start, packets) for each in requests)
        self.wire = Wire(
            packets[start].packet.route,
            *(exchange.qpn, exchange.peer_qpn, packets[start].packet.bth.pkey, exchange.mtu),
            first.packet.bth.psn if first else 0,
            own.packet.bth.psn if own else 0,
            *((reth.va, reth.rkey) if reth else (0, 0)),
        )

    @property
    def symbols(self) -> dict[str, int]:
        """What the names in a script stand for; of memory what the first RETH says."""
        wire = self.wire
        return {
            "rq_psn": wire.rq_psn,
            "sq_psn": wire.sq_psn,
            "qpn": wire.qpn,
            "peer_qpn": wire.peer_qpn,
            "mtu": wire.mtu,
            "pkey": wire.pkey,
            "va": wire.va,
            "rkey": wire.rkey,
        }

    def say(self, literal: Literal, scope: Scope) -> tuple[Time, Frame | None, list[str]]:
        """The next packet that the device received, which may be older than what it sent last."""
        received = self._exchange.received
        if self._received == len(received):
            return self.now, None, []
        each = self._exchange.packets[received[self._received]]
        self._received += 1
        self.now = max(self.now, each.time)
        problems = differences(literal, each.packet, self.wire, scope, from_device=False)
        return each.time, each.frame, problems

    def settle(self) -> None:
        """What was sent by now is heard."""
        while (each := self._next_sent()) is not None and each.time <= self.now:
            self._sent += 1
            self.heard.append((each.time, each.frame))

    def deliver(self) -> None:
        """It has it already."""

    def advance(self, until: Time, stop: Callable[[], bool]) -> None:
        """Let the recording go on, to its end at most: of later nothing is known."""
        self.settle()
        while not stop():
            each = self._next_sent()
            if each is None or each.time > until:
                self.now = max(self.now, min(until, self._exchange.packets[-1].time))
                return
            self.now = max(self.now, each.time)
            self.settle()

    def impair(self, step: Impair, scope: Scope) -> None:
        """It is too late for that."""
        raise Unable("needs packets that are on their way: those of a recording have arrived")

    def poll_damage(self) -> Damage | None:
        """Nobody does anything."""
        return None

    def _next_sent(self) -> Recorded | None:
        sent = self._exchange.sent
        return self._exchange.packets[sent[self._sent]] if self._sent < len(sent) else None


def _packet(frame: Frame, link_type: int) -> Packet | None:
    """A RoCEv2 packet of a reliable connection, `None` for everything else."""
    if link_type != LinkType.ETHERNET:
        return None
    try:
        packet = Packet.parse(frame, link_type)
    except DecodeError:
        return None
    info = INFO.get(packet.bth.opcode)
    is_ours = info is None or info.service in (Service.RC, Service.CNP)
    return packet if is_ours and isinstance(packet.route, RoCEv2Route) else None


def _starts(steps: Sequence[Step], exchange: Exchange) -> Sequence[int]:
    """Packets at which a script may begin: those that go the way of its first step."""
    return exchange.received if isinstance(steps[0], Say) else exchange.sent


def _next(indices: Sequence[int], start: int, packets: Sequence[Recorded]) -> Recorded | None:
    """The first of these packets that does not come before `start`."""
    at = bisect_left(indices, start)
    return packets[indices[at]] if at < len(indices) else None


def _is_request(each: Recorded) -> bool:
    info = INFO.get(each.packet.bth.opcode)
    return info is not None and not info.is_response and info.service is Service.RC


def _mtu(packets: Sequence[Recorded]) -> int:
    """The path MTU: what packets in the middle of messages have, else the largest there is."""
    for each in packets:
        info = INFO.get(each.packet.bth.opcode)
        if info is not None and info.payload is Payload.PMTU:
            return len(each.packet.payload)
    return 4096


def _matched(verdict: Verdict) -> int:
    """How far a script came."""
    return sum(entry.is_expected for entry in verdict.entries)


_MOST_LISTED = 8
