"""Which frames a pick means: on the shipped captures, on hand-made frames, and as laws."""

from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_case import each_case
from ibwire.base.errors import EncodeError
from ibwire.capture import open_capture
from ibwire.impair import All, Burst, Chance, Match, always, match
from ibwire.impair.match import locate
from ibwire_layers import OpCode, Packet
from ibwire_layers.headers import AETH, BTH
from ibwire_layers.outer import EtherType, LinkType
from ibwire_layers.walk import walk
from strategies import (
    DEST_QP,
    HANDMADE,
    PSN,
    ROUTE1,
    ROUTE4,
    ROUTE6,
    ROUTE_GLOBAL,
    ROUTE_LOCAL,
    damaged,
    packet,
    vlan,
)

SEND, WRITE_FIRST = OpCode.RC_SEND_ONLY, OpCode.RC_RDMA_WRITE_FIRST
ACK, READ = OpCode.RC_ACKNOWLEDGE, OpCode.RC_RDMA_READ_REQUEST


def frame(
    opcode: int = SEND, qp: int = 0x11, psn: int = 0, size: int = 0, syndrome: int = 0x1F
) -> Any:
    extensions = (AETH(syndrome=syndrome, msn=1),) if opcode == ACK else ()
    bth = BTH(opcode=opcode, dest_qp=qp, psn=psn)
    return Packet(ROUTE4, bth, extensions, bytes(size)).repaired().build()


def meant(pick: Any, frames: Any) -> Any:
    """Indices of the frames that a pick means."""
    return [i for i, each in enumerate(frames) if pick(each, i)]


def capture(captures: Path, name: str) -> Any:
    with open_capture(captures / name) as records:
        return [(record.number, record.data) for record in records.records()]


def numbers(captures: Path, name: str, **conditions: Any) -> Any:
    """Packet numbers of a shipped capture that fit."""
    pick = Match(**conditions)
    return [number for number, data in capture(captures, name) if pick(data, 0)]


# On captures: the expected counts are those of index.toml, made by tshark.


@pytest.mark.parametrize(
    ("name", "conditions", "expected"),
    [
        ("rcx-all-ops.pcap", {}, 64),
        ("rcx-all-ops.pcap", {"opcode": "RC_ACKNOWLEDGE"}, 12),
        ("rcx-all-ops.pcap", {"opcode": 0x0E}, 7),
        ("rcx-all-ops.pcap", {"opcode": ["RC_SEND_ONLY", 0x0E]}, 13),
        ("rcx-all-ops.pcap", {"opcode": "READ_RESPONSE"}, 1 + 7 + 1 + 2),
        ("rcx-all-ops.pcap", {"opcode": "response"}, 1 + 7 + 1 + 2 + 12 + 2),
        ("rcx-all-ops.pcap", {"opcode": "request"}, 50 - 25),
        ("rcx-all-ops.pcap", {"dest_qp": 0x66}, 25),
        ("rcx-all-ops.pcap", {"dest_qp": [0x66, 0x9B]}, 50),
        ("rcx-all-ops.pcap", {"connection": [1, 2]}, 50),
        ("rcx-all-ops.pcap", {"connection": 3}, 0),
        ("rcx-ipv6.pcap", {"opcode": "WRITE"}, 2 + 4 + 1 + 1 + 1),
        ("vlan-rc-pingpong.pcap", {"opcode": "SEND"}, 20),
        ("ud-pingpong.pcap", {"opcode": "UD_SEND_ONLY"}, 20),
        ("rnr-late-recv.pcap", {"syndrome": "RNR_NAK"}, 9),
        ("rnr-late-recv.pcap", {"syndrome": "ACK"}, 3),
        ("rnr-late-recv.pcap", {"syndrome": ["ACK", "RNR_NAK"], "dest_qp": 0xAC}, 12),
        ("nak-bad-rkey-write-multi.pcap", {"syndrome": "NAK"}, 1),
        ("nak-bad-rkey-write-multi.pcap", {"syndrome": "REMOTE_ACCESS_ERROR"}, 1),
        ("nak-bad-rkey-write-multi.pcap", {"syndrome": "PSN_SEQUENCE_ERROR"}, 0),
        ("drop-one-middle.a.pcap", {"syndrome": "PSN_SEQUENCE_ERROR"}, 1),
    ],
)
def test_as_many_packets_of_a_capture_fit_as_tshark_counts(
    captures: Path, name: str, conditions: Any, expected: int
) -> None:
    assert len(numbers(captures, name, **conditions)) == expected


