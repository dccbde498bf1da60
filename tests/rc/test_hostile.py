"""Packets of an attacker: what they can never do to a device.

The device under attack has victims, queue pairs of every type and state, and one
healthy connection that carries verified data all the time. Its memory is pieces of
one array: around them, and in every region that the attacked domain gives no access to,
are `SECRET` bytes, which no attack may change or read.

The attacker knows everything: frames have correct checksums and are made from the live
state of the victims, because little else finds faults (reference/bugs#modified-duplicate).
"""

from __future__ import annotations

import struct
from dataclasses import replace
from random import Random
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import scaled
from ibwire.base.node import Frame
from ibwire.base.units import GBPS, NS, S
from ibwire.fabric.sim import Simulator
from ibwire.rc.attributes import AddressVector, QPAttr, QPAttrMask, QPCap, QPState, QPType
from ibwire.rc.connect import ALL_ACCESS, bring_up, connect
from ibwire.rc.device import Device
from ibwire.rc.memory import Access, MemoryRegion
from ibwire.rc.packet import FIELDS, FORMS, TransportPacket, encode
from ibwire.rc.path import Arrivals
from ibwire.rc.profile import PROFILES, Profile
from ibwire.rc.qp import QPInit, QueuePair
from ibwire.rc.states import TRANSITIONS
from ibwire.rc.work import SGE, MWBindInfo, RecvWR, SendWR, WCStatus, WROpcode
from ibwire_layers.opcodes import Operation, Payload
from ibwire_layers.psn import HALF, MASK

OURS, PEER, STRANGER = "10.0.0.1", "10.0.0.22", "10.0.0.66"

SECRET = b"\xa5"

seeds = st.lists(st.integers(0, (1 << 32) - 1), min_size=1, max_size=40)
"""Of one hostile frame each: drawing their fields one by one would take a second."""


def roce(
    transport: bytes,
    *,
    source: str = PEER,
    target: str = OURS,
    ecn: int = 0,
    longer: int = 0,
    udp_longer: int = 0,
    tail: bytes = b"",
) -> Frame:
    """A RoCEv2 frame with right checksums around anything from BTH to padding.

    longer, udp_longer: added to the lengths that IP and UDP state. tail: follows the
    ICRC. Written from reference/wire-formats#icrc, without the code under test.
    """
    size = 20 + 8 + len(transport) + 4
    addresses = b"".join(bytes(map(int, each.split("."))) for each in (source, target))
    total = size + longer & 0xFFFF
    ip = struct.pack(">BBHHHBBH", 0x45, ecn, total, 0, 0x4000, 64, 17, 0)
    words = sum(struct.unpack(">10H", ip + addresses))
    checksum = ~((words & 0xFFFF) + (words >> 16)) & 0xFFFF
    udp = struct.pack(">HHHH", 0xC123, 4791, size - 20 + longer + udp_longer & 0xFFFF, 0)
    masked = b"\x45\xff" + ip[2:8] + b"\xff\x11\xff\xff" + addresses + udp[:6] + b"\xff\xff"
    icrc: int = crc32(bytes([0xFF] * 8) + masked + transport[:4] + b"\xff" + transport[5:])
    ethernet = bytes.fromhex("02000a000001 02000a000016 0800")
    ip = ip[:10] + checksum.to_bytes(2) + addresses
    return ethernet + ip + udp + transport + icrc.to_bytes(4, "little") + tail  # type: ignore[no-any-return]


