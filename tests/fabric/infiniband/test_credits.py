"""Credits and VL arbitration of InfiniBand links, by hand calculation."""

from collections import Counter

import pytest

from ibwire.fabric.infiniband import lrh
from ibwire.fabric.infiniband.arbitration import Arbiter, read_table
from ibwire.fabric.infiniband.credits import (
    ReceiveBuffer,
    SendCredits,
    blocks_of,
    flow_control_packet,
    read_flow_control,
)
from ibwire_layers import crc


def test_a_flow_control_packet_has_the_bytes_of_the_golden_vectors() -> None:
    """tests/golden/vectors.json: ib_fcp_op0_vl3 and ib_fcp_op0_vl14."""
    assert flow_control_packet(3, sent=0x123, limit=0x456).hex() == "01233456d19f"
    assert flow_control_packet(14, sent=0xFFF, limit=0x7FF).hex() == "0fffe7ff0484"
    assert read_flow_control(bytes.fromhex("01233456d19f")) == (0, 3, 0x123, 0x456)
    assert read_flow_control(bytes.fromhex("01233457d19f")) is None


def test_128_blocks_carry_one_packet_of_4_kib_a_round_trip() -> None:
    """LRH to VCRC are 8 + 12 + 4096 + 4 + 2 = 4122 bytes, 65 blocks: two of them need 130."""
    sender, receiver = SendCredits(), ReceiveBuffer(128, 16)
    cost = blocks_of(4122)
    before = sender.allows(cost)
    sender.limit = receiver.limit

    assert (cost, before) == (65, False)
    assert sender.allows(cost)
    sender.sent += cost
    assert not sender.allows(cost)
    assert receiver.take(cost)
    assert receiver.limit == 128
    assert receiver.free(cost)
    sender.limit = receiver.limit
    assert (sender.limit, sender.allows(cost)) == (193, True)


def test_counts_pass_4096() -> None:
    sender, receiver = SendCredits(), ReceiveBuffer(100, 1)
    for _ in range(200):
        sender.limit = receiver.limit
        assert sender.allows(65)
        sender.sent = (sender.sent + 65) % 4096
        assert not sender.allows(65)
        assert receiver.take(65)
        receiver.free(65)

    assert sender.sent == receiver.accepted == 200 * 65 % 4096


def test_a_buffer_takes_no_more_than_its_size() -> None:
    receiver = ReceiveBuffer(100, 1)

    assert [receiver.take(60), receiver.take(60), receiver.held] == [True, False, 60]


def shares(arbiter: Arbiter, sendable: int, size: int, packets: int) -> Counter[int]:
    sizes = [size] * 15
    return Counter(arbiter.choose(sendable, sizes) for _ in range(packets))


def test_lanes_share_the_line_by_their_weights() -> None:
    arbiter = Arbiter([], [(0, 64), (1, 128), (2, 0)], 255)

    found = shares(arbiter, 0b111, 4096, 3000)

    assert found == {0: 1000, 1: 2000}


def test_without_a_limit_high_priority_starves_the_other_table() -> None:
    assert shares(Arbiter([(1, 4)], [(0, 4)], 255), 0b11, 1024, 100) == {1: 100}


@pytest.mark.parametrize(("limit", "high"), [(0, 1), (1, 4), (2, 8)])
def test_low_priority_gets_a_packet_when_the_limit_is_spent(limit: int, high: int) -> None:
    """A limit of 1 is 4096 bytes, four packets of 1024; 0 is one packet."""
    found = shares(Arbiter([(1, 4)], [(0, 4)], limit), 0b11, 1024, 10 * (high + 1))

    assert found == {0: 10, 1: 10 * high}


def test_a_lane_in_no_table_does_not_send() -> None:
    arbiter = Arbiter([], read_table(bytes([0, 4, 1, 4]).ljust(64, b"\0")), 0)

    assert arbiter.choose(0b100, [64] * 15) == -1
    assert arbiter.choose(0b110, [64] * 15) == 1


def test_the_vcrc_follows_the_lane_and_the_icrc_does_not() -> None:
    body = bytes.fromhex("0002000300080002") + bytes(range(22))
    frame = body + crc.vcrc(body)

    moved = lrh.on_lane(frame, 5)

    assert moved[0] == 0x50
    assert moved[1:-2] == frame[1:-2]
    assert moved[-2:] == crc.vcrc(moved[:-2])
    assert lrh.on_lane(moved, 0) == frame
