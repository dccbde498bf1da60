"""Requests that arrive again: reference/transport#duplicates. Nothing is executed twice."""

from __future__ import annotations

from typing import Any

import pytest

from each_case import each_case
from ibwire.rc.attributes import QPState
from ibwire.rc.profile import CONNECTX, PROFILES, RDMAVT, RXE, SPEC, Profile
from ibwire.testing import Peer, summaries
from ibwire_layers import headers as h
from ibwire_layers.opcodes import OpCode
from ibwire_layers.packet import Packet

R = OpCode

every_profile = each_case("profile", PROFILES.values(), ids=lambda p: p.name)
every_profile_but_rxe = each_case("profile", [SPEC, RDMAVT, CONNECTX], ids=lambda p: p.name)
every_profile_with_annex_a19 = each_case(
    "profile", [p for p in PROFILES.values() if p is not RXE], ids=lambda p: p.name
)


def msn(packet: Packet) -> int:
    aeth = packet.extension(h.AETH)
    assert aeth is not None
    return int(aeth.msn)


def original(packet: Packet) -> int:
    answer = packet.extension(h.AtomicAckETH)
    assert answer is not None
    return int(answer.orig)


@every_profile
@pytest.mark.parametrize(
    ("opcode", "payload"),
    [(R.RC_SEND_ONLY, b"old!"), (R.RC_RDMA_WRITE_ONLY, b"old!"), (R.RC_SEND_ONLY, b"")],
)
def test_duplicate_send_or_write_is_acknowledged_and_not_executed(
    opcode: int, payload: bytes, profile: Profile
) -> None:
    lone = Peer(mtu=256, profile=profile)
    for _ in range(3):
        lone.post_recv(256)
    lone.receive_packet(opcode, 100, payload, ack_req=1)
    lone.receive_packet(R.RC_RDMA_WRITE_ONLY, 101, b"new!", ack_req=1)
    taken, before = len(lone.qp.receives.waiting), lone.memory

    (ack,) = lone.receive_packet(opcode, 100, payload, ack_req=1)

    assert ack.bth.psn == 101  # the newest, not the one that came again
    assert msn(ack) == 2
    assert lone.memory == before
    assert len(lone.qp.receives.waiting) == taken
    assert lone.qp.responder.epsn == 102
    assert lone.qp.counters.duplicates == 1


@pytest.mark.parametrize(
    ("profile", "answers"),
    [(SPEC, 1), (CONNECTX, 1), (RXE, 1), (RDMAVT, 0)],
    ids=lambda value: getattr(value, "name", value),
)
def test_duplicate_that_does_not_ask(profile: Profile, answers: int) -> None:
    """Only rdmavt requires AckReq (drop-one-last for rxe)."""
    lone = Peer(mtu=256, profile=profile)
    lone.receive_packet(R.RC_RDMA_WRITE_ONLY, 100, b"abcd", ack_req=1)

    assert len(lone.receive_packet(R.RC_RDMA_WRITE_ONLY, 100, b"abcd", ack_req=0)) == answers


def test_rxe_acknowledges_duplicates_with_the_newest_send_write_or_atomic() -> None:
    """Stale after READs, 0xFFFFFF before the first (probe-odd-frames)."""
    lone = Peer(mtu=256, profile=RXE)
    assert summaries(lone.receive_packet(R.RC_SEND_ONLY, 99, b"abcd", ack_req=1)) == [
        "ACKNOWLEDGE 16777215 0x1f"
    ]

    lone.receive_packet(R.RC_RDMA_WRITE_ONLY, 100, b"abcd", ack_req=1)
    lone.receive_packet(R.RC_RDMA_READ_REQUEST, 101, dma_len=600)

    assert summaries(lone.receive_packet(R.RC_SEND_ONLY, 99, b"abcd")) == ["ACKNOWLEDGE 100 0x1f"]


