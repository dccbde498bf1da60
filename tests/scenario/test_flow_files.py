"""Lists of flows and distributions of sizes in the formats of other simulators."""

import random
from fractions import Fraction
from pathlib import Path
from statistics import fmean

import pytest

from ibwire.base.errors import ScriptError
from ibwire.base.units import MS, NS, US
from ibwire.scenario.flow_files import (
    PUBLISHED,
    FlowEntry,
    Sizes,
    poisson_flows,
    read_flows,
    read_sizes,
)

HPCC = """\
2
11 12 3 100 8137078 2.000000962
15 1 3 100 500434 2.000001428
3 9 3 100 2116 2.000002363

First line: # of flows
"""

MATRIX = """\
Nodes 16
Connections 2
7->5 id 1 start 0.5 size 2000000
15->1 start 2 size 100 prio 3
"""


def write(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_hpcc_flows_count_from_the_first_and_end_at_the_number(tmp_path: Path) -> None:
    flows = read_flows(write(tmp_path, "flow.txt", HPCC))

    assert flows == [FlowEntry(11, 12, 8137078, 0), FlowEntry(15, 1, 500434, 466 * NS)]


@pytest.mark.parametrize(("unit", "start"), [(US, 1_500_000), (1, 1)])
def test_connection_matrix(tmp_path: Path, unit: int, start: int) -> None:
    flows = read_flows(write(tmp_path, "x.cm", MATRIX), unit=unit)

    assert flows[0] == FlowEntry(7, 5, 2_000_000, 0)
    assert flows[1]._replace(start=0) == FlowEntry(15, 1, 100, 0)
    assert abs(flows[1].start - start) <= 1


@pytest.mark.parametrize(
    ("name", "text", "line", "reason"),
    [
        ("f.txt", "", 1, "'' is not a number of flows"),
        ("f.txt", "1 2\n", 1, "the first line of a flow file is the number of flows"),
        ("f.txt", "2\n1 2 3 100 5 2\n", None, "ends after 1 of 2 flows"),
        ("f.txt", "1\n1 2 3 5 2\n", 2, "5 words"),
        ("f.txt", "1\n\n1 1 3 100 5 2\n", 3, "from host 1 to itself"),
        ("f.txt", "1\n1 2 3 100 0 2\n", 2, "of no bytes"),
        ("f.txt", "1\n1 2 3 100 -4 2\n", 2, "'-4' is not a number of bytes"),
        ("f.txt", "1\n1 2 3 100 4 inf\n", 2, "'inf' is not a number such as"),
        ("f.txt", "99999999\n", 1, "is not a number of flows up to 65,536"),
        ("f.txt", "1\n1 2 3 100 4 1e30\n", 2, "begins after more than 100,000 seconds"),
        ("f.cm", "Nodes 4\n4->1 start 0 size 5\n", 2, "host 4 of 4 nodes"),
        ("f.cm", "Nodes\n", 1, "must be followed by one number"),
        ("f.cm", "Connections 3\n0->1 start 0 size 5\n", None, "has 1 flows, its header says 3"),
        ("f.cm", "0->1 size 5\n", 1, "a flow without 'start'"),
        ("f.cm", "0->1 start 0\n", 1, "a flow without 'size'"),
        ("f.cm", "0->1 start 0 size\n", 1, "nothing follows 'size'"),
        ("f.cm", "0->1 trigger 1 size 5\n", 1, "'trigger' is not supported"),
        ("f.cm", "0->1 speed 1\n", 1, "'speed' is unknown"),
        ("f.cm", "Triggers 1\n", 1, "triggers are not supported"),
        ("f.cm", "0=>1\n", 1, "'0=>1' is neither a flow"),
        ("f.cm", "\x00\xff\n", 1, "is neither a flow"),
    ],
)
def test_bad_list_is_a_sentence_with_its_line(
    tmp_path: Path, name: str, text: str, line: int | None, reason: str
) -> None:
    path = write(tmp_path, name, text)

    with pytest.raises(ScriptError) as caught:
        read_flows(path)

    assert (caught.value.path, caught.value.line) == (str(path), line)
    assert reason in caught.value.reason


def test_missing_and_endless_files_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match="no such file"):
        read_flows(tmp_path / "missing.txt")
    with pytest.raises(ScriptError, match="too long"):
        read_flows(Path("/dev/zero"))


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("", None, "ends with nothing"),
        ("0 0\n100 99\n", None, "ends with 99, expected a last percentage of 100"),
        ("0 0\n100 50 3\n", 2, "3 words"),
        ("0 5\n100 100\n", 1, "the first percentage is 5, expected 0"),
        ("0 0\n100 60\n90 100\n", 3, "must rise"),
        ("0 0\n100 60\n200 60\n300 100\n", 3, "must rise"),
        ("0 0\nmany 100\n", 2, "'many' is not a number"),
    ],
)
def test_bad_distribution_is_a_sentence_with_its_line(
    tmp_path: Path, text: str, line: int | None, reason: str
) -> None:
    with pytest.raises(ScriptError) as caught:
        read_sizes(write(tmp_path, "d.txt", text))

    assert caught.value.line == line
    assert reason in caught.value.reason


def test_sizes_between_two_points_are_uniform(tmp_path: Path) -> None:
    sizes = read_sizes(write(tmp_path, "d.txt", "0 0\n1000 40\n3000 100\n"))

    # By hand: half of them are below 1000 + 2000 * 10 / 60; mean 0.4 * 500 + 0.6 * 2000.
    assert [sizes.at(share) for share in (0.0, 0.2, 0.4, 0.5, 0.75)] == [1, 500, 1000, 1333, 2166]
    assert sizes.mean == 1400


@pytest.mark.parametrize(("name", "mean"), [("hadoop", 120421), ("storage", 40870)])
def test_published_distributions_have_their_mean(name: str, mean: int) -> None:
    sizes = PUBLISHED[name]

    drawn = fmean(sizes.at((share + 0.5) / 4000) for share in range(4000))

    assert float(sizes.mean) == pytest.approx(mean, abs=1)
    assert drawn == pytest.approx(mean, rel=0.05)


@pytest.mark.slow
def test_poisson_flows_come_at_the_load_that_was_asked_for() -> None:
    """16 hosts of 100 Gb/s at half load for 1 ms: 829 flows in the list of tests/truth/data."""
    sizes = PUBLISHED["hadoop"]
    interval = sizes.mean * 8 * 10**12 / (50 * 10**9)

    counts = []
    for seed in range(20):
        draw = random.Random(seed)
        flows = poisson_flows(
            sizes,
            {source: [each for each in range(16) if each != source] for source in range(16)},
            mean_interval=interval,
            duration=1 * MS,
            most=10_000,
            draw=draw,
        )
        counts.append(len(flows))
        assert [each.start for each in flows] == sorted(each.start for each in flows)
        assert all(each.source != each.target for each in flows)

    expected = 16 * 10**9 / float(interval)
    assert expected == pytest.approx(830.4, abs=0.1)
    assert fmean(counts) == pytest.approx(expected, abs=3 * (expected / 20) ** 0.5)


def test_number_of_flows_and_targets_are_kept() -> None:
    flat = Sizes(((Fraction(10), Fraction(0)), (Fraction(11), Fraction(1))))

    flows = poisson_flows(
        flat,
        {1: [2], 2: []},
        mean_interval=Fraction(5),
        duration=None,
        most=7,
        draw=random.Random(3),
    )

    assert [(each.source, each.target, each.size) for each in flows] == [(1, 2, 10)] * 7
