"""Floods: however many packets come, what a device keeps has a bound, and others go on.

Where a single odd packet matters, see test_hostile.py.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import BuiltinFunctionType, FunctionType, ModuleType

import pytest

from examples import sampled
from ibwire.base.units import MS, US, S
from ibwire.rc.attributes import AddressVector, QPAttr, QPAttrMask, QPCap, QPState, QPType
from ibwire.rc.connect import bring_up, connect
from ibwire.rc.device import Device
from ibwire.rc.packet import FIELDS, FORMS, TransportPacket, encode
from ibwire.rc.path import Arrivals, Path, ethernet_route
from ibwire.rc.profile import PROFILES, RXE, SPEC, Profile
from ibwire.rc.responder import Responder
from ibwire.rc.work import SGE, RecvWR, SendFlags, SendWR, WCStatus, WROpcode
from ibwire.testing import Pair, create_queue_pair
from ibwire_layers.opcodes import OpCode
from ibwire_layers.psn import MASK


def packet(opcode: int, psn: int, dest_qp: int = 0x11, **fields: object) -> TransportPacket:
    """With 0 in every field that its opcode has and that is not given."""
    made = TransportPacket(FORMS[opcode], psn & MASK)
    for name in FIELDS:
        if not hasattr(made, name):
            setattr(made, name, 0)
    made.pkey, made.mig_req, made.dest_qp = 0xFFFF, 1, dest_qp
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def held(root: object) -> int:
    """Bytes of everything that can be reached from an object, but for code and types."""
    skipped = type, ModuleType, FunctionType, BuiltinFunctionType
    seen: set[int] = {id(FORMS)} | {id(form) for form in FORMS}
    total, waiting = 0, [root]
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, skipped):
            continue
        seen.add(id(each))
        total += sys.getsizeof(each)
        waiting.extend(gc.get_referents(each))
    return total


def ack(psn: int, syndrome: int, msn: int = 0) -> TransportPacket:
    return packet(OpCode.RC_ACKNOWLEDGE, psn, syndrome=syndrome, msn=msn)


def waiting(pair: Pair) -> int:
    return len(pair.b.qp.responder.replies)


def read_of(pair: Pair, psn: int, length: int, skip: int = 0) -> TransportPacket:
    mr = pair.b.mr
    return packet(OpCode.RC_RDMA_READ_REQUEST, psn, va=mr.iova + skip, rkey=mr.rkey, dma_len=length)


def ask_again_and_again(pair: Pair) -> None:
    """For all and for parts of a READ of a megabyte whose response has not left."""
    qp = pair.b.qp
    qp.handle_packet(read_of(pair, 0, 1 << 20), 0)
    for index in range(2000):
        skip = index % 1000
        qp.handle_packet(read_of(pair, skip, (1 << 20) - skip * 1024, skip * 1024), 0)
        qp.handle_packet(read_of(pair, skip, 1024, skip * 1024), 0)


OTHERS = [profile for profile in PROFILES.values() if not profile.answers_in_turn]


@pytest.mark.parametrize("profile", sampled(OTHERS, 2), ids=lambda profile: profile.name)
def test_duplicates_of_a_read_make_one_answer_together(profile: Profile) -> None:
    """Otherwise each would be worth another megabyte."""
    pair = Pair(profile=profile, size=1 << 20)
    ask_again_and_again(pair)

    assert waiting(pair) == 1
    pair.run()
    assert len(pair.packets("b")) == 1024


def test_duplicates_that_wait_for_rxe_are_bounded() -> None:
    """It answers each in full, as it does, but a queue has its limit."""
    pair = Pair(profile="rxe", size=1 << 20)
    ask_again_and_again(pair)

    assert waiting(pair) == pair.b.qp.responder.LIMIT_REPLIES


def test_a_duplicate_that_asks_for_a_part_of_a_read_gets_that_part() -> None:
    pair = Pair(size=1 << 20)
    pair.b.mr.write(pair.b.mr.iova, bytes(range(256)) * 40)
    pair.b.qp.handle_packet(read_of(pair, 0, 5000), 0)
    pair.run()
    before = len(pair.packets("b"))

    pair.b.qp.handle_packet(read_of(pair, 1, 2500, 1024), 0)
    pair.run()

    again = pair.packets("b")[before:]
    assert [p.bth.psn for p in again] == [1, 2, 3]
    assert [p.opcode_name for p in again] == [
        "RC_RDMA_READ_RESPONSE_FIRST",
        "RC_RDMA_READ_RESPONSE_MIDDLE",
        "RC_RDMA_READ_RESPONSE_LAST",
    ]
    assert b"".join(p.payload for p in again) == (bytes(range(256)) * 40)[1024:3524]


@pytest.mark.slow
@pytest.mark.parametrize("profile", [SPEC, RXE], ids=lambda profile: profile.name)
@pytest.mark.parametrize(
    "opcode",
    [
        OpCode.RC_SEND_ONLY,
        OpCode.RC_RDMA_WRITE_ONLY,
        OpCode.RC_RDMA_READ_REQUEST,
        OpCode.RC_FLUSH,
        OpCode.RC_ATOMIC_WRITE,
        OpCode.RC_COMPARE_SWAP,
    ],
    ids=lambda opcode: opcode.name,
)
@pytest.mark.parametrize("step", [0, 1, -1])
def test_responses_that_wait_after_a_large_read_are_bounded(
    profile: Profile, opcode: OpCode, step: int
) -> None:
    """Requests that stand still, go on, or go back into the past; nothing leaves meanwhile."""
    pair = Pair(profile=profile, size=1 << 20)
    qp, mr = pair.b.qp, pair.b.mr
    qp.handle_packet(read_of(pair, 0, 1 << 20), 0)
    start = 1024 if step >= 0 else 1023

    for index in range(1500):
        qp.handle_packet(
            packet(
                opcode,
                start + step * index,
                ack_req=1,
                va=mr.iova,
                rkey=mr.rkey,
                plt=1,
                dma_len=8 if opcode is OpCode.RC_ATOMIC_WRITE else 0,
                payload=bytes(8) if opcode is OpCode.RC_ATOMIC_WRITE else b"",
            ),
            0,
        )

    assert waiting(pair) <= Responder.LIMIT_REPLIES
    pair.run(1 * MS)
    assert waiting(pair) == 0


@pytest.mark.slow
def test_small_requests_after_a_large_read_complete_although_some_are_dropped() -> None:
    """The bound is a loss like any other: the peer comes again."""
    pair = Pair(
        size=1 << 22,
        peer_profile=replace(SPEC, coalesces_acks=False),
        init={"cap": QPCap(max_send_wr=4096, max_inline_data=8)},
    )
    pair.a.post_send(WROpcode.RDMA_READ, 1 << 22)

    for index in range(3000):
        pair.a.post_send(
            WROpcode.RDMA_WRITE,
            0,
            remote=8 * index,
            flags=SendFlags.SIGNALED | SendFlags.INLINE,
            inline_data=index.to_bytes(8),
            wr_id=index,
        )
    pair.run()

    assert [wc.status for wc in pair.a.poll_send_cq()] == [WCStatus.SUCCESS] * 3001
    assert pair.b.qp.counters.dropped > 0
    mr = pair.b.mr
    expected = b"".join(index.to_bytes(8) for index in range(3000))
    assert mr.read(mr.iova, 24000) == expected


@pytest.mark.slow
@pytest.mark.parametrize("profile", [SPEC, RXE], ids=lambda profile: profile.name)
def test_rnr_naks_without_end_keep_a_queue_pair_waiting_at_constant_cost(profile: Profile) -> None:
    """Each takes the place of the ACK timer, which here is two hours away."""
    pair = Pair(profile=profile, timeout=31, size=4096)
    pair.drop_if("a", lambda packet: True)
    pair.a.post_send(WROpcode.RDMA_WRITE, 8)
    pair.run(10 * US)
    sizes = []

    for _ in range(3):
        for _ in range(1500):
            pair.a.qp.handle_packet(ack(0, 0x21), pair.sim.now)
            pair.run(20 * US if profile is SPEC else 9 * MS)
            pair.log.clear()
        sizes.append(held(pair.a.device))

    assert pair.a.qp.counters.rnr_naks_received == 4500
    assert max(sizes) < 100_000


def test_naks_without_end_exhaust_the_retries_of_that_queue_pair_alone() -> None:
    """Or nothing at all, when they say again what is known already."""
    pair = Pair(size=1 << 20)
    pair.drop_if("a", lambda packet: packet.bth.dest_qp == pair.b.qp.number)
    healthy = [create_queue_pair(end.device, pd=end.pd) for end in (pair.a, pair.b)]
    connect(*healthy)
    pair.a.post_send(WROpcode.RDMA_WRITE, 5000)
    pair.run(10 * US)
    healthy[0].post_send(
        SendWR(
            WROpcode.RDMA_WRITE,
            [pair.a.sge(0, 100_000)],
            remote_addr=pair.b.mr.iova,
            rkey=pair.b.mr.rkey,
        )
    )

    for index in range(10_000):
        pair.a.qp.handle_packet(ack(index % 5, 0x60), pair.sim.now)
        pair.sim.run(until=pair.sim.now + 10_000)

    pair.run()
    assert pair.a.qp.counters.retransmitted < 100
    assert healthy[0].send_cq is not None
    assert [wc.status for wc in healthy[0].send_cq.poll(9)] == [WCStatus.SUCCESS]
    assert [wc.status for wc in pair.a.poll_send_cq()] == [WCStatus.RETRY_EXC_ERR]


def test_congestion_notifications_without_end_are_counted_and_the_newest_kept() -> None:
    pair = Pair(size=1 << 20)
    frame = packet(OpCode.CNP, 0)

    for now in range(10_000):
        pair.a.qp.handle_packet(frame, now)

    assert pair.a.qp.counters.cnps_received == 10_000
    assert len(pair.a.device.congestion) == pair.a.device.LIMIT_EVENTS
    assert pair.a.device.congestion[-1].time == 9_999


@pytest.mark.parametrize(("msn", "code"), [(1 << 23, 0x1E), (MASK, 0x0F), (5, 0x00)])
def test_absurd_credits_leave_a_connection_that_its_honest_peer_puts_right(
    msn: int, code: int
) -> None:
    """reference/transport#credits-limit: the next honest ACK counts again."""
    pair = Pair(size=1 << 20)
    for _ in range(8):
        pair.b.post_recv(1024)
    pair.a.post_send(WROpcode.SEND, 8)
    pair.a.qp.handle_packet(ack(-1, code, msn), 0)

    for _ in range(7):
        pair.a.post_send(WROpcode.SEND, 8)
    pair.run()

    assert [wc.status for wc in pair.a.poll_send_cq()] == [WCStatus.SUCCESS] * 8