def test_spec_acknowledges_duplicates_with_the_psn_before_the_expected_one() -> None:
    lone = Peer(mtu=256)
    lone.receive_packet(R.RC_RDMA_READ_REQUEST, 100, dma_len=600)

    assert summaries(lone.receive_packet(R.RC_SEND_ONLY, 99, b"abcd")) == ["ACKNOWLEDGE 102 0x00"]


@every_profile
def test_duplicate_in_the_middle_of_a_message_does_not_disturb_it(profile: Profile) -> None:
    """Opcode and position of the message under way stay (reference/habits#rxe-fixed-bugs)."""
    lone = Peer(mtu=256, profile=profile)
    lone.receive_packet(R.RC_RDMA_READ_REQUEST, 100, dma_len=4)
    lone.receive_packet(R.RC_RDMA_WRITE_FIRST, 101, b"a" * 256, dma_len=700)
    lone.receive_packet(R.RC_RDMA_READ_REQUEST, 100, dma_len=4)
    lone.receive_packet(R.RC_RDMA_WRITE_MIDDLE, 102, b"b" * 256)
    lone.receive_packet(R.RC_RDMA_WRITE_FIRST, 101, b"x" * 256, dma_len=700)

    heard = lone.receive_packet(R.RC_RDMA_WRITE_LAST, 103, b"c" * 188, ack_req=1)

    assert [(p.opcode_name, p.bth.psn) for p in heard] == [("RC_ACKNOWLEDGE", 103)]
    assert lone.memory[:700] == b"a" * 256 + b"b" * 256 + b"c" * 188


@every_profile
@pytest.mark.parametrize(
    ("opcode", "said", "payload"),
    [
        pytest.param(R.RC_RDMA_WRITE_ONLY, {"rkey": 1}, b"abcd", id="bad key"),
        pytest.param(R.RC_RDMA_WRITE_LAST, {}, b"abcd", id="out of sequence"),
        pytest.param(R.RC_RDMA_WRITE_ONLY, {"dma_len": 77}, b"abcd", id="wrong length"),
        pytest.param(R.RC_RDMA_READ_REQUEST, {"dma_len": 1 << 31}, b"", id="READ too long"),
        pytest.param(R.RC_RDMA_READ_REQUEST, {"rkey": 1, "dma_len": 4}, b"", id="READ bad key"),
        pytest.param(R.RC_FETCH_ADD, {"va": 3}, b"", id="atomic unaligned"),
    ],
)
def test_malformed_duplicate_is_never_naked(
    opcode: int, said: dict[str, int], payload: bytes, profile: Profile
) -> None:
    lone = Peer(mtu=256, profile=profile)
    lone.receive_packet(R.RC_RDMA_WRITE_ONLY, 100, b"abcd")

    heard = lone.receive_packet(opcode, 100, payload, ack_req=1, **said)

    syndromes = [aeth.syndrome for p in heard if (aeth := p.extension(h.AETH))]
    assert all(syndrome < 0x20 for syndrome in syndromes)
    assert lone.qp.state is QPState.RTS


# READ.


def read(lone: Peer, first: int, *, va: int = 0, size: int = 1024, **said: Any) -> list[str]:
    va += lone.mr.iova
    return summaries(
        lone.receive_packet(R.RC_RDMA_READ_REQUEST, first, va=va, dma_len=size, **said)
    )


def after_a_read(profile: Profile) -> Peer:
    """A READ of 1024 bytes, PSN 100 to 103, has been answered."""
    lone = Peer(mtu=256, profile=profile)
    lone.mr.write(lone.mr.iova, bytes(range(256)) * 4)
    assert len(read(lone, 100)) == 4
    return lone


@every_profile
def test_duplicate_read_is_answered_whole_again(profile: Profile) -> None:
    lone = after_a_read(profile)
    code = 0x1F if profile is RXE else 0

    assert read(lone, 100) == [
        f"RDMA_READ_RESPONSE_FIRST 100 {code:#04x}",
        "RDMA_READ_RESPONSE_MIDDLE 101",
        "RDMA_READ_RESPONSE_MIDDLE 102",
        f"RDMA_READ_RESPONSE_LAST 103 {code:#04x}",
    ]
    assert (lone.qp.responder.epsn, lone.qp.responder.msn) == (104, 1)


