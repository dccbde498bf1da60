"""Conversations captured at a point of the path, and what became of every frame.

A `Scenario` says what is posted, when receives come, and what happens to which frame before and
after the point of capture. `Truth` carries it out in the emulator: `frames` is the capture, and
`sent` holds for each frame where it was lost, damaged, duplicated or delayed, and what its
receiver did with it. Nothing in here is inferred from the capture.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from connections.handshake_frames import (
    PREAMBLE,
    REP,
    REQ,
    Talk,
    back,
    datagram,
    perftest,
    pingpong,
)
from ibwire.base.node import OPEN, Frame, Grant
from ibwire.base.units import ETHERNET_OVERHEAD, GBPS, MS, US, S, Time
from ibwire.connections.identity import KEEP
from ibwire.connections.opcode_sets import ACKNOWLEDGE, RESPONSES
from ibwire.fabric.sim import Simulator
from ibwire.rc.attributes import MTU_CODES, QPType
from ibwire.rc.connect import connect
from ibwire.rc.profile import PROFILES
from ibwire.rc.qp import QPInit
from ibwire.rc.work import SendWR, WROpcode
from ibwire.testing import End
from ibwire_layers.headers import AETH, RETH
from ibwire_layers.packet import Packet
from ibwire_layers.psn import HALF, MASK
from strategies import ROUTE4

EPOCH_NS = 1_700_000_000 * 10**9
ATOMICS = WROpcode.ATOMIC_CMP_AND_SWP, WROpcode.ATOMIC_FETCH_AND_ADD
TAKES_RECEIVE = WROpcode.SEND, WROpcode.SEND_WITH_IMM, WROpcode.RDMA_WRITE_WITH_IMM
READ_REQUEST = 0x0C
MEMORY = 1 << 16


class Harm(StrEnum):
    """What happens to a frame."""

    DROP = "drop"
    DAMAGE = "damage"
    DELAY = "delay"
    DUPLICATE = "duplicate"


@dataclass(frozen=True, slots=True)
class Fault:
    """Harm to one frame on one side of the point of capture."""

    sender: str
    number: int
    """Among the frames of the sender, from 1."""
    harm: Harm
    is_before: bool
    """Between the sender and the point of capture."""
    delay: Time = 0
    """Of DELAY, and of the second copy of DUPLICATE."""


@dataclass(frozen=True, slots=True)
class Work:
    """A work request, posted some time after the one before."""

    opcode: WROpcode
    length: int = 0
    after: Time = 0


@dataclass(frozen=True, slots=True)
class Scenario:
    """A conversation and its faults."""

    works: tuple[Work, ...]
    back: tuple[Work, ...] = ()
    """Of the other end."""
    faults: tuple[Fault, ...] = ()
    receives: tuple[tuple[Time, int], ...] = ((0, 100),)
    """When how many receive requests are posted, at both ends."""
    profiles: tuple[str, str] = ("rxe", "rxe")
    psns: tuple[int, int] = (100, 7000)
    mtu: int = 256
    rate_bps: int = 10 * GBPS
    delay: Time = 5 * US
    """From one end to the other; the point of capture is in the middle."""
    timeout: int = 14
    retry_cnt: int = 7
    rnr_retry: int = 7
    min_rnr_timer: int = 12
    handshake: str = "cm"
    """What the capture begins with: the messages of the connection manager (`cm`), the exchange of
    `perftest` or `pingpong` over TCP, or nothing."""


class Outcome(StrEnum):
    """What the receiver did with a packet that arrived."""

    TAKEN = "taken"
    """A request: it was the expected one."""
    DUPLICATE = "duplicate"
    """A request that had been taken before."""
    DISCARDED = "discarded"
    """A request beyond the expected one (go-back-N)."""
    REFUSED = "refused"
    """A request that was the expected one and was not taken (RNR, a fatal NAK)."""
    USED = "used"
    """A response that brought the requester further."""
    UNUSED = "unused"
    """A response that changed nothing: known already, or an earlier one was missing."""
    DAMAGED = "damaged"


@dataclass(slots=True)
class Sent:
    """A frame that an end sent."""

    sender: str
    number: int
    """Among the frames of its sender, from 1."""
    time: Time
    packet: Packet
    psn: int
    """Not wrapped."""
    span: int
    """PSNs that it takes."""
    is_response: bool
    harms_before: list[Harm] = field(default_factory=list)
    harms_after: list[Harm] = field(default_factory=list)
    captured: list[int] = field(default_factory=list)
    """Numbers of the frames in the capture."""
    arrived: list[tuple[Time, Outcome]] = field(default_factory=list)
    is_again: bool = False
    """Its sender had sent the same before."""
    cause: str = ""
    """Why its sender had gone back most recently: `timer`, `nak`, `implied_nak`, `rnr`."""

    @property
    def is_lost_before(self) -> bool:
        return Harm.DROP in self.harms_before

    @property
    def is_damaged_before(self) -> bool:
        return Harm.DAMAGE in self.harms_before and not self.is_lost_before

    @property
    def is_lost_after(self) -> bool:
        return not self.is_lost_before and Harm.DROP in self.harms_after

    @property
    def is_damaged_after(self) -> bool:
        passed = not self.is_lost_before and not self.is_damaged_before
        return passed and Harm.DAMAGE in self.harms_after and Harm.DROP not in self.harms_after

    @property
    def was_taken(self) -> bool:
        """A request that its receiver took, with one of its copies."""
        return any(outcome is Outcome.TAKEN for _, outcome in self.arrived)

    @property
    def syndrome(self) -> int | None:
        found = self.packet.extension(AETH)
        return None if found is None else found.syndrome

    def __str__(self) -> str:
        what = f"{self.sender}{self.number} {self.packet.opcode_name} {self.psn & MASK}"
        if self.syndrome is not None and self.syndrome >= 0x20:
            what += f" {'RNR ' if self.syndrome < 0x40 else ''}NAK {self.syndrome:02x}"
        before = ",".join(self.harms_before)
        after = ",".join(self.harms_after)
        frames = ",".join(f"#{each}" for each in self.captured)
        came = ",".join(outcome for _, outcome in self.arrived) + f" {self.cause}"
        return f"{self.time // 1000:>12} {what} [{before}] {frames} [{after}] {came}"


class Marked(bytes):
    """A frame that knows which one it is."""

    sent: Sent


class Truth:
    """A scenario that has been carried out."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.sent: list[Sent] = []
        self.frames: list[tuple[int, bytes]] = []
        """The capture: nanoseconds and bytes."""
        self.by_number: dict[int, Sent] = {}
        """What each frame of the capture is; without the handshake."""
        self.was_copied: dict[int, int] = {}
        """Frames that are second copies made before the point of capture, and their firsts."""
        self._counts: Counter[str] = Counter()
        self._captured: list[tuple[Time, int, Marked]] = []
        self._newest: dict[tuple[str, bool], int] = {}
        self.ends = {name: self._end(name) for name in ("a", "b")}
        self._connect()
        self.sim = Simulator()
        self.stations = {name: _Station(name, self) for name in ("a", "b")}
        self.sim.connect(
            self.stations["a"],
            self.stations["b"],
            rate_bps=scenario.rate_bps,
            delay=scenario.delay,
            a_to_b=self._stage("a"),
            b_to_a=self._stage("b"),
        )
        self._carry_out()
        self._write()

    def __str__(self) -> str:
        return "\n".join(str(each) for each in self.sent)

    @property
    def is_late_beyond_count(self) -> bool:
        """Whether a frame is captured so late that it counts as lost, after `KEEP` packets."""
        return any(
            Harm.DELAY in each.harms_before
            and each.captured
            and sum(
                e.time > each.time and bool(e.captured) and e.captured[0] < each.captured[0]
                for e in self.sent
            )
            > KEEP // 2
            for each in self.sent
        )

    # How it goes.

    def _end(self, name: str) -> End:
        scenario = self.scenario
        profile = PROFILES[scenario.profiles[name == "b"]]
        address, key = ("10.0.0.1", 10) if name == "a" else ("10.0.0.2", 20)
        end = End(name, address, key_start=key, profile=profile, size=MEMORY)
        if name == "b":  # else both queue pairs had the same number
            parts = QPInit(QPType.RC, end.pd, end.send_cq, end.recv_cq, cap=replace(end.qp.cap))
            end.qp = end.device.create_qp(parts, number=0xABCDEF)
        return end

    def _connect(self) -> None:
        scenario = self.scenario
        connect(
            self.ends["a"].qp,
            self.ends["b"].qp,
            psn_a=scenario.psns[0],
            psn_b=scenario.psns[1],
            mtu=scenario.mtu,
            timeout=scenario.timeout,
            retry_cnt=scenario.retry_cnt,
            rnr_retry=scenario.rnr_retry,
            min_rnr_timer=scenario.min_rnr_timer,
        )

    def _carry_out(self) -> None:
        scenario = self.scenario
        timeline: list[tuple[Time, int, Callable[[], None]]] = []
        for requester, peer, works in (("a", "b", scenario.works), ("b", "a", scenario.back)):
            time = 1 * US
            for work in works:
                time += work.after
                post = self._post(self.ends[requester], self.ends[peer], work)
                timeline.append((time, len(timeline), post))
        for time, count in scenario.receives:
            for end in self.ends.values():
                for _ in range(count):
                    timeline.append((time, len(timeline), self._receive(end)))
        for time, _, do in sorted(timeline, key=lambda each: each[:2]):
            if time > self.sim.now:
                self.sim.run(until=time, max_frames=5000)
            do()
        self.sim.run(until=self.sim.now + 100 * S, max_frames=5000)

    @staticmethod
    def _receive(end: End) -> Callable[[], None]:
        return lambda: end.post_recv(1 << 14)

    @staticmethod
    def _post(end: End, peer: End, work: Work) -> Callable[[], None]:
        length = 8 if work.opcode in ATOMICS else work.length
        sges = [end.sge(0, length)] if length else []
        wr = SendWR(work.opcode, sges, 2, 0, remote_addr=peer.mr.iova, rkey=peer.mr.rkey)
        return lambda: end.qp.post_send(wr)

    def _stage(self, sender: str) -> Callable[[Frame, Time], list[tuple[Time, Frame]]]:
        faults = [each for each in self.scenario.faults if each.sender == sender]
        half = self.scenario.delay // 2

        def pass_on(frame: Frame, now: Time) -> list[tuple[Time, Frame]]:
            self._counts[sender] += 1
            number = self._counts[sender]
            sent = self._note(sender, number, bytes(frame), now)
            mine = [each for each in faults if each.number == number]
            copies = _harmed([(0, bytes(frame))], [e for e in mine if e.is_before], sent)
            arriving: list[tuple[Time, Frame]] = []
            for nth, (extra, data) in enumerate(copies):
                marked = Marked(data)
                marked.sent = sent
                at = now + self._length(frame) + half + extra
                self._captured.append((at, len(self._captured), marked))
                behind = [each for each in mine if not each.is_before] if not nth else []
                for more, harmed in _harmed([(0, data)], behind, sent):
                    final = Marked(harmed)
                    final.sent = sent
                    arriving.append((extra + more, final))
            return arriving

        return pass_on

    def _length(self, frame: Frame) -> Time:
        """How long a frame takes: it passes the point of capture when it has passed in full."""
        return 8 * S * (len(frame) + ETHERNET_OVERHEAD) // self.scenario.rate_bps

    def _note(self, sender: str, number: int, frame: bytes, now: Time) -> Sent:
        packet = Packet.parse(frame)
        is_response = int(packet.bth.opcode) in RESPONSES
        requester = sender if not is_response else ("b" if sender == "a" else "a")
        first = self.scenario.psns[requester == "b"]
        near = self._newest.get((requester, False), first)
        psn = near + (packet.bth.psn - near + HALF & MASK) - HALF
        reth = packet.extension(RETH) if packet.bth.opcode == READ_REQUEST else None
        span = max(1, -(-reth.dma_len // self.scenario.mtu)) if reth else 1
        if not is_response:
            self._newest[requester, False] = max(near, psn + span)
        sent = Sent(sender, number, now, packet, psn, span, is_response)
        if not is_response:
            sent.is_again, sent.cause = psn < near, self.stations[sender].cause
        elif packet.bth.opcode not in ACKNOWLEDGE:
            answered = self._newest.get((sender, True), self.scenario.psns[requester == "b"])
            sent.is_again = psn < answered
            self._newest[sender, True] = max(answered, psn + 1)
        self.sent.append(sent)
        return sent

    def _write(self) -> None:
        for frame in self._handshake():
            self.frames.append((EPOCH_NS - 10**6, frame))
        for at, _, marked in sorted(self._captured, key=lambda each: each[:2]):
            self.frames.append((EPOCH_NS + at // 1000, bytes(marked)))
            number = len(self.frames)
            self.by_number[number] = marked.sent
            if marked.sent.captured:
                self.was_copied[number] = marked.sent.captured[0]
            marked.sent.captured.append(number)

    def _handshake(self) -> list[bytes]:
        """The frames in which both ends name their queue pairs and first PSNs."""
        a, b = self.ends["a"].qp.number, self.ends["b"].qp.number
        psn_a, psn_b = (psn & MASK for psn in self.scenario.psns)
        mtu = self.scenario.mtu
        match self.scenario.handshake:
            case "cm":
                # Each side names the PSN that it wants to receive first (Linux `cm_req_handler`).
                req = replace(REQ, local_qpn=a, starting_psn=psn_b)
                req = replace(req, path_packet_payload_mtu=MTU_CODES[mtu])
                rep = replace(REP, local_qpn=b, starting_psn=psn_a)
                return [datagram(req), datagram(rep, back(ROUTE4))]
            case "pingpong":
                talk = Talk().begin().say(0, pingpong(a, psn_a)).say(1, pingpong(b, psn_b))
                return talk.frames
            case "perftest":
                talk = Talk().begin()
                for text in (*PREAMBLE, b"%d\0" % MTU_CODES[mtu]):
                    talk.say(0, text).say(1, text)
                talk.say(0, perftest(a, psn_a)).say(1, perftest(b, psn_b))
                return talk.frames
        return []


class _Station:
    """A device as its cable sees it."""

    def __init__(self, name: str, truth: Truth) -> None:
        self.name = name
        self._qp = truth.ends[name].qp
        self._device = truth.ends[name].device
        self.cause = ""

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        assert isinstance(frame, Marked)
        sent = frame.sent
        responder = self._qp.responder
        expected, progress = responder.epsn, self._progress()
        ahead = (sent.psn - expected + HALF & MASK) - HALF
        self._watch(lambda: self._device.receive(bytes(frame), now, port))
        if frame != sent.packet.build():
            outcome = Outcome.DAMAGED
        elif sent.is_response:
            is_used = self._progress() != progress or self._is_refusal(sent)
            outcome = Outcome.USED if is_used else Outcome.UNUSED
        elif ahead > 0:
            outcome = Outcome.DISCARDED
        elif ahead < 0:
            outcome = Outcome.DUPLICATE
        else:
            outcome = Outcome.TAKEN if responder.epsn != expected else Outcome.REFUSED
        sent.arrived.append((now, outcome))

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | None:
        return self._device.poll_transmit(now, port, grant)

    def poll_timeout(self) -> Time | None:
        return self._device.poll_timeout()

    def handle_timeout(self, now: Time) -> None:
        self._watch(lambda: self._device.handle_timeout(now))

    @staticmethod
    def _is_refusal(sent: Sent) -> bool:
        return sent.syndrome is not None and sent.syndrome >= 0x20

    def _progress(self) -> tuple[int, int]:
        sends = self._qp.sends
        return sends.una, sum(wqe.received for wqe in sends.wqes)

    def _watch(self, event: Callable[[], None]) -> None:
        """Let something happen, and note why the requester goes back."""
        qp = self._qp
        before, waits = replace(qp.counters), qp.sends.timers.rnr is not None
        event()
        after = qp.counters
        if after.timeouts > before.timeouts:
            self.cause = "timer"
        elif waits and qp.sends.timers.rnr is None:
            self.cause = "rnr"
        elif after.implied_naks > before.implied_naks:
            self.cause = "implied_nak"
        elif after.sequence_naks_received > before.sequence_naks_received:
            self.cause = "nak"


def _harmed(
    copies: list[tuple[Time, bytes]], faults: list[Fault], sent: Sent
) -> list[tuple[Time, bytes]]:
    """A frame after one half of the path: its copies with their delays."""
    for fault in faults:
        (sent.harms_before if fault.is_before else sent.harms_after).append(fault.harm)
        match fault.harm:
            case Harm.DROP:
                return []
            case Harm.DAMAGE:
                # The last byte of the payload, or of the ICRC: no address or number.
                bit = 1 << len(sent.harms_before + sent.harms_after) % 8
                at = -5 if sent.packet.payload else -1
                copies = [(delay, _flipped(data, at, bit)) for delay, data in copies]
            case Harm.DELAY:
                copies = [(delay + fault.delay, data) for delay, data in copies]
            case Harm.DUPLICATE:
                copies = [*copies, (copies[0][0] + fault.delay, copies[0][1])]
    return copies


def _flipped(data: bytes, at: int, bit: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= bit
    return bytes(changed)


# Random scenarios.

VERBS = (
    WROpcode.SEND,
    WROpcode.RDMA_WRITE,
    WROpcode.RDMA_READ,
    WROpcode.ATOMIC_FETCH_AND_ADD,
    WROpcode.RDMA_WRITE_WITH_IMM,
)


def random_scenario(seed: int, *, point: str | None = None) -> Scenario:
    """A scenario with a few faults; point: all faults are `before` or `after` it, or `both`."""
    rng = random.Random(seed)
    mtu = rng.choice((256, 256, 1024))
    verbs = rng.choice((VERBS, VERBS, VERBS[:2], VERBS[2:3], VERBS[2:4], VERBS[:1]))
    works = _works(rng, verbs, mtu, rng.randrange(3, 25))
    others = _works(rng, verbs, mtu, rng.randrange(1, 10)) if rng.random() < 0.2 else ()
    handshake = rng.choice(("cm", "cm", "pingpong", "perftest", ""))
    if handshake in ("pingpong", ""):  # else how many PSNs a READ takes is not known
        works = (Work(WROpcode.RDMA_WRITE, 2 * mtu), *works)
    profile = rng.choice(("rxe", "connectx", "spec"))
    point = point or rng.choice(("before", "after", "both"))
    harms = rng.choice((tuple(Harm), tuple(Harm), (Harm.DROP,), (Harm.DELAY,), (Harm.DAMAGE,)))
    senders = rng.choice(("ab", "a", "b"))
    last = rng.choice((3, 20, 60))
    faults = []
    for _ in range(rng.randrange(1, 6)):
        is_before = rng.random() < 0.5 if point == "both" else point == "before"
        fault = Fault(
            rng.choice(senders),
            rng.randrange(1, last + 1),
            rng.choice(harms),
            is_before,
            rng.choice((2, 5, 20, 100, 700)) * US,
        )
        faults.append(fault)
    receives: tuple[tuple[Time, int], ...] = ((0, 100),)
    if rng.random() < 0.25:
        at_once = rng.randrange(0, 4)
        receives = ((0, at_once), (rng.choice((50 * US, 2 * MS, 30 * MS)), 100))
    return Scenario(
        works,
        others,
        tuple(faults),
        receives,
        (profile, profile),
        (rng.choice((100, 100, 0xFFFFFA)), 7000),
        mtu,
        rng.choice((1, 10, 100)) * GBPS,
        rng.choice((1, 10, 40)) * US,
        timeout=rng.choice((12, 14, 16)),
        min_rnr_timer=rng.choice((1, 12, 14)),
        handshake=handshake,
    )


def _works(
    rng: random.Random, verbs: tuple[WROpcode, ...], mtu: int, count: int
) -> tuple[Work, ...]:
    pauses = rng.choice(((0,), (0, 0, 5 * US, 100 * US), (200 * US,), (0, 3 * MS)))
    sizes = 0, 8, mtu, 3 * mtu, 7 * mtu + 1
    return tuple(
        Work(rng.choice(verbs), rng.choice(sizes), rng.choice(pauses)) for _ in range(count)
    )
