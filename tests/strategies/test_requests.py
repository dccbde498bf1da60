"""Generated work requests are taken, succeed, and move the bytes that they say."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import scaled
from ibwire.base.errors import EncodeError
from ibwire.rc.attributes import QPType
from ibwire.rc.profile import PROFILES
from ibwire.rc.work import SGE, RecvWR, SendFlags, SendWR, WCStatus, WROpcode
from ibwire.strategies import recv_requests, work_requests
from ibwire.testing import End, Pair

SIZE = 1 << 13
GRH_ROOM = 40
"""Bytes before a datagram in its receive buffer (IBA 11.4.1.2)."""

SENDS = (WROpcode.SEND, WROpcode.SEND_WITH_IMM)
WRITES = (WROpcode.RDMA_WRITE, WROpcode.RDMA_WRITE_WITH_IMM)
COUNTS = (WROpcode.ATOMIC_FETCH_AND_ADD, WROpcode.ATOMIC_CMP_AND_SWP)
TAKES_RECEIVE = (*SENDS, WROpcode.RDMA_WRITE_WITH_IMM)


def bytes_of(end: End, pieces: Any) -> bytes:
    return b"".join(end.mr.read(sge.addr, sge.length) for sge in pieces)


def length_of(pieces: Any) -> int:
    return sum(sge.length for sge in pieces)


def filled(**options: Any) -> Pair:
    """A pair with different bytes everywhere."""
    pair = Pair(size=SIZE, **options)
    for end in (pair.a, pair.b):
        end.write(0, random.Random(end.name).randbytes(SIZE))
    return pair


def number_at(end: End, address: int) -> int:
    return int.from_bytes(end.mr.read(address, 8), "little")


def carry_out(pair: Pair, wr: SendWR, receive: RecvWR | None) -> None:
    """Post, run, and compare with the effect computed from the memory before."""
    a, b = pair.a, pair.b
    if receive is not None:
        b.qp.post_recv(receive)
    data = bytes_of(a, wr.sg_list)
    target = number_at(b, wr.remote_addr) if wr.opcode in COUNTS else 0
    there = b.mr.read(wr.remote_addr, len(data)) if wr.opcode is WROpcode.RDMA_READ else b""

    a.qp.post_send(wr)
    pair.run()

    assert [(wc.wr_id, wc.status) for wc in a.poll_send_cq()] == [(wr.wr_id, WCStatus.SUCCESS)]
    received = b.poll_recv_cq()
    if receive is None:
        assert received == []
    else:
        assert [(wc.wr_id, wc.status) for wc in received] == [(receive.wr_id, WCStatus.SUCCESS)]
    match wr.opcode:
        case WROpcode.SEND | WROpcode.SEND_WITH_IMM:
            assert receive is not None
            room = GRH_ROOM if a.qp.qp_type is QPType.UD else 0
            assert bytes_of(b, receive.sg_list)[room : room + len(data)] == data
        case WROpcode.RDMA_WRITE | WROpcode.RDMA_WRITE_WITH_IMM:
            assert b.mr.read(wr.remote_addr, len(data)) == data
        case WROpcode.RDMA_READ:
            assert bytes_of(a, wr.sg_list) == there
        case WROpcode.ATOMIC_FETCH_AND_ADD:
            assert number_at(b, wr.remote_addr) == (target + wr.compare_add) % (1 << 64)
            assert int.from_bytes(bytes_of(a, wr.sg_list), "little") == target
        case WROpcode.ATOMIC_CMP_AND_SWP:
            swapped = wr.swap if target == wr.compare_add else target
            assert number_at(b, wr.remote_addr) == swapped
            assert int.from_bytes(bytes_of(a, wr.sg_list), "little") == target
        case WROpcode.ATOMIC_WRITE:
            assert b.mr.read(wr.remote_addr, 8) == wr.atomic_data
    if wr.opcode in (WROpcode.SEND_WITH_IMM, WROpcode.RDMA_WRITE_WITH_IMM):
        assert received[0].imm_data == wr.imm_data


@settings(max_examples=scaled(150))
@given(
    st.data(),
    st.sampled_from((QPType.RC, QPType.UC, QPType.UD)),
    st.sampled_from((256, 1024)),
    st.sampled_from(sorted(PROFILES)),
)
def test_request_succeeds_and_has_its_effect(
    data: st.DataObject, qp_type: QPType, mtu: int, profile: str
) -> None:
    pair = filled(qp_type=qp_type, mtu=mtu, profile=profile)
    requests = work_requests(
        pair.a.mr, pair.b.mr, qp_type=qp_type, mtu=mtu, max_inline=256, **pair.a.datagram
    )
    for wr in data.draw(st.lists(requests, min_size=1, max_size=3)):
        if wr.opcode in (WROpcode.FLUSH, WROpcode.ATOMIC_WRITE) and profile == "rxe":
            continue  # Linux 6.1 does not know it
        receive = None
        if wr.opcode in TAKES_RECEIVE:
            need = length_of(wr.sg_list) if wr.opcode in SENDS else 0
            need += GRH_ROOM if qp_type is QPType.UD else 0
            receive = data.draw(recv_requests(pair.b.mr, min_length=min(need, SIZE)))
            if length_of(receive.sg_list) < need:  # a SEND of all the memory, and a GRH
                continue
        carry_out(pair, wr, receive)


@given(st.data(), st.integers(8, 300), st.integers(8, 300))
def test_requests_stay_inside_their_regions(
    data: st.DataObject, local_size: int, remote_size: int
) -> None:
    pair = Pair()
    local = pair.a.pd.register(local_size, 0, iova=0x1003)
    remote = pair.b.pd.register(remote_size + 7, 0, iova=0x2005)

    wr = data.draw(work_requests(local, remote, mtu=256))

    touched = [address for sge in wr.sg_list for address in range(sge.addr, sge.addr + sge.length)]
    assert all(sge.length > 0 and sge.lkey == local.lkey for sge in wr.sg_list)
    assert len(touched) == len(set(touched))
    assert all(0x1003 <= address < 0x1003 + local_size for address in touched)
    if wr.opcode not in SENDS:
        is_word = wr.opcode in (
            WROpcode.ATOMIC_WRITE,
            WROpcode.ATOMIC_CMP_AND_SWP,
            WROpcode.ATOMIC_FETCH_AND_ADD,
        )
        size = 8 if is_word else wr.length or len(touched)
        assert wr.rkey == remote.rkey
        assert 0x2005 <= wr.remote_addr <= wr.remote_addr + size <= 0x2005 + remote_size + 7
        assert wr.remote_addr % (8 if is_word else 1) == 0


@given(st.data(), st.integers(0, 64), st.integers(0, 36))
def test_receive_has_the_requested_room(data: st.DataObject, low: int, more: int) -> None:
    pair = Pair()
    region = pair.a.pd.register(100, 1)

    receive = data.draw(recv_requests(region, min_length=low, max_length=low + more))

    assert low <= length_of(receive.sg_list) <= low + more
    pieces = sorted(receive.sg_list, key=lambda sge: sge.addr)
    assert all(one.addr + one.length <= other.addr for one, other in pairwise(pieces))
    pair.a.qp.post_recv(receive)


@pytest.mark.slow
def test_lengths_are_often_about_those_of_packets() -> None:
    pair = Pair()
    seen: set[int] = set()

    # Which examples are drawn differs between versions of Python and Hypothesis.
    @settings(max_examples=1000, derandomize=True, database=None)
    @given(work_requests(pair.a.mr, pair.b.mr, mtu=512, opcodes=[WROpcode.RDMA_WRITE]))
    def gather(wr: SendWR) -> None:
        seen.add(length_of(wr.sg_list))

    gather()
    assert {0, 1, 511, 512, 513, 1024} <= seen
    assert max(seen) > 5 * 512


@given(st.data())
def test_requests_have_the_requested_properties(data: st.DataObject) -> None:
    pair = Pair()
    asked = work_requests(
        pair.a.mr,
        pair.b.mr,
        opcodes=WRITES,
        max_length=77,
        signaled=False,
        max_inline=1,
        wr_id=5,
    )

    wr = data.draw(asked)

    assert wr.opcode in WRITES
    assert length_of(wr.sg_list) <= 77
    assert not wr.send_flags & SendFlags.SIGNALED
    assert not (wr.send_flags & SendFlags.INLINE and length_of(wr.sg_list) > 1)
    assert wr.wr_id == 5


@pytest.mark.parametrize(
    ("qp_type", "opcode"),
    [
        (QPType.UC, WROpcode.RDMA_READ),
        (QPType.UD, WROpcode.RDMA_WRITE),
        (QPType.RC, WROpcode.BIND_MW),
        (QPType.XRC_RECV, WROpcode.SEND),
    ],
)
def test_opcode_that_the_queue_pair_does_not_have_is_refused(
    qp_type: QPType, opcode: WROpcode
) -> None:
    pair = Pair()

    @given(work_requests(pair.a.mr, pair.b.mr, qp_type=qp_type, opcodes=[opcode]))
    def draw(wr: SendWR) -> None: ...

    with pytest.raises(EncodeError, match=f"on {qp_type.name}"):
        draw()


def test_region_without_room_for_an_atomic_is_refused() -> None:
    pair = Pair()
    small = pair.b.pd.register(7, 0)

    @given(work_requests(pair.a.mr, small, opcodes=[WROpcode.ATOMIC_WRITE]))
    def draw(wr: SendWR) -> None: ...

    with pytest.raises(EncodeError, match="room for 8 bytes"):
        draw()


def test_any_object_with_the_numbers_of_a_region_will_do() -> None:
    class Elsewhere:
        iova, length, lkey, rkey = 0x7000, 64, 0, 0x1234

    pair = Pair()
    made: list[SendWR] = []

    @settings(max_examples=5, database=None)
    @given(work_requests(pair.a.mr, Elsewhere(), opcodes=[WROpcode.RDMA_WRITE]))
    def gather(wr: SendWR) -> None:
        made.append(wr)

    gather()
    assert {wr.rkey for wr in made} == {0x1234}
    assert all(isinstance(sge, SGE) for wr in made for sge in wr.sg_list)