class World:
    """A device under attack, its victims, and an honest peer at the other end of the wire."""

    def __init__(self, profile: Profile) -> None:
        self.sim = Simulator()
        self.device = Device("target", OURS, profile=profile)
        self.peer = Device("peer", PEER, profile=profile, key_start=70)
        self.frames: list[Frame] = []
        """What the device under attack has sent."""
        self.sim.connect(
            self.device,
            self.peer,
            rate_bps=10 * GBPS,
            delay=100 * NS,
            a_to_b=lambda frame, now: (self.frames.append(frame), [(0, frame)])[1],
        )
        self.pd, self.other_pd = self.device.alloc_pd(), self.device.alloc_pd()
        self.mr: dict[str, MemoryRegion] = {}
        self.place: dict[str, int] = {}
        self._allot()
        self.cq = self.device.create_cq(1 << 16)
        self.domain = self.device.open_xrc_domain()
        self.srq, self.xrc_srq = (
            self.device.create_srq(self.pd, max_wr=64, xrc_domain=domain, cq=self.cq)
            for domain in (None, self.domain)
        )
        self.victims: list[QueuePair] = []
        self._make_victims()
        self._make_healthy()

    def _allot(self) -> None:
        """Cut the memory into regions, with 512 bytes between them."""
        remote_write = Access.REMOTE_WRITE | Access.LOCAL_WRITE
        plan = (
            ("open", 8192, self.pd, ALL_ACCESS, 0x00),
            ("sink", 16384, self.pd, Access.LOCAL_WRITE, 0x22),
            ("read", 4096, self.pd, Access.REMOTE_READ, 0x11),
            ("write", 4096, self.pd, remote_write, SECRET[0]),
            ("local", 2048, self.pd, Access.LOCAL_WRITE, SECRET[0]),
            ("foreign", 2048, self.other_pd, ALL_ACCESS, SECRET[0]),
            ("lent", 4096, self.pd, Access.LOCAL_WRITE | Access.MW_BIND, SECRET[0]),
            ("healthy", 65536, self.other_pd, ALL_ACCESS, 0x33),
        )
        self.arena = bytearray(SECRET) * (sum(size + 512 for _, size, *_ in plan) + 512)
        start = 512
        for name, size, pd, access, byte in plan:
            self.arena[start : start + size] = bytes([byte]) * size
            self.mr[name] = pd.register(memoryview(self.arena)[start : start + size], int(access))
            self.place[name] = start
            start += size + 512

    def sge(self, name: str, offset: int, length: int) -> SGE:
        return SGE(self.mr[name].iova + offset, length, self.mr[name].lkey)

    def _make_victims(self) -> None:
        for index, (name, qp_type, _) in enumerate(VICTIMS):
            is_target = qp_type is QPType.XRC_RECV
            qp = self.device.create_qp(
                QPInit(
                    qp_type,
                    None if is_target else self.pd,
                    self.cq,
                    self.cq,
                    srq=self.srq if name == "shared" else None,
                    cap=QPCap(max_send_wr=4096, max_recv_wr=4096),
                    xrc_domain=self.domain if is_target else None,
                )
            )
            self.victims.append(qp)
            self._bring_up(index)
        self.keeper = self.device.create_qp(QPInit(QPType.RC, self.pd, self.cq, self.cq))
        bring_up(self.keeper, AddressVector(dgid=self.peer.gids[0]), dest_qp_num=0x800100)
        self.window, self.kept = self.pd.allocate_window(2), self.pd.allocate_window(2)
        """PSNs of the first victim, and of a queue pair that is not attacked."""
        lent, write = self.mr["lent"], int(Access.REMOTE_WRITE)
        users = (self.victims[0], self.window, 1024), (self.keeper, self.kept, 2048)
        for qp, window, offset in users:
            info = MWBindInfo(lent, lent.iova + offset, 1024, write)
            qp.post_send(SendWR(WROpcode.BIND_MW, mw=window, bind_info=info, rkey=9))
        self.revive()

    def _bring_up(self, index: int) -> None:
        """From RESET into the state of a victim, with work requests if it has some."""
        name, qp_type, last = VICTIMS[index]
        qp = self.victims[index]
        _bring(
            qp,
            last,
            AddressVector(dgid=self.peer.gids[0]),
            dest_qp_num=0x800000 + index,
            sq_psn=PSNS[index % 4],
            rq_psn=PSNS[(index + 1) % 4],
            qp_access_flags=0 if name == "closed" else int(ALL_ACCESS),
            max_dest_rd_atomic=4,
            timeout=18,
            qkey=0x1234,
        )
        if name == "" and qp_type is not QPType.XRC_RECV:
            self._give_work(qp, last)

    def revive(self) -> None:
        """Set up the victims again that the attack has moved to an error state."""
        for index, (_, _, last) in enumerate(VICTIMS):
            qp = self.victims[index]
            if qp.state is QPState.ERR is not last:
                qp.modify(QPAttr(qp_state=QPState.RESET), QPAttrMask.STATE)
                self._bring_up(index)
        for srq in (self.srq, self.xrc_srq):
            while len(srq) < 32:
                srq.post_recv(RecvWR([self.sge("sink", len(srq) * 64, 2500)]))

    def _give_work(self, qp: QueuePair, state: QPState) -> None:
        if qp.qp_type is not QPType.XRC_SEND and state is not QPState.RESET:
            for index in range(16):
                qp.post_recv(RecvWR([self.sge("sink", index * 512, 2500)]))
        if state < QPState.RTS:
            return
        remote: dict[str, Any] = {"remote_addr": 0x1000, "rkey": 0x100}
        works = [
            SendWR(WROpcode.SEND, [self.sge("open", 0, 3000)]),
            SendWR(WROpcode.RDMA_WRITE, [self.sge("open", 0, 100)], **remote),
        ]
        if qp.qp_type is QPType.UD:
            ah = AddressVector(dgid=self.peer.gids[0])
            works = [SendWR(WROpcode.SEND, [self.sge("open", 0, 300)], ah=ah, remote_qpn=0x800000)]
        elif qp.qp_type is not QPType.UC:
            works += [
                SendWR(WROpcode.RDMA_READ, [self.sge("sink", 0, 3000)], **remote),
                SendWR(WROpcode.ATOMIC_CMP_AND_SWP, [self.sge("sink", 8, 8)], **remote),
                SendWR(WROpcode.ATOMIC_WRITE, atomic_data=bytes(8), **remote),
                SendWR(WROpcode.RDMA_READ, [self.sge("sink", 4000, 0)], **remote),
                SendWR(WROpcode.FLUSH, length=100, **remote),
                SendWR(WROpcode.SEND, [self.sge("open", 0, 0)]),
            ]
        for wr in works:
            qp.post_send(wr)

    def _make_healthy(self) -> None:
        """A connection both ends of which write, read and send 16 kB each."""
        far = self.peer.alloc_pd().register(bytearray(b"\x44" * 65536), int(ALL_ACCESS))
        near = self.mr["healthy"]
        ends = []
        for device, mr in ((self.device, near), (self.peer, far)):
            cqs = device.create_cq(64), device.create_cq(64)
            qp = device.create_qp(QPInit(QPType.RC, mr.pd, *cqs))
            ends.append((qp, mr))
        (self.healthy, _), (qp, _) = ends
        connect(self.healthy, qp, psn_a=MASK - 3, psn_b=HALF - 3)
        size = 16384
        for (qp, mr), (_, other) in (ends, ends[::-1]):
            qp.post_recv(RecvWR([SGE(mr.iova, size, mr.lkey)]))
            remote: dict[str, Any] = {"rkey": other.rkey, "remote_addr": other.iova + size}
            source = [SGE(mr.iova + 3 * size, size, mr.lkey)]
            qp.post_send(SendWR(WROpcode.SEND, source))
            qp.post_send(SendWR(WROpcode.RDMA_WRITE, source, **remote))
            remote["remote_addr"] = other.iova + 3 * size
            sink = [SGE(mr.iova + 2 * size, size, mr.lkey)]
            qp.post_send(SendWR(WROpcode.RDMA_READ, sink, **remote))
        self._ends = ends

    def hit(self, frame: Frame) -> None:
        """A hostile frame arrives; the network runs for a while."""
        self.revive()
        self.device.receive(frame, self.sim.now)
        self.sim.run(until=self.sim.now + 500 * NS)

    def finish_healthy(self) -> None:
        """The healthy connection comes to its end, with the right data."""
        cqs = [cq for qp, _ in self._ends for cq in (qp.send_cq, qp.recv_cq) if cq is not None]
        self.sim.run(until=self.sim.now + 5 * S, stop=lambda: sum(map(len, cqs)) == 8)
        completions = [wc.status for cq in cqs for wc in cq.poll(64)]
        assert completions == [WCStatus.SUCCESS] * 8
        size = 16384
        for (_, mr), byte in zip(self._ends, (0x44, 0x33), strict=True):
            assert mr.read(mr.iova, 3 * size) == bytes([byte]) * 3 * size

    def check_memory(self) -> None:
        """Nothing has changed but what the victims lend for writing."""
        lent = {"open": (0, 8192), "sink": (0, 16384), "write": (0, 4096), "lent": (1024, 1024)}
        lent["healthy"] = (0, 65536)  # `finish_healthy` checks its contents
        left = bytearray(self.arena)
        for name, (offset, size) in lent.items():
            start = self.place[name] + offset
            left[start : start + size] = SECRET * size
        start = self.place["read"]
        assert left[start : start + 4096] == b"\x11" * 4096
        left[start : start + 4096] = SECRET * 4096
        assert not left.strip(SECRET)

    def check_secrets(self) -> None:
        """No response contains memory without remote read access."""
        assert not any(SECRET * 4 in frame for frame in self.frames)


