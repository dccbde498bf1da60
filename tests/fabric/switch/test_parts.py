"""The parts of a switch, each alone: buffer, marks, scheduler, classifier, router."""

import random
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibwire.base.errors import EncodeError
from ibwire.base.units import US
from ibwire.fabric.switch import (
    Account,
    BufferTooSmall,
    Classifier,
    Ramp,
    Remark,
    Router,
    Scheduler,
    SharedBuffer,
    Strategy,
    Trust,
)
from ibwire.fabric.switch.routing import flow_of, murmur3
from ibwire_layers.build import build
from ibwire_layers.opcodes import OpCode
from ibwire_layers.packet import Packet

IPV4 = bytes.fromhex("0200000000020200000000010800")
HEADER = bytes.fromhex("4500006000000000401100000a0000010a000002")
UDP = bytes.fromhex("c00112b7004c0000")


def ipv4(dscp: int = 0, ecn: int = 0, port: int = 0xC001) -> bytes:
    header = bytearray(HEADER)
    header[1] = dscp << 2 | ecn
    return IPV4 + bytes(header) + port.to_bytes(2) + UDP[2:] + bytes(60)


# The buffer (reference/fabric#shared-buffer).


def lossless(**changes: Any) -> Account:
    return Account(**{"reserve": 4096, "headroom": 37_500, "is_lossless": True} | changes)


def fill(buffer: SharedBuffer, account: Account, size: int) -> int:
    """Frames of this size that are admitted until the sender has to stop."""
    count = 0
    while not buffer.must_pause(account):
        assert buffer.admit(account, size)
        count += 1
    return count


@pytest.mark.parametrize("senders", [1, 2, 4, 8])
def test_equal_senders_pause_at_their_share_of_the_buffer(senders: int) -> None:
    accounts = [lossless() for _ in range(senders + 1)]
    buffer = SharedBuffer(1 << 19, accounts)

    used = 0
    while not any(map(buffer.must_pause, accounts)):
        for account in accounts[:senders]:
            assert buffer.admit(account, 1)
        used += 1

    # By hand: over its reserve each holds B' / (8 + n), with alpha 1/8.
    shared = (1 << 19) - (senders + 1) * (37_500 + 4096)
    assert used - 4096 == pytest.approx(shared / (8 + senders), abs=2)


def test_headroom_takes_what_arrives_after_the_pause_and_no_more() -> None:
    account = lossless()
    buffer = SharedBuffer(1 << 20, [account])
    fill(buffer, account, 1106)

    while buffer.admit(account, 1106):
        pass

    assert account.in_headroom == 37_500 // 1106 * 1106


def test_frames_leave_headroom_first_and_the_sender_resumes_below_the_threshold() -> None:
    account = lossless()
    buffer = SharedBuffer(1 << 20, [account])
    fill(buffer, account, 1106)
    buffer.admit(account, 1106)
    buffer.admit(account, 1106)
    assert account.in_headroom

    while not buffer.may_resume(account):
        buffer.release(account, 1106)

    assert account.in_headroom == 0
    beyond = account.used - 4096
    assert beyond + 3072 <= buffer.threshold(account) < beyond + 1106 + 3072 + 1106 // 8 + 1


def test_lossy_priority_drops_at_its_threshold_but_keeps_its_reserve() -> None:
    greedy, modest = Account(alpha=Fraction(8)), Account(reserve=3000)
    buffer = SharedBuffer(100_000, [greedy, modest])

    while buffer.admit(greedy, 1000):
        pass

    # alpha 8: 8/9 of the shared 97,000 bytes are 86,222; the frame that crosses it still fits.
    assert greedy.used == 87_000
    assert all(buffer.admit(modest, 1000) for _ in range(3))
    assert not buffer.must_pause(modest) or not modest.is_lossless


def test_buffer_without_a_shared_part_is_refused_with_the_numbers() -> None:
    with pytest.raises(BufferTooSmall) as caught:
        SharedBuffer(100_000, [lossless(), lossless(), lossless()])

    assert "112,500" in str(caught.value)
    assert "12,288" in str(caught.value)