@pytest.mark.parametrize(
    ("profile", "names"),
    [
        (SPEC, ["FIRST 102 0x00", "LAST 103 0x00"]),
        (RDMAVT, ["FIRST 102 0x00", "LAST 103 0x00"]),
        (RXE, ["MIDDLE 102", "LAST 103 0x1f"]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_rest_of_a_read_is_answered_from_there(profile: Profile, names: list[str]) -> None:
    """rxe continues with MIDDLE (drop-read-response.b)."""
    lone = after_a_read(profile)

    assert read(lone, 102, va=512, size=512) == [f"RDMA_READ_RESPONSE_{name}" for name in names]


@pytest.mark.parametrize(
    ("profile", "name"),
    [(SPEC, "ONLY 103 0x00"), (RDMAVT, "ONLY 103 0x00"), (RXE, "LAST 103 0x1f")],
    ids=lambda value: getattr(value, "name", ""),
)
def test_last_packet_of_a_read_is_answered_alone(profile: Profile, name: str) -> None:
    lone = after_a_read(profile)

    assert read(lone, 103, va=768, size=256) == [f"RDMA_READ_RESPONSE_{name}"]


@pytest.mark.parametrize(
    ("profile", "answered"),
    [(SPEC, True), (RDMAVT, False), (RXE, True)],
    ids=lambda value: getattr(value, "name", value),
)
def test_part_of_a_read_that_ends_before_its_end(profile: Profile, answered: bool) -> None:
    lone = after_a_read(profile)

    heard = read(lone, 101, va=256, size=256)

    assert [each.split()[1] for each in heard] == (["101"] if answered else [])


def test_rxe_narrows_what_may_be_asked_for_again() -> None:
    """Each replay moves the accepted start forward."""
    lone = after_a_read(RXE)
    assert len(read(lone, 102, va=512, size=512)) == 2

    assert read(lone, 101, va=256, size=768) == []
    assert len(read(lone, 102, va=512, size=512)) == 2
    spec = after_a_read(SPEC)
    assert len(read(spec, 102, va=512, size=512)) == 2
    assert len(read(spec, 101, va=256, size=768)) == 3


@every_profile
@pytest.mark.parametrize(
    ("psn", "va", "size"),
    [
        pytest.param(100, 0, 1025, id="longer"),
        pytest.param(101, 256, 1024, id="beyond the end"),
        pytest.param(101, 0, 768, id="address of another packet"),
        pytest.param(100, 4, 1020, id="address in a packet"),
        pytest.param(99, 0, 256, id="PSN before it"),
    ],
)
def test_duplicate_read_outside_the_original_is_dropped(
    psn: int, va: int, size: int, profile: Profile
) -> None:
    lone = after_a_read(profile)

    assert read(lone, psn, va=va, size=size) == []
    assert lone.qp.state is QPState.RTS


@every_profile
def test_duplicate_read_with_another_key_is_dropped(profile: Profile) -> None:
    lone = after_a_read(profile)

    assert read(lone, 100, rkey=lone.pd.register(4096, 7).rkey) == []


@every_profile
def test_replayed_read_is_executed_again_on_the_memory_of_now(profile: Profile) -> None:
    lone = after_a_read(profile)
    lone.mr.write(lone.mr.iova, b"\xaa" * 1024)

    heard = lone.receive_packet(R.RC_RDMA_READ_REQUEST, 100, va=lone.mr.iova, dma_len=1024)

    assert b"".join(p.payload for p in heard) == b"\xaa" * 1024


@every_profile
def test_replay_carries_the_msn_of_now(profile: Profile) -> None:
    """loss-ack-only.a packet 245."""
    lone = after_a_read(profile)
    lone.receive_packet(R.RC_RDMA_WRITE_ONLY, 104, b"abcd")

    heard = lone.receive_packet(R.RC_RDMA_READ_REQUEST, 100, va=lone.mr.iova, dma_len=1024)

    assert msn(heard[0]) == 2


def test_duplicate_of_a_read_that_is_being_answered_restarts_it() -> None:
    lone = Peer(mtu=256)
    frame = lone.packet(R.RC_RDMA_READ_REQUEST, 100, dma_len=1024).build()
    lone.device.receive(frame, 0)
    first = [lone.device.poll_transmit(0) for _ in range(2)]
    assert None not in first

    assert [each.split()[1] for each in summaries(lone.receive(frame))] == [
        "100",
        "101",
        "102",
        "103",
    ]


def test_replays_leave_in_psn_order_before_what_waits() -> None:
    lone = Peer(mtu=256)
    for psn in (100, 104):
        lone.receive_packet(R.RC_RDMA_READ_REQUEST, psn, dma_len=1024)
    third = lone.packet(R.RC_RDMA_READ_REQUEST, 108, dma_len=256)
    frames = [third, lone.packet(R.RC_RDMA_READ_REQUEST, 104, dma_len=1024)]
    frames.append(lone.packet(R.RC_RDMA_READ_REQUEST, 100, dma_len=1024))
    for frame in frames:
        lone.device.receive(frame.build(), 0)

    psns = [p.bth.psn for p in lone.transmit()]
    assert psns == list(range(100, 109))


@every_profile
def test_a_read_beyond_the_saved_ones_is_dropped(profile: Profile) -> None:
    lone = Peer(mtu=256, profile=profile, max_dest_rd_atomic=2)
    for psn in (100, 101, 102):
        assert read(lone, psn, size=4)

    assert read(lone, 100, size=4) == []
    assert len(read(lone, 101, size=4)) == 1
    assert len(read(lone, 102, size=4)) == 1


# Atomics, FLUSH, ATOMIC WRITE.


@every_profile
@pytest.mark.parametrize("opcode", [R.RC_FETCH_ADD, R.RC_COMPARE_SWAP])
def test_duplicate_atomic_returns_the_first_result_and_is_not_executed(
    opcode: int, profile: Profile
) -> None:
    lone = Peer(mtu=256, profile=profile)
    lone.mr.write(lone.mr.iova, (5).to_bytes(8, "little"))
    (first,) = lone.receive_packet(opcode, 100, swap=3, compare=5)
    once = lone.memory
    lone.mr.write(lone.mr.iova + 8, b"other")
    after = lone.memory

    (again,) = lone.receive_packet(opcode, 100, swap=3, compare=5)

    assert once[:8] != bytes(8)
    assert (again.opcode_name, again.bth.psn) == ("RC_ATOMIC_ACKNOWLEDGE", 100)
    assert original(again) == original(first) == 5
    assert lone.memory == after
    assert msn(again) == 1


@every_profile_with_annex_a19
@pytest.mark.parametrize(
    ("opcode", "payload", "said"),
    [
        (R.RC_ATOMIC_WRITE, b"12345678", {}),
        (R.RC_FLUSH, b"", {"plt": 1, "dma_len": 8}),
    ],
)
def test_duplicate_of_an_evicted_flush_or_atomic_write_is_dropped(
    opcode: int, payload: bytes, said: dict[str, int], profile: Profile
) -> None:
    """From one of max_dest_rd_atomic saved entries (reference/transport#saved-resources)."""
    lone = Peer(mtu=256, profile=profile, max_dest_rd_atomic=2)
    for psn in (100, 101, 102):
        lone.receive_packet(opcode, psn, payload, **said)

    assert lone.receive_packet(opcode, 100, payload, **said) == []
    assert [p.bth.psn for p in lone.receive_packet(opcode, 101, payload, **said)] == [101]


@every_profile
@pytest.mark.parametrize(
    ("opcode", "payload", "said"),
    [
        (R.RC_ATOMIC_WRITE, b"12345678", {}),
        (R.RC_FLUSH, b"", {"plt": 1, "dma_len": 8}),
    ],
)
def test_old_psn_that_was_no_flush_or_atomic_write_is_not_answered_as_one(
    opcode: int, payload: bytes, said: dict[str, int], profile: Profile
) -> None:
    lone = Peer(mtu=256, profile=profile)
    lone.receive_packet(R.RC_RDMA_WRITE_ONLY, 100, b"abcd")

    assert lone.receive_packet(opcode, 100, payload, **said) == []
    assert lone.receive_packet(opcode, 99, payload, **said) == []


@every_profile
def test_duplicate_of_an_evicted_atomic_is_dropped(profile: Profile) -> None:
    lone = Peer(mtu=256, profile=profile, max_dest_rd_atomic=2)
    for psn in (100, 101, 102):
        lone.receive_packet(R.RC_FETCH_ADD, psn, swap=1)

    assert lone.receive_packet(R.RC_FETCH_ADD, 100, swap=1) == []
    assert [original(p) for p in lone.receive_packet(R.RC_FETCH_ADD, 101, swap=1)] == [1]
    assert lone.memory[0] == 3


@every_profile_but_rxe
def test_duplicate_atomic_with_another_opcode_is_dropped(profile: Profile) -> None:
    lone = Peer(mtu=256, profile=profile)
    lone.receive_packet(R.RC_FETCH_ADD, 100, swap=1)

    assert lone.receive_packet(R.RC_COMPARE_SWAP, 100, swap=1) == []


@every_profile_with_annex_a19
@pytest.mark.parametrize(
    ("opcode", "payload", "said"),
    [
        (R.RC_ATOMIC_WRITE, b"12345678", {}),
        (R.RC_FLUSH, b"", {"plt": 1, "dma_len": 8}),
    ],
)
def test_duplicate_flush_or_atomic_write_is_answered_and_not_executed(
    opcode: int, payload: bytes, said: dict[str, int], profile: Profile
) -> None:
    lone = Peer(mtu=256, profile=profile)
    assert summaries(lone.receive_packet(opcode, 100, payload, **said)) == [
        "RDMA_READ_RESPONSE_ONLY 100 0x00"
    ]
    lone.mr.write(lone.mr.iova, b"newer...")

    (again,) = lone.receive_packet(opcode, 100, payload, **said)

    assert (again.opcode_name, again.bth.psn, again.payload) == (
        "RC_RDMA_READ_RESPONSE_ONLY",
        100,
        b"",
    )
    assert lone.memory[:8] == b"newer..."
    assert msn(again) == 1


# The NAK latch.


@pytest.mark.parametrize(
    ("profile", "naks"),
    [(SPEC, 0), (RXE, 0), (CONNECTX, 0), (RDMAVT, 1)],
    ids=lambda value: getattr(value, "name", value),
)
def test_an_answered_duplicate_lets_rdmavt_nak_the_same_gap_again(
    profile: Profile, naks: int
) -> None:
    """qib_rc.c `qib_rc_rcv_error`: not one that is dropped, as it asks for no ACK."""
    lone = Peer(mtu=256, profile=profile)
    lone.receive_packet(R.RC_RDMA_WRITE_ONLY, 100, b"abcd")
    assert summaries(lone.receive_packet(R.RC_RDMA_WRITE_ONLY, 103, b"abcd")) == [
        "ACKNOWLEDGE 101 0x60"
    ]
    lone.receive_packet(R.RC_RDMA_WRITE_ONLY, 100, b"abcd", ack_req=0)
    assert lone.receive_packet(R.RC_RDMA_WRITE_ONLY, 103, b"abcd") == []
    lone.receive_packet(R.RC_RDMA_WRITE_ONLY, 100, b"abcd", ack_req=1)

    assert len(lone.receive_packet(R.RC_RDMA_WRITE_ONLY, 103, b"abcd")) == naks


def test_duplicates_faster_than_the_line_do_not_pile_up() -> None:
    lone = after_a_read(RXE)
    frame = lone.packet(R.RC_RDMA_WRITE_ONLY, 99, b"abcd").build()
    for _ in range(5000):
        lone.device.receive(frame, 0)

    assert len(lone.transmit()) <= 1024
    assert lone.qp.counters.dropped >= 3900
