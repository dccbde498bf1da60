"""Which stream sends when: turns by weight, by message and by packet."""

from collections import Counter
from typing import Any

import pytest

from ibwire.base.errors import EncodeError
from ibwire.traffic.cycle import Cycle, Turn, make_cycle
from ibwire.traffic.stream import Stream, Verb, parse_qpns


def stream(qpns: str, **more: Any) -> Stream:
    return Stream(qpns=parse_qpns(qpns), src="10.0.0.1", dst="10.0.0.2", **more)


def order(cycle: Cycle) -> list[int]:
    return list(cycle.qpn.tolist())


def test_queue_pairs_of_equal_weight_take_turns() -> None:
    assert order(make_cycle([stream("5, 3, 9")])) == [5, 3, 9]


def test_weights_are_evenly_spread() -> None:
    # Five turns of one and two of the other, the j-th of n at (2j + 1) / 2n: 1 at .1 .3 .5
    # .7 .9, 2 at .25 .75.
    assert order(make_cycle([stream("1*5, 2*2")])) == [1, 2, 1, 1, 1, 2, 1]


def test_weights_with_a_common_factor_make_no_longer_cycle() -> None:
    assert len(make_cycle([stream("1*40, 2*20")])) == 3


def test_streams_share_by_messages_whatever_their_queue_pairs() -> None:
    cycle = make_cycle([stream("1..7", weight=3), stream("11..15")])

    by_stream = Counter(cycle.stream.tolist())
    by_pair = Counter(order(cycle))
    assert by_stream[0] == 3 * by_stream[1]
    assert len({by_pair[qpn] for qpn in range(1, 8)}) == 1
    assert len({by_pair[qpn] for qpn in range(11, 16)}) == 1


def test_by_message_packets_of_a_message_follow_one_another() -> None:
    cycle = make_cycle([stream("1, 2", size=3000)])

    assert order(cycle) == [1, 1, 1, 2, 2, 2]
    assert cycle.psn.tolist() == [0, 1, 2, 0, 1, 2]


def test_by_packet_messages_interleave() -> None:
    cycle = make_cycle([stream("1, 2", size=3000)], Turn.PACKET)

    assert order(cycle) == [1, 2, 1, 2, 1, 2]
    assert cycle.psn.tolist() == [0, 0, 1, 1, 2, 2]


def test_by_packet_weights_still_count_messages() -> None:
    cycle = make_cycle([stream("1", size=4096), stream("2", size=1024)], Turn.PACKET)

    assert order(cycle) == [1, 1, 2, 1, 1]
    assert cycle.message_step.tolist() == [1] * 5


def test_many_queue_pairs_make_a_cycle() -> None:
    assert len(make_cycle([stream("0..0xffff")])) == 65536


@pytest.mark.parametrize(
    "streams",
    [
        [{"qpns": "0..0xffff", "size": 1 << 20}],
        [{"qpns": "1..1021", "weight": 1 << 20}, {"qpns": "2000..3030", "weight": 999_983}],
    ],
    ids=["messages", "weights"],
)
def test_a_cycle_that_would_be_too_long_is_refused(streams: list[dict[str, Any]]) -> None:
    found = [stream(**each) for each in streams]

    with pytest.raises(EncodeError, match="cycle of"):
        make_cycle(found)


def test_a_cycle_lasts_until_what_is_wrong_comes_round() -> None:
    # Three packets a message, every fourth is wrong: four messages.
    assert len(make_cycle([stream("1", size=3000, fields_every=4)])) == 12


def test_a_message_that_would_be_a_cycle_too_long_names_its_size() -> None:
    with pytest.raises(EncodeError, match=r"^size: 2147483648 is not at most 262144 packets"):
        make_cycle([stream("1", size=1 << 31)])
    assert len(make_cycle([stream("1", size=1 << 31, verb=Verb.READ)])) == 1