def test_a_lost_receive_completion_is_never_acknowledged() -> None:
    """Class G: the queue pair is in error, and a peer must not see success."""
    pair = Pair(retry_cnt=1, size=1 << 20)
    pair.b.recv_cq.resize(1)
    for _ in range(3):
        pair.b.post_recv(4096)

    for wr_id in range(3):
        pair.a.post_send(WROpcode.SEND, 1024, wr_id=wr_id)
    pair.run()

    statuses = [wc.status for wc in pair.a.poll_send_cq()]
    assert statuses == [WCStatus.SUCCESS, WCStatus.RETRY_EXC_ERR, WCStatus.WR_FLUSH_ERR]
    assert len(pair.b.poll_recv_cq()) == 1


def test_broken_unreliable_messages_end_the_shared_receive_requests_that_they_took() -> None:
    """Each completes once, with an error: otherwise any host that knows the address could
    empty the queue for all others without a trace (reference/transport#ud).
    """
    device = Device()
    pd = device.alloc_pd()
    mr = pd.register(8192, 1)
    srq = device.create_srq(pd)
    qp = create_queue_pair(device, pd=pd, srq=srq, qp_type=QPType.UC)
    bring_up(qp, AddressVector(dgid=5), dest_qp_num=4)
    for wr_id in range(3):
        srq.post_recv(RecvWR([SGE(mr.iova, 4096, mr.lkey)], wr_id))

    for psn in (0, 10, 20):
        qp.handle_packet(packet(OpCode.UC_SEND_FIRST, psn, payload=bytes(1024)), 0)
    qp.handle_packet(packet(OpCode.UC_SEND_LAST, 21, payload=bytes(8)), 0)

    assert qp.recv_cq is not None
    completions = [(wc.wr_id, wc.status) for wc in qp.recv_cq.poll(9)]
    assert completions == [
        (0, WCStatus.LOC_LEN_ERR),
        (1, WCStatus.LOC_LEN_ERR),
        (2, WCStatus.SUCCESS),
    ]
    assert qp.state is QPState.RTS