@pytest.mark.parametrize("wrong", [{"reserve": -1}, {"headroom": -1}, {"alpha": Fraction(0)}])
def test_accounts_refuse_wrong_numbers(wrong: Any) -> None:
    with pytest.raises(EncodeError):
        Account(**wrong)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9000)), max_size=300), st.integers(1, 16)
)
def test_buffer_never_holds_more_than_its_size_and_forgets_nothing(
    moves: list[tuple[int, int]], alpha: int
) -> None:
    accounts = [
        lossless(alpha=Fraction(alpha, 4)),
        Account(alpha=Fraction(8 * alpha)),
        Account(reserve=2000),
    ]
    buffer = SharedBuffer(200_000, accounts)
    held: list[tuple[Account, int]] = []

    for index, size in moves:
        if index == 3:
            if held:
                buffer.release(*held.pop(0))
        elif buffer.admit(accounts[index], size):
            held.append((accounts[index], size))
        total = sum(account.used + account.in_headroom for account in accounts)
        assert total == sum(size for _, size in held)
        assert total <= buffer.size
        assert 0 <= buffer.shared <= buffer.total
        assert all(account.in_headroom <= account.headroom for account in accounts)
    for account, size in held:
        buffer.release(account, size)
    assert buffer.shared == 0
    assert not any(account.used or account.in_headroom for account in accounts)


# Marks (reference/fabric#ecn-marking).


def test_ramp_marks_nothing_below_everything_above_and_a_part_between() -> None:
    ramp = Ramp(minimum=100_000, maximum=400_000, probability=0.2)
    draw = random.Random(1)

    def part(queued: int, times: int = 20_000) -> float:
        return sum(ramp.hits(queued, draw) for _ in range(times)) / times

    assert part(100_000) == 0
    assert part(400_001) == 1
    # Halfway between the limits half of 20 %; the deviation of 20,000 draws is 0.0021.
    assert part(250_000) == pytest.approx(0.1, abs=0.01)


def test_step_marks_above_the_limit() -> None:
    ramp = Ramp(minimum=200_000, maximum=200_000)

    assert [ramp.hits(size, random.Random(1)) for size in (200_000, 200_001)] == [False, True]


@pytest.mark.parametrize(
    "wrong", [{"minimum": -1}, {"maximum": 5}, {"probability": 1.5}, {"probability": -0.1}]
)
def test_ramps_refuse_wrong_numbers(wrong: Any) -> None:
    with pytest.raises(EncodeError):
        Ramp(**{"minimum": 10, "maximum": 20} | wrong)


# Priorities of a port (reference/fabric#scheduling).


def waiting(sizes: list[int]) -> int:
    """The priorities with a frame, as bits."""
    return sum(1 << lane for lane, size in enumerate(sizes) if size)


def served(scheduler: Scheduler, sizes: list[int], times: int) -> Counter[int]:
    """Bytes that each priority sends while all that have a size stay full."""
    found: Counter[int] = Counter()
    for _ in range(times):
        lane = scheduler.pick(sizes, 0, waiting(sizes))
        found[lane] += sizes[lane]
    return found


def test_strict_priorities_precede_all_others() -> None:
    scheduler = Scheduler(strict=(6,))

    assert served(scheduler, [1500, 0, 0, 1500, 0, 0, 90, 0], 100) == {6: 9000}


@pytest.mark.parametrize(
    "sizes",
    [
        [1500, 0, 0, 1500, 9000, 0, 0, 0],
        [64, 0, 0, 1500, 64, 0, 0, 0],
        [9000, 0, 0, 64, 64, 0, 0, 0],
    ],
)
def test_weights_share_the_bytes_whatever_the_frame_sizes(sizes: list[int]) -> None:
    scheduler = Scheduler(weights={0: 1, 3: 2, 4: 5})

    found = served(scheduler, sizes, 40_000)

    total = sum(found.values())
    for lane, weight in ((0, 1), (3, 2), (4, 5)):
        # Off by no more than a frame and a turn.
        assert abs(found[lane] - total * weight / 8) <= max(sizes) + 1600 * weight


def test_paused_priority_leaves_its_share_to_others() -> None:
    scheduler = Scheduler(weights={3: 9, 0: 1})

    both, one = [1500, 0, 0, 1500, 0, 0, 0, 0], [0, 0, 0, 1500, 0, 0, 0, 0]
    assert {scheduler.pick(both, 1 << 3, waiting(both)) for _ in range(20)} == {0}
    assert scheduler.pick(one, 1 << 3, waiting(one)) == -1