def test_relative_psn_names_the_lost_packet_and_its_second_transmission(captures: Path) -> None:
    """The fourth packet of a ten-packet WRITE is lost in this capture, then sent again."""
    writes = [0x06, 0x07, 0x08]
    frames = [data for _, data in capture(captures, "drop-one-middle.a.pcap")]
    first = next(Packet.parse(f).bth.psn for f in frames if Match(opcode=writes)(f, 0))

    for nth in (1, 2):
        pick = Match(opcode=writes, psn=3, nth=nth)
        (found,) = [Packet.parse(f).bth for f in frames if pick(f, 0)]
        assert found.psn == first + 3
    assert meant(Match(opcode=writes, psn=3, nth=3), frames) == []


def test_management_queue_pairs_are_not_numbered(captures: Path) -> None:
    """QP 1 of cm-rping.pcap comes first and has five packets; the others have 60 each."""
    assert len(numbers(captures, "cm-rping.pcap", connection=1)) == 60
    assert len(numbers(captures, "cm-rping.pcap", connection=[1, 2])) == 120


# Single conditions.


def test_connections_are_numbered_as_they_appear() -> None:
    frames = [frame(qp=qp) for qp in (7, 5, 7, 9, 5)]

    assert meant(Match(connection=1), frames) == [0, 2]
    assert meant(Match(connection=2), frames) == [1, 4]
    assert meant(Match(connection=3), frames) == [3]


def test_relative_psn_counts_from_the_first_of_each_queue_pair() -> None:
    frames = [frame(qp=qp, psn=psn) for qp, psn in ((7, 100), (5, 3), (7, 102), (5, 5), (5, 4))]

    assert meant(Match(psn=2), frames) == [2, 3]
    assert meant(Match(psn=[0, 1]), frames) == [0, 1, 4]


def test_relative_psn_goes_over_the_wrap() -> None:
    frames = [frame(psn=psn) for psn in (0xFFFFFE, 0xFFFFFF, 0, 1)]

    assert meant(Match(psn=2), frames) == [2]


def test_relative_psn_counts_requests_and_responses_apart() -> None:
    frames = [frame(psn=100), frame(ACK, psn=5000), frame(psn=101), frame(ACK, psn=5001)]

    assert meant(Match(psn=1), frames) == [2, 3]
    assert meant(Match(psn=1, opcode="response"), frames) == [3]


def test_first_psn_is_that_of_the_first_packet_even_if_it_does_not_fit() -> None:
    frames = [frame(WRITE_FIRST, psn=10), frame(psn=11), frame(psn=12)]

    assert meant(Match(opcode=int(SEND), psn=1), frames) == [1]
    assert meant(Match(psn=1, after=1), frames) == [1]


def test_absolute_psn_is_that_of_the_header() -> None:
    assert meant(Match(absolute_psn=[11, 13]), [frame(psn=n) for n in range(10, 15)]) == [1, 3]


def test_sizes_are_bounds_of_the_frame() -> None:
    frames = [frame(size=size) for size in (0, 4, 8, 12)]  # 14 + 20 + 8 + 12 + 4 = 58 and more

    assert meant(Match(min_size=62), frames) == [1, 2, 3]
    assert meant(Match(max_size=66), frames) == [0, 1, 2]
    assert meant(Match(min_size=62, max_size=62), frames) == [1]


def test_times_include_the_first_and_exclude_the_last() -> None:
    assert meant(Match(after=2, before=4), [b""] * 6) == [2, 3]


def test_nth_counts_only_frames_that_fit_everything_else() -> None:
    frames = [frame(), frame(ACK), frame(), frame(ACK), frame(), frame(ACK)]

    assert meant(Match(opcode="response", nth=2), frames) == [3]
    assert meant(Match(opcode="response", nth=[1, 3]), frames) == [1, 5]
    assert meant(Match(opcode="response", every=2), frames) == [3]