VICTIMS = (
    ("", QPType.RC, QPState.RTS),
    ("", QPType.RC, QPState.SQD),
    ("", QPType.RC, QPState.RTR),
    ("", QPType.RC, QPState.INIT),
    ("", QPType.RC, QPState.RESET),
    ("", QPType.RC, QPState.ERR),
    ("empty", QPType.RC, QPState.RTS),
    ("closed", QPType.RC, QPState.RTS),
    ("shared", QPType.RC, QPState.RTS),
    ("", QPType.UC, QPState.RTS),
    ("shared", QPType.UC, QPState.RTR),
    ("", QPType.UD, QPState.RTS),
    ("shared", QPType.UD, QPState.RTR),
    ("", QPType.XRC_SEND, QPState.RTS),
    ("", QPType.XRC_RECV, QPState.RTS),
)
"""Queue pairs: what is special, type, state. Those without a name are given work."""

PSNS = (0, HALF - 1, MASK - 1, 4711)


def _bring(qp: QueuePair, last: QPState, address: AddressVector, **attr: int) -> None:
    """From RESET into a state."""
    if last in (QPState.INIT, QPState.RTR):
        wanted = QPAttr(ah_attr=address, **attr)
        for state in (QPState.INIT, QPState.RTR)[:last]:
            required = TRANSITIONS[qp.qp_type][qp.state, state].required
            qp.modify(replace(wanted, qp_state=state), required | QPAttrMask.STATE)
    elif last is not QPState.RESET:
        bring_up(qp, address, **attr)
        if last is not QPState.RTS:
            qp.modify(QPAttr(qp_state=last), QPAttrMask.STATE)


