"""`[[flow]]` tables that stand for many flows."""

from fractions import Fraction
from pathlib import Path
from random import Random

import pytest

from ibwire.base.errors import ScriptError
from ibwire.base.toml_settings import Setting
from ibwire.base.units import US
from ibwire.scenario import Scenario, load, run

STAR = """\
[topology]
kind = "star"
hosts = 4

[[flow]]
"""


DRAW = Random(0)


def scenario(tmp_path: Path, keys: str, *settings: Setting) -> Scenario:
    path = tmp_path / "s.toml"
    path.write_text(STAR + keys)
    return load(str(path), settings)


def flows(found: Scenario) -> list[tuple[tuple[str, str], int, int]]:
    return [
        (
            connection.between,
            sum([traffic.sizes.pick(number, DRAW) for number in range(traffic.count)]),
            traffic.start,
        )
        for connection, traffic in zip(
            found.connections, (each.traffic for each in found.workloads), strict=True
        )
    ]


def test_file_of_hpcc_beside_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "flow.txt").write_text("2\n3 0 3 100 500000 2\n1 2 3 100 70 2.00001\n")

    found = scenario(tmp_path, 'file = "flow.txt"\nstart = "1us"')

    expected = [(("h3", "h0"), 500_000, 1 * US), (("h1", "h2"), 70, 11 * US)]
    assert flows(found) == expected
    assert [each.name for each in found.connections] == ["flow.0", "flow.1"]


def test_numbers_of_a_file_are_the_hosts_that_are_named(tmp_path: Path) -> None:
    (tmp_path / "x.cm").write_text("Nodes 2\nConnections 1\n0->1 start 3 size 9\n")

    found = scenario(tmp_path, 'file = "x.cm"\nhosts = ["h3", "h1"]')

    assert flows(found) == [(("h3", "h1"), 9, 0)]


def test_flows_of_a_file_arrive(tmp_path: Path) -> None:
    (tmp_path / "x.cm").write_text("3->0 start 0 size 300000\n1->2 start 7 size 70\n")

    outcome = run(scenario(tmp_path, 'file = "x.cm"'))

    assert outcome.passed
    assert outcome.metrics["verified_bytes"] == 300_070
    # 300,000 bytes in packets of 1106 bytes of line time for 1024, and some microseconds.
    time = outcome.by_connection["flow.0"]["time"]
    assert 300_000 * 80 * 1106 / 1024 < time < 1.25 * 300_000 * 80 * 1106 / 1024


def test_drawn_flows_depend_on_the_seed_only(tmp_path: Path) -> None:
    keys = 'sizes = "hadoop"\nload = 0.3\nduration = "300us"'

    first, again = (flows(scenario(tmp_path, keys)) for _ in range(2))
    other = flows(scenario(tmp_path, keys, Setting("seed", "2")))

    assert first == again != other
    # 4 hosts x 0.3 x 100 Gb/s for 300 us over the mean of 120,421 bytes: 37.4 flows.
    assert 20 < len(first) < 60
    assert all(start <= 300 * US and a != b for (a, b), _, start in first)


def test_sizes_may_be_bytes_or_a_file_and_hosts_some(tmp_path: Path) -> None:
    (tmp_path / "d.txt").write_text("0 0\n10 100\n")
    keys = 'from = ["h1", "h2"]\nto = "h0"\nload = 0.5\ncount = 5\nsizes = '

    fixed = flows(scenario(tmp_path, f'{keys}"2 KiB"'))
    drawn = flows(scenario(tmp_path, f'{keys}"d.txt"'))

    assert len(fixed) == len(drawn) == 5
    assert {size for _, size, _ in fixed} == {2048}
    assert {size for _, size, _ in drawn} <= set(range(1, 11))
    assert {pair[1] for pair, _, _ in fixed} == {"h0"}
    assert {pair[0] for pair, _, _ in fixed} <= {"h1", "h2"}
    assert Fraction(1, 10) * fixed[-1][2] < 2048 * 8 * 20 * 5  # at 50 Gb/s each


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ('file = "missing.txt"', r"s.toml:6:8: flow\[0\].file: .*missing.txt: no such file"),
        ('file = "short.txt"', r"s.toml:6:8: flow\[0\].file: .*short.txt: ends after 0 of 3 flows"),
        ('file = "none.txt"', r"s.toml:6:8: flow\[0\].file: none.txt has no flow"),
        ('file = "bad.cm"', "bad.cm:2: "),
        ('file = "high.cm"', r"s.toml:6:8: flow\[0\].file: it names host 9, and the 4 hosts"),
        ('file = "high.cm"\nsizes = 5', "a flow has a file or sizes"),
        ('file = "high.cm"\nstart_unit = "ms"', "'ms' is not one of us, ps"),
        ('file = "high.cm"\nstart = "10s"', "start: the run ends at its limit of 10 s"),
        ('sizes = "hadop"\nload = 0.5\ncount = 1', "'hadop' is none of hadoop, storage"),
        ("sizes = true\nload = 0.5\ncount = 1", "true is none of"),
        ("sizes = 0\nload = 0.5\ncount = 1", "0 is not from 1"),
        ('sizes = "bad.txt"\nload = 0.5\ncount = 1', "bad.txt:2: "),
        ("sizes = 5\ncount = 1", "load is missing"),
        ("sizes = 5\nload = 0\ncount = 1", "expected a number above 0"),
        ("sizes = 5\nload = 3\ncount = 1", "3 is not from"),
        ("sizes = 5\nload = 0.5", "duration is missing, or count"),
        ('sizes = 5\nload = 0.5\nduration = "fast"', "duration: 'fast' is not a time"),
        ('sizes = "1 GiB"\nload = 0.001\nduration = "1ns"', "no flow: a longer duration"),
        pytest.param(
            'sizes = 500\nload = 1\nduration = "9s"',
            r"s.toml:8:12: flow\[0\].duration: 65,536 flows, the most .* first 6\d\d(\.\d+)? us: ",
            marks=pytest.mark.slow,
        ),
        ("sizes = 5\nload = 0.5\ncount = 1\n[flow.expect]\ntimeouts = 0", "in .expect. only"),
        ("sizes = 5\nload = 0.5\ncount = 1\nsize = 5", "size: unknown; did you mean sizes"),
    ],
)
def test_bad_list_is_a_sentence_with_its_place(tmp_path: Path, keys: str, reason: str) -> None:
    (tmp_path / "bad.cm").write_text("Nodes 4\n1>2\n")
    (tmp_path / "bad.txt").write_text("0 0\n5\n")
    (tmp_path / "short.txt").write_text("3\n")
    (tmp_path / "none.txt").write_text("0\n")
    (tmp_path / "high.cm").write_text("9->1 start 0 size 1\n")

    with pytest.raises(ScriptError, match=reason):
        scenario(tmp_path, keys)
