"""What leaves because of a work request: reference/transport#segmentation and what follows."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from each_case import each_case
from ibwire.base.errors import VerbsError
from ibwire.rc.attributes import QPCap, QPState
from ibwire.rc.memory import Access
from ibwire.rc.profile import CONNECTX, HNS, PROFILES, RDMAVT, RXE, SPEC, Profile
from ibwire.rc.work import SGE, MWBindInfo, SendFlags, SendWR, WCStatus, WROpcode
from ibwire.testing import Pair, Peer, statuses, summaries
from ibwire_layers import headers as h
from ibwire_layers.opcodes import OpCode
from ibwire_layers.packet import Packet
from ibwire_layers.psn import MASK

R = OpCode
OK = WCStatus.SUCCESS

every_profile = each_case("profile", PROFILES.values(), ids=lambda p: p.name)


def open_lone(**given: Any) -> Peer:
    """With a peer that keeps no credits, as after its first acknowledgement."""
    lone = Peer(**{"mtu": 256, **given})
    lone.qp.sends.credits.limited = False
    return lone


def reth(packet: Packet) -> tuple[int, int, int]:
    """VA, R_Key and DMALen."""
    found = packet.extension(h.RETH)
    assert found is not None
    return found.va, found.rkey, found.dma_len


SEND, WRITE = WROpcode.SEND, WROpcode.RDMA_WRITE
IMM, INV, WRITE_IMM = WROpcode.SEND_WITH_IMM, WROpcode.SEND_WITH_INV, WROpcode.RDMA_WRITE_WITH_IMM

SEGMENTS = [
    (SEND, 0, ["SEND_ONLY"]),
    (SEND, 1, ["SEND_ONLY"]),
    (SEND, 256, ["SEND_ONLY"]),
    (SEND, 257, ["SEND_FIRST", "SEND_LAST"]),
    (SEND, 512, ["SEND_FIRST", "SEND_LAST"]),
    (SEND, 768, ["SEND_FIRST", "SEND_MIDDLE", "SEND_LAST"]),
    (IMM, 256, ["SEND_ONLY_WITH_IMMEDIATE"]),
    (IMM, 300, ["SEND_FIRST", "SEND_LAST_WITH_IMMEDIATE"]),
    (INV, 0, ["SEND_ONLY_WITH_INVALIDATE"]),
    (INV, 300, ["SEND_FIRST", "SEND_LAST_WITH_INVALIDATE"]),
    (WRITE, 0, ["RDMA_WRITE_ONLY"]),
    (WRITE, 256, ["RDMA_WRITE_ONLY"]),
    (WRITE, 700, ["RDMA_WRITE_FIRST", "RDMA_WRITE_MIDDLE", "RDMA_WRITE_LAST"]),
    (WRITE_IMM, 4, ["RDMA_WRITE_ONLY_WITH_IMMEDIATE"]),
    (WRITE_IMM, 300, ["RDMA_WRITE_FIRST", "RDMA_WRITE_LAST_WITH_IMMEDIATE"]),
    (WROpcode.RDMA_READ, 5000, ["RDMA_READ_REQUEST"]),
    (WROpcode.ATOMIC_FETCH_AND_ADD, 8, ["FETCH_ADD"]),
    (WROpcode.ATOMIC_CMP_AND_SWP, 8, ["COMPARE_SWAP"]),
    (WROpcode.FLUSH, 0, ["FLUSH"]),
    (WROpcode.ATOMIC_WRITE, 0, ["ATOMIC_WRITE"]),
]


@each_case(("opcode", "length", "names"), SEGMENTS)
def test_packets_of_a_message(opcode: WROpcode, length: int, names: list[str]) -> None:
    """Path MTU 256. A message of k path MTUs ends with a full LAST."""
    lone = open_lone(size=8192)
    lone.mr.write(lone.mr.iova, bytes(n % 251 for n in range(8192)))

    heard = lone.request(opcode, length, atomic_data=b"12345678")

    assert [word.split()[0] for word in summaries(heard)] == names
    assert [p.bth.psn for p in heard] == list(range(500, 500 + len(names)))
    if opcode in (SEND, IMM, INV, WRITE, WRITE_IMM):
        assert b"".join(p.payload for p in heard) == lone.memory[:length]


@each_case(
    ("opcode", "length", "span"),
    [
        (SEND, 0, 1),
        (SEND, 257, 2),
        (WRITE, 1024, 4),
        (WROpcode.RDMA_READ, 0, 1),
        (WROpcode.RDMA_READ, 256, 1),
        (WROpcode.RDMA_READ, 257, 2),
        (WROpcode.RDMA_READ, 2560, 10),
        (WROpcode.ATOMIC_FETCH_AND_ADD, 8, 1),
        (WROpcode.FLUSH, 0, 1),
        (WROpcode.ATOMIC_WRITE, 0, 1),
    ],
)
def test_psns_that_a_message_takes(opcode: WROpcode, length: int, span: int) -> None:
    """Also across the wrap (section 3)."""
    lone = open_lone(psn=MASK)

    lone.request(opcode, length, atomic_data=bytes(8))
    (after,) = lone.request(WRITE, 4)

    assert after.bth.psn == (MASK + span) & MASK


@every_profile
def test_write_states_its_whole_length_once(profile: Profile) -> None:
    first, middle, last = open_lone(profile=profile).request(WRITE, 700)

    assert reth(first) == (0x5000, 0x99, 700)
    assert not middle.extensions
    assert not last.extensions


@every_profile
def test_a_write_is_resumed_without_reth(profile: Profile) -> None:
    """drop-one-middle."""
    lone = open_lone(profile=profile)
    lone.request(WRITE, 1000)

    heard = lone.receive_ack(501, syndrome=0x60)

    names = ["RDMA_WRITE_MIDDLE 501", "RDMA_WRITE_MIDDLE 502", "RDMA_WRITE_LAST 503"]
    assert summaries(heard) == names
    assert not any(p.extensions for p in heard)


@every_profile
def test_a_read_is_resumed_as_a_new_request_for_the_rest(profile: Profile) -> None:
    """9000 bytes at path MTU 1024, PSN 0x64: again as 0x66 (drop-read-response.a)."""
    lone = open_lone(profile=profile, mtu=1024, psn=0x64, size=1 << 15, timeout=14)
    (first,) = lone.request(WROpcode.RDMA_READ, 9000)
    lone.receive_packet(R.RC_RDMA_READ_RESPONSE_FIRST, 0x64, bytes(1024), syndrome=0x1F)
    lone.receive_packet(R.RC_RDMA_READ_RESPONSE_MIDDLE, 0x65, bytes(1024))

    (again,) = lone.wait(70 * 10**9)

    assert reth(first) == (0x5000, 0x99, 9000)
    assert again.bth.psn == 0x66
    assert reth(again) == (0x5000 + 2048, 0x99, 6952)


def test_retransmitted_write_without_acknowledged_first_has_a_reth_again() -> None:
    lone = open_lone()
    first, _ = lone.request(WRITE, 300)

    again, _ = lone.wait(70 * 10**9)

    assert reth(again) == reth(first)


@pytest.mark.parametrize(
    ("profile", "asking"),
    [
        (SPEC, [64, 128, 192, 256, 257]),
        (RXE, [66, 132, 198, 257]),
        (RDMAVT, [*range(16, 257, 16), 257]),
        (CONNECTX, [256, 257]),
        (HNS, [64, 128, 192, 256, 257]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_packets_that_ask_for_an_acknowledgement(profile: Profile, asking: list[int]) -> None:
    """rxe: 66, 132 and 198 of rcx-long-message; rdmavt every 16th; mlx5 2^8; and the last."""
    lone = open_lone(profile=profile, size=1 << 17)

    heard = lone.request(WRITE, 256 * 257)
    if profile is RXE:  # its window is 129 packets
        heard += lone.receive_ack(500 + 131 - 10)
        heard += lone.receive_ack(500 + 240)

    asked = [p.bth.psn - 499 for p in heard if p.bth.ack_req]
    assert [n for n in asked if n <= 257] == asking


@every_profile
@pytest.mark.parametrize("opcode", [WROpcode.RDMA_READ, WROpcode.ATOMIC_FETCH_AND_ADD])
def test_read_and_atomic_requests_ask_too(opcode: WROpcode, profile: Profile) -> None:
    (packet,) = open_lone(profile=profile).request(opcode, 8)

    assert packet.bth.ack_req == 1


@each_case("opcode", [*SEGMENTS])
def test_solicited_event_is_on_the_last_packet_of_what_takes_a_receive(
    opcode: tuple[WROpcode, int, list[str]],
) -> None:
    kind, length, names = opcode
    heard = open_lone(size=8192).request(
        kind,
        length,
        flags=SendFlags.SIGNALED | SendFlags.SOLICITED,
        atomic_data=bytes(8),
    )

    asks = kind in (SEND, IMM, INV, WRITE_IMM)
    assert [p.bth.se for p in heard] == [0] * (len(names) - 1) + [int(asks)]


@each_case(
    ("profile", "bit"), [(SPEC, 1), (RDMAVT, 1), (CONNECTX, 1), (HNS, 1), (RXE, 0)],
    ids=lambda value: getattr(value, "name", value),
)  # fmt: skip
def test_migration_bit_without_an_alternate_path(profile: Profile, bit: int) -> None:
    lone = open_lone(profile=profile)
    (asked,) = lone.request(WRITE, 8)
    (answered,) = lone.receive_packet(R.RC_RDMA_WRITE_ONLY, 100, b"abcd", ack_req=1)

    assert (asked.bth.mig_req, answered.bth.mig_req) == (bit, bit)


def test_hns_sets_a_reserved_bit_in_requests_alone() -> None:
    lone = open_lone(profile=HNS)
    (asked,) = lone.request(WRITE, 8)
    (answered,) = lone.receive_packet(R.RC_RDMA_WRITE_ONLY, 100, b"abcd", ack_req=1)

    assert (asked.bth.resv6a, answered.bth.resv6a) == (0x10, 0)


def test_scatter_gather_lists_are_one_message() -> None:
    lone = open_lone()
    lone.mr.write(lone.mr.iova, bytes(range(256)) * 2)
    pieces = [(10, 100), (0, 0), (200, 156), (400, 1)]
    sges = [lone.sge(offset, length) for offset, length in pieces]
    lone.qp.post_send(SendWR(SEND, sges))

    heard = lone.transmit()

    assert b"".join(p.payload for p in heard) == b"".join(
        lone.memory[offset : offset + length] for offset, length in pieces
    )
    assert [len(p.payload) for p in heard] == [256, 1]


def test_read_into_a_scatter_gather_list() -> None:
    lone = open_lone()
    sges = [lone.sge(1000, 100), lone.sge(2000, 0), lone.sge(3000, 200)]
    lone.qp.post_send(SendWR(WROpcode.RDMA_READ, sges, remote_addr=0x5000))
    lone.transmit()

    lone.receive_packet(R.RC_RDMA_READ_RESPONSE_FIRST, 500, b"a" * 256, syndrome=0x1F)
    lone.receive_packet(R.RC_RDMA_READ_RESPONSE_LAST, 501, b"b" * 44, syndrome=0x1F)

    assert lone.memory[1000:1100] == b"a" * 100
    assert lone.memory[3000:3201] == b"a" * 156 + b"b" * 44 + b"\0"


def test_inline_data_is_taken_at_posting() -> None:
    lone = open_lone()
    lone.mr.write(lone.mr.iova, b"before")
    lone.qp.post_send(SendWR(SEND, [lone.sge(0, 6)], SendFlags.SIGNALED | SendFlags.INLINE))
    lone.mr.write(lone.mr.iova, b"after!")

    assert [p.payload for p in lone.transmit()] == [b"before"]


def test_data_that_is_not_inline_is_read_when_it_leaves() -> None:
    lone = open_lone()
    lone.qp.post_send(SendWR(SEND, [lone.sge(0, 6)]))
    lone.mr.write(lone.mr.iova, b"after!")

    assert [p.payload for p in lone.transmit()] == [b"after!"]


REFUSED: list[tuple[str, dict[str, Any], int]] = [
    ("inline READ", {"opcode": WROpcode.RDMA_READ, "send_flags": SendFlags.INLINE}, errno.EINVAL),
    ("inline beyond max_inline_data", {"inline_data": bytes(1025), "send_flags": SendFlags.INLINE},
     errno.EINVAL),
    ("more SGEs than max_send_sge", {"sg_list": [SGE(0, 0, 0)] * 17}, errno.EINVAL),
    ("message above 2^31 bytes", {"sg_list": [SGE(0, 1 << 31, 0), SGE(0, 1, 0)]}, errno.EINVAL),
    ("atomic into 4 bytes",
     {"opcode": WROpcode.ATOMIC_FETCH_AND_ADD, "sg_list": [SGE(0, 4, 0)]}, errno.EINVAL),
    ("atomic at an odd address",
     {"opcode": WROpcode.ATOMIC_FETCH_AND_ADD, "sg_list": [SGE(0, 8, 0)], "remote_addr": 4},
     errno.EINVAL),
    ("ATOMIC WRITE of 4 bytes", {"opcode": WROpcode.ATOMIC_WRITE, "atomic_data": b"1234"},
     errno.EINVAL),
]  # fmt: skip


@pytest.mark.parametrize(
    ("said", "code"), [pytest.param(said, code, id=name) for name, said, code in REFUSED]
)
def test_work_requests_that_are_refused_at_posting(said: dict[str, Any], code: int) -> None:
    lone = open_lone()

    with pytest.raises(VerbsError) as refused:
        lone.qp.post_send(SendWR(**said))

    assert refused.value.errno == code
    assert lone.transmit() == []


def test_reads_are_refused_when_none_may_be_outstanding() -> None:
    """rvt: EINVAL at post (section 11)."""
    lone = open_lone(max_rd_atomic=0)

    with pytest.raises(VerbsError):
        lone.request(WROpcode.RDMA_READ, 8)


def test_a_message_of_two_gigabytes_is_allowed() -> None:
    lone = open_lone(max_rd_atomic=1)
    lone.qp.post_send(SendWR(WROpcode.RDMA_READ, [SGE(0, 1 << 31, 0)], remote_addr=0x5000))

    (packet,) = lone.transmit()

    assert reth(packet)[2] == 1 << 31


def test_a_read_that_would_reach_beyond_half_the_psn_circle_waits() -> None:
    """next PSN - oldest unacknowledged PSN <= 2^23 (section 3): 2^31 bytes at 256 are 2^23."""
    lone = open_lone(max_rd_atomic=2)
    lone.request(WRITE, 4)
    lone.qp.post_send(SendWR(WROpcode.RDMA_READ, [SGE(0, 1 << 31, 0)], remote_addr=0x5000))
    assert lone.transmit() == []

    assert summaries(lone.receive_ack(500)) == ["RDMA_READ_REQUEST 501"]


def test_a_full_send_queue_is_enomem() -> None:
    lone = open_lone(init={"cap": QPCap(max_send_wr=2)})
    lone.request(WRITE, 8)
    lone.request(WRITE, 8)

    with pytest.raises(VerbsError) as refused:
        lone.request(WRITE, 8)

    assert refused.value.errno == errno.ENOMEM


def test_slots_of_unsignalled_requests_come_back_with_the_next_completion() -> None:
    lone = open_lone(init={"cap": QPCap(max_send_wr=2)})
    lone.request(WRITE, 8, flags=0)
    lone.receive_ack(500)
    lone.request(WRITE, 8)
    with pytest.raises(VerbsError):
        lone.request(WRITE, 8)

    lone.receive_ack(501)

    lone.request(WRITE, 8)
    lone.request(WRITE, 8)


# Windows, fences, order.


def test_no_more_reads_than_max_rd_atomic_are_outstanding() -> None:
    lone = open_lone(max_rd_atomic=2)
    for wr_id in range(4):
        lone.request(WROpcode.RDMA_READ, 8, wr_id=wr_id)
    assert lone.qp.sends.next_psn == 502

    heard = lone.receive_packet(R.RC_RDMA_READ_RESPONSE_ONLY, 500, bytes(8), syndrome=0x1F)

    assert summaries(heard) == ["RDMA_READ_REQUEST 502"]


def test_blocked_read_blocks_later_requests() -> None:
    lone = open_lone(max_rd_atomic=1)
    lone.request(WROpcode.RDMA_READ, 8)
    lone.request(WROpcode.RDMA_READ, 8)

    assert lone.request(WRITE, 8) == []


@every_profile
@pytest.mark.parametrize("opcode", [WROpcode.FLUSH, WROpcode.ATOMIC_WRITE])
def test_flush_and_atomic_write_wait_as_reads_do(opcode: WROpcode, profile: Profile) -> None:
    """Saved responses of a peer (reference/transport#saved-resources). Linux 6.1 has neither."""
    lone = open_lone(profile=profile, max_rd_atomic=1)

    heard = lone.request(opcode, 0, atomic_data=bytes(8))
    heard += lone.request(opcode, 0, atomic_data=bytes(8))

    assert len(heard) == (profile is not RXE)


@every_profile
def test_rxe_keeps_129_packets_in_flight(profile: Profile) -> None:
    """reference/habits#rxe-window; the other profiles have no such limit."""
    lone = open_lone(profile=profile, size=1 << 17)

    heard = lone.request(WRITE, 256 * 300)

    assert len(heard) == (129 if profile is RXE else 300)
    if profile is RXE:
        assert [p.bth.psn for p in lone.receive_ack(501)] == [629, 630]


@pytest.mark.parametrize("first", [WROpcode.RDMA_READ, WROpcode.ATOMIC_FETCH_AND_ADD])
def test_a_fenced_request_waits_for_reads_and_atomics(first: WROpcode) -> None:
    lone = open_lone()
    lone.request(first, 8)
    assert lone.request(WRITE, 8, flags=SendFlags.SIGNALED | SendFlags.FENCE) == []
    assert lone.request(WRITE, 8) == []

    if first is WROpcode.RDMA_READ:
        heard = lone.receive_packet(R.RC_RDMA_READ_RESPONSE_ONLY, 500, bytes(8), syndrome=0x1F)
    else:
        heard = lone.receive_packet(R.RC_ATOMIC_ACKNOWLEDGE, 500, syndrome=0x1F)

    assert [p.bth.psn for p in heard] == [501, 502]


def test_a_fenced_request_does_not_wait_for_sends_and_writes() -> None:
    lone = open_lone()
    lone.request(WRITE, 8)

    assert len(lone.request(SEND, 8, flags=SendFlags.SIGNALED | SendFlags.FENCE)) == 1


def test_local_invalidate_waits_for_everything_before_it() -> None:
    lone = open_lone()
    window = lone.pd.allocate_window(2)
    region = lone.pd.register(64, int(Access.LOCAL_WRITE | Access.MW_BIND))
    info = MWBindInfo(region, region.iova, 64, int(Access.REMOTE_READ))
    lone.qp.post_send(SendWR(WROpcode.BIND_MW, wr_id=1, mw=window, bind_info=info, rkey=9))
    lone.request(WRITE, 8, wr_id=2)
    lone.qp.post_send(SendWR(WROpcode.LOCAL_INV, wr_id=3, invalidate_rkey=window.rkey))
    assert lone.transmit() == []
    assert statuses(lone.poll_send_cq()) == [(1, OK)]

    lone.receive_ack(500)

    assert statuses(lone.poll_send_cq()) == [(2, OK), (3, OK)]
    assert window.region is None


def test_a_bind_completes_in_its_turn_and_works_for_what_follows() -> None:
    lone = open_lone()
    region = lone.pd.register(64, int(Access.LOCAL_WRITE | Access.MW_BIND))
    window = lone.pd.allocate_window(2)
    info = MWBindInfo(region, region.iova, 64, int(Access.REMOTE_READ))
    lone.request(WRITE, 8, wr_id=1)
    lone.qp.post_send(SendWR(WROpcode.BIND_MW, wr_id=2, mw=window, bind_info=info, rkey=0x55))
    lone.transmit()
    assert statuses(lone.poll_send_cq()) == []
    assert window.rkey & 0xFF == 0x55

    lone.receive_ack(500)

    assert statuses(lone.poll_send_cq()) == [(1, OK), (2, OK)]


@pytest.mark.parametrize(
    ("wr", "status"),
    [
        (SendWR(WROpcode.LOCAL_INV, wr_id=2, invalidate_rkey=5), WCStatus.LOC_QP_OP_ERR),
        (SendWR(WROpcode.BIND_MW, wr_id=2), WCStatus.MW_BIND_ERR),
        (SendWR(WRITE, [SGE(1, 8, 5)], wr_id=2), WCStatus.LOC_PROT_ERR),
    ],
    ids=["LOCAL_INV", "BIND_MW", "bad L_Key"],
)
def test_a_local_fault_fails_when_all_before_it_is_done_even_if_that_is_lost(
    wr: SendWR, status: WCStatus
) -> None:
    lone = open_lone()
    lone.request(WRITE, 8, wr_id=1)
    lone.qp.post_send(wr)
    assert lone.transmit() == []
    assert statuses(lone.poll_send_cq()) == []

    assert summaries(lone.wait(70 * 10**9)) == ["RDMA_WRITE_ONLY 500"]
    lone.receive_ack(500)

    assert statuses(lone.poll_send_cq()) == [(1, OK), (2, status)]
    assert lone.qp.state is QPState.ERR


def test_a_local_fault_in_the_middle_of_a_message() -> None:
    lone = open_lone()
    sges = [lone.sge(0, 256), SGE(0, 8, 5)]
    lone.qp.post_send(SendWR(WRITE, sges, remote_addr=0x5000))

    heard = lone.transmit()

    assert len(heard) <= 1
    assert [status for _, status in statuses(lone.poll_send_cq())] == [WCStatus.LOC_PROT_ERR]


def test_the_region_of_a_posted_request_may_go() -> None:
    lone = open_lone()
    region = lone.pd.register(1024, 0)
    lone.qp.post_send(SendWR(WRITE, [SGE(region.iova, 1024, region.lkey)], remote_addr=0x5000))
    assert lone.device.poll_transmit(0) is not None
    region.deregister()

    assert lone.transmit() == []
    assert [status for _, status in statuses(lone.poll_send_cq())] == [WCStatus.LOC_PROT_ERR]


def test_responses_leave_before_requests() -> None:
    lone = open_lone()
    lone.qp.post_send(SendWR(WRITE, [lone.sge(0, 4)], remote_addr=0x5000))
    lone.device.receive(lone.packet(R.RC_RDMA_READ_REQUEST, 100, dma_len=600).build(), 0)

    names = [word.split()[0] for word in summaries(lone.transmit())]
    assert names == [
        "RDMA_READ_RESPONSE_FIRST",
        "RDMA_READ_RESPONSE_MIDDLE",
        "RDMA_READ_RESPONSE_LAST",
        "RDMA_WRITE_ONLY",
    ]


@pytest.mark.parametrize("mtu", [256, 512, 1024, 2048, 4096])
@pytest.mark.parametrize("opcode", [SEND, WRITE, WROpcode.RDMA_READ])
def test_every_path_mtu_carries_every_length_around_it(opcode: WROpcode, mtu: int) -> None:
    pair = Pair(mtu=mtu, size=1 << 16)
    data = bytes(n % 253 for n in range(1 << 16))
    sink, source = (pair.a, pair.b) if opcode is WROpcode.RDMA_READ else (pair.b, pair.a)
    source.mr.write(source.mr.iova, data)
    for length in (0, 1, mtu - 1, mtu, mtu + 1, 3 * mtu):
        if opcode is SEND:
            pair.b.post_recv(4 * mtu)
        pair.a.post_send(opcode, length)
        pair.run()

        assert [wc.status for wc in pair.a.poll_send_cq()] == [OK]
        assert sink.mr.read(sink.mr.iova, length) == data[:length]


@every_profile
@pytest.mark.parametrize("psn", [0, (1 << 23) - 1, 1 << 23, MASK, MASK - 2])
def test_messages_cross_the_wrap(psn: int, profile: Profile) -> None:
    pair = Pair(mtu=256, psn_a=psn, psn_b=psn, profile=profile)
    for _ in range(3):
        pair.b.post_recv(4096)
    for opcode in (SEND, WROpcode.RDMA_READ, WRITE, SEND, WROpcode.RDMA_READ):
        pair.a.post_send(opcode, 1000, remote=8192)
    pair.run()

    assert [wc.status for wc in pair.a.poll_send_cq()] == [OK] * 5
    assert pair.a.qp.counters.retransmitted == 0
    assert pair.a.qp.query().sq_psn == (psn + 20) & MASK