def hostile_packet(world: World, rnd: Random) -> TransportPacket:
    """A packet for one of the victims, every field near where it is interesting."""
    qp = rnd.choice((rnd.choice(world.victims), world.victims[0]))
    form = FORMS[rnd.randrange(256)]
    if rnd.random() < 0.9:
        form = rnd.choice([form for form in FORMS if form.service == qp.service and form.is_known])
    sends, responder = qp.sends, qp.responder
    base = responder.epsn
    if form.is_response:
        base = rnd.choice((sends.una, sends.next_psn, sends.psn))
    step = rnd.choice((0, 0, 0, 0, 1, -1, 2, -2, 3, -7, HALF, HALF - 1, 1 - HALF, MASK >> 2))
    packet = TransportPacket(form, base + step & MASK)
    packet.dest_qp = qp.number
    packet.pkey = rnd.choice((0xFFFF,) * 30 + (0x7FFF, 0, rnd.randrange(1 << 16)))
    packet.mig_req, packet.ack_req, packet.se = (rnd.randrange(2) for _ in range(3))
    packet.becn, packet.reserved = rnd.randrange(2), rnd.randrange(64)
    mr = rnd.choice(list(world.mr.values()))
    keys = [mr.rkey, mr.rkey, mr.rkey, world.window.rkey, world.window.rkey ^ 1]
    packet.rkey = rnd.choice([*keys, mr.rkey ^ 1 << rnd.randrange(32), 0])
    packet.invalidate_rkey = packet.rkey
    size = rnd.choice((0, 0, 1, 4, 7, 8, 16, 1020, 1023, 1024, 1024, 1024, 1025, 1028, 2048, 4096))
    packet.payload = rnd.randbytes(8).replace(SECRET, b"\0") * (size // 8) + bytes(size % 8)
    packet.dma_len = rnd.choice(
        (
            size,
            size,
            size + 1,
            size - 1 & 0xFFFFFFFF,
            8,
            0,
            1024,
            2048,
            mr.length,
            mr.length + 1,
            1 << 31,
            (1 << 31) + 1,
            (1 << 32) - 1,
            rnd.randrange(1 << 32),
        )
    )
    edge = rnd.choice((mr.iova, mr.iova, mr.iova + 1024, mr.iova + mr.length - packet.dma_len))
    edge = rnd.choice((edge, edge, edge, mr.iova + mr.length, 1 << 64, (1 << 64) - packet.dma_len))
    packet.va = edge + rnd.choice((0, 0, 0, 0, 8, -8, 1, -1, -512)) & (1 << 64) - 1
    packet.swap, packet.compare = rnd.choice((0, 1, (1 << 64) - 1)), rnd.choice((0, 1))
    packet.original = rnd.choice((0, 1, (1 << 64) - 1))
    packet.syndrome = rnd.choice((rnd.randrange(256), 0x1F, 0, 0x20, 0x60, 0x61))
    packet.msn = rnd.choice((0, sends.ssn, sends.ssn + HALF & MASK, rnd.randrange(1 << 24)))
    packet.imm_data = rnd.randrange(1 << 32)
    srqs = world.xrc_srq.number, world.srq.number
    packet.xrc_srq = rnd.choice((*srqs, srqs[0], 0, MASK))
    packet.qkey, packet.src_qp = rnd.choice((0x1234, 0x1234, 0, 1 << 31)), rnd.randrange(1 << 24)
    packet.plt, packet.sel = rnd.choice((1, 2, 3, rnd.randrange(16))), rnd.randrange(4)
    if rnd.random() < 0.6:
        _make_plausible(packet, world, rnd)
    return packet


def _make_plausible(packet: TransportPacket, world: World, rnd: Random) -> None:
    """Right where a fault would end the connection at once, so that what follows it is reached."""
    rule = packet.form.payload_rule
    if rule is Payload.NONE:
        packet.payload = b""
    elif rule is Payload.EIGHT:
        packet.payload, packet.dma_len = bytes(8), 8
    elif rule is Payload.PMTU:
        packet.payload = bytes(1024)
        packet.dma_len = rnd.choice((1025, 2048, 3000, 3072))
    else:
        size = rnd.choice((1, 8, 952, 1024))
        packet.payload, packet.dma_len = bytes(size), size
    if packet.form.operation in (Operation.READ, Operation.FLUSH):
        packet.dma_len = rnd.choice((0, 1, 1024, 5000))
    mr = world.mr[rnd.choice(("open", "open", "read" if rule is Payload.NONE else "write"))]
    if rnd.random() < 0.3:
        mr = rnd.choice(list(world.mr.values()))
    packet.rkey = mr.rkey
    room = mr.length - packet.dma_len & -8
    packet.va = mr.iova + rnd.choice((0, 0, 0, 8, 64, 1024, 2048, room, room, room + 8, -8))
    if rnd.random() < 0.1:
        packet.va += rnd.choice((1, -1))
    if rnd.random() < 0.1:
        packet.rkey = rnd.choice((world.window, world.kept)).rkey
        packet.va = world.mr["lent"].iova + rnd.choice((1016, 1024, 2048 - packet.dma_len, 2048))
    packet.va &= (1 << 64) - 1
    if packet.form.has_aeth and rnd.random() < 0.8:
        packet.syndrome = 0x1F


def hostile_frame(world: World, rnd: Random) -> Frame:
    """A hostile packet, in one of four with a fault of its framing besides."""
    transport = bytearray(encode(hostile_packet(world, rnd)))
    fault = rnd.randrange(20)
    if fault == 0:  # pad count and transport version
        transport[1] ^= rnd.randrange(64)
    elif fault == 1:
        del transport[rnd.randrange(len(transport)) :]
    elif fault == 2:
        transport += rnd.randbytes(rnd.randrange(1, 9))
    elif fault == 3:
        transport[rnd.randrange(len(transport))] ^= 1 << rnd.randrange(8)
    if len(transport) < 5:
        transport += bytes(5)
    if fault == 4:
        wrong: dict[str, Any] = {
            "longer": rnd.randrange(-70, 70),
            "udp_longer": rnd.choice((0, 1, -1, -8)),
        }
        return roce(bytes(transport), **wrong, tail=rnd.randbytes(rnd.randrange(9)))
    return roce(bytes(transport), ecn=rnd.choice((0, 2, 3)))


@pytest.mark.parametrize("name", list(PROFILES))
@settings(max_examples=scaled(40), deadline=None, derandomize=True)
@given(seeds)
def test_hostile_packets_of_the_peer_touch_nothing_that_is_not_lent(
    name: str, drawn: list[int]
) -> None:
    world = World(PROFILES[name])
    world.sim.run(until=400 * NS)

    for seed in drawn:
        world.hit(hostile_frame(world, Random(seed)))

    world.finish_healthy()
    world.check_memory()
    world.check_secrets()


@settings(max_examples=scaled(40), deadline=None, derandomize=True)
@given(st.sampled_from(sorted(PROFILES)), seeds)
def test_packet_of_another_host_with_the_right_numbers_changes_nothing(
    name: str, drawn: list[int]
) -> None:
    """Neither by source nor by destination address: the device continues as if alone.

    Datagrams are the exception, which have no connection: they are not used here.
    """
    worlds = [World(PROFILES[name]) for _ in range(2)]
    attacked, alone = worlds

    for seed in drawn:
        rnd = Random(seed)
        packet = hostile_packet(attacked, rnd)
        if rnd.random() < 0.3:
            packet.dest_qp = attacked.healthy.number
        if attacked.device.qps[packet.dest_qp].qp_type is QPType.UD:
            continue
        wrong = rnd.choice(({"source": STRANGER}, {"target": STRANGER}, {"source": OURS}))
        attacked.hit(roce(encode(packet), **wrong))
        alone.sim.run(until=attacked.sim.now)

    for world in worlds:
        world.finish_healthy()
    assert attacked.frames == alone.frames
    assert attacked.arena == alone.arena
    assert attacked.device.events == alone.device.events


@settings(max_examples=scaled(30), deadline=None, derandomize=True)
@given(st.sampled_from(sorted(PROFILES)), seeds, st.booleans())
def test_damaged_frames_change_nothing_without_a_recomputed_icrc(
    name: str, drawn: list[int], healthy: bool
) -> None:
    """Bits of valid frames from the BTH on; the variant bits of the BTH are let alone."""
    worlds = [World(PROFILES[name]) for _ in range(2)]
    attacked, alone = worlds

    for seed in drawn:
        rnd = Random(seed)
        packet = hostile_packet(attacked, rnd)
        if healthy:
            packet.dest_qp = attacked.healthy.number
        frame = bytearray(roce(encode(packet)))
        for _ in range(rnd.choice((1, 1, 2, 5))):
            frame[rnd.choice((42, rnd.randrange(47, len(frame))))] ^= 1 << rnd.randrange(8)
        attacked.hit(bytes(frame))
        alone.sim.run(until=attacked.sim.now)

    for world in worlds:
        world.finish_healthy()
    assert attacked.frames == alone.frames
    assert attacked.arena == alone.arena


@settings(max_examples=scaled(100), deadline=None, derandomize=True)
@given(st.binary(max_size=100), st.integers(0, 90), st.integers(0, 255))
def test_any_bytes_at_all_are_taken_without_complaint(data: bytes, kept: int, opcode: int) -> None:
    """Alone, after the start of a valid frame, as the transport of one, on every link."""
    valid = roce(encode(_send_only(0x11)))

    for link in ("rocev2", "rocev1", "ib"):
        device = Device(address=OURS, link=link)
        qp = device.create_qp(
            QPInit(QPType.RC, device.alloc_pd(), device.create_cq(9), device.create_cq(9))
        )
        bring_up(qp, AddressVector(dgid=device.gids[0], is_global=link != "ib"), dest_qp_num=9)
        for frame in (data, valid[:kept] + data, roce(bytes([opcode, 0, 0xFF, 0xFF, 0]) + data)):
            device.receive(frame, 0)
            while device.poll_transmit(0) is not None:
                pass


def test_a_frame_cut_anywhere_is_dropped_also_with_a_right_icrc() -> None:
    """reference/bugs#cut-header: headers that end early."""
    for opcode in range(256):
        packet = _send_only(0)
        packet.form = FORMS[opcode]
        world_packet = hostile_packet_of(packet)
        whole = encode(world_packet)
        for size in range(5, packet.form.header_size):
            device = Device(address=OURS)
            device.receive(roce(whole[:size]), 0)

            assert device.counters["malformed"] + device.counters["not_for_rdma"] == 1


@settings(max_examples=scaled(60), deadline=None, derandomize=True)
@given(seeds)
def test_what_a_device_remembers_of_headers_never_changes_how_it_reads_one(
    drawn: list[int],
) -> None:
    """Also of damaged and hostile ones: remembering is a matter of speed."""
    remembering = Arrivals()
    base = roce(encode(_send_only(5)))

    for seed in drawn:
        rnd = Random(seed)
        frame = bytearray(rnd.choice((base, roce(encode(_send_only(6)), source=STRANGER))))
        for _ in range(rnd.randrange(4)):
            frame[rnd.randrange(12, 42)] ^= 1 << rnd.randrange(8)
        if rnd.random() < 0.5:
            frame[18:20] = rnd.randbytes(2)  # the identification
            _correct_checksum(frame)
        del frame[rnd.choice((len(frame), rnd.randrange(len(frame)))) :]
        known, fresh = remembering.read(bytes(frame)), Arrivals().read(bytes(frame))

        assert (known is None) == (fresh is None)
        if known is not None and fresh is not None:
            assert replace(known, route=fresh.route) == fresh


def _send_only(dest_qp: int) -> TransportPacket:
    packet = TransportPacket(FORMS[4], 0, bytes(8))
    packet.dest_qp = dest_qp
    packet.pkey, packet.mig_req = 0xFFFF, 1
    return packet


def hostile_packet_of(packet: TransportPacket) -> TransportPacket:
    """The same with a number in every field that its opcode may have."""
    for name in FIELDS:
        if not hasattr(packet, name):
            setattr(packet, name, 0)
    return packet


def _correct_checksum(frame: bytearray) -> None:
    frame[24:26] = b"\0\0"
    words = sum(struct.unpack(">10H", frame[14:34]))
    frame[24:26] = (~((words & 0xFFFF) + (words >> 16)) & 0xFFFF).to_bytes(2)