def test_conditions_without_headers_are_for_any_frame() -> None:
    assert meant(Match(every=3), [b"", b"x", b"arp", frame(), b"", b""]) == [2, 5]


def test_conditions_on_headers_are_for_no_frame_without_a_bth() -> None:
    arp = bytes(12) + bytes.fromhex("0806") + bytes(46)

    assert meant(Match(opcode=0), [arp, b"", arp[:13]]) == []


def test_cnp_is_neither_request_nor_response() -> None:
    cnp = packet(ROUTE4, OpCode.CNP, b"")

    assert not Match(opcode=["request", "response"])(cnp, 0)
    assert Match(opcode="CNP")(cnp, 0)


def test_syndrome_is_found_behind_other_headers() -> None:
    """An RD acknowledgement has an RDETH between BTH and AETH."""
    data = bytearray(packet(ROUTE4, OpCode.RD_ACKNOWLEDGE, b""))
    data[14 + 28 + 12 + 4] = 0x63

    assert Match(syndrome="REMOTE_OPERATIONAL_ERROR")(bytes(data), 0)


@pytest.mark.parametrize("route", [ROUTE4, ROUTE6, ROUTE1])
def test_every_route_of_ethernet_is_read(route: Any) -> None:
    data = packet(route)

    assert Match(dest_qp=DEST_QP, absolute_psn=PSN, opcode="WRITE")(data, 0)


@pytest.mark.parametrize("route", [ROUTE_LOCAL, ROUTE_GLOBAL])
def test_native_infiniband_is_read_when_told(route: Any) -> None:
    data = packet(route)

    assert Match(dest_qp=DEST_QP, link_type=LinkType.INFINIBAND)(data, 0)


def test_tagged_frames_are_read() -> None:
    plain = packet(ROUTE4)
    tagged = plain[:12] + EtherType.VLAN.to_bytes(2) + vlan(plain[14:])

    assert Match(absolute_psn=PSN)(tagged, 0)


def test_queue_pairs_beyond_the_limit_have_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(match, "MAXIMUM_QPNS", 2)
    frames = [frame(qp=qp, psn=1) for qp in (7, 8, 9, 7, 9)]

    assert meant(Match(connection=[1, 2, 3]), frames) == [0, 1, 3]
    assert meant(Match(psn=0), frames) == [0, 1, 3]


@each_case(
    "conditions",
    [
        {"opcode": "RC_SEND"},
        {"opcode": 256},
        {"opcode": True},
        {"opcode": []},
        {"opcode": 1.5},
        {"dest_qp": 1 << 24},
        {"dest_qp": "0x11"},
        {"connection": 0},
        {"psn": -1},
        {"psn": [1, None]},
        {"absolute_psn": 1 << 24},
        {"syndrome": "nack"},
        {"syndrome": 3},
        {"min_size": -1},
        {"max_size": "9"},
        {"after": -1},
        {"before": 0},
        {"nth": 0},
        {"nth": [1, 0]},
        {"every": 0},
        {"every": False},
    ],
)
def test_condition_that_cannot_be_met_is_refused_by_name(conditions: Any) -> None:
    with pytest.raises(EncodeError) as caught:
        Match(**conditions)

    assert caught.value.field == next(iter(conditions))


@pytest.mark.parametrize(
    ("conditions", "field"),
    [({"min_size": 5, "max_size": 4}, "max_size"), ({"after": 5, "before": 5}, "before")],
)
def test_empty_ranges_are_refused(conditions: Any, field: str) -> None:
    with pytest.raises(EncodeError) as caught:
        Match(**conditions)

    assert caught.value.field == field


# By chance and by place in the traffic.


def test_chance_comes_as_often_as_it_says() -> None:
    """5 standard deviations of 20,000 draws at 0.1 are 212."""
    pick = Chance(0.1, seed=1)

    assert abs(sum(pick(b"", 0) for _ in range(20_000)) - 2_000) < 212


