"""Two devices, a wire, and one connection between them: the workhorse of the transport tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ibwire.base.node import Frame
from ibwire.base.units import GBPS, US, S, Time
from ibwire.fabric.sim import Simulator
from ibwire.rc.attributes import EventType, QPCap, QPType
from ibwire.rc.connect import ALL_ACCESS, connect
from ibwire.rc.device import Device
from ibwire.rc.profile import SPEC, Profile
from ibwire.rc.qp import QPInit, QueuePair
from ibwire.rc.work import SGE, WC, RecvWR, SendFlags, SendWR, WCStatus, WROpcode
from ibwire_layers.packet import Packet


class End:
    """One device with a queue pair, a completion queue for each half, and some memory."""

    def __init__(self, name: str, address: str, profile: Profile, size: int, **init: Any) -> None:
        self.device = Device(name, address, profile=profile, key_start=len(address) * 7)
        self.pd = self.device.alloc_pd()
        self.mr = self.pd.register(size, int(ALL_ACCESS))
        self.send_cq = self.device.create_cq(1 << 16)
        self.recv_cq = self.device.create_cq(1 << 16)
        init.setdefault("cap", QPCap(max_send_wr=4096, max_recv_wr=4096, max_inline_data=1024))
        init.setdefault("qp_type", QPType.RC)
        self.qp = self.device.create_qp(
            QPInit(pd=self.pd, send_cq=self.send_cq, recv_cq=self.recv_cq, **init)
        )

    def sge(self, offset: int, length: int) -> SGE:
        """A piece of the memory."""
        return SGE(self.mr.iova + offset, length, self.mr.lkey)

    def post_recv(self, length: int = 4096, offset: int = 0, wr_id: int = 0) -> None:
        """Post a receive request."""
        self.qp.post_recv(RecvWR([self.sge(offset, length)] if length else [], wr_id))


class Pair:
    """`a` sends, `b` answers, unless a test does it otherwise."""

    def __init__(
        self,
        *,
        profile: Profile = SPEC,
        peer_profile: Profile | None = None,
        size: int = 1 << 20,
        rate_bps: int = 100 * GBPS,
        delay: Time = 1 * US,
        init: dict[str, Any] | None = None,
        **attr: Any,
    ) -> None:
        init = init or {}
        self.a = End("a", "10.0.0.1", profile, size, **init)
        self.b = End("b", "10.0.0.22", peer_profile or profile, size, **init)
        connect(self.a.qp, self.b.qp, **attr)
        self.frames: list[tuple[Time, str, Packet]] = []
        """Every frame sent: time, sender, packet; also those that a fault then removes."""
        self.faults: list[Callable[[str, Packet, int], Any]] = []
        """Called with sender, packet and its number from that sender (from 1): `None` passes,
        `[]` drops, a list of (delay, frame) replaces."""
        self._counts = {"a": 0, "b": 0}
        self.sim = Simulator()
        self.sim.connect(
            self.a.device,
            self.b.device,
            rate_bps=rate_bps,
            delay=delay,
            a_to_b=self._stage("a"),
            b_to_a=self._stage("b"),
        )

    def _stage(self, sender: str) -> Callable[[Frame, Time], list[tuple[Time, Frame]]]:
        def stage(frame: Frame, now: Time) -> list[tuple[Time, Frame]]:
            packet = Packet.parse(frame)
            self._counts[sender] += 1
            self.frames.append((now, sender, packet))
            for fault in self.faults:
                result = fault(sender, packet, self._counts[sender])
                if result is not None:
                    return list(result)
            return [(0, frame)]

        return stage

    def drop(self, sender: str, *numbers: int) -> None:
        """Lose these frames of a sender, counted from 1."""
        self.faults.append(lambda who, packet, n: [] if who == sender and n in numbers else None)

    def drop_if(self, sender: str, condition: Callable[[Packet], bool]) -> None:
        """Lose what a condition is true of."""
        self.faults.append(lambda who, p, n: [] if who == sender and condition(p) else None)

    def post(
        self,
        opcode: WROpcode = WROpcode.SEND,
        length: int = 1024,
        *,
        offset: int = 0,
        remote: int = 0,
        wr_id: int = 0,
        flags: int = SendFlags.SIGNALED,
        **fields: Any,
    ) -> SendWR:
        """Post a send request at `a` whose remote address lies in the memory of `b`."""
        fields.setdefault("remote_addr", self.b.mr.iova + remote)
        fields.setdefault("rkey", self.b.mr.rkey)
        sges = [self.a.sge(offset, length)] if length else []
        wr = SendWR(opcode, sges, flags, wr_id, **fields)
        self.a.qp.post_send(wr)
        return wr

    def drive(self, until: Time | None = None) -> None:
        """Let everything happen, at most 100 virtual seconds."""
        self.sim.run(until=self.sim.now + (until or 100 * S))

    def sent(self, sender: str) -> list[Packet]:
        """The packets of one sender."""
        return [packet for _, who, packet in self.frames if who == sender]

    def names(self, sender: str) -> list[str]:
        """Their opcodes, without the service."""
        return [p.opcode_name.removeprefix("RC_") for p in self.sent(sender)]

    @property
    def completions(self) -> list[WC]:
        """Completions of the sends of `a` so far; taking them empties the queue."""
        return self.a.send_cq.poll(1 << 20)

    @property
    def received(self) -> list[WC]:
        """Completions of the receives of `b` so far; taking them empties the queue."""
        return self.b.recv_cq.poll(1 << 20)


def queue_pair(device: Device, **init: Any) -> QueuePair:
    """A queue pair with parts of its own."""
    init.setdefault("pd", device.alloc_pd())
    init.setdefault("send_cq", device.create_cq(256))
    init.setdefault("recv_cq", device.create_cq(256))
    init.setdefault("qp_type", QPType.RC)
    return device.create_qp(QPInit(**init))


def statuses(completions: list[WC]) -> list[tuple[int, WCStatus]]:
    return [(wc.wr_id, wc.status) for wc in completions]


def events(device: Device) -> list[EventType]:
    found = []
    while (event := device.poll_event()) is not None:
        found.append(event.event_type)
    return found


def put(end: End, data: bytes, offset: int = 0) -> bytes:
    end.mr.write(end.mr.iova + offset, data)
    return data