def test_priority_that_was_idle_saves_no_credit() -> None:
    scheduler = Scheduler(weights={0: 1, 3: 1})
    for _ in range(100):
        scheduler.pick([1500, 0, 0, 0, 0, 0, 0, 0], 0, 1)

    found = served(scheduler, [1500, 0, 0, 1500, 0, 0, 0, 0], 100)

    assert abs(found[0] - found[3]) <= 2 * 1600


def test_weight_of_a_strict_priority_is_refused() -> None:
    with pytest.raises(EncodeError, match="strict"):
        Scheduler(strict=(3,), weights={3: 5})


# The priority of a frame.


def test_dscp_gives_the_priority() -> None:
    # DSCP 26 is priority 3, 48 is 6 in the usual table.
    classify = Classifier().priority

    assert [classify(ipv4(dscp)) for dscp in (0, 26, 48, 63)] == [0, 3, 6, 7]
    tagged = IPV4[:12] + bytes.fromhex("8100a00a0800") + ipv4(26)[14:]
    assert classify(tagged) == 3
    assert classify(IPV4[:12] + b"\x86\xdd" + bytes.fromhex("66800000") + bytes(60)) == 3


def test_pcp_gives_the_priority_where_the_tag_is_trusted() -> None:
    classify = Classifier(Trust.PCP, default=1).priority

    assert classify(IPV4[:12] + bytes.fromhex("8100a00a0800") + ipv4(26)[14:]) == 5
    assert classify(ipv4(26)) == 1


def test_tables_of_priorities_can_be_changed() -> None:
    classify = Classifier(by_dscp={26: 4, 0: 2}).priority

    assert [classify(ipv4(dscp)) for dscp in (0, 26, 27)] == [2, 4, 3]
    with pytest.raises(EncodeError, match="dscp 26"):
        Classifier(by_dscp={26: 8})
    with pytest.raises(EncodeError):
        Classifier(by_dscp={64: 1})


@given(st.binary(max_size=60))
def test_every_frame_has_a_priority(frame: bytes) -> None:
    for trust in Trust:
        assert Classifier(trust).priority(frame) in range(8)


def test_remark_changes_dscp_and_pcp_and_nothing_else() -> None:
    """reference/fabric#remarking."""
    plain = build(OpCode.RC_SEND_ONLY, payload=b"1234", **{"ip.dscp": 26, "ip.ecn": 2})
    tagged = plain[:12] + b"\x81\x00\x60\x05" + plain[12:]

    changed = Remark(dscp=10, pcp=2).apply(tagged)

    assert changed[:14] == tagged[:14]
    assert changed[14:16] == b"\x40\x05"  # PCP 2, the same VLAN
    packet = Packet.parse(Remark(dscp=10, pcp=2).apply(plain))
    assert packet == Packet.parse(
        build(OpCode.RC_SEND_ONLY, payload=b"1234", **{"ip.dscp": 10, "ip.ecn": 2})
    )
    assert changed[18:] == Remark(dscp=10).apply(plain)[14:]
    assert Remark(pcp=2).apply(plain) == plain
    assert Remark(dscp=26, pcp=3).apply(tagged) == tagged


@given(
    st.binary(max_size=80), st.sampled_from([b"\x08\x00", b"\x86\xdd", b"\x89\x15", b"\x81\x00"])
)
def test_any_frame_can_be_remarked(rest: bytes, kind: bytes) -> None:
    frame = bytes(12) + kind + rest

    changed = Remark(dscp=63, pcp=7).apply(frame)

    assert len(changed) == len(frame)
    assert Remark(dscp=63, pcp=7).apply(changed) == changed


# Paths (reference/fabric#ecmp).


def test_murmur3_agrees_with_published_values() -> None:
    # Values of MurmurHash3_x86_32 that other implementations publish in their tests.
    assert murmur3(b"", 0) == 0
    assert murmur3(b"", 1) == 0x514E28B7
    assert murmur3(b"\xff\xff\xff\xff", 0) == 0x76293B50
    assert murmur3(b"\x21\x43\x65\x87", 0) == 0xF55B516B
    assert murmur3(b"test", 0x9747B28C) == 0x704B81DC