def cheap_frames(count: int) -> Iterator[bytes]:
    """Frames with a right ICRC that differ in addresses, ports, sizes, QPNs, PSNs and opcodes."""
    for index in range(count):
        size = index % 70 * 4
        route = ethernet_route(
            source=0xFFFF << 32 | index * 7919 & 0xFFFFFFFF,
            destination=0xFFFF << 32 | 0x0A000001,
            source_mac=index.to_bytes(6),
            destination_mac=bytes(6),
            source_port=index & 0xFFFF,
            vlan=index & 0xFFF if index % 3 == 0 else None,
        )
        path = Path(route)
        for opcode in range(index * 7, index * 7 + 8):
            made = packet(opcode & 0xFF, index * 31, opcode % 40, payload=bytes(size))
            yield path.frame(encode(made))


@pytest.mark.slow
def test_a_hundred_thousand_cheap_frames_leave_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches, queues and counters: from the first quarter on all of them are full.

    With fewer headers remembered than normally, or it would take a million frames.
    """
    monkeypatch.setattr(Arrivals, "LIMIT", 1500)
    device = Device(address="10.0.0.1")
    pd = device.alloc_pd()
    for index, qp_type in enumerate((QPType.RC, QPType.UC, QPType.UD, QPType.XRC_SEND) * 5):
        qp = create_queue_pair(device, pd=pd, qp_type=qp_type)
        bring_up(qp, AddressVector(dgid=0xFFFF << 32 | index), dest_qp_num=index)
    sizes = []

    for number, frame in enumerate(cheap_frames(12_500), 1):
        device.receive(frame, number * US)
        if number % 25_000 == 0:
            sizes.append(held(device))

    assert len(sizes) == 4
    assert max(sizes) < 4_000_000


@pytest.mark.slow
def test_connections_made_and_reset_again_and_again_leave_no_trace() -> None:
    pair = Pair(size=4096)
    sizes = []

    for round_ in range(900):
        qp = create_queue_pair(
            pair.a.device, pd=pair.a.pd, send_cq=pair.a.send_cq, recv_cq=pair.a.recv_cq
        )
        bring_up(qp, AddressVector(dgid=pair.b.device.gids[0]), dest_qp_num=99, timeout=20)
        qp.post_send(SendWR(WROpcode.RDMA_WRITE, [pair.a.sge(0, 8)]))
        pair.run(10 * US)
        pair.log.clear()
        if round_ & 1:
            qp.modify(QPAttr(qp_state=QPState.RESET), QPAttrMask.STATE)
        qp.close()
        if round_ % 300 == 299:
            sizes.append(held(pair.a.device))

    assert max(sizes) < 800_000
    assert pair.sim.now < 1 * S


def test_closed_shared_receive_queues_are_forgotten() -> None:
    device = Device()
    pd, domain = device.alloc_pd(), device.open_xrc_domain()

    for _ in range(3):
        device.create_srq(pd, xrc_domain=domain, cq=device.create_cq(1)).close()

    assert not device.srqs
    assert not pd.users
    domain.close()