def test_chances_are_independent_of_the_frame_before() -> None:
    """Of 20,000 draws at 0.5, as many follow a hit as a miss; 5 deviations are 354."""
    pick = Chance(0.5, seed=2)
    draws = [pick(b"", 0) for _ in range(20_001)]

    pairs = sum(a and b for a, b in pairwise(draws))
    assert abs(pairs - 5_000) < 354


@pytest.mark.parametrize(("probability", "expected"), [(0, 0), (0.0, 0), (1, 1000), (1.0, 1000)])
def test_certain_chances_are_certain(probability: float, expected: int) -> None:
    pick = Chance(probability)

    assert sum(pick(b"", 0) for _ in range(1000)) == expected


def test_chance_repeats_by_seed_and_differs_by_name() -> None:
    def draws(seed: int, name: str) -> Any:
        pick = Chance(0.5, seed=seed, name=name)
        return [pick(b"", 0) for _ in range(64)]

    assert draws(1, "a") == draws(1, "a")
    assert len({tuple(draws(s, n)) for s in (1, 2) for n in "ab"}) == 4


@each_case("wrong", [-0.1, 1.1, float("nan"), "0.5", True, None])
def test_impossible_probability_is_refused(wrong: Any) -> None:
    with pytest.raises(EncodeError, match="probability"):
        Chance(wrong)


@each_case(
    ("burst", "expected"),
    [
        ({"count": 2}, [0, 1]),
        ({"count": 2, "first": 4}, [3, 4]),
        ({"count": 2, "first": 2, "period": 5}, [1, 2, 6, 7, 11]),
        ({"count": 1, "period": 4}, [0, 4, 8]),
        ({"count": 3, "period": 3}, list(range(12))),
    ],
)
def test_bursts_come_where_they_say(burst: Any, expected: Any) -> None:
    assert meant(Burst(**burst), [b""] * 12) == expected


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"count": 0}, "count"),
        ({"count": 1, "first": 0}, "first"),
        ({"count": 3, "period": 2}, "period"),
    ],
)
def test_impossible_burst_is_refused(wrong: Any, field: str) -> None:
    with pytest.raises(EncodeError) as caught:
        Burst(**wrong)

    assert caught.value.field == field


def test_all_asks_the_next_only_when_those_before_agree() -> None:
    asked = count()
    pick = All(Match(every=2), lambda frame, now: next(asked) == 1)

    assert meant(pick, [b""] * 8) == [3]
    assert next(asked) == 4


def test_always_means_every_frame() -> None:
    assert meant(always, [b"", b"x"]) == [0, 1]


# Laws.

ETHERNET_FRAMES = [each for each in HANDMADE if each.link_type == LinkType.ETHERNET]


@each_case("each", HANDMADE, ids=str)
def test_locate_agrees_with_walk_on_every_kind_of_frame(each: Any) -> None:
    found = walk(each.data, each.link_type)

    assert locate(each.data, each.link_type) == (found.start, found.bth, found.end)


@given(damaged())
def test_locate_agrees_with_walk_on_damaged_frames(each: Any) -> None:
    found = walk(each.data, each.link_type)

    assert locate(each.data, each.link_type) == (found.start, found.bth, found.end)


@given(st.lists(damaged(), max_size=10))
def test_match_answers_for_anything(frames: Any) -> None:
    pick = Match(opcode="response", psn=[0, 1], connection=1, syndrome="ACK", nth=1)

    assert sum(pick(each.data, 0) for each in frames) <= 1


@given(
    st.lists(st.tuples(st.sampled_from([SEND, ACK]), st.integers(2, 4), st.integers(0, 5))),
    st.integers(1, 5),
)
def test_nth_is_the_nth_of_those_that_fit_without_it(traffic: Any, nth: int) -> None:
    frames = [frame(opcode, qp, psn) for opcode, qp, psn in traffic]
    conditions: dict[str, Any] = {"opcode": "request", "psn": [0, 2], "connection": [1, 2]}

    fitting = meant(Match(**conditions), frames)

    assert meant(Match(**conditions, nth=nth), frames) == fitting[nth - 1 : nth]
    assert meant(Match(**conditions, every=nth), frames) == fitting[nth - 1 :: nth]