def test_flow_keeps_its_path_and_flows_spread() -> None:
    router = Router({IPV4[:6]: [4, 5, 6, 7]}, seed=3)

    ports = [router.port(ipv4(port=port)) for port in range(0xC000, 0xC000 + 4000)]

    assert ports[:50] == [router.port(ipv4(port=port)) for port in range(0xC000, 0xC000 + 50)]
    counts = Counter(ports)
    # 1000 each; four deviations of a fair choice are 110.
    assert set(counts) == {4, 5, 6, 7}
    assert all(abs(count - 1000) < 110 for count in counts.values())


def test_switches_with_other_seeds_choose_otherwise() -> None:
    one, other = (Router({IPV4[:6]: [0, 1]}, seed=seed) for seed in (1, 2))

    same = sum(one.port(ipv4(port=p)) == other.port(ipv4(port=p)) for p in range(1000))

    assert 400 < same < 600


def test_adaptive_takes_the_emptiest_port() -> None:
    queued = {4: 9000, 5: 10, 6: 9000}
    router = Router({IPV4[:6]: [4, 5, 6]}, strategy=Strategy.ADAPTIVE, queued=queued.__getitem__)

    assert {router.port(ipv4()) for _ in range(20)} == {5}


def test_packets_take_turns_or_random_ports() -> None:
    turns = Router({IPV4[:6]: [4, 5]}, strategy=Strategy.ROUND_ROBIN)
    spray = Router({IPV4[:6]: [4, 5]}, strategy=Strategy.SPRAY)

    assert Counter(turns.port(ipv4()) for _ in range(100)) == {4: 50, 5: 50}
    assert 350 < Counter(spray.port(ipv4()) for _ in range(1000))[4] < 650


def test_weights_share_the_flows_of_a_destination() -> None:
    router = Router({IPV4[:6]: [4, 5], b"other.": [4]}, seed=3, weights={4: 6, 5: 2})

    counts = Counter(router.port(ipv4(port=port)) for port in range(0xC000, 0xC000 + 4000))
    router.withdraw(4)

    assert abs(counts[4] - 3000) < 110  # four deviations of 4000 choices of 3 in 4
    assert counts.total() == 4000
    assert {router.port(ipv4(port=port)) for port in range(100)} == {5}
    assert router.port(b"other." + IPV4[6:]) == 4


def test_flowlet_keeps_its_port_until_the_gap() -> None:
    queued = {4: 0, 5: 10}
    router = Router(
        {IPV4[:6]: [4, 5]},
        strategy=Strategy.FLOWLET,
        queued=queued.__getitem__,
        flowlet_gap=5 * US,
    )
    ports = [router.port(ipv4(), 0)]
    queued[4] = 100

    ports += [router.port(ipv4(), now) for now in (4 * US, 9 * US - 1)]
    other = router.port(ipv4(port=7), 9 * US)
    late = router.port(ipv4(), 14 * US - 1)  # the whole gap after the packet before
    router.withdraw(5)

    assert ports == [4, 4, 4]
    assert (other, late) == (5, 5)
    assert router.port(ipv4(), 15 * US) == 4


@pytest.mark.parametrize(
    "wrong", [{"weights": {4: 0}}, {"weights": {4: 65}}, {"flowlet_gap": 0}], ids=str
)
def test_routers_refuse_wrong_numbers(wrong: Any) -> None:
    with pytest.raises(EncodeError):
        Router({}, **wrong)


def test_unknown_destination_has_no_port() -> None:
    assert Router({}).port(ipv4()) is None


def test_flow_of_a_real_packet_is_addresses_and_ports() -> None:
    frame = build(OpCode.RC_SEND_ONLY, payload=b"1234")

    flow = flow_of(frame)

    assert flow == frame[26:34] + frame[34:38]


@given(st.binary(max_size=50), st.sampled_from([b"", b"\x08\x00", b"\x86\xdd", b"\x81\x00"]))
def test_every_frame_has_a_flow(rest: bytes, kind: bytes) -> None:
    flow = flow_of(bytes(12) + kind + rest)

    assert len(flow) <= 36
