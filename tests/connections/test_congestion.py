"""Expected delays, intervals and rates are worked out by hand, or counted packet by packet."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibwire.connections.congestion import (
    BIN_NS,
    SCOPES,
    WINDOW_BINS,
    WINDOW_NS,
    CapturedPacket,
    Congestion,
    Pacing,
)
from ibwire.dissect import read
from ibwire_layers.opcodes import OpCode

MS = 1_000_000


class Packet(NamedTuple):
    """Of one direction, or a CNP for it."""

    at: int
    kind: str
    """`.` data, `!` data with a CE mark, `C` a CNP."""
    size: int = 1000


def take(congestion: Congestion, packets: list[Packet], first_number: int = 1) -> None:
    numbered = list(enumerate(packets, first_number))
    data = [(number, packet) for number, packet in numbered if packet.kind != "C"]
    cnps = [(number, packet) for number, packet in numbered if packet.kind == "C"]
    congestion.take(
        time_ns=np.array([packet.at for _, packet in data], np.int64),
        number=np.array([number for number, _ in data], np.int64),
        size=np.array([packet.size for _, packet in data], np.uint32),
        marked=np.array([packet.kind == "!" for _, packet in data], np.bool_),
        cnp_ns=np.array([packet.at for _, packet in cnps], np.int64),
        cnp_number=np.array([number for number, _ in cnps], np.int64),
        source="a.pcap",
    )


def of(packets: list[Packet]) -> Congestion:
    congestion = Congestion()
    take(congestion, packets)
    return congestion


def packets(text: str) -> list[Packet]:
    """One packet a microsecond, a space for none."""
    return [Packet(at * 1000, kind) for at, kind in enumerate(text) if kind != " "]


def test_marks_and_cnps_are_counted() -> None:
    congestion = of(packets("..!.!C.."))

    assert (congestion.packets, congestion.marked, congestion.cnps) == (7, 2, 1)
    assert congestion.marked_share == pytest.approx(2 / 7)
    assert (congestion.first_mark, congestion.first_cnp) == (
        CapturedPacket(3, "a.pcap"),
        CapturedPacket(6, "a.pcap"),
    )


@pytest.mark.parametrize(
    ("text", "at_least", "at_most"),
    [
        pytest.param("!.C", [2000], [2000], id="one mark, one CNP"),
        pytest.param("!!!.C", [2000], [4000], id="several marks"),
        pytest.param("!C..!.C", [1000, 2000], [1000, 2000], id="each CNP has its own marks"),
        pytest.param("!C!.!.C", [1000, 2000], [1000, 4000], id="a mark too soon after a CNP"),
        pytest.param("..C", [], [], id="no mark"),
        pytest.param("!CC!", [1000], [1000], id="no mark for the second CNP"),
        pytest.param("!!!", [], [], id="no CNP"),
    ],
)
def test_a_cnp_follows_the_marks_since_the_one_before(
    text: str, at_least: list[int], at_most: list[int]
) -> None:
    congestion = of(packets(text))

    for delays, expected in (
        (congestion.delay_at_least, at_least),
        (congestion.delay_at_most, at_most),
    ):
        assert len(delays) == len(expected)
        assert delays.low == min(expected, default=None)
        assert delays.high == max(expected, default=None)
    assert congestion.unprompted == congestion.cnps - len(at_least)


def test_frame_numbers_tell_what_came_first_at_the_same_time() -> None:
    after = of([Packet(5, "C"), Packet(5, "!")])
    before = of([Packet(5, "!"), Packet(5, "C")])

    assert (after.unprompted, len(after.delay_at_least)) == (1, 0)
    assert (before.unprompted, before.delay_at_least.high) == (0, 0)


def test_marks_without_any_cnp_are_unanswered() -> None:
    assert of(packets(".!.!")).is_unanswered
    assert not of(packets(".!C!")).is_unanswered
    assert not of(packets("....")).is_unanswered


def test_a_receiver_that_is_soft_roce_leaves_marks_unanswered(captures: Path) -> None:
    """The manifest counts 11 marks in 60 WRITE packets to QP 0x88, and no CNP."""
    congestion = Congestion()
    for columns in read(captures / "ecn-ce.b.pcap"):
        rows = np.flatnonzero(columns["bth.destqp"] == 0x88)
        congestion.take(
            columns["frame.time_ns"][rows].view(np.int64),
            columns["frame.number"][rows].astype(np.int64),
            columns["payload.len"][rows],
            columns["ip.dsfield.ecn"][rows] == 3,
        )

    assert (congestion.packets, congestion.marked, congestion.cnps) == (60, 11, 0)
    assert congestion.is_unanswered
    assert congestion.episodes == 0
    assert congestion.rate_before is None


def test_intervals_are_between_cnps_of_the_queue_pair() -> None:
    congestion = of([Packet(at, "C") for at in (100, 150, 250, 1250)])

    assert congestion.intervals.to_json() == pytest.approx(
        {"count": 3, "min": 50, "p50": 100, "p99": 1000, "max": 1000}
    )


# Rates.


def steady(begin: int, end: int, size: int) -> list[Packet]:
    """A packet every 10 us."""
    return [Packet(at, ".", size) for at in range(begin, end, 10_000)]


def in_order(*parts: Iterable[Packet]) -> list[Packet]:
    return sorted((packet for part in parts for packet in part), key=lambda packet: packet.at)


def test_the_rate_is_compared_before_and_after_the_first_cnp() -> None:
    """1000 bytes each 10 us are 100 MB/s; the CNP after 3 ms halves it."""
    before, after = steady(0, 3 * MS, 1000), steady(3 * MS, 6 * MS, 500)

    congestion = of([*before, Packet(3 * MS, "C"), *after])

    assert (congestion.episodes, congestion.measured) == (1, 1)
    assert congestion.rate_before == pytest.approx(100e6)
    assert congestion.rate_after == pytest.approx(50e6)


def test_the_bin_of_the_cnp_counts_neither_way() -> None:
    begin = 100 * BIN_NS
    sizes = {
        begin - WINDOW_NS - 1: 1,
        begin - WINDOW_NS: 10,
        begin - 1: 100,
        begin: 1000,
        begin + BIN_NS - 1: 10_000,
        begin + BIN_NS: 100_000,
        begin + BIN_NS + WINDOW_NS - 1: 1_000_000,
        begin + BIN_NS + WINDOW_NS: 10_000_000,
    }

    data = [Packet(at, ".", size) for at, size in sizes.items()]
    congestion = of(in_order(data, [Packet(begin + 5, "C")]))

    assert congestion.rate_before == pytest.approx(110 * 1e9 / WINDOW_NS)
    assert congestion.rate_after == pytest.approx(1_100_000 * 1e9 / WINDOW_NS)


def test_cnps_close_to_one_another_are_one_episode() -> None:
    cnps = [Packet(at, "C") for at in (5 * MS, 6 * MS, 7 * MS, 8 * MS + 1)]

    congestion = of(in_order(steady(0, 20 * MS, 1000), cnps))

    assert (congestion.episodes, congestion.measured) == (2, 2)


@pytest.mark.parametrize(("begin", "end"), [(4, 9), (2, 5), (4, 5)])
def test_an_episode_at_the_edge_of_the_capture_is_not_measured(begin: int, end: int) -> None:
    data = steady(begin * MS + MS // 2, end * MS + MS // 2, 1000)

    congestion = of(in_order(data, [Packet(5 * MS, "C")]))

    assert (congestion.episodes, congestion.measured) == (1, 0)
    assert congestion.rate_before is None
    assert congestion.rate_after is None


@pytest.mark.parametrize(("first", "last", "measured"), [(-17, 17, 1), (-16, 17, 0), (-17, 16, 0)])
def test_a_window_is_whole_when_packets_were_seen_in_front_of_it_and_behind(
    first: int, last: int, measured: int
) -> None:
    """16 bins before and after that of the CNP, bin 100."""
    at = [(100 + bin) * BIN_NS for bin in (first, 0, last)]

    congestion = of([Packet(at[0], "."), Packet(at[1], "C"), Packet(at[2], ".")])

    assert congestion.measured == measured


def test_a_window_may_lie_in_several_parts_of_a_capture() -> None:
    merged = Congestion()
    for bin, kind, size in ((1, ".", 1), (2, ".", 10), (18, ".", 100), (18, "C", 0), (35, ".", 7)):
        merged.merge(of([Packet(bin * BIN_NS, kind, size)]))

    assert merged.rate_before == pytest.approx(10 * 1e9 / WINDOW_NS)
    assert merged.rate_after == 0


def test_json_has_counts_delays_and_rates() -> None:
    found = of(in_order(steady(0, 6 * MS, 1000), packets("!C"))).to_json()

    assert found["ecn_ce"] == 1
    assert found["cnps"] == 1
    assert found["cnp_delay_at_most"] == {
        "count": 1,
        "min": 1000,
        "p50": 1000,
        "p99": 1000,
        "max": 1000,
    }
    assert (found["episodes"], found["episodes_measured"]) == (1, 0)
    assert found["rate_before"] is None


# Parts of a capture.

# To the edges of bins and windows.
DELTAS = st.sampled_from(
    (
        0,
        1,
        BIN_NS - 1,
        BIN_NS,
        BIN_NS + 1,
        5 * BIN_NS,
        WINDOW_NS - BIN_NS,
        WINDOW_NS - 1,
        WINDOW_NS,
        WINDOW_NS + 1,
        WINDOW_NS + BIN_NS,
    )
)


@st.composite
def exchanges(draw: st.DrawFn) -> list[Packet]:
    """Data, marked data and CNPs, in order; sizes are powers of two, so that sums tell them."""
    made = []
    at = 0
    for i, delta in enumerate(draw(st.lists(DELTAS, max_size=16))):
        at += delta
        made.append(Packet(at, draw(st.sampled_from(".!C")), 1 << i))
    return made


PACKETS = exchanges()

CUTS = st.lists(st.integers(0, 16), max_size=4).map(sorted)


def cut(made: list[Packet], cuts: list[int]) -> list[tuple[int, list[Packet]]]:
    """Parts of the list, and the number of the first packet of each."""
    edges = [0, *cuts, len(made)]
    return [(b + 1, made[b:e]) for b, e in itertools.pairwise(edges)]


@given(PACKETS, CUTS)
def test_merging_parts_is_taking_all(made: list[Packet], cuts: list[int]) -> None:
    merged = Congestion()
    for number, part in cut(made, cuts):
        later = Congestion()
        take(later, part, number)
        merged.merge(later)

    assert merged == of(made)
    assert merged.to_json() == of(made).to_json()


@given(PACKETS, CUTS)
def test_taking_parts_is_taking_all(made: list[Packet], cuts: list[int]) -> None:
    congestion = Congestion()
    for number, part in cut(made, cuts):
        take(congestion, part, number)

    assert congestion == of(made)


@given(PACKETS)
def test_merging_is_associative(made: list[Packet]) -> None:
    third = len(made) // 3
    parts = cut(made, [third, 2 * third])

    left, right, rest = Congestion(), Congestion(), Congestion()
    for into, numbers in ((left, (0, 1)), (rest, (1, 2)), (right, (0,))):
        for number in numbers:
            later = Congestion()
            take(later, parts[number][1], parts[number][0])
            into.merge(later)
    last = Congestion()
    take(last, parts[2][1], parts[2][0])
    left.merge(last)
    right.merge(rest)

    assert left == right == of(made)


@given(PACKETS)
def test_delays_agree_with_one_packet_after_the_other(made: list[Packet]) -> None:
    since: list[int] = []
    least, most, unprompted = [], [], 0
    for packet in made:
        if packet.kind == "!":
            since.append(packet.at)
        elif packet.kind == "C" and since:
            least.append(packet.at - since[-1])
            most.append(packet.at - since[0])
            since = []
        elif packet.kind == "C":
            unprompted += 1

    congestion = of(made)

    assert congestion.unprompted == unprompted
    for delays, expected in (
        (congestion.delay_at_least, least),
        (congestion.delay_at_most, most),
    ):
        assert (delays.low, delays.high) == (
            min(expected, default=None),
            max(expected, default=None),
        )
        assert len(delays) == len(expected)


@given(PACKETS)
def test_rates_agree_with_counting_the_bytes_of_each_episode(made: list[Packet]) -> None:
    cnps = [packet.at for packet in made if packet.kind == "C"]
    starts = [at for i, at in enumerate(cnps) if i == 0 or at - cnps[i - 1] > WINDOW_NS]
    bins = [packet.at // BIN_NS for packet in made]
    before = after = measured = 0
    for start in (at // BIN_NS for at in starts):
        if bins[0] < start - WINDOW_BINS and start + WINDOW_BINS < bins[-1]:
            measured += 1
            data = [p for p in made if p.kind != "C"]
            before += sum(p.size for p in data if 0 < start - p.at // BIN_NS <= WINDOW_BINS)
            after += sum(p.size for p in data if 0 < p.at // BIN_NS - start <= WINDOW_BINS)

    congestion = of(made)

    assert (congestion.episodes, congestion.measured) == (len(starts), measured)
    if measured:
        assert congestion.rate_before == pytest.approx(before * 1e9 / (measured * WINDOW_NS))
        assert congestion.rate_after == pytest.approx(after * 1e9 / (measured * WINDOW_NS))


def test_what_is_put_aside_does_not_grow() -> None:
    congestion = Congestion()
    for i in range(200):
        take(congestion, steady(i * 1 * MS, (i + 1) * MS, 1000))

    assert congestion._packets_aside <= 1024
    congestion._settled()
    assert len(congestion._rates.head) + len(congestion._rates.tail) <= 2 * (WINDOW_BINS + 1)


# Pacing.


@dataclass(frozen=True)
class Ends:
    src: str
    dst: str
    dst_qpn: int


ENDS = [
    Ends("10.0.0.2", "10.0.0.1", 1),
    Ends("10.0.0.2", "10.0.0.1", 2),
    Ends("10.0.0.2", "10.0.0.3", 1),
    Ends("10.0.0.4", "10.0.0.1", 1),
]


def paced(cnps: list[tuple[int, int]]) -> Pacing:
    """cnps: (time, flow)."""
    pacing = Pacing()
    rows = np.array(cnps, np.int64).reshape(-1, 2)
    pacing.take(rows[:, 0], rows[:, 1], ENDS)
    return pacing


def test_intervals_are_told_by_queue_pair_address_pair_destination_and_port() -> None:
    pacing = paced([(0, 0), (10, 1), (30, 2), (70, 3), (150, 0), (310, 1)])

    # Flow 0 at 0, 150; flow 1 at 10, 310. To 10.0.0.1: 0, 10, 70, 150, 310.
    # From 10.0.0.2 to 10.0.0.1: 0, 10, 150, 310; from 10.0.0.2: 0, 10, 30, 150, 310.
    assert {scope: counted["min"] for scope, counted in pacing.to_json().items()} == {
        "queue_pair": 150,
        "address_pair": 10,
        "destination": 10,
        "port": 10,
    }
    assert {scope: pacing.intervals(scope).count for scope in SCOPES} == {
        "queue_pair": 2,
        "address_pair": 3,
        "destination": 4,
        "port": 4,
    }
    assert pacing.intervals("address_pair").percentile(50) == 140
    assert [pacing.count(scope) for scope in SCOPES] == [4, 3, 2, 2]


CNPS = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 3)), max_size=20).map(sorted)


@given(CNPS, CUTS)
def test_merging_parts_of_pacing_is_taking_all(
    cnps: list[tuple[int, int]], cuts: list[int]
) -> None:
    merged = Pacing()
    edges = [0, *cuts, len(cnps)]
    for begin, end in itertools.pairwise(edges):
        merged.merge(paced(cnps[begin:end]))

    assert merged == paced(cnps)


# Traffic of the generator: a CNP follows the first packet of each marked message.


@pytest.fixture(scope="module")
def traffic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("congestion") / "traffic.pcap"
    with path.open("wb") as out:
        _generator().generate(out, 20_000, seed=3)
    return path


def _generator() -> ModuleType:
    path = Path(__file__).parents[1] / "bench" / "generate.py"
    spec = importlib.util.spec_from_file_location("ibwire_bench_generate", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass
class Counted:
    """Of one direction, packet by packet."""

    marks: int = 0
    cnps: int = 0
    since: list[int] = field(default_factory=list)
    delays: list[int] = field(default_factory=list)


def test_marks_of_generated_traffic_are_answered(traffic: Path) -> None:
    """Connection i has queue pairs 0x100 + i and 0x200 + i; a CNP names the sender's."""
    found: dict[int, Congestion] = {}
    counted: dict[int, Counted] = {}
    for columns in read(traffic):
        peer = columns["bth.destqp"].astype(np.int64) ^ 0x300
        is_cnp = columns["bth.opcode"] == OpCode.CNP
        ecn = np.maximum(columns["ip.dsfield.ecn"], columns["ipv6.tclass.ecn"])
        is_data = columns.valid("bth.psn") & ~is_cnp & (columns["bth.destqp"] < 0x300)
        sender = np.where(is_cnp, columns["bth.destqp"], peer)
        time = columns["frame.time_ns"].view(np.int64)
        number = columns["frame.number"].astype(np.int64)
        for qpn in np.unique(sender[is_data | is_cnp]).tolist():
            data = np.flatnonzero(is_data & (sender == qpn))
            cnps = np.flatnonzero(is_cnp & (sender == qpn))
            found.setdefault(qpn, Congestion()).take(
                time[data],
                number[data],
                columns["payload.len"][data],
                ecn[data] == 3,
                time[cnps],
                number[cnps],
            )
        for row in np.flatnonzero(is_cnp | is_data & (ecn == 3)).tolist():
            each = counted.setdefault(int(sender[row]), Counted())
            if is_cnp[row]:
                each.cnps += 1
                each.delays.append(int(time[row]) - each.since[-1])
            else:
                each.marks += 1
                each.since.append(int(time[row]))

    assert sum(each.cnps for each in counted.values()) > 20
    for qpn, expected in counted.items():
        congestion = found[qpn]
        assert (congestion.marked, congestion.cnps) == (expected.marks, expected.cnps)
        assert congestion.unprompted == 0
        assert congestion.delay_at_least.low == min(expected.delays, default=None)
        assert congestion.delay_at_least.high == max(expected.delays, default=None)
    assert sum(each.marked for each in found.values()) == sum(e.marks for e in counted.values())
